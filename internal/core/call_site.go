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
	Whence
	row      *row
	blame    *blame
	operands []Operand
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
		f.dl.Origin = f.x.m.stream.Launching(f.row.id, fn, f.site)
	}
}

// Whence says where a call comes from: the operation that the program called, and its line. It is zero if that is not known.
type Whence struct {
	Op, File string
	Line     int
	// trail is the stack of the call, or nil.
	trail rt.Trail
}

// String returns the line.
func (w *Whence) String() string { return fmt.Sprintf("%s:%d", w.File, w.Line) }

// Whence returns where the call comes from.
func (f *frame) Whence() Whence {
	w := f.line()
	w.trail = rt.Here()
	return w
}

// line is Whence without the stack.
func (f *frame) line() Whence {
	w := Whence{Op: f.row.Name}
	if doing := f.x.s.doing; len(doing) > 0 {
		w.Op = doing[0]
	}
	var name string
	if name, w.File, w.Line = origin.Call(); name != "" {
		w.Op = name
	}
	return w
}

// telling is what errors say of a call.
type telling struct {
	// from is where a deferred call comes from, or nil.
	from *Whence
	// blame is for a call that an operation makes with operands of its own making, or nil.
	blame *blame
}

// blame has the operands that the program gave, and says what a failed assertion is about, as unmet does.
type blame struct {
	operands []Operand
	unmet    string
}

// blaming returns a blame of ts.
func blaming(unmet string, ts ...*Tensor) *blame {
	b := &blame{unmet: unmet}
	for _, t := range ts {
		if t != nil {
			b.operands = append(b.operands, Operand{dt: t.dt, form: t.form})
		}
	}
	return b
}

// told returns the operands that errors name.
func (f *frame) told() []Operand {
	switch {
	case f.blame != nil:
		return f.blame.operands
	case f.row == rowFused:
		return f.x.s.putOff.told()
	}
	list := make([]Operand, 0, f.ins+len(f.many))
	for _, ts := range [][]*Tensor{f.in[:f.ins], f.many} {
		for _, t := range ts {
			if t != nil {
				list = append(list, Operand{dt: t.dt, form: t.form})
			}
		}
	}
	return list
}

func (f *frame) site() rt.Origin {
	s := &site{row: f.row, blame: f.blame, operands: f.told(), stream: f.x.m.stream, seq: f.seq, in: f.x.recording().rt()}
	if f.from != nil {
		s.Whence = *f.from
	} else {
		s.Whence = f.line()
	}
	return s
}

// Failed returns the error of the call after the failed assertion d.
func (s *site) Failed(d *driver.Error) *fault.Error {
	e := fault.New(fault.Invalid, "%s", claimed(s.Op, s.row, s.blame, d))
	e.Cause = d.Code // "device-side assert triggered", which test_index_out_of_bounds_exception_cuda looks for
	e.Op, e.File, e.Line = s.Op, s.File, s.Line
	e.Operands = described(s.operands)
	return e
}

// described describes operands for an error.
func described(ops []Operand) (texts []string) {
	for _, o := range ops {
		texts = append(texts, describe(&Tensor{dt: o.dt, form: o.form}))
	}
	return texts
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
	ofPlace   = "in the index of dimension %d; give numbers from -%d to %d"
	ofTarget  = "in the operand target; give classes from 0 to their count less 1, or IgnoreIndex"
)

// claimed is the message of a failed assertion in a kernel that r launched for op. r and b may be nil.
func claimed(op string, r *row, b *blame, d *driver.Error) string {
	more := unmet[op]
	switch {
	case b != nil && b.unmet != "":
		more = b.unmet
	case more == "" && r != nil: // an operation above the face, or one that is composed of others
		more = unmet[r.Name]
	}
	switch {
	case r != nil && r.flags&flagUser != 0 || d.Said == "":
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
func reclaim(e *fault.Error, r *row, b *blame) {
	if d, ok := e.Cause.(*driver.Error); ok && d.Code == driver.Assert && e.Kind == fault.Invalid {
		e.Msg, e.Cause = claimed(e.Op, r, b, d), nil
	}
}
