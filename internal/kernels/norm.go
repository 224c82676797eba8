package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Softmax stores e^x / Σe^x along dimension dim or, with log, its logarithm. out and in have one shape and real types.
func Softmax(is Issuer, log bool, compute dtype.DType, out, in Operand, dim int) error {
	op := softmaxOp
	if log {
		op = logSoftmaxOp
	}
	outs, ins := [...]Operand{out}, [...]Operand{in}
	return runRows(is, op, compute, nil, outs[:], ins[:], dim)
}

// SoftmaxBackward stores the gradient of Softmax's input, computed from the gradient of its result and the result.
func SoftmaxBackward(is Issuer, log bool, compute dtype.DType, gradIn, grad, result Operand, dim int) error {
	op := softmaxBackwardOp
	if log {
		op = logSoftmaxBackwardOp
	}
	outs, ins := [...]Operand{gradIn}, [...]Operand{grad, result}
	return runRows(is, op, compute, nil, outs[:], ins[:], dim)
}

// matrix is storage for the shape and strides of an operand viewed as rows.
type matrix struct{ shape, stride [2]int }

// row views a vector of n elements as one row that all rows of a matrix share; absent operands stay absent.
func (m *matrix) row(o Operand, rows, n int) Operand {
	if o.Ptr == 0 {
		return o
	}
	m.shape, m.stride = [2]int{rows, n}, [2]int{0, 1}
	if len(o.Stride) > 0 {
		m.stride[1] = o.Stride[len(o.Stride)-1]
	}
	return Operand{Ptr: o.Ptr, DType: o.DType, Shape: m.shape[:], Stride: m.stride[:]}
}

// column views a vector with one element per row as a matrix of n equal columns (n = 1: a column).
func (m *matrix) column(o Operand, rows, n int) Operand {
	m.shape, m.stride = [2]int{rows, n}, [2]int{1, 0}
	if len(o.Stride) > 0 {
		m.stride[0] = o.Stride[0]
	}
	return Operand{Ptr: o.Ptr, DType: o.DType, Shape: m.shape[:], Stride: m.stride[:]}
}

// same views a value that all rows share as one element for each row.
func (m *matrix) same(o Operand, rows int) Operand {
	m.shape, m.stride = [2]int{rows, 1}, [2]int{}
	return Operand{Ptr: o.Ptr, DType: o.DType, Shape: m.shape[:], Stride: m.stride[:]}
}

// LayerNorm stores (x - mean)·rstd·weight + bias for every row of x, where rstd = 1/√(variance + eps). x and y are matrices [rows, n] with
// any strides; mean and rstd are vectors [rows], of float32 for half inputs; weight and bias are vectors [n], or absent (Ptr 0).
func LayerNorm(is Issuer, compute dtype.DType, y, mean, rstd, x, weight, bias Operand, eps float64) error {
	var m [4]matrix
	rows, n := x.Shape[0], x.Shape[1]
	outs := [...]Operand{y, m[0].column(mean, rows, 1), m[1].column(rstd, rows, 1)}
	ins := [...]Operand{x, m[2].row(weight, rows, n), m[3].row(bias, rows, n)}
	s := [...]Scalar{FloatScalar(eps)}
	return runRows(is, layerNormOp, compute, s[:], outs[:], ins[:], 1)
}

// LayerNormBackward stores the gradients of LayerNorm's x, weight and bias; each of the three may be absent (Ptr 0). If x's is wanted with
// others and SumsByRows says so, one kernel makes them all.
func LayerNormBackward(is Issuer, compute dtype.DType, dx, dweight, dbias, dy, x, mean, rstd, weight Operand) error {
	var m [7]matrix
	rows, n := x.Shape[0], x.Shape[1]
	if dx.Ptr != 0 && (dweight.Ptr != 0 || dbias.Ptr != 0) && SumsByRows(is.Limits(), rows, n) {
		outs := [...]Operand{dx, m[5].row(dweight, rows, n), m[6].row(dbias, rows, n)}
		ins := [...]Operand{dy, x, m[0].column(mean, rows, 1), m[1].column(rstd, rows, 1), m[2].row(weight, rows, n)}
		switch {
		case dweight.Ptr == 0:
			outs[1] = outs[2]
			return runRows(is, layerNormBackwardBias, compute, nil, outs[:2], ins[:], 1)
		case dbias.Ptr == 0:
			return runRows(is, layerNormBackwardWeight, compute, nil, outs[:2], ins[:], 1)
		}
		return runRows(is, layerNormBackwardAffine, compute, nil, outs[:], ins[:], 1)
	}
	if dx.Ptr != 0 {
		outs := [...]Operand{dx}
		ins := [...]Operand{dy, x, m[0].column(mean, rows, 1), m[1].column(rstd, rows, 1), m[2].row(weight, rows, n)}
		if err := runRows(is, layerNormBackwardOp, compute, nil, outs[:], ins[:], 1); err != nil {
			return err
		}
	}
	over := [...]bool{true, false}
	mean, rstd = m[3].column(mean, rows, n), m[4].column(rstd, rows, n)
	switch {
	case dweight.Ptr != 0 && dbias.Ptr != 0:
		outs, ins := [...]Operand{dweight, dbias}, [...]Operand{dy, x, mean, rstd}
		return Reduce(is, normAffineGrad, compute, nil, outs[:], ins[:], over[:])
	case dweight.Ptr != 0:
		outs, ins := [...]Operand{dweight}, [...]Operand{dy, x, mean, rstd}
		return Reduce(is, normWeightGrad, compute, nil, outs[:], ins[:], over[:])
	case dbias.Ptr != 0:
		outs, ins := [...]Operand{dbias}, [...]Operand{dy}
		return Reduce(is, Sum, compute, nil, outs[:], ins[:], over[:])
	}
	return nil
}

