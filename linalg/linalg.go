// Package linalg is linear algebra beyond products of matrices, which are methods of an Exec. Its operations are like an Exec's: they
// record gradients, follow autocast and can be captured. It may not know what modules are made of it.
package linalg

import (
	"tenon.dev"
	"tenon.dev/internal/core"
)

// Cross returns the cross products of the vectors of 3 elements along dimension dim of a and b, broadcast; PyTorch's default is -1. It is
// in the type that both promote to, and not for bool.
func Cross(x *tenon.Exec, a, b *tenon.Tensor, dim int) *tenon.Tensor {
	c := enter(x, "Cross", a, b)
	defer core.Leave(c)
	return (*tenon.Tensor)(cross(c, (*core.Tensor)(a), (*core.Tensor)(b), dim))
}

// VecDot returns the sums over dimension dim of the products of the elements of a, conjugated, and b, broadcast; PyTorch's default is -1.
// Both have one type, a floating-point or complex one.
func VecDot(x *tenon.Exec, a, b *tenon.Tensor, dim int) *tenon.Tensor {
	c := enter(x, "VecDot", a, b)
	defer core.Leave(c)
	return (*tenon.Tensor)(vecDot(c, (*core.Tensor)(a), (*core.Tensor)(b), dim))
}

// MultiDot returns the product of two or more matrices, in the order of products that takes the fewest multiplications. The first may be a
// vector, which stands for a row, and the last one, which stands for a column; the result then lacks that dimension.
func MultiDot(x *tenon.Exec, ts []*tenon.Tensor) *tenon.Tensor {
	c := enter(x, "MultiDot", ts...)
	defer core.Leave(c)
	m := make([]*core.Tensor, len(ts))
	for i, t := range ts {
		m[i] = (*core.Tensor)(t)
	}
	return (*tenon.Tensor)(multiDot(c, m))
}

// NuclearNorm returns the nuclear norm, the sum of the singular values, of the matrices in two dimensions of t; nil dims mean those of a
// matrix. It is computed in float64. That of a complex tensor is real.
func NuclearNorm(x *tenon.Exec, t *tenon.Tensor, dims []int, opts ...tenon.SumOpt) *tenon.Tensor {
	opt := core.One("NuclearNorm", opts)
	c := enter(x, "NuclearNorm", t)
	defer core.Leave(c)
	return (*tenon.Tensor)(nuclearNorm(c, (*core.Tensor)(t), dims, core.SumOpt(opt)))
}

// enter refuses an Exec or operand of op that is nil, a zero value or closed, and enters the session.
func enter(x *tenon.Exec, op string, operands ...*tenon.Tensor) *core.Exec {
	c := core.Made((*core.Exec)(x), op)
	for i, t := range operands {
		core.Given(op, i, (*core.Tensor)(t))
	}
	core.Enter(c, op)
	return c
}

// conjugate returns t where it is real.
func conjugate(x *core.Exec, t *core.Tensor) *core.Tensor {
	if t.DType().IsComplex() {
		return x.Conj(t)
	}
	return t
}
