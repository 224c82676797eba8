package core

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

var rowProd *row

func init() {
	rowProd = define(withCast(typed(reduceRow("Prod", "prod", kernels.Prod, sumRule, in0, backProd)), castFloat32))
}

// backProd: the gradient of an element is the product of the others. Without zeros that is the product divided by the element. If the
// gradient must itself have a derivative, running products are used, because the quotient has none at zeros.
func backProd(b *back) {
	x, t := b.x, b.in(0)
	g := b.kept(b.grad(0))
	if x.GradEnabled() {
		b.set(0, x.Mul(g, x.conjugate(x.others(t, b.n.dims()))))
		return
	}
	zero := x.EqS(t, 0)
	zeros := x.Sum(zero, b.n.dims(), SumOpt{KeepDim: true})
	rest := x.Prod(x.pick(zero, nil, 1, t, 0), b.n.dims(), SumOpt{KeepDim: true})
	none := x.pick(x.EqS(zeros, 0), x.Div(rest, t), 0, nil, 0)
	one := x.pick(x.EqS(zeros, 1), rest, 0, nil, 0)
	b.set(0, x.Mul(g, x.conjugate(x.Where(zero, one, none))))
}

// others returns, for every element of t, the product of the other elements along dims (nil means all): the product of those before it
// times the product of those after it, in doubling steps.
func (x *Exec) others(t *Tensor, dims []int) *Tensor {
	n := len(t.shape)
	var kept, gone []int
	for i := range n {
		if len(dims) == 0 || slices.Contains(dims, i) || slices.Contains(dims, i-n) {
			gone = append(gone, i)
		} else {
			kept = append(kept, i)
		}
	}
	order := append(kept, gone...)
	moved := x.Permute(t, order...)
	size := 1
	for _, d := range gone {
		size *= t.shape[d]
	}
	line := x.Reshape(moved, infer.Numel(t.shape)/max(size, 1), size)
	before, after := x.shifted(line, 1), x.shifted(line, -1)
	for step := 1; step < size; step *= 2 {
		before = x.Mul(before, x.shifted(before, step))
		after = x.Mul(after, x.shifted(after, -step))
	}
	back := make([]int, n)
	for i, d := range order {
		back[d] = i
	}
	return x.Permute(x.Reshape(x.Mul(before, after), moved.shape...), back...)
}

// shifted returns the rows of t shifted by the given number of elements, with ones shifted in.
func (x *Exec) shifted(t *Tensor, by int) *Tensor {
	n := t.shape[1]
	k := min(max(by, -by), n)
	ones := x.Ones([]int{t.shape[0], k}, t.dt)
	if by > 0 {
		return x.Cat([]*Tensor{ones, x.Slice(t, 1, 0, n-k, 1)}, 1)
	}
	return x.Cat([]*Tensor{x.Slice(t, 1, k, n, 1), ones}, 1)
}

// Prod returns the product over dims; nil dims mean all.
//
//tenon:into
func (x *Exec) Prod(t *Tensor, dims []int, opt SumOpt) *Tensor {
	if opt.DType != dtype.Invalid {
		x = x.uncast()
	}
	f := x.reduceOp(rowProd, t, dims, opt.KeepDim)
	f.dt = opt.DType
	return f.call1()
}
