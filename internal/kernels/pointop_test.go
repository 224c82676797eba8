package kernels

import (
	"math"
	"math/cmplx"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
)

// floatReferences are the expected results of pointwise ops on real floats; the arguments are inputs, then scalars.
var floatReferences = map[*PointOp]func(v []float64) float64{
	Copy:       func(v []float64) float64 { return v[0] },
	Fill:       func(v []float64) float64 { return v[0] },
	Add:        func(v []float64) float64 { return v[0] + v[1] },
	Sub:        func(v []float64) float64 { return v[0] - v[1] },
	Mul:        func(v []float64) float64 { return v[0] * v[1] },
	AddScaled:  func(v []float64) float64 { return v[0] + v[2]*v[1] },
	Div:        func(v []float64) float64 { return v[0] / v[1] },
	DivTrunc:   func(v []float64) float64 { return math.Trunc(v[0] / v[1]) },
	DivFloor:   floorDivideRef,
	Neg:        func(v []float64) float64 { return -v[0] },
	Sign:       func(v []float64) float64 { return signRef(v[0]) },
	Sgn:        func(v []float64) float64 { return signRef(v[0]) },
	Reciprocal: func(v []float64) float64 { return 1 / v[0] },
	Square:     func(v []float64) float64 { return v[0] * v[0] },
	Conj:       func(v []float64) float64 { return v[0] },
	Floor:      func(v []float64) float64 { return math.Floor(v[0]) },
	Ceil:       func(v []float64) float64 { return math.Ceil(v[0]) },
	Trunc:      func(v []float64) float64 { return math.Trunc(v[0]) },
	Round:      func(v []float64) float64 { return math.RoundToEven(v[0]) },
	Frac:       func(v []float64) float64 { return v[0] - math.Trunc(v[0]) },
	Maximum:    func(v []float64) float64 { return math.Max(v[0], v[1]) },
	Minimum:    func(v []float64) float64 { return math.Min(v[0], v[1]) },
	FMax:       func(v []float64) float64 { return math.Max(v[0], v[1]) },
	FMin:       func(v []float64) float64 { return math.Min(v[0], v[1]) },
	Clamp:      func(v []float64) float64 { return math.Min(math.Max(v[0], v[1]), v[2]) },
	AddCMul:    func(v []float64) float64 { return v[0] + v[3]*v[1]*v[2] },
	AddCDiv:    func(v []float64) float64 { return v[0] + v[3]*v[1]/v[2] },
	Lerp:       func(v []float64) float64 { return v[0] + v[2]*(v[1]-v[0]) },
	Eq:         func(v []float64) float64 { return truthRef(v[0] == v[1]) },
	Ne:         func(v []float64) float64 { return truthRef(v[0] != v[1]) },
	Lt:         func(v []float64) float64 { return truthRef(v[0] < v[1]) },
	Le:         func(v []float64) float64 { return truthRef(v[0] <= v[1]) },
	Gt:         func(v []float64) float64 { return truthRef(v[0] > v[1]) },
	Ge:         func(v []float64) float64 { return truthRef(v[0] >= v[1]) },
	IsNaN:      func([]float64) float64 { return 0 },
	IsInf:      func([]float64) float64 { return 0 },
	IsFinite:   func([]float64) float64 { return 1 },
	LogicalNot: func(v []float64) float64 { return truthRef(v[0] == 0) },
	LogicalAnd: func(v []float64) float64 { return truthRef(v[0] != 0 && v[1] != 0) },
	LogicalOr:  func(v []float64) float64 { return truthRef(v[0] != 0 || v[1] != 0) },
	LogicalXor: func(v []float64) float64 { return truthRef((v[0] != 0) != (v[1] != 0)) },
	Where: func(v []float64) float64 {
		if v[0] != 0 {
			return v[1]
		}
		return v[2]
	},
	Abs:               func(v []float64) float64 { return math.Abs(v[0]) },
	Angle:             func(v []float64) float64 { return math.Atan2(0, v[0]) },
	Sqrt:              func(v []float64) float64 { return math.Sqrt(v[0]) },
	Rsqrt:             func(v []float64) float64 { return 1 / math.Sqrt(v[0]) },
	Exp:               func(v []float64) float64 { return math.Exp(v[0]) },
	Exp2:              func(v []float64) float64 { return math.Exp2(v[0]) },
	Expm1:             func(v []float64) float64 { return math.Expm1(v[0]) },
	Log:               func(v []float64) float64 { return math.Log(v[0]) },
	Log2:              func(v []float64) float64 { return math.Log2(v[0]) },
	Log10:             func(v []float64) float64 { return math.Log10(v[0]) },
	Log1p:             func(v []float64) float64 { return math.Log1p(v[0]) },
	Sin:               func(v []float64) float64 { return math.Sin(v[0]) },
	Cos:               func(v []float64) float64 { return math.Cos(v[0]) },
	Tan:               func(v []float64) float64 { return math.Tan(v[0]) },
	Asin:              func(v []float64) float64 { return math.Asin(v[0]) },
	Acos:              func(v []float64) float64 { return math.Acos(v[0]) },
	Atan:              func(v []float64) float64 { return math.Atan(v[0]) },
	Sinh:              func(v []float64) float64 { return math.Sinh(v[0]) },
	Cosh:              func(v []float64) float64 { return math.Cosh(v[0]) },
	Tanh:              func(v []float64) float64 { return math.Tanh(v[0]) },
	Asinh:             func(v []float64) float64 { return math.Asinh(v[0]) },
	Acosh:             func(v []float64) float64 { return math.Acosh(v[0]) },
	Atanh:             func(v []float64) float64 { return math.Atanh(v[0]) },
	Sigmoid:           func(v []float64) float64 { return sigmoidRef(v[0]) },
	Erf:               func(v []float64) float64 { return math.Erf(v[0]) },
	Erfc:              func(v []float64) float64 { return math.Erfc(v[0]) },
	Erfinv:            func(v []float64) float64 { return math.Erfinv(v[0]) },
	Atan2:             func(v []float64) float64 { return math.Atan2(v[0], v[1]) },
	Hypot:             func(v []float64) float64 { return math.Hypot(v[0], v[1]) },
	LogAddExp:         func(v []float64) float64 { return math.Log(math.Exp(v[0]) + math.Exp(v[1])) },
	LogAddExp2:        func(v []float64) float64 { return math.Log2(math.Exp2(v[0]) + math.Exp2(v[1])) },
	Pow:               func(v []float64) float64 { return math.Pow(v[0], v[1]) },
	Fmod:              func(v []float64) float64 { return math.Mod(v[0], v[1]) },
	Remainder:         func(v []float64) float64 { return v[0] - v[1]*math.Floor(v[0]/v[1]) },
	ReLU:              func(v []float64) float64 { return math.Max(v[0], 0) },
	ThresholdBackward: func(v []float64) float64 { return v[0] * truthRef(v[1] > v[2]) },
	LeakyReLU:         func(v []float64) float64 { return math.Max(v[0], 0) + v[1]*math.Min(v[0], 0) },
	LeakyReLUBackward: func(v []float64) float64 {
		if v[1] > 0 {
			return v[0]
		}
		return v[0] * v[2]
	},
	PReLU: func(v []float64) float64 { return math.Max(v[0], 0) + v[1]*math.Min(v[0], 0) },
	ELU:   func(v []float64) float64 { return eluRef(v[0], v[1], v[2], v[3]) },
	ELUBackward: func(v []float64) float64 {
		return v[0] * slope(v[1], func(x float64) float64 { return eluRef(x, v[2], v[3], v[4]) })
	},
	HardtanhBackward: func(v []float64) float64 { return v[0] * truthRef(v[1] > v[2] && v[1] < v[3]) },
	Softplus:         func(v []float64) float64 { return softplusRef(v[0], v[1], v[2]) },
	SoftplusBackward: func(v []float64) float64 {
		if v[1]*v[2] > v[3] {
			return v[0]
		}
		return v[0] * sigmoidRef(v[1]*v[2])
	},
	LogSigmoid:         func(v []float64) float64 { return -math.Log1p(math.Exp(-v[0])) },
	LogSigmoidBackward: func(v []float64) float64 { return v[0] * sigmoidRef(-v[1]) },
	SigmoidBackward:    func(v []float64) float64 { return v[0] * v[1] * (1 - v[1]) },
	TanhBackward:       func(v []float64) float64 { return v[0] * (1 - v[1]*v[1]) },
	SiLU:               func(v []float64) float64 { return v[0] * sigmoidRef(v[0]) },
	SiLUBackward: func(v []float64) float64 {
		return v[0] * slope(v[1], func(x float64) float64 { return x * sigmoidRef(x) })
	},
	GELU:                  func(v []float64) float64 { return geluRef(v[0]) },
	GELUBackward:          func(v []float64) float64 { return v[0] * slope(v[1], geluRef) },
	GELUTanh:              func(v []float64) float64 { return geluTanhRef(v[0]) },
	GELUTanhBackward:      func(v []float64) float64 { return v[0] * slope(v[1], geluTanhRef) },
	SquaredError:          func(v []float64) float64 { return (v[0] - v[1]) * (v[0] - v[1]) },
	AbsoluteError:         func(v []float64) float64 { return math.Abs(v[0] - v[1]) },
	SquaredErrorBackward:  func(v []float64) float64 { return v[3] * v[0] * (v[1] - v[2]) },
	AbsoluteErrorBackward: func(v []float64) float64 { return v[3] * v[0] * signRef(v[1]-v[2]) },
	SmoothL1:              func(v []float64) float64 { return smoothRef(v[0]-v[1], v[2]) },
	Huber:                 func(v []float64) float64 { return smoothRef(v[0]-v[1], v[2]) * v[2] },
	SmoothL1Backward:      func(v []float64) float64 { return v[3] * v[0] * max(-1, min((v[1]-v[2])/v[4], 1)) },
	HuberBackward:         func(v []float64) float64 { return v[3] * v[0] * max(-v[4], min(v[1]-v[2], v[4])) },
	MaskedScale:           func(v []float64) float64 { return v[0] * v[1] * v[2] },
	PReLUBackward: func(v []float64) float64 {
		if v[1] > 0 {
			return v[0]
		}
		return v[0] * v[2]
	},
	BCEWithLogits: func(v []float64) float64 { return bceRef(v[0], v[1], v[2]) },
	BCEWithLogitsBackward: func(v []float64) float64 {
		return v[0] * slope(v[1], func(x float64) float64 { return bceRef(x, v[2], v[3]) })
	},
	BCE: func(v []float64) float64 {
		return -v[1]*math.Max(math.Log(v[0]), -100) - (1-v[1])*math.Max(math.Log1p(-v[0]), -100)
	},
	BCEBackward: func(v []float64) float64 { return v[0] * (v[1] - v[2]) / math.Max(1e-12, v[1]*(1-v[1])) },
}

