package core

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// slope returns the derivative of a unary operation, from the saved input z or result y.
type slope func(x *Exec, z, y *Tensor) *Tensor

// times returns the derivative of an operation that multiplies gradients by its slope.
func times(saves save, d slope) func(b *back) {
	return func(b *back) {
		b.set(0, b.x.Mul(b.grad(0), b.x.conjugate(d(b.x, b.saved(saves, in0), b.saved(saves, out0)))))
	}
}

// over is times for an operation whose slope is 1/d.
func over(saves save, d slope) func(b *back) {
	return func(b *back) {
		b.set(0, b.x.Div(b.grad(0), b.x.conjugate(d(b.x, b.saved(saves, in0), b.saved(saves, out0)))))
	}
}

// saved returns the saved first input or output if saves has it.
func (b *back) saved(saves, which save) *Tensor {
	switch {
	case saves&which == 0:
		return nil
	case which == in0:
		return b.in(0)
	}
	return b.out(0)
}

// flat is the derivative of operations that are constant almost everywhere.
func flat(b *back) { b.set(0, b.x.Full(b.shape(0), 0, b.n.edges[0].dt)) }

// through is the derivative of operations that add a constant almost everywhere.
func through(b *back) { b.set(0, b.grad(0)) }

// The type rules of unary operations that are not shared by all pointwise ones.

// rounded is same for real numbers without bool.
func rounded(f *frame) (compute, out dtype.DType) {
	numeric(f)
	return realOnly(f)
}

// squareRule is same, but bool becomes int64, as in every power.
func squareRule(f *frame) (compute, out dtype.DType) {
	if f.promoted() == dtype.Bool {
		return dtype.Int64, dtype.Int64
	}
	return same(f)
}

var rowSign, rowReciprocal, rowSqrt, rowRsqrt, rowSquare, rowExp, rowExp2, rowExpm1, rowLog, rowLog2, rowLog10, rowLog1p,
	rowSin, rowCos, rowTan,
	rowAsin, rowAcos, rowAtan, rowSinh, rowCosh, rowAsinh, rowAcosh, rowAtanh, rowErf, rowErfc, rowErfinv, rowFloor, rowCeil,
	rowTrunc, rowRound,
	rowFrac, rowIsNaN, rowIsInf, rowIsFinite, rowLogicalNot, rowBitwiseNot *row

