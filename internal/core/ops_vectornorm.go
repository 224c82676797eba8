package core

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// rowVectorNorm computes the vector norm of order scalar[0].
var rowVectorNorm, rowVectorNorms, rowLogSumExp *row

func init() {
	rowVectorNorm = define(row{Name: "VectorNorm", takes: "t; ord!; keepDim dims* dtype", Torch: "linalg.vector_norm", cast: castFloat32,
		saves: in0 | out0, back: backVectorNorm,
		infer: func(f *frame) {
			f.compute = f.dt
			if f.dt == dtype.Invalid {
				f.compute = f.in[0].dt
			}
			if !f.compute.IsFloat() {
				f.fail(fault.Invalid, "Expected a floating point or complex tensor as input. Got %v; convert it "+
					"with x.ToDType", f.compute)
			}
			shape := f.reducedShape(f.in[0])
			if p := f.scalar[0].F; (p < 0 || math.IsInf(p, 1)) && infer.Numel(shape) > 0 {
				f.wantIdentity(p)
			}
			f.newOut(0, f.compute, shape, nil)
		},
		run: func(f *frame) error {
			return f.reduce(normOp(f.scalar[0].F))
		}, reduces: true})
	rowVectorNorms = define(row{Name: "VectorNorms", takes: "tensors…; ord!", narrows: narrowsNorms,
		infer: func(f *frame) { f.newOut(0, f.many[0].dt, []int{len(f.many)}, nil) },
		run: func(f *frame) error {
			op := normOp(f.scalar[0].F)
			f.opers = f.opers[:0]
			for _, t := range f.many {
				f.opers = append(f.opers, operand(t))
			}
			return kernels.MultiReduce(f, op, f.out[0].dt, f.scalar[:op.Scalars], operand(f.out[0]), f.opers)
		}})
	rowLogSumExp = define(withCast(reduceRow("LogSumExp", "logsumexp", kernels.LogSumExp, realFloating, in0|out0, func(b *back) {
		x := b.x
		b.set(0, x.Mul(b.kept(b.grad(0)), x.Exp(x.Sub(b.in(0), b.kept(b.out(0))))))
	}), castFloat32))
}

// narrowsNorms returns all tensors: the kernel orders the additions of a half as those of a float32.
func narrowsNorms(c *deferred) fuse.Span { return fuse.Span{To: len(c.many)} }

// normOp returns the kernel for norms of order p.
func normOp(p float64) *kernels.ReduceOp {
	if op, ok := normOps[p]; ok {
		return op
	}
	return kernels.NormP
}

// VectorNorms returns the norms of order ord of the tensors, each viewed as a vector, in one tensor. Floating-point tensors of one type
// without gaps take two launches for every 128 of them; their sums have another order than VectorNorm's, and there is no gradient.
func VectorNorms(x *Exec, ts []*Tensor, ord float64) *Tensor {
	Enter(x, "VectorNorms")
	defer Leave(x)
	if !x.normsTogether(ts, ord) {
		norms := make([]*Tensor, len(ts))
		for i, t := range ts {
			norms[i] = x.vectorNorm(t, nil, ord, SumOpt{})
		}
		return x.Stack(norms, 0)
	}
	f := x.op(rowVectorNorms)
	f.many = append(f.many, ts...)
	f.scalar[0] = kernels.FloatScalar(ord)
	return f.call1()
}

// normsTogether reports whether rowVectorNorms takes the tensors. It leaves empty tensors to VectorNorm, which refuses them, if the order
// has no identity.
func (x *Exec) normsTogether(ts []*Tensor, ord float64) bool {
	for _, t := range ts {
		alike := t.dt == ts[0].dt && t.st.dev == ts[0].st.dev && t.dt.IsFloat() && t.form.plain
		if !alike || t.Numel() == 0 && (ord < 0 || math.IsInf(ord, 1)) || x.GradEnabled() && t.RequiresGrad() {
			return false
		}
	}
	return len(ts) > 2 && (x.m.autocast == dtype.Invalid || ts[0].dt.Size() > 2)
}

// wantIdentity fails if a norm of order p, which is undefined for no elements, is over none.
func (f *frame) wantIdentity(p float64) {
	t := f.in[0]
	if len(f.dims) == 0 && t.Numel() == 0 {
		f.fail(fault.Invalid,
			"VectorNorm cannot compute the %v norm on an empty tensor because the operation does not have an identity", p)
	}
	for _, d := range f.dims {
		if d = f.dim(d, len(t.shape)); d < len(t.shape) && t.shape[d] == 0 {
			f.fail(fault.Invalid, "VectorNorm cannot compute the %v norm on the dimension %d because this dimension is empty "+
				"and the operation does not have an identity", p, d)
		}
	}
}

