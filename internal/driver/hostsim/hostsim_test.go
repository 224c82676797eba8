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

// pair is the suite's option for machines of two devices.
func pair(o Options) drivertest.Option {
	o.Devices = 2
	return drivertest.Pair(func(t *testing.T) (a, b driver.Device) { return drivertest.OpenPair(t, New(o)) })
}

func TestVirtual(t *testing.T) {
	drivertest.Run(t, opener(func() *Driver { return New(Options{}) }), drivertest.KIR(), pair(Options{}))
}

func TestRealTime(t *testing.T) {
	o := Options{RealTime: true}
	drivertest.Run(t, opener(func() *Driver { return New(o) }), drivertest.KIR(), pair(o))
}

// TestSchedules runs the suite under each policy.
func TestSchedules(t *testing.T) {
	for name, p := range map[string]Policy{"random": Random(7), "interleave": Interleave()} {
		o := Options{Policy: p}
		open := opener(func() *Driver { return New(o) })
		t.Run(name, func(t *testing.T) { drivertest.Run(t, open, drivertest.KIR(), pair(o)) })
	}
}

func TestCPU(t *testing.T) {
	drivertest.Run(t, opener(CPU), drivertest.KIR())
}

func TestHazards(t *testing.T) {
	drivertest.Hazards(t, func(t *testing.T, seed uint64) []driver.Device {
		a, b := drivertest.OpenPair(t, New(Options{Devices: 2, Policy: Random(seed)}))
		return []driver.Device{a, b}
	}, drivertest.KIR())
}