func init() {
	rowSign = define(row{Name: "Sign", Torch: "sign", point: kernels.Sign, rule: realOnly, back: flat})
	rowReciprocal = define(row{Name: "Reciprocal", Torch: "reciprocal", point: kernels.Reciprocal, rule: floating, cast: castFloat32,
		saves: out0, back: times(out0, func(x *Exec, _, y *Tensor) *Tensor { return x.Neg(x.Mul(y, y)) })})
	rowSqrt = define(row{Name: "Sqrt", Torch: "sqrt", point: kernels.Sqrt, rule: floating, saves: out0,
		back: over(out0, func(x *Exec, _, y *Tensor) *Tensor { return x.MulS(y, 2) })})
	rowRsqrt = define(row{Name: "Rsqrt", Torch: "rsqrt", point: kernels.Rsqrt, rule: floating, cast: castFloat32, saves: out0,
		back: times(out0, func(x *Exec, _, y *Tensor) *Tensor { return x.MulS(x.Mul(x.Mul(y, y), y), -0.5) })})
	rowSquare = define(row{Name: "Square", Torch: "square", point: kernels.Square, rule: squareRule, saves: in0,
		back: times(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.MulS(z, 2) })})
	rowExp = define(row{Name: "Exp", Torch: "exp", point: kernels.Exp, rule: floating, cast: castFloat32, saves: out0,
		back: times(out0, func(_ *Exec, _, y *Tensor) *Tensor { return y })})
	rowExp2 = define(row{Name: "Exp2", Torch: "exp2", point: kernels.Exp2, rule: floating, saves: out0,
		back: times(out0, func(x *Exec, _, y *Tensor) *Tensor { return x.MulS(y, math.Ln2) })})
	rowExpm1 = define(row{Name: "Expm1", Torch: "expm1", point: kernels.Expm1, rule: floating, cast: castFloat32, saves: out0,
		back: times(out0, func(x *Exec, _, y *Tensor) *Tensor { return x.AddS(y, 1) })})
	rowLog = define(row{Name: "Log", Torch: "log", point: kernels.Log, rule: floating, cast: castFloat32, saves: in0,
		back: over(in0, func(_ *Exec, z, _ *Tensor) *Tensor { return z })})
	rowLog2 = define(row{Name: "Log2", Torch: "log2", point: kernels.Log2, rule: floating, cast: castFloat32, saves: in0,
		back: over(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.MulS(z, math.Ln2) })})
	rowLog10 = define(row{Name: "Log10", Torch: "log10", point: kernels.Log10, rule: floating, cast: castFloat32, saves: in0,
		back: over(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.MulS(z, math.Ln10) })})
	rowLog1p = define(row{Name: "Log1p", Torch: "log1p", point: kernels.Log1p, rule: floating, cast: castFloat32, saves: in0,
		back: over(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.AddS(z, 1) })})
	rowSin = define(row{Name: "Sin", Torch: "sin", point: kernels.Sin, rule: floating, saves: in0,
		back: times(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.Cos(z) })})
	rowCos = define(row{Name: "Cos", Torch: "cos", point: kernels.Cos, rule: floating, saves: in0,
		back: times(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.Neg(x.Sin(z)) })})
	rowTan = define(row{Name: "Tan", Torch: "tan", point: kernels.Tan, rule: floating, cast: castFloat32, saves: out0,
		back: times(out0, func(x *Exec, _, y *Tensor) *Tensor { return x.AddS(x.Mul(y, y), 1) })})
	rowAsin = define(row{Name: "Asin", Torch: "asin", point: kernels.Asin, rule: floating, cast: castFloat32, saves: in0,
		back: times(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.Rsqrt(x.RSubS(x.Mul(z, z), 1)) })})
	rowAcos = define(row{Name: "Acos", Torch: "acos", point: kernels.Acos, rule: floating, cast: castFloat32, saves: in0,
		back: times(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.Neg(x.Rsqrt(x.RSubS(x.Mul(z, z), 1))) })})
	rowAtan = define(row{Name: "Atan", Torch: "atan", point: kernels.Atan, rule: floating, saves: in0,
		back: over(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.AddS(x.Mul(z, z), 1) })})
	rowSinh = define(row{Name: "Sinh", Torch: "sinh", point: kernels.Sinh, rule: floating, cast: castFloat32, saves: in0,
		back: times(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.Cosh(z) })})
	rowCosh = define(row{Name: "Cosh", Torch: "cosh", point: kernels.Cosh, rule: floating, cast: castFloat32, saves: in0,
		back: times(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.Sinh(z) })})
	rowAsinh = define(row{Name: "Asinh", Torch: "asinh", point: kernels.Asinh, rule: floating, saves: in0,
		back: times(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.Rsqrt(x.AddS(x.Mul(z, z), 1)) })})
	rowAcosh = define(row{Name: "Acosh", Torch: "acosh", point: kernels.Acosh, rule: floating, saves: in0, back: times(in0, slopeAcosh)})
	rowAtanh = define(row{Name: "Atanh", Torch: "atanh", point: kernels.Atanh, rule: floating, saves: in0,
		back: over(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.RSubS(x.Mul(z, z), 1) })})
	rowErf = define(row{Name: "Erf", Torch: "erf", point: kernels.Erf, rule: realFloating, saves: in0,
		back: times(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.MulS(x.Exp(x.Neg(x.Mul(z, z))), 2/math.Sqrt(math.Pi)) })})
	rowErfc = define(row{Name: "Erfc", Torch: "erfc", point: kernels.Erfc, rule: realFloating, saves: in0,
		back: times(in0, func(x *Exec, z, _ *Tensor) *Tensor { return x.MulS(x.Exp(x.Neg(x.Mul(z, z))), -2/math.Sqrt(math.Pi)) })})
	rowErfinv = define(row{Name: "Erfinv", Torch: "erfinv", point: kernels.Erfinv, rule: realFloating, cast: castFloat32, saves: out0,
		back: times(out0, func(x *Exec, _, y *Tensor) *Tensor { return x.MulS(x.Exp(x.Mul(y, y)), math.Sqrt(math.Pi)/2) })})
	rowFloor = define(row{Name: "Floor", Torch: "floor", point: kernels.Floor, rule: rounded, back: flat})
	rowCeil = define(row{Name: "Ceil", Torch: "ceil", point: kernels.Ceil, rule: rounded, back: flat})
	rowTrunc = define(row{Name: "Trunc", Torch: "trunc", point: kernels.Trunc, rule: rounded, back: flat})
	rowRound = define(row{Name: "Round", Torch: "round", point: kernels.Round, rule: rounded, back: flat})
	rowFrac = define(row{Name: "Frac", Torch: "frac", point: kernels.Frac, rule: realFloat, back: through})
	rowIsNaN = define(row{Name: "IsNaN", Torch: "isnan", point: kernels.IsNaN, rule: boolean})
	rowIsInf = define(row{Name: "IsInf", Torch: "isinf", point: kernels.IsInf, rule: boolean})
	rowIsFinite = define(row{Name: "IsFinite", Torch: "isfinite", point: kernels.IsFinite, rule: boolean})
	rowLogicalNot = define(row{Name: "LogicalNot", Torch: "logical_not", point: kernels.LogicalNot, rule: boolean})
	rowBitwiseNot = define(row{Name: "BitwiseNot", Torch: "bitwise_not", point: kernels.BitwiseNot, rule: integral})
}

