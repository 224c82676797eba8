package alloc

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"tenon.dev/fault"
)

// into diverts the allocations of stream s to pool id while f runs.
func (b bench) into(id PoolID, s Stream, f func()) {
	b.t.Helper()
	b.ok(b.BeginAllocateToPool(id, StreamFilter(s)))
	f()
	b.ok(b.EndAllocateToPool(id))
	b.ok(b.ReleasePool(id))
}

// poolSegments returns the segments of the pool.
func (b bench) poolSegments(id PoolID) []SegmentInfo {
	return slices.DeleteFunc(b.Segments(), func(s SegmentInfo) bool { return s.Pool != id })
}

// TestPoolSegmentSizes is CUDA-105: three live temporaries of a size in a fresh pool.
func TestPoolSegmentSizes(t *testing.T) {
	for _, c := range []struct {
		size          uint64
		segments, mib int
	}{{512, 1, 2}, {mib, 2, 2}, {mib + 512, 1, 20}, {10*mib - 512, 2, 20}, {10*mib + 512, 3, 12}} {
		b := newBench(t, 1<<30, "", Options{})
		id := NewPoolID()
		b.ok(b.RetainPool(id))
		b.into(id, 4, func() {
			for range 3 {
				b.alloc(c.size, 4)
			}
		})
		have := b.poolSegments(id)
		if len(have) != c.segments || have[0].TotalSize != uint64(c.mib)*mib {
			t.Errorf("%d bytes: %d segments of %d", c.size, len(have), have[0].TotalSize)
		}
	}
}

func TestPoolErrors(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	id := NewPoolID()
	if next := NewPoolID(); next[0] != 0 || next[1] != id[1]+1 {
		t.Errorf("after %v comes %v", id, next)
	}
	if c := NewCapturePoolID(); c[1] != 0 || c[0] == 0 {
		t.Errorf("a capture's pool is %v", c)
	}
	b.fails(b.RetainPool(PoolID{}), fault.Invalid, "(0, 0) is not one")
	b.fails(b.BeginAllocateToPool(PoolID{1, 1}, StreamFilter(0)), fault.Invalid, "(1, 1) is not one")
	b.fails(b.EndAllocateToPool(id), fault.Invalid, "endAllocatePool: not currently recording to mempool_id")
	b.fails(b.ReleasePool(id), fault.Invalid, "is not held")
	b.fails(b.EmptyPool(id), fault.Invalid, "Could not find pool of id")
	if _, err := b.PoolLive(id, nil); err != nil {
		b.fails(err, fault.Invalid, "Could not find pool of id")
	} else {
		t.Error("an unknown pool has live blocks")
	}
	b.ok(b.BeginAllocateToPool(id, StreamFilter(0)))
	b.fails(b.BeginAllocateToPool(id, StreamFilter(0)), fault.Invalid, "beginAllocateToPool: already recording to mempool_id")
	if n := b.PoolUses(id); n != 1 {
		t.Errorf("%d uses", n)
	}
	b.ok(b.EndAllocateToPool(id))
	b.ok(b.ReleasePool(id))
	if n := b.PoolUses(id); n != 0 {
		t.Errorf("%d uses", n)
	}
	b.fails(b.ReleasePool(id), fault.Invalid, "is not held")
	b.ok(b.EmptyCache())
	if b.findPrivate(id) != nil {
		t.Error("the pool did not vanish")
	}
}

