package compile_test

import (
	"flag"
	"os"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/benchrun"
	"tenon.dev/internal/rt"
)

var deviceFlag = flag.String("device", "sim", "the device of the tests that give it no size: sim or cuda")

func TestMain(m *testing.M) {
	os.Exit(benchrun.Main(m, "compile", rt.Describe))
}

func onGPU() bool { return *deviceFlag == "cuda" }

// machine selects the tests' device.
func machine() tenon.Selector {
	if onGPU() {
		return tenon.CUDA(0)
	}
	return tenon.Sim(0)
}
