package conformance

import (
	"math"

	"tenon.dev"
)

// unary registers an operation of one tensor.
func unary(name string, f func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor) {
	offer(name, func(x *tenon.Exec, a *args) any { return f(x, a.tensor(0, "input")) })
}

// binary registers an operation of two tensors.
func binary(name string, f func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor) {
	offer(name, func(x *tenon.Exec, a *args) any { return f(x, a.tensor(0, "input"), a.tensor(1, "other")) })
}

// Operations of one input.
func init() {
	unary("abs", (*tenon.Exec).Abs)
	unary("neg", (*tenon.Exec).Neg)
	unary("positive", (*tenon.Exec).Positive)
	unary("sign", (*tenon.Exec).Sign)
	unary("sgn", (*tenon.Exec).Sgn)
	unary("angle", (*tenon.Exec).Angle)
	unary("reciprocal", (*tenon.Exec).Reciprocal)
	unary("sqrt", (*tenon.Exec).Sqrt)
	unary("rsqrt", (*tenon.Exec).Rsqrt)
	unary("square", (*tenon.Exec).Square)
	unary("exp", (*tenon.Exec).Exp)
	unary("exp2", (*tenon.Exec).Exp2)
	unary("expm1", (*tenon.Exec).Expm1)
	unary("log", (*tenon.Exec).Log)
	unary("log2", (*tenon.Exec).Log2)
	unary("log10", (*tenon.Exec).Log10)
	unary("log1p", (*tenon.Exec).Log1p)
	unary("sin", (*tenon.Exec).Sin)
	unary("cos", (*tenon.Exec).Cos)
	unary("tan", (*tenon.Exec).Tan)
	unary("asin", (*tenon.Exec).Asin)
	unary("acos", (*tenon.Exec).Acos)
	unary("atan", (*tenon.Exec).Atan)
	unary("sinh", (*tenon.Exec).Sinh)
	unary("cosh", (*tenon.Exec).Cosh)
	unary("tanh", (*tenon.Exec).Tanh)
	unary("asinh", (*tenon.Exec).Asinh)
	unary("acosh", (*tenon.Exec).Acosh)
	unary("atanh", (*tenon.Exec).Atanh)
	unary("sigmoid", (*tenon.Exec).Sigmoid)
	unary("erf", (*tenon.Exec).Erf)
	unary("erfc", (*tenon.Exec).Erfc)
	unary("erfinv", (*tenon.Exec).Erfinv)
	unary("floor", (*tenon.Exec).Floor)
	unary("ceil", (*tenon.Exec).Ceil)
	unary("trunc", (*tenon.Exec).Trunc)
	unary("frac", (*tenon.Exec).Frac)
	unary("isnan", (*tenon.Exec).IsNaN)
	unary("isinf", (*tenon.Exec).IsInf)
	unary("isfinite", (*tenon.Exec).IsFinite)
	unary("logical_not", (*tenon.Exec).LogicalNot)
	unary("bitwise_not", (*tenon.Exec).BitwiseNot)
	offer("round", func(x *tenon.Exec, a *args) any {
		if a.has(-1, "decimals") {
			return x.RoundDecimals(a.tensor(0, "input"), a.int(-1, "decimals", 0))
		}
		return x.Round(a.tensor(0, "input"))
	})
	offer("nan_to_num", func(x *tenon.Exec, a *args) any {
		return x.NanToNum(a.tensor(0, "input"),
			tenon.NanToNumOpt{NaN: a.option(1, "nan"), PosInf: a.option(2, "posinf"), NegInf: a.option(3, "neginf")})
	})
}

// Operations of two inputs.
func init() {
	offer("add", func(x *tenon.Exec, a *args) any {
		if a.has(-1, "alpha") {
			return x.AddScaled(a.tensor(0, "input"), a.tensor(1, "other"), a.float(-1, "alpha", 1))
		}
		return x.Add(a.tensor(0, "input"), a.tensor(1, "other"))
	})
	offer("sub", func(x *tenon.Exec, a *args) any {
		if a.has(-1, "alpha") {
			return x.AddScaled(a.tensor(0, "input"), a.tensor(1, "other"), -a.float(-1, "alpha", 1))
		}
		return x.Sub(a.tensor(0, "input"), a.tensor(1, "other"))
	})
	offer("rsub", func(x *tenon.Exec, a *args) any {
		if a.has(-1, "alpha") {
			return x.AddScaled(a.tensor(1, "other"), a.tensor(0, "input"), -a.float(-1, "alpha", 1))
		}
		return x.Sub(a.tensor(1, "other"), a.tensor(0, "input"))
	})
	offer("div", func(x *tenon.Exec, a *args) any {
		p, q := a.tensor(0, "input"), a.tensor(1, "other")
		switch a.str(-1, "rounding_mode", "") {
		case "trunc":
			return x.DivTrunc(p, q)
		case "floor":
			return x.FloorDivide(p, q)
		}
		return x.Div(p, q)
	})
	binary("mul", (*tenon.Exec).Mul)
	binary("true_divide", (*tenon.Exec).Div)
	binary("pow", (*tenon.Exec).Pow)
	binary("float_power", (*tenon.Exec).FloatPower)
	binary("remainder", (*tenon.Exec).Remainder)
	binary("fmod", (*tenon.Exec).FMod)
	binary("floor_divide", (*tenon.Exec).FloorDivide)
	binary("maximum", (*tenon.Exec).Maximum)
	binary("minimum", (*tenon.Exec).Minimum)
	binary("fmax", (*tenon.Exec).FMax)
	binary("fmin", (*tenon.Exec).FMin)
	binary("atan2", (*tenon.Exec).Atan2)
	binary("hypot", (*tenon.Exec).Hypot)
	binary("logaddexp", (*tenon.Exec).LogAddExp)
	binary("logaddexp2", (*tenon.Exec).LogAddExp2)
	binary("eq", (*tenon.Exec).Eq)
	binary("ne", (*tenon.Exec).Ne)
	binary("lt", (*tenon.Exec).Lt)
	binary("le", (*tenon.Exec).Le)
	binary("gt", (*tenon.Exec).Gt)
	binary("ge", (*tenon.Exec).Ge)
	binary("logical_and", (*tenon.Exec).LogicalAnd)
	binary("logical_or", (*tenon.Exec).LogicalOr)
	binary("logical_xor", (*tenon.Exec).LogicalXor)
	binary("bitwise_and", (*tenon.Exec).BitwiseAnd)
	binary("bitwise_or", (*tenon.Exec).BitwiseOr)
	binary("bitwise_xor", (*tenon.Exec).BitwiseXor)
	binary("bitwise_left_shift", (*tenon.Exec).BitwiseLeftShift)
	binary("bitwise_right_shift", (*tenon.Exec).BitwiseRightShift)
}