// Sign returns -1, 0 or 1 by the sign of each element, 0 for NaN. For complex tensors use Sgn.
//
//tenon:into
func (x *Exec) Sign(t *Tensor) *Tensor { return x.op(rowSign, t).call1() }

// Reciprocal returns 1/t; integers become float32.
//
//tenon:into
func (x *Exec) Reciprocal(t *Tensor) *Tensor { return x.op(rowReciprocal, t).call1() }

// Sqrt returns the square root; integers become float32.
//
//tenon:into
func (x *Exec) Sqrt(t *Tensor) *Tensor { return x.op(rowSqrt, t).call1() }

// Rsqrt returns 1/sqrt(t); integers become float32.
//
//tenon:into
func (x *Exec) Rsqrt(t *Tensor) *Tensor { return x.op(rowRsqrt, t).call1() }

// Square returns t*t; bool becomes int64.
//
//tenon:into
func (x *Exec) Square(t *Tensor) *Tensor { return x.op(rowSquare, t).call1() }

// Exp returns e to the power of t; integers become float32.
//
//tenon:into
func (x *Exec) Exp(t *Tensor) *Tensor { return x.op(rowExp, t).call1() }

// Exp2 returns 2 to the power of t; integers become float32.
//
//tenon:into
func (x *Exec) Exp2(t *Tensor) *Tensor { return x.op(rowExp2, t).call1() }

// Expm1 returns exp(t) - 1, accurate near 0; integers become float32.
//
//tenon:into
func (x *Exec) Expm1(t *Tensor) *Tensor { return x.op(rowExpm1, t).call1() }

// Log returns the natural logarithm; integers become float32.
//
//tenon:into
func (x *Exec) Log(t *Tensor) *Tensor { return x.op(rowLog, t).call1() }

// Log2 returns the logarithm to base 2; integers become float32.
//
//tenon:into
func (x *Exec) Log2(t *Tensor) *Tensor { return x.op(rowLog2, t).call1() }

// Log10 returns the logarithm to base 10; integers become float32.
//
//tenon:into
func (x *Exec) Log10(t *Tensor) *Tensor { return x.op(rowLog10, t).call1() }

// Log1p returns log(1 + t), accurate near 0; integers become float32.
//
//tenon:into
func (x *Exec) Log1p(t *Tensor) *Tensor { return x.op(rowLog1p, t).call1() }

// Sin returns the sine; integers become float32.
//
//tenon:into
func (x *Exec) Sin(t *Tensor) *Tensor { return x.op(rowSin, t).call1() }

// Cos returns the cosine; integers become float32.
//
//tenon:into
func (x *Exec) Cos(t *Tensor) *Tensor { return x.op(rowCos, t).call1() }

// Tan returns the tangent; integers become float32.
//
//tenon:into
func (x *Exec) Tan(t *Tensor) *Tensor { return x.op(rowTan, t).call1() }

// Asin returns the arc sine; integers become float32.
//
//tenon:into
func (x *Exec) Asin(t *Tensor) *Tensor { return x.op(rowAsin, t).call1() }

// Acos returns the arc cosine; integers become float32.
//
//tenon:into
func (x *Exec) Acos(t *Tensor) *Tensor { return x.op(rowAcos, t).call1() }

