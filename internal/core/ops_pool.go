package core

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// MaxPoolOpt are the options of max pooling. A Stride that is left out means the kernel's size, and a Dilation 1; a pair has both numbers
// or none. Padding is added on both sides of rows and of columns, and counts as less than every element.
type MaxPoolOpt struct {
	Stride, Padding, Dilation [2]int
	// CeilMode rounds the output's size up instead of down.
	CeilMode bool
}

// AvgPoolOpt are the options of average pooling. A Stride that is left out means the kernel's size; it has both numbers or none. Padding
// with zeros is added on both sides of rows and of columns.
type AvgPoolOpt struct {
	Stride, Padding [2]int
	// CeilMode rounds the output's size up instead of down.
	CeilMode bool
	// ExcludePadding excludes the padding from the number of elements that a sum is divided by.
	ExcludePadding bool
	// Divisor replaces that number if it is not 0.
	Divisor int
}

// pooling is the attribute of the pooling rows: the kernel's parameters and the shapes of input and output planes.
type pooling struct {
	kernels.Pool
	in, out [2]int
	// last says that both are in channels last, which the gradient of planes of one element does not show.
	last bool
}

var rowMaxPool, rowMaxPoolGrad, rowAvgPool, rowAvgPoolGrad, rowAdaptivePool, rowAdaptivePoolGrad *row

func init() {
	rowMaxPool = define(row{Name: "MaxPool2d", takes: "t;; options -> y places", Torch: "nn.functional.max_pool2d", saves: out1,
		lays: laysPool,
		infer: func(f *frame) {
			f.poolOut(0, f.in[0].dt, f.opt.(pooling).out)
			f.poolOut(1, dtype.Int64, f.opt.(pooling).out)
		},
		run: func(f *frame) error {
			return kernels.MaxPool(f, f.pool(), operand(f.out[0]), operand(f.out[1]), operand(f.in[0]))
		}})
	rowMaxPoolGrad = define(row{Name: "MaxPool2dBackward", takes: "g places;; options", saves: in1,
		infer: func(f *frame) { f.poolOut(0, f.in[0].dt, f.opt.(pooling).in) },
		run: func(f *frame) error {
			return kernels.MaxPoolBackward(f, f.pool(), operand(f.out[0]), operand(f.in[0]), operand(f.in[1]))
		}})
	rowAvgPool = define(poolRow("AvgPool2d", "nn.functional.avg_pool2d", false, kernels.AvgPool))
	rowAvgPool.lays = laysPool
	rowAvgPoolGrad = define(poolRow("AvgPool2dBackward", "", true, kernels.AvgPoolBackward))
	adaptive := func(g func(kernels.Issuer, kernels.Operand, kernels.Operand) error) func(kernels.Issuer, *kernels.Pool, kernels.Operand,
		kernels.Operand) error {
		return func(is kernels.Issuer, _ *kernels.Pool, y, x kernels.Operand) error { return g(is, y, x) }
	}
	rowAdaptivePool = define(poolRow("AdaptiveAvgPool2d", "nn.functional.adaptive_avg_pool2d", false, adaptive(kernels.AdaptiveAvgPool)))
	rowAdaptivePool.lays = laysPool
	rowAdaptivePoolGrad = define(poolRow("AdaptiveAvgPool2dBackward", "", true, adaptive(kernels.AdaptiveAvgPoolBackward)))
}

func init() {
	rowMaxPool.back = func(b *back) { b.set(0, b.x.poolOp(rowMaxPoolGrad, b.n.opt, b.grad(0), b.out(1)).call1()) }
	// The gradient selects the elements at the indexes of the greatest ones.
	rowMaxPoolGrad.back = func(b *back) {
		x, g, places := b.x, b.grad(0), b.in(1)
		n, c := places.shape[0], places.shape[1]
		picked := x.Gather(x.Reshape(g, n, c, -1), 2, x.Reshape(places, n, c, -1))
		b.set(0, x.View(picked, places.shape...))
	}
	rowAvgPool.back = func(b *back) { b.set(0, b.x.poolOp(rowAvgPoolGrad, b.n.opt, b.grad(0)).call1()) }
	rowAvgPoolGrad.back = func(b *back) { b.set(0, b.x.poolOp(rowAvgPool, b.n.opt, b.grad(0)).call1()) }
	rowAdaptivePool.back = func(b *back) { b.set(0, b.x.poolOp(rowAdaptivePoolGrad, b.n.opt, b.grad(0)).call1()) }
	rowAdaptivePoolGrad.back = func(b *back) { b.set(0, b.x.poolOp(rowAdaptivePool, b.n.opt, b.grad(0)).call1()) }
}

