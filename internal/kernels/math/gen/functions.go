package main

import (
	"math"
	"math/big"

	"tenon.dev/internal/kernels/math/bigref"
)

func sqrtOf(z *big.Float) *big.Float { return bigref.Sqrt(z) }

func sub(a, b *big.Float) *big.Float { return num().Sub(a, b) }
func mul(a, b *big.Float) *big.Float { return num().Mul(a, b) }
func quo(a, b *big.Float) *big.Float { return num().Quo(a, b) }
func abs(a *big.Float) *big.Float    { return num().Abs(a) }

// odd describes an odd function g as x + x³ p(x²), in the variable z = x².
func odd(name, doc string, g func(x *big.Float) *big.Float, f32, f64 variant) polynomial {
	return polynomial{name: name, doc: doc, f32: f32, f64: f64,
		f: func(z *big.Float) *big.Float {
			x := sqrtOf(z)
			return quo(sub(g(x), x), mul(x, z))
		},
		weight: func(z *big.Float) *big.Float {
			x := sqrtOf(z)
			return abs(quo(mul(x, z), g(x)))
		}}
}

// sinBelow is sin(r) - 1.5 · 2^-30 r⁵.
func sinBelow(r *big.Float) *big.Float {
	square := mul(r, r)
	return sub(bigref.Sin(r), mul(bigref.Of(0x1.8p-30), mul(r, mul(square, square))))
}

// erfcScaled is (1+2x) exp(x²) erfc(x).
func erfcScaled(x *big.Float) *big.Float {
	var e *big.Float
	if x.Cmp(bigref.Of(2)) >= 0 {
		e = bigref.Erfcx(x)
	} else {
		e = mul(bigref.Erfc(x), bigref.Exp(mul(x, x)))
	}
	return mul(e, num().Add(bigref.Of(1), mul(bigref.Of(2), x)))
}

// erfcK is the parameter K of the variable q = (x-K)/(x+K) in which erfc is expanded, erfcP0 the constant term taken out.
const (
	erfcK  = 3.0
	erfcP0 = 1.25
)

func erfcArg(x float64) float64 { return (x - erfcK) / (x + erfcK) }

// erfinvOver returns erfinv(x)/x at w = -log(1-x²).
func erfinvOver(w *big.Float) *big.Float {
	e := num().Neg(bigref.Expm1(num().Neg(w))) // x²
	x := sqrtOf(e)
	return quo(bigref.Erfinv(x), x)
}

// ln2 is the logarithm of 2.
func ln2() *big.Float { return bigref.Log(bigref.Of(2)) }

func polynomials() []polynomial {
	q := math.Pi / 4 * 1.0001
	turn := math.Pi / 2 * 1.003
	half := math.Ln2 / 2 * 1.0002
	lo, hi := math.Sqrt2/2-1-1e-6, math.Sqrt2-1+1e-6
	return append([]polynomial{
		{name: "expPoly", doc: "(e^r - 1 - r)/r²",
			f:      func(r *big.Float) *big.Float { return quo(sub(bigref.Expm1(r), r), mul(r, r)) },
			weight: func(r *big.Float) *big.Float { return quo(mul(r, r), bigref.Exp(r)) },
			f32:    variant{-half, half, 5}, f64: variant{-half, half, 11}},
		{name: "exp2Poly", doc: "(2^r - 1)/r",
			f:      func(r *big.Float) *big.Float { return quo(bigref.Expm1(mul(r, ln2())), r) },
			weight: func(r *big.Float) *big.Float { return abs(quo(r, bigref.Exp(mul(r, ln2())))) },
			f32:    variant{-0.5, 0.5, 6}},
		exp1("expNearPoly", half, 6), exp1("expFarPoly", 2*half, 7),
		logTail("logPoly", variant{lo, hi, 9}, variant{lo, hi, 21}),
		logTail("logShortPoly", variant{-1.0 / 3, 1.0 / 3, 8}, variant{}),
		{name: "powPoly", doc: "(atanh(s)/s - 1 - z/3)/z² at z = s²; error relative to atanh(s)",
			f: func(z *big.Float) *big.Float {
				s := sqrtOf(z)
				d := sub(quo(bigref.Atanh(s), s), bigref.Of(1))
				return quo(sub(d, quo(z, bigref.Of(3))), mul(z, z))
			},
			weight: func(z *big.Float) *big.Float { return mul(z, z) },
			f32:    variant{0, 0.02945, 3}, f64: variant{0, 0.02945, 7}},
		odd("sinPoly", "(sin(r) - r)/r³ at z = r²", bigref.Sin, variant{0, q * q, 3}, variant{0, q * q, 6}),
		odd("sinTurnPoly", "(sin(r) - r)/r³ at z = r², less 1.5 · 2^-30 r², so that no sine exceeds 1", sinBelow,
			variant{0, turn * turn, 4}, variant{}),
		{name: "cosPoly", doc: "(cos(r) - 1 + z/2)/z² at z = r²",
			f: func(z *big.Float) *big.Float {
				d := sub(bigref.Cos(sqrtOf(z)), bigref.Of(1))
				return quo(d.Add(d, mul(z, bigref.Of(0.5))), mul(z, z))
			},
			weight: func(z *big.Float) *big.Float { return quo(mul(z, z), bigref.Cos(sqrtOf(z))) },
			f32:    variant{0, q * q, 3}, f64: variant{0, q * q, 6}},
		odd("tanPoly", "(tan(r) - r)/r³ at z = r²", bigref.Tan, variant{0, q * q, 7}, variant{0, q * q, 15}),
		odd("asinPoly", "(asin(x) - x)/x³ at z = x²", bigref.Asin, variant{0, 0.25, 6}, variant{0, 0.25, 13}),
		odd("atanPoly", "(atan(t) - t)/t³ at z = t²", bigref.Atan, variant{0, 1, 9}, variant{0, 1, 21}),
		odd("sinhPoly", "(sinh(r) - r)/r³ at z = r²", bigref.Sinh, variant{0, half * half, 3}, variant{0, half * half, 6}),
		{name: "coshPoly", doc: "(cosh(r) - 1 - z/2)/z² at z = r²",
			f: func(z *big.Float) *big.Float {
				s := bigref.Sinh(mul(bigref.Of(0.5), sqrtOf(z)))
				d := mul(bigref.Of(2), mul(s, s))
				return quo(sub(d, mul(z, bigref.Of(0.5))), mul(z, z))
			},
			weight: func(z *big.Float) *big.Float { return mul(z, z) },
			f32:    variant{0, half * half, 2}, f64: variant{0, half * half, 6}},
		odd("tanhPoly", "(tanh(x) - x)/x³ at z = x²", bigref.Tanh, variant{0, 0.64, 6}, variant{0, 0.64, 14}),
		{name: "erfPoly", doc: "erf(x)/x - 1 at z = x²",
			f: func(z *big.Float) *big.Float {
				x := sqrtOf(z)
				return sub(quo(bigref.Erf(x), x), bigref.Of(1))
			},
			weight: func(z *big.Float) *big.Float { x := sqrtOf(z); return quo(x, bigref.Erf(x)) },
			f32:    variant{0, 1, 7}, f64: variant{0, 1, 13}},
		erfTail(variant{0, 3, 8}, variant{0, 5, 21}),
		{name: "erfcPoly", doc: "(1+2x) exp(x²) erfc(x) - 1.25 at q = (x-3)/(x+3)",
			f: func(v *big.Float) *big.Float {
				x := quo(mul(bigref.Of(erfcK), num().Add(bigref.Of(1), v)), sub(bigref.Of(1), v))
				return sub(erfcScaled(x), bigref.Of(erfcP0))
			},
			weight: func(*big.Float) *big.Float { return bigref.Of(1 / erfcP0) },
			f32:    variant{erfcArg(0.5), erfcArg(10.2), 11}, f64: variant{erfcArg(0.5), erfcArg(27.5), 24}},
	}, erfinvPolynomials()...)
}

