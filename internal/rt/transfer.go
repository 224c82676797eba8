package rt

import (
	"errors"

	"tenon.dev/internal/driver"
)

// transferChunk is how many bytes of page-locked memory a copy between devices takes at a time.
const transferChunk = 32 << 20

// CopyPeer queues a copy of n > 0 bytes from address src of from's device to address dst of to's device, which is its peer. The copy runs
// on to, after the work that from has now, and later work of from comes after the copy. The caller has the turns of both streams, and
// neither is being captured.
func CopyPeer(to *Stream, dst driver.Ptr, from *Stream, src driver.Ptr, n int) error {
	a, b := from.dev, to.dev
	read, err := a.AcquireEvent(false)
	if err != nil {
		return err
	}
	defer a.ReleaseEvent(read, false)
	written, err := b.AcquireEvent(false)
	if err != nil {
		return err
	}
	defer b.ReleaseEvent(written, false)
	if err := waitAcross(to, from, read); err != nil {
		return err
	}
	if err := b.Check(b.dev.CopyPeer(dst, a.info.Ordinal, src, uint64(n), to.handle),
		"a tensor could not be copied from another device"); err != nil {
		return err
	}
	if err := waitAcross(from, to, written); err != nil {
		// Otherwise the source could be freed before it has been read.
		return Also(err, to.Synchronize())
	}
	return nil
}

// waitAcross makes later work of s wait for all work that o, a peer's stream that is not being captured, has now. e is an event of o's
// device.
func waitAcross(s, o *Stream, e driver.Event) error {
	const text = "a stream could not be made to wait for another device"
	if err := o.dev.Check(o.dev.dev.EventRecord(e, o.handle), text); err != nil {
		return err
	}
	if err := s.dev.Check(s.dev.dev.StreamWait(s.handle, e), text); err != nil {
		return err
	}
	o.dev.trace(eventCreation, uint64(e), 0)
	o.dev.trace(eventRecord, uint64(e), uint64(o.handle))
	s.dev.trace(eventWait, uint64(e), uint64(s.handle))
	o.dev.trace(eventDeletion, uint64(e), 0)
	return nil
}

// Transfer copies n > 0 bytes from address src, after the work that from has now, to address dst, in to's order. The streams belong to
// devices that are not peers, and the bytes go through page-locked host memory. It returns when src has been read and, if dst is on the
// processor's device, when dst has been written.
func Transfer(to *Stream, dst driver.Ptr, from *Stream, src driver.Ptr, n int) error {
	for at := 0; at < n; at += transferChunk {
		if err := transferPart(to, dst+driver.Ptr(at), from, src+driver.Ptr(at), min(n-at, transferChunk)); err != nil {
			return err
		}
	}
	return nil
}

// transferPart copies what fits into one piece of page-locked memory.
func transferPart(to *Stream, dst driver.Ptr, from *Stream, src driver.Ptr, n int) (err error) {
	gpu := to
	if to.dev.Host {
		gpu = from
	}
	p, err := gpu.dev.AllocPinned(n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Free()) }()
	for _, d := range []*Device{from.dev, to.dev} {
		if err := d.gate.enter(); err != nil {
			return err
		}
		defer d.gate.leave()
	}
	if err := from.dev.Check(from.dev.dev.CopyDtoH(p.bytes, src, from.handle), "a tensor could not be read"); err != nil {
		return err
	}
	if !from.dev.Host {
		if err := errors.Join(p.recordOn(from), from.Synchronize()); err != nil {
			return err
		}
	}
	if err := to.dev.Check(to.dev.dev.CopyHtoD(dst, p.bytes, to.handle), "a tensor could not be written"); err != nil {
		return err
	}
	if from.dev.Host || to.dev.Host {
		return p.recordOn(to)
	}
	// The memory belongs to gpu, whose allocator records no events on other devices' streams.
	return to.Synchronize()
}

// recordOn is Record for streams of the memory's own device; copies of the processor's device are done when they return.
func (p *Pinned) recordOn(s *Stream) error {
	if s.dev != p.dev {
		return nil
	}
	return p.Record(s)
}