func truthRef(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func signRef(v float64) float64 { return truthRef(v > 0) - truthRef(v < 0) }

func sigmoidRef(v float64) float64 { return 1 / (1 + math.Exp(-v)) }

func eluRef(x, a, s, i float64) float64 {
	if x > 0 {
		return s * x
	}
	return a * s * math.Expm1(i*x)
}

func softplusRef(x, b, limit float64) float64 {
	if x*b > limit {
		return x
	}
	return math.Log1p(math.Exp(x*b)) / b
}

func geluRef(x float64) float64 { return x * 0.5 * (1 + math.Erf(x/math.Sqrt2)) }

func geluTanhRef(x float64) float64 {
	return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

func smoothRef(d, b float64) float64 {
	if d = math.Abs(d); d < b {
		return d * d / 2 / b
	}
	return d - b/2
}

func bceRef(x, y, w float64) float64 {
	return -(w*y*math.Log(sigmoidRef(x)) + (1-y)*math.Log(sigmoidRef(-x)))
}

// slope is the derivative of f, by central differences.
func slope(x float64, f func(float64) float64) float64 {
	const h = 1e-5
	return (f(x+h) - f(x-h)) / (2 * h)
}

func floorDivideRef(v []float64) float64 {
	if v[1] == 0 {
		return v[0] / v[1]
	}
	return math.Floor(v[0] / v[1])
}

func TestPointOpsOfFloats(t *testing.T) {
	h := newHost(t)
	rng := rand.New(rand.NewPCG(11, 12))
	scalars := []float64{0.75, 1.25, 2}
	for _, op := range PointOps() { // not in the map's order, which would change the numbers from run to run
		ref, ok := floatReferences[op]
		if !ok {
			continue
		}
		for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16} {
			tol := map[dtype.DType]float64{dtype.Float32: 1e-5, dtype.Float64: 1e-8, dtype.BFloat16: 8e-3}[dt]
			var ins []Operand
			for range op.Ins {
				o := h.empty(dt, 203)
				h.write(o, func(int) complex128 {
					v := sample(rng, dt) + 1.0/16 // never at a kink
					if op == BCE {
						v -= math.Floor(v) // a probability
					}
					return complex(v, 0)
				})
				ins = append(ins, o)
			}
			var ss []Scalar
			for i := range op.Scalars {
				ss = append(ss, FloatScalar(scalars[i]))
			}
			out := h.empty(dt, 203)
			check(t, Pointwise(h, op, dt, ss, []Operand{out}, ins))
			got := h.read(out)
			vals := make([][]float64, len(ins))
			for i := range ins {
				vals[i] = h.read(ins[i])
			}
			for j := range got {
				var v []float64
				for i := range ins {
					v = append(v, vals[i][j])
				}
				want := rounded(dt, ref(append(v, scalars[:op.Scalars]...)))
				if !close(got[j], want, tol) {
					t.Fatalf("%s %v of %v is %v, want %v", op.Name, dt, v, got[j], want)
				}
			}
		}
	}
}

func TestPointOpsOfIntegers(t *testing.T) {
	h := newHost(t)
	rng := rand.New(rand.NewPCG(13, 14))
	type ref func(a, b int64) int64
	floor := func(a, b int64) int64 {
		q := a / b
		if a%b != 0 && (a < 0) != (b < 0) {
			q--
		}
		return q
	}
	refs := map[*PointOp]ref{
		Add: func(a, b int64) int64 {
			return a + b
		}, Sub: func(a, b int64) int64 { return a - b }, Mul: func(a, b int64) int64 { return a * b },
		DivTrunc: func(a, b int64) int64 { return a / b }, DivFloor: floor,
		Remainder: func(a, b int64) int64 { return a - b*floor(a, b) }, Fmod: func(a, b int64) int64 { return a % b },
		Maximum: func(a, b int64) int64 { return max(a, b) }, Minimum: func(a, b int64) int64 { return min(a, b) },
		FMax: func(a, b int64) int64 { return max(a, b) }, FMin: func(a, b int64) int64 { return min(a, b) },
		BitwiseAnd: func(a, b int64) int64 {
			return a & b
		}, BitwiseOr: func(a, b int64) int64 { return a | b }, BitwiseXor: func(a, b int64) int64 { return a ^ b },
		Pow: func(a, b int64) int64 {
			switch {
			case b < 0 && a == 1, b < 0 && a == -1 && b%2 == 0:
				return 1
			case b < 0 && a == -1:
				return -1
			case b < 0:
				return 0
			}
			r := int64(1)
			for range b {
				r *= a
			}
			return r
		},
	}
	for _, op := range PointOps() {
		f, ok := refs[op]
		if !ok {
			continue
		}
		for _, dt := range []dtype.DType{dtype.Uint8, dtype.Int8, dtype.Int16, dtype.Int32, dtype.Int64} {
			a, b, out := h.random(rng, dt, 99), h.random(rng, dt, 99), h.empty(dt, 99)
			h.write(b, func(n int) complex128 {
				v := sample(rng, dt)
				if v == 0 || op == Pow && v > 8 {
					v = 1
				}
				return complex(v, 0)
			})
			if dt.IsSigned() {
				h.write(a, func(n int) complex128 { return complex(float64(n%9-4), 0) })
			}
			check(t, Pointwise(h, op, dt, nil, []Operand{out}, []Operand{a, b}))
			x, y := h.read(a), h.read(b)
			for i, v := range h.read(out) {
				if want := rounded(dt, float64(f(int64(x[i]), int64(y[i])))); v != want {
					t.Fatalf("%s %v of %v and %v is %v, want %v", op.Name, dt, x[i], y[i], v, want)
				}
			}
		}
	}
	one := func(op *PointOp, dt dtype.DType, want float64, in ...float64) {
		t.Helper()
		var ins []Operand
		for _, v := range in {
			ins = append(ins, h.of(dt, []float64{v}, 1))
		}
		out := h.empty(dt, 1)
		check(t, Pointwise(h, op, dt, nil, []Operand{out}, ins))
		if got := h.read(out)[0]; got != want {
			t.Errorf("%s %v of %v is %v, want %v", op.Name, dt, in, got, want)
		}
	}
	one(LeftShift, dtype.Int32, 12, 3, 2)
	one(LeftShift, dtype.Int32, 0, 3, 40)
	one(LeftShift, dtype.Int64, 0, 3, -1)
	one(LeftShift, dtype.Uint8, 128, 1, 7)
	one(RightShift, dtype.Int32, -2, -8, 2)
	one(RightShift, dtype.Int16, -1, -8, 20)
	one(RightShift, dtype.Uint8, 3, 13, 2)
	one(BitwiseNot, dtype.Int8, -6, 5)
	one(BitwiseNot, dtype.Uint8, 250, 5)
	one(BitwiseNot, dtype.Bool, 0, 1)
	one(Sign, dtype.Uint8, 1, 200)
	one(Sign, dtype.Bool, 1, 1)
	one(Abs, dtype.Int8, -128, -128)
	one(Abs, dtype.Uint8, 200, 200)
	one(Maximum, dtype.Bool, 1, 0, 1)
	one(Minimum, dtype.Bool, 0, 0, 1)
	one(Pow, dtype.Bool, 1, 0, 0)
	one(Lt, dtype.Bool, 1, 0, 1)
	one(Ge, dtype.Bool, 0, 0, 1)
	one(Round, dtype.Int32, 7, 7)
	one(DivTrunc, dtype.Uint8, 255, 7, 0)
}

func TestPointOpsEdges(t *testing.T) {
	h := newHost(t)
	nan, inf := math.NaN(), math.Inf(1)
	one := func(op *PointOp, want float64, in []float64, scalars ...float64) {
		t.Helper()
		for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64} {
			var ins []Operand
			for _, v := range in {
				ins = append(ins, h.of(dt, []float64{v}, 1))
			}
			var ss []Scalar
			for _, v := range scalars {
				ss = append(ss, FloatScalar(v))
			}
			out := h.empty(dt, 1)
			check(t, Pointwise(h, op, dt, ss, []Operand{out}, ins))
			if got := h.read(out)[0]; !close(got, want, 1e-6) || math.Signbit(got) != math.Signbit(want) && want == 0 {
				t.Errorf("%s %v of %v, %v is %v, want %v", op.Name, dt, in, scalars, got, want)
			}
		}
	}
	v := func(vs ...float64) []float64 { return vs }
	for _, op := range []*PointOp{Maximum, Minimum} {
		one(op, nan, v(nan, 1))
		one(op, nan, v(1, nan))
	}
	one(FMax, 1, v(nan, 1))
	one(FMin, 1, v(1, nan))
	one(Clamp, nan, v(nan, 0, 1))
	one(Clamp, nan, v(0.5, nan, 1))
	one(Clamp, 1, v(7, 3, 1))
	one(ReLU, nan, v(nan))
	one(Sign, 0, v(nan))
	one(NanToNum, 5, v(nan), 5, 6, 7)
	one(NanToNum, 6, v(inf), 5, 6, 7)
	one(NanToNum, 7, v(-inf), 5, 6, 7)
	one(NanToNum, 2, v(2), 5, 6, 7)
	one(Round, 2, v(2.5))
	one(Round, math.Copysign(0, -1), v(-0.5))
	one(RoundDecimals, 1.25, v(1.2549), 100, 2)
	one(RoundDecimals, 1300, v(1254), 100, -2)
	one(DivFloor, inf, v(1, 0))
	one(DivFloor, nan, v(0, 0))
	one(DivFloor, math.Copysign(0, -1), v(math.Copysign(0, -1), 3))
	one(DivFloor, -1, v(-1, 1e30))
	one(Remainder, -2, v(1, -3))
	one(Remainder, nan, v(1, 0))
	one(Fmod, 1, v(1, -3))
	one(LogAddExp, inf, v(inf, inf))
	one(LogAddExp, -inf, v(-inf, -inf))
	one(LogAddExp, nan, v(nan, 1))
	one(LogAddExp, 1001, v(1001, -1000))
	one(Lerp, 3, v(1, 3, 1))
	one(Angle, math.Pi, v(-1))
	one(Angle, nan, v(nan))
	one(IsInf, 1, v(-inf))
	one(IsNaN, 1, v(nan))
	one(IsFinite, 0, v(nan))
	one(IsFinite, 0, v(inf))
	one(Ne, 1, v(nan, nan))
	one(Eq, 0, v(nan, nan))
	one(Softplus, 30, v(30), 1, 20)
	one(SiLU, math.Copysign(0, -1), v(math.Copysign(0, -1)))
	one(BCE, 100, v(0, 1))
}