// exp1 is a polynomial of n coefficients for e^r in float32, for |r| <= limit.
func exp1(name string, limit float64, n int) polynomial {
	return polynomial{name: name, doc: "(e^r - 1)/r",
		f:      func(r *big.Float) *big.Float { return quo(bigref.Expm1(r), r) },
		weight: func(r *big.Float) *big.Float { return abs(quo(r, bigref.Exp(r))) },
		f32:    variant{-limit, limit, n}}
}

// logTail is the part of log(1+f) after f - f²/2.
func logTail(name string, f32, f64 variant) polynomial {
	return polynomial{name: name, doc: "(log(1+f) - f + f²/2)/f³", f32: f32, f64: f64,
		f: func(f *big.Float) *big.Float {
			d := sub(bigref.Log1p(f), f)
			d.Add(d, mul(bigref.Of(0.5), mul(f, f)))
			return quo(d, mul(f, mul(f, f)))
		},
		weight: func(f *big.Float) *big.Float { return abs(quo(mul(f, mul(f, f)), bigref.Log1p(f))) }}
}

// erfTail is -log(erfc(x)) at t = x - 1; its error is weighted by erfc/erf.
func erfTail(f32, f64 variant) polynomial {
	at := func(t *big.Float) *big.Float { return num().Add(t, bigref.Of(1)) }
	return polynomial{name: "erfTail", doc: "-log(erfc(x)) at t = x - 1; error relative to erf(x)", f32: f32, f64: f64,
		f:      func(t *big.Float) *big.Float { return num().Neg(bigref.Log(bigref.Erfc(at(t)))) },
		weight: func(t *big.Float) *big.Float { return quo(bigref.Erfc(at(t)), bigref.Erf(at(t))) }}
}

// piece is a part of erfinv(x)/x, expanded in t = w - shift with w = -log(1-x²), or in √w - shift, around its value at t = 0.
type piece struct {
	name     string
	root     bool
	shift    float64
	f32, f64 variant
}

var erfinvPieces = []piece{
	{"0", false, 1.5, variant{-1.5, 3.5, 11}, variant{-1.5, 3.5, 25}},
	{"1", true, 3.125, variant{2.236 - 3.125, 4.08 - 3.125, 10}, variant{2.236 - 3.125, 4.0 - 3.125, 24}},
	{"2", true, 5.0, variant{}, variant{-1, 1.12, 21}},
}

// value returns erfinv(x)/x at t.
func (e *piece) value(t *big.Float) *big.Float {
	w := num().Add(t, bigref.Of(e.shift))
	if e.root {
		w = mul(w, w)
	}
	return erfinvOver(w)
}

func erfinvPolynomials() (ps []polynomial) {
	for i := range erfinvPieces {
		e := &erfinvPieces[i]
		variable := "w - "
		if e.root {
			variable = "√w - "
		}
		middle := e.value(bigref.Of(0))
		ps = append(ps, polynomial{name: "erfinvPoly" + e.name, doc: "(erfinv(x)/x - erfinvAt" + e.name + ")/t at t = " + variable +
			trim(e.shift) + ", w = -log(1-x²); error relative to erfinv",
			f:      func(t *big.Float) *big.Float { return quo(sub(e.value(t), middle), t) },
			weight: func(t *big.Float) *big.Float { return abs(quo(t, e.value(t))) }, f32: e.f32, f64: e.f64})
	}
	return ps
}
