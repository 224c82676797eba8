package compile_test

import (
	"flag"
	"os"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/benchrun"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/record"
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

// fewProcessors has 33 multiprocessors, so that 529 rows are many.
type fewProcessors struct{ driver.Device }

func (d fewProcessors) Info() *driver.Info {
	i := *d.Device.Info()
	i.Multiprocessors = 33
	return &i
}

// openFew opens a simulated device with few multiprocessors.
func openFew(t *testing.T) (x *tenon.Exec, closed func()) {
	t.Helper()
	x = openWrapped(t, func(d driver.Device) driver.Device { return fewProcessors{d} })
	return x, func() { must(t, x.Close()) }
}

// openWrapped opens a simulated device behind wrap.
func openWrapped(t *testing.T, wrap func(driver.Device) driver.Device) *tenon.Exec {
	t.Helper()
	host, err := rt.Host()
	must(t, err)
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: wrap})
	must(t, err)
	return (*tenon.Exec)(core.New(dev, host))
}

// openRecorded opens a simulated device that records its driver calls; the calls do not depend on the device.
func openRecorded(t *testing.T) (x *tenon.Exec, rec *record.Device) {
	t.Helper()
	x = openWrapped(t, func(d driver.Device) driver.Device {
		rec = record.New(d)
		return rec
	})
	t.Cleanup(func() { _ = x.Close() })
	return x, rec
}
