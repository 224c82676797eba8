package conformance

import (
	"fmt"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/internal/testdevice"
)

// copyTests are the behaviours of copies between pinned and device memory.
var copyTests = []cudaTest{
	{name: "CUDA-013_test_copy_non_blocking", run: testCopyNonBlocking, async: true},
	{name: "CUDA-014_test_copy_non_blocking_type_conversion", run: testCopyConversion, async: true},
	{name: "CUDA-015_test_to_non_blocking", run: testToNonBlocking, async: true},
	{name: "CUDA-016_test_to_cpu_blocking_by_default", run: testToBlocking, async: true},
	{name: "CUDA-314_test_1d_copy", run: testCopy1D, async: true},
	{name: "CUDA-315_test_2d_copy", run: testCopy2D, async: true},
}

func testCopyNonBlocking(t *testing.T, x *tenon.Exec) {
	host := x.Host()
	const n = 10_000_000
	try := func(what string, dst, src *tenon.Tensor) {
		must(t, x.Device().Synchronize())
		spin(x, 50*time.Millisecond)
		x.CopyAsyncInto(dst, src)
		check(t, what+": the copy waits", busy(t, x.Stream()), true)
		e := x.Device().NewEvent()
		defer e.Close()
		must(t, e.Record(x.Stream()))
		must(t, e.Synchronize())
		check(t, what+": equal", equal(t, x, dst, src), true)
	}
	full := func(x *tenon.Exec, n int, v float64) *tenon.Tensor { return x.Full([]int{n}, v, tenon.Uint8) }
	try("pinned to device", full(x, n, 1), x.PinMemory(full(host, n, 0)))
	try("device to pinned", x.PinMemory(full(host, n, 0)), full(x, n, 1))

	base := x.PinMemory(full(host, n, 0))
	part := host.Slice(base, 0, 1, n, 1)
	check(t, "the slice is pinned", part.IsPinned(), true)
	check(t, "the base is pinned", base.IsPinned(), true)
	check(t, "where the slice begins", part.DataPtr(), base.DataPtr()+1)
	check(t, "one storage", part.SharesStorage(base), true)
	try("device to a slice of pinned memory", part, full(x, n-1, 1))
	check(t, "the element before the slice", testdevice.Read[uint8](t, host, base)[0], 0)
	// A slice protects the whole block.
	spin(x, 50*time.Millisecond)
	x.CopyAsyncInto(full(x, n-1, 0), part)
	ptr := base.DataPtr()
	part.Close()
	base.Close()
	if x.PinMemory(full(host, n, 7)).DataPtr() == ptr {
		t.Error("the memory was reused while a copy was to read a slice of it")
	}
}

func testCopyConversion(t *testing.T, x *tenon.Exec) {
	a := x.Ones([]int{1}, tenon.Float32)
	b := x.PinMemory(x.Host().Zeros([]int{1}, tenon.Float32))
	c := x.Empty([]int{1}, tenon.Int64)
	// Loads the kernels, which would wait for the device.
	spin(x, time.Millisecond)
	x.CopyAsyncInto(c, b)
	must(t, x.Device().Synchronize())
	spin(x, 100*time.Millisecond)
	x.CopyAsyncInto(b, a)
	x.CopyAsyncInto(c, b)
	// Both copies are queued, and the second comes after the first.
	check(t, "the copies wait", busy(t, x.Stream()), true)
	check(t, "the result", testdevice.Read[int64](t, x, c)[0], 1)
	check(t, "on the way", testdevice.Read[float32](t, x.Host(), b)[0], 1)
	// On two streams the second copy comes after the first too.
	side := x.On(newStream(t, x))
	spin(x, 100*time.Millisecond)
	x.CopyAsyncInto(b, x.Full([]int{1}, 7, tenon.Float32))
	side.CopyAsyncInto(c, b)
	check(t, "the result by way of another stream", testdevice.Read[int64](t, side, c)[0], 7)
	x.CopyAsyncInto(b, a)
	// A write by the processor waits until the copy has read.
	spin(x, 100*time.Millisecond)
	x.CopyAsyncInto(a, b)
	x.Host().CopyInto(b, x.Host().Full([]int{1}, 5, tenon.Float32))
	check(t, "what was copied", testdevice.Read[float32](t, x, a)[0], 1)
	check(t, "what was written", testdevice.Read[float32](t, x.Host(), b)[0], 5)
}

