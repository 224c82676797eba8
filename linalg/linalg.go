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
	return (*tenon.Tensor)(cross(on(x, "Cross", a, b), (*core.Tensor)(a), (*core.Tensor)(b), dim))
}

// VecDot returns the sums over dimension dim of the products of the elements of a, conjugated, and b, broadcast; PyTorch's default is -1.
func VecDot(x *tenon.Exec, a, b *tenon.Tensor, dim int) *tenon.Tensor {
	return (*tenon.Tensor)(vecDot(on(x, "VecDot", a, b), (*core.Tensor)(a), (*core.Tensor)(b), dim))
}

// MultiDot returns the product of two or more matrices, in the order of products that takes the fewest multiplications. The first may be a
// vector, which stands for a row, and the last one, which stands for a column; the result then lacks that dimension.
func MultiDot(x *tenon.Exec, ts []*tenon.Tensor) *tenon.Tensor {
	c := on(x, "MultiDot", ts...)
	m := make([]*core.Tensor, len(ts))
	for i, t := range ts {
		m[i] = (*core.Tensor)(t)
	}
	return (*tenon.Tensor)(multiDot(c, m))
}

// NuclearNorm returns the nuclear norm, the sum of the singular values, of the matrices in two dimensions of t; nil dims mean those of a
// matrix. It is computed in float64. That of a complex tensor is real.
func NuclearNorm(x *tenon.Exec, t *tenon.Tensor, dims []int, opt tenon.SumOpt) *tenon.Tensor {
	return (*tenon.Tensor)(nuclearNorm(on(x, "NuclearNorm", t), (*core.Tensor)(t), dims, core.SumOpt(opt)))
}

// on refuses an Exec or operand of op that is nil, a zero value or closed.
func on(x *tenon.Exec, op string, operands ...*tenon.Tensor) *core.Exec {
	c := core.Made((*core.Exec)(x), op)
	for i, t := range operands {
		core.Given(op, i, (*core.Tensor)(t))
	}
	return c
}

// conjugate returns t where it is real.
func conjugate(x *core.Exec, t *core.Tensor) *core.Tensor {
	if t.DType().IsComplex() {
		return x.Conj(t)
	}
	return t
}