// poolRow returns the row of a linear pooling operation, or of its derivative, whose output has the input's planes.
func poolRow(name, torch string, gradient bool, run func(kernels.Issuer, *kernels.Pool, kernels.Operand, kernels.Operand) error) row {
	return row{Name: name, Torch: torch, takes: "t;; options",
		infer: func(f *frame) {
			p := f.opt.(pooling)
			planes := p.out
			if gradient {
				planes = p.in
			}
			f.poolOut(0, f.in[0].dt, planes)
		},
		run: func(f *frame) error { return run(f, f.pool(), operand(f.out[0]), operand(f.in[0])) },
	}
}

// poolOut makes output i with the batch and channels of input 0 and planes of the given size, in the memory format of the pooling's input.
func (f *frame) poolOut(i int, dt dtype.DType, planes [2]int) {
	t := f.in[0]
	if !t.dt.IsFloat() {
		f.fail(fault.Unsupported, "pooling is not defined for %v; convert to a floating-point type first", t.dt)
	}
	shape := append(f.lists[:0], t.shape[0], t.shape[1], planes[0], planes[1])
	var stride []int
	if f.opt.(pooling).last {
		stride = infer.ChannelsLastStrides(shape)
	}
	f.newOut(i, dt, shape, stride)
}

// laysPool: pooling goes through each window in one order, however its operands lie. It is fastest if they lie alike.
func laysPool(c *deferred) (how fuse.Lays, which uint) { return fuse.LaysAlike, 1<<(c.ins+c.outs) - 1 }

// pool returns the kernel's parameters.
func (f *frame) pool() *kernels.Pool {
	p := f.opt.(pooling).Pool
	return &p
}

func (x *Exec) poolOp(r *row, opt param, ins ...*Tensor) *frame {
	f := x.op(r, ins...)
	f.opt = opt
	return f
}

// planPool checks the options for pooling t [N, C, H, W] and computes the output's size.
func (x *Exec) planPool(op string, t *Tensor, p kernels.Pool, ceil bool) pooling {
	if p.KH <= 0 || p.KW <= 0 || p.StrideH <= 0 || p.StrideW <= 0 || p.DilationH <= 0 || p.DilationW <= 0 {
		x.fail(op, fault.Invalid, []*Tensor{t}, "kernel size, stride and dilation must be greater than zero")
	}
	size := func(in, k, s, pad, d int) int {
		x.wantInt32(op, t, in, k, s, pad, d)
		reach := d*(k-1) + 1
		x.wantInt32(op, t, in+2*pad+reach-1)
		if pad < 0 || pad > reach/2 {
			x.fail(op, fault.Invalid, []*Tensor{t}, "pad should be at most half of effective kernel size, but got pad=%d, "+
				"kernel_size=%d and dilation=%d", pad, k, d)
		}
		return infer.Windows(in, reach, s, pad, ceil)
	}
	r := pooling{Pool: p, in: [2]int{t.shape[2], t.shape[3]}, last: infer.ChannelsLast(t.shape, t.stride)}
	r.out = [2]int{size(t.shape[2], p.KH, p.StrideH, p.PadH, p.DilationH), size(t.shape[3], p.KW, p.StrideW, p.PadW, p.DilationW)}
	if r.out[0] < 1 || r.out[1] < 1 || t.shape[1] == 0 || t.shape[2] == 0 || t.shape[3] == 0 {
		x.fail(op, fault.Invalid, []*Tensor{t}, "Given input size: %v. Calculated output size: (%dx%dx%d). Output size is too small",
			t.shape[1:], t.shape[1], r.out[0], r.out[1])
	}
	return r
}

// wantInt32 fails if one of n, which are not negative, does not fit into the 32 bits that kernels use.
func (x *Exec) wantInt32(op string, t *Tensor, n ...int) {
	for _, v := range n {
		if v > math.MaxInt32 {
			x.fail(op, fault.Invalid, []*Tensor{t},
				"integer out of range: rows, columns and windows are below 2^31, but here is %d", v)
		}
	}
}

