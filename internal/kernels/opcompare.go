package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Comparisons. Results are bool before conversion; complex numbers only have Eq and Ne.
var (
	Eq = pairwise("eq", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(a.Eq(b)) })
	Ne = pairwise("ne", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(a.Eq(b).Not()) })
	Lt = pairwise("lt", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(less(a.Re, b.Re)) })
	Le = pairwise("le", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(lessEqual(a.Re, b.Re)) })
	Gt = pairwise("gt", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(less(b.Re, a.Re)) })
	Ge = pairwise("ge", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(lessEqual(b.Re, a.Re)) })
	// IsNaN, IsInf and IsFinite check both parts of a complex number.
	IsNaN = unary("isnan", func(_ *kernel.Builder, _ dtype.DType, x Num) Num { return realNum(x.IsNaN()) })
	IsInf = unary("isinf", func(k *kernel.Builder, t dtype.DType, x Num) Num {
		switch {
		case t.IsComplex():
			return realNum(isInf(x.Re).Or(isInf(x.Im)))
		case t.IsFloat():
			return realNum(isInf(x.Re))
		}
		return realNum(k.Bool(false))
	})
	IsFinite = unary("isfinite", func(k *kernel.Builder, t dtype.DType, x Num) Num {
		switch {
		case t.IsComplex():
			return realNum(isFinite(x.Re).And(isFinite(x.Im)))
		case t.IsFloat():
			return realNum(isFinite(x.Re))
		}
		return realNum(k.Bool(true))
	})
	// Where is in1 where in0 (bool) is true, otherwise in2. Masked fill is Where of the mask, a scalar and the input.
	Where = point(PointOp{Name: "where", Ins: 3, InTypes: []dtype.DType{dtype.Bool}, Build: func(_ *kernel.Builder, _ dtype.DType,
		in, _ []Num) []Num {
		return []Num{choose(in[0].Re, in[1], in[2])}
	}})
)

// isFinite reports whether the float v is neither infinite nor NaN.
func isFinite(v kernel.Value) kernel.Value {
	z := v.Sub(v)
	return z.Eq(z)
}

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

// Logic. The logical ops take any type as bool (not zero); the bitwise ones take integers and bool.
var (
	LogicalNot = point(PointOp{Name: "logical_not", Ins: 1, InTypes: []dtype.DType{dtype.Bool},
		Build: func(_ *kernel.Builder, _ dtype.DType, in, _ []Num) []Num { return []Num{realNum(in[0].Re.Not())} }})
	LogicalAnd = logical("logical_and", kernel.Value.And)
	LogicalOr  = logical("logical_or", kernel.Value.Or)
	LogicalXor = logical("logical_xor", kernel.Value.Xor)
	BitwiseNot = unary("bitwise_not", func(_ *kernel.Builder, _ dtype.DType, x Num) Num { return realNum(x.Re.Not()) })
	BitwiseAnd = pairwise("bitwise_and", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(a.Re.And(b.Re)) })
	BitwiseOr  = pairwise("bitwise_or", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(a.Re.Or(b.Re)) })
	BitwiseXor = pairwise("bitwise_xor", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(a.Re.Xor(b.Re)) })
	// LeftShift and RightShift by at least the width, or by a negative amount, give 0, except that RightShift of a signed type gives the
	// sign.
	LeftShift  = shift("lshift", kernel.Value.Shl)
	RightShift = shift("rshift", kernel.Value.Shr)
)

func logical(name string, f func(a, b kernel.Value) kernel.Value) *PointOp {
	return point(PointOp{Name: name, Ins: 2, InTypes: []dtype.DType{dtype.Bool, dtype.Bool},
		Build: func(_ *kernel.Builder, _ dtype.DType, in, _ []Num) []Num {
			return []Num{realNum(f(in[0].Re, in[1].Re))}
		}})
}

func shift(name string, f func(a, n kernel.Value) kernel.Value) *PointOp {
	return pairwise(name, func(_ *kernel.Builder, t dtype.DType, a, b Num) Num {
		n, most := b.Re, b.Re.Like(float64(8*t.Size()))
		inside := n.Lt(most)
		if t.IsSigned() {
			inside = inside.And(n.Ge(n.Like(0)))
		}
		return realNum(f(a.Re, inside.Select(n, most).Convert(dtype.Int32)))
	})
}
