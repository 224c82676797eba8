package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// transcendental registers a function of real numbers and, if cf is not nil, of complex ones.
func transcendental(name string, f func(k *kernel.Builder, x kernel.Value) kernel.Value, cf func(k *kernel.Builder, z Num) Num) *PointOp {
	return unaryHeavy(name, func(k *kernel.Builder, t dtype.DType, x Num) Num {
		if t.IsComplex() && cf != nil {
			return cf(k, x)
		}
		return realNum(f(k, x.Re))
	})
}

// short returns op with f in place of its function where the result is a half.
func short(op *PointOp, f func(k *kernel.Builder, x kernel.Value) kernel.Value) *PointOp {
	whole := op.Build
	op.Build = func(k *kernel.Builder, t dtype.DType, in, s []Num) []Num {
		if math.Short(t) {
			return []Num{realNum(f(k, in[0].Re))}
		}
		return whole(k, t, in, s)
	}
	return forHalves(op)
}

// Functions of floats and, where a complex form exists, of complex numbers.
var (
	// Abs of a complex number is its magnitude, a real number.
	Abs = unary("abs", func(k *kernel.Builder, t dtype.DType, x Num) Num {
		switch {
		case t.IsComplex():
			return realNum(math.Hypot(k, x.Re, x.Im))
		case t.IsSigned():
			return realNum(x.Re.Abs())
		}
		return x
	})
	// Angle is atan2 of the parts; for real numbers it is 0, π or NaN.
	Angle = unaryHeavy("angle", func(k *kernel.Builder, t dtype.DType, x Num) Num {
		if t.IsComplex() {
			return realNum(math.Atan2(k, x.Im, x.Re))
		}
		pi := x.Re.Lt(x.Re.Like(0)).Select(x.Re.Like(pi), x.Re.Like(0))
		return realNum(x.Re.IsNaN().Select(x.Re, pi))
	})
	// Sgn is x/|x|, and 0 for 0.
	Sgn = unary("sgn", func(k *kernel.Builder, t dtype.DType, x Num) Num {
		if !t.IsComplex() {
			return realNum(sign(x.Re))
		}
		m := math.Hypot(k, x.Re, x.Im)
		return choose(m.Eq(m.Like(0)), x.like(0), Num{x.Re.Div(m), x.Im.Div(m)})
	})
	Sqrt  = transcendental("sqrt", func(_ *kernel.Builder, x kernel.Value) kernel.Value { return x.Sqrt() }, complexSqrt)
	Rsqrt = transcendental("rsqrt", math.Rsqrt, func(k *kernel.Builder, z Num) Num { return complexSqrt(k, z).Reciprocal() })
	Exp   = short(transcendental("exp", math.Exp, complexExp), math.HalfExp)
	Exp2  = transcendental("exp2", math.Exp2, func(k *kernel.Builder, z Num) Num { return complexExp(k, z.scale(z.Re.Like(ln2))) })
	Expm1 = transcendental("expm1", math.Expm1, complexExpm1)
	Log   = transcendental("log", math.Log, complexLog)
	Log2  = transcendental("log2", math.Log2, func(k *kernel.Builder, z Num) Num { return complexLog(k, z).scale(z.Re.Like(1 / ln2)) })
	Log10 = transcendental("log10", math.Log10, func(k *kernel.Builder, z Num) Num { return complexLog(k, z).scale(z.Re.Like(1 / ln10)) })
	Log1p = transcendental("log1p", math.Log1p, complexLog1p)
	Sin   = transcendental("sin", math.Sin, complexSin)
	Cos   = transcendental("cos", math.Cos, complexCos)
	Tan   = transcendental("tan", math.Tan, func(k *kernel.Builder, z Num) Num { return complexTanh(k, z.timesI()).timesI().Neg() })
	Asin  = transcendental("asin", math.Asin, complexAsin)
	Acos  = transcendental("acos", math.Acos, complexAcos)
	Atan  = transcendental("atan", math.Atan, func(k *kernel.Builder, z Num) Num { return complexAtanh(k, z.timesI()).timesI().Neg() })
	Sinh  = transcendental("sinh", math.Sinh, func(k *kernel.Builder, z Num) Num { return complexSin(k, z.timesI()).timesI().Neg() })
	Cosh  = transcendental("cosh", math.Cosh, func(k *kernel.Builder, z Num) Num { return complexCos(k, z.timesI()) })
	Tanh  = transcendental("tanh", math.Tanh, complexTanh)
	Asinh = transcendental("asinh", math.Asinh, func(k *kernel.Builder, z Num) Num { return complexAsin(k, z.timesI()).timesI().Neg() })
	Acosh = transcendental("acosh", math.Acosh, complexAcosh)
	Atanh = transcendental("atanh", math.Atanh, complexAtanh)
	// Sigmoid is 1/(1+e^-x).
	Sigmoid = short(transcendental("sigmoid", math.Sigmoid, func(k *kernel.Builder, z Num) Num {
		return complexExp(k, z.Neg()).Add(z.like(1)).Reciprocal()
	}), math.HalfSigmoid)
	Erf    = transcendental("erf", math.Erf, nil)
	Erfc   = transcendental("erfc", math.Erfc, nil)
	Erfinv = transcendental("erfinv", math.Erfinv, nil)
	Atan2  = pairwiseHeavy("atan2", func(k *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(math.Atan2(k, a.Re, b.Re)) })
	Hypot  = pairwiseHeavy("hypot", func(k *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(math.Hypot(k, a.Re, b.Re)) })
	// LogAddExp is log(e^a + e^b); LogAddExp2 is the same in base 2.
	LogAddExp = pairwiseHeavy("logaddexp", func(k *kernel.Builder, _ dtype.DType, a, b Num) Num {
		return realNum(logAddExp(a.Re, b.Re, func(d kernel.Value) kernel.Value { return math.Log1p(k, math.Exp(k, d)) }))
	})
	LogAddExp2 = pairwiseHeavy("logaddexp2", func(k *kernel.Builder, _ dtype.DType, a, b Num) Num {
		return realNum(logAddExp(a.Re, b.Re, func(d kernel.Value) kernel.Value {
			return math.Log1p(k, math.Exp2(k, d)).Mul(d.Like(1 / ln2))
		}))
	})
)