// Operations of three inputs.
func init() {
	offer("clamp", func(x *tenon.Exec, a *args) any {
		return x.Clamp(a.tensor(0, "input"), a.tensor(1, "min"), a.tensor(2, "max"))
	})
	binary("clamp_min", (*tenon.Exec).ClampMin)
	binary("clamp_max", (*tenon.Exec).ClampMax)
	// The op database records where as a method, so that the condition comes second.
	offer("where", func(x *tenon.Exec, a *args) any {
		return x.Where(a.tensor(1, "condition"), a.tensor(0, "input"), a.tensor(2, "other"))
	})
	offer("lerp", func(x *tenon.Exec, a *args) any {
		p, q := a.tensor(0, "input"), a.tensor(1, "end")
		switch {
		case a.isTensor(2, "weight"):
			return x.Lerp(p, q, a.tensor(2, "weight"))
		case a.isComplex(2, "weight"):
			return x.Within(func(x *tenon.Exec) *tenon.Tensor { return x.Lerp(p, q, a.scalar(x, 2, "weight", p.DType())) })
		}
		return x.LerpS(p, q, a.float(2, "weight", 0))
	})
	offer("addcmul", func(x *tenon.Exec, a *args) any {
		return x.AddCMul(a.tensor(0, "input"), a.tensor(1, "tensor1"), a.tensor(2, "tensor2"),
			tenon.AddCMulOpt{Value: a.option(-1, "value")})
	})
	offer("addcdiv", func(x *tenon.Exec, a *args) any {
		return x.AddCDiv(a.tensor(0, "input"), a.tensor(1, "tensor1"), a.tensor(2, "tensor2"),
			tenon.AddCMulOpt{Value: a.option(-1, "value")})
	})
	offer("masked_fill", func(x *tenon.Exec, a *args) any {
		if a.isTensor(2, "value") {
			return x.MaskedFill(a.tensor(0, "input"), a.tensor(1, "mask"), a.tensor(2, "value"))
		}
		return x.MaskedFillS(a.tensor(0, "input"), a.tensor(1, "mask"), a.float(2, "value", math.NaN()))
	})
}

// Activations.
func init() {
	unary("nn.functional.relu", (*tenon.Exec).ReLU)
	unary("nn.functional.silu", (*tenon.Exec).SiLU)
	unary("nn.functional.logsigmoid", (*tenon.Exec).LogSigmoid)
	offer("nn.functional.prelu", func(x *tenon.Exec, a *args) any { return x.PReLU(a.tensor(0, "input"), a.tensor(1, "weight")) })
	offer("nn.functional.gelu", func(x *tenon.Exec, a *args) any {
		if a.str(-1, "approximate", "none") == "tanh" {
			return x.GELUTanh(a.tensor(0, "input"))
		}
		return x.GELU(a.tensor(0, "input"))
	})
	offer("nn.functional.leaky_relu", func(x *tenon.Exec, a *args) any {
		return x.LeakyReLU(a.tensor(0, "input"), tenon.LeakyReLUOpt{Slope: a.option(1, "negative_slope")})
	})
	offer("nn.functional.elu", func(x *tenon.Exec, a *args) any {
		return x.ELU(a.tensor(0, "input"), tenon.ELUOpt{Alpha: a.option(1, "alpha")})
	})
	offer("nn.functional.hardtanh", func(x *tenon.Exec, a *args) any {
		return x.Hardtanh(a.tensor(0, "input"), tenon.HardtanhOpt{Min: a.option(1, "min_val"), Max: a.option(2, "max_val")})
	})
	offer("nn.functional.softplus", func(x *tenon.Exec, a *args) any {
		return x.Softplus(a.tensor(0, "input"), tenon.SoftplusOpt{Beta: a.option(1, "beta"), Threshold: a.option(2, "threshold")})
	})
}
