package pickle

import (
	"io"

	"tenon.dev/fault"
)

// window bounds the bytes of input held at once, apart from strings. All other parts of an instruction are shorter than margin, so that
// one check of the window serves a whole instruction.
const (
	window = 1 << 18
	margin = 16
)

// source is the input.
type source struct {
	r        io.Reader
	buf      []byte
	at, end  int
	start    int64 // offset of buf[0] in the input
	done     bool  // the reader has no more
	progress func(read int64)
}

// offset returns the position of the next byte in the input.
func (s *source) offset() int64 { return s.start + int64(s.at) }

// fill reads until n bytes are buffered or the input ends; n is at most window.
func (s *source) fill(n int) error {
	if s.end-s.at >= n || s.done {
		return nil
	}
	copy(s.buf, s.buf[s.at:s.end])
	s.start += int64(s.at)
	s.end -= s.at
	s.at = 0
	for empty := 0; s.end < n; {
		k, err := s.r.Read(s.buf[s.end:])
		s.end += k
		if err == io.EOF {
			s.done = true
			break
		}
		if err != nil {
			return fault.Wrap(fault.System, err, "the pickle could not be read at byte %d", s.start+int64(s.end))
		}
		if k == 0 {
			if empty++; empty == 100 {
				return fault.Wrap(fault.System, io.ErrNoProgress, "the pickle could not be read at byte %d", s.start+int64(s.end))
			}
		}
	}
	if s.progress != nil {
		s.progress(s.start + int64(s.end))
	}
	return nil
}

func (s *source) truncated() error {
	if s.start+int64(s.end) == 0 {
		return fault.New(fault.Invalid, "the pickle is empty")
	}
	return fault.New(fault.Invalid, "the pickle ends in the middle, at byte %d", s.start+int64(s.end))
}

// take returns the next n bytes, which stay valid until the next call; n is at most window.
func (s *source) take(n int) ([]byte, error) {
	if s.end-s.at < n {
		if err := s.fill(n); err != nil {
			return nil, err
		}
		if s.end-s.at < n {
			return nil, s.truncated()
		}
	}
	b := s.buf[s.at : s.at+n]
	s.at += n
	return b, nil
}

// skip passes over n bytes.
func (s *source) skip(n int) error {
	_, err := s.take(n)
	return err
}

// line returns the bytes up to the next newline, which it passes over. Lines are at most window long.
func (s *source) line() ([]byte, error) {
	for seen := 0; ; {
		for i := s.at + seen; i < s.end; i++ {
			if s.buf[i] == '\n' {
				b := s.buf[s.at:i]
				s.at = i + 1
				return b, nil
			}
		}
		seen = s.end - s.at
		if seen == len(s.buf) {
			return nil, fault.New(fault.Invalid, "the pickle has a line of more than %d bytes at byte %d", len(s.buf), s.offset())
		}
		if err := s.fill(seen + 1); err != nil {
			return nil, err
		}
		if s.end-s.at == seen {
			return nil, s.truncated()
		}
	}
}