const (
	pi   = 3.14159265358979323846264338327950288419716939937510582097494459
	ln2  = 0.693147180559945309417232121458176568075500134360255254120680009
	ln10 = 2.30258509299404568401799145468436420760110148862877297603332790
)

// logAddExp returns max + tail(-|a-b|); for equal infinities it returns the infinity.
func logAddExp(a, b kernel.Value, tail func(d kernel.Value) kernel.Value) kernel.Value {
	m := maximum(a, b)
	sum := m.Add(tail(a.Sub(b).Abs().Neg()))
	return isInf(a).And(a.Eq(b)).Select(a, sum)
}

// Powers and remainders.
var (
	// Pow is in0 to the power in1. Integers wrap; a negative power of an integer is 0 unless the base is 1 or -1.
	Pow = pairwiseHeavy("pow", func(k *kernel.Builder, t dtype.DType, a, b Num) Num {
		switch {
		case t.IsComplex():
			return complexPow(k, a, b)
		case t.IsFloat():
			return realNum(math.Pow(k, a.Re, b.Re))
		case t == dtype.Bool:
			return realNum(a.Re.Or(b.Re.Not()))
		}
		return realNum(intPow(k, a.Re, b.Re))
	})
	// Remainder has the sign of the divisor, Fmod that of the dividend.
	Remainder = pairwiseHeavy("remainder", func(k *kernel.Builder, t dtype.DType, a, b Num) Num {
		if t.IsFloat() {
			return realNum(math.Remainder(k, a.Re, b.Re))
		}
		r := a.Re.Rem(b.Re)
		if !t.IsSigned() {
			return realNum(r)
		}
		zero := r.Like(0)
		other := r.Ne(zero).And(less(r, zero).Xor(less(b.Re, zero)))
		return realNum(other.Select(r.Add(b.Re), r))
	})
	Fmod = pairwiseHeavy("fmod", func(k *kernel.Builder, t dtype.DType, a, b Num) Num {
		if t.IsFloat() {
			return realNum(math.Fmod(k, a.Re, b.Re))
		}
		return realNum(a.Re.Rem(b.Re))
	})
	// DivFloor rounds the quotient down. An integer divided by 0 has all bits set.
	DivFloor = pairwiseHeavy("div_floor", func(k *kernel.Builder, t dtype.DType, a, b Num) Num {
		if t.IsFloat() {
			return realNum(floorDivide(k, a.Re, b.Re))
		}
		q := a.Re.Div(b.Re)
		if !t.IsSigned() {
			return realNum(q)
		}
		zero := q.Like(0)
		r := a.Re.Rem(b.Re)
		down := r.Ne(zero).And(r.Lt(zero).Xor(b.Re.Lt(zero))).And(b.Re.Ne(zero))
		return realNum(down.Select(q.Sub(q.Like(1)), q))
	})
)

// floorDivide divides floats as Python does, based on the exact remainder, so that rounding never raises the quotient past an integer.
func floorDivide(k *kernel.Builder, a, b kernel.Value) kernel.Value {
	zero, one := a.Like(0), a.Like(1)
	m := math.Fmod(k, a, b)
	d := a.Sub(m).Div(b)
	d = m.Ne(zero).And(b.Lt(zero).Xor(m.Lt(zero))).Select(d.Sub(one), d)
	f := d.Floor()
	f = d.Sub(f).Gt(d.Like(0.5)).Select(f.Add(one), f)
	q := a.Div(b)
	f = d.Ne(zero).Select(f, copySign(zero, q))
	return b.Eq(zero).Select(q, f)
}

// intPow multiplies by repeated squares for the bits of b.
func intPow(k *kernel.Builder, a, b kernel.Value) kernel.Value {
	t := a.Type()
	one, zero := a.Like(1), a.Like(0)
	result, base, left := k.Var(one), k.Var(a), k.Var(b)
	k.Loop(func() {
		l := left.Get()
		k.If(lessEqual(l, zero), k.Break)
		p, x := result.Get(), base.Get()
		result.Set(l.And(one).Ne(zero).Select(p.Mul(x), p))
		base.Set(x.Mul(x))
		left.Set(l.Shr(k.I32(1)))
	})
	if !t.IsSigned() {
		return result.Get()
	}
	odd := b.And(one).Ne(zero)
	minus := a.Eq(a.Like(-1)).Select(odd.Select(a.Like(-1), one), zero)
	inverse := a.Eq(one).Select(one, minus)
	return b.Lt(zero).Select(inverse, result.Get())
}
