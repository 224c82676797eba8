package rt

import (
	"errors"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
)

// backend is the device as its allocator sees it.
type backend struct{ d *Device }

// relaxed runs f with the thread in relaxed capture mode, in which allocation is legal while streams are captured.
func (b *backend) relaxed(f func(t driver.Thread) error) error {
	dev := b.d.dev
	t, err := b.d.enter()
	if err != nil {
		return err
	}
	defer b.d.leave(t)
	old, err := dev.CaptureExchangeMode(t, driver.CaptureRelaxed)
	if err != nil {
		return err
	}
	err = f(t)
	// This fails only if the device was lost meanwhile, which the next call reports. What f made exists all the same.
	_, _ = dev.CaptureExchangeMode(t, old)
	return err
}

func (b *backend) Malloc(size uint64) (addr uint64, err error) {
	if addr, err = b.take(size); err == nil {
		b.d.takes(addr, size)
	}
	return addr, err
}

// take is Malloc for memory that is not the allocator's.
func (b *backend) take(size uint64) (addr uint64, err error) {
	err = b.relaxed(func(t driver.Thread) error {
		p, err := b.d.dev.MemAlloc(t, size)
		addr = uint64(p)
		return err
	})
	return addr, roomless(err)
}

// roomless turns the driver's out-of-memory error into noRoom.
func roomless(err error) error {
	if errors.Is(err, driver.OutOfMemory) {
		return noRoom{err}
	}
	return err
}

// noRoom is an out-of-memory error that matches alloc.ErrOutOfMemory.
type noRoom struct{ error }

func (e noRoom) Is(target error) bool { return target == alloc.ErrOutOfMemory }
func (e noRoom) Unwrap() error        { return e.error }

// Error returns "" if the driver's error says nothing beyond out of memory.
func (e noRoom) Error() string {
	if _, plain := e.error.(*driver.Error); plain {
		return ""
	}
	return e.error.Error()
}

func (b *backend) Free(addr uint64) error {
	return b.d.gives(addr, 0, func() error { return b.give(addr) })
}

// give is Free for memory that is not the allocator's.
func (b *backend) give(addr uint64) error {
	return b.freeing(func(t driver.Thread) error { return b.d.dev.MemFree(t, driver.Ptr(addr)) })
}

// freeing is relaxed for calls that free. On a lost device only those still succeed, so it leaves the capture mode alone there. On a closed
// device it does nothing: all memory was given back.
func (b *backend) freeing(f func(t driver.Thread) error) error {
	if !b.lost() {
		return b.relaxed(f)
	}
	t, err := b.d.enter()
	if err != nil {
		return nil
	}
	defer b.d.leave(t)
	return f(t)
}

func (b *backend) MemInfo() (free, total uint64, err error) {
	err = b.relaxed(func(t driver.Thread) (err error) {
		free, total, err = b.d.dev.MemInfo(t)
		return err
	})
	return free, total, err
}

// noEvent stands for an event of a lost device. Nothing runs there any more, so memory that waits for the event can be given back.
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
	if err := b.d.gate.enter(); err != nil {
		return err
	}
	defer b.d.gate.leave()
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
	if b.d.gate.enter() != nil {
		return 0, false
	}
	defer b.d.gate.leave()
	st, id, err := b.d.dev.CaptureInfo(driver.Stream(s))
	return id, err == nil && st == driver.CaptureActive
}

// virtualBackend is a device that maps memory at reserved addresses.
type virtualBackend struct{ backend }

func (b *virtualBackend) Reserve(size uint64) (addr uint64, err error) {
	err = b.relaxed(func(t driver.Thread) error {
		p, err := b.d.dev.MemReserve(t, size)
		addr = uint64(p)
		return err
	})
	return addr, roomless(err)
}

func (b *virtualBackend) Unreserve(addr, size uint64) error {
	return b.freeing(func(t driver.Thread) error { return b.d.dev.MemUnreserve(t, driver.Ptr(addr), size) })
}

