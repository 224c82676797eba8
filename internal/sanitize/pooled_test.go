//go:build planted

package sanitize

import (
	"slices"
	"testing"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// These tests plant bugs in stream-ordered memory and in mappings, on the simulator.

// pooledRig is a simulated device with a stream, and kernels for tests.
type pooledRig struct {
	*rig
	s driver.Stream
}

func newPooledRig(t *testing.T) *pooledRig {
	t.Helper()
	dev, err := hostsim.New(hostsim.Options{}).Open(0)
	if err != nil {
		t.Fatal(err)
	}
	r := &pooledRig{rig: &rig{t: t, dev: dev, th: dev.Enter(), pooled: map[driver.Ptr]driver.Stream{}}}
	r.s = r.stream()
	t.Cleanup(r.close)
	return r
}

// take allocates a buffer in the order of the rig's stream, zeroed if zeroed is set.
func (r *pooledRig) take(zeroed bool) driver.Ptr {
	p, err := r.dev.MemAllocAsync(r.th, 4*lanes, r.s)
	r.must(err)
	r.pooled[p] = r.s
	if zeroed {
		r.must(r.dev.Memset(p, 0, 4, lanes, r.s))
	}
	return p
}

// give frees a buffer in the order of s.
func (r *pooledRig) give(p driver.Ptr, s driver.Stream) {
	delete(r.pooled, p)
	r.must(r.dev.MemFreeAsync(r.th, p, s))
}

// copies returns a kernel that copies in to out, and the line of one of the two accesses.
func copies(t *testing.T, name string, storeLine bool) (p *kir.Program, line int) {
	p = build(t, name, func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		if !storeLine {
			line = here() + 2
		}
		v := in.Load(tid)
		if storeLine {
			line = here() + 2
		}
		out.Store(tid, v)
	})
	return p, line
}

func pooledPast(t *testing.T, bug bool) {
	r, line := newPooledRig(t), 0
	p := build(t, "pooled_past", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		line = here() + 1
		v := in.Load(tid.Add(k.I32(off(bug, 1))))
		out.Store(tid, v)
	})
	plantsIn("pooled_test.go", "out-of-bounds", p.Name, line)
	r.launch(p, r.s, r.take(true), r.take(true))
}

func pooledFreed(t *testing.T, bug bool) {
	r := newPooledRig(t)
	p, line := copies(t, "pooled_freed", true)
	out, in := r.take(true), r.take(true)
	if bug {
		r.give(out, r.s)
	}
	plantsIn("pooled_test.go", "use-after-free", p.Name, line)
	r.launch(p, r.s, out, in)
}

func pooledUnwritten(t *testing.T, bug bool) {
	r := newPooledRig(t)
	p, line := copies(t, "pooled_unwritten", false)
	r.give(r.take(true), r.s) // what this wrote does not count for the next one
	plantsIn("pooled_test.go", "uninitialized", p.Name, line)
	r.launch(p, r.s, r.take(true), r.take(!bug))
}

// pooledEarly uses memory on a stream that does not wait for its allocation.
func pooledEarly(t *testing.T, bug bool) {
	r := newPooledRig(t)
	p, line := copies(t, "pooled_early", true)
	in, other := r.zeroed(), r.stream()
	out := r.take(false)
	if !bug {
		r.follow(other, r.s)
	}
	plantsIn("pooled_test.go", "stream-race", p.Name, line)
	r.launch(p, other, out, in)
	r.must(r.dev.Synchronize(r.th))
}

// pooledLate frees memory on a stream that does not wait for its use on another one.
func pooledLate(t *testing.T, bug bool) {
	r := newPooledRig(t)
	p, _ := copies(t, "pooled_late", false)
	in, out, other := r.take(true), r.zeroed(), r.stream()
	r.follow(other, r.s)
	r.launch(p, other, out, in)
	if !bug {
		r.follow(r.s, other)
	}
	delete(r.pooled, in)
	plantsIn("pooled_test.go", "stream-race", "MemFreeAsync", here()+1)
	r.must(r.dev.MemFreeAsync(r.th, in, r.s))
	r.must(r.dev.Synchronize(r.th))
}

func pooledLeak(t *testing.T, bug bool) {
	r := newPooledRig(t)
	plantsIn("pooled_test.go", "leak", "-", here()+1)
	p, err := r.dev.MemAllocAsync(r.th, 1000, r.s)
	r.must(err)
	if !bug {
		r.give(p, r.s)
	}
}

// mappedFreed uses an address of a range after the memory mapped there was unmapped.
func mappedFreed(t *testing.T, bug bool) {
	const n = 2 << 20
	r := newPooledRig(t)
	p, line := copies(t, "mapped_freed", false)
	base, err := r.dev.MemReserve(r.th, 2*n)
	r.must(err)
	for i := range driver.Ptr(2) {
		r.must(r.dev.MemMap(r.th, base+i*n, n))
	}
	r.must(r.dev.Memset(base, 0, 4, 2*n/4, r.s))
	r.must(r.dev.StreamSynchronize(r.th, r.s))
	if bug {
		r.must(r.dev.MemUnmap(r.th, base+n, n))
	}
	plantsIn("pooled_test.go", "use-after-free", p.Name, line)
	r.run(p, r.zeroed(), base+n)
	for i := range driver.Ptr(2) {
		r.say("unmap", r.dev.MemUnmap(r.th, base+i*n, n))
	}
	r.say("unreserve", r.dev.MemUnreserve(r.th, base, 2*n))
}

var pooledTwins = []twin{{"Past", pooledPast}, {"Freed", pooledFreed}, {"Unwritten", pooledUnwritten}, {"Early", pooledEarly},
	{"Late", pooledLate}, {"Leak", pooledLeak},
	{"Unmapped", mappedFreed}}

func TestPooledPast(t *testing.T)      { pooledPast(t, true) }
func TestPooledFreed(t *testing.T)     { pooledFreed(t, true) }
func TestPooledUnwritten(t *testing.T) { pooledUnwritten(t, true) }
func TestPooledEarly(t *testing.T)     { pooledEarly(t, true) }
func TestPooledLate(t *testing.T)      { pooledLate(t, true) }
func TestPooledLeak(t *testing.T)      { pooledLeak(t, true) }
func TestPooledUnmapped(t *testing.T)  { mappedFreed(t, true) }

// TestRepairedPooled runs the repaired versions.
func TestRepairedPooled(t *testing.T) { repaired(t, slices.Clone(pooledTwins)) }
