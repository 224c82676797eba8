package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

var rowAdd, rowSub, rowMul, rowDiv, rowNeg *row

func init() {
	rowAdd = define(row{Name: "Add", takes: "a b#", Torch: "add", wideNumbers: in0 | in1, wideHosts: in0 | in1, point: kernels.Add,
		rule: same, back: backAdd})
	rowSub = define(row{Name: "Sub", takes: "a# b#", Torch: "sub", wideNumbers: in0 | in1, wideHosts: in0 | in1, point: kernels.Sub,
		rule: differenceRule, back: backSub})
	rowMul = define(row{Name: "Mul", takes: "a b#", Torch: "mul", wideNumbers: in0 | in1, wideHosts: in0 | in1, point: kernels.Mul,
		rule: same, back: backMul, saves: in0 | in1, cross: in0 | in1})
	rowDiv = define(row{Name: "Div", takes: "a# b#", Torch: "div", wideNumbers: in1, wideHosts: in1, point: kernels.Div, rule: floating,
		back: backDiv, saves: in0 | in1, cross: in0})
	rowNeg = define(row{Name: "Neg", Torch: "neg", point: kernels.Neg, rule: numeric, back: func(b *back) { b.set(0, b.x.Neg(b.grad(0))) }})
}

// differenceRule is same, but refuses bool operands.
func differenceRule(f *frame) (compute, out dtype.DType) {
	bools, others := 0, 0
	for i := 0; i < f.ins; i++ {
		switch t := f.in[i]; {
		case t == nil:
			others++
		case t.dt == dtype.Bool:
			bools++
		default:
			others++
		}
	}
	switch {
	case bools > 0 && others > 0:
		f.fail(fault.Unsupported, "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a "+
			"mask, use LogicalNot instead")
	case bools > 0:
		f.fail(fault.Unsupported, "Subtraction, the `-` operator, with two bool tensors is not supported. Use LogicalXor instead")
	}
	return same(f)
}

func backAdd(b *back) {
	b.set(0, b.grad(0))
	b.set(1, b.grad(0))
}

func backSub(b *back) {
	b.set(0, b.grad(0))
	if b.need(1) {
		b.set(1, b.x.Neg(b.grad(0)))
	}
}

// scaled returns t times the scalar in place of input i of the forward call.
func (b *back) scaled(t *Tensor, i int) *Tensor { return b.x.MulS(t, b.n.hole[i].F) }

func backMul(b *back) {
	g := b.grad(0)
	for i := range 2 {
		if !b.need(i) {
			continue
		}
		if b.n.holes&(2>>i) != 0 {
			b.set(i, b.scaled(g, 1-i))
			continue
		}
		b.set(i, b.x.Mul(g, b.x.conjugate(b.in(1-i))))
	}
}

func backDiv(b *back) {
	g := b.grad(0)
	switch {
	case b.n.holes&2 != 0:
		b.set(0, b.x.DivS(g, b.n.hole[1].F))
		return
	case b.need(0):
		b.set(0, b.x.Div(g, b.x.conjugate(b.in(1))))
	}
	if b.need(1) {
		d := b.in(1)
		q := b.x.Div(b.term(0), d)
		b.set(1, b.x.Neg(b.x.Mul(g, b.x.conjugate(b.x.Div(q, d)))))
	}
}

// Add returns a + b, broadcast, in the promoted type.
func (x *Exec) Add(a, b *Tensor) *Tensor { return x.op(rowAdd, a, b).call1() }

// AddInto sets dst to a + b; dst may be a or b.
func (x *Exec) AddInto(dst, a, b *Tensor) { x.op(rowAdd, a, b).call1Into(dst) }

// AddS returns a + v.
func (x *Exec) AddS(a *Tensor, v float64) *Tensor { return x.withScalar(rowAdd, a, v).call1() }

// AddSInto sets dst to a + v; dst may be a.
func (x *Exec) AddSInto(dst, a *Tensor, v float64) { x.withScalar(rowAdd, a, v).call1Into(dst) }

// Sub returns a - b, broadcast, in the promoted type; not for bool.
func (x *Exec) Sub(a, b *Tensor) *Tensor { return x.op(rowSub, a, b).call1() }

// SubInto sets dst to a - b; dst may be a or b.
func (x *Exec) SubInto(dst, a, b *Tensor) { x.op(rowSub, a, b).call1Into(dst) }

// SubS returns a - v.
func (x *Exec) SubS(a *Tensor, v float64) *Tensor { return x.withScalar(rowSub, a, v).call1() }

// SubSInto sets dst to a - v; dst may be a.
func (x *Exec) SubSInto(dst, a *Tensor, v float64) { x.withScalar(rowSub, a, v).call1Into(dst) }

// Mul returns a * b, broadcast, in the promoted type.
func (x *Exec) Mul(a, b *Tensor) *Tensor { return x.op(rowMul, a, b).call1() }

// MulInto sets dst to a * b; dst may be a or b.
func (x *Exec) MulInto(dst, a, b *Tensor) { x.op(rowMul, a, b).call1Into(dst) }

// MulS returns a * v.
func (x *Exec) MulS(a *Tensor, v float64) *Tensor { return x.withScalar(rowMul, a, v).call1() }

// MulSInto sets dst to a * v; dst may be a.
func (x *Exec) MulSInto(dst, a *Tensor, v float64) { x.withScalar(rowMul, a, v).call1Into(dst) }

// Div returns a / b, broadcast; integers are divided as float32.
func (x *Exec) Div(a, b *Tensor) *Tensor { return x.op(rowDiv, a, b).call1() }

// DivInto sets dst to a / b; dst may be a or b.
func (x *Exec) DivInto(dst, a, b *Tensor) { x.op(rowDiv, a, b).call1Into(dst) }

// DivS returns a / v.
func (x *Exec) DivS(a *Tensor, v float64) *Tensor { return x.withScalar(rowDiv, a, v).call1() }

// DivSInto sets dst to a / v; dst may be a.
func (x *Exec) DivSInto(dst, a *Tensor, v float64) { x.withScalar(rowDiv, a, v).call1Into(dst) }

// Neg returns -t; not for bool.
//
//tenon:into
func (x *Exec) Neg(t *Tensor) *Tensor { return x.op(rowNeg, t).call1() }

// conjugate returns t itself if it is real.
func (x *Exec) conjugate(t *Tensor) *Tensor {
	if t.dt.IsComplex() {
		return x.Conj(t)
	}
	return t
}

// sumTo sums g over the dimensions that were broadcast from shape to g's.
func (x *Exec) sumTo(g *Tensor, shape []int) *Tensor {
	if infer.Same(g.shape, shape) {
		return g
	}
	lead := len(g.shape) - len(shape)
	var few [8]int
	dims := few[:0]
	for i := range g.shape {
		if i < lead || shape[i-lead] == 1 && g.shape[i] != 1 {
			dims = append(dims, i)
		}
	}
	sum := x.Sum(g, dims, SumOpt{KeepDim: len(dims) > lead})
	if infer.Same(sum.shape, shape) {
		return sum
	}
	return x.View(sum, shape...)
}
