package rt

import (
	"errors"

	"tenon.dev/internal/driver"
)

// Upload copies b, which is page-locked, to address dst in the order of s and returns an event for the end of the copy. b must not change
// until then.
func (s *Stream) Upload(dst driver.Ptr, b []byte) (*Event, error) {
	return s.queued(func() error { return s.dev.dev.CopyHtoD(dst, b, s.handle) }, "a tensor could not be written")
}

// Write queues a copy of b, which is not page-locked and may change afterwards, to address dst on s.
func (s *Stream) Write(dst driver.Ptr, b []byte) error {
	return s.dev.Check(s.dev.dev.CopyHtoD(dst, b, s.handle), "a tensor could not be written")
}

// Download copies from address src to b, which is page-locked, in the order of s and returns an event for the end of the copy. b is
// undefined until then.
func (s *Stream) Download(b []byte, src driver.Ptr) (*Event, error) {
	return s.queued(func() error { return s.dev.dev.CopyDtoH(b, src, s.handle) }, "a tensor could not be read")
}

// queued queues a copy with call and returns an event for its end.
func (s *Stream) queued(call func() error, msg string) (*Event, error) {
	if err := s.dev.gate.enter(); err != nil {
		return nil, err
	}
	defer s.dev.gate.leave()
	if err := call(); err != nil {
		return nil, s.dev.Check(err, msg)
	}
	e := s.dev.NewEvent(false)
	if err := e.Record(s); err != nil { // the copy is on its way all the same, and nobody could wait for it later
		e.Close()
		return nil, errors.Join(err, s.Synchronize())
	}
	return e, nil
}
