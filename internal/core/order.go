package core

import (
	"sync/atomic"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/rt"
)

// Automatic ordering. An access of stream S to a storage must come after the last write, and a write also after the last reads, of other
// streams. S waits only if its present waits do not cover them already, so work on one stream never waits, and allocates nothing.

// read orders a read by operation seq of st after the last write, and notes it.
func (s *storage) read(st *rt.Stream, seq uint64) error {
	if err := s.after(&s.writer, st); err != nil {
		return err
	}
	if err := s.note(st, seq); err != nil {
		return err
	}
	return s.recordStream(st)
}

// write orders a write by operation seq of st after all earlier accesses, and notes it.
func (s *storage) write(st *rt.Stream, seq uint64) error {
	if err := s.after(&s.writer, st); err != nil {
		return err
	}
	for i := range s.readers {
		if err := s.after(&s.readers[i], st); err != nil {
			return err
		}
		if s.readers[i].Load() != 0 { // a locked store costs as much as the rest of this
			s.readers[i].Store(0)
		}
	}
	s.writer.Store(pack(st.ID(), seq))
	return s.recordStream(st)
}

// after makes st wait for the access noted in a.
func (s *storage) after(a *atomic.Uint64, st *rt.Stream) error {
	v := a.Load()
	if v == 0 {
		return nil
	}
	id, seq := unpack(v)
	if id == st.ID() {
		return nil
	}
	return st.WaitFor(s.dev.StreamByID(id), seq)
}

// note keeps the latest reads of two streams; a third reader waits for the one it displaces, so that waiting for it covers both.
func (s *storage) note(st *rt.Stream, seq uint64) error {
	for i := range s.readers {
		v := s.readers[i].Load()
		if id, _ := unpack(v); v == 0 || id == st.ID() {
			s.readers[i].Store(pack(st.ID(), seq))
			return nil
		}
	}
	if err := s.after(&s.readers[0], st); err != nil {
		return err
	}
	s.readers[0].Store(pack(st.ID(), seq))
	return nil
}

// recordStream tells the allocator of a use by a stream that is not the block's own, once a stream.
func (s *storage) recordStream(st *rt.Stream) error {
	if s.block == nil || s.block.Stream() == alloc.Stream(st.Handle()) {
		return nil
	}
	bit := uint64(1) << st.ID()
	if s.streams.Load()&bit != 0 {
		return nil
	}
	s.streams.Or(bit)
	return s.dev.Memory().RecordStream(s.block, alloc.Stream(st.Handle()))
}
