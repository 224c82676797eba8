package alloc

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tenon.dev/fault"
)

// orderedDevice is a fakeDevice that allocates in stream order. It records its calls.
type orderedDevice struct {
	*fakeDevice
	calls []string
	fault string // the call that fails
	// captured says that events are recorded in captures, which the caching allocator never does.
	captured bool
}

func (o *orderedDevice) RecordEvent(e Event, s Stream) error {
	if o.captured {
		o.events[e].recorded, o.events[e].stream = true, s
		return nil
	}
	return o.fakeDevice.RecordEvent(e, s)
}

func (o *orderedDevice) note(call, format string, args ...any) error {
	o.calls = append(o.calls, call+fmt.Sprintf(format, args...))
	if o.fault == call {
		return errors.New(call + " fails")
	}
	return nil
}

func (o *orderedDevice) MallocAsync(size uint64, s Stream) (uint64, error) {
	if err := o.note("malloc", " %d on %d", size, s); err != nil {
		return 0, err
	}
	return o.Malloc(size)
}

func (o *orderedDevice) FreeAsync(addr uint64, s Stream) error {
	if err := o.note("free", " on %d", s); err != nil {
		return err
	}
	return o.Free(addr)
}

func (o *orderedDevice) FreeCaptured(addr uint64, s Stream) error {
	if err := o.note("freeCaptured", " on %d", s); err != nil {
		return err
	}
	return o.Free(addr)
}

func (o *orderedDevice) WaitEvent(s Stream, e Event) error {
	return o.note("wait", " %d for %d", s, o.events[e].stream)
}

func (o *orderedDevice) FreeStream() (Stream, error) { return 99, o.note("freeStream", "") }
func (o *orderedDevice) Trim(wait bool) error        { return o.note("trim", " %v", wait) }
func (o *orderedDevice) Usage() (PoolUsage, error)   { return PoolUsage{64, 128}, o.note("usage", "") }
func (o *orderedDevice) ResetPeaks() error           { return o.note("resetPeaks", "") }

func openOrdered(t *testing.T, total uint64, collect func(Pressure) bool) (*Device, *orderedDevice) {
	t.Helper()
	s, err := ParseSettings("backend:cudaMallocAsync")
	if err != nil {
		t.Fatal(err)
	}
	o := &orderedDevice{fakeDevice: newFakeDevice(total)}
	t.Cleanup(func() {
		if o.misuse != nil {
			t.Error(o.misuse)
		}
	})
	return New(o, Options{Settings: &s, Collect: collect}), o
}

// took compares the calls since the last took with want.
func (o *orderedDevice) took(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(o.calls, want) {
		t.Errorf("calls %q, want %q", o.calls, want)
	}
	o.calls = nil
}

func TestAsyncOrder(t *testing.T) {
	d, o := openOrdered(t, 1<<20, nil)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	alloc := func(s Stream) *Block {
		t.Helper()
		b, err := d.Alloc(1000, s)
		must(err)
		return b
	}
	a := alloc(1)
	if a.Size() != 1000 || a.Requested() != 1000 || a.Stream() != 1 || a.Pool() != (PoolID{}) {
		t.Errorf("block of %d bytes, requested %d, stream %d, pool %v", a.Size(), a.Requested(), a.Stream(), a.Pool())
	}
	must(d.Free(a))
	o.took(t, "malloc 1000 on 1", "free on 1")

	b := alloc(1)
	must(d.RecordStream(b, 2))
	must(d.RecordStream(b, 3))
	must(d.Free(b))
	o.took(t, "malloc 1000 on 1", "freeStream", "wait 99 for 2", "wait 99 for 3", "wait 99 for 1", "free on 99")

	before, other := alloc(4), alloc(4)
	must(d.RecordStream(other, 5))
	must(d.BeginAllocateToPool(NewCapturePoolID(), StreamFilter(4)))
	o.Capture(4, 7)
	inside, later := alloc(4), alloc(4)
	o.calls = nil
	must(d.Free(before)) // held back
	must(d.Free(other))
	must(d.Free(inside))
	o.took(t, "free on 4")
	if s := d.Stats(); s.AllocatedBytes.All().Current != 1000 || s.ReservedBytes.All().Current != 64 || s.ReservedBytes.All().Peak != 128 {
		t.Errorf("statistics\n%s", s.String())
	}
	o.calls = nil
	must(d.EmptyCache())
	o.took(t, "trim false")
	o.Capture(4, 0)
	must(d.EndAllocateToPool(PoolID{lastCapturePoolID.Load(), 0}))
	must(d.Free(later))
	o.took(t, "freeCaptured on 4")
	must(d.EmptyCache())
	o.took(t, "free on 4", "freeStream", "wait 99 for 5", "wait 99 for 4", "free on 99", "trim true")
	d.ResetPeakStats()
	o.took(t, "resetPeaks")
	if o.used != 0 {
		t.Errorf("%d bytes stay", o.used)
	}
}

