package alloc

import (
	"errors"
	"sync"
	"testing"

	"tenon.dev/fault"
)

// TestPoolUncached allocates from a private pool with caching off: the pool lists the memory, and freed memory goes back at once.
func TestPoolUncached(t *testing.T) {
	b := newBench(t, 100*mib, "", Options{})
	id := NewPoolID()
	b.ok(b.NewPool(id, nil))
	b.SetCaching(false)
	k, err := b.AllocFrom(id, 1000, 3)
	b.ok(err)
	l, err := b.AllocFrom(id, 3*mib, 3)
	b.ok(err)
	infos := b.PoolSegments(id)
	if len(infos) != 2 || infos[0].Addr != k.Addr() || infos[0].TotalSize != 1000 || infos[0].Allocated != 1000 || infos[0].Large ||
		infos[1].Addr != l.Addr() || !infos[1].Large || infos[1].Pool != id || infos[1].Stream != 3 {
		t.Errorf("the pool holds %+v", infos)
	}
	if ok, err := b.PoolLive(id, []uint64{k.Addr(), l.Addr()}); err != nil || !ok {
		t.Error(ok, err)
	}
	if len(b.Segments()) != 0 || len(b.PoolSegments(PoolID{})) != 0 {
		t.Errorf("segments %+v", b.Segments())
	}
	addr := k.Addr()
	b.free(k)
	if b.f.segments[addr] != 0 || len(b.PoolSegments(id)) != 1 {
		t.Error("what was freed is not back")
	}
	_, err = b.Checkpoint(id)
	b.fails(err, fault.Unsupported, "leave caching on")
	b.ok(b.ClosePool(id))
	_, err = b.AllocFrom(id, 1000, 3)
	b.fails(err, fault.Closed, "is not held")
	if b.f.segments[l.Addr()] != 3*mib || len(b.PoolSegments(id)) != 1 {
		t.Error("the pool took a live block with it")
	}
	b.free(l)
	b.ok(b.EmptyCache())
	if b.f.used != 0 || len(b.private) != 0 {
		t.Errorf("%d bytes and %d pools are left", b.f.used, len(b.private))
	}
}

// TestDiversionUncached diverts a stream's allocations to a pool outside a capture.
func TestDiversionUncached(t *testing.T) {
	b := newBench(t, 100*mib, "", Options{})
	b.SetCaching(false)
	id := NewPoolID()
	b.into(id, 3, func() {
		k, other := b.alloc(1000, 3), b.alloc(1000, 4)
		if k.Pool() != id || other.Pool() != (PoolID{}) {
			t.Errorf("blocks of pools %v and %v", k.Pool(), other.Pool())
		}
		b.free(k, other)
	})
	if b.f.used != 0 {
		t.Errorf("%d bytes are left", b.f.used)
	}
}

// TestRestoreUncached refuses to restore a pool whose memory is not cached, before anything is freed.
func TestRestoreUncached(t *testing.T) {
	b := newBench(t, 100*mib, "", Options{})
	id := NewPoolID()
	b.ok(b.NewPool(id, nil))
	k, err := b.Checkpoint(id)
	b.ok(err)
	b.SetCaching(false)
	l, err := b.AllocFrom(id, 1000, 3)
	b.ok(err)
	_, err = b.Restore(k)
	b.fails(err, fault.Unsupported, "leave caching on")
	b.free(l)
	_, err = b.Restore(k)
	b.ok(err)
}

// held returns the number of allocations that were not freed.
func (s *fakeSource) held() int { return s.mallocs - s.frees }

// TestSourceUncached allocates a pool's memory from its source with caching off, in multiples of 2 MiB, and gives it back when the streams
// that used it are done.
func TestSourceUncached(t *testing.T) {
	b := newBench(t, 100*mib, "", Options{})
	src := &fakeSource{f: b.f}
	id := NewPoolID()
	b.ok(b.NewPool(id, src))
	b.SetCaching(false)
	take := func() *Block {
		t.Helper()
		k, err := b.AllocFrom(id, 1000, 3)
		b.ok(err)
		return k
	}
	k := take()
	if k.Size() != 2*mib || k.Requested() != 1000 || src.held() != 1 {
		t.Errorf("a block of %d bytes, %d of the source", k.Size(), src.held())
	}
	b.ok(b.RecordStream(k, 4))
	b.f.Shut(4)
	b.free(k)
	if src.held() != 0 || b.f.opened[4] != 1 {
		t.Errorf("%d allocations are left, stream 4 was awaited %d times", src.held(), b.f.opened[4])
	}
	k, outside := take(), NewCapturePoolID()
	b.ok(b.RecordStream(k, 4))
	b.ok(b.BeginAllocateToPool(outside, StreamFilter(7)))
	b.free(k)
	if src.held() != 1 {
		t.Error("events were waited for in a capture")
	}
	b.ok(b.EndAllocateToPool(outside))
	b.ok(b.ReleasePool(outside))
	k = take()
	if src.held() != 1 {
		t.Errorf("%d allocations are left", src.held())
	}
	src.err = errInjected
	if err := b.Free(k); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	b.fails(b.Free(k), fault.Invalid, "freed before")
	src.err = nil
	b.ok(b.ClosePool(id))
	b.ok(b.EmptyReleased())
	if src.held() != 0 || b.f.used != 0 || len(b.private) != 0 {
		t.Errorf("%d allocations, %d bytes and %d pools are left", src.held(), b.f.used, len(b.private))
	}
}

// TestUncachedThreads allocates and frees in a pool and outside of it from several goroutines, while another lists the pool's segments.
func TestUncachedThreads(t *testing.T) {
	b := newBench(t, 100*mib, "", Options{})
	id := NewPoolID()
	b.ok(b.NewPool(id, nil))
	b.SetCaching(false)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 300 {
				k, err := b.AllocFrom([]PoolID{id, {}}[i%2], 1000, Stream(i))
				if err == nil {
					err = b.Free(k)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for range 3000 {
			for _, s := range b.PoolSegments(id) {
				if s.Pool != id || s.TotalSize != 1000 || s.Requested != 1000 {
					t.Errorf("a segment %+v", s)
				}
			}
		}
	})
	wg.Wait()
	if b.f.used != 0 {
		t.Errorf("%d bytes are left", b.f.used)
	}
}

// TestUncachedRawFails fails the free of memory that was allocated by address: the address is still valid, and can be freed later.
func TestUncachedRawFails(t *testing.T) {
	b := newBench(t, 100*mib, "", Options{})
	b.SetCaching(false)
	addr, err := b.RawAlloc(1000, 3)
	b.ok(err)
	k, _ := b.options.Table.Find(addr)
	b.f.fail = func(string) error { return errInjected }
	if err := b.Free(k); !errors.Is(err, errInjected) || !b.RawHeld(addr) {
		t.Errorf("error %v, found: %v", err, b.RawHeld(addr))
	}
	b.f.fail = nil
	b.ok(b.RawFree(addr))
	if b.f.used != 0 || b.RawHeld(addr) {
		t.Errorf("%d bytes are left", b.f.used)
	}
}
