package libcuda

import (
	"fmt"
	"os"
	"testing"

	"tenon.dev/internal/benchrun"
)

func TestMain(m *testing.M) {
	os.Exit(benchrun.Main(m, "internal/driver/libcuda", func() (name, driver string) {
		drv := New()
		n, _ := drv.DeviceCount() // 0 if it fails
		driver = fmt.Sprint("libcuda and hostsim, GPUs ", n)
		dev, err := drv.Open(0)
		if err != nil {
			return "none", driver
		}
		defer dev.Close()
		return dev.Info().Name, driver
	}))
}