// TestAsyncCapturedUses frees memory of a capture that two of its streams used: on its own stream, after the other.
func TestAsyncCapturedUses(t *testing.T) {
	d, o := openOrdered(t, 1<<20, nil)
	defer d.Abandon()
	if err := d.BeginAllocateToPool(NewCapturePoolID(), func(Stream) bool { return true }); err != nil {
		t.Fatal(err)
	}
	o.captures[1], o.captures[2] = 7, 7
	o.captured = true
	b, err := d.Alloc(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.RecordStream(b, 2); err != nil {
		t.Fatal(err)
	}
	if err := d.Free(b); err != nil {
		t.Fatal(err)
	}
	o.took(t, "malloc 100 on 1", "wait 1 for 2", "free on 1")
}

func TestAsyncOutOfMemoryLadder(t *testing.T) {
	var kept *Block
	var d *Device
	collected := 0
	d, o := openOrdered(t, 1<<20, func(p Pressure) bool {
		collected++
		if kept == nil || !p.Failing {
			return false
		}
		err := d.Free(kept)
		kept = nil
		return err == nil
	})
	kept, _ = d.Alloc(800<<10, 0)
	o.calls = nil
	b, err := d.Alloc(900<<10, 0)
	if err != nil || collected != 1 {
		t.Fatalf("%v after %d collections", err, collected)
	}
	o.took(t, "malloc 921600 on 0", "free on 0", "malloc 921600 on 0")
	var seen []uint64
	d.AddOOMObserver(func(_ int, wanted, allowed, free uint64) { seen = append(seen, wanted, allowed, free) })
	_, err = d.Alloc(900<<10, 0)
	if fault.KindOf(err) != fault.OutOfMemory || !strings.HasPrefix(err.Error(), "Allocation on device 0 would exceed allowed memory. "+
		"(out of memory)\nCurrently allocated     : 900.00 KiB\n") {
		t.Errorf("%v", err)
	}
	o.took(t, "malloc 921600 on 0", "trim true", "malloc 921600 on 0")
	if !slices.Equal(seen, []uint64{900 << 10, 1 << 20, 124 << 10}) {
		t.Errorf("the observer saw %d", seen)
	}
	if s := d.Stats(); s.OOMs != 1 || s.AllocRetries != 1 {
		t.Errorf("%d failures, %d retries", s.OOMs, s.AllocRetries)
	}
	if err := d.Free(b); err != nil {
		t.Error(err)
	}
	if err := d.RecordHistory(History{Enabled: HistoryAll}); fault.KindOf(err) != fault.Unsupported {
		t.Errorf("history: %v", err)
	}
	if err := d.NewPool(NewPoolID(), &fakeSource{}); fault.KindOf(err) != fault.Unsupported {
		t.Errorf("a pool with an allocator: %v", err)
	}
	if err := d.NewPool(NewPoolID(), nil); err != nil {
		t.Errorf("a pool: %v", err)
	}
	if err := d.RecordHistory(History{}); err != nil {
		t.Errorf("no history: %v", err)
	}
}

// TestAsyncFailures fails each call in turn: a block whose free fails is held back and freed by a later call.
func TestAsyncFailures(t *testing.T) {
	for _, call := range []string{"freeStream", "wait", "free", "trim"} {
		d, o := openOrdered(t, 1<<20, nil)
		b, err := d.Alloc(100, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.RecordStream(b, 2); err != nil {
			t.Fatal(err)
		}
		o.fault = call
		err = errors.Join(d.Free(b), d.EmptyCache())
		if err == nil || !strings.Contains(err.Error(), call+" fails") {
			t.Errorf("%s: %v", call, err)
		}
		o.fault = ""
		if c, err := d.Alloc(100, 1); err != nil || d.Free(c) != nil {
			t.Errorf("after a failing %s: %v", call, err)
		}
		if o.used != 0 {
			t.Errorf("after a failing %s %d bytes stay", call, o.used)
		}
	}
	d, o := openOrdered(t, 1<<20, nil)
	o.fault = "malloc"
	if _, err := d.Alloc(100, 1); err == nil || err.Error() != "malloc fails" {
		t.Errorf("malloc: %v", err)
	}
	o.fault = "usage"
	if s := d.Stats(); s.ReservedBytes.All().Current != 0 {
		t.Error("figures of a pool that tells none")
	}
}

// TestAsyncReleasedPool releases a pool while a free from its capture is held back: the free still waits for the next call.
func TestAsyncReleasedPool(t *testing.T) {
	d, o := openOrdered(t, 1<<20, nil)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := d.Alloc(1000, 1)
	must(err)
	id := NewCapturePoolID()
	must(d.BeginAllocateToPool(id, StreamFilter(1)))
	must(d.Free(b))
	must(d.EndAllocateToPool(id))
	must(d.ReleasePool(id))
	must(d.EmptyReleased())
	if len(d.private) != 0 {
		t.Errorf("%d pools are left", len(d.private))
	}
	o.took(t, "malloc 1000 on 1")
	must(d.EmptyCache())
	o.took(t, "free on 1", "trim true")
}
