// Package mathtest checks the functions of package math: it lists them with their references and measures errors in units in the last
// place. It must not run kernels: it compares outputs that a caller computed.
package mathtest

import (
	"math"
	"math/big"
	"runtime"
	"sync"

	"tenon.dev/internal/kernels/math/bigref"
	"tenon.dev/kernel"

	kmath "tenon.dev/internal/kernels/math"
)

// Limit is the maximum error in units in the last place.
const Limit = 2

// Unary is a function of one argument.
type Unary struct {
	Name string
	// Build emits the function.
	Build func(k *kernel.Builder, x kernel.Value) kernel.Value
	// Ref is the reference in float64, including all special values; it is accurate enough to judge float32.
	Ref func(x float64) float64
	// Big is the reference for float64, used where Ref is finite and not zero.
	Big func(x *big.Float) *big.Float
	// Lo and Hi bound the arguments for which Big is compared.
	Lo, Hi float64
}

// Binary is a function of two arguments; Big as for Unary.
type Binary struct {
	Name  string
	Build func(k *kernel.Builder, x, y kernel.Value) kernel.Value
	Ref   func(x, y float64) float64
	Big   func(x, y *big.Float) *big.Float
}

func sigmoid(x float64) float64 {
	if x < 0 {
		return math.Exp(x) / (1 + math.Exp(x))
	}
	return 1 / (1 + math.Exp(-x))
}

