package core

import (
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// ConvTranspose2dOpt are the options of two-dimensional transposed convolutions. A Stride, Dilation or Groups that is left out means 1.
type ConvTranspose2dOpt struct {
	// Stride and Dilation are the steps between windows of the output and within one; Padding is how much is cut off each side of the
	// output. The number for rows comes first, then that for columns; both are given, [2]int{2, 2} where PyTorch takes 2.
	Stride, Padding, Dilation [2]int
	// OutputPadding makes the output longer at the end. It must be smaller than the stride or the dilation.
	OutputPadding [2]int
	// Groups divides the channels into sets that are convolved separately.
	Groups int
}

// The transpose of a convolution maps what is a convolution's output to what is its input: it is the product that computes a gradient of
// the input. opt is that convolution, whose weight has the same shape.
var rowConvTranspose *row

func init() {
	rowConvTranspose = define(row{Name: "ConvTranspose2d", takes: "t weight;; options", Torch: "nn.functional.conv_transpose2d",
		cast: castLow, saves: in0 | in1, infer: inferConvTranspose, run: runConvTranspose, flops: flopsOfConv,
		lays: laysConv(2, 1, 0, (*kernels.Conv).LayData)})
}

func init() {
	rowConvTranspose.back = func(b *back) {
		g := b.grad(0)
		if b.need(0) { // in the order of the input
			lay := b.x.Contiguous
			if b.in(0).channelsLast() {
				lay = b.x.ChannelsLast
			}
			b.set(0, lay(b.x.convOp(rowConv, b.n.opt, g, b.in(1), nil)))
		}
		if b.need(1) {
			b.set(1, b.x.convOp(rowConvWeight, b.n.opt, b.in(0), g))
		}
	}
}

func inferConvTranspose(f *frame) {
	c, t, w := f.opt.(conv), f.in[0], f.in[1]
	f.convolvable()
	shape := []int{c.Batch, c.In, c.H, c.W}
	f.newOut(0, t.dt, shape, channelsLastIf(t.channelsLast() || w.channelsLast(), shape))
}

func runConvTranspose(f *frame) error {
	c := f.conv(f.out[0], f.in[1], f.in[0])
	return kernels.ConvData(f, c, operand(f.out[0]), operand(f.in[1]), operand(f.in[0]))
}

// planConvTranspose checks shapes and options, and returns the convolution whose transpose is meant.
func (x *Exec) planConvTranspose(in, w, b *Tensor, opt ConvTranspose2dOpt) conv {
	const op = "ConvTranspose2d"
	all := []*Tensor{in, w, b}
	refuse := func(format string, args ...any) { x.fail(op, fault.Invalid, all, format, args...) }
	stride, dilation := Pair(op, "Stride", opt.Stride, [2]int{1, 1}), Pair(op, "Dilation", opt.Dilation, [2]int{1, 1})
	groups := opt.Groups
	if groups == 0 {
		groups = 1
	}
	if len(in.shape) != 4 || len(w.shape) != 4 {
		refuse("Expected 3D (unbatched) or 4D (batched) input to conv_transpose2d and a 4D weight")
	}
	var size [2]int
	for i := range size {
		n, k, pad, more := in.shape[2+i], w.shape[2+i], opt.Padding[i], opt.OutputPadding[i]
		switch {
		case stride[i] < 0 || dilation[i] < 0 || groups < 0 || pad < 0 || more < 0:
			refuse("stride, dilation and groups must be positive, and padding and output padding not negative")
		case more >= stride[i] && more >= dilation[i]:
			refuse("output padding must be smaller than either stride or dilation, but got %d with a stride of %d and a dilation of %d",
				more, stride[i], dilation[i])
		case k == 0:
			refuse("kernel size should be greater than zero, but got a weight of size %v", w.shape)
		}
		x.wantInt32(op, in, n, k, stride[i], dilation[i], pad, more)
		steps, reach := max(n-1, 0)*stride[i], dilation[i]*(k-1)+1
		x.wantInt32(op, in, steps, reach)
		x.wantInt32(op, in, steps+reach+more)
		size[i] = (n-1)*stride[i] - 2*pad + reach + more
		if n == 0 || size[i] < 1 {
			refuse("Given input size per channel: %v, the calculated output has size %d in one dimension. Output size is too small",
				in.shape[2:], size[i])
		}
	}
	c := kernels.Conv{Batch: in.shape[0], In: w.shape[1] * groups, H: size[0], W: size[1], Out: in.shape[1], KH: w.shape[2], KW: w.shape[3],
		OH: in.shape[2], OW: in.shape[3], StrideH: stride[0], StrideW: stride[1], PadH: opt.Padding[0], PadW: opt.Padding[1],
		DilationH: dilation[0], DilationW: dilation[1], Groups: groups,
		LastX: in.channelsLast() || w.channelsLast(), LastW: w.channelsLast()}
	switch {
	case w.shape[0] != c.Out:
		refuse("Given a weight of size %v, expected input%v to have %d channels, but got %d channels instead", w.shape, in.shape,
			w.shape[0], c.Out)
	case c.Out%groups != 0:
		refuse("the number of input channels, %d, must be divisible by groups, %d", c.Out, groups)
	case b != nil && (len(b.shape) != 1 || b.shape[0] != c.In):
		refuse("Given a weight of size %v and groups=%d, expected bias to be 1-dimensional with %d elements, but got bias of size %v "+
			"instead", w.shape, groups, c.In, b.shape)
	}
	return conv{c}
}

// ConvTranspose2d returns the transposed convolution of in [N, C, H, W] (or [C, H, W]) with w [C, Out/Groups, KH, KW], plus b [Out] if it
// is not nil: the gradient that [Exec.Conv2d] with these options and this weight has for its input, if in is that of its output.
func (x *Exec) ConvTranspose2d(in, w, b *Tensor, opt ConvTranspose2dOpt) *Tensor {
	return x.composite("ConvTranspose2d", func(x *Exec) *Tensor {
		if len(in.shape) == 3 {
			return x.Squeeze(x.ConvTranspose2d(x.Unsqueeze(in, 0), w, b, opt), 0)
		}
		x = x.casting("ConvTranspose2d", castLow, &in, &w, &b)
		if in.dt.IsComplex() && w.dt.IsComplex() && (b == nil || b.dt.IsComplex()) {
			return x.complexConv("ConvTranspose2d", in, w, b, func(in, w, b *Tensor) *Tensor { return x.ConvTranspose2d(in, w, b, opt) })
		}
		out := x.convOp(rowConvTranspose, x.planConvTranspose(in, w, b, opt), in, w)
		if b == nil {
			return out
		}
		if b.dt != out.dt {
			x.fail("ConvTranspose2d", fault.Invalid, []*Tensor{in, w, b},
				"Input type (%v) and bias type (%v) should be the same; convert one with x.ToDType", in.dt, b.dt)
		}
		return x.Add(out, x.View(b, b.shape[0], 1, 1))
	})
}
