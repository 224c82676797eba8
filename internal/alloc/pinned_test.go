package alloc

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"tenon.dev/fault"
)

// fakeHost is a HostBackend over the fake device.
type fakeHost struct{ *fakeDevice }

func (f fakeHost) MallocHost(size uint64) (uint64, error) { return f.Malloc(size) }
func (f fakeHost) FreeHost(addr uint64) error             { return f.Free(addr) }

func newHostBench(t *testing.T) (*Host, *fakeDevice) {
	f := newFakeDevice(64 * mib)
	h := NewHost(fakeHost{f})
	t.Cleanup(func() {
		f.OpenAll()
		if err := errors.Join(h.EmptyCache(), f.misuse); err != nil {
			t.Error(err)
		}
		s := h.Stats()
		if s.AllocatedBytes.Current != int64(f.used) || s.Allocations.Current != int64(len(f.segments)) ||
			len(h.blocks) != len(f.segments) {
			t.Errorf("the statistics %+v say other than the host: %d bytes in %d blocks", s, f.used, len(f.segments))
		}
		if acquired := len(f.events) - len(f.idle); acquired != 0 {
			t.Errorf("%d events are lost", acquired)
		}
	})
	return h, f
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestPinnedRounding is CUDA-302.
func TestPinnedRounding(t *testing.T) {
	h, _ := newHostBench(t)
	get := must[*HostBlock](t)
	a := get(h.Alloc(40 * 1024))
	if s := h.Stats(); s.AllocatedBytes.Current != 64*1024 || s.ActiveBytes.Current != 64*1024 || a.Size() != 64*1024 ||
		a.Requested() != 40*1024 {
		t.Errorf("40 KiB: %+v", s)
	}
	b := get(h.Alloc(80 * 1024))
	if s := h.Stats(); s.AllocatedBytes.Current != (64+128)*1024 || s.ActiveRequests.Current != 2 || s.HostAllocs != 2 {
		t.Errorf("80 KiB: %+v", s)
	}
	if err := errors.Join(h.Free(a), h.Free(b), h.Free(nil), h.RecordStream(nil, 1), h.EmptyCache()); err != nil {
		t.Error(err)
	}
	if s := h.Stats(); s.AllocatedBytes != (Stat{0, 192 * 1024, 192 * 1024, 192 * 1024}) || s.HostFrees != 2 || s.ActiveRequests.Peak != 2 {
		t.Errorf("after all is freed: %+v", s)
	}
	for _, size := range []uint64{1, 2, 3, 4096, 4097} {
		k := get(h.Alloc(size))
		if k.Size() < size || k.Size() >= 2*size || k.Size()&(k.Size()-1) != 0 {
			t.Errorf("%d bytes take %d", size, k.Size())
		}
	}
	if k, err := h.Alloc(0); k != nil || err != nil {
		t.Errorf("0 bytes gave %v, %v", k, err)
	}
	if _, err := h.Alloc(1 << 61); fault.KindOf(err) != fault.OutOfMemory {
		t.Errorf("error %v", err)
	}
}

// TestPinnedReuse is CUDA-039: a block that a copy still uses is not reused.
func TestPinnedReuse(t *testing.T) {
	h, f := newHostBench(t)
	get := must[*HostBlock](t)
	k := get(h.Alloc(4))
	at := k.Addr()
	if err := h.Free(k); err != nil {
		t.Fatal(err)
	}
	if k = get(h.Alloc(4)); k.Addr() != at {
		t.Errorf("%#x was not reused", at)
	}
	f.Shut(1)
	if found, ok := h.Find(at); !ok || found != k {
		t.Errorf("found %v", found)
	}
	if err := errors.Join(h.RecordStream(k, 1), h.RecordStream(k, 2), h.RecordStream(k, 1), h.Free(k)); err != nil {
		t.Fatal(err)
	}
	if _, ok := h.Find(at); ok {
		t.Error("a dead block was found")
	}
	if s := h.Stats(); s.ActiveRequests.Current != 1 {
		t.Errorf("statistics %+v", s)
	}
	if other := get(h.Alloc(4)); other.Addr() == at {
		t.Error("the block was reused during a copy")
	}
	if err := h.EmptyCache(); err != nil || f.segments[at] == 0 {
		t.Errorf("the block was returned during a copy (%v)", err)
	}
	f.Open(1)
	if k = get(h.Alloc(4)); k.Addr() != at {
		t.Errorf("%#x was not reused after the copy", at)
	}
}

func TestPinnedErrors(t *testing.T) {
	h, f := newHostBench(t)
	get := must[*HostBlock](t)
	k := get(h.Alloc(40 * mib)) // all of the 64 MiB
	if _, err := h.Alloc(40 * mib); fault.KindOf(err) != fault.OutOfMemory {
		t.Errorf("error %v", err)
	}
	if err := h.Free(k); err != nil {
		t.Fatal(err)
	}
	if err := h.Free(k); fault.KindOf(err) != fault.Invalid {
		t.Errorf("freed twice: %v", err)
	}
	if err := h.RecordStream(k, 1); fault.KindOf(err) != fault.Invalid {
		t.Errorf("recorded after free: %v", err)
	}
	k = get(h.Alloc(20 * mib)) // the cached block makes room
	if err := h.Free(k); err != nil {
		t.Fatal(err)
	}
	f.fail = func(call string) error {
		if call == "Free" || call == "Malloc" {
			return errInjected
		}
		return nil
	}
	if err := h.EmptyCache(); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	if _, err := h.Alloc(1); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	if again := get(h.Alloc(20 * mib)); again.Addr() != k.Addr() {
		t.Error("the block that could not be returned is lost")
	} else if err := h.Free(again); err != nil {
		t.Fatal(err)
	}
	f.fail = func(call string) error {
		if call == "Malloc" {
			return fmt.Errorf("no room: %w", ErrOutOfMemory)
		}
		if call == "Free" {
			return errInjected
		}
		return nil
	}
	if _, err := h.Alloc(1); !errors.Is(err, errInjected) { // the flush before failing fails
		t.Errorf("error %v", err)
	}
	f.fail = nil
}

// TestPinnedFaultWalk fails each call about events in turn.
func TestPinnedFaultWalk(t *testing.T) {
	for n := 1; ; n++ {
		h, f := newHostBench(t)
		get := must[*HostBlock](t)
		a, b := get(h.Alloc(100)), get(h.Alloc(5000))
		calls, fired := 0, false
		f.fail = func(string) error {
			if calls++; calls == n {
				fired = true
				return errInjected
			}
			return nil
		}
		try := func(step func() error) {
			if err := step(); err != nil && !errors.Is(err, errInjected) {
				t.Errorf("call %d: %v", n, err)
			}
		}
		for s := range Stream(3) {
			try(func() error { return h.RecordStream(a, s) })
		}
		try(func() error { return h.RecordStream(b, 1) })
		try(func() error { return h.Free(a) })
		try(func() error { return h.Free(b) })
		try(h.EmptyCache)
		f.fail = nil
		if err := h.EmptyCache(); err != nil || f.used != 0 {
			t.Errorf("call %d: %d bytes are left (%v)", n, f.used, err)
		}
		if !fired {
			t.Logf("walk pinned: %d", n-1)
			if n < 10 {
				t.Errorf("only %d calls", n-1)
			}
			return
		}
	}
}

func TestPinnedConcurrent(t *testing.T) {
	h, _ := newHostBench(t)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 300 {
				k, err := h.Alloc(uint64(1) << (i % 18))
				if err == nil {
					err = errors.Join(h.RecordStream(k, Stream(g)), h.Free(k))
				}
				if i%50 == 0 {
					err = errors.Join(err, h.EmptyCache())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