// TestPoolLifetime: a pool keeps its memory while it is held, and live blocks outlive it.
func TestPoolLifetime(t *testing.T) {
	for _, conf := range []string{"", "expandable_segments:True"} {
		b := newBench(t, 1<<30, conf, Options{})
		id := NewPoolID()
		b.ok(b.RetainPool(id))
		var k, l *Block
		b.into(id, 0, func() {
			k, l = b.alloc(5*mib, 0), b.alloc(30*mib, 0)
			other := b.alloc(5*mib, 1) // not diverted
			if (other.Pool() != PoolID{}) || k.Pool() != id {
				t.Errorf("pools %v and %v", other.Pool(), k.Pool())
			}
			b.free(other)
			if b.PoolUses(id) != 2 {
				t.Errorf("%d uses", b.PoolUses(id))
			}
		})
		b.free(l)
		b.ok(b.EmptyCache())
		held := b.stat("reserved_bytes.all.current")
		if held < 40*mib {
			t.Errorf("the held pool lost its memory: %d bytes are left", held)
		}
		if live, err := b.PoolLive(id, []uint64{k.Addr()}); !live || err != nil {
			t.Errorf("live %v, %v", live, err)
		}
		for _, wrong := range [][]uint64{nil, {k.Addr(), 0}, {7}} {
			if live, err := b.PoolLive(id, wrong); live || err != nil {
				t.Errorf("with %v live %v, %v", wrong, live, err)
			}
		}
		b.ok(b.ReleasePool(id))
		b.ok(b.EmptyCache())
		if now := b.stat("reserved_bytes.all.current"); now >= held || now == 0 {
			t.Errorf("after the release %d of %d bytes are left", now, held)
		}
		if live, err := b.PoolLive(id, []uint64{k.Addr()}); !live || err != nil {
			t.Errorf("live %v, %v", live, err)
		}
		b.free(k)
		if live, err := b.PoolLive(id, nil); !live || err != nil {
			t.Errorf("live %v, %v", live, err)
		}
		b.ok(b.EmptyCache())
		b.want("reserved_bytes.all.current", 0)
		if b.findPrivate(id) != nil {
			t.Errorf("%q: the pool did not vanish", conf)
		}
	}
}

// TestEagerDiversion is CUDA-150.
func TestEagerDiversion(t *testing.T) {
	for conf, want := range map[string]int{"": 4, "expandable_segments:True": 2} {
		b := newBench(t, 4<<30, conf, Options{})
		id := NewPoolID()
		b.ok(b.RetainPool(id))
		step := func(s Stream) []*Block {
			return []*Block{b.alloc(20*mib, s), b.alloc(20*mib, s), b.alloc(20*mib, s)}
		}
		b.into(id, 7, func() { b.free(b.alloc(4096, 7)) }) // the capture
		b.into(id, 1, func() {
			for range 10 {
				b.free(step(1)...)
			}
		})
		for range 10 {
			b.free(step(2)...)
		}
		outside := step(1)
		if have := len(b.poolSegments(id)); have != want {
			t.Errorf("%q: the pool has %d segments, want %d", conf, have, want)
		}
		b.free(outside...)
		b.ok(b.ReleasePool(id))
		b.ok(b.EmptyCache())
		if have := len(b.Segments()); have != 0 {
			t.Errorf("%q: %d segments are left", conf, have)
		}
	}
}

// TestCapture: streams of a capture are diverted, even forked ones, and the device gets no call that a capture forbids.
func TestCapture(t *testing.T) {
	b := newBench(t, 200*mib, "", Options{})
	before := b.alloc(20*mib, 0)
	b.ok(b.RecordStream(before, 2)) // not in the capture
	held := b.alloc(20*mib, 0)
	b.f.Shut(2)
	id := NewCapturePoolID()
	b.f.Capture(1, 42)
	b.ok(b.BeginAllocateToPool(id, b.CaptureFilter(42)))
	b.f.Capture(3, 42) // a fork
	b.f.Capture(4, 43) // another capture
	if p := b.alloc(512, 3).Pool(); p != id {
		t.Errorf("the fork's block is of pool %v", p)
	}
	if p := b.alloc(512, 4).Pool(); p != (PoolID{}) {
		t.Errorf("the other capture's block is of pool %v", p)
	}
	if p := b.alloc(512, 0).Pool(); p != (PoolID{}) {
		t.Errorf("the block outside is of pool %v", p)
	}
	k := b.alloc(30*mib, 1)
	at := k.Addr()
	b.ok(b.RecordStream(k, 3)) // captured work
	b.free(k, before)
	b.ok(b.RecordStream(held, 5)) // eager work of another goroutine
	b.free(held)
	if len(b.deferred) != 3 {
		t.Errorf("%d blocks are deferred", len(b.deferred))
	}
	if k = b.alloc(30*mib, 1); k.Addr() == at {
		t.Error("a deferred block was reused")
	}
	b.ok(b.EmptyCache()) // waits for nothing
	b.want("num_sync_all_streams", 0)
	_, err := b.Alloc(300*mib, 1)
	b.fails(err, fault.OutOfMemory, "out of memory")
	b.want("num_alloc_retries", 0)
	if ok, err := b.Restore(&Checkpoint{pool: id}); err == nil {
		t.Errorf("restored %v in a capture", ok)
	} else {
		b.fails(err, fault.Capture, "end the capture first")
	}
	b.ok(b.EndAllocateToPool(id))
	for _, s := range []Stream{1, 3, 4} {
		b.f.Capture(s, 0)
	}
	b.alloc(512, 0) // polls
	if len(b.deferred) != 0 {
		t.Errorf("%d blocks are deferred", len(b.deferred))
	}
	// Streams 2 and 5 have eager work that uses blocks; captured work is part of the graph.
	if len(b.queues) != 2 || b.queues[0].stream != 2 || b.queues[1].stream != 5 || b.outstanding != 1 {
		t.Errorf("%d queues, %d events", len(b.queues), b.outstanding)
	}
	b.f.Open(2)
	b.alloc(512, 0)
	b.want("active.large_pool.current", 1)
}

