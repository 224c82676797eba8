package alloc

import (
	"testing"

	"tenon.dev/fault"
)

// panicking is a Source whose calls panic while on.
type panicking struct {
	fakeSource
	on bool
}

func (p *panicking) Malloc(size uint64, s Stream) (uint64, error) {
	if p.on {
		panic("malloc")
	}
	return p.fakeSource.Malloc(size, s)
}

func (p *panicking) Free(addr, size uint64, s Stream) error {
	if p.on {
		panic("free")
	}
	return p.fakeSource.Free(addr, size, s)
}

// TestPanics lets every callback of the program panic: afterwards the allocator works as before.
func TestPanics(t *testing.T) {
	for _, conf := range []string{"", "release_lock_on_cudamalloc:True", "expandable_segments:True"} {
		on := true
		b := newBench(t, 64*mib, conf, Options{Collect: func(Pressure) bool {
			if on {
				panic("collect")
			}
			return false
		}})
		panics := func(want string, f func()) {
			t.Helper()
			defer func() {
				if r := recover(); r != want {
					t.Errorf("%q: panic %v, want %q", conf, r, want)
				}
			}()
			f()
		}
		panics("collect", func() { _, _ = b.Alloc(mib, 0) })
		on = false
		b.AddFreeMemoryCallback(func() bool {
			if on {
				panic("callback")
			}
			return false
		})
		on = true
		panics("callback", func() { _, _ = b.Alloc(mib, 0) })
		on = false
		src := &panicking{fakeSource: fakeSource{f: b.f}, on: true}
		id := NewPoolID()
		b.ok(b.NewPool(id, src))
		panics("malloc", func() { _, _ = b.AllocFrom(id, mib, 0) })
		src.on = false
		k, err := b.AllocFrom(id, mib, 0)
		b.ok(err)
		b.free(k)
		src.on = true
		panics("free", func() { _ = b.EmptyPool(id) })
		src.on = false
		b.AddOOMObserver(func(int, uint64, uint64, uint64) { panic("observer") })
		panics("observer", func() { _, _ = b.Alloc(1<<40, 0) })
		b.free(b.alloc(3*mib, 1))
		b.ok(b.ReleasePool(id))
		b.ok(b.EmptyCache())
		b.want("reserved_bytes.all.current", 0)
		b.want("allocated_bytes.all.current", 0)
	}
}

// TestOversizeSettings changes what oversize means while blocks and segments live: what was not counted is not subtracted.
func TestOversizeSettings(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	k := b.alloc(100*mib, 0)
	_, err := b.UpdateSettings("max_split_size_mb:64")
	b.ok(err)
	l := b.alloc(100*mib, 0)
	b.want("oversize_allocations.current", 1)
	b.free(k)
	b.want("oversize_allocations.current", 1)
	_, err = b.UpdateSettings("")
	b.ok(err)
	b.free(l)
	b.want("oversize_allocations.current", 0)
	b.want("oversize_segments.current", 1)
	b.ok(b.EmptyCache())
	b.want("oversize_segments.current", 0)
	b.want("oversize_segments.freed", 1)
	b.want("oversize_allocations.freed", 1)
}

// TestReleaseUnderDiversion releases a pool while allocations are diverted to it: the pool exists until the diversion ends.
func TestReleaseUnderDiversion(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	id := NewPoolID()
	b.ok(b.BeginAllocateToPool(id, StreamFilter(0)))
	b.ok(b.ReleasePool(id))
	b.ok(b.EmptyPool(id))
	k := b.alloc(mib, 0)
	if k.Pool() != id {
		t.Errorf("pool %v", k.Pool())
	}
	b.free(k)
	b.ok(b.EndAllocateToPool(id))
	b.ok(b.EmptyCache())
	b.want("reserved_bytes.all.current", 0)
	if b.findPrivate(id) != nil {
		t.Error("the pool did not vanish")
	}
}

