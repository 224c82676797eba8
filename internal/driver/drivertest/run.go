package drivertest

import (
	"flag"
	"testing"

	"tenon.dev/internal/driver"
)

// Kernels holds the suite's kernel images as text in the format of the device's Info().Image. Each image holds one kernel, named like the
// field in lower case. Parameters are packed in the order given, each at its natural alignment.
type Kernels struct {
	// Saxpy is saxpy(x u64, y u64, a f32, n u32): y[i] = a*x[i] + y[i] in f32 for i = block*blockDim + thread < n. The product may or may
	// not be rounded before the sum (fma): the suite uses values for which both agree.
	Saxpy []byte
	// Spin is spin(cycles u64): one thread reads the device's clock until cycles have passed since it started.
	Spin []byte
	// Illegal is illegal(p u64): one thread stores the 32-bit word 1 at p.
	Illegal []byte
	// Assert is assert(ok u32): one thread asserts that ok is not zero, with the message "ok != 0".
	Assert []byte
}

// suite is one run of the conformance suite.
type suite struct {
	open      func(t *testing.T) driver.Device
	pair      func(t *testing.T) (a, b driver.Device) // nil: the driver has one device
	k         Kernels
	decorated bool
}

// Option changes what the suite expects.
type Option func(*suite)

// Decorated leaves out what a decorator of a device need not provide: calls without allocations.
func Decorated() Option { return func(s *suite) { s.decorated = true } }

// Pair also runs the programs for two devices: open returns two devices of one driver, which it closes through t.Cleanup.
func Pair(open func(t *testing.T) (a, b driver.Device)) Option {
	return func(s *suite) { s.pair = open }
}

// OpenPair opens devices 0 and 1 of a driver until the test ends, and skips the test if the driver has fewer.
func OpenPair(t *testing.T, d driver.Driver) (a, b driver.Device) {
	t.Helper()
	if n, err := d.DeviceCount(); err != nil || n < 2 {
		t.Skipf("needs two devices: %s has %d, %v", d.Name(), n, err)
	}
	var devs [2]driver.Device
	for i := range devs {
		dev, err := d.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := dev.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		devs[i] = dev
	}
	return devs[0], devs[1]
}

// child is the name of the fault program that this process was started to run. Fault programs lose the device, so each runs in its own
// process.
var child = flag.String("drivertest.child", "", "run only this fault program of the driver's conformance suite")

// Run runs every conformance program on the devices that open returns, as sub-tests of t. open may return the same device many times; it
// closes what it opened through t.Cleanup. t must be a top-level test, since the fault programs re-execute the test binary with -test.run
// set to its name.
func Run(t *testing.T, open func(t *testing.T) driver.Device, k Kernels, opts ...Option) {
	s := &suite{open: open, k: k}
	for _, o := range opts {
		o(s)
	}
	if *child != "" {
		s.runChild(t, *child)
		return
	}
	groups := []struct {
		name  string
		tests []test
	}{
		{"Context", contextTests},
		{"Memory", memoryTests},
		{"VirtualMemory", virtualTests},
		{"PoolMemory", poolTests},
		{"HostMemory", hostMemoryTests},
		{"Stream", streamTests},
		{"Event", eventTests},
		{"Module", moduleTests},
		{"Launch", launchTests},
		{"Copy", copyTests},
		{"Callback", callbackTests},
		{"Capture", captureTests},
		{"Graph", graphTests},
		{"Node", nodeTests},
		{"Chain", chainTests},
		{"Allocs", allocsTests},
		{"Order", orderTests},
	}
	for _, g := range groups {
		if g.name == "Allocs" && (s.decorated || raceEnabled) {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.tests {
				t.Run(c.name, func(t *testing.T) {
					f := newFixture(t, s)
					i := f.d.Info()
					if c.pending && i.Inline {
						t.Skip("nothing is ever pending on an inline device")
					}
					if g.name == "VirtualMemory" && !i.VirtualMemory || g.name == "PoolMemory" && !i.PoolMemory {
						testWithout(f)
						return
					}
					c.run(f)
				})
			}
		})
	}
	t.Run("Peer", func(t *testing.T) { s.peers(t) })
	t.Run("Legality", func(t *testing.T) { legality(newFixture(t, s)) })
	t.Run("Fault", func(t *testing.T) { s.faults(t) })
}

// test is one program of the suite; pending is set if it needs unfinished work.
type test struct {
	name    string
	pending bool
	run     func(f *fixture)
}