func testToNonBlocking(t *testing.T, x *tenon.Exec) {
	host := x.Host()
	const n = 1_000_000
	try := func(a *tenon.Tensor, async, toHost bool) {
		what := fmt.Sprintf("to the processor %v, non-blocking %v", toHost, async)
		to := x
		if toHost {
			to = host
		}
		must(t, x.Device().Synchronize())
		spin(x, 100*time.Millisecond)
		b := to.To(a, tenon.ToOpt{NonBlocking: async})
		check(t, what+": the stream is busy", busy(t, x.Stream()), async)
		check(t, what+": equal", equal(t, x, a, b), true)
		check(t, what+": pinned", b.IsPinned(), async && toHost)
	}
	for _, async := range []bool{true, false} {
		try(x.PinMemory(host.RandN([]int{n}, tenon.Float32)), async, false)
		try(x.RandN([]int{n}, tenon.Float32), async, true)
	}
	// The result is ready for every reader, without waits by hand.
	a := x.Ones([]int{n}, tenon.Float32)
	spin(x, 100*time.Millisecond)
	b := host.To(a, tenon.ToOpt{NonBlocking: true})
	sum, err := host.Item(host.Sum(b, nil))
	must(t, err)
	check(t, "the sum of a copy that nobody waited for", sum, n)
}

func testToBlocking(t *testing.T, x *tenon.Exec) {
	src := x.RandN([]int{1_000_000}, tenon.Float32)
	must(t, x.Device().Synchronize())
	spin(x, 100*time.Millisecond)
	dst := x.Host().To(src)
	check(t, "the stream is busy", busy(t, x.Stream()), false)
	check(t, "equal", equal(t, x, src, dst), true)
	check(t, "pinned", dst.IsPinned(), false)
}

// place is the location of a copy's operand.
type place int

const (
	onDevice place = iota
	onHost
	pinned
)

var placeNames = [...]string{"device", "pageable", "pinned"}

// at returns the Exec of p's device.
func (p place) at(x *tenon.Exec) *tenon.Exec {
	if p == onDevice {
		return x
	}
	return x.Host()
}

// put returns host tensor a at p, in a's memory order.
func (p place) put(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
	switch p {
	case onDevice:
		return x.To(a)
	case pinned:
		return x.PinMemory(a)
	}
	return x.Host().Clone(a)
}

// copies tries copies of a view of the source into a view of the destination, for all places and both ways. full is the shape of both,
// and each of views takes a part of it; elements outside the destination's view must not change.
func copies(t *testing.T, x *tenon.Exec, full []int, views map[string]func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor) {
	host := x.Host()
	n := 1
	for _, d := range full {
		n *= d
	}
	source := host.View(host.Arange(float64(n+1), tenon.Float32, tenon.ArangeOpt{Start: 1}), full...)
	for from := onDevice; from <= pinned; from++ {
		for to := onDevice; to <= pinned; to++ {
			for sv, source1 := range views {
				for dv, dest := range views {
					for _, async := range []bool{false, true} {
						x.Scope(func(x *tenon.Exec) {
							what := fmt.Sprintf("%s %s to %s %s, non-blocking %v", placeNames[from], sv, placeNames[to], dv, async)
							src := source1(from.at(x), from.put(x, source))
							base := to.put(x, host.Zeros(full, tenon.Float32))
							dst := dest(to.at(x), base)
							want := host.Zeros(full, tenon.Float32)
							if fmt.Sprint(dst.Shape()) != fmt.Sprint(src.Shape()) {
								return
							}
							host.CopyInto(dest(host, want), source1(host, source))
							spin(x, 10*time.Millisecond)
							if async {
								to.at(x).CopyAsyncInto(dst, src)
							} else {
								to.at(x).CopyInto(dst, src)
							}
							if !equal(t, x, base, want) {
								t.Errorf("%s: the result is wrong", what)
							}
						})
					}
				}
			}
		}
	}
}

func testCopy1D(t *testing.T, x *tenon.Exec) {
	part := func(step, start int) func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		return func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Slice(a, 0, start, start+step*1000, step) }
	}
	copies(t, x, []int{5000}, map[string]func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor{
		"contiguous": part(1, 0), "with an offset": part(1, 17), "every third": part(3, 5),
	})
}

func testCopy2D(t *testing.T, x *tenon.Exec) {
	box := func(row, column, step int) func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		return func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
			return x.Slice(x.Slice(a, 0, row, row+40, 1), 1, column, column+step*40, step)
		}
	}
	copies(t, x, []int{90, 90}, map[string]func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor{
		"box": box(3, 7, 1), "box of every second column": box(3, 1, 2),
		"transposed box": func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.T(box(20, 30, 1)(x, a)) },
	})
	whole := map[string]func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor{
		"whole":      func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.View(a, 90, 90) },
		"transposed": func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.T(a) },
	}
	copies(t, x, []int{90, 90}, whole)
}
