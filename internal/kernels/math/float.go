// Package math builds the transcendental functions from exact operations of the kernel language: float32 functions use only float32 and
// integer arithmetic, float64 functions that of float64, so that every device and the simulator give the same bits. Functions for halves
// and ExpDifference use the device's own exponential and reciprocal, which the simulator reproduces. It must not depend on tensors, engines
// or devices.
//
// Each function takes the builder and operands of type Float32 or Float64 and returns a value of that type, with an error of at most 2
// units in the last place (most are within 1), except for those above, and the results that C's Annex F specifies for zeros, infinities and
// NaNs. This includes subnormal operands and results. Callers convert halves.
//
// The algorithms are classical: Cody and Waite's and Payne and Hanek's argument reductions, minimax polynomials (derived by package gen and
// listed with their errors in zpoly.go), and double-word arithmetic after Dekker and Knuth where one word is not enough. The code is
// branch-free except for large arguments of the trigonometric functions, the tails of Erfinv, and Fmod.
package math

//go:generate go run ./gen

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// split is a constant as a sum of three floats of each type.
type split struct {
	f32 [3]float32
	f64 [3]float64
}

// coefficients are those of a polynomial for each type, lowest power first.
type coefficients struct {
	f32 []float32
	f64 []float64
}

// float holds what the functions need to know about a type.
type float struct {
	k *kernel.Builder
	t dtype.DType
	// bits is the integer type of t's size, mantissa the number of explicit fraction bits, bias the exponent bias.
	bits           dtype.DType
	mantissa, bias int
}

func of(k *kernel.Builder, x kernel.Value) float {
	if x.Type() == dtype.Float64 {
		return float{k, dtype.Float64, dtype.Int64, 52, 1023}
	}
	return float{k, dtype.Float32, dtype.Int32, 23, 127}
}

func (f float) wide() bool { return f.t == dtype.Float64 }

// c returns the constant v, rounded.
func (f float) c(v float64) kernel.Value { return f.k.Const(f.t, v) }

// either returns the constant a for float32 and b for float64.
func (f float) either(a, b float64) kernel.Value {
	if f.wide() {
		return f.c(b)
	}
	return f.c(a)
}

// i returns an integer constant of the type's size.
func (f float) i(v int64) kernel.Value { return f.k.Int(f.bits, v) }

func (f float) inf() kernel.Value { return f.c(math.Inf(1)) }
func (f float) nan() kernel.Value { return f.c(math.NaN()) }

// part returns part j of s.
func (f float) part(s split, j int) kernel.Value {
	if f.wide() {
		return f.c(s.f64[j])
	}
	return f.c(float64(s.f32[j]))
}

// minus returns the negated part j of s.
func (f float) minus(s split, j int) kernel.Value {
	if f.wide() {
		return f.c(-s.f64[j])
	}
	return f.c(-float64(s.f32[j]))
}

// word returns the first two parts of s as a double word.
func (f float) word(s split) word { return word{f.part(s, 0), f.part(s, 1)} }

// poly returns the value of the polynomial at x, by Horner's rule.
func (f float) poly(p coefficients, x kernel.Value) kernel.Value {
	n := len(p.f32)
	if f.wide() {
		n = len(p.f64)
	}
	at := func(i int) kernel.Value {
		if f.wide() {
			return f.c(p.f64[i])
		}
		return f.c(float64(p.f32[i]))
	}
	s := at(n - 1)
	for i := n - 2; i >= 0; i-- {
		s = s.FMA(x, at(i))
	}
	return s
}

// pow2 returns 2^n. n is an integer of the type's size and must be the exponent of a normal number.
func (f float) pow2(n kernel.Value) kernel.Value {
	return n.Add(f.i(int64(f.bias))).Shl(f.k.I32(f.mantissa)).Bitcast(f.t)
}

// ldexp returns x*2^n, rounded once, for 0.5 <= |x| < 4 and |n| at most twice the bias.
func (f float) ldexp(x, n kernel.Value) kernel.Value {
	half := n.Shr(f.k.I32(1))
	return x.Mul(f.pow2(half)).Mul(f.pow2(n.Sub(half)))
}

// sign returns only x's sign bit, as an integer of the type's size.
func (f float) sign(x kernel.Value) kernel.Value {
	return x.Bitcast(f.bits).And(f.i(math.MinInt64 >> (63 - f.mantissa - f.exponentBits())))
}

func (f float) exponentBits() int {
	if f.wide() {
		return 11
	}
	return 8
}

// withSign returns x with its sign flipped if s, a result of sign, has the sign bit set.
func (f float) withSign(x, s kernel.Value) kernel.Value {
	return x.Bitcast(f.bits).Xor(s).Bitcast(f.t)
}

// word is a double word: the unevaluated sum hi + lo with |lo| at most about half a unit of hi.
type word struct{ hi, lo kernel.Value }

// fastTwoSum returns a + b exactly, |a| >= |b| or a = 0 (T. J. Dekker 1971).
func fastTwoSum(a, b kernel.Value) word {
	s := a.Add(b)
	return word{s, b.Sub(s.Sub(a))}
}

// twoSum returns a + b exactly (D. E. Knuth, TAOCP 2, 4.2.2).
func twoSum(a, b kernel.Value) word {
	s := a.Add(b)
	t := s.Sub(a)
	return word{s, a.Sub(s.Sub(t)).Add(b.Sub(t))}
}

// twoProd returns a * b exactly, unless the low part underflows.
func twoProd(a, b kernel.Value) word {
	p := a.Mul(b)
	return word{p, a.FMA(b, p.Neg())}
}

// mul returns the product of two double words.
func (a word) mul(b word) word {
	p := twoProd(a.hi, b.hi)
	return fastTwoSum(p.hi, a.hi.FMA(b.lo, a.lo.FMA(b.hi, p.lo)))
}

// scale returns the product of a double word and a float.
func (a word) scale(b kernel.Value) word {
	p := twoProd(a.hi, b)
	return fastTwoSum(p.hi, a.lo.FMA(b, p.lo))
}

// sum returns hi + lo in one word.
func (a word) sum() kernel.Value { return a.hi.Add(a.lo) }