// TestFailingEvents: a block whose event cannot be recorded stays held back until it can.
func TestFailingEvents(t *testing.T) {
	for _, call := range []string{"AcquireEvent", "RecordEvent"} {
		b := newBench(t, 1<<30, "", Options{})
		k := b.alloc(512, 0)
		at := k.Addr()
		b.ok(b.RecordStream(k, 1))
		b.ok(b.RecordStream(k, 2))
		n := 0
		b.f.fail = func(c string) error {
			if c == call {
				if n++; n != 1 {
					return errInjected
				}
			}
			return nil
		}
		if err := b.Free(k); !errors.Is(err, errInjected) {
			t.Errorf("%s: error %v", call, err)
		}
		b.want("active.all.current", 1)
		if _, err := b.Alloc(512, 0); !errors.Is(err, errInjected) {
			t.Errorf("%s: error %v", call, err)
		}
		if err := check(b.Device, b.f); err != nil {
			t.Error(err)
		}
		b.f.fail = nil
		if again := b.alloc(512, 0); again.Addr() != at {
			t.Errorf("%s: the block at %#x was not reused", call, at)
		}
	}
}

// TestEmptyPool empties a pool that is held, and a pool that no one holds, whose events it waits for.
func TestEmptyPool(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	id, other := NewPoolID(), NewPoolID()
	b.ok(b.RetainPool(id))
	b.ok(b.RetainPool(other))
	var k *Block
	b.into(id, 0, func() { k = b.alloc(30*mib, 0); b.free(b.alloc(12*mib, 0)) })
	b.into(other, 0, func() { b.free(b.alloc(30*mib, 0)) })
	b.f.Shut(1)
	b.ok(b.RecordStream(k, 1))
	b.free(k)
	b.ok(b.EmptyPool(id))
	b.want("reserved_bytes.all.current", 60*mib)
	b.want("num_sync_all_streams", 0)
	b.ok(b.ReleasePool(id))
	b.ok(b.EmptyPool(id))
	b.want("reserved_bytes.all.current", 30*mib)
	b.want("num_sync_all_streams", 1)
	if b.findPrivate(id) != nil || b.findPrivate(other) == nil {
		t.Error("the wrong pool vanished")
	}
}

// layout describes what must be equal after a restore.
func layout(segments []SegmentInfo) []string {
	var s []string
	for _, g := range segments {
		s = append(s, fmt.Sprintf("%#x %d bytes, %d allocated, %d active, large %v", g.Addr, g.TotalSize, g.Allocated, g.Active, g.Large))
		for _, b := range g.Blocks {
			s = append(s, fmt.Sprintf("  %d %v", b.Size, b.State))
		}
	}
	return s
}

