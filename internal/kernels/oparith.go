package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Arithmetic. Integers wrap; of bools Add is or, Mul and.
var (
	// Copy stores its input; with outputs and inputs of different types it casts.
	Copy = unary("copy", func(_ *kernel.Builder, _ dtype.DType, x Num) Num { return x })
	// Fill stores scalar 0.
	Fill = point(PointOp{Name: "fill", Scalars: 1, Build: func(_ *kernel.Builder, _ dtype.DType, _, s []Num) []Num { return s[:1] }})
	// Add, Sub, Mul are in0 ∘ in1.
	Add = pairwise("add", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return a.Add(b) })
	Sub = pairwise("sub", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return a.Sub(b) })
	Mul = pairwise("mul", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return a.Mul(b) })
	// AddScaled is in0 + scalar*in1, rounded twice.
	AddScaled = point(PointOp{Name: "add_scaled", Ins: 2, Scalars: 1, Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		return []Num{in[0].Add(s[0].Mul(in[1]))}
	}})
	// Div is true division, of floats and complex numbers; integers truncate.
	Div = pairwise("div", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return a.Div(b) })
	Neg = unary("neg", func(_ *kernel.Builder, _ dtype.DType, x Num) Num { return x.Neg() })
	// Abs of a complex number has its real type as compute result, √(re²+im²).
	Reciprocal = unary("reciprocal", func(_ *kernel.Builder, _ dtype.DType, x Num) Num { return x.Reciprocal() })
	Square     = unary("square", func(_ *kernel.Builder, _ dtype.DType, x Num) Num { return x.Mul(x) })
	// ReLU is max(x, 0) with NaN passed on.
	ReLU = unary("relu", func(_ *kernel.Builder, _ dtype.DType, x Num) Num {
		return realNum(x.Re.Le(x.Re.Like(0)).Select(x.Re.Like(0), x.Re))
	})
)

// Comparisons. Outputs are bool before conversion; of complex numbers only Eq and Ne exist.
var (
	Eq = pairwise("eq", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(a.Eq(b)) })
	Ne = pairwise("ne", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(a.Eq(b).Not()) })
	Lt = pairwise("lt", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(less(a.Re, b.Re)) })
	Le = pairwise("le", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(lessEqual(a.Re, b.Re)) })
	Gt = pairwise("gt", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(less(b.Re, a.Re)) })
	Ge = pairwise("ge", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(lessEqual(b.Re, a.Re)) })
	// Where is in1 where in0 (bool) is true, else in2.
	Where = point(PointOp{Name: "where", Ins: 3, InTypes: []dtype.DType{dtype.Bool}, Build: func(_ *kernel.Builder, _ dtype.DType, in, _ []Num) []Num {
		return []Num{choose(in[0].Re, in[1], in[2])}
	}})
)

func less(a, b kernel.Value) kernel.Value {
	if a.Type() == dtype.Bool {
		return a.Not().And(b)
	}
	return a.Lt(b)
}

func lessEqual(a, b kernel.Value) kernel.Value {
	if a.Type() == dtype.Bool {
		return a.Not().Or(b)
	}
	return a.Le(b)
}
