// Package linalg is linear algebra beyond products of matrices, which are methods of an Exec. Its operations are like an Exec's: they
// record gradients, follow autocast and can be captured. It must not depend on modules.
package linalg

import (
	"tenon.dev"
	"tenon.dev/internal/core"
)

// Cross returns the cross products of the vectors of 3 elements along dimension dim, by default the last, of a and b, broadcast.
// The result has the type that both promote to, which must not be bool.
func Cross(x *tenon.Exec, a, b *tenon.Tensor, dim ...int) *tenon.Tensor {
	along := core.Int("Cross", "a dimension", dim, -1)
	c := enter(x, "Cross", a, b)
	defer core.Leave(c)
	return (*tenon.Tensor)(cross(c, (*core.Tensor)(a), (*core.Tensor)(b), along))
}

// CrossInto is [Cross] with its result in dst; see [tenon.Tensor] for what that may be.
func CrossInto(x *tenon.Exec, dst, a, b *tenon.Tensor, dim ...int) {
	along := core.Int("CrossInto", "a dimension", dim, -1)
	c := enter(x, "CrossInto", dst, a, b)
	defer core.Leave(c)
	core.Into(c, "CrossInto", (*core.Tensor)(dst), func(c *core.Exec) *core.Tensor {
		return cross(c, (*core.Tensor)(a), (*core.Tensor)(b), along)
	})
}

// VecDot returns the sums over dimension dim, by default the last, of the products of the conjugated elements of a and the elements of b,
// broadcast. Both have the same floating-point or complex type.
func VecDot(x *tenon.Exec, a, b *tenon.Tensor, dim ...int) *tenon.Tensor {
	along := core.Int("VecDot", "a dimension", dim, -1)
	c := enter(x, "VecDot", a, b)
	defer core.Leave(c)
	return (*tenon.Tensor)(vecDot(c, (*core.Tensor)(a), (*core.Tensor)(b), along))
}

// VecDotInto is [VecDot] with its result in dst; see [tenon.Tensor] for what that may be.
func VecDotInto(x *tenon.Exec, dst, a, b *tenon.Tensor, dim ...int) {
	along := core.Int("VecDotInto", "a dimension", dim, -1)
	c := enter(x, "VecDotInto", dst, a, b)
	defer core.Leave(c)
	core.Into(c, "VecDotInto", (*core.Tensor)(dst), func(c *core.Exec) *core.Tensor {
		return vecDot(c, (*core.Tensor)(a), (*core.Tensor)(b), along)
	})
}

// MultiDot returns the product of two or more matrices, in the order of products that takes the fewest multiplications. The first may be a
// vector, which is used as a row, and the last one also, as a column; the result then lacks that dimension.
func MultiDot(x *tenon.Exec, ts []*tenon.Tensor) *tenon.Tensor {
	c := enter(x, "MultiDot", ts...)
	defer core.Leave(c)
	return (*tenon.Tensor)(multiDot(c, coreList(ts)))
}

// MultiDotInto is [MultiDot] with its result in dst; see [tenon.Tensor] for what that may be.
func MultiDotInto(x *tenon.Exec, dst *tenon.Tensor, ts []*tenon.Tensor) {
	c := enter(x, "MultiDotInto", append([]*tenon.Tensor{dst}, ts...)...)
	defer core.Leave(c)
	core.Into(c, "MultiDotInto", (*core.Tensor)(dst), func(c *core.Exec) *core.Tensor { return multiDot(c, coreList(ts)) })
}

func coreList(ts []*tenon.Tensor) []*core.Tensor {
	list := make([]*core.Tensor, len(ts))
	for i, t := range ts {
		list[i] = (*core.Tensor)(t)
	}
	return list
}

// NuclearNorm returns the nuclear norm, the sum of the singular values, of the matrices in two dimensions of t; nil dims mean those of a
// matrix. It is computed in float64. For a complex tensor it is real.
func NuclearNorm(x *tenon.Exec, t *tenon.Tensor, dims []int, opts ...tenon.SumOpt) *tenon.Tensor {
	opt := core.One("NuclearNorm", opts)
	c := enter(x, "NuclearNorm", t)
	defer core.Leave(c)
	return (*tenon.Tensor)(nuclearNorm(c, (*core.Tensor)(t), dims, core.SumOpt(opt)))
}

// NuclearNormInto is [NuclearNorm] with its result in dst; see [tenon.Tensor] for what that may be.
func NuclearNormInto(x *tenon.Exec, dst, t *tenon.Tensor, dims []int, opts ...tenon.SumOpt) {
	opt := core.One("NuclearNormInto", opts)
	c := enter(x, "NuclearNormInto", dst, t)
	defer core.Leave(c)
	core.Into(c, "NuclearNormInto", (*core.Tensor)(dst), func(c *core.Exec) *core.Tensor {
		return nuclearNorm(c, (*core.Tensor)(t), dims, core.SumOpt(opt))
	})
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

// conjugate returns t itself if it is real.
func conjugate(x *core.Exec, t *core.Tensor) *core.Tensor {
	if t.DType().IsComplex() {
		return x.Conj(t)
	}
	return t
}