func softplus(x float64) float64 { return math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

func bigSoftplus(x *big.Float) *big.Float {
	e := bigref.Log1p(bigref.Exp(new(big.Float).Neg(new(big.Float).Abs(x))))
	if x.Sign() > 0 {
		e.Add(e, x)
	}
	return e
}

func neg(x *big.Float) *big.Float { return new(big.Float).Neg(x) }

func bigSigmoid(x *big.Float) *big.Float {
	one := bigref.Of(1)
	d := bigref.Exp(neg(x))
	return new(big.Float).SetPrec(bigref.Prec).Quo(one, d.Add(d, one))
}

// positive maps arguments into the domain of functions that take positive normal numbers; positiveRef does the same for the reference.
func positive(x kernel.Value) kernel.Value {
	return x.Abs().Min(x.Like(math.MaxFloat32)).Max(x.Like(0x1p-126))
}

func positiveRef(x float64) float64 {
	if x != x {
		return math.MaxFloat32
	}
	return max(min(math.Abs(x), math.MaxFloat32), 0x1p-126)
}

// quarter is π/4 in float32, rounded down.
const quarter = 0x1.921fb4p-1

// small clamps arguments to -π/4 … π/4, and maps -0 to 0.
func small(x kernel.Value) kernel.Value {
	return x.Min(x.Like(quarter)).Max(x.Like(-quarter)).Add(x.Like(0))
}

func smallRef(x float64) float64 {
	if x != x {
		return quarter
	}
	return max(min(x, quarter), -quarter) + 0
}

// half is the greatest float32 below π/2.
const half = 0x1.921fb4p+0

func halfRef(x float64) float64 {
	if x != x {
		return half
	}
	return max(min(x, half), -half)
}

// Functions are the functions of one argument.
var Functions = []Unary{
	{"exp", kmath.Exp, math.Exp, bigref.Exp, -746, 710},
	{"exp_nonpositive", func(k *kernel.Builder, x kernel.Value) kernel.Value { return kmath.ExpNonPositive(k, x.Abs().Neg()) },
		func(x float64) float64 { return math.Exp(-math.Abs(x)) },
		func(x *big.Float) *big.Float { return bigref.Exp(neg(new(big.Float).Abs(x))) }, -746, 746},
	{"exp_number", func(k *kernel.Builder, x kernel.Value) kernel.Value {
		return kmath.ExpNumber(k, x.IsNaN().Select(x.Like(0), x))
	}, func(x float64) float64 {
		if x != x {
			return 1
		}
		return math.Exp(x)
	}, bigref.Exp, -746, 710},
	{"exp2", kmath.Exp2, math.Exp2, bigref.Exp2, -1076, 1024},
	{"expm1", kmath.Expm1, math.Expm1, bigref.Expm1, -60, 710},
	{"log", kmath.Log, math.Log, bigref.Log, 0, math.MaxFloat64},
	{"log_positive", func(k *kernel.Builder, x kernel.Value) kernel.Value {
		return kmath.LogPositive(k, positive(x), -2).Mul(x.Like(-0.5)).Add(x.Like(0)) // -0 becomes 0
	}, func(x float64) float64 { return math.Log(positiveRef(x)) }, bigref.Log, 0x1p-126, math.MaxFloat32},
	{"log2", kmath.Log2, math.Log2, bigref.Log2, 0, math.MaxFloat64},
	{"log10", kmath.Log10, math.Log10, bigref.Log10, 0, math.MaxFloat64},
	{"log1p", kmath.Log1p, math.Log1p, bigref.Log1p, -1, math.MaxFloat64},
	{"sin", kmath.Sin, math.Sin, bigref.Sin, -math.MaxFloat64, math.MaxFloat64},
	{"cos", kmath.Cos, math.Cos, bigref.Cos, -math.MaxFloat64, math.MaxFloat64},
	{"tan", kmath.Tan, math.Tan, bigref.Tan, -math.MaxFloat64, math.MaxFloat64},
	{"tan_half_turn", func(k *kernel.Builder, x kernel.Value) kernel.Value {
		return kmath.TanHalfTurn(k, x.Min(x.Like(half)).Max(x.Like(-half)))
	}, func(x float64) float64 { return math.Tan(halfRef(x)) }, bigref.Tan, -half, half},
	{"asin", kmath.Asin, math.Asin, bigref.Asin, -1, 1},
	{"acos", kmath.Acos, math.Acos, bigref.Acos, -1, 1},
	{"atan", kmath.Atan, math.Atan, bigref.Atan, -math.MaxFloat64, math.MaxFloat64},
	{"sinh", kmath.Sinh, math.Sinh, bigref.Sinh, -711, 711},
	{"cosh", kmath.Cosh, math.Cosh, bigref.Cosh, -711, 711},
	{"tanh", kmath.Tanh, math.Tanh, bigref.Tanh, -60, 60},
	{"asinh", kmath.Asinh, math.Asinh, bigref.Asinh, -math.MaxFloat64, math.MaxFloat64},
	{"acosh", kmath.Acosh, math.Acosh, bigref.Acosh, 1, math.MaxFloat64},
	{"atanh", kmath.Atanh, math.Atanh, bigref.Atanh, -1, 1},
	{"erf", kmath.Erf, math.Erf, bigref.Erf, -7, 7},
	{"erfc", kmath.Erfc, math.Erfc, bigref.Erfc, -7, 28},
	{"erfinv", kmath.Erfinv, math.Erfinv, bigref.Erfinv, -1, 1},
	{"sqrt_positive", func(k *kernel.Builder, x kernel.Value) kernel.Value {
		return kmath.SqrtPositive(k, x.Eq(x.Like(0)).Select(x, positive(x)))
	}, func(x float64) float64 {
		if x == 0 {
			return x
		}
		return math.Sqrt(positiveRef(x))
	}, bigref.Sqrt, 0x1p-126, math.MaxFloat32},
	{"sin_small", func(k *kernel.Builder, x kernel.Value) kernel.Value { s, _ := kmath.SinCosSmall(k, small(x)); return s },
		func(x float64) float64 { return math.Sin(smallRef(x)) }, bigref.Sin, -quarter, quarter},
	{"cos_small", func(k *kernel.Builder, x kernel.Value) kernel.Value { _, c := kmath.SinCosSmall(k, small(x)); return c },
		func(x float64) float64 { return math.Cos(smallRef(x)) }, bigref.Cos, -quarter, quarter},
	{"rsqrt", kmath.Rsqrt, func(x float64) float64 { return 1 / math.Sqrt(x) }, func(x *big.Float) *big.Float {
		return new(big.Float).SetPrec(bigref.Prec).Quo(bigref.Of(1), bigref.Sqrt(x))
	}, 0, math.MaxFloat64},
	{"sigmoid", kmath.Sigmoid, sigmoid, bigSigmoid, -746, 60},
	{"softplus", kmath.Softplus, softplus, bigSoftplus, -746, math.MaxFloat64},
	{"log_sigmoid", kmath.LogSigmoid, func(x float64) float64 { return -softplus(-x) },
		func(x *big.Float) *big.Float { return neg(bigSoftplus(neg(x))) }, -math.MaxFloat64, 746},
}

// Pairs are the functions of two arguments that round.
var Pairs = []Binary{
	{"pow", kmath.Pow, math.Pow, bigPow},
	{"atan2", kmath.Atan2, math.Atan2, bigref.Atan2},
	{"hypot", kmath.Hypot, math.Hypot, bigref.Hypot},
}

// bigPow accepts negative x for integers y.
func bigPow(x, y *big.Float) *big.Float {
	if x.Sign() > 0 {
		return bigref.Pow(x, y)
	}
	p := bigref.Pow(neg(x), y)
	if n, _ := y.Int(nil); n.Bit(0) == 1 {
		p.Neg(p)
	}
	return p
}

// Ulps32 returns the distance of got from want in units in the last place of float32 at want. Results beyond the largest number count as
// 2^128. A wrong NaN or a zero of the wrong sign is infinitely far.
func Ulps32(got float32, want float64) float64 {
	g := float64(got)
	switch {
	case math.IsNaN(want) || math.IsNaN(g):
		if math.IsNaN(want) && math.IsNaN(g) {
			return 0
		}
		return math.Inf(1)
	case g == 0 && math.Signbit(g) != math.Signbit(want):
		return math.Inf(1)
	}
	const top = 1 << 128
	g, want = max(min(g, top), -top), max(min(want, top), -top)
	e := max(int(math.Float64bits(want)>>52&0x7ff)-1023, -126)
	return math.Abs(g-want) * math.Float64frombits(uint64(23-e+1023)<<52)
}

// Ulps64 is Ulps32 for float64; want holds more bits.
func Ulps64(got float64, want *big.Float) float64 {
	switch {
	case math.IsNaN(got):
		return math.Inf(1)
	case got == 0 && math.Signbit(got) != want.Signbit():
		return math.Inf(1)
	}
	top := new(big.Float).SetMantExp(big.NewFloat(1), 1024)
	g := new(big.Float).SetPrec(bigref.Prec)
	if math.IsInf(got, 0) {
		if g.Set(top); got < 0 {
			g.Neg(g)
		}
	} else {
		g.SetFloat64(got)
	}
	w := new(big.Float).SetPrec(bigref.Prec).Set(want)
	if new(big.Float).Abs(w).Cmp(top) > 0 {
		if w.Set(top); want.Signbit() {
			w.Neg(w)
		}
	}
	e := max(w.MantExp(nil)-1, -1022)
	d, _ := g.Sub(g, w).Float64()
	return math.Abs(math.Ldexp(d, 52-e))
}

// Worst is the largest error found, and where.
type Worst struct {
	Ulps float64
	// X is the argument, Got the result, Want the reference.
	X, Got float32
	Want   float64
	// Over counts the arguments whose error exceeds Limit.
	Over int
}

// Compare checks out[i], the function's float32 result for the argument with the bits first+i, on all processors.
func (u *Unary) Compare(first uint32, out []float32) Worst {
	return u.judge(out, func(i int) float32 { return math.Float32frombits(first + uint32(i)) })
}

// Judge is Compare for arbitrary arguments.
func (u *Unary) Judge(args, out []float32) Worst {
	return u.judge(out, func(i int) float32 { return args[i] })
}

func (u *Unary) judge(out []float32, arg func(i int) float32) Worst {
	n := runtime.GOMAXPROCS(0)
	parts := make([]Worst, n)
	var wg sync.WaitGroup
	for p := range n {
		lo, hi := len(out)*p/n, len(out)*(p+1)/n
		wg.Go(func() {
			w := Worst{}
			for i := lo; i < hi; i++ {
				w.Add(u, arg(i), out[i])
			}
			parts[p] = w
		})
	}
	wg.Wait()
	all := Worst{}
	for _, w := range parts {
		all.Join(w)
	}
	return all
}

// Join adds the findings of v.
func (w *Worst) Join(v Worst) {
	over := w.Over + v.Over
	if v.Ulps > w.Ulps {
		*w = v
	}
	w.Over = over
}

// Add checks one result.
func (w *Worst) Add(u *Unary, x, got float32) {
	want := u.Ref(float64(x))
	e := Ulps32(got, want)
	if e > Limit {
		w.Over++
	}
	if e > w.Ulps {
		w.Ulps, w.X, w.Got, w.Want = e, x, got, want
	}
}
