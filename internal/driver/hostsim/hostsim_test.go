package hostsim

import (
	_ "embed"
	"testing"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/drivertest"
)

// The suite's kernels as kernel IR.
var (
	//go:embed testdata/saxpy.kir
	saxpyText []byte
	//go:embed testdata/spin.kir
	spinText []byte
	//go:embed testdata/illegal.kir
	illegalText []byte
	//go:embed testdata/assert.kir
	assertText []byte

	testKernels = drivertest.Kernels{Saxpy: saxpyText, Spin: spinText, Illegal: illegalText, Assert: assertText}
)

// opener returns a function that opens the first device of a new machine for each test.
func opener(d func() *Driver) func(t *testing.T) driver.Device {
	return func(t *testing.T) driver.Device {
		dev, err := d().Open(0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := dev.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		return dev
	}
}

func TestVirtual(t *testing.T) {
	drivertest.Run(t, opener(func() *Driver { return New(Options{}) }), testKernels)
}

func TestRealTime(t *testing.T) {
	drivertest.Run(t, opener(func() *Driver { return New(Options{RealTime: true}) }), testKernels)
}

func TestCPU(t *testing.T) {
	drivertest.Run(t, opener(CPU), testKernels)
}

func TestHazards(t *testing.T) {
	drivertest.Hazards(t, func(t *testing.T, seed uint64) []driver.Device {
		d := New(Options{Devices: 2, Policy: Random(seed)})
		devs := make([]driver.Device, 2)
		for i := range devs {
			dev, err := d.Open(i)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { dev.Close() })
			devs[i] = dev
		}
		return devs
	}, testKernels)
}