func (b *virtualBackend) MapPage(addr, size uint64) error {
	err := b.relaxed(func(t driver.Thread) error { return b.d.dev.MemMap(t, driver.Ptr(addr), size) })
	if err == nil {
		b.d.takes(addr, size)
	}
	return roomless(err)
}

func (b *virtualBackend) UnmapPage(addr, size uint64) error {
	return b.d.gives(addr, size, func() error {
		return b.freeing(func(t driver.Thread) error { return b.d.dev.MemUnmap(t, driver.Ptr(addr), size) })
	})
}

// SyncStream waits for the work of s outside captures. If memory was lent to graphs, which also run on other streams, it waits for every
// stream.
func (b *virtualBackend) SyncStream(s alloc.Stream) error {
	if b.lost() {
		return nil
	}
	for st := range b.d.allStreams {
		if alloc.Stream(st.handle) != s && b.d.lent.pools.Load() == nil {
			continue
		}
		if err := b.wait(st); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for the work of s outside captures. It waits for an event, since others may begin a capture of s meanwhile.
func (b *virtualBackend) wait(s *Stream) error {
	e, ok, err := s.marked()
	if ok {
		defer b.d.ReleaseEvent(e, false)
	}
	if ok && err == nil {
		return b.SyncEvent(alloc.Event(e))
	}
	if err == nil {
		s.mark.Lock() // so that the capture does not give the event back
		defer s.mark.Unlock()
		if s.eager != 0 {
			err = b.SyncEvent(alloc.Event(s.eager))
		}
	}
	return err
}

// orderedBackend is a device that allocates in stream order, from its own memory pool.
type orderedBackend struct{ backend }

func (b *orderedBackend) MallocAsync(size uint64, s alloc.Stream) (addr uint64, err error) {
	err = b.relaxed(func(t driver.Thread) error {
		p, err := b.d.dev.MemAllocAsync(t, size, driver.Stream(s))
		addr = uint64(p)
		return err
	})
	return addr, roomless(err)
}

func (b *orderedBackend) FreeAsync(addr uint64, s alloc.Stream) error {
	return b.freeing(func(t driver.Thread) error { return b.d.dev.MemFreeAsync(t, driver.Ptr(addr), driver.Stream(s)) })
}

func (b *orderedBackend) FreeCaptured(addr uint64, s alloc.Stream) error {
	err := b.FreeAsync(addr, s)
	if errors.Is(err, driver.InvalidValue) { // the graph was not launched since its memory was freed last
		return nil
	}
	return err
}

func (b *orderedBackend) WaitEvent(s alloc.Stream, e alloc.Event) error {
	if b.lost() {
		return nil
	}
	if err := b.d.gate.enter(); err != nil {
		return err
	}
	defer b.d.gate.leave()
	return b.d.dev.StreamWait(driver.Stream(s), driver.Event(e))
}

func (b *orderedBackend) FreeStream() (alloc.Stream, error) {
	d := b.d
	if d.freeStream == 0 && !b.lost() {
		t, err := d.enter()
		if err != nil {
			return 0, err
		}
		defer d.leave(t)
		s, err := d.dev.StreamCreate(t, true, 0)
		if err != nil {
			return 0, err
		}
		d.freeStream = s
	}
	return alloc.Stream(d.freeStream), nil
}

func (b *orderedBackend) Trim(wait bool) error {
	if b.lost() {
		return nil
	}
	if wait {
		t, err := b.d.enter()
		if err != nil {
			return err
		}
		defer b.d.leave(t)
		if err := b.d.wait(t); err != nil {
			return err
		}
	}
	return b.relaxed(func(t driver.Thread) error { return b.d.dev.PoolTrim(t, 0) })
}

func (b *orderedBackend) Usage() (u alloc.PoolUsage, err error) {
	err = b.relaxed(func(t driver.Thread) error {
		v, err := b.d.dev.PoolUsage(t)
		u = alloc.PoolUsage{Reserved: v.Reserved, ReservedPeak: v.ReservedPeak}
		return err
	})
	return u, err
}

func (b *orderedBackend) ResetPeaks() error {
	return b.relaxed(func(t driver.Thread) error { return b.d.dev.PoolResetPeaks(t) })
}
