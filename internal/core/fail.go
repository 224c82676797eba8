package core

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/origin"
)

// Try runs f and returns the *fault.Error with which an operation in it stopped, or nil. Any other panic is a bug and goes on.
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
			err = e
		}
	}()
	f()
	return nil
}

// fail panics with an error of the running operation. It first brings the session back to the state before the operation.
func (f *frame) fail(kind fault.Kind, format string, args ...any) {
	f.stop(infer.Refusal(kind, format, args...))
}

// check stops the operation if err is not nil.
func (f *frame) check(err error) {
	if err == nil {
		return
	}
	var e *fault.Error
	if !errors.As(err, &e) {
		e = fault.Wrap(fault.System, err, "the operation failed")
	} else if e.Op != "" {
		e = fault.Wrap(e.Kind, err, "the operation failed")
	} else {
		c := *e
		e = &c
	}
	f.stop(e)
}

// forResult adds to a lack of memory that it is the result t for which there is none.
func forResult(err error, t *Tensor) error {
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != fault.OutOfMemory {
		return err
	}
	c := *e
	c.Msg = fmt.Sprintf("the result %s does not fit: %s", describe(t), e.Msg)
	return &c
}

func (f *frame) stop(e *fault.Error) {
	s := f.x.s
	e.Op = f.row.Name
	if len(s.doing) > 0 {
		e.Op = s.doing[0]
	}
	locate(e)
	reclaim(e, f.row.flags&flagUser != 0)
	for i := 0; i < f.ins; i++ {
		if f.in[i] != nil {
			e.Operands = append(e.Operands, describe(f.in[i]))
		}
	}
	for _, t := range f.many {
		e.Operands = append(e.Operands, describe(t))
	}
	f.abandon()
	panic(e)
}

// Made returns x. It panics with an error of op if x is nil or did not come from a session.
func Made(x *Exec, op string) *Exec {
	if x == nil || x.s == nil {
		panicAt(op, fault.Invalid, "the Exec is nil or a zero value; use one that Open, or a method of another Exec, returned")
	}
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

// NoFunction panics with an error of op: its argument of that name is nil.
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
	panicAt(op, fault.Closed, operandClosed, describe(t))
}

// Located returns err, which the method op of the face returns, with the operation and the caller's line if it has neither.
func Located(op string, err error) error {
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

// Zero is 0 in an option of floating-point type, whose 0 stands for a default, be that 0 too or another number.
const Zero = math.SmallestNonzeroFloat64

// Or returns the option v, or def where it was left out. Every floating-point option goes through it, so that Zero is 0 in all of them.
func Or(v, def float64) float64 {
	switch v {
	case 0:
		return def
	case Zero:
		return 0
	}
	return v
}

// Only returns the options of the call op, which gives them once or not at all.
func Only[T any](op string, opts []T) (opt T, err error) {
	switch len(opts) {
	case 0:
		return opt, nil
	case 1:
		return opts[0], nil
	}
	_, name, _ := strings.Cut(fmt.Sprintf("%T", opt), ".")
	return opt, Refusal(op, fault.Invalid, "options are given %d times; give one %s", len(opts), name)
}

// One is Only for calls that panic.
func One[T any](op string, opts []T) T {
	opt, err := Only(op, opts)
	if err != nil {
		panic(err)
	}
	return opt
}

// panicAt panics with an error of a call that needs no session, or has changed nothing of it.
func panicAt(op string, kind fault.Kind, format string, args ...any) {
	panic(Refusal(op, kind, format, args...))
}

// What is said of operands that are no tensors.
const (
	operandNil    = "operand %d is nil; give it a tensor"
	operandZero   = "operand %d is a zero Tensor; use one that an operation returned"
	operandClosed = "the operand %s was closed; keep it with Keep, or use it within its scope"
)

// fail panics with an error of an operation that has no frame of its own.
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

// refuse is fail with an error of the toolkit, if err is one.
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
	reclaim(n, false)
	panic(n)
}

// abandon undoes a call that fails, and those that it made.
func (f *frame) abandon() {
	s := f.x.s
	for s.depth > 0 {
		g := s.frames[s.depth-1]
		g.undo()
		s.leave(g)
		if g == f {
			break
		}
	}
}

// undo ends the call's turn and frees its workspace, outputs and temporaries.
func (f *frame) undo() {
	f.release()
	// The device's own failure is already being reported.
	_ = f.endWork()
	if !f.again {
		f.drawn.takeBack()
	}
	if f.waits && f.x.s.change == nil {
		f.x.s.alone.reset()
	}
	for i := 0; i < f.outs && !f.again; i++ { // the handles of a call that was put off are the program's
		if t := f.out[i]; t != nil && f.to(i) == nil && t.scope == nil && t.st != nil {
			t.close()
		}
	}
	f.closeTemps()
}

// mark is a state of the session that it comes back to.
type mark struct {
	scope        *scope
	depth, doing int
}

func (s *session) mark() mark { return mark{s.scope, s.depth, len(s.doing)} }

// restore closes the scopes opened since m, and undoes the calls that a panic left in the middle. Of a torn session nothing is left to do.
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
