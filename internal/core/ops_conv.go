package core

import (
	"cmp"

	"tenon.dev/fault"
	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// Conv1dOpt are the options of one-dimensional convolutions. A zero Stride, Dilation or Groups means 1.
type Conv1dOpt struct {
	// Stride and Dilation are the steps between windows and within one; Padding is how many zeros are added on each side.
	Stride, Padding, Dilation int
	// Groups divides the channels into sets that are convolved separately.
	Groups int
	// Same pads so that the output has the input's size, and ignores Padding; the stride must be 1.
	Same bool
}

// Conv2dOpt are the options of two-dimensional convolutions. A Stride, Dilation or Groups that is left out means 1.
type Conv2dOpt struct {
	// Stride and Dilation are the steps between windows and within one; Padding is how many zeros are added on each side. The number for
	// rows comes first, then that for columns; both are given, [2]int{2, 2} where PyTorch takes 2.
	Stride, Padding, Dilation [2]int
	// Groups divides the channels into sets that are convolved separately.
	Groups int
	// Same pads so that the output has the input's size, and ignores Padding; the strides must be 1.
	Same bool
}

// The three products of a convolution. Inputs: x and weight and bias; weight and gradient; gradient and x. Images are [Batch, Channels, H,
// W] and weights [Out, In/Groups, KH, KW], contiguous or channels last; opt is the conv, with the layouts of x and weight.
var rowConv, rowConvData, rowConvWeight *row

func init() {
	rowConv = define(row{Name: "Conv2d", takes: "t weight bias?;; options", Torch: "nn.functional.conv2d", cast: castLow, saves: in0 | in1,
		infer: inferConv, run: runConv, flops: flopsOfConv, moves: movesOfConv(0), lays: laysConv(0, 1, 3, (*kernels.Conv).LayForward),
		product: &productRow{fits: fitsConvEpilogue, run: runConvWith, apart: true,
			flops: func(c *deferred) int64 { return c.opt.(conv).flops() }}})
	rowConvData = define(row{Name: "Conv2dInputGrad", takes: "weight g;; options", saves: in0 | in1, infer: inferConvData,
		run: runConvData, flops: flopsOfConv, lays: laysConv(2, 0, 1, (*kernels.Conv).LayData)})
	rowConvWeight = define(row{Name: "Conv2dWeightGrad", takes: "g t;; options", saves: in0 | in1, infer: inferConvWeight,
		run: runConvWeight, flops: flopsOfConv, moves: movesOfConv(1), lays: laysConv(1, 2, 0, (*kernels.Conv).LayWeight)})
}

func init() {
	rowConv.back = func(b *back) {
		g := b.grad(0)
		if b.need(0) {
			b.set(0, b.x.convOp(rowConvData, b.n.opt, b.in(1), g))
		}
		if b.need(1) {
			b.set(1, b.x.convOp(rowConvWeight, b.n.opt, g, b.in(0)))
		}
		if b.need(2) {
			b.set(2, b.x.Sum(g, []int{0, 2, 3}, SumOpt{}))
		}
	}
	// The input's gradient is linear in the weight and in the output's gradient, and so is the weight's in the gradient and the input.
	rowConvData.back = func(b *back) {
		gx := b.grad(0)
		if b.need(0) {
			b.set(0, b.x.convOp(rowConvWeight, b.n.opt, b.in(1), gx))
		}
		if b.need(1) {
			b.set(1, b.x.convOp(rowConv, b.n.opt, gx, b.in(0), nil))
		}
	}
	rowConvWeight.back = func(b *back) {
		gw := b.grad(0)
		if b.need(0) {
			b.set(0, b.x.convOp(rowConv, b.n.opt, b.in(1), gw, nil))
		}
		if b.need(1) {
			b.set(1, b.x.convOp(rowConvData, b.n.opt, gw, b.in(0)))
		}
	}
}

// convOp runs one of the three on operands in a layout that it takes.
func (x *Exec) convOp(r *row, opt param, ins ...*Tensor) *Tensor {
	return x.composite("Conv2d", func(x *Exec) *Tensor {
		for i, t := range ins {
			switch {
			case t == nil || t.IsContiguous():
			case len(t.shape) == 4 && infer.ChannelsLast(t.shape, t.stride):
				ins[i] = x.ChannelsLast(t)
			default:
				ins[i] = x.Contiguous(t)
			}
		}
		f := x.op(r, ins...)
		f.opt = opt
		return f.call1()
	})
}

// channelsLast reports whether m has the channels-last strides of [N, C, H, W], and these differ from those of a new tensor.
func (m *form) channelsLast() bool {
	return len(m.shape) == 4 && !m.plain && infer.Same(m.stride, infer.ChannelsLastStrides(m.shape))
}

// channelsLastIf returns the channels-last strides of a new tensor of that shape if last is true, or nil.
func channelsLastIf(last bool, shape []int) []int {
	if last {
		return infer.ChannelsLastStrides(shape)
	}
	return nil
}

// convolvable refuses operands of types that a convolution does not take.
func (f *frame) convolvable() {
	t := f.in[0]
	for i := 1; i < f.ins; i++ {
		if o := f.in[i]; o != nil && o.dt != t.dt {
			f.fail(fault.Invalid, "Input type (%v) and weight or bias type (%v) should be the same; convert one with x.ToDType", t.dt, o.dt)
		}
	}
	if !t.dt.IsFloat() {
		f.fail(fault.Unsupported, "convolutions are not defined for %v; convert to a floating-point type first", t.dt)
	}
}

func inferConv(f *frame) {
	c, t := f.opt.(conv), f.in[0]
	f.convolvable()
	shape := []int{c.Batch, c.Out, c.OH, c.OW}
	f.newOut(0, t.dt, shape, channelsLastIf(t.channelsLast() || f.in[1].channelsLast(), shape))
}

func inferConvData(f *frame) {
	c := f.opt.(conv)
	shape := []int{c.Batch, c.In, c.H, c.W}
	f.newOut(0, f.in[0].dt, shape, channelsLastIf(c.LastX, shape))
}

func inferConvWeight(f *frame) {
	c := f.opt.(conv)
	shape := []int{c.Out, c.In / c.Groups, c.KH, c.KW}
	f.newOut(0, f.in[0].dt, shape, channelsLastIf(c.LastW, shape))
}

// conv describes the convolution of x, w and y, or of their gradients, in their present layouts.
func (f *frame) conv(x, w, y *Tensor) *kernels.Conv {
	c := f.opt.(conv).Conv
	c.TF32, c.LastX, c.LastW, c.LastY = f.x.m.tf32, x.channelsLast(), w.channelsLast(), y.channelsLast()
	return &c
}

func runConv(f *frame) error {
	var bias kernels.Operand
	if f.in[2] != nil {
		bias = operand(f.in[2])
	}
	return kernels.ConvForward(f, f.conv(f.in[0], f.in[1], f.out[0]), operand(f.out[0]), operand(f.in[0]), operand(f.in[1]), bias)
}

// conv describes the convolution that the call defers.
func (c *deferred) conv() *kernels.Conv {
	k := c.opt.(conv).Conv
	k.TF32, k.LastX, k.LastW, k.LastY = c.x.m.tf32, c.in[0].form.channelsLast(), c.in[1].form.channelsLast(), c.out[0].form.channelsLast()
	return &k
}

// laysConv tells how a product of a convolution takes its images. x, w and y are the numbers of the input, the weight and the output, or
// of their gradients, among the operands, which the result follows.
func laysConv(x, w, y int, laying func(c *kernels.Conv, lim *kernels.Limits, x, w, y, bias kernels.Operand) kernels.Laying,
) func(c *deferred) (how fuse.Lays, which uint) {
	return func(c *deferred) (how fuse.Lays, which uint) {
		var operands [4]kernels.Operand
		var last [4]bool
		for i := range int(c.ins) + 1 {
			e := &c.out[0]
			if i < int(c.ins) {
				e = &c.in[i]
			}
			if e.st != nil {
				last[i] = e.form.channelsLast()
				operands[i] = kernels.Operand{DType: e.dt, Ptr: uint64(apart + e.offset*e.dt.Size())}
			}
		}
		if last[x] || last[y] {
			return fuse.LaysFixed, 0
		}
		k := c.opt.(conv).Conv
		k.TF32, k.LastX, k.LastW, k.LastY = c.x.m.tf32, false, last[w], false
		var bias kernels.Operand
		if c.ins > 2 {
			bias = operands[2]
		}
		switch laying(&k, c.x.m.stream.Device().Limits(), operands[x], operands[w], operands[y], bias) {
		case kernels.LaidAlike:
			how = fuse.LaysAlike
		case kernels.LaidLast:
			how = fuse.LaysLast
		case kernels.LaidFirst:
			how = fuse.LaysFirst
		case kernels.LaidEqual:
			how = fuse.LaysEqual
		}
		return how, 1<<x | 1<<y
	}
}

// fitsConvEpilogue: the call is one product that makes a new result with its channels last.
func fitsConvEpilogue(c *deferred) bool {
	return c.dsts == 0 && c.out[0].dt.IsFloat() && c.conv().FitsEpilogue(c.in[0].dt)
}

func runConvWith(is kernels.Issuer, c *deferred, w *productWork) error {
	f := c.out[0].form
	out := kernels.Operand{DType: c.out[0].dt, Shape: f.shape, Stride: f.stride}
	return kernels.ConvForwardWith(is, c.conv(), out, w.a, w.b, w.epilogue)
}

func runConvData(f *frame) error {
	return kernels.ConvData(f, f.conv(f.out[0], f.in[0], f.in[1]), operand(f.out[0]), operand(f.in[0]), operand(f.in[1]))
}

func runConvWeight(f *frame) error {
	return kernels.ConvWeight(f, f.conv(f.in[1], f.out[0], f.in[0]), operand(f.out[0]), operand(f.in[0]), operand(f.in[1]))
}

// complexConv computes a complex convolution as three real ones, (a - b) + i(c - a - b), where a and b are those of the real and of the
// imaginary parts and c that of their sums. PyTorch does the same, so that the rounding agrees.
func (x *Exec) complexConv(op string, in, w, b *Tensor, real func(in, w, b *Tensor) *Tensor) *Tensor {
	return x.composite(op, func(x *Exec) *Tensor {
		parts := func(t *Tensor) (re, im, sum *Tensor) {
			if t == nil {
				return nil, nil, nil
			}
			re, im = x.RealPart(t), x.ImagPart(t)
			return re, im, x.Add(re, im)
		}
		xr, xi, xs := parts(in)
		wr, wi, ws := parts(w)
		br, _, bs := parts(b)
		p, q, r := real(xr, wr, br), real(xi, wi, nil), real(xs, ws, bs)
		return x.Add(x.partOp(rowFromPart, x.Sub(p, q), 0), x.partOp(rowFromPart, x.Sub(x.Sub(r, p), q), 1))
	})
}

// planConv checks shapes and options and computes the output's size.
func (x *Exec) planConv(op string, in, w, b *Tensor, opt Conv2dOpt) conv {
	all := []*Tensor{in, w, b}
	opt.Stride, opt.Dilation = Pair(op, "Stride", opt.Stride, [2]int{1, 1}), Pair(op, "Dilation", opt.Dilation, [2]int{1, 1})
	if opt.Groups == 0 {
		opt.Groups = 1
	}
	if opt.Stride[0] < 0 || opt.Stride[1] < 0 || opt.Dilation[0] < 0 || opt.Dilation[1] < 0 || opt.Padding[0] < 0 ||
		opt.Padding[1] < 0 || opt.Groups < 0 {
		x.fail(op, fault.Invalid, all, "stride, dilation and groups must be positive and padding not negative")
	}
	if len(in.shape) != 4 || len(w.shape) != 4 {
		x.fail(op, fault.Invalid, all, "Expected 3D (unbatched) or 4D (batched) input to conv2d and a 4D weight")
	}
	c := kernels.Conv{Batch: in.shape[0], In: in.shape[1], H: in.shape[2], W: in.shape[3], Out: w.shape[0], KH: w.shape[2], KW: w.shape[3],
		StrideH: opt.Stride[0], StrideW: opt.Stride[1], PadH: opt.Padding[0], PadW: opt.Padding[1],
		DilationH: opt.Dilation[0], DilationW: opt.Dilation[1], Groups: opt.Groups, LastX: in.channelsLast(), LastW: w.channelsLast()}
	if w.shape[2] == 0 || w.shape[3] == 0 {
		x.fail(op, fault.Invalid, all, "kernel size should be greater than zero, but got a weight of size %v", w.shape)
	}
	if w.shape[1]*opt.Groups != c.In {
		x.fail(op, fault.Invalid, all,
			"Given groups=%d, weight of size %v, expected input%v to have %d channels, but got %d channels instead",
			opt.Groups, w.shape, in.shape, w.shape[1]*opt.Groups, c.In)
	}
	if c.Out%opt.Groups != 0 {
		x.fail(op, fault.Invalid, all, "the number of output channels, %d, must be divisible by groups, %d", c.Out, opt.Groups)
	}
	if b != nil && (len(b.shape) != 1 || b.shape[0] != c.Out) {
		x.fail(op, fault.Invalid, all, "Given weight of size %v, expected bias to be 1-dimensional with %d elements, but got bias of "+
			"size %v instead", w.shape, c.Out, b.shape)
	}
	x.wantInt32(op, in, c.H, c.W, c.KH, c.KW, c.StrideH, c.StrideW, c.PadH, c.PadW, c.DilationH, c.DilationW)
	reachH, reachW := c.DilationH*(c.KH-1)+1, c.DilationW*(c.KW-1)+1
	x.wantInt32(op, in, c.H+2*c.PadH, c.W+2*c.PadW, reachH, reachW)
	c.OH, c.OW = infer.Windows(c.H, reachH, c.StrideH, c.PadH, false), infer.Windows(c.W, reachW, c.StrideW, c.PadW, false)
	if c.OH == 0 || c.OW == 0 {
		x.fail(op, fault.Invalid, all, "Calculated padded input size per channel: (%d x %d). Kernel size: (%d x %d). Kernel size can't "+
			"be greater than actual input size",
			c.H+2*c.PadH, c.W+2*c.PadW, reachH, reachW)
	}
	return conv{c}
}

// samePadding returns the input and options with which a convolution keeps the input's size. If an odd number of elements must be added,
// the input is copied with one more at the end.
func (x *Exec) samePadding(in, w *Tensor, opt Conv2dOpt) (*Tensor, Conv2dOpt) {
	opt.Same = false
	if opt.Stride[0] > 1 || opt.Stride[1] > 1 {
		x.fail("Conv2d", fault.Invalid, []*Tensor{in, w}, "padding='same' is not supported for strided convolutions")
	}
	var more [4]int
	for i := range 2 {
		total := max(opt.Dilation[i], 1) * (w.shape[2+i] - 1)
		opt.Padding[i] = total / 2
		more[3-2*i] = total % 2
	}
	if more != [4]int{} {
		in = x.constantPad(in, more[:], 0)
	}
	return in, opt
}

// Conv2d returns the cross-correlation of in [N, C, H, W] (or [C, H, W]) with w [Out, C/Groups, KH, KW], plus b [Out] if it is not nil.
func (x *Exec) Conv2d(in, w, b *Tensor, opt Conv2dOpt) *Tensor {
	if len(in.shape) == 3 {
		return x.composite("Conv2d", func(x *Exec) *Tensor { return x.Squeeze(x.Conv2d(x.Unsqueeze(in, 0), w, b, opt), 0) })
	}
	if opt.Same && len(w.shape) == 4 {
		return x.composite("Conv2d", func(x *Exec) *Tensor {
			in, opt := x.samePadding(in, w, opt)
			return x.Conv2d(in, w, b, opt)
		})
	}
	if in.dt.IsComplex() && w.dt.IsComplex() && (b == nil || b.dt.IsComplex()) {
		return x.complexConv("Conv2d", in, w, b, func(in, w, b *Tensor) *Tensor { return x.Conv2d(in, w, b, opt) })
	}
	return x.convOp(rowConv, x.planConv("Conv2d", in, w, b, opt), in, w, b)
}

// Conv1d returns the cross-correlation of in [N, C, L] (or [C, L]) with w [Out, C/Groups, K], plus b [Out] if it is not nil.
func (x *Exec) Conv1d(in, w, b *Tensor, opt Conv1dOpt) *Tensor {
	if len(w.shape) != 3 || len(in.shape) != 2 && len(in.shape) != 3 {
		x.fail("Conv1d", fault.Invalid, []*Tensor{in, w, b}, "Expected 2D (unbatched) or 3D (batched) input to conv1d and a 3D weight")
	}
	flat := Conv2dOpt{Stride: [2]int{1, cmp.Or(opt.Stride, 1)}, Padding: [2]int{0, opt.Padding},
		Dilation: [2]int{1, cmp.Or(opt.Dilation, 1)}, Groups: opt.Groups, Same: opt.Same}
	return x.composite("Conv1d", func(x *Exec) *Tensor {
		x = x.casting("Conv1d", castLow, &in, &w, &b)
		return x.Squeeze(x.Conv2d(x.Unsqueeze(in, -2), x.Unsqueeze(w, -2), b, flat), -2)
	})
}

type conv struct{ kernels.Conv }

func (conv) param() {}

// movesOfConv counts bytes without the rows and columns of the input that no window covers, which exist if windows are further apart than
// they are long.
func movesOfConv(input int) func(f *frame) int64 {
	return func(f *frame) int64 {
		c := f.opt.(conv)
		all := bytesOnce(f.out[0])
		for i, t := range f.in[:f.ins] {
			if t == nil {
				continue
			}
			n := bytesOnce(t)
			if i == input && n > 0 {
				n = n / int64(c.H*c.W) * int64(reached(c.H, c.OH, c.KH, c.StrideH, c.DilationH)*reached(c.W, c.OW, c.KW,
					c.StrideW, c.DilationW))
			}
			all += n
		}
		return all
	}
}

// reached returns how many of size rows are covered by that many windows of k rows, stride apart.
func reached(size, windows, k, stride, dilation int) int {
	if stride > dilation*(k-1) { // no two windows share a row
		return min(size, windows*k)
	}
	return size
}

func flopsOfConv(f *frame) int64 { return f.opt.(conv).flops() }

// flops is the same for the three products of a convolution.
func (c conv) flops() int64 {
	return 2 * int64(c.Batch) * int64(c.Out) * int64(c.OH) * int64(c.OW) * int64(c.In/max(c.Groups, 1)) * int64(c.KH) * int64(c.KW)
}
