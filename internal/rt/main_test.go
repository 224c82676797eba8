package rt

import (
	"os"
	"testing"

	"tenon.dev/internal/benchrun"
)

func TestMain(m *testing.M) {
	os.Exit(benchrun.Main(m, "internal/rt", Describe))
}
