package kernels

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// simple registers a reduction whose state is one number. f folds, starting at init, the numbers that lift returns for the elements.
func simple(name string, init func(t dtype.DType) float64, lift func(r *Reduction, x Num) Num, fold func(a, b Num) Num,
	finish func(r *Reduction, a Num) Num) *ReduceOp {
	return reduction(ReduceOp{Name: name,
		State: parts,
		Init:  func(r *Reduction) []kernel.Value { return pack(constant(r.K, stateNum(r.T), init(stateNum(r.T)))) },
		Step: func(r *Reduction, a []kernel.Value, in []Num, _ kernel.Value) []kernel.Value {
			x := unpack(pack(in[0]))
			if lift != nil {
				x = lift(r, x)
			}
			return pack(fold(unpack(a), x))
		},
		Combine: func(_ *Reduction, a, b []kernel.Value) []kernel.Value { return pack(fold(unpack(a), unpack(b))) },
		Finish: func(r *Reduction, a []kernel.Value) []Num {
			if finish != nil {
				return []Num{finish(r, unpack(a))}
			}
			return []Num{unpack(a)}
		},
	})
}

// stateNum is stateType for complex types too.
func stateNum(t dtype.DType) dtype.DType {
	if t.IsComplex() {
		return t
	}
	return stateType(t)
}

func zeroInit(dtype.DType) float64 { return 0 }
func oneInit(dtype.DType) float64  { return 1 }

func addNum(a, b Num) Num { return a.Add(b) }
func mulNum(a, b Num) Num { return a.Mul(b) }

// count returns the number of reduced elements as a number of type t.
func (r *Reduction) count(t dtype.DType) kernel.Value { return r.N.Convert(t) }

func meanOf(r *Reduction, a Num) Num {
	n := r.count(a.Re.Type())
	if a.IsComplex() {
		return Num{a.Re.Div(n), a.Im.Div(n)}
	}
	return Num{Re: a.Re.Div(n)}
}

// Sums and products. Integers wrap in the compute type.
var (
	// Sum, Mean and Prod compute in the compute type (Float32 for the halves).
	Sum  = simple("sum", zeroInit, nil, addNum, nil)
	Mean = simple("mean", zeroInit, nil, addNum, meanOf)
	Prod = simple("prod", oneInit, nil, mulNum, nil)
	// NanSum ignores NaN.
	NanSum = simple("nansum", zeroInit, func(_ *Reduction, x Num) Num { return choose(x.IsNaN(), x.like(0), x) }, addNum, nil)
)

func greater(a, b Num) Num { return Num{Re: maximum(a.Re, b.Re)} }
func lesser(a, b Num) Num  { return Num{Re: minimum(a.Re, b.Re)} }

func absNum(_ *Reduction, x Num) Num { return Num{Re: x.Re.Abs()} }

// Extremes and norms of real numbers. A NaN anywhere gives NaN.
var (
	AMax = extreme("amax", true)
	AMin = extreme("amin", false)
	// Norm1, Norm2, NormInf and NormNegInf are the vector norms of orders 1, 2, ∞ and -∞; Norm0 counts the nonzero elements.
	Norm0 = simple("norm0", zeroInit, func(_ *Reduction, x Num) Num {
		return Num{Re: x.Re.Ne(x.Re.Like(0)).Select(x.Re.Like(1), x.Re.Like(0))}
	}, addNum, nil)
	Norm1 = simple("norm1", zeroInit, absNum, addNum, nil)
	Norm2 = simple("norm2", zeroInit, func(_ *Reduction, x Num) Num { return x.Mul(x) }, addNum,
		func(_ *Reduction, a Num) Num { return Num{Re: a.Re.Sqrt()} })
	NormInf    = unordered(simple("norminf", zeroInit, absNum, greater, nil))
	NormNegInf = unordered(withInit(simple("normneginf", zeroInit, absNum, lesser, nil), false))
)

// extremeInit is the identity of max (or min) of state type t.
func extremeInit(k *kernel.Builder, t dtype.DType, max bool) kernel.Value {
	switch {
	case t == dtype.Int32 && max:
		return k.Int(t, math.MinInt32)
	case t == dtype.Int32:
		return k.Int(t, math.MaxInt32)
	case t == dtype.Int64 && max:
		return k.Int(t, math.MinInt64)
	case t == dtype.Int64:
		return k.Int(t, math.MaxInt64)
	case max:
		return k.Const(t, math.Inf(-1))
	}
	return k.Const(t, math.Inf(1))
}

func extreme(name string, max bool) *ReduceOp {
	fold := lesser
	if max {
		fold = greater
	}
	return unordered(withInit(simple(name, zeroInit, nil, fold, nil), max))
}

func unordered(op *ReduceOp) *ReduceOp {
	op.Unordered = true
	return op
}

// withInit makes op start at the identity of max (or min).
func withInit(op *ReduceOp, max bool) *ReduceOp {
	op.Init = func(r *Reduction) []kernel.Value { return []kernel.Value{extremeInit(r.K, stateType(r.T), max)} }
	return op
}

// Extremes with their positions among the reduced elements (Int64). A NaN counts as the extreme; of equal elements the first is taken.
var (
	// MaxIndex and MinIndex return the value and its position.
	MaxIndex = extremeIndex("max_index", true, true)
	MinIndex = extremeIndex("min_index", false, true)
	// ArgMax and ArgMin return only the position.
	ArgMax = extremeIndex("argmax", true, false)
	ArgMin = extremeIndex("argmin", false, false)
)

