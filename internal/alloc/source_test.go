package alloc

import (
	"errors"
	"fmt"
	"testing"

	"tenon.dev/fault"
)

// fakeSource is a Source over the fake device that counts its calls.
type fakeSource struct {
	f       *fakeDevice
	mallocs int
	frees   int
	err     error
}

func (s *fakeSource) Malloc(size uint64, _ Stream) (uint64, error) {
	if s.err != nil {
		return 0, s.err
	}
	s.mallocs++
	return s.f.Malloc(size)
}

func (s *fakeSource) Free(addr, size uint64, _ Stream) error {
	if s.err != nil {
		return s.err
	}
	s.frees++
	if s.f.segments[addr] != size {
		return fmt.Errorf("free of %d bytes at %#x, which has %d", size, addr, s.f.segments[addr])
	}
	return s.f.Free(addr)
}

// TestPoolSource allocates a pool's memory from a Source, with expandable segments on, and gives it back there.
func TestPoolSource(t *testing.T) {
	b := newBench(t, 1<<30, "expandable_segments:True", Options{})
	src := &fakeSource{f: b.f}
	id := NewPoolID()
	b.ok(b.NewPool(id, src))
	b.fails(b.NewPool(id, nil), fault.Invalid, "exists already")
	b.fails(b.NewPool(PoolID{1, 1}, nil), fault.Invalid, "is not one that cuda.NewPoolID gave")
	var blocks []*Block
	for range 3 {
		k, err := b.AllocFrom(id, mib, 0)
		b.ok(err)
		blocks = append(blocks, k)
		if k.Pool() != id {
			t.Errorf("a block of pool %v", k.Pool())
		}
	}
	other := b.alloc(mib, 0)
	if src.mallocs != 2 || len(b.poolSegments(id)) != 2 || other.Pool() != (PoolID{}) {
		t.Errorf("%d calls of the source, %d segments", src.mallocs, len(b.poolSegments(id)))
	}
	src.err = fmt.Errorf("full: %w", ErrOutOfMemory)
	_, err := b.AllocFrom(id, 30*mib, 0)
	b.fails(err, fault.OutOfMemory, "Tried to allocate 30.00 MiB")
	src.err = errors.New("broken")
	if _, err := b.AllocFrom(id, 30*mib, 0); err != src.err {
		t.Errorf("the source's error became %v", err)
	}
	b.free(blocks...)
	b.ok(b.ReleasePool(id))
	_, err = b.AllocFrom(id, mib, 0)
	b.fails(err, fault.Closed, "is not held")
	if err := b.EmptyPool(id); err != src.err {
		t.Errorf("the source's error became %v", err)
	}
	src.err = nil
	b.ok(b.EmptyPool(id))
	if src.frees != 2 || len(b.poolSegments(id)) != 0 || b.PoolUses(id) != 0 {
		t.Errorf("%d frees, %d segments, %d uses", src.frees, len(b.poolSegments(id)), b.PoolUses(id))
	}
	_, err = b.AllocFrom(id, mib, 0)
	b.fails(err, fault.Closed, "is not held")
	b.free(other)
}

// TestAllocFromUnderCapture gives a capture its own pool, whatever pool the caller names.
func TestAllocFromUnderCapture(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	mine, graph := NewPoolID(), NewCapturePoolID()
	b.ok(b.NewPool(mine, nil))
	b.into(graph, 3, func() {
		k, err := b.AllocFrom(mine, mib, 3)
		b.ok(err)
		o, err := b.AllocFrom(mine, mib, 4)
		b.ok(err)
		if k.Pool() != graph || o.Pool() != mine {
			t.Errorf("blocks of pools %v and %v", k.Pool(), o.Pool())
		}
		b.free(k, o)
	})
	b.ok(b.ReleasePool(mine))
	b.ok(b.EmptyCache())
	if n := len(b.Segments()); n != 0 {
		t.Errorf("%d segments are left", n)
	}
}