func TestPointOpsOfComplexNumbers(t *testing.T) {
	refs := map[*PointOp]func(a, b complex128) complex128{
		Add: func(a, b complex128) complex128 { return a + b }, Mul: func(a, b complex128) complex128 { return a * b },
		Div: func(a, b complex128) complex128 { return a / b }, Reciprocal: func(a, _ complex128) complex128 { return 1 / a },
		Square: func(a, _ complex128) complex128 { return a * a }, Conj: func(a, _ complex128) complex128 { return cmplx.Conj(a) },
		Exp: func(a, _ complex128) complex128 {
			return cmplx.Exp(a)
		}, Exp2: func(a, _ complex128) complex128 { return cmplx.Exp(a * math.Ln2) },
		Expm1: func(a, _ complex128) complex128 { return cmplx.Exp(a) - 1 }, Log: func(a, _ complex128) complex128 { return cmplx.Log(a) },
		Log2: func(a, _ complex128) complex128 {
			return cmplx.Log(a) / math.Ln2
		}, Log10: func(a, _ complex128) complex128 { return cmplx.Log10(a) },
		Log1p: func(a, _ complex128) complex128 {
			return cmplx.Log(1 + a)
		}, Sqrt: func(a, _ complex128) complex128 { return cmplx.Sqrt(a) },
		Rsqrt: func(a, _ complex128) complex128 { return 1 / cmplx.Sqrt(a) }, Sin: func(a, _ complex128) complex128 { return cmplx.Sin(a) },
		Cos: func(a, _ complex128) complex128 { return cmplx.Cos(a) }, Tan: func(a, _ complex128) complex128 { return cmplx.Tan(a) },
		Asin: func(a, _ complex128) complex128 { return cmplx.Asin(a) }, Acos: func(a, _ complex128) complex128 { return cmplx.Acos(a) },
		Atan: func(a, _ complex128) complex128 { return cmplx.Atan(a) }, Sinh: func(a, _ complex128) complex128 { return cmplx.Sinh(a) },
		Cosh: func(a, _ complex128) complex128 { return cmplx.Cosh(a) }, Tanh: func(a, _ complex128) complex128 { return cmplx.Tanh(a) },
		Asinh: func(a, _ complex128) complex128 {
			return cmplx.Asinh(a)
		}, Acosh: func(a, _ complex128) complex128 { return cmplx.Acosh(a) },
		Atanh: func(a, _ complex128) complex128 { return cmplx.Atanh(a) }, Pow: func(a, b complex128) complex128 { return cmplx.Pow(a, b) },
		Sigmoid: func(a, _ complex128) complex128 {
			return 1 / (1 + cmplx.Exp(-a))
		}, Abs: func(a, _ complex128) complex128 { return complex(cmplx.Abs(a), 0) },
		Angle: func(a, _ complex128) complex128 {
			return complex(cmplx.Phase(a), 0)
		}, Sgn: func(a, _ complex128) complex128 { return a / complex(cmplx.Abs(a), 0) },
		SiLU: func(a, _ complex128) complex128 { return a / (1 + cmplx.Exp(-a)) },
	}
	h := newHost(t)
	rng := rand.New(rand.NewPCG(15, 16))
	for _, op := range PointOps() {
		ref, ok := refs[op]
		if !ok {
			continue
		}
		for _, dt := range []dtype.DType{dtype.Complex64, dtype.Complex128} {
			tol := 2e-4
			if dt == dtype.Complex128 {
				tol = 1e-10
			}
			a, b, out := h.random(rng, dt, 101), h.random(rng, dt, 101), h.empty(dt, 101)
			for _, o := range []Operand{a, b} {
				h.write(o, func(int) complex128 { return complex(rng.Float64()*6-3.01, rng.Float64()*6-3.01) })
			}
			check(t, Pointwise(h, op, dt, nil, []Operand{out}, []Operand{a, b}[:op.Ins]))
			x, y := h.readComplex(a), h.readComplex(b)
			for i, v := range h.readComplex(out) {
				if want := ref(x[i], y[i]); cmplx.Abs(v-want) > tol*math.Max(1, cmplx.Abs(want)) {
					t.Fatalf("%s %v of %v and %v is %v, want %v", op.Name, dt, x[i], y[i], v, want)
				}
			}
		}
	}
}

