package nn

import (
	"slices"

	"tenon.dev"
	"tenon.dev/internal/core"
)

// NormOpt are the options of NewLayerNorm, NewGroupNorm and NewRMSNorm. The zero value is PyTorch's default.
type NormOpt struct {
	// Eps is added to the variance; the default is 1e-5, and in RMSNorm the distance from 1 to the next larger number of the input's type.
	Eps tenon.Scalar
	// NoAffine leaves out weight and bias, NoBias only the bias.
	NoAffine, NoBias bool
	// DType is the parameters' type; 0 is Float32.
	DType tenon.DType
}

// affine returns a weight of ones and a bias of zeros, each nil if the options leave it out.
func (o NormOpt) affine(x *tenon.Exec, bias bool, shape ...int) (weight, zeros *Param) {
	if o.NoAffine {
		return nil, nil
	}
	weight = NewParam(x.Ones(shape, orFloat32(o.DType)))
	if bias && !o.NoBias {
		zeros = NewParam(x.Zeros(shape, orFloat32(o.DType)))
	}
	return weight, zeros
}

// LayerNorm normalises over the last dimensions.
type LayerNorm struct {
	// Weight and Bias have the shape of those dimensions, or are nil.
	Weight *Param `torch:"weight"`
	Bias   *Param `torch:"bias"`

	shape []int
	eps   tenon.Scalar // made once, since making one of a number allocates
}

// NewLayerNorm returns a normalisation over the last dimensions, which have the given shape.
func NewLayerNorm(x *tenon.Exec, shape []int, opts ...NormOpt) *LayerNorm {
	opt := core.One("NewLayerNorm", opts)
	n := &LayerNorm{shape: slices.Clone(shape), eps: core.OrEps("NewLayerNorm", opt.Eps, 1e-5)}
	n.Weight, n.Bias = opt.affine(x, true, shape...)
	return n
}

// Forward returns in, whose last dimensions have the layer's shape, normalised.
func (n *LayerNorm) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	made(n, "LayerNorm")
	return x.LayerNorm(in, n.Weight.Tensor(), n.Bias.Tensor(), n.shape, tenon.NormOpt{Eps: n.eps})
}

// RMSNorm divides by the root mean square of the last dimensions.
type RMSNorm struct {
	// Weight has the shape of those dimensions, or is nil.
	Weight *Param `torch:"weight"`

	shape []int
	eps   tenon.Scalar // nil is the default, which depends on the input's type
}

// NewRMSNorm returns a normalisation over the last dimensions, which have the given shape. It has no bias.
func NewRMSNorm(x *tenon.Exec, shape []int, opts ...NormOpt) *RMSNorm {
	opt := core.One("NewRMSNorm", opts)
	n := &RMSNorm{shape: slices.Clone(shape)}
	if opt.Eps != nil {
		n.eps = core.OrEps("NewRMSNorm", opt.Eps, 0)
	}
	n.Weight, _ = opt.affine(x, false, shape...)
	return n
}

// Forward returns in, whose last dimensions have the layer's shape, normalised.
func (n *RMSNorm) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	made(n, "RMSNorm")
	return x.RMSNorm(in, n.Weight.Tensor(), n.shape, tenon.NormOpt{Eps: n.eps})
}

// GroupNorm normalises over groups of channels.
type GroupNorm struct {
	// Weight and Bias are [C], or nil.
	Weight *Param `torch:"weight"`
	Bias   *Param `torch:"bias"`

	groups, channels int
	eps              tenon.Scalar
}

// NewGroupNorm returns a normalisation that divides the channels into the given number of groups.
func NewGroupNorm(x *tenon.Exec, groups, channels int, opts ...NormOpt) *GroupNorm {
	opt := core.One("NewGroupNorm", opts)
	if groups < 1 || channels%groups != 0 {
		fail("NewGroupNorm", "%d channels cannot be divided into %d equal groups; give a number of groups that divides them", channels,
			groups)
	}
	n := &GroupNorm{groups: groups, channels: channels, eps: core.OrEps("NewGroupNorm", opt.Eps, 1e-5)}
	n.Weight, n.Bias = opt.affine(x, true, channels)
	return n
}

// Forward returns in [N, C, …], normalised.
func (n *GroupNorm) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	made(n, "GroupNorm")
	return x.GroupNorm(in, n.Weight.Tensor(), n.Bias.Tensor(), n.groups, tenon.NormOpt{Eps: n.eps})
}