// planes runs f on t as [N, C, H, W]. If t has no batch dimension, it adds one and removes it from the results.
func (x *Exec) planes(op string, t *Tensor, f func(x *Exec, t *Tensor) []*Tensor) []*Tensor {
	if len(t.shape) == 4 {
		return f(x, t)
	}
	if len(t.shape) != 3 {
		x.fail(op, fault.Invalid, []*Tensor{t}, "Expected 3D or 4D (batch mode) tensor, but got %dD", len(t.shape))
	}
	return x.compositeMany(op, func(x *Exec) []*Tensor {
		out := f(x, x.Unsqueeze(t, 0))
		for i, y := range out {
			out[i] = x.Squeeze(y, 0)
		}
		return out
	})
}

// MaxPool2d returns the greatest element of each window of the planes of t [N, C, H, W] or [C, H, W]; a NaN counts as the greatest.
// kernel is the window's height and width.
func (x *Exec) MaxPool2d(t *Tensor, kernel [2]int, opt MaxPoolOpt) *Tensor {
	y, places := x.MaxPool2dWithIndices(t, kernel, opt)
	places.close()
	return y
}

// MaxPool2dWithIndices is MaxPool2d, and also returns the index of each greatest element in its plane, row*W + column, as int64.
func (x *Exec) MaxPool2dWithIndices(t *Tensor, kernel [2]int, opt MaxPoolOpt) (y, indices *Tensor) {
	opt.Stride, opt.Dilation = Pair("MaxPool2d", "Stride", opt.Stride, kernel), Pair("MaxPool2d", "Dilation", opt.Dilation, [2]int{1, 1})
	out := x.planes("MaxPool2d", t, func(x *Exec, t *Tensor) []*Tensor {
		p := x.planPool("MaxPool2d", t, kernels.Pool{KH: kernel[0], KW: kernel[1], StrideH: opt.Stride[0], StrideW: opt.Stride[1],
			PadH: opt.Padding[0], PadW: opt.Padding[1], DilationH: opt.Dilation[0], DilationW: opt.Dilation[1]}, opt.CeilMode)
		x.wantInt32("MaxPool2d", t, p.in[0]*p.in[1])
		f := x.poolOp(rowMaxPool, p, t)
		f.call()
		y, places := f.out[0], f.out[1]
		x.s.leave(f)
		return []*Tensor{y, places}
	})
	return out[0], out[1]
}

// AvgPool2d returns the mean of each window of the planes of t [N, C, H, W] or [C, H, W]. kernel is the window's height and width.
//
//tenon:into
func (x *Exec) AvgPool2d(t *Tensor, kernel [2]int, opt AvgPoolOpt) *Tensor {
	opt.Stride = Pair("AvgPool2d", "Stride", opt.Stride, kernel)
	return x.planes("AvgPool2d", t, func(x *Exec, t *Tensor) []*Tensor {
		p := x.planPool("AvgPool2d", t, kernels.Pool{KH: kernel[0], KW: kernel[1], StrideH: opt.Stride[0], StrideW: opt.Stride[1],
			PadH: opt.Padding[0], PadW: opt.Padding[1], DilationH: 1, DilationW: 1, CountPad: !opt.ExcludePadding, Divisor: opt.Divisor},
			opt.CeilMode)
		x.wantInt32("AvgPool2d", t, p.KH*p.KW, max(opt.Divisor, -opt.Divisor))
		return []*Tensor{x.poolOp(rowAvgPool, p, t).call1()}
	})[0]
}

// AdaptiveAvgPool2d returns means over windows that evenly cover the planes of t [N, C, H, W] or [C, H, W], in planes of the given height
// and width; 0 keeps the input's.
func (x *Exec) AdaptiveAvgPool2d(t *Tensor, size [2]int) *Tensor {
	return x.planes("AdaptiveAvgPool2d", t, func(x *Exec, t *Tensor) []*Tensor {
		p := pooling{in: [2]int{t.shape[2], t.shape[3]}, out: size, last: infer.ChannelsLast(t.shape, t.stride)}
		for i := range p.out {
			if p.out[i] < 0 || p.in[i] == 0 {
				x.fail("AdaptiveAvgPool2d", fault.Invalid, []*Tensor{t},
					"the output size %v must not be negative, nor the input's planes empty", size)
			}
			if p.out[i] == 0 {
				p.out[i] = p.in[i]
			}
			x.wantInt32("AdaptiveAvgPool2d", t, p.in[i], p.out[i])
		}
		x.wantInt32("AdaptiveAvgPool2d", t, (p.in[0]/p.out[0]+2)*(p.in[1]/p.out[1]+2))
		return []*Tensor{x.poolOp(rowAdaptivePool, p, t).call1()}
	})[0]
}

func (pooling) param() {}
