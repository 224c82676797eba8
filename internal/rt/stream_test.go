package rt

import (
	"testing"

	"tenon.dev/internal/driver"
)

// busy issues an operation whenever the device has been waited for.
type busy struct {
	driver.Device
	issue func()
}

func (b *busy) Synchronize(t driver.Thread) error {
	err := b.Device.Synchronize(t)
	if b.issue != nil {
		b.issue()
	}
	return err
}

// A capture begins with a wait for the device, which does not cover work that others issue after it.
func TestCaptureSettlesWhatItWaitedFor(t *testing.T) {
	var b *busy
	d := openSim(t, func(d driver.Device) driver.Device { b = &busy{Device: d}; return b })
	a, err := d.Stream()
	ok(t, err)
	s, err := d.CaptureStream()
	ok(t, err)
	issue(t, a, 0)
	b.issue = func() { issue(t, a, 0) }
	c, err := d.BeginCapture(s, CaptureSpec{})
	ok(t, err)
	b.issue = nil
	if !s.Covers(a.ID(), 1) || s.Covers(a.ID(), 2) {
		t.Errorf("after a wait for one operation of a stream, another one counts as waited for up to %d", s.waited[a.ID()].Load())
	}
	ok(t, c.Abort())
	d.ReturnCaptureStream(s)
}

// A stream that joined a capture by WaitAll leaves it at the end, and meanwhile others can wait for its work before the capture.
func TestJoinedStreamsAreLeft(t *testing.T) {
	d := openSim(t, nil)
	a, err := d.Stream()
	ok(t, err)
	o, err := d.Stream()
	ok(t, err)
	s, err := d.CaptureStream()
	ok(t, err)
	c, err := d.BeginCapture(s, CaptureSpec{})
	ok(t, err)
	issue(t, a, 0) // eager
	ok(t, a.WaitAll(s))
	if !a.Recording() || !c.Records(a) {
		t.Error("a stream that waits for a captured one is no part of the capture")
	}
	if _, err := a.Begin(0, nil); err == nil {
		t.Error("eager work may be issued to a captured stream")
	}
	ok(t, o.WaitFor(a, 1))
	if o.Recording() || o.Capturing() {
		t.Error("an eager wait joined the capture")
	}
	if err := o.WaitIn(a, nil); err == nil || o.Capturing() {
		t.Errorf("eager work waits for captured: %v", err)
	}
	ok(t, c.JoinAll())
	g, err := c.End()
	ok(t, err)
	if a.Recording() || s.Recording() {
		t.Error("a stream is left in a capture that has ended")
	}
	issue(t, a, 0)
	ok(t, g.Close())
	d.ReturnCaptureStream(s)
}
