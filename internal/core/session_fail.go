package core

import (
	"errors"
	"fmt"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/origin"
)

// Try runs f and returns the *fault.Error with which an operation in it stopped, or nil. Any other panic is a bug and goes on. An error
// without a line, which a program's own operation made, gets that of the panic.
func Try(f func()) (err error) {
	if f == nil {
		return Try(func() { NoFunction("Try", "f") })
	}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*fault.Error)
			if !ok {
				panic(r)
			}
			if e.Line == 0 {
				file, line := caller() // the frames of the panic are still there
				e = fault.At(e, file, line)
			}
			err = e
		}
	}()
	f()
	return nil
}

// forResult adds to an out-of-memory error that the memory was for the result t.
func forResult(err error, t *Tensor) error {
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != fault.OutOfMemory {
		return err
	}
	c := *e
	c.Msg = fmt.Sprintf("the result %s does not fit: %s", describe(t), e.Msg)
	return &c
}

// Made returns x. It panics with an error of op if x is nil or did not come from a session.
func Made(x *Exec, op string) *Exec {
	if x == nil || x.s == nil {
		panicAt(op, fault.Invalid, "the Exec is nil or a zero value; use one that Open, or a method of another Exec, returned")
	}
	return x
}

// Usable is Made, and also panics if x or its device was closed.
func Usable(x *Exec, op string) *Exec {
	Made(x, op).usable(op)
	return x
}

// MadeTensor is Made for tensors.
func MadeTensor(t *Tensor, op string) *Tensor {
	if t == nil || t.st == nil {
		panicAt(op, fault.Invalid, "the tensor is nil or a zero value; use one that an operation returned")
	}
	return t
}

// Given panics with an error of op if t, its operand i, is nil, a zero value or closed.
func Given(op string, i int, t *Tensor) {
	if t == nil || t.st == nil || t.closed.Load() {
		notGiven(op, i, t)
	}
}

// NoFunction panics with an error of op, whose argument called name is nil.
func NoFunction(op, name string) {
	panicAt(op, fault.Invalid, "the function %s is nil; give it one", name)
}

func notGiven(op string, i int, t *Tensor) {
	switch {
	case t == nil:
		panicAt(op, fault.Invalid, operandNil, i)
	case t.st == nil:
		panicAt(op, fault.Invalid, operandZero, i)
	}
	panicAt(op, fault.Closed, "the operand %s", t.whyClosed())
}

// open panics with an error of op, a method of t that needs no session, if t was closed.
func (t *Tensor) open(op string) {
	if t.closed.Load() {
		panicAt(op, fault.Closed, "the tensor %s", t.whyClosed())
	}
}

// whyClosed describes t, which was closed, and says what may help. A scope that closes a tensor too early may be another goroutine's.
func (t *Tensor) whyClosed() string {
	if t.closed.withScope() {
		return describe(t) + " was closed at the end of its scope; keep it with Keep or, if another goroutine opened the scope, give " +
			"each goroutine its own Exec with Fork"
	}
	return describe(t) + " was closed; close it, or the module that has it, after the last use of it"
}

// Located returns err, an error of the face's method op, with the operation and the caller's line filled in where they are missing, also in
// errors that it joins.
func Located(op string, err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all := slices.Clone(joined.Unwrap())
		if errors.Join(all...).Error() != err.Error() { // it has a text of its own
			return err
		}
		for i := range all {
			all[i] = Located(op, all[i])
		}
		return errors.Join(all...)
	}
	e, ok := err.(*fault.Error)
	if !ok || e.Op != "" && e.Line > 0 {
		return err
	}
	c := *e
	if c.Op == "" {
		c.Op = op
	}
	if c.Line == 0 {
		c.File, c.Line = caller()
	}
	return &c
}

// Refusal returns an error of op at the caller's line.
func Refusal(op string, kind fault.Kind, format string, args ...any) *fault.Error {
	e := infer.Refusal(kind, format, args...)
	e.Op = op
	locate(e)
	return e
}

// panicAt panics with an error of a call that needs no session, or has not changed it.
func panicAt(op string, kind fault.Kind, format string, args ...any) {
	panic(Refusal(op, kind, format, args...))
}

// The messages for operands that are no usable tensors.
const (
	operandNil  = "operand %d is nil; give it a tensor"
	operandZero = "operand %d is a zero Tensor; use one that an operation returned"
)

// fail panics with an error of an operation that has no frame.
func (x *Exec) fail(op string, kind fault.Kind, operands []*Tensor, format string, args ...any) {
	e := infer.Refusal(kind, format, args...)
	e.Op = op
	if len(x.s.doing) > 0 {
		e.Op = x.s.doing[0]
	}
	for _, t := range operands {
		if t != nil {
			e.Operands = append(e.Operands, describe(t))
		}
	}
	locate(e)
	panic(e)
}

// refuse panics like fail with err, an error of the toolkit, unless it is nil.
func (x *Exec) refuse(op string, err error, operands ...*Tensor) {
	if err != nil {
		e := err.(*fault.Error)
		x.fail(op, e.Kind, operands, "%s", e.Msg)
	}
}

// refusal is fail for operations that return their errors: op cannot be done with t.
func (x *Exec) refusal(op string, t *Tensor, format string, args ...any) error {
	return Try(func() { x.fail(op, fault.Invalid, []*Tensor{t}, format, args...) })
}

// check panics with err as an error of op.
func (x *Exec) check(op string, err error) {
	if err == nil {
		return
	}
	var e *fault.Error
	if errors.As(err, &e) && e.Op != "" {
		panic(e)
	}
	n := fault.Wrap(fault.System, err, "the operation failed")
	if e != nil {
		c := *e
		n = &c
	}
	n.Op = op
	locate(n)
	reclaim(n, nil, nil)
	panic(n)
}

// mark is a state of the session that restore returns to.
type mark struct {
	scope        *scope
	depth, doing int
}

func (s *session) mark() mark { return mark{s.scope, s.depth, len(s.doing)} }

// restore closes the scopes opened since m, and undoes the calls that a panic interrupted. A torn session has nothing left to restore.
func (s *session) restore(m mark) {
	if s.torn() {
		return
	}
	if s.depth > m.depth {
		s.frames[m.depth].abandon()
	}
	s.popTo(m.scope)
	s.doing = s.doing[:m.doing]
}

// caller returns the line of the program's call that is under way.
func caller() (file string, line int) { return origin.Here() }

// locate gives e the line of the program's call that is under way, and the name of the face's function that it calls.
func locate(e *fault.Error) {
	name, file, line := origin.Call()
	if name != "" {
		e.Op = name
	}
	e.File, e.Line = file, line
}

// Check panics with err, unless it is nil, as an error of op, an operation of a package above the face.
func Check(op string, err error) { (*Exec)(nil).check(op, err) }
