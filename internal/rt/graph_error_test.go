package rt

import (
	"errors"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
)

// unwaitable is a device whose events cannot be waited for while on is true.
type unwaitable struct {
	driver.Device
	on *bool
}

func (u unwaitable) EventSynchronize(t driver.Thread, e driver.Event) error {
	if *u.on {
		return &driver.Error{Call: "EventSynchronize", Code: driver.IllegalAddress}
	}
	return u.Device.EventSynchronize(t, e)
}

// TestCaptureFailsInOurWords: if memory of earlier graphs cannot be given back before a capture, the error is a fault of kind Device and
// not the driver's own.
func TestCaptureFailsInOurWords(t *testing.T) {
	on := false
	d := openSim(t, func(d driver.Device) driver.Device { return unwaitable{d, &on} })
	side, err := d.CaptureStream()
	ok(t, err)
	pool := alloc.NewCapturePoolID()
	ok(t, d.mem.BeginAllocateToPool(pool, func(alloc.Stream) bool { return true }))
	b, err := d.mem.Alloc(1<<20, 0)
	ok(t, err)
	ok(t, d.mem.EndAllocateToPool(pool))
	ok(t, d.mem.RecordStream(b, alloc.Stream(side.handle)))
	ok(t, d.mem.Free(b))
	ok(t, d.mem.ReleasePool(pool))
	on = true
	_, err = d.BeginCapture(side, CaptureSpec{})
	var own *fault.Error
	if !errors.As(err, &own) || own.Kind != fault.Device {
		t.Errorf("the capture began with %v", err)
	}
}

// unjoinable is a device whose streams cannot wait for events while on is true.
type unjoinable struct {
	driver.Device
	on *bool
}

func (u unjoinable) StreamWait(s driver.Stream, e driver.Event) error {
	if *u.on {
		return &driver.Error{Call: "StreamWait", Code: driver.InvalidHandle}
	}
	return u.Device.StreamWait(s, e)
}

// TestStreamThatCannotJoin: a stream that could not be made to wait for the capture's work is not one of the capture's.
func TestStreamThatCannotJoin(t *testing.T) {
	on := false
	d := openSim(t, func(d driver.Device) driver.Device { return unjoinable{d, &on} })
	main, err := d.CaptureStream()
	ok(t, err)
	side, err := d.Stream()
	ok(t, err)
	c, err := d.BeginCapture(main, CaptureSpec{})
	ok(t, err)
	on = true
	if err := c.Join(side, main); err == nil || side.Capturing() {
		t.Errorf("the error is %v; the stream is captured: %v", err, side.Capturing())
	}
	on = false
	ok(t, c.Join(side, main))
	if !side.Capturing() {
		t.Error("the stream does not join the capture later")
	}
	ok(t, c.Abort())
}
