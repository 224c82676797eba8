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
	Opt tenon.ConvOpt `torch:"-"`
}

// ConvOpt are the options of NewConv1d and NewConv2d. The zero value is PyTorch's default.
type ConvOpt struct {
	// Stride, Padding and Dilation are for height and width; NewConv1d uses the last element. A zero Stride, Dilation or Groups means 1.
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

func (o ConvOpt) conv() tenon.ConvOpt {
	return tenon.ConvOpt{Stride: o.Stride, Padding: o.Padding, Dilation: o.Dilation, Groups: o.Groups, Same: o.Same}
}

// check refuses options and sizes that no convolution can have, and returns the input channels of a group.
func (o ConvOpt) check(op string, in, out int, kernel ...int) int {
	groups := max(o.Groups, 1)
	switch {
	case o.Groups < 0:
		fail(op, "groups must be a positive integer, not %d", o.Groups)
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
	return in / groups
}

// NewConv2d returns a convolution from in to out channels with a kernel of the given height and width, and PyTorch's initial values:
// uniform within ±1/√(in/groups·height·width).
func NewConv2d(x *tenon.Exec, in, out int, kernel [2]int, opts ...ConvOpt) *Conv2d {
	opt := core.One("NewConv2d", opts)
	perGroup := opt.check("NewConv2d", in, out, kernel[:]...)
	c := &Conv2d{Opt: opt.conv()}
	c.Weight, c.Bias = layer{opt.DType, opt.Generator}.weightAndBias(x, opt.NoBias, out, perGroup, kernel[0], kernel[1])
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
	// Opt are stride, padding, dilation and groups; the last element of each pair counts.
	Opt tenon.ConvOpt `torch:"-"`
}

// NewConv1d returns a convolution from in to out channels with a kernel of the given length, and PyTorch's initial values: uniform within
// ±1/√(in/groups·kernel).
func NewConv1d(x *tenon.Exec, in, out, kernel int, opts ...ConvOpt) *Conv1d {
	opt := core.One("NewConv1d", opts)
	perGroup := opt.check("NewConv1d", in, out, kernel)
	c := &Conv1d{Opt: opt.conv()}
	c.Weight, c.Bias = layer{opt.DType, opt.Generator}.weightAndBias(x, opt.NoBias, out, perGroup, kernel)
	return c
}

// Forward maps in [N, In, L], or [In, L], to the layer's output channels.
func (c *Conv1d) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	made(c, "Conv1d")
	return x.Conv1d(in, c.Weight.Tensor(), c.Bias.Tensor(), c.Opt)
}
