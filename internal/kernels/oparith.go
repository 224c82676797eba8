package kernels

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Arithmetic. Integers wrap; for bools Add is OR, Mul is AND, Sub is exclusive OR.
var (
	// Copy stores its input; with different types of input and output it casts.
	Copy = unary("copy", func(_ *kernel.Builder, _ dtype.DType, x Num) Num { return x })
	// Fill stores scalar 0.
	Fill = point(PointOp{Name: "fill", Scalars: 1, Build: func(_ *kernel.Builder, _ dtype.DType, _, s []Num) []Num { return s[:1] }})
	// Add, Sub, Mul are in0 ∘ in1.
	Add = pairwise("add", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return a.Add(b) })
	Sub = pairwise("sub", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return a.Sub(b) })
	Mul = pairwise("mul", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return a.Mul(b) })
	// AddScaled is in0 + scalar·in1; real floats round once.
	AddScaled = point(PointOp{Name: "add_scaled", Ins: 2, Scalars: 1, Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		return []Num{s[0].MulAdd(in[1], in[0])}
	}})
	// Div is true division of floats and complex numbers.
	Div = pairwise("div", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return a.Div(b) })
	// DivTrunc rounds the quotient toward zero, DivFloor down. An integer divided by 0 has all bits set.
	DivTrunc = pairwise("div_trunc", func(_ *kernel.Builder, t dtype.DType, a, b Num) Num {
		if q := a.Re.Div(b.Re); t.IsFloat() {
			return realNum(q.Trunc())
		} else {
			return realNum(q)
		}
	})
	// DivTruncF16 and DivTruncBF16 first round the quotient to a half.
	DivTruncF16  = divTruncVia("div_trunc_f16", dtype.Float16)
	DivTruncBF16 = divTruncVia("div_trunc_bf16", dtype.BFloat16)
	// Cube is (in0·in0)·in0 and InvSquare is 1/(in0·in0), of real floats; the variants for halves first round the product to a half.
	Cube, CubeF16, CubeBF16                = cube("cube", dtype.Invalid), cube("cube_f16", dtype.Float16), cube("cube_bf16", dtype.BFloat16)
	InvSquare, InvSquareF16, InvSquareBF16 = invSquare("inv_square", dtype.Invalid), invSquare("inv_square_f16", dtype.Float16),
		invSquare("inv_square_bf16", dtype.BFloat16)

	Neg = unary("neg", func(_ *kernel.Builder, _ dtype.DType, x Num) Num { return x.Neg() })
	// Sign is -1, 0 or 1, and 0 for NaN.
	Sign = unary("sign", func(_ *kernel.Builder, _ dtype.DType, x Num) Num { return realNum(sign(x.Re)) })
	// Reciprocal is 1/x.
	Reciprocal = unary("reciprocal", func(_ *kernel.Builder, _ dtype.DType, x Num) Num { return x.Reciprocal() })
	Square     = unary("square", func(_ *kernel.Builder, _ dtype.DType, x Num) Num { return x.Mul(x) })
	// Floor, Ceil, Trunc and Round (half to even) leave integers unchanged.
	Floor = rounding("floor", kernel.Value.Floor)
	Ceil  = rounding("ceil", kernel.Value.Ceil)
	Trunc = rounding("trunc", kernel.Value.Trunc)
	Round = rounding("round", kernel.Value.Rint)
	// Frac is x - trunc(x).
	Frac = unary("frac", func(_ *kernel.Builder, _ dtype.DType, x Num) Num { return realNum(x.Re.Sub(x.Re.Trunc())) })
	// RoundDecimals rounds to scalar 1 decimals (Int64; negative for tens and so on). Scalar 0 is 10 to the power of its magnitude.
	RoundDecimals = point(PointOp{Name: "round_decimals", Ins: 1, Scalars: 2, ScalarTypes: []dtype.DType{dtype.Invalid, dtype.Int64},
		Build: func(k *kernel.Builder, t dtype.DType, in, s []Num) []Num {
			x, ten := in[0].Re, s[0].Re
			if !t.IsFloat() {
				return in
			}
			return []Num{realNum(s[1].Re.Lt(k.I64(0)).Select(x.Div(ten).Rint().Mul(ten), x.Mul(ten).Rint().Div(ten)))}
		}})
)

func divTruncVia(name string, half dtype.DType) *PointOp {
	return floats(name, 2, 0, false, func(_ *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		return convertValue(convertValue(in[0].Div(in[1]), half), in[0].Type()).Trunc()
	})
}

func cube(name string, half dtype.DType) *PointOp {
	return floats(name, 1, 0, false, func(_ *kernel.Builder, in, _ []kernel.Value) kernel.Value { return square(in[0], half).Mul(in[0]) })
}

func invSquare(name string, half dtype.DType) *PointOp {
	return floats(name, 1, 0, false, func(_ *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		q := square(in[0], half)
		return q.Like(1).Div(q)
	})
}

// square returns x·x, rounded to a half type if one is given.
func square(x kernel.Value, half dtype.DType) kernel.Value {
	q := x.Mul(x)
	if half != dtype.Invalid {
		q = convertValue(convertValue(q, half), x.Type())
	}
	return q
}

