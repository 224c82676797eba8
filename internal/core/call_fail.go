package core

import (
	"errors"

	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// fail panics with an error of the running operation. It first restores the session to the state before the operation.
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
		c.File, c.Line = "", 0
		e = &c
	}
	f.stop(e)
}

// stop is fail with e, which keeps the line that it has.
func (f *frame) stop(e *fault.Error) {
	s := f.x.s
	e.Op = f.row.Name
	if len(s.doing) > 0 {
		e.Op = s.doing[0]
	}
	file, line := e.File, e.Line
	if w := f.from; w != nil {
		e.Op, e.File, e.Line = w.Op, w.File, w.Line
	} else {
		locate(e)
	}
	if line > 0 {
		e.File, e.Line = file, line
	}
	reclaim(e, f.row, f.blame)
	e.Operands = described(f.told())
	f.abandon()
	panic(e)
}

// abandon undoes the failing call f and all calls that it made.
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
	for i := 0; i < f.outs && !f.again; i++ { // the program owns the handles of a deferred call
		if t := f.out[i]; t != nil && f.to(i) == nil && t.scope == nil && t.st != nil {
			t.close()
		}
	}
	f.closeTemps()
}
