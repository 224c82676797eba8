package nn

import (
	"tenon.dev"
	"tenon.dev/internal/core"
)

// Conv2d is a two-dimensional convolution (cross-correlation) with a bias for each output channel.
type Conv2d struct {
	// Weight is [Out, In/Groups, KH, KW]; Bias is [Out], or nil for none.
	Weight *Param `torch:"weight"`
	Bias   *Param `torch:"bias"`
	// Opt are stride, padding, dilation and groups.
	Opt tenon.Conv2dOpt `torch:"-"`
}

// Conv2dOpt are the options of NewConv2d. The zero value is PyTorch's default.
type Conv2dOpt struct {
	// Stride, Padding and Dilation are for height and width: [2]int{2, 2} where PyTorch takes 2. A Stride, Dilation or Groups that is left
	// out means 1; a pair with one zero for Stride or Dilation is an error.
	Stride, Padding, Dilation [2]int
	Groups                    int
	// Same replaces Padding and pads so that the output has the input's size; the strides must be 1.
	Same bool
	// NoBias leaves the bias out.
	NoBias bool
	// DType is the parameters' type; 0 is Float32.
	DType tenon.DType
	// Generator draws the initial values; nil is x's own generator, on the device.
	Generator *HostGenerator
}

// checkConv checks what is the same for all convolutions, and returns the number of groups.
func checkConv(op string, groups, in, out int, kernel ...int) int {
	if groups < 0 {
		fail(op, "groups must be a positive integer, not %d", groups)
	}
	groups = max(groups, 1)
	switch {
	case in < 0 || in%groups != 0:
		fail(op, "in_channels must be divisible by groups (%d input channels, %d groups)", in, groups)
	case out < 0 || out%groups != 0:
		fail(op, "out_channels must be divisible by groups (%d output channels, %d groups)", out, groups)
	}
	for _, k := range kernel {
		if k < 1 {
			fail(op, "a kernel of size %v cannot be; give positive numbers", kernel)
		}
	}
	return groups
}

// NewConv2d returns a convolution from in to out channels with a kernel of the given height and width, and PyTorch's initial values:
// uniform within ±1/√(in/groups·height·width).
func NewConv2d(x *tenon.Exec, in, out int, kernel [2]int, opts ...Conv2dOpt) *Conv2d {
	o := core.One("NewConv2d", opts)
	core.Pair("NewConv2d", "Stride", o.Stride, [2]int{1, 1})
	core.Pair("NewConv2d", "Dilation", o.Dilation, [2]int{1, 1})
	c := &Conv2d{Opt: tenon.Conv2dOpt{Stride: o.Stride, Padding: o.Padding, Dilation: o.Dilation, Groups: o.Groups, Same: o.Same}}
	groups := checkConv("NewConv2d", o.Groups, in, out, kernel[:]...)
	c.Weight, c.Bias = layer{o.DType, o.Generator}.weightAndBias(x, o.NoBias, out, out, in/groups, kernel[0], kernel[1])
	return c
}

// Forward maps in [N, In, H, W], or [In, H, W], to the layer's output channels.
func (c *Conv2d) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	made(c, "Conv2d")
	return x.Conv2d(in, c.Weight.Tensor(), c.Bias.Tensor(), c.Opt)
}

// Conv1d is a one-dimensional convolution (cross-correlation) with a bias for each output channel.
type Conv1d struct {
	// Weight is [Out, In/Groups, K]; Bias is [Out], or nil for none.
	Weight *Param `torch:"weight"`
	Bias   *Param `torch:"bias"`
	// Opt are stride, padding, dilation and groups.
	Opt tenon.Conv1dOpt `torch:"-"`
}

