package math

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// The functions in this file take and return float32 and are for results that are then rounded to a half type: their relative errors are
// about 2^-17, so few halves differ from the correctly rounded ones, and those by one unit in the last place. They use the device's own
// exponential and reciprocal.

// Short reports whether functions for results of type t may be those for halves.
func Short(t dtype.DType) bool { return t == dtype.Float16 || t == dtype.BFloat16 }

// root returns e^(x/2), or e^(-x/2) if sign is -1. Its square may be subnormal, unlike results of Exp2.
func root(x kernel.Value, sign float64) kernel.Value {
	return x.Mul(x.Like(sign * math.Log2E / 2)).Exp2()
}

// HalfExp returns e^x.
func HalfExp(_ *kernel.Builder, x kernel.Value) kernel.Value {
	r := root(x, 1)
	return r.Mul(r)
}

// HalfSigmoid returns 1/(1+e^-x).
func HalfSigmoid(_ *kernel.Builder, x kernel.Value) kernel.Value {
	r := root(x.Abs(), -1)
	e, one := r.Mul(r), x.Like(1)
	return x.Lt(x.Like(0)).Select(e, one).Mul(e.Add(one).Reciprocal())
}

// HalfLogistic returns 1/(1+2^(x rate)). It computes 2^24 times as much, because Reciprocal has no subnormal results.
func HalfLogistic(x, rate kernel.Value) kernel.Value {
	const scale = 0x1p-24
	return x.FMA(rate, x.Like(-24)).Exp2().Add(x.Like(scale)).Reciprocal().Mul(x.Like(scale))
}
