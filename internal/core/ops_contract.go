package core

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// Products that are composed of others.

// AddMV returns beta*in + alpha*(a x v) for a [M, K], v [K] and in broadcast to [M]. If Beta is 0, in is not read.
//
//tenon:into
func (x *Exec) AddMV(in, a, v *Tensor, opt AddMMOpt) *Tensor {
	beta, alpha := opt.factors("AddMV")
	x.wantDim("AddMV", "mat", a, 2)
	x.wantDim("AddMV", "vec", v, 1)
	x.wantBroadcast("AddMV", in, a.shape[0])
	return x.composite("AddMV", func(x *Exec) *Tensor {
		x = x.casting("AddMV", castLow, &in, &a, &v)
		if len(in.shape) == 1 {
			in = x.Unsqueeze(in, 1)
		}
		return x.Select(x.product(a, x.Unsqueeze(v, 1), in, alpha, beta), 1, 0)
	})
}

// AddR returns beta*in + alpha*(the outer product of a and b) for vectors a [M], b [N] and in broadcast to [M, N]. If Beta is 0, in
// is not read. For bools + is or and * is and.
//
//tenon:into
func (x *Exec) AddR(in, a, b *Tensor, opt AddMMOpt) *Tensor {
	beta, alpha := opt.factors("AddR")
	x.wantOuter(in, a, b)
	return x.composite("AddR", func(x *Exec) *Tensor {
		x = x.casting("AddR", castLow, &in, &a, &b)
		col, row := x.Unsqueeze(a, 1), x.Unsqueeze(b, 0)
		dt := a.dt
		switch {
		case dt == b.dt && dt == in.dt && (dt.IsFloat() && dt.Size() > 2 || dt.IsComplex()):
			return x.product(col, row, in, alpha, beta)
		case dt.Size() == 2 && dt.IsFloat():
			// PyTorch rounds halves at every step, and the factors too.
			scaled := func(t *Tensor, v float64) *Tensor {
				if v == 1 {
					return t
				}
				return x.Mul(t, x.Full(nil, v, dt))
			}
			y := x.Mul(scaled(col, alpha), row)
			if beta == 0 {
				return y
			}
			return x.Add(scaled(in, beta), y)
		case dt == dtype.Bool && b.dt == dt && in.dt == dt:
			y := x.LogicalAnd(col, row)
			if alpha == 0 {
				y = x.ZerosLike(y, LikeOpt{})
			}
			if beta == 0 {
				return y
			}
			return x.LogicalOr(in, y)
		}
		y := x.MulS(x.Mul(col, row), alpha)
		if beta == 0 {
			return y
		}
		return x.Add(x.MulS(in, beta), y)
	})
}

// AddRC is AddR with complex beta and alpha.
//
//tenon:into
func (x *Exec) AddRC(in, a, b *Tensor, opt AddMMCOpt) *Tensor {
	beta, alpha := opt.factors("AddRC")
	x.wantOuter(in, a, b)
	return x.composite("AddR", func(x *Exec) *Tensor {
		return x.weighed("AddR", in, x.Unsqueeze(a, 1), x.Unsqueeze(b, 0), beta, alpha)
	})
}

func (x *Exec) wantOuter(in, a, b *Tensor) {
	x.wantDim("AddR", "vec1", a, 1)
	x.wantDim("AddR", "vec2", b, 1)
	x.wantBroadcast("AddR", in, a.shape[0], b.shape[0])
}

