package core

import (
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// Products that are made of others.

// AddMV returns beta*in + alpha*(a x v) for a [M, K], v [K] and in broadcast to [M]. With beta 0, in is not read.
func (x *Exec) AddMV(in, a, v *Tensor, beta, alpha float64) *Tensor {
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

// AddR returns beta*in + alpha*(the outer product of a and b) for vectors a [M], b [N] and in broadcast to [M, N]. With beta 0, in is not read. Of
// bools + is or and * is and.
func (x *Exec) AddR(in, a, b *Tensor, beta, alpha float64) *Tensor {
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
func (x *Exec) AddRC(in, a, b *Tensor, beta, alpha complex128) *Tensor {
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

// AddBMM returns beta*in + alpha*(the sum of the products of the matrices of a [B, M, K] and b [B, K, N]), in broadcast to [M, N]. With beta 0, in is not
// read.
func (x *Exec) AddBMM(in, a, b *Tensor, beta, alpha float64) *Tensor {
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
func (x *Exec) AddBMMC(in, a, b *Tensor, beta, alpha complex128) *Tensor {
	x.wantBatches(in, a, b)
	if !a.dt.IsComplex() {
		x.fail("AddBMM", fault.Invalid, []*Tensor{in, a, b}, "complex factors are for complex tensors, not %v", a.dt)
	}
	return x.composite("AddBMM", func(x *Exec) *Tensor {
		// In complex128: where products cancel, float32 sums in another order are too far from PyTorch's.
		dt := a.dt
		l, r := x.abreast(x.ToDType(a, dtype.Complex128), x.ToDType(b, dtype.Complex128))
		return x.ToDType(x.weighed("AddBMM", x.ToDType(in, dtype.Complex128), l, r, beta, alpha), dt)
	})
}

func (x *Exec) wantBatches(in, a, b *Tensor) {
	x.wantDim("AddBMM", "batch1", a, 3)
	x.wantDim("AddBMM", "batch2", b, 3)
	if n, k := a.shape[0], a.shape[2]; b.shape[0] != n || b.shape[1] != k {
		x.fail("AddBMM", fault.Invalid, []*Tensor{in, a, b}, "Expected size for first two dimensions of batch2 tensor to be: [%d, %d] but got: [%d, %d]", n, k, b.shape[0], b.shape[1])
	}
	x.wantBroadcast("AddBMM", in, a.shape[1], b.shape[2])
}

// abreast returns the matrices of a [B, M, K] side by side and those of b [B, K, N] one below the other, the product of which is the sum of their products.
func (x *Exec) abreast(a, b *Tensor) (l, r *Tensor) {
	n, m, k := a.shape[0], a.shape[1], a.shape[2]
	return x.Reshape(x.Transpose(a, 0, 1), m, n*k), x.Reshape(b, n*k, b.shape[2])
}

// VDot is Dot with the elements of a conjugated.
func (x *Exec) VDot(a, b *Tensor) *Tensor {
	x.wantDim("VDot", "a", a, 1)
	x.wantDim("VDot", "b", b, 1)
	return x.composite("VDot", func(x *Exec) *Tensor {
		x = x.casting("VDot", castWidest, &a, &b)
		return x.MatMul(x.conjugate(a), b)
	})
}

// VecDot returns the sums over dimension dim of the products of the elements of a, conjugated, and b, broadcast.
func (x *Exec) VecDot(a, b *Tensor, dim int) *Tensor {
	return x.composite("VecDot", func(x *Exec) *Tensor {
		x = x.casting("VecDot", castLow, &a, &b)
		f := x.op(rowMul, a, b)
		n := len(f.broadcast(nil))
		x.s.leave(f)
		if d := dim; d < -n || d >= n {
			x.fail("VecDot", fault.Invalid, []*Tensor{a, b}, "Dimension out of range (expected to be in range of [%d, %d], but got %d)", -n, n-1, d)
		}
		return x.Sum(x.Mul(x.conjugate(a), b), []int{dim}, SumOpt{})
	})
}

// MultiDot returns the product of two or more matrices, in the order of products that takes the fewest multiplications. The first may be a vector, which
// stands for a row, and the last one, which stands for a column; the result then lacks that dimension.
func (x *Exec) MultiDot(ts []*Tensor) *Tensor {
	n := len(ts)
	if n < 2 {
		x.fail("MultiDot", fault.Invalid, ts, "multi_dot(): expected at least 2 tensors but got %d", n)
	}
	for i, t := range ts {
		Given("MultiDot", i, t)
		if ends := i == 0 || i == n-1; len(t.shape) != 2 && (!ends || len(t.shape) != 1) {
			x.fail("MultiDot", fault.Invalid, ts, "multi_dot(): tensor %d must be 2D, or 1D where it is the first or last, but got %dD", i, len(t.shape))
		}
	}
	return x.composite("MultiDot", func(x *Exec) *Tensor {
		m := slices.Clone(ts)
		at := make([]**Tensor, n)
		for i := range m {
			at[i] = &m[i]
		}
		x = x.casting("MultiDot", castLow, at...)
		row, column := len(m[0].shape) == 1, len(m[n-1].shape) == 1
		if row {
			m[0] = x.Unsqueeze(m[0], 0)
		}
		if column {
			m[n-1] = x.Unsqueeze(m[n-1], 1)
		}
		for i := range n - 1 {
			if m[i].shape[1] != m[i+1].shape[0] {
				x.fail("MultiDot", fault.Invalid, ts, "multi_dot(): tensors %d and %d with shapes %v and %v cannot be multiplied", i, i+1, m[i].shape, m[i+1].shape)
			}
		}
		split := chainOrder(m)
		var multiply func(i, j int) *Tensor
		multiply = func(i, j int) *Tensor {
			if i == j {
				return m[i]
			}
			k := split[i][j]
			return x.product(multiply(i, k), multiply(k+1, j), nil, 1, 0)
		}
		y := multiply(0, n-1)
		if column {
			y = x.Select(y, 1, 0)
		}
		if row {
			y = x.Select(y, 0, 0)
		}
		return y
	})
}

// chainOrder returns after which matrix to divide the product of matrices i to j, for the fewest multiplications in all.
func chainOrder(m []*Tensor) (split [][]int) {
	n := len(m)
	cost := make([][]uint64, n)
	for i := range m {
		cost[i], split = make([]uint64, n), append(split, make([]int, n))
	}
	for length := 1; length < n; length++ {
		for i := 0; i+length < n; i++ {
			j := i + length
			cost[i][j] = 1<<64 - 1
			for k := i; k < j; k++ {
				c := cost[i][k] + cost[k+1][j] + triple(m[i].shape[0], m[k].shape[1], m[j].shape[1])
				if c < cost[i][j] {
					cost[i][j], split[i][j] = c, k
				}
			}
		}
	}
	return split
}

// triple returns a·b·c, held within a range that sums of many do not leave.
func triple(a, b, c int) uint64 {
	hi, lo := bits.Mul64(uint64(a)*uint64(b), uint64(c))
	if hi != 0 || lo > 1<<56 {
		return 1 << 56
	}
	return lo
}

// Cross returns the cross products of the vectors of 3 elements along dimension dim of a and b, broadcast.
func (x *Exec) Cross(a, b *Tensor, dim int) *Tensor {
	both := []*Tensor{a, b}
	if len(a.shape) != len(b.shape) {
		x.fail("Cross", fault.Invalid, both, "linalg.cross: inputs must have the same number of dimensions, but have shapes %v and %v", a.shape, b.shape)
	}
	f := x.op(rowMul, a, b)
	d := f.dim(dim, len(a.shape))
	x.s.leave(f)
	if len(a.shape) == 0 || a.shape[d] != 3 || b.shape[d] != 3 {
		x.fail("Cross", fault.Invalid, both, "linalg.cross: inputs dimension %d must have length 3. Got %v and %v", dim, a.shape, b.shape)
	}
	return x.composite("Cross", func(x *Exec) *Tensor {
		x = x.casting("Cross", castWidest, &a, &b)
		by := func(t *Tensor, n int) *Tensor { return x.Roll(t, []int{n}, []int{d}) }
		return x.Sub(x.Mul(by(a, -1), by(b, -2)), x.Mul(by(a, -2), by(b, -1)))
	})
}

// TensorDot returns the sums of the products of the elements of a and b over pairs of dimensions: dimsA of a and, one for each, dimsB of b, of equal sizes or
// of size 1. The result has a's other dimensions and then b's.
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
				x.fail("TensorDot", fault.Invalid, both, "contracted dimensions need to match, but first has size %d in dim %d and second has size %d in dim %d", m, as[i], n, bs[i])
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

// dimsOf returns dims, counted from the beginning, of t; none may come twice.
func (x *Exec) dimsOf(op string, t *Tensor, dims []int) []int {
	out, err := infer.Dims(dims, len(t.shape))
	x.refuse(op, err, t)
	return out
}

// Inner returns the sums of the products of the elements of a and b over the last dimension of both; where one has no dimensions, their product.
func (x *Exec) Inner(a, b *Tensor) *Tensor {
	if len(a.shape) == 0 || len(b.shape) == 0 {
		return x.Mul(a, b)
	}
	return x.TensorDot(a, b, []int{-1}, []int{-1})
}

// Bilinear returns, for vectors a [..., I] and b [..., J], the sums of a_i·w_kij·b_j for every k, w being [Out, I, J], plus bias [Out] if it is not nil.
func (x *Exec) Bilinear(a, b, w, bias *Tensor) *Tensor {
	all := []*Tensor{a, b, w, bias}
	x.wantDim("Bilinear", "the weight", w, 3)
	na, nb := len(a.shape), len(b.shape)
	if na == 0 || na != nb || !infer.Same(a.shape[:na-1], b.shape[:nb-1]) {
		x.fail("Bilinear", fault.Invalid, all, "bilinear(): input dimensions do not match: got %v and %v", a.shape, b.shape)
	}
	out, i, j := w.shape[0], w.shape[1], w.shape[2]
	if a.shape[na-1] != i || b.shape[nb-1] != j {
		x.fail("Bilinear", fault.Invalid, all, "bilinear(): inputs of %d and %d features do not match a weight of shape %v", a.shape[na-1], b.shape[nb-1], w.shape)
	}
	if bias != nil && !infer.Same(bias.shape, []int{out}) {
		x.fail("Bilinear", fault.Invalid, all, "bilinear(): bias size does not match weight size: got %v but expected %d", bias.shape, out)
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
