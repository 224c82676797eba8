package core

import (
	"math/bits"
	"sync/atomic"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// Automatic ordering. An access of stream S to a storage must come after the last writes, and a write also after the last reads, of other
// streams. S waits only if its earlier waits do not cover them already, so work on one stream never waits, and allocates nothing.
//
// An access is noted once it has been launched, in the stream's turn, and is replaced only by a later one that comes after it. So every
// access that a storage names can be waited for, and none is lost, however many streams use different parts of a storage at once. Readers
// never wait for readers. Work that a capture records runs in each replay, and its accesses are noted as the replay's.

// spoilt refuses operands whose contents may depend on a failed assertion, and such destinations if they are only partly written.
func (f *frame) spoilt() {
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil && f.row.flags&flagForeign == 0 {
			f.check(t.spoilt())
		}
	}
	for _, t := range f.many {
		f.check(t.spoilt())
	}
	for i := 0; i < f.outs; i++ {
		if d := f.to(i); d != nil {
			f.check(d.overwritten())
		}
	}
}

// spoilt returns an error if t's storage may depend on a failed assertion.
func (t *Tensor) spoilt() error {
	if cause := t.st.spoilt(); cause != nil {
		return rt.SpoiltError(cause, "the tensor "+describe(t))
	}
	return nil
}

// spoilt returns the failed assertion on which the storage's contents may depend, or nil.
func (s *storage) spoilt() *fault.Error {
	if !s.dev.Spoils() {
		return nil
	}
	if v := s.writer.Load(); v != 0 {
		if err := s.dev.Spoilt(unpack(v)); err != nil {
			return err
		}
	}
	if o := s.further(); o != nil {
		for set := o.writers.Load(); set != 0; set &= set - 1 {
			if err := s.dev.Spoilt(unpack(o.writes[bits.TrailingZeros64(set)].Load())); err != nil {
				return err
			}
		}
	}
	return nil
}

// overwritten is spoilt for a destination: one that is written as a whole is valid again.
func (t *Tensor) overwritten() error {
	if infer.Numel(t.shape)*t.dt.Size() >= t.st.bytes {
		return nil
	}
	return t.spoilt()
}

// beforeRead makes st wait for the accesses that a read must come after.
func (s *storage) beforeRead(st *rt.Stream) error {
	if err := s.after(s.writer.Load(), st); err != nil {
		return err
	}
	if o := s.further(); o != nil {
		if err := s.afterAll(o.writers.Load(), &o.writes, st); err != nil {
			return err
		}
	}
	return s.recordStream(st)
}

// beforeWrite makes st wait for the accesses that a write must come after.
func (s *storage) beforeWrite(st *rt.Stream) error {
	if err := s.after(s.reader.Load(), st); err != nil {
		return err
	}
	if o := s.further(); o != nil {
		if err := s.afterAll(o.readers.Load(), &o.reads, st); err != nil {
			return err
		}
	}
	return s.beforeRead(st)
}

// after makes st wait for the access v.
func (s *storage) after(v uint64, st *rt.Stream) error {
	if v == 0 {
		return nil
	}
	id, seq := unpack(v)
	if st.Covers(id, seq) {
		return nil
	}
	return st.WaitFor(s.dev.StreamByID(id), seq)
}

// afterAll makes st wait for the accesses of the streams in set.
func (s *storage) afterAll(set uint64, list *[rt.MaxStreams]atomic.Uint64, st *rt.Stream) error {
	for ; set != 0; set &= set - 1 {
		if err := s.after(list[bits.TrailingZeros64(set)].Load(), st); err != nil {
			return err
		}
	}
	return nil
}

// didRead notes a read by operation seq of st.
func (s *storage) didRead(st *rt.Stream, seq uint64) {
	me := pack(st.ID(), seq)
	for {
		v := s.reader.Load()
		if id, _ := unpack(v); v != 0 && id != st.ID() {
			break
		}
		if s.reader.CompareAndSwap(v, me) {
			return
		}
	}
	o := s.withFurther()
	o.reads[st.ID()].Store(me)
	note(&o.readers, st.ID())
}

// didWrite notes a write by operation seq of st.
func (s *storage) didWrite(st *rt.Stream, seq uint64) {
	me := pack(st.ID(), seq)
	for {
		v := s.writer.Load()
		if id, seq := unpack(v); v != 0 && !st.Covers(id, seq) {
			break // another stream wrote another part meanwhile
		}
		if s.writer.CompareAndSwap(v, me) {
			return
		}
	}
	o := s.withFurther()
	o.writes[st.ID()].Store(me)
	note(&o.writers, st.ID())
}

// further returns the accesses of further streams, or nil.
func (s *storage) further() *otherAccesses {
	if u := s.rare.Load(); u != nil {
		return u.accesses.Load()
	}
	return nil
}

// withFurther is further, and makes what it returns.
func (s *storage) withFurther() *otherAccesses {
	u := s.uncommon()
	if o := u.accesses.Load(); o != nil {
		return o
	}
	u.accesses.CompareAndSwap(nil, &otherAccesses{})
	return u.accesses.Load()
}

// note adds a stream to a set.
func note(set *atomic.Uint64, id int) {
	if bit := uint64(1) << id; set.Load()&bit == 0 {
		set.Or(bit)
	}
}

// recordStream tells the allocator, once per stream, that a stream other than the block's own uses the block.
func (s *storage) recordStream(st *rt.Stream) error {
	if s.block == nil && (s.ptr == 0 || s.locked() != nil) || s.block != nil && s.block.Stream() == alloc.Stream(st.Handle()) {
		return nil
	}
	bit := uint64(1) << st.ID()
	if s.streams.Load()&bit != 0 {
		return nil
	}
	s.streams.Or(bit)
	if s.lent() {
		return nil
	}
	return s.dev.Memory().RecordStream(s.block, alloc.Stream(st.Handle()))
}