// AddBMM returns beta*in + alpha*(the sum of the products of the matrices of a [B, M, K] and b [B, K, N]), in broadcast to [M, N]. If
// Beta is 0, in is not read.
//
//tenon:into
func (x *Exec) AddBMM(in, a, b *Tensor, opt AddMMOpt) *Tensor {
	beta, alpha := opt.factors("AddBMM")
	x.wantBatches(in, a, b)
	return x.composite("AddBMM", func(x *Exec) *Tensor {
		x = x.casting("AddBMM", castLow, &in, &a, &b)
		if n := a.shape[0]; a.dt.Size() == 2 && n > 0 {
			// PyTorch rounds halves after each product.
			for i := range n {
				in = x.product(x.Select(a, 0, i), x.Select(b, 0, i), in, alpha, beta)
				beta = 1
			}
			return in
		}
		l, r := x.abreast(a, b)
		return x.product(l, r, in, alpha, beta)
	})
}

// AddBMMC is AddBMM with complex beta and alpha.
//
//tenon:into
func (x *Exec) AddBMMC(in, a, b *Tensor, opt AddMMCOpt) *Tensor {
	beta, alpha := opt.factors("AddBMMC")
	x.wantBatches(in, a, b)
	if !a.dt.IsComplex() {
		x.fail("AddBMM", fault.Invalid, []*Tensor{in, a, b}, "complex factors are for complex tensors, not %v", a.dt)
	}
	return x.composite("AddBMM", func(x *Exec) *Tensor {
		// In complex128: where products cancel, float32 sums in another order differ too much from PyTorch's.
		dt := a.dt
		l, r := x.abreast(x.ToDType(a, dtype.Complex128), x.ToDType(b, dtype.Complex128))
		return x.ToDType(x.weighed("AddBMM", x.ToDType(in, dtype.Complex128), l, r, beta, alpha), dt)
	})
}

func (x *Exec) wantBatches(in, a, b *Tensor) {
	x.wantDim("AddBMM", "batch1", a, 3)
	x.wantDim("AddBMM", "batch2", b, 3)
	if n, k := a.shape[0], a.shape[2]; b.shape[0] != n || b.shape[1] != k {
		x.fail("AddBMM", fault.Invalid, []*Tensor{in, a, b}, "Expected size for first two dimensions of batch2 tensor to be: [%d, %d] "+
			"but got: [%d, %d]", n, k, b.shape[0], b.shape[1])
	}
	x.wantBroadcast("AddBMM", in, a.shape[1], b.shape[2])
}

// abreast returns the matrices of a [B, M, K] side by side and those of b [B, K, N] on top of each other. The product of the two is the sum
// of the matrices' products.
func (x *Exec) abreast(a, b *Tensor) (l, r *Tensor) {
	n, m, k := a.shape[0], a.shape[1], a.shape[2]
	return x.Reshape(x.Transpose(a, 0, 1), m, n*k), x.Reshape(b, n*k, b.shape[2])
}

// VDot is Dot with the elements of a conjugated.
//
//tenon:into
func (x *Exec) VDot(a, b *Tensor) *Tensor {
	x.wantDim("VDot", "a", a, 1)
	x.wantDim("VDot", "b", b, 1)
	return x.composite("VDot", func(x *Exec) *Tensor {
		x = x.casting("VDot", castWidest, &a, &b)
		return x.MatMul(x.conjugate(a), b)
	})
}