// RMSNorm stores x·rstd·weight for every row of x, where rstd = 1/√(mean of squares + eps). Operands as in LayerNorm.
func RMSNorm(is Issuer, compute dtype.DType, y, rstd, x, weight Operand, eps float64) error {
	var m [2]matrix
	rows, n := x.Shape[0], x.Shape[1]
	outs := [...]Operand{y, m[0].column(rstd, rows, 1)}
	ins := [...]Operand{x, m[1].row(weight, rows, n)}
	s := [...]Scalar{FloatScalar(eps)}
	return runRows(is, rmsNormOp, compute, s[:], outs[:], ins[:], 1)
}

// RMSNormBackward stores the gradients of RMSNorm's x and weight; either may be absent (Ptr 0). If both are wanted and SumsByRows says so,
// one kernel makes them.
func RMSNormBackward(is Issuer, compute dtype.DType, dx, dweight, dy, x, rstd, weight Operand) error {
	var m [4]matrix
	rows, n := x.Shape[0], x.Shape[1]
	if dx.Ptr != 0 && dweight.Ptr != 0 && SumsByRows(is.Limits(), rows, n) {
		outs := [...]Operand{dx, m[3].row(dweight, rows, n)}
		ins := [...]Operand{dy, x, m[0].column(rstd, rows, 1), m[1].row(weight, rows, n)}
		return runRows(is, rmsNormBackwardWeight, compute, nil, outs[:], ins[:], 1)
	}
	if dx.Ptr != 0 {
		outs := [...]Operand{dx}
		ins := [...]Operand{dy, x, m[0].column(rstd, rows, 1), m[1].row(weight, rows, n)}
		if err := runRows(is, rmsNormBackwardOp, compute, nil, outs[:], ins[:], 1); err != nil {
			return err
		}
	}
	if dweight.Ptr == 0 {
		return nil
	}
	over := [...]bool{true, false}
	outs, ins := [...]Operand{dweight}, [...]Operand{dy, x, m[2].column(rstd, rows, n)}
	return Reduce(is, rmsWeightGrad, compute, nil, outs[:], ins[:], over[:])
}

// sums registers a reduction to several sums; terms returns what an element contributes to each.
func sums(name string, ins, outs int, terms func(in []kernel.Value) []kernel.Value) *ReduceOp {
	add := func(a, b []kernel.Value) []kernel.Value {
		out := make([]kernel.Value, len(a))
		for i := range a {
			out[i] = a[i].Add(b[i])
		}
		return out
	}
	return reduction(ReduceOp{Name: name, Ins: ins, Outs: outs,
		State: func(t dtype.DType) []dtype.DType {
			ts := make([]dtype.DType, outs)
			for i := range ts {
				ts[i] = stateType(t)
			}
			return ts
		},
		Init: func(r *Reduction) []kernel.Value {
			vs := make([]kernel.Value, outs)
			for i := range vs {
				vs[i] = r.K.Const(stateType(r.T), 0)
			}
			return vs
		},
		Step: func(_ *Reduction, a []kernel.Value, in []Num, _ kernel.Value) []kernel.Value {
			vs := make([]kernel.Value, len(in))
			for i := range in {
				vs[i] = in[i].Re
			}
			return add(a, terms(vs))
		},
		Combine: func(_ *Reduction, a, b []kernel.Value) []kernel.Value { return add(a, b) },
		Finish: func(_ *Reduction, a []kernel.Value) []Num {
			out := make([]Num, len(a))
			for i := range a {
				out[i] = realNum(a[i])
			}
			return out
		},
	})
}

var (
	// in: dy, x, mean, rstd; out: Σ dy·(x-mean)·rstd and Σ dy.
	normAffineGrad = sums("norm_affine_grad", 4, 2, func(in []kernel.Value) []kernel.Value {
		return []kernel.Value{in[0].Mul(in[1].Sub(in[2]).Mul(in[3])), in[0]}
	})
	normWeightGrad = sums("norm_weight_grad", 4, 1, func(in []kernel.Value) []kernel.Value {
		return []kernel.Value{in[0].Mul(in[1].Sub(in[2]).Mul(in[3]))}
	})
	// in: dy.
	normBiasGrad = sums("norm_bias_grad", 1, 1, func(in []kernel.Value) []kernel.Value { return in })
	// in: dy, x, rstd.
	rmsWeightGrad = sums("rms_weight_grad", 3, 1, func(in []kernel.Value) []kernel.Value {
		return []kernel.Value{in[0].Mul(in[1].Mul(in[2]))}
	})
)
