package core

import (
	"errors"
	"sync/atomic"

	"tenon.dev/fault"
)

// Span is one run of a compiled function. It groups the nodes that the run recorded on the tape.
type Span struct {
	// Begin is called when a backward pass reaches the first of the nodes, and the function that it returns after the last one. incoming
	// are the storage numbers of the gradients that have reached the nodes from other nodes.
	Begin func(x *Exec, incoming []uint64) (end func() error)
	// Lists says that the run's nodes are listed, for Recompute.
	Lists bool
	list  []*node
	// nodes counts the nodes that are still on a tape.
	nodes atomic.Int32
}

// add notes that the run has recorded n.
func (sp *Span) add(n *node) {
	n.span = sp
	sp.nodes.Add(1)
	if sp.Lists {
		sp.list = append(sp.list, n)
	}
}

// Taped reports whether a backward pass may still reach a node of the run.
func (sp *Span) Taped() bool { return sp.nodes.Load() > 0 }

// SetSpan makes sp the span of the nodes that x's session records, and returns the one that it replaces; nil means none.
func SetSpan(x *Exec, sp *Span) (old *Span) {
	old, x.s.span = x.s.span, sp
	return old
}

// Attached is state that a package above the face keeps with a session. A fork's Close ends it; in a device's session it lives as long as
// the device.
type Attached interface {
	// Detach is called when the session ends.
	Detach() error
	// Relieve frees memory that is kept only to save work, and reports whether there was any.
	Relieve() bool
}

// Attach returns the session's state for key. If there is none, it keeps and returns the result of make.
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

// Detach removes the session's state for key and detaches it.
func Detach(x *Exec, key any) error {
	a := x.s.attached[key]
	if a == nil {
		return nil
	}
	delete(x.s.attached, key)
	return a.Detach()
}

// Forget detaches all that packages above keep with x's session.
func Forget(x *Exec) error { return x.s.detachAlone() }

func (s *session) detach() (err error) {
	for key, a := range s.attached { //tenon:unordered each is of another device
		delete(s.attached, key)
		err = errors.Join(err, a.Detach())
	}
	return err
}

// relieve frees memory after an allocation failed, and reports whether another attempt may succeed.
func (s *session) relieve(err error) (freed bool) {
	if len(s.attached) == 0 || s.capture != nil || fault.KindOf(err) != fault.OutOfMemory {
		return false
	}
	for _, a := range s.attached { //tenon:unordered each is of another device
		freed = a.Relieve() || freed
	}
	return freed
}

// WillRecord reports whether the call will be recorded on the tape.
func (f *frame) WillRecord() bool {
	return !f.x.m.noGrad && f.row.back != nil && f.anyRequiresGrad()
}
