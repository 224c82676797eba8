package conformance

import (
	"os"
	"testing"

	"tenon.dev/internal/benchrun"
	"tenon.dev/internal/rt"
)

func TestMain(m *testing.M) {
	if question := os.Getenv(questionVariable); question != "" {
		os.Exit(answer(question))
	}
	os.Exit(benchrun.Main(m, "conformance", rt.Describe))
}