// TestCheckpoint is CUDA-140 to 149: layouts with holes and neighbours come back.
func TestCheckpoint(t *testing.T) {
	for _, conf := range []string{"", "expandable_segments:True", "max_split_size_mb:21"} {
		for name, kept := range map[string][]int{"none": {}, "fifth": {5}, "apart": {5, 8}, "adjacent": {5, 6},
			"all": {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}} {
			t.Run(conf+"/"+name, func(t *testing.T) {
				b := newBench(t, 1<<30, conf, Options{})
				id := NewPoolID()
				b.ok(b.RetainPool(id))
				var first []*Block
				b.into(id, 0, func() {
					for range 11 {
						first = append(first, b.alloc(512, 0))
					}
					first = append(first, b.alloc(3*mib, 0), b.alloc(30*mib, 0))
				})
				for i, k := range first {
					if !slices.Contains(kept, i) {
						b.free(k)
					}
				}
				c, err := b.Checkpoint(id)
				b.ok(err)
				want := layout(b.poolSegments(id))
				b.into(id, 0, func() { // the second capture, whose outputs die
					for _, size := range []uint64{100, 2000, 5 * mib, 512, 31 * mib, 40 * mib, 700 * 1024, 700 * 1024, 700 * 1024} {
						k := b.alloc(size, 0)
						if size%1000 == 0 {
							b.ok(b.RecordStream(k, 3))
							b.f.Shut(3)
						}
					}
				})
				r, err := b.Restore(c)
				b.ok(err)
				if len(r.Made) != len(kept) || len(r.Freed) != len(kept)+9 {
					t.Errorf("made %d, freed %d", len(r.Made), len(r.Freed))
				}
				have := layout(b.poolSegments(id))
				for _, line := range want {
					if !slices.Contains(have, line) && conf != "expandable_segments:True" { // those have grown since
						t.Errorf("%q is gone; there is %q", line, have)
					}
				}
				blocks := map[uint64]BlockInfo{}
				for _, g := range b.poolSegments(id) {
					for _, i := range g.Blocks {
						blocks[i.Addr] = i
					}
				}
				for _, g := range c.segments {
					for i, s := range g {
						have, last := blocks[s.addr], i == len(g)-1 // the last may have grown
						if (have.State == ActiveAllocated) != s.allocated || have.Size != s.size && (s.allocated || !last) {
							t.Errorf("block %#x of %d bytes, allocated %v, is now %+v", s.addr, s.size, s.allocated, have)
						}
					}
				}
				if live, err := b.PoolLive(id, c.Live()); !live || err != nil {
					t.Errorf("live %v, %v", live, err)
				}
				for _, k := range r.Made {
					b.ok(b.RawFree(k.Addr()))
				}
				if live, err := b.PoolLive(id, nil); !live || err != nil {
					t.Errorf("live %v, %v", live, err)
				}
			})
		}
	}
}

// TestCheckpointAcrossHole restores a run of pages after more pages have been mapped in front of it.
func TestCheckpointAcrossHole(t *testing.T) {
	b := newBench(t, 4<<30, "expandable_segments:True", Options{})
	id := NewPoolID()
	b.ok(b.RetainPool(id))
	var front, free, k *Block
	b.into(id, 0, func() { front, free, k = b.alloc(50*mib, 0), b.alloc(60*mib, 0), b.alloc(10*mib, 0) })
	at := front.Addr()
	b.free(front)
	b.ok(b.EmptyPool(id)) // unmaps two of the pages of front
	b.free(free)
	c, err := b.Checkpoint(id)
	b.ok(err)
	b.into(id, 0, func() {
		front = b.alloc(115*mib, 0)
		if l := b.alloc(105*mib, 0); l.Addr() != at {
			t.Errorf("the hole was not filled, but %#x", l.Addr()-at)
		}
	})
	want := k.Addr()
	r, err := b.Restore(c)
	b.ok(err)
	if len(r.Made) != 1 || r.Made[0].Addr() != want || len(r.Freed) != 3 {
		t.Errorf("restored %+v", r)
	}
	b.ok(check(b.Device, b.f))
	b.free(r.Made[0])
	b.ok(b.ReleasePool(id))
	b.ok(b.EmptyCache())
	b.want("reserved_bytes.all.current", 0)
}

func TestCheckpointErrors(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	id := NewPoolID()
	_, err := b.Checkpoint(id)
	b.fails(err, fault.Invalid, "Could not find pool of id")
	_, err = b.Restore(&Checkpoint{pool: id})
	b.fails(err, fault.Invalid, "Could not find private pool id")
	b.ok(b.RetainPool(id))
	var k, l *Block
	b.into(id, 0, func() { k, l = b.alloc(30*mib, 0), b.alloc(12*mib, 0) })
	c, err := b.Checkpoint(id)
	b.ok(err)
	b.f.Shut(1)
	b.ok(b.RecordStream(k, 1))
	b.free(k)
	_, err = b.Checkpoint(id)
	b.fails(err, fault.Invalid, "Events should have synchronized when checkpointing block")
	b.f.Open(1)
	b.free(b.alloc(512, 0)) // polls
	b.ok(b.EmptyPool(id))
	_, err = b.Restore(c)
	b.fails(err, fault.Invalid, " could not find ")
	if ok, err := b.PoolLive(id, []uint64{l.Addr()}); !ok || err != nil {
		t.Errorf("the failed restore changed the pool: %v, %v", ok, err)
	}
	b.ok(b.ReleasePool(id))
	_, err = b.Checkpoint(id)
	b.fails(err, fault.Invalid, "Not expected to checkpoint freeable graph")
}