// TensorDot returns the sums of the products of the elements of a and b over pairs of dimensions: dimsA of a and, one for each, dimsB of b.
// Paired dimensions have equal sizes, or one of them has size 1. The result has a's other dimensions and then b's.
//
//tenon:into
func (x *Exec) TensorDot(a, b *Tensor, dimsA, dimsB []int) *Tensor {
	both := []*Tensor{a, b}
	if len(dimsA) != len(dimsB) {
		x.fail("TensorDot", fault.Invalid, both, "both dimension lists should have same length, got %v and %v", dimsA, dimsB)
	}
	return x.composite("TensorDot", func(x *Exec) *Tensor {
		x = x.casting("TensorDot", castWidest, &a, &b)
		as, bs := x.dimsOf("TensorDot", a, dimsA), x.dimsOf("TensorDot", b, dimsB)
		for i := range as {
			switch m, n := a.shape[as[i]], b.shape[bs[i]]; {
			case m == n:
			case m == 1:
				b = x.Sum(b, []int{bs[i]}, SumOpt{KeepDim: true, DType: b.dt})
			case n == 1:
				a = x.Sum(a, []int{as[i]}, SumOpt{KeepDim: true, DType: a.dt})
			default:
				x.fail("TensorDot", fault.Invalid, both, "contracted dimensions need to match, but first has size %d in dim %d and "+
					"second has size %d in dim %d", m, as[i], n, bs[i])
			}
		}
		keptA, keptB := infer.OtherDims(len(a.shape), as), infer.OtherDims(len(b.shape), bs)
		var shape []int
		m, k, n := 1, 1, 1
		for _, d := range keptA {
			shape, m = append(shape, a.shape[d]), m*a.shape[d]
		}
		for _, d := range as {
			k *= a.shape[d]
		}
		for _, d := range keptB {
			shape, n = append(shape, b.shape[d]), n*b.shape[d]
		}
		l := x.Reshape(x.Permute(a, slices.Concat(keptA, as)...), m, k)
		r := x.Reshape(x.Permute(b, slices.Concat(bs, keptB)...), k, n)
		return x.View(x.product(l, r, nil, 1, 0), shape...)
	})
}

// dimsOf returns dims of t counted from the beginning; a dimension must not occur twice.
func (x *Exec) dimsOf(op string, t *Tensor, dims []int) []int {
	out, err := infer.Dims(dims, len(t.shape))
	x.refuse(op, err, t)
	return out
}

// Inner returns the sums of the products of the elements of a and b over the last dimension of both; if one has no dimensions, it returns
// their product.
//
//tenon:into
func (x *Exec) Inner(a, b *Tensor) *Tensor {
	if len(a.shape) == 0 || len(b.shape) == 0 {
		return x.Mul(a, b)
	}
	return x.TensorDot(a, b, []int{-1}, []int{-1})
}

// Bilinear returns, for vectors a [..., I] and b [..., J], the sums of a_i·w_kij·b_j for every k, where w is [Out, I, J], plus bias [Out]
// if it is not nil.
func (x *Exec) Bilinear(a, b, w, bias *Tensor) *Tensor {
	all := []*Tensor{a, b, w, bias}
	x.wantDim("Bilinear", "the weight", w, 3)
	na, nb := len(a.shape), len(b.shape)
	if na == 0 || na != nb || !infer.Same(a.shape[:na-1], b.shape[:nb-1]) {
		x.fail("Bilinear", fault.Invalid, all, "input dimensions do not match: got %v and %v", a.shape, b.shape)
	}
	out, i, j := w.shape[0], w.shape[1], w.shape[2]
	if a.shape[na-1] != i || b.shape[nb-1] != j {
		x.fail("Bilinear", fault.Invalid, all, "inputs of %d and %d features do not match a weight of shape %v", a.shape[na-1],
			b.shape[nb-1], w.shape)
	}
	if bias != nil && !infer.Same(bias.shape, []int{out}) {
		x.fail("Bilinear", fault.Invalid, all, "bias size does not match weight size: got %v but expected %d", bias.shape, out)
	}
	return x.composite("Bilinear", func(x *Exec) *Tensor {
		x = x.casting("Bilinear", castWidest, &a, &b, &w, &bias)
		lead := a.shape[:na-1]
		n := infer.Numel(lead)
		// a_i·w_ikj for all k and j is one product of matrices, and its sum with b_j one for each row of b.
		h := x.product(x.Reshape(a, n, i), x.Reshape(x.Permute(w, 1, 0, 2), i, out*j), nil, 1, 0)
		y := x.Reshape(x.product(x.View(h, n, out, j), x.Reshape(b, n, j, 1), nil, 1, 0), append(slices.Clone(lead), out)...)
		if bias != nil {
			y = x.Add(y, bias)
		}
		return y
	})
}
