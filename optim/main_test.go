package optim_test

import (
	"fmt"
	"os"
	"testing"

	"tenon.dev/internal/benchrun"
	"tenon.dev/internal/rt"
)

func TestMain(m *testing.M) {
	os.Exit(benchrun.Main(m, "optim", device))
}

// device names the GPU, or says that there is none, and the drivers as the other packages that share a run file do.
func device() (name, version string) {
	version = fmt.Sprint("libcuda and hostsim, GPUs ", rt.GPUs())
	if rt.GPUs() == 0 {
		return "none", version
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.CUDA})
	if err != nil {
		return "none", version
	}
	defer dev.Close()
	return dev.Info().Name, version
}
