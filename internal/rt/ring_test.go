package rt

import (
	"errors"
	"slices"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
)

func openSim(t *testing.T, wrap func(d driver.Device) driver.Device) *Device {
	t.Helper()
	d, err := Open(Selector{Kind: Sim, Wrap: wrap})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// issue issues an operation on s that does nothing.
func issue(t *testing.T, s *Stream, op OpID) {
	t.Helper()
	seq, err := s.Begin(op, nil)
	ok(t, err)
	s.Issued(seq)
}

// launch queues a run of g on s.
func launch(t *testing.T, g *Graph, s *Stream) {
	t.Helper()
	seq, err := s.Begin(0, nil)
	ok(t, err)
	ok(t, g.Launch(s, seq, true))
	s.Issued(seq)
}

func anyOp(OpID) bool { return true }

func TestRing(t *testing.T) {
	d := openSim(t, nil)
	a, b := RegisterOp("RingA"), RegisterOp("RingB")
	s := d.DefaultStream()
	if names, _ := s.Recent(); len(names) != 0 {
		t.Errorf("a fresh stream has run %v", names)
	}
	for i := range ringSize + 3 {
		op := a
		if i%2 != 0 {
			op = b
		}
		issue(t, s, op)
	}
	names, seqs := s.Recent()
	if len(names) != ringSize || seqs[0] != 4 || seqs[ringSize-1] != ringSize+3 || !slices.IsSorted(seqs) || names[0] != "RingB" ||
		names[1] != "RingA" {
		t.Errorf("recent operations are %v, %v", names, seqs)
	}
	if got := d.suspects(anyOp); len(got) != ringSize || got[0] != "RingA, operation 19 of stream 0" {
		t.Errorf("suspects are %q", got)
	}
	if err := d.Synchronize(); err != nil {
		t.Fatal(err)
	}
	if got := d.suspects(anyOp); len(got) != 0 {
		t.Errorf("after a wait the suspects are %q", got)
	}
	if n := testing.AllocsPerRun(100, func() { issue(t, s, a) }); n != 0 {
		t.Errorf("noting an operation allocates %v times", n)
	}
}

// closing counts calls of Close.
type closing struct {
	driver.Device
	n *int
}

func (c closing) Close() error {
	*c.n++
	return c.Device.Close()
}

// A device is closed if opening it fails halfway.
func TestOpenFails(t *testing.T) {
	n := 0
	_, err := Open(Selector{Kind: Sim, Wrap: func(d driver.Device) driver.Device {
		f := faults.New(closing{d, &n})
		f.Arm(1, 0)
		return f
	}})
	if !errors.Is(err, driver.OutOfMemory) || fault.KindOf(err) != fault.OutOfMemory || n != 1 {
		t.Errorf("%v, closed %d times", err, n)
	}
}

func TestOpenRefusals(t *testing.T) {
	for _, c := range []struct {
		sel  Selector
		text string
	}{
		{Selector{Kind: CPU, Ordinal: 1}, "there is no device 1: hostsim has 1 device, number 0"},
		{Selector{Kind: CPU, Ordinal: -1}, "there is no device -1: hostsim has 1 device, number 0"},
	} {
		if _, err := Open(c.sel); err == nil || err.Error() != c.text {
			t.Errorf("%+v: %v", c.sel, err)
		}
	}
}

// A fault that occurs in a free is reported by the next call, and only then does Close return nil.
func TestFreeIsSilent(t *testing.T) {
	for _, reported := range []bool{false, true} {
		var f *faults.Device
		d := openSim(t, func(d driver.Device) driver.Device { f = faults.New(d); return f })
		other, err := d.Stream()
		if err != nil {
			t.Fatal(err)
		}
		b, err := d.Alloc(100, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Memory().RecordStream(b, 2); err != nil {
			t.Fatal(err)
		}
		e, err := d.AcquireEvent(false) // so that the free needs no new one
		if err != nil {
			t.Fatal(err)
		}
		d.ReleaseEvent(e, false)
		f.Arm(1, 0)
		if err := d.Free(b); err != nil {
			t.Errorf("Free: %v", err)
		}
		if method, _ := f.Fired(); method != "EventRecord" {
			t.Fatalf("%q was failed", method)
		}
		if reported {
			err := other.Synchronize()
			var first *driver.Error
			if fault.KindOf(err) != fault.Device || !errors.As(err, &first) || first.Call != "EventRecord" {
				t.Errorf("the next call says %v", err)
			}
		}
		err = d.Close()
		if reported != (err == nil) || err != nil && fault.KindOf(err) != fault.Device {
			t.Errorf("reported %v, Close: %v", reported, err)
		}
		if live := f.Live(); live != (faults.Live{}) {
			t.Errorf("live: %+v", live)
		}
	}
}