// TestAsyncRawFree frees an address whose return to the device fails: it is dead all the same. A second free is an error, and does not free
// the block for its next owner.
func TestAsyncRawFree(t *testing.T) {
	d, o := openOrdered(t, 1<<30, nil)
	addr, err := d.RawAlloc(512, 0)
	if err != nil {
		t.Fatal(err)
	}
	o.fault = "free"
	if err := d.RawFree(addr); err == nil || err.Error() != "free fails" {
		t.Errorf("error %v", err)
	}
	o.fault = ""
	for range 2 {
		if err := d.RawFree(addr); fault.KindOf(err) != fault.Invalid {
			t.Errorf("a second free: %v", err)
		}
	}
	b, err := d.Alloc(512, 0) // frees what was held back, and reuses its Block
	if err != nil {
		t.Fatal(err)
	}
	if err := d.RawFree(addr); fault.KindOf(err) != fault.Invalid || !b.allocated {
		t.Errorf("the old address frees another's block: %v", err)
	}
	if err := d.Free(b); err != nil {
		t.Error(err)
	}
}

// TestAsyncOneCapture is PyTorch's rule for the back end cudaMallocAsync: one diversion at a time in the process, on whichever device.
func TestAsyncOneCapture(t *testing.T) {
	d, _ := openOrdered(t, 1<<30, nil)
	other, _ := openOrdered(t, 1<<30, nil)
	native := newBench(t, 1<<30, "", Options{})
	wants := func(err error, part string) {
		t.Helper()
		if part == "" && err != nil || part != "" && (fault.KindOf(err) != fault.Capture || err.Error()[:len(part)] != part) {
			t.Errorf("error %v, want %q", err, part)
		}
	}
	const one = "Only one capture at a time is allowed in a process."
	a, b := NewPoolID(), NewCapturePoolID()
	wants(d.BeginAllocateToPool(a, StreamFilter(0)), "")
	wants(d.BeginAllocateToPool(b, StreamFilter(1)), one)
	wants(other.BeginAllocateToPool(b, StreamFilter(1)), one)
	wants(native.BeginAllocateToPool(b, StreamFilter(1)), "")
	wants(native.EndAllocateToPool(b), "")
	if d.PoolUses(b) != 0 || other.PoolUses(b) != 0 {
		t.Error("a diversion that was refused holds the pool")
	}
	wants(d.EndAllocateToPool(a), "")
	if err := d.BeginAllocateToPool(PoolID{1, 1}, StreamFilter(0)); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a wrong id: %v", err)
	}
	wants(other.BeginAllocateToPool(b, StreamFilter(1)), "")
	other.Abandon()
	if other.Diverted() {
		t.Error("a device that is gone diverts")
	}
	wants(d.BeginAllocateToPool(a, StreamFilter(0)), "")
	wants(d.EndAllocateToPool(a), "")
	wants(native.ReleasePool(b), "")
}

// TestRequestBeyondRange requests more than the address range of an expandable segment, on a device that does not refuse: nothing is
// mapped.
func TestRequestBeyondRange(t *testing.T) {
	b := newBench(t, 64*mib, "expandable_segments:True", Options{})
	k := b.alloc(3*mib, 0)
	b.f.total = 1 << 41
	if _, err := b.Alloc(1<<40, 0); fault.KindOf(err) != fault.OutOfMemory {
		t.Errorf("error %v", err)
	}
	b.want("reserved_bytes.all.peak", largeBuffer)
	b.free(k)
	b.ok(b.EmptyCache())
	b.want("reserved_bytes.all.current", 0)
}

// TestAdoptOversize adopts oversize blocks and segments, and frees them.
func TestAdoptOversize(t *testing.T) {
	from := newBench(t, 1<<30, "max_split_size_mb:32", Options{})
	from.free(from.alloc(40*mib, 0))
	k := from.alloc(50*mib, 0)
	to := New(from.f, Options{Settings: &from.settings})
	live, err := to.Adopt(from.Segments())
	from.ok(err)
	for _, l := range live {
		from.ok(to.Free(l))
	}
	if s := to.Stats(); s.OversizeAllocations != (Stat{Peak: 1, Allocated: 1, Freed: 1}) || s.OversizeSegments.Current != 2 {
		t.Errorf("%+v, %+v", s.OversizeAllocations, s.OversizeSegments)
	}
	from.free(k)
}
