package zoo_test

import (
	"os"
	"testing"

	"tenon.dev/internal/benchrun"
	"tenon.dev/internal/rt"
)

func TestMain(m *testing.M) {
	os.Exit(benchrun.Main(m, "internal/zoo", rt.Describe))
}
