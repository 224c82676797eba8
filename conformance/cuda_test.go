package conformance

import (
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
	"tenon.dev/kernel"
)

var longFlag = flag.Bool("long", false, "run the long forms of tests")

// cudaTest is one behaviour of PyTorch's test_cuda.py. run gets an Exec of a device that nothing else uses, in a new scope, with garbage
// collection of tensors off.
type cudaTest struct {
	name string
	run  func(t *testing.T, x *tenon.Exec)
	// async says that the back end cudaMallocAsync behaves so too.
	async bool
}

// TestCUDA checks the behaviours of memory, of streams, and of optimizers in graphs that test_cuda.py pins, under their numbers. They run
// on a simulated device in virtual time, or with -device cuda on a GPU.
func TestCUDA(t *testing.T) {
	var seen []string
	for _, c := range cudaTests() {
		id, _, _ := strings.Cut(c.name, "_")
		if slices.Contains(seen, id) {
			t.Errorf("%s is there twice", id)
		}
		seen = append(seen, id)
		c.in(t)
	}
}

// TestCUDAMallocAsync runs those behaviours that PyTorch also tests with the back end cudaMallocAsync, with that back end.
func TestCUDAMallocAsync(t *testing.T) {
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
	for _, c := range cudaTests() {
		if c.async {
			c.in(t)
		}
	}
}

func cudaTests() []cudaTest {
	return slices.Concat(allocatorTests, settingsTests, poolTests, pinnedTests, copyTests, historyTests, plotTests, optimTests, graphTests,
		checkpointTests, streamTests, queryTests, mathTests, faultTests, randomTests, precisionTests, fileTests, autocastTests)
}

// in runs the behaviour as a sub-test.
func (c *cudaTest) in(t *testing.T) {
	t.Run(c.name, func(t *testing.T) {
		x := openGPU(t)
		if err := tenon.Try(func() { x.Scope(func(x *tenon.Exec) { c.run(t, x) }) }); err != nil {
			t.Fatal(err)
		}
	})
}

// async reports whether x's device has the back end cudaMallocAsync.
func async(x *tenon.Exec) bool { return x.Device().AllocatorBackend() == "cudaMallocAsync" }

// onGPU reports whether the tests run on a real GPU.
func onGPU() bool { return *deviceFlag == "cuda" }

// openGPU opens the GPU, or a simulated one, until the test ends. Memory that the test leaves allocated is a failure.
func openGPU(t *testing.T) *tenon.Exec {
	t.Helper()
	sel := tenon.Sim(0)
	if onGPU() {
		sel = tenon.CUDA(0)
	}
	return openDevice(t, sel)
}

// openDevice is openGPU for any device.
func openDevice(t *testing.T, sel tenon.Selector) *tenon.Exec {
	t.Helper()
	x, err := tenon.Open(sel)
	if err != nil {
		t.Fatal(err)
	}
	dev := x.Device()
	dev.SetGarbageCollection(false)
	t.Cleanup(func() {
		if err := dev.Synchronize(); err != nil {
			t.Error(err)
		}
		if err := dev.EmptyCache(); err != nil {
			t.Error(err)
		}
		if n := dev.MemoryAllocated(); n != 0 && !t.Failed() {
			t.Errorf("%d bytes are still allocated at the end", n)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// must ends the test if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError fails unless err contains all of parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error; want one that says %q", parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error is %q; want one that says %q", err, p)
		}
	}
}

// wantOOM fails unless err is an out-of-memory error that contains all of parts.
func wantOOM(t *testing.T, err error, parts ...string) {
	t.Helper()
	var e *tenon.Error
	if !errors.As(err, &e) || e.Kind != tenon.OutOfMemory {
		t.Errorf("the error is %v; want an out-of-memory error", err)
		return
	}
	wantError(t, err, parts...)
}

// check fails the test if two values differ.
func check[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// allAre fails unless every element of a is v.
func allAre(t *testing.T, x *tenon.Exec, what string, a *tenon.Tensor, v float64) {
	t.Helper()
	x = x.On(streamFor(x, a))
	x.Scope(func(x *tenon.Exec) {
		same, err := x.Item(x.ToDType(x.All(x.EqS(a, v), nil), tenon.Uint8))
		must(t, err)
		if same != 1 {
			t.Errorf("%s: not every element is %v", what, v)
		}
	})
}

// equal reports whether a and b, which may be on different devices, have the same elements.
func equal(t *testing.T, x *tenon.Exec, a, b *tenon.Tensor) bool {
	t.Helper()
	ab, err := x.Bytes(a)
	must(t, err)
	bb, err := x.Bytes(b)
	must(t, err)
	return slices.Equal(ab, bb)
}

// streamFor returns x's stream if a is on its device, else the processor's.
func streamFor(x *tenon.Exec, a *tenon.Tensor) *cuda.Stream {
	if a.Device() == x.Device() {
		return x.Stream()
	}
	return x.Host().Stream()
}

// spinner keeps its stream busy for a number of cycles of the device clock.
var spinner = kernel.Build("spin", func(k *kernel.Builder) {
	cycles := k.Scalar("cycles", tenon.Int64)
	start := k.Clock()
	k.Loop(func() { k.If(k.Clock().Sub(start).Ge(cycles), func() { k.Break() }) })
})

// spin keeps x's stream busy for d. The simulator's virtual clock stands still until the host waits, so "still busy" is certain there.
func spin(x *tenon.Exec, d time.Duration) {
	khz := (*core.Exec)(x).Device().Info().ClockKHz
	x.Launch(spinner, tenon.LaunchShape{Grid: [3]int{1}, Block: [3]int{1}}, tenon.Integer(int64(khz)*d.Milliseconds()))
}

// newStream returns a stream of x's device.
func newStream(t *testing.T, x *tenon.Exec) *cuda.Stream {
	t.Helper()
	s, err := x.Device().Stream()
	must(t, err)
	return s
}

// busy reports whether s has unfinished work.
func busy(t *testing.T, s *cuda.Stream) bool {
	t.Helper()
	done, err := s.Query()
	must(t, err)
	return !done
}

// stat returns one of the device's statistics.
func stat(t *testing.T, d *cuda.Device, key string) int64 {
	t.Helper()
	v, ok := d.Stats()[key]
	if !ok {
		t.Fatalf("there is no statistic %s", key)
	}
	return v
}

// capped limits the device's allocator to n bytes more than it holds now.
func capped(t *testing.T, d *cuda.Device, n int64) {
	t.Helper()
	_, total, err := d.MemInfo()
	must(t, err)
	allowed := n + d.MemoryReserved()
	f := float64(allowed) / float64(total)
	if int64(f*float64(total)) < allowed { // the fraction may fall a byte short
		f += 0.5 / float64(total)
	}
	if int64(f*float64(total)) != allowed {
		t.Fatalf("no fraction of %d bytes is %d", total, allowed)
	}
	must(t, d.SetMemoryFraction(f))
}

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// settle waits for the device and frees its cached memory.
func settle(t *testing.T, d *cuda.Device) {
	t.Helper()
	must(t, d.Synchronize())
	must(t, d.EmptyCache())
}

// sized returns the size for a GPU or the smaller one for the simulator.
func sized(gpu, simulated int) int {
	if onGPU() {
		return gpu
	}
	return simulated
}
