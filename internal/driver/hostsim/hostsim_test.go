package hostsim

import (
	"testing"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/drivertest"
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
	drivertest.Run(t, opener(func() *Driver { return New(Options{}) }), drivertest.KIR())
}

func TestRealTime(t *testing.T) {
	drivertest.Run(t, opener(func() *Driver { return New(Options{RealTime: true}) }), drivertest.KIR())
}

// TestSchedules runs the suite under each policy.
func TestSchedules(t *testing.T) {
	for name, p := range map[string]Policy{"random": Random(7), "interleave": Interleave()} {
		open := opener(func() *Driver { return New(Options{Policy: p}) })
		t.Run(name, func(t *testing.T) { drivertest.Run(t, open, drivertest.KIR()) })
	}
}

func TestCPU(t *testing.T) {
	drivertest.Run(t, opener(CPU), drivertest.KIR())
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
	}, drivertest.KIR())
}
