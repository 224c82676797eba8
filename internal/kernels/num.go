package kernels

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// like returns c as a Num of n's type.
func (n Num) like(c float64) Num {
	if n.IsComplex() {
		return Num{n.Re.Like(c), n.Im.Like(0)}
	}
	return Num{Re: n.Re.Like(c)}
}

// Add returns n + m; for bools it is OR.
func (n Num) Add(m Num) Num {
	switch {
	case n.IsComplex():
		return Num{n.Re.Add(m.Re), n.Im.Add(m.Im)}
	case n.Re.Type() == dtype.Bool:
		return Num{Re: n.Re.Or(m.Re)}
	}
	return Num{Re: n.Re.Add(m.Re)}
}

// Sub returns n - m; for bools it is exclusive OR.
func (n Num) Sub(m Num) Num {
	switch {
	case n.IsComplex():
		return Num{n.Re.Sub(m.Re), n.Im.Sub(m.Im)}
	case n.Re.Type() == dtype.Bool:
		return Num{Re: n.Re.Xor(m.Re)}
	}
	return Num{Re: n.Re.Sub(m.Re)}
}

// Mul returns n * m; for bools it is AND.
func (n Num) Mul(m Num) Num {
	switch {
	case n.IsComplex():
		return Num{n.Re.Mul(m.Re).Sub(n.Im.Mul(m.Im)), n.Re.Mul(m.Im).Add(n.Im.Mul(m.Re))}
	case n.Re.Type() == dtype.Bool:
		return Num{Re: n.Re.And(m.Re)}
	}
	return Num{Re: n.Re.Mul(m.Re)}
}

// Neg returns -n.
func (n Num) Neg() Num {
	if n.IsComplex() {
		return Num{n.Re.Neg(), n.Im.Neg()}
	}
	return Num{Re: n.Re.Neg()}
}

// Conj returns the complex conjugate; a real number is its own conjugate.
func (n Num) Conj() Num {
	if n.IsComplex() {
		return Num{n.Re, n.Im.Neg()}
	}
	return n
}

// timesI returns i*n for a complex n.
func (n Num) timesI() Num { return Num{n.Im.Neg(), n.Re} }

// scale returns n times the real c.
func (n Num) scale(c kernel.Value) Num {
	if n.IsComplex() {
		return Num{n.Re.Mul(c), n.Im.Mul(c)}
	}
	return Num{Re: n.Re.Mul(c)}
}

// Div returns n / m. Complex numbers are divided after R. L. Smith, "Algorithm 116: Complex division", CACM 5 (1962), which does not
// overflow unless the quotient does; division by 0 gives infinities and NaN in each part.
func (n Num) Div(m Num) Num {
	if !n.IsComplex() {
		return Num{Re: n.Re.Div(m.Re)}
	}
	flat := m.Re.Abs().Ge(m.Im.Abs())
	big, small := flat.Select(m.Re, m.Im), flat.Select(m.Im, m.Re)
	zero := flat.And(big.Eq(big.Like(0))) // if not flat, big is 0 only beside a NaN
	ratio := zero.Select(big.Like(0), small.Div(big))
	scale := big.Like(1).Div(big.Add(small.Mul(ratio)))
	scale = zero.Select(big.Like(1).Div(big.Abs()), scale)
	re := flat.Select(n.Re.Add(n.Im.Mul(ratio)), n.Re.Mul(ratio).Add(n.Im))
	im := flat.Select(n.Im.Sub(n.Re.Mul(ratio)), n.Im.Mul(ratio).Sub(n.Re))
	return Num{re.Mul(scale), im.Mul(scale)}
}

// Reciprocal returns 1 / n.
func (n Num) Reciprocal() Num { return n.like(1).Div(n) }

// Eq reports whether n == m.
func (n Num) Eq(m Num) kernel.Value {
	if n.IsComplex() {
		return n.Re.Eq(m.Re).And(n.Im.Eq(m.Im))
	}
	if n.Re.Type() == dtype.Bool {
		return n.Re.Xor(m.Re).Not()
	}
	return n.Re.Eq(m.Re)
}

// NonZero reports whether n is not zero; a NaN is not zero.
func (n Num) NonZero() kernel.Value { return n.Convert(dtype.Bool).Re }

// IsNaN reports whether n or one of its parts is a NaN; false for integers and bool.
func (n Num) IsNaN() kernel.Value {
	switch {
	case n.IsComplex():
		return n.Re.IsNaN().Or(n.Im.IsNaN())
	case n.Re.Type().IsFloat():
		return n.Re.IsNaN()
	}
	return n.Re.Builder().Bool(false)
}

// isInf reports whether the float v is infinite.
func isInf(v kernel.Value) kernel.Value { return v.Abs().Eq(v.Like(math.Inf(1))) }

// choose returns a where cond is true, otherwise b.
func choose(cond kernel.Value, a, b Num) Num {
	if a.IsComplex() {
		return Num{cond.Select(a.Re, b.Re), cond.Select(a.Im, b.Im)}
	}
	return Num{Re: cond.Select(a.Re, b.Re)}
}

// copySign returns the float magnitude with the sign of the float sign.
func copySign(magnitude, sign kernel.Value) kernel.Value {
	u, mask := dtype.Uint32, uint64(1)<<31
	if magnitude.Type() == dtype.Float64 {
		u, mask = dtype.Uint64, 1<<63
	}
	k := magnitude.Builder()
	m, s := k.Bits(u, mask), k.Bits(u, mask-1)
	return magnitude.Bitcast(u).And(s).Or(sign.Bitcast(u).And(m)).Bitcast(magnitude.Type())
}
