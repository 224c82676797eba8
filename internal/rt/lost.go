package rt

import (
	"errors"
	"sync/atomic"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/knob"
)

// A device fault (a failed assertion, an illegal address) appears at some later call and loses the device to this process. The first call
// that sees it reports it with the kernel that failed or, if nothing names it, with the operations that may be its cause; every later call
// gets the same error, and frees are silent. The inline device runs each call before it returns, so there a fault concerns that call alone.
// A device that recovers survives failed assertions; the first call that waits for the work returns the error, which names the operation.

// errClosed returns the error of every call made after Close or during it.
func (d *Device) errClosed() *fault.Error {
	return fault.New(fault.Closed, "%s was closed; close it after the last use of it, or open it again", d)
}

// Check gives the error of a driver call the kind that users act on, with msg before it; nil stays nil. A device fault loses the device.
func (d *Device) Check(err error, msg string) error {
	if err == nil {
		return nil
	}
	if e := d.lost.Load(); e != nil && e.Kind == fault.Closed {
		return e
	}
	c, ok := codeOf(err)
	if !ok || !c.Sticky() {
		return wrap(err, msg)
	}
	if d.info.Inline {
		if c == driver.Assert { // a wrong argument, such as an index out of range
			return assertion(err)
		}
		return wrap(err, "the work failed while it ran")
	}
	d.told.Store(true)
	return d.lose(err)
}

// lose notes the fault that lost the device, unless it was lost before, and returns the first one.
func (d *Device) lose(err error) *fault.Error {
	if first := d.lost.Load(); first != nil {
		return first
	}
	what, may := "failed while it worked and is lost to this process", func(OpID) bool { return true }
	cause, _ := errors.AsType[*driver.Error](err)
	switch {
	case cause == nil:
	case cause.Kernel != "":
		may = nil
	case cause.Code == driver.Assert:
		what = "is lost to this process: an assertion of a kernel failed, as for an index out of range; " +
			"the same program on the simulated device or the processor (tenon.Sim, tenon.CPU) is told the operation, its line " +
			"and the number"
		may = MayAssert
	case d.checked("memcheck"):
		what += ", and the memory checker's report names the kernel and its line"
		may = nil
	}
	e := fault.Wrap(fault.Device, err, "%s %s", d, what)
	if may != nil || knob.LaunchLines.Get() { // a named kernel needs no suspects, but the program may have asked for their lines
		e.Suspects = d.suspects(may)
	}
	d.lost.CompareAndSwap(nil, e)
	return d.lost.Load()
}

// checked reports whether the device is a GPU whose work a tool of compute-sanitizer watches, as tenon memcheck says.
func (d *Device) checked(tool string) bool {
	return knob.Watched(tool) && !d.info.Recovers && !d.info.Inline
}

// GiveUp marks the device as lost because of err: the driver refused a call in the middle of a change of tensors.
func (d *Device) GiveUp(err error) error {
	if e := d.lost.Load(); e != nil {
		return e
	}
	e := fault.New(fault.Device,
		"the driver refused a call in the middle of a change of tensors, which are half changed; %s is lost to this process", d)
	e.Cause = err
	d.lost.CompareAndSwap(nil, e)
	return d.Lost()
}

// Lost returns the fault that lost the device, an error of kind Closed if it was closed, or nil.
func (d *Device) Lost() error {
	if e := d.lost.Load(); e != nil {
		d.told.Store(true)
		return e
	}
	if d.closing.Load() {
		return d.errClosed()
	}
	return nil
}

// Gone returns the error that the device was closed, or is about to be, even if it was lost before; else nil.
func (d *Device) Gone() error {
	if d.closing.Load() {
		return d.errClosed()
	}
	return nil
}

// Closing reports whether the device was closed, or is about to be.
func (d *Device) Closing() bool { return d.closing.Load() }

// checkAlloc is Check for errors of the allocator, whose own errors are already complete.
func (d *Device) checkAlloc(err error, msg string) error {
	if err == nil {
		return nil // before own, which errors.As puts on the heap
	}
	var own *fault.Error
	if errors.As(err, &own) {
		return err
	}
	return d.Check(err, msg)
}

// Origin says where a launch comes from; drivers that recover keep it with the launch.
type Origin interface {
	// Failed returns the error of a failed assertion in the launch.
	Failed(e *driver.Error) *fault.Error
	// Issued returns the operation that the launch is part of, and its capture, or nil; a captured launch runs with each run of the graph.
	Issued() (s *Stream, seq uint64, in *Capture)
}

// assertion returns the error of a failed assertion that the device survives.
func assertion(err error) *fault.Error {
	var e *driver.Error
	if errors.As(err, &e) {
		if o, ok := e.Origin.(Origin); ok {
			return o.Failed(e)
		}
	}
	return fault.Wrap(fault.Invalid, err, "an assertion of a kernel failed")
}

// asserting marks the operations that have launched a kernel with assertions.
var asserting [1 << 16]atomic.Bool

// MayAssert reports whether operation op has launched a kernel with assertions on a device that does not survive their failure.
func MayAssert(op OpID) bool { return asserting[op].Load() }

// Launching returns what the driver keeps with a launch of f on s by operation op: the result of origin if f has assertions and their
// failure may be seen when op is over, on a device that survives it. Otherwise it returns nil.
func (s *Stream) Launching(op OpID, f Func, origin func() Origin) any {
	switch info := s.dev.info; {
	case !f.Asserts:
	case info.Recovers, info.Inline && s.Recording():
		return origin()
	case !asserting[op].Load():
		asserting[op].Store(true)
	}
	return nil
}