// Atan returns the arc tangent; integers become float32.
//
//tenon:into
func (x *Exec) Atan(t *Tensor) *Tensor { return x.op(rowAtan, t).call1() }

// Sinh returns the hyperbolic sine; integers become float32.
//
//tenon:into
func (x *Exec) Sinh(t *Tensor) *Tensor { return x.op(rowSinh, t).call1() }

// Cosh returns the hyperbolic cosine; integers become float32.
//
//tenon:into
func (x *Exec) Cosh(t *Tensor) *Tensor { return x.op(rowCosh, t).call1() }

// Asinh returns the inverse hyperbolic sine; integers become float32.
//
//tenon:into
func (x *Exec) Asinh(t *Tensor) *Tensor { return x.op(rowAsinh, t).call1() }

// slopeAcosh multiplies two roots for complex numbers, which keeps the branch; for real ones it uses one root, because one of the two is
// finite outside of the domain.
func slopeAcosh(x *Exec, z, _ *Tensor) *Tensor {
	if z.dt.IsComplex() {
		return x.Mul(x.Rsqrt(x.SubS(z, 1)), x.Rsqrt(x.AddS(z, 1)))
	}
	return x.Rsqrt(x.SubS(x.Mul(z, z), 1))
}

// Acosh returns the inverse hyperbolic cosine; integers become float32.
//
//tenon:into
func (x *Exec) Acosh(t *Tensor) *Tensor { return x.op(rowAcosh, t).call1() }

// Atanh returns the inverse hyperbolic tangent; integers become float32.
//
//tenon:into
func (x *Exec) Atanh(t *Tensor) *Tensor { return x.op(rowAtanh, t).call1() }

// Erf returns the error function; integers become float32.
//
//tenon:into
func (x *Exec) Erf(t *Tensor) *Tensor { return x.op(rowErf, t).call1() }

// Erfc returns 1 - erf(t), accurate for large t; integers become float32.
//
//tenon:into
func (x *Exec) Erfc(t *Tensor) *Tensor { return x.op(rowErfc, t).call1() }

// Erfinv returns the inverse of the error function, infinite at -1 and 1; integers become float32.
//
//tenon:into
func (x *Exec) Erfinv(t *Tensor) *Tensor { return x.op(rowErfinv, t).call1() }

// Floor rounds down; integers stay the same.
//
//tenon:into
func (x *Exec) Floor(t *Tensor) *Tensor { return x.op(rowFloor, t).call1() }

// Ceil rounds up; integers stay the same.
//
//tenon:into
func (x *Exec) Ceil(t *Tensor) *Tensor { return x.op(rowCeil, t).call1() }

// Trunc rounds toward zero; integers stay the same.
//
//tenon:into
func (x *Exec) Trunc(t *Tensor) *Tensor { return x.op(rowTrunc, t).call1() }

// Round rounds to the nearest whole number, ties to the even one; integers stay the same.
//
//tenon:into
func (x *Exec) Round(t *Tensor) *Tensor { return x.op(rowRound, t).call1() }

// Frac returns t - trunc(t), with the sign of t; for floating-point tensors.
//
//tenon:into
func (x *Exec) Frac(t *Tensor) *Tensor { return x.op(rowFrac, t).call1() }

// IsNaN reports as bool which elements are NaN; a complex element if either part is.
func (x *Exec) IsNaN(t *Tensor) *Tensor { return x.op(rowIsNaN, t).call1() }

// IsInf reports as bool which elements are infinite; a complex element if either part is.
func (x *Exec) IsInf(t *Tensor) *Tensor { return x.op(rowIsInf, t).call1() }

// IsFinite reports as bool which elements are neither infinite nor NaN; a complex element if both parts are finite.
func (x *Exec) IsFinite(t *Tensor) *Tensor { return x.op(rowIsFinite, t).call1() }

// LogicalNot reports as bool which elements are zero.
//
//tenon:into
func (x *Exec) LogicalNot(t *Tensor) *Tensor { return x.op(rowLogicalNot, t).call1() }

// BitwiseNot returns the bits inverted, or the negation of bool; for integers and bool.
//
//tenon:into
func (x *Exec) BitwiseNot(t *Tensor) *Tensor { return x.op(rowBitwiseNot, t).call1() }
