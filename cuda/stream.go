package cuda

import (
	"fmt"

	"tenon.dev/internal/rt"
)

// Stream is an in-order queue of a device's work; different streams run concurrently. Streams compare with ==. Operations on tensors are
// ordered across streams automatically; WaitStream and Wait are for order beyond that.
type Stream rt.Stream

func (s *Stream) rt() *rt.Stream { return receiver((*rt.Stream)(s)) }

// Stream returns a stream of the device's pool, which hands them out round-robin, so two calls may return the same stream. The stream does
// not wait for the default stream.
func (d *Device) Stream() (s *Stream, err error) {
	defer returned(&err)
	next, err := d.rt().Stream()
	return (*Stream)(next), err
}

// DefaultStream returns the stream that work goes to by default. Its ID is 0. It is not CUDA's legacy default stream: other streams do not
// wait for it by themselves. As in PyTorch, no capture can begin on it.
func (d *Device) DefaultStream() *Stream { return (*Stream)(d.rt().DefaultStream()) }

// Device returns the stream's device.
func (s *Stream) Device() *Device { return (*Device)(s.rt().Device()) }

// ID is the stream's number in its device, 0 for the default stream.
func (s *Stream) ID() int { return s.rt().ID() }

// Handle is the driver's handle, for use with other libraries. It is not 0, not even for the default stream.
func (s *Stream) Handle() uint64 { return uint64(s.rt().Handle()) }

// Capturing reports whether the work of s is being recorded as a graph.
func (s *Stream) Capturing() bool { return s.rt().Capturing() }

// Query reports whether all work of s is done.
func (s *Stream) Query() (ok bool, err error) {
	defer returned(&err)
	if err := s.settle("Query"); err != nil {
		return false, err
	}
	return s.rt().Query()
}

// settle issues the work for s's device that compiled regions have deferred, for op. A stream that cannot be used has none.
func (s *Stream) settle(op string) error {
	if (*rt.Stream)(s).Usable() != nil {
		return nil
	}
	return (*rt.Stream)(s).Device().RunDeferred(op, false)
}

// Synchronize waits for all work of s and returns its fault, if any.
func (s *Stream) Synchronize() (err error) {
	defer returned(&err)
	if err := s.settle("Synchronize"); err != nil {
		return err
	}
	return s.rt().Synchronize()
}

// WaitStream makes later work of s wait for all work that o has now; it returns at once. In a capture it joins s to o's capture. o may
// belong to another device; if the two devices have no common driver, such as a GPU and the processor, the host waits.
func (s *Stream) WaitStream(o *Stream) (err error) {
	defer returned(&err)
	if err := o.settle("WaitStream"); err != nil {
		return err
	}
	return s.rt().WaitAll((*rt.Stream)(o))
}

// Wait makes later work of s wait for what e marks; it returns at once. An event that was never recorded marks nothing. The event may
// belong to another device, as in WaitStream.
func (s *Stream) Wait(e *Event) (err error) {
	defer returned(&err)
	r := s.rt()
	if (*rt.Event)(e).Usable() == nil {
		e.open()
	}
	return r.Wait((*rt.Event)(e))
}

// String describes the stream, such as "cuda.Stream(NVIDIA H200, 3)".
func (s *Stream) String() string {
	if err := (*rt.Stream)(s).Usable(); err != nil {
		return fmt.Sprintf("cuda.Stream(%v)", err)
	}
	return fmt.Sprintf("cuda.Stream(%s, %d)", s.Device().Name(), s.ID())
}
