package core

import (
	"fmt"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/origin"
	"tenon.dev/internal/rt"
)

// site is the call that a launch belongs to, kept by devices that survive a failed assertion. It holds no tensor.
type site struct {
	op       string
	user     bool // the kernel is the program's own
	operands []Operand
	file     string
	line     int
	stream   *rt.Stream
	seq      uint64
	in       *rt.Capture
}

// comesFrom notes in f.dl which call the launch of fn belongs to, if its device wants to know.
func (f *frame) comesFrom(fn rt.Func) {
	if f.dl.Origin != nil {
		f.dl.Origin = nil
	}
	if fn.Asserts {
		f.dl.Origin = f.x.m.stream.Device().Launching(f.row.id, fn, f.site)
	}
}

func (f *frame) site() rt.Origin {
	s := &site{op: f.row.Name, user: f.row.flags&flagUser != 0, operands: make([]Operand, 0, f.ins+len(f.many)),
		stream: f.x.m.stream, seq: f.seq, in: f.x.recording().rt()}
	if doing := f.x.s.doing; len(doing) > 0 {
		s.op = doing[0]
	}
	for _, list := range [][]*Tensor{f.in[:f.ins], f.many} {
		for _, t := range list {
			if t != nil {
				s.operands = append(s.operands, Operand{dt: t.dt, form: t.form})
			}
		}
	}
	var name string
	if name, s.file, s.line = origin.Call(); name != "" {
		s.op = name
	}
	return s
}

// Failed returns the error of the call after the failed assertion d.
func (s *site) Failed(d *driver.Error) *fault.Error {
	e := fault.New(fault.Invalid, "%s", claimed(s.op, s.user, d))
	e.Cause = d.Code // "device-side assert triggered", which test_index_out_of_bounds_exception_cuda looks for
	e.Op, e.File, e.Line = s.op, s.file, s.line
	for _, o := range s.operands {
		e.Operands = append(e.Operands, describe(&Tensor{dt: o.dt, form: o.form}))
	}
	return e
}

// Issued returns the stream and number of the operation that the launch belongs to, and its capture.
func (s *site) Issued() (st *rt.Stream, seq uint64, in *rt.Capture) { return s.stream, s.seq, s.in }

// unmet completes the message of a failed assertion by operation: it follows the kernel's text, which has the number, and says which
// operand was wrong and what to give.
var unmet = map[string]string{
	"Gather": ofIndex, "Scatter": ofIndex, "ScatterAdd": ofIndex, "ScatterAddInto": ofIndex, "ScatterInto": ofIndex, "ScatterS": ofIndex,
	"IndexSelect": ofIndex, "IndexCopy": ofIndex, "IndexCopyInto": ofIndex, "IndexAdd": ofIndex, "IndexAddInto": ofIndex,
	"IndexFill": ofWrapped, "IndexFillInto": ofWrapped, "IndexFillS": ofWrapped, "IndexFillSInto": ofWrapped,
	"Embedding":        ofIndex,
	"TakeAlongDim":     ofWrapped,
	"CrossEntropy":     ofTarget,
	"NLLLoss":          ofTarget,
	"MultiMarginLoss":  "in the operand target; give classes from 0 to their count less 1",
	"BCE":              "; give probabilities, as of Sigmoid, or logits to BCEWithLogits",
	"Bernoulli":        "in the operand p",
	"BernoulliInto":    "in the operand p",
	"Multinomial":      "in the operand p",
	"AssertAsync":      "in the operand t",
	"RepeatInterleave": "; give numbers that are not negative, and their sum or nothing as OutputSize",
	"NewCOO":           "in the operand indices; give numbers from 0 to size-1",
	"MaskedScatter":    "; give a longer source, or a mask that is true less often",
}

const (
	ofIndex   = "in the operand index; give numbers from 0 to size-1"
	ofWrapped = "in the operand index; give numbers from -size to size-1"
	ofTarget  = "in the operand target; give classes from 0 to their count less 1, or IgnoreIndex"
)

// claimed is the message of a failed assertion in a kernel of op.
func claimed(op string, user bool, d *driver.Error) string {
	switch more := unmet[op]; {
	case user || d.Said == "":
		return d.Detail
	case more == "":
		return d.Said
	case more[0] == ';':
		return d.Said + more
	default:
		return fmt.Sprint(d.Said, ", ", more)
	}
}

// reclaim gives e, if a failed assertion on an inline device caused it, the message of claimed.
func reclaim(e *fault.Error, user bool) {
	if d, ok := e.Cause.(*driver.Error); ok && d.Code == driver.Assert && e.Kind == fault.Invalid {
		e.Msg, e.Cause = claimed(e.Op, user, d), nil
	}
}