func TestPointOpsThatSeeIndexes(t *testing.T) {
	for _, limit := range []int{1<<31 - 1, 20} {
		h := newHost(t)
		h.index32 = limit
		run := func(op *PointOp, dt dtype.DType, ins []Operand, scalars []Scalar, out Operand, want func(n int) float64) {
			t.Helper()
			check(t, Pointwise(h, op, dt, scalars, []Operand{out}, ins))
			for i, v := range h.read(out) {
				if v != want(i) {
					t.Fatalf("%s %v limit %d: element %d is %v, want %v", op.Name, dt, limit, i, v, want(i))
				}
			}
		}
		run(Arange, dtype.Int64, nil, []Scalar{IntScalar(5), IntScalar(-3)}, h.empty(dtype.Int64, 70), func(n int) float64 {
			return float64(5 - 3*n)
		})
		run(Arange, dtype.Float32, nil, []Scalar{FloatScalar(0.5), FloatScalar(0.25)}, h.empty(dtype.Float16, 70), func(n int) float64 {
			return 0.5 + 0.25*float64(n)
		})
		run(Linspace, dtype.Float32, nil, []Scalar{FloatScalar(1), FloatScalar(3), FloatScalar(0.25), IntScalar(9)},
			h.empty(dtype.Float32, 9), func(n int) float64 { return 1 + 0.25*float64(n) })
		for _, out := range []Operand{h.empty(dtype.Float32, 6, 9), permuted(h.empty(dtype.Float32, 9, 6), 1, 0),
			expandedOut2(h.empty(dtype.Float32, 6, 2, 9))} {
			run(Eye, dtype.Float32, nil, []Scalar{IntScalar(9)}, out, func(n int) float64 { return truthRef(n/9 == n%9) })
		}
		x := h.random(rand.New(rand.NewPCG(1, 1)), dtype.Float32, 3, 6, 9)
		xs := h.read(x)
		for _, d := range []int64{-2, 0, 1} {
			s := []Scalar{IntScalar(6), IntScalar(9), IntScalar(d)}
			run(Tril, dtype.Float32, []Operand{x}, s, h.empty(dtype.Float32, 3, 6, 9), func(n int) float64 {
				return xs[n] * truthRef(int64(n%9-n/9%6) <= d)
			})
			run(Triu, dtype.Float32, []Operand{x}, s, permuted(h.empty(dtype.Float32, 9, 6, 3), 2, 1, 0), func(n int) float64 {
				return xs[n] * truthRef(int64(n%9-n/9%6) >= d)
			})
		}
		labels := h.of(dtype.Int64, []float64{3, 0, 2, 1}, 4, 1)
		run(OneHot, dtype.Int64, []Operand{expanded(labels, 4, 5)}, []Scalar{IntScalar(5)}, h.empty(dtype.Int64, 4, 5),
			func(n int) float64 { return truthRef([]int{3, 0, 2, 1}[n/5] == n%5) })
	}
}

