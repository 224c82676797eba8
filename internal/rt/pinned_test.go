package rt

import (
	"errors"
	"testing"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
)

func TestPinned(t *testing.T) {
	d, err := Open(Selector{Kind: Sim})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a, err := d.AllocPinned(1000)
	must(err)
	if len(a.Bytes()) != 1000 {
		t.Fatalf("%d bytes", len(a.Bytes()))
	}
	for i := range a.Bytes() {
		a.Bytes()[i] = byte(i)
	}
	side, err := d.Stream()
	must(err)
	b, err := d.Alloc(1000, 0)
	must(err)
	must(d.Driver().CopyHtoD(driver.Ptr(b.Addr()), a.Bytes(), side.handle))
	must(a.Record(side))
	first := &a.Bytes()[0]
	must(a.Free())
	must(side.Synchronize())
	c, err := d.AllocPinned(700)
	must(err)
	if &c.Bytes()[0] != first {
		t.Error("the freed block was not used again")
	}
	must(c.Free())
	must(d.Free(b))
	if s := d.PinnedStats(); s.HostAllocs != 1 || s.ActiveRequests.Current != 0 {
		t.Errorf("%d blocks were asked for, %d are in use", s.HostAllocs, s.ActiveRequests.Current)
	}
}

// Whichever call fails, the error names it, and no block or event is lost.
func TestPinnedFailures(t *testing.T) {
	walkFailures(t, func(d *Device, s *Stream, th driver.Thread, wait func() error) error {
		defer func() {
			wait()
			d.pinned.host(d).EmptyCache()
			d.pinned.host(d).EmptyCache() // the first one may have met the failure
			for _, e := range d.events {
				d.dev.EventDestroy(th, e)
			}
		}()
		p, err := d.AllocPinned(100)
		if err != nil {
			return err
		}
		err = errors.Join(p.Record(s), p.Free())
		return errors.Join(err, wait(), d.pinned.host(d).EmptyCache())
	}, faults.WithoutFaults(), faults.Recovered("HostAlloc"))
}
