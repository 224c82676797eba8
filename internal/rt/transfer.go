package rt

import (
	"errors"
	"sync"

	"tenon.dev/internal/driver"
)

// transferChunk is how many bytes of page-locked memory a copy between devices takes at a time.
const transferChunk = 32 << 20

// Transfer copies n > 0 bytes from address src, after the work that from has now, to address dst, in to's order. The streams are of different
// devices, and the bytes go through page-locked host memory. Unless async is true it returns when src has been read and, on the processor's device,
// dst is written. An async copy to a GPU has src read at once if that lies on the processor's device; one to the processor's device
// returns an Arrival, and dst is undefined until that has been waited for. Between two GPUs copies are never async.
func Transfer(to *Stream, dst driver.Ptr, from *Stream, src driver.Ptr, n int, async bool) (*Arrival, error) {
	if err := errors.Join(to.Device.freeForgotten(), from.Device.freeForgotten()); err != nil {
		return nil, err
	}
	if async && to.Device.Host {
		return arriving(to, dst, from, src, n)
	}
	for at := 0; at < n; at += transferChunk {
		if err := transferPart(to, dst+driver.Ptr(at), from, src+driver.Ptr(at), min(n-at, transferChunk)); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// transferPart copies what fits into one piece of page-locked memory.
func transferPart(to *Stream, dst driver.Ptr, from *Stream, src driver.Ptr, n int) (err error) {
	gpu := to
	if to.Device.Host {
		gpu = from
	}
	p, err := gpu.Device.AllocPinned(n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Free()) }()
	if err := from.Device.Check(from.Device.dev.CopyDtoH(p.bytes, src, from.Handle), "a tensor could not be read"); err != nil {
		return err
	}
	if !from.Device.Host {
		if err := errors.Join(p.recordOn(from), from.Synchronize()); err != nil {
			return err
		}
	}
	if err := to.Device.Check(to.Device.dev.CopyHtoD(dst, p.bytes, to.Handle), "a tensor could not be written"); err != nil {
		return err
	}
	if from.Device.Host || to.Device.Host {
		return p.recordOn(to)
	}
	// The memory is gpu's, whose events other devices do not have.
	return to.Synchronize()
}

// recordOn is Record for streams of the memory's own device; copies of the processor's device are done when they return.
func (p *Pinned) recordOn(s *Stream) error {
	if s.Device != p.dev {
		return nil
	}
	return p.Record(s)
}

// Arrival is a copy on its way from a device to the processor's: Wait completes it. It is safe for concurrent use.
type Arrival struct {
	from, to *Stream
	dst      driver.Ptr

	mu     sync.Mutex
	memory *Pinned
	event  driver.Event
	err    error
}

// arriving queues the copy to page-locked memory.
func arriving(to *Stream, dst driver.Ptr, from *Stream, src driver.Ptr, n int) (*Arrival, error) {
	d := from.Device
	p, err := d.AllocPinned(n)
	if err != nil {
		return nil, err
	}
	a := &Arrival{from: from, to: to, dst: dst, memory: p}
	if a.event, err = d.AcquireEvent(false); err != nil {
		return nil, errors.Join(err, p.Free())
	}
	err = d.Check(d.dev.CopyDtoH(p.bytes, src, from.Handle), "a tensor could not be read")
	if err == nil {
		err = p.Record(from)
	}
	if err == nil {
		err = d.Check(d.dev.EventRecord(a.event, from.Handle), "a copy could not be followed")
	}
	if err != nil {
		return nil, errors.Join(err, a.Drop())
	}
	return a, nil
}

// Wait waits for the copy and writes the destination. Later calls return what the first one did.
func (a *Arrival) Wait() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.memory == nil {
		return a.err
	}
	d := a.from.Device
	t := d.dev.Enter()
	err := d.Check(d.dev.EventSynchronize(t, a.event), "a copy could not be waited for")
	t.Leave()
	if err == nil {
		h := a.to.Device
		err = h.Check(h.dev.CopyHtoD(a.dst, a.memory.bytes, a.to.Handle), "a tensor could not be written")
	}
	a.err = errors.Join(err, a.free())
	return a.err
}

// Drop gives the copy up: the destination stays undefined.
func (a *Arrival) Drop() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.memory == nil {
		return nil
	}
	return a.free()
}

func (a *Arrival) free() error {
	a.from.Device.ReleaseEvent(a.event, false)
	p := a.memory
	a.memory = nil
	return p.Free()
}

// Forget is Drop for goroutines that may not call the driver, such as those of cleanups: the memory is freed with a later copy.
func (a *Arrival) Forget() {
	d := a.from.Device
	d.arrivals.mu.Lock()
	defer d.arrivals.mu.Unlock()
	d.arrivals.forgotten = append(d.arrivals.forgotten, a)
}

// arrivals are the copies from a device whose destinations are garbage.
type arrivals struct {
	mu        sync.Mutex
	forgotten []*Arrival
}

func (d *Device) freeForgotten() (err error) {
	d.arrivals.mu.Lock()
	list := d.arrivals.forgotten
	d.arrivals.forgotten = nil
	d.arrivals.mu.Unlock()
	for _, a := range list {
		err = errors.Join(err, a.Drop())
	}
	return err
}
