package core

import (
	"errors"
	"sync/atomic"

	"tenon.dev/fault"
)

// Span is one run of a compiled function, whose nodes on the tape belong together.
type Span struct {
	// Begin is called when a backward pass comes to the first of the nodes, and what it returns after the last one. Incoming are the
	// numbers of the storages of gradients that have come to the nodes from others.
	Begin func(x *Exec, incoming []uint64) (end func() error)
	// nodes counts those that are still on a tape.
	nodes atomic.Int32
}

// Taped reports whether a backward pass may still come to a node of the run.
func (sp *Span) Taped() bool { return sp.nodes.Load() > 0 }

// SetSpan makes what x's session records belong to sp, in place of the span that it returns; nil is none.
func SetSpan(x *Exec, sp *Span) (old *Span) {
	old, x.s.span = x.s.span, sp
	return old
}

// Attached is what a package above the face keeps with a session. A fork's Close ends it; with a device's session it goes with the device.
type Attached interface {
	// Detach says that the session has ended.
	Detach() error
	// Relieve gives back memory that is there only to save work, and reports whether there was any.
	Relieve() bool
}

// Attach returns what the session has for key, or what make returns, which it keeps.
func Attach(x *Exec, key any, make func() Attached) Attached {
	a := x.s.attached[key]
	if a == nil && make != nil {
		a = make()
		if x.s.attached == nil {
			x.s.attached = map[any]Attached{}
		}
		x.s.attached[key] = a
	}
	return a
}

// Detach forgets what the session has for key.
func Detach(x *Exec, key any) error {
	a := x.s.attached[key]
	if a == nil {
		return nil
	}
	delete(x.s.attached, key)
	return a.Detach()
}

func (s *session) detach() (err error) {
	for key, a := range s.attached { //tenon:unordered each is ended for itself
		delete(s.attached, key)
		err = errors.Join(err, a.Detach())
	}
	return err
}

// relieve frees memory for an allocation that found none, and reports whether another attempt may succeed.
func (s *session) relieve(err error) (freed bool) {
	if len(s.attached) == 0 || s.capture != nil || fault.KindOf(err) != fault.OutOfMemory {
		return false
	}
	for _, a := range s.attached { //tenon:unordered each gives back its own
		freed = a.Relieve() || freed
	}
	return freed
}

// WillRecord reports whether the call is to be put on the tape.
func (f *frame) WillRecord() bool {
	return !f.x.m.noGrad && f.row.back != nil && f.anyRequiresGrad()
}