// Conv1dOpt are the options of NewConv1d. The zero value is PyTorch's default.
type Conv1dOpt struct {
	// A zero Stride, Dilation or Groups means 1.
	Stride, Padding, Dilation int
	Groups                    int
	// Same replaces Padding and pads so that the output has the input's size; the stride must be 1.
	Same bool
	// NoBias leaves the bias out.
	NoBias bool
	// DType is the parameters' type; 0 is Float32.
	DType tenon.DType
	// Generator draws the initial values; nil is x's own generator, on the device.
	Generator *HostGenerator
}

// NewConv1d returns a convolution from in to out channels with a kernel of the given length, and PyTorch's initial values: uniform within
// ±1/√(in/groups·kernel).
func NewConv1d(x *tenon.Exec, in, out, kernel int, opts ...Conv1dOpt) *Conv1d {
	o := core.One("NewConv1d", opts)
	c := &Conv1d{Opt: tenon.Conv1dOpt{Stride: o.Stride, Padding: o.Padding, Dilation: o.Dilation, Groups: o.Groups, Same: o.Same}}
	groups := checkConv("NewConv1d", o.Groups, in, out, kernel)
	c.Weight, c.Bias = layer{o.DType, o.Generator}.weightAndBias(x, o.NoBias, out, out, in/groups, kernel)
	return c
}

// Forward maps in [N, In, L], or [In, L], to the layer's output channels.
func (c *Conv1d) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	made(c, "Conv1d")
	return x.Conv1d(in, c.Weight.Tensor(), c.Bias.Tensor(), c.Opt)
}

// ConvTranspose2d is a two-dimensional transposed convolution with a bias for each output channel.
type ConvTranspose2d struct {
	// Weight is [In, Out/Groups, KH, KW]; Bias is [Out], or nil for none.
	Weight *Param `torch:"weight"`
	Bias   *Param `torch:"bias"`
	// Opt are stride, padding, output padding, dilation and groups.
	Opt tenon.ConvTranspose2dOpt `torch:"-"`
}

// ConvTranspose2dOpt are the options of NewConvTranspose2d. The zero value is PyTorch's default.
type ConvTranspose2dOpt struct {
	// Stride, Padding, OutputPadding and Dilation are for height and width: [2]int{2, 2} where PyTorch takes 2. A Stride, Dilation or
	// Groups that is left out means 1; a pair with one zero for Stride or Dilation is an error. OutputPadding makes the output longer at
	// the end.
	Stride, Padding, OutputPadding, Dilation [2]int
	Groups                                   int
	// NoBias leaves the bias out.
	NoBias bool
	// DType is the parameters' type; 0 is Float32.
	DType tenon.DType
	// Generator draws the initial values; nil is x's own generator, on the device.
	Generator *HostGenerator
}

// NewConvTranspose2d returns a transposed convolution from in to out channels with a kernel of the given height and width, and PyTorch's
// initial values: uniform within ±1/√(out/groups·height·width).
func NewConvTranspose2d(x *tenon.Exec, in, out int, kernel [2]int, opts ...ConvTranspose2dOpt) *ConvTranspose2d {
	o := core.One("NewConvTranspose2d", opts)
	core.Pair("NewConvTranspose2d", "Stride", o.Stride, [2]int{1, 1})
	core.Pair("NewConvTranspose2d", "Dilation", o.Dilation, [2]int{1, 1})
	c := &ConvTranspose2d{Opt: tenon.ConvTranspose2dOpt{Stride: o.Stride, Padding: o.Padding, OutputPadding: o.OutputPadding,
		Dilation: o.Dilation, Groups: o.Groups}}
	groups := checkConv("NewConvTranspose2d", o.Groups, in, out, kernel[:]...)
	c.Weight, c.Bias = layer{o.DType, o.Generator}.weightAndBias(x, o.NoBias, out, in, out/groups, kernel[0], kernel[1])
	return c
}

// Forward maps in [N, In, H, W], or [In, H, W], to the layer's output channels.
func (c *ConvTranspose2d) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	made(c, "ConvTranspose2d")
	return x.ConvTranspose2d(in, c.Weight.Tensor(), c.Bias.Tensor(), c.Opt)
}