func extremeIndex(name string, max, value bool) *ReduceOp {
	combine := func(_ *Reduction, a, b []kernel.Value) []kernel.Value {
		x, y := a[0], b[0]
		better := y.Lt(x)
		if max {
			better = y.Gt(x)
		}
		equal := x.Eq(y)
		if x.Type().IsFloat() {
			xn, yn := x.IsNaN(), y.IsNaN()
			better = better.Or(yn.And(xn.Not()))
			equal = equal.Or(xn.And(yn))
		}
		take := better.Or(equal.And(b[1].Lt(a[1])))
		return []kernel.Value{take.Select(y, x), take.Select(b[1], a[1])}
	}
	op := ReduceOp{Name: name, Indexed: true, Dear: true, Outs: 1,
		State: func(t dtype.DType) []dtype.DType { return []dtype.DType{stateType(t), dtype.Int64} },
		Init: func(r *Reduction) []kernel.Value {
			return []kernel.Value{extremeInit(r.K, stateType(r.T), max), r.K.I64(math.MaxInt64)}
		},
		Step: func(r *Reduction, a []kernel.Value, in []Num, i kernel.Value) []kernel.Value {
			return combine(r, a, []kernel.Value{in[0].Re.Convert(stateType(r.T)), i})
		},
		Combine: combine,
		Finish:  func(_ *Reduction, a []kernel.Value) []Num { return []Num{{Re: a[1]}} },
	}
	if value {
		op.Outs = 2
		op.Finish = func(_ *Reduction, a []kernel.Value) []Num { return []Num{{Re: a[0]}, {Re: a[1]}} }
	}
	return reduction(op)
}

// truth registers a reduction of bools.
func truth(name string, state dtype.DType, init int, fold func(a, b kernel.Value) kernel.Value) *ReduceOp {
	return reduction(ReduceOp{Name: name, InTypes: []dtype.DType{dtype.Bool}, Unordered: true,
		State: func(dtype.DType) []dtype.DType { return []dtype.DType{state} },
		Init:  func(r *Reduction) []kernel.Value { return []kernel.Value{r.K.Int(state, int64(init))} },
		Step: func(_ *Reduction, a []kernel.Value, in []Num, _ kernel.Value) []kernel.Value {
			return []kernel.Value{fold(a[0], in[0].Re.Convert(state))}
		},
		Combine: func(_ *Reduction, a, b []kernel.Value) []kernel.Value { return []kernel.Value{fold(a[0], b[0])} },
		Finish:  func(_ *Reduction, a []kernel.Value) []Num { return []Num{{Re: a[0]}} },
	})
}

// Reductions of nonzero elements; a complex number is nonzero if either part is.
var (
	// All and Any return 0 or 1.
	All = truth("all", dtype.Int32, 1, func(a, b kernel.Value) kernel.Value { return a.And(b) })
	Any = truth("any", dtype.Int32, 0, func(a, b kernel.Value) kernel.Value { return a.Or(b) })
	// CountNonzero returns an Int64.
	CountNonzero = truth("count_nonzero", dtype.Int64, 0, func(a, b kernel.Value) kernel.Value { return a.Add(b) })
)

// Variances: one pass after B. P. Welford, "Note on a method for calculating corrected sums of squares and products", Technometrics 4
// (1962); parts are combined after T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm" (1979). Scalar 0 is the
// correction: the sum of squares is divided by max(0, n - correction).
var (
	Var = welford("var", func(_ *Reduction, _, v kernel.Value) []Num { return []Num{{Re: v}} })
	Std = welford("std", func(_ *Reduction, _, v kernel.Value) []Num { return []Num{{Re: v.Sqrt()}} })
	// VarMean returns the variance and the mean.
	VarMean = welford("var_mean", func(_ *Reduction, m, v kernel.Value) []Num { return []Num{{Re: v}, {Re: m}} })
)

func welfordStep(a []kernel.Value, x kernel.Value) []kernel.Value {
	mean, m2, n := a[0], a[1], a[2].Add(a[2].Like(1))
	d := x.Sub(mean)
	mean = mean.Add(d.Div(n))
	return []kernel.Value{mean, d.FMA(x.Sub(mean), m2), n}
}

func welfordCombine(a, b []kernel.Value) []kernel.Value {
	n := a[2].Add(b[2])
	d := b[0].Sub(a[0])
	zero := n.Eq(n.Like(0))
	share := zero.Select(n.Like(0), b[2].Div(n))
	mean := d.FMA(share, a[0])
	m2 := a[1].Add(b[1]).Add(d.Mul(d).Mul(a[2]).Mul(share))
	return []kernel.Value{mean, m2, n}
}

func welford(name string, finish func(r *Reduction, mean, variance kernel.Value) []Num) *ReduceOp {
	outs := 1
	if name == "var_mean" {
		outs = 2
	}
	return reduction(ReduceOp{Name: name, Scalars: 1, Outs: outs,
		State: func(t dtype.DType) []dtype.DType { return []dtype.DType{opmath(t), opmath(t), opmath(t)} },
		Init: func(r *Reduction) []kernel.Value {
			z := r.K.Const(r.T, 0)
			return []kernel.Value{z, z, z}
		},
		Step: func(_ *Reduction, a []kernel.Value, in []Num, _ kernel.Value) []kernel.Value {
			return welfordStep(a, in[0].Re)
		},
		Combine: func(_ *Reduction, a, b []kernel.Value) []kernel.Value { return welfordCombine(a, b) },
		Finish: func(r *Reduction, a []kernel.Value) []Num {
			none := a[2].Eq(a[2].Like(0))
			nan := a[2].Like(math.NaN())
			div := a[2].Sub(r.S[0].Re).Max(a[2].Like(0))
			return finish(r, none.Select(nan, a[0]), none.Select(nan, a[1].Div(div)))
		},
	})
}