// normOps are the kernels of orders that have their own.
var normOps = map[float64]*kernels.ReduceOp{
	0: kernels.Norm0, 1: kernels.Norm1, 2: kernels.Norm2, math.Inf(1): kernels.NormInf, math.Inf(-1): kernels.NormNegInf,
}

func backVectorNorm(b *back) {
	x, t, p := b.x, b.in(0), b.n.scalar[0].F
	g, y := b.kept(b.grad(0)), b.kept(b.out(0))
	switch {
	case p == 0:
		flat(b)
	case p == 1:
		b.set(0, x.Mul(g, x.Sgn(t)))
	case p == 2:
		b.set(0, x.Mul(t, x.pick(x.EqS(y, 0), nil, 0, x.Div(g, y), 0)))
	case math.IsInf(p, 0):
		m := x.Abs(t)
		hit := x.LogicalOr(x.Eq(m, y), x.IsNaN(m))
		count := x.ToDType(x.Sum(hit, b.n.dims(), SumOpt{KeepDim: true}), t.dt)
		b.set(0, x.Mul(x.pick(hit, x.Sgn(t), 0, nil, 0), x.Div(g, count)))
	case p < 2:
		power := x.Mul(x.Sgn(t), x.PowS(x.Abs(t), p-1))
		if p < 1 {
			power = x.pick(x.EqS(t, 0), nil, 0, power, 0)
		}
		b.set(0, x.Mul(power, x.pick(x.EqS(y, 0), nil, 0, x.Div(g, x.PowS(y, p-1)), 0)))
	default:
		power := x.Mul(t, x.PowS(x.Abs(t), p-2))
		b.set(0, x.Mul(power, x.pick(x.EqS(y, 0), nil, 0, x.Div(g, x.PowS(y, p-1)), 0)))
	}
}

// VectorNormOpt are the options of VectorNorm. The zero value is PyTorch's default.
type VectorNormOpt struct {
	// Ord is the order; the default is 2.
	Ord Scalar
	// KeepDim keeps the reduced dimensions with size 1.
	KeepDim bool
	// DType is the type to compute in and return; the zero value is the input's.
	DType dtype.DType
}

// VectorNorm returns the vector norm of order ord over dims, (sum |t|^ord)^(1/ord); nil dims mean all. Order 0 counts the elements that are
// not zero, and the infinite orders are the greatest and the least magnitude. For a complex tensor the norm is real.
//
//tenon:into
func (x *Exec) VectorNorm(t *Tensor, dims []int, opt VectorNormOpt) *Tensor {
	return x.vectorNorm(t, dims, Or("VectorNorm", "Ord", opt.Ord, 2), SumOpt{KeepDim: opt.KeepDim, DType: opt.DType})
}

// vectorNorm is VectorNorm with the order apart from the other options.
func (x *Exec) vectorNorm(t *Tensor, dims []int, ord float64, opt SumOpt) *Tensor {
	if t.dt.IsComplex() {
		return x.composite("VectorNorm", func(x *Exec) *Tensor {
			return x.vectorNorm(x.Abs(t), dims, ord, SumOpt{KeepDim: opt.KeepDim, DType: opt.DType.Real()})
		})
	}
	if opt.DType != dtype.Invalid {
		x = x.uncast()
	}
	f := x.reduceOp(rowVectorNorm, t, dims, opt.KeepDim)
	f.dt, f.scalar[0] = opt.DType, kernels.FloatScalar(ord)
	return f.call1()
}

// LogSumExp returns log(sum(exp(t))) over dims without intermediate overflow; nil dims mean all. Integers become float32.
//
//tenon:into
func (x *Exec) LogSumExp(t *Tensor, dims []int, opt DimOpt) *Tensor {
	if !t.dt.IsComplex() {
		return x.reduceOp(rowLogSumExp, t, dims, opt.KeepDim).call1()
	}
	return x.composite("LogSumExp", func(x *Exec) *Tensor {
		top := x.AMax(x.RealPart(x.Detach(t)), dims, DimOpt{KeepDim: true})
		top = x.pick(x.IsInf(top), nil, 0, top, 0)
		sum := x.Log(x.Sum(x.Exp(x.Sub(t, top)), dims, SumOpt{KeepDim: opt.KeepDim}))
		if !opt.KeepDim {
			top = x.View(top, sum.shape...)
		}
		return x.Add(sum, top)
	})
}
