package core

import (
	"fmt"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// The steps of optimizers and the scaling of gradients, for package optim. They change lists of tensors in place, with one launch for every
// 32 tensors, and record nothing. All numbers that change from step to step are in device memory: a step does not wait for the device, and
// can be captured.

// StepOp is the step of one kind of optimizer.
type StepOp = kernels.StepOp

// All steps; package kernels says which inputs and numbers each takes.
var (
	SGD, SGDMomentum, SGDNesterov            = kernels.SGD, kernels.SGDMomentum, kernels.SGDNesterov
	Adam, AdamAMSGrad                        = kernels.Adam, kernels.AdamAMSGrad
	AdamW, AdamWAMSGrad                      = kernels.AdamW, kernels.AdamWAMS
	NAdam, NAdamW, RAdam, RAdamW             = kernels.NAdam, kernels.NAdamW, kernels.RAdam, kernels.RAdamW
	Adamax, Adagrad, Adadelta, Rprop, ASGD   = kernels.Adamax, kernels.Adagrad, kernels.Adadelta, kernels.Rprop, kernels.ASGD
	RMSprop, RMSpropCentered                 = kernels.RMSprop, kernels.RMSpropCentered
	RMSpropMomentum, RMSpropCenteredMomentum = kernels.RMSpropMomentum, kernels.RMSpropCenteredMomentum
)

// StepRow is how many float64 an optimizer's row has for each parameter: its state, beginning with the number of steps taken, and after
// that the scalars of the step under way.
const StepRow = kernels.RowLen

var rowForeach, rowAdvance, rowUpdateScale *row

func init() {
	rowForeach = define(row{Name: "Foreach", takes: "tensors…^;;options ->", infer: func(*frame) {}, run: runForeach, alters: alterForeach,
		narrows: gradientsOf, scaling: scalingOf, takeFactor: takeFactor})
	rowAdvance = define(row{Name: "Advance", takes: "tensors…^; rate second third fourth; options ->", infer: func(*frame) {},
		run: runAdvance, alters: func(f *frame) { f.alter(f.many[0]) }})
	rowUpdateScale = define(row{Name: "UpdateScale", takes: "tensors…^;;options ->", infer: func(*frame) {}, run: runUpdateScale})
}

// foreach is a call of rowForeach: the frame's many holds n first operands, then n second ones, and so on, then the rows and, for an op
// that raises a flag, the flag. If scaled is true, the last is a row with the factor of the gradients.
type foreach struct {
	op     *kernels.PointOp
	lists  int
	scaled bool
	// which holds the row of each tensor.
	which *intList
}

// gradientsOf returns the gradients of a step, which the kernel only reads, and converts.
func gradientsOf(c *deferred) (s fuse.Span) {
	if f := c.opt.(foreach); f.lists > 1 {
		n := len(f.which.ints())
		s = fuse.Span{From: n, To: 2 * n}
	}
	return s
}

// scalingOf: a step can scale its gradients itself, with the bits of Scale, which takes only float32.
func scalingOf(c *deferred) (scales bool, scaled fuse.Span) {
	return c.opt.(foreach).op == kernels.Scale, gradientsOf(c)
}

// takeFactor makes c a step that scales its gradients.
func takeFactor(c, from *deferred) {
	a, f := *c.attrs, c.opt.(foreach)
	f.scaled = true
	a.opt = f
	c.attrs, c.many = &a, append(c.many, from.many[len(from.many)-1])
}

func runForeach(f *frame) error {
	c := f.opt.(foreach)
	which := c.which.ints()
	n := len(which)
	l := &f.x.s.lists
	l.fill(f.many, n, c.lists, c.op)
	rest := f.many[n*c.lists:]
	rows := f.x.s.rowsOf(operand(rest[0]).Ptr, c.which)
	if c.op.Raise != nil {
		rows.Flag = operand(rest[1]).Ptr
	}
	if c.scaled {
		rows.Factor = operand(rest[len(rest)-1]).Ptr
	}
	return kernels.MultiTensorRun(f, c.op, f.many[0].dt, rows, l.sizes, l.outs, l.ins)
}

func alterForeach(f *frame) {
	c := f.opt.(foreach)
	n := len(c.which.ints())
	for j := range c.lists {
		if stepWrites(c.op, j) {
			f.altered = append(f.altered, f.many[j*n:(j+1)*n]...)
		}
	}
	if c.op.Raise != nil {
		f.alter(f.many[n*c.lists+1])
	}
}

// foreachOperands are the operands that runForeach passes to the kernels.
type foreachOperands struct {
	outs, ins []kernels.Column
	sizes     []int
	ptrs      []uint64
	types     []dtype.DType
}

// fill makes o the operands of op over lists of n tensors each, which follow one another in many. The tensors have no gaps, whatever the
// order of their dimensions.
func (o *foreachOperands) fill(many []*Tensor, n, lists int, op *kernels.PointOp) {
	o.outs, o.ins, o.sizes, o.types = o.outs[:0], o.ins[:0], o.sizes[:0], o.types[:0]
	o.ptrs = slices.Grow(o.ptrs[:0], n*lists)
	for _, t := range many[:n] {
		o.sizes = append(o.sizes, t.Numel())
	}
	for j := range lists {
		list, from, first := many[j*n:(j+1)*n], len(o.ptrs), len(o.types)
		alike := true
		for _, t := range list {
			o.ptrs = append(o.ptrs, t.ptr())
			alike = alike && t.dt == list[0].dt
		}
		if !alike {
			for _, t := range list {
				o.types = append(o.types, t.dt)
			}
		} else if n > 0 {
			o.types = append(o.types, list[0].dt)
		}
		c := kernels.Column{Ptrs: o.ptrs[from:], Types: o.types[first:]}
		o.ins = append(o.ins, c)
		if stepWrites(op, j) {
			o.outs = append(o.outs, c)
		}
	}
}

// rowsOf returns the rows that which selects at ptr, in the form of package kernels. They are valid until the next call.
func (s *session) rowsOf(ptr uint64, which *intList) kernels.Rows {
	s.which = s.which[:0]
	for _, v := range which.ints() {
		s.which = append(s.which, int32(v))
	}
	return kernels.Rows{Ptr: ptr, Which: s.which}
}

// listOf32 returns the list of those numbers.
func (s *session) listOf32(n []int32) *intList {
	s.ints = s.ints[:0]
	for _, v := range n {
		s.ints = append(s.ints, int(v))
	}
	return s.made.list(s.ints)
}

// advance is a call of rowAdvance: the frame's many holds the rows and, if rate and found are true, the learning rate and the flag to skip.
// The first of the optimizer's numbers, which schedules change, are values of the call; in numbers they are zeros.
type advance struct {
	op          *kernels.StepOp
	numbers     numberList
	which       *intList
	rate, found bool
}

func runAdvance(f *frame) error {
	c := f.opt.(advance)
	rows, rest := f.many[0], f.many[1:]
	var lr, found kernels.Operand
	if c.rate {
		lr, rest = operand(rest[0]), rest[1:]
	}
	if c.found {
		found = operand(rest[0])
	}
	numbers := c.numbers.floats(f.x.s.floats[:0])
	for i := range numbers[:min(len(numbers), len(f.scalar))] {
		numbers[i] = f.scalar[i].F
	}
	return kernels.Advance(f, c.op, numbers, f.x.s.rowsOf(operand(rows).Ptr, c.which), lr, found)
}

// Step is a step of an optimizer.
type Step struct {
	Op *StepOp
	// Numbers are the optimizer's settings.
	Numbers []float64
	// Rows [parameters, StepRow] float64 are the rows of all parameters, zeros before the first step, and Which selects those of this step.
	Rows  *Tensor
	Which []int32
	// LR, a float tensor of one element, replaces the first of the numbers; the step is skipped if Found, a float32 tensor of one element,
	// is not 0. Either may be nil.
	LR, Found *Tensor
	// Lists are parameters, gradients and state: tensors at the same index have one shape, and tensors of the same list one type.
	Lists [][]*Tensor
}

// TakeStep takes the step s of the optimizer called op, completely or not at all.
func TakeStep(x *Exec, op string, s *Step) {
	if len(s.Which) == 0 {
		return
	}
	Enter(x, op)
	defer Leave(x)
	defer x.s.restore(x.s.mark())
	x.s.doing = append(x.s.doing, op)
	x = x.noGrad()
	x.together(op, func(x *Exec) {
		which := x.s.listOf32(s.Which)
		x.advance(s, which)
		x.foreach(foreach{op: s.Op.PointOp, which: which}, s.Lists, s.Rows, nil)
	})
}

// zeros returns a list of n zeros.
func (s *session) zeros(n int) *intList {
	s.ints = append(s.ints[:0], make([]int, n)...)
	return s.made.list(s.ints)
}

// stepWrites reports whether input j of op is an output too: all but the gradient are, if op has that many outputs.
func stepWrites(op *kernels.PointOp, j int) bool { return j == 0 || 2 <= j && j <= op.Outs }

func (x *Exec) advance(s *Step, which *intList) {
	f := x.op(rowAdvance)
	f.many = append(f.many, s.Rows)
	for _, t := range []*Tensor{s.LR, s.Found} {
		if t != nil {
			f.many = append(f.many, t)
		}
	}
	numbers := append(x.s.floats[:0], s.Numbers...)
	for i, v := range numbers[:min(len(numbers), len(f.scalar))] {
		if numbers[i] = 0; i > 0 || s.LR == nil { // nobody reads the first one if there is a tensor for it
			f.scalar[i] = kernels.FloatScalar(v)
		}
	}
	f.opt = keptParam(&x.s.made.advance, advance{s.Op, x.s.made.numbers(numbers), which, s.LR != nil, s.Found != nil})
	f.call()
	x.s.leave(f)
}

// foreach runs c over the lists. If tensors at one index have gaps or different layouts, it runs over copies without, in a Together.
func (x *Exec) foreach(c foreach, lists [][]*Tensor, rows, flag *Tensor) {
	f := x.op(rowForeach)
	var gaps []int
	for i, p := range lists[0] {
		same := p.contiguous || infer.Dense(p.shape, p.stride)
		for j, l := range lists {
			if l[i].form == p.form {
				continue
			}
			if !infer.Same(l[i].shape, p.shape) {
				f.fail(fault.Invalid, "%s: list %d has a tensor of shape %v where the parameter has shape %v", c.op.Name, j,
					l[i].shape, p.shape)
			}
			same = same && sameLayout(p.shape, l[i].stride, p.stride)
		}
		if !same {
			gaps = append(gaps, i)
		}
	}
	if gaps == nil {
		f.foreach(c, lists, rows, flag)
		return
	}
	x.s.leave(f)
	x.together(rowForeach.Name, func(x *Exec) {
		x.scoped(func(x *Exec) {
			copies := make([][]*Tensor, len(lists))
			for j, l := range lists {
				copies[j] = slices.Clone(l)
				for _, i := range gaps {
					copies[j][i] = x.Empty(l[i].shape, l[i].dt)
					x.CopyInto(copies[j][i], l[i])
				}
			}
			x.op(rowForeach).foreach(c, copies, rows, flag)
			for j := range lists {
				if !stepWrites(c.op, j) {
					continue
				}
				for _, i := range gaps {
					x.CopyInto(lists[j][i], copies[j][i])
				}
			}
		})
	})
}

func (f *frame) foreach(c foreach, lists [][]*Tensor, rows, flag *Tensor) {
	for _, l := range lists {
		f.many = append(f.many, l...)
	}
	f.many = append(f.many, rows)
	if flag != nil {
		f.many = append(f.many, flag)
	}
	c.lists = len(lists)
	f.opt = keptParam(&f.x.s.made.foreach, c)
	f.call()
	f.x.s.leave(f)
}

// sameLayout reports whether strides a and b place the elements of shape the same way.
func sameLayout(shape, a, b []int) bool {
	for d, n := range shape {
		if n > 1 && a[d] != b[d] {
			return false
		}
	}
	return true
}

// ScaleRow returns the state of a loss scale that has not changed for that many steps, for a float64 tensor.
func ScaleRow(scale float32, steps int) []float64 {
	row := kernels.ScaleRow(scale, steps)
	return row[:]
}

// Unscale divides gradients by the scale of row, in place, and sets found, a float32, to 1 if one is infinite or NaN.
func Unscale(x *Exec, grads []*Tensor, row, found *Tensor) {
	if len(grads) == 0 {
		return
	}
	Enter(x, "Unscale")
	defer Leave(x)
	x = x.noGrad()
	x.foreach(foreach{op: kernels.Unscale, which: x.s.zeros(len(grads))}, [][]*Tensor{grads}, row, found)
}

// ScaleAll multiplies tensors by factor, of one element, in place, all or none of them. float32 tensors take one launch for every 32.
func ScaleAll(x *Exec, op string, ts []*Tensor, factor *Tensor) {
	Enter(x, op)
	defer Leave(x)
	x.noGrad().scoped(func(x *Exec) {
		if !scalesTogether(ts, factor) {
			x.named(op, func(x *Exec) {
				for _, t := range ts {
					x.MulInto(t, t, factor)
				}
			})
			return
		}
		row := x.Zeros([]int{StepRow}, dtype.Float64)
		x.CopyInto(x.Narrow(row, 0, kernels.RowFactor, 1), factor)
		x.named(op, func(x *Exec) {
			x.foreach(foreach{op: kernels.Scale, which: x.s.zeros(len(ts))}, [][]*Tensor{ts}, row, nil)
		})
	})
}

// scalesTogether reports whether one kernel can multiply the tensors by factor: they are float32 on its device, and no two share memory.
func scalesTogether(ts []*Tensor, factor *Tensor) bool {
	seen := make(map[*storage]bool, len(ts))
	for _, t := range append(ts[:len(ts):len(ts)], factor) {
		if t.dt != dtype.Float32 || t.st.dev != factor.st.dev || seen[t.st] {
			return false
		}
		seen[t.st] = true
	}
	return len(ts) > 2
}

// updateScale is a call of rowUpdateScale: the frame's many holds row, scale and flags.
type updateScale struct {
	growth, backoff floatBits
	interval        int
}

func runUpdateScale(f *frame) error {
	c := f.opt.(updateScale)
	var flags []uint64
	for _, t := range f.many[2:] {
		flags = append(flags, operand(t).Ptr)
	}
	return kernels.UpdateScale(f, operand(f.many[0]), operand(f.many[1]), flags, c.growth.value(), c.backoff.value(), c.interval)
}

// UpdateScale ends a step of scaled losses: it updates row and scale, a float32, from the flags, and clears these.
func UpdateScale(x *Exec, row, scale *Tensor, found []*Tensor, growth, backoff float64, interval int) {
	Enter(x, "UpdateScale")
	defer Leave(x)
	f := x.noGrad().op(rowUpdateScale)
	f.many = append(append(f.many, row, scale), found...)
	f.opt = updateScale{bitsOf(growth), bitsOf(backoff), interval}
	f.call()
	f.x.s.leave(f)
}

func (foreach) param() {}

func (advance) param() {}

func (a advance) printed() string {
	return fmt.Sprintf("advance{op:%s numbers:%v which:%v rate:%v found:%v}", a.op.Name, a.numbers.floats(nil), a.which.ints(), a.rate,
		a.found)
}

func (updateScale) param() {}
