package rt

import (
	"errors"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
)

// backend is the device as its allocator sees it.
type backend struct{ d *Device }

// relaxed runs f with a token in the mode in which allocation is legal while streams are captured.
func (b *backend) relaxed(f func(t driver.Thread) error) error {
	dev := b.d.dev
	t := dev.Enter()
	defer t.Leave()
	old, err := dev.CaptureExchangeMode(t, driver.CaptureRelaxed)
	if err != nil {
		return err
	}
	err = f(t)
	if _, e := dev.CaptureExchangeMode(t, old); err == nil {
		err = e
	}
	return err
}

func (b *backend) Malloc(size uint64) (addr uint64, err error) {
	err = b.relaxed(func(t driver.Thread) error {
		p, err := b.d.dev.MemAlloc(t, size)
		addr = uint64(p)
		return err
	})
	if errors.Is(err, driver.OutOfMemory) {
		err = noRoom{err}
	}
	return addr, err
}

// noRoom is the driver's error as the allocator knows it.
type noRoom struct{ error }

func (e noRoom) Is(target error) bool { return target == alloc.ErrOutOfMemory }
func (e noRoom) Unwrap() error        { return e.error }

func (b *backend) Free(addr uint64) error {
	if b.lost() { // frees are silent then, but nothing else is
		t := b.d.dev.Enter()
		defer t.Leave()
		return b.d.dev.MemFree(t, driver.Ptr(addr))
	}
	return b.relaxed(func(t driver.Thread) error { return b.d.dev.MemFree(t, driver.Ptr(addr)) })
}

func (b *backend) MemInfo() (free, total uint64, err error) {
	err = b.relaxed(func(t driver.Thread) (err error) {
		free, total, err = b.d.dev.MemInfo(t)
		return err
	})
	return free, total, err
}

// noEvent stands for an event of a lost device, on which nothing runs and all work is over: so its memory can be given back.
const noEvent alloc.Event = 0

func (b *backend) lost() bool { return b.d.lost.Load() != nil }

func (b *backend) AcquireEvent() (alloc.Event, error) {
	if b.lost() {
		return noEvent, nil
	}
	e, err := b.d.AcquireEvent(false)
	return alloc.Event(e), err
}

func (b *backend) ReleaseEvent(e alloc.Event) {
	if e != noEvent {
		b.d.ReleaseEvent(driver.Event(e), false)
	}
}

func (b *backend) RecordEvent(e alloc.Event, s alloc.Stream) error {
	if b.lost() {
		return nil
	}
	return b.d.dev.EventRecord(driver.Event(e), driver.Stream(s))
}

func (b *backend) QueryEvent(e alloc.Event) (done bool, err error) {
	if b.lost() {
		return true, nil
	}
	err = b.relaxed(func(t driver.Thread) (err error) {
		done, err = b.d.dev.EventQuery(t, driver.Event(e))
		return err
	})
	return done, err
}

func (b *backend) SyncEvent(e alloc.Event) error {
	if b.lost() {
		return nil
	}
	return b.relaxed(func(t driver.Thread) error { return b.d.dev.EventSynchronize(t, driver.Event(e)) })
}

func (b *backend) Capturing(s alloc.Stream) (uint64, bool) {
	st, id, err := b.d.dev.CaptureInfo(driver.Stream(s))
	return id, err == nil && st == driver.CaptureActive
}
