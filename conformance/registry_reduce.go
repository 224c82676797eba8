package conformance

import (
	"tenon.dev"
	"tenon.dev/linalg"
)

// sumLike registers a reduction with the options of sums.
func sumLike(name string, f func(x *tenon.Exec, t *tenon.Tensor, dims []int, opt ...tenon.SumOpt) *tenon.Tensor) {
	offer(name, func(x *tenon.Exec, a *args) any {
		return f(x, a.tensor(0, "input"), a.ints(1, "dim"), tenon.SumOpt{KeepDim: a.bool(2, "keepdim", false), DType: a.dtype(-1, "dtype")})
	})
}

// keepLike registers a reduction whose only option is to keep dimensions.
func keepLike(name string, f func(x *tenon.Exec, t *tenon.Tensor, dims []int, opt ...tenon.DimOpt) *tenon.Tensor) {
	offer(name, func(x *tenon.Exec, a *args) any {
		return f(x, a.tensor(0, "input"), a.ints(1, "dim"), tenon.DimOpt{KeepDim: a.bool(2, "keepdim", false)})
	})
}

// extreme registers max or min: of two tensors, along a dimension, or of all elements.
func extreme(name string, pair func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor, along func(x *tenon.Exec, t *tenon.Tensor, dim int,
	opt ...tenon.DimOpt) (v, i *tenon.Tensor), all func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor) {
	offer(name, func(x *tenon.Exec, a *args) any {
		t := a.tensor(0, "input")
		switch {
		case a.isTensor(1, "other"):
			return pair(x, t, a.tensor(1, "other"))
		case a.has(1, "dim"):
			v, i := along(x, t, a.int(1, "dim", 0), tenon.DimOpt{KeepDim: a.bool(2, "keepdim", false)})
			return []*tenon.Tensor{v, i}
		}
		return all(x, t)
	})
}

// variance registers var or std.
func variance(name string, f func(x *tenon.Exec, t *tenon.Tensor, dims []int, opt ...tenon.VarOpt) *tenon.Tensor) {
	offer(name, func(x *tenon.Exec, a *args) any {
		return varianceCall(a, func(t *tenon.Tensor, dims []int, opt ...tenon.VarOpt) *tenon.Tensor { return f(x, t, dims, opt...) })
	})
}

// varianceCall reads the arguments of a variance: (input, unbiased), (input, dim, unbiased, keepdim) or with a correction.
func varianceCall(a *args, f func(t *tenon.Tensor, dims []int, opt ...tenon.VarOpt) *tenon.Tensor) *tenon.Tensor {
	t := a.tensor(0, "input")
	correction := a.float(-1, "correction", 1)
	if !a.bool(-1, "unbiased", true) {
		correction = 0
	}
	opt := tenon.VarOpt{KeepDim: a.bool(3, "keepdim", false), Correction: correction}
	if unbiased, ok := a.get(1, "dim").(bool); ok {
		if !unbiased {
			opt.Correction = 0
		}
		return f(t, nil, opt)
	}
	return f(t, a.ints(1, "dim"), opt)
}

// Reductions.
func init() {
	sumLike("sum", (*tenon.Exec).Sum)
	sumLike("nansum", (*tenon.Exec).NanSum)
	sumLike("mean", (*tenon.Exec).Mean)
	sumLike("prod", (*tenon.Exec).Prod)
	keepLike("amax", (*tenon.Exec).AMax)
	keepLike("amin", (*tenon.Exec).AMin)
	keepLike("argmax", (*tenon.Exec).ArgMax)
	keepLike("argmin", (*tenon.Exec).ArgMin)
	keepLike("all", (*tenon.Exec).All)
	keepLike("any", (*tenon.Exec).Any)
	keepLike("logsumexp", (*tenon.Exec).LogSumExp)
	extreme("max", (*tenon.Exec).Maximum, (*tenon.Exec).MaxDim, (*tenon.Exec).Max)
	extreme("min", (*tenon.Exec).Minimum, (*tenon.Exec).MinDim, (*tenon.Exec).Min)
	variance("var", (*tenon.Exec).Var)
	variance("std", (*tenon.Exec).Std)
	offer("var_mean", func(x *tenon.Exec, a *args) any {
		var all []*tenon.Tensor
		varianceCall(a, func(t *tenon.Tensor, dims []int, opt ...tenon.VarOpt) *tenon.Tensor {
			v, m := x.VarMean(t, dims, opt...)
			all = []*tenon.Tensor{v, m}
			return v
		})
		return all
	})
	offer("count_nonzero", func(x *tenon.Exec, a *args) any { return x.CountNonzero(a.tensor(0, "input"), a.ints(1, "dim")) })
	offer("linalg.vector_norm", func(x *tenon.Exec, a *args) any {
		return x.VectorNorm(a.tensor(0, "input"), a.ints(2, "dim"), tenon.VectorNormOpt{Ord: a.option(1, "ord"),
			KeepDim: a.bool(3, "keepdim", false), DType: a.dtype(-1, "dtype")})
	})
	offer("norm", func(x *tenon.Exec, a *args) any {
		t, dims, opt := a.tensor(0, "input"), a.ints(2, "dim"), tenon.SumOpt{KeepDim: a.bool(3, "keepdim", false),
			DType: a.dtype(-1, "dtype")}
		if s, ok := a.get(1, "p").(string); ok {
			if s == "nuc" {
				return linalg.NuclearNorm(x, t, dims, opt)
			}
			if s != "fro" {
				a.wrong("p", s)
			}
			return x.VectorNorm(t, dims, tenon.VectorNormOpt{KeepDim: opt.KeepDim, DType: opt.DType})
		}
		return x.VectorNorm(t, dims, tenon.VectorNormOpt{Ord: a.option(1, "p"), KeepDim: opt.KeepDim, DType: opt.DType})
	})
}

func init() {
	offer(attentionOp, func(x *tenon.Exec, a *args) any {
		return x.ScaledDotProductAttention(a.tensor(0, "query"), a.tensor(1, "key"), a.tensor(2, "value"),
			tenon.AttentionOpt{Causal: a.bool(5, "is_causal", false), Dropout: a.float(4, "dropout_p", 0)})
	})
}

// Softmaxes.
func init() {
	for name, f := range map[string]func(x *tenon.Exec, t *tenon.Tensor, dim int, opt ...tenon.SoftmaxOpt) *tenon.Tensor{
		"softmax": (*tenon.Exec).Softmax, "log_softmax": (*tenon.Exec).LogSoftmax,
	} {
		offer(name, func(x *tenon.Exec, a *args) any {
			return f(x, a.tensor(0, "input"), a.int(1, "dim", -1), tenon.SoftmaxOpt{DType: a.dtype(-1, "dtype")})
		})
	}
}
