// Package kmath has the mathematical functions of kernels, which compute the same bits on every device.
// It must not depend on tensors or devices.
//
// They are called while a kernel is recorded. They are made of exact operations, and give the same bits as the operations of an Exec with
// the same names. Arguments are Float32 or Float64, and the result has their type; convert halves first. If an argument is NaN, the
// result is NaN (but see Pow). Zeros, infinities and numbers outside a function's domain give what C's Annex F says. Errors are in units in
// the last place (ulp): in Float32 the greatest over all numbers, and smaller in Float64, as far as tests see. The square root is
// kernel.Value's method Sqrt, which rounds once.
package kmath

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"

	"tenon.dev/internal/kernels/math"
)

// Exp returns e to the power of x, within 1.82 ulp.
func Exp(x kernel.Value) kernel.Value { return unary("Exp", math.Exp, x) }

// Exp2 returns 2 to the power of x, within 0.87 ulp. It is exact where x is whole. The method Exp2 is faster, and less accurate.
func Exp2(x kernel.Value) kernel.Value { return unary("Exp2", math.Exp2, x) }

// Expm1 returns e to the power of x less 1, within 1.34 ulp, also near 0.
func Expm1(x kernel.Value) kernel.Value { return unary("Expm1", math.Expm1, x) }

// Log returns the natural logarithm, within 0.9 ulp: -∞ of 0, NaN below.
func Log(x kernel.Value) kernel.Value { return unary("Log", math.Log, x) }

// Log2 returns the logarithm to base 2, within 1.1 ulp: -∞ of 0, NaN below. It is exact for powers of two.
func Log2(x kernel.Value) kernel.Value { return unary("Log2", math.Log2, x) }

// Log10 returns the logarithm to base 10, within 0.96 ulp: -∞ of 0, NaN below.
func Log10(x kernel.Value) kernel.Value { return unary("Log10", math.Log10, x) }

// Log1p returns the natural logarithm of 1+x, within 0.9 ulp, also near 0: -∞ of -1, NaN below.
func Log1p(x kernel.Value) kernel.Value { return unary("Log1p", math.Log1p, x) }

// Rsqrt returns 1 over the square root of x, within 1.5 ulp: ∞ of 0, -∞ of -0, NaN below.
func Rsqrt(x kernel.Value) kernel.Value { return unary("Rsqrt", math.Rsqrt, x) }

// Sin returns the sine of x in radians, within 1.97 ulp for all x: NaN of infinities.
func Sin(x kernel.Value) kernel.Value { return unary("Sin", math.Sin, x) }

// Cos returns the cosine of x in radians, within 1.98 ulp for all x: NaN of infinities.
func Cos(x kernel.Value) kernel.Value { return unary("Cos", math.Cos, x) }

// Tan returns the tangent of x in radians, within 1.47 ulp for all x: NaN of infinities.
func Tan(x kernel.Value) kernel.Value { return unary("Tan", math.Tan, x) }

// Tanh returns the hyperbolic tangent, within 1.29 ulp: ±1 of infinities.
func Tanh(x kernel.Value) kernel.Value { return unary("Tanh", math.Tanh, x) }

// Sigmoid returns 1/(1+e^-x), within 1.85 ulp: 0 of -∞ and 1 of ∞.
func Sigmoid(x kernel.Value) kernel.Value { return unary("Sigmoid", math.Sigmoid, x) }

// Erf returns the error function, within 1.02 ulp: ±1 of infinities.
func Erf(x kernel.Value) kernel.Value { return unary("Erf", math.Erf, x) }

// Erfc returns 1 - Erf(x), within 1.18 ulp also where that is small: 0 of ∞ and 2 of -∞.
func Erfc(x kernel.Value) kernel.Value { return unary("Erfc", math.Erfc, x) }

// Pow returns x to the power of y, both of one type, within 1 ulp of the numbers that tests try. It has the special cases of C: 1 if x is 1
// or y is 0, even where the other is a NaN, and NaN for x below 0 unless y is whole.
func Pow(x, y kernel.Value) kernel.Value {
	if x.Builder() == y.Builder() && x.Type() != y.Type() {
		x.Builder().Fail("the operands of Pow have types %v and %v; convert one", x.Type(), y.Type())
		return x
	}
	return unary("Pow", func(k *kernel.Builder, x kernel.Value) kernel.Value { return math.Pow(k, x, y) }, x)
}

// unary records f of x.
func unary(name string, f func(k *kernel.Builder, x kernel.Value) kernel.Value, x kernel.Value) kernel.Value {
	k := x.Builder()
	if t := x.Type(); t != dtype.Float32 && t != dtype.Float64 {
		k.Fail("%s works on float32 and float64, not on %v; convert the value", name, t)
		return x
	}
	return f(k, x)
}