// expandedOut2 returns o[:, 0].
func expandedOut2(o Operand) Operand {
	return Operand{Ptr: o.Ptr, DType: o.DType, Shape: []int{o.Shape[0], o.Shape[2]}, Stride: []int{o.Stride[0], o.Stride[2]}}
}

// TestPointOpsBuild builds every op for every type that PyTorch supports for it, which checks that types match throughout.
func TestPointOpsBuild(t *testing.T) {
	seen := map[string]bool{}
	for i, op := range PointOps() {
		if int(op.id) != i || seen[op.Name] {
			t.Errorf("%s: id %d at place %d, or a name used twice", op.Name, op.id, i)
		}
		seen[op.Name] = true
		s := Spec{Family: FamilyPointwise, Op: op.id, Compute: dtype.Float32, Outs: uint8(op.Outs), Ins: uint8(op.Ins), Index: 32, Vec: 4}
		for j := range op.Outs + op.Ins {
			s.DTypes[j] = dtype.Float16
		}
		if op == BitwiseNot || op == BitwiseAnd || op == BitwiseOr || op == BitwiseXor || op == LeftShift || op == RightShift {
			s.Compute = dtype.Int32
		}
		if _, err := Build(&s).Program(); err != nil {
			t.Errorf("%s: %v", op.Name, err)
		}
	}
}