// MulAdd returns n*m + c; real floats round once.
func (n Num) MulAdd(m, c Num) Num {
	if !n.IsComplex() && n.Re.Type().IsFloat() {
		return Num{Re: n.Re.FMA(m.Re, c.Re)}
	}
	return n.Mul(m).Add(c)
}

func sign(x kernel.Value) kernel.Value {
	if x.Type() == dtype.Bool {
		return x
	}
	zero, one := x.Like(0), x.Like(1)
	positive := x.Gt(zero).Select(one, zero)
	if !x.Type().IsSigned() {
		return positive
	}
	return x.Lt(zero).Select(x.Like(-1), positive)
}

func rounding(name string, f func(kernel.Value) kernel.Value) *PointOp {
	return unary(name, func(_ *kernel.Builder, t dtype.DType, x Num) Num {
		if !t.IsFloat() {
			return x
		}
		return realNum(f(x.Re))
	})
}

// Extremes.
var (
	// Maximum and Minimum return NaN if either operand is NaN; FMax and FMin then return the other operand.
	Maximum = pairwise("maximum", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(maximum(a.Re, b.Re)) })
	Minimum = pairwise("minimum", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(minimum(a.Re, b.Re)) })
	FMax    = pairwise("fmax", func(_ *kernel.Builder, t dtype.DType, a, b Num) Num {
		if t == dtype.Bool {
			return a.Add(b)
		}
		return realNum(a.Re.Max(b.Re))
	})
	FMin = pairwise("fmin", func(_ *kernel.Builder, t dtype.DType, a, b Num) Num {
		if t == dtype.Bool {
			return a.Mul(b)
		}
		return realNum(a.Re.Min(b.Re))
	})
	// Clamp is in0 clamped to in1 and in2. If any of the three is NaN, so is the result. If in1 > in2, the result is in2.
	Clamp = point(PointOp{Name: "clamp", Ins: 3, Build: func(_ *kernel.Builder, _ dtype.DType, in, _ []Num) []Num {
		return []Num{realNum(minimum(maximum(in[0].Re, in[1].Re), in[2].Re))}
	}})
	// NanToNum replaces NaN, +∞ and -∞ by scalars 0, 1 and 2; integers are unchanged.
	NanToNum = point(PointOp{Name: "nan_to_num", Ins: 1, Scalars: 3, Build: func(_ *kernel.Builder, t dtype.DType, in, s []Num) []Num {
		mend := func(x kernel.Value) kernel.Value {
			y := x.Eq(x.Like(math.Inf(1))).Select(s[1].Re, x)
			y = x.Eq(x.Like(math.Inf(-1))).Select(s[2].Re, y)
			return x.IsNaN().Select(s[0].Re, y)
		}
		switch {
		case t.IsComplex():
			return []Num{{mend(in[0].Re), mend(in[0].Im)}}
		case t.IsFloat():
			return []Num{realNum(mend(in[0].Re))}
		}
		return in
	}})
)

// maximum returns the greater value, or a NaN if there is one.
func maximum(a, b kernel.Value) kernel.Value {
	switch {
	case a.Type() == dtype.Bool:
		return a.Or(b)
	case !a.Type().IsFloat():
		return a.Max(b)
	case a.Type() == dtype.Float32:
		return a.Maximum(b)
	}
	return a.IsNaN().Select(a, b.IsNaN().Select(b, a.Max(b)))
}

// minimum returns the lesser value, or a NaN if there is one.
func minimum(a, b kernel.Value) kernel.Value {
	switch {
	case a.Type() == dtype.Bool:
		return a.And(b)
	case !a.Type().IsFloat():
		return a.Min(b)
	case a.Type() == dtype.Float32:
		return a.Minimum(b)
	}
	return a.IsNaN().Select(a, b.IsNaN().Select(b, a.Min(b)))
}

// Fused multiply and add.
var (
	// AddCMul is in0 + scalar·in1·in2, AddCDiv in0 + scalar·in1/in2.
	AddCMul = point(PointOp{Name: "addcmul", Ins: 3, Scalars: 1, Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		return []Num{s[0].Mul(in[1]).MulAdd(in[2], in[0])}
	}})
	AddCDiv = point(PointOp{Name: "addcdiv", Ins: 3, Scalars: 1, Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		return []Num{s[0].MulAdd(in[1].Div(in[2]), in[0])}
	}})
	// Lerp is in0 + in2·(in1 - in0), computed from the nearer end.
	Lerp = point(PointOp{Name: "lerp", Ins: 3, Build: func(_ *kernel.Builder, _ dtype.DType, in, _ []Num) []Num {
		a, b, w := in[0], in[1], in[2]
		d := b.Sub(a)
		near := w.Re.Abs().Lt(w.Re.Like(0.5))
		if w.IsComplex() {
			near = w.Re.Mul(w.Re).Add(w.Im.Mul(w.Im)).Lt(w.Re.Like(0.25))
		}
		return []Num{choose(near, w.MulAdd(d, a), d.Neg().MulAdd(w.like(1).Sub(w), b))}
	}})
)
