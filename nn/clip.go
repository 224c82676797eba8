package nn

import (
	"iter"

	"tenon.dev"
	"tenon.dev/internal/core"
)

// ClipOpt are the options of ClipGradNorm. The zero value is PyTorch's default.
type ClipOpt struct {
	// Norm is the norm's order, math.Inf(1) for the largest magnitude; the default is 2.
	Norm tenon.Scalar
}

// ClipGradNorm scales the gradients of params, in place and all by one factor, so that their norm as one vector is at most maxNorm, and
// returns the norm before scaling, as torch.nn.utils.clip_grad_norm_ does. Parameters without a gradient do not count. It neither waits
// for the device nor records gradients; call it between Backward and the optimizer's Step. A call that fails changes no gradient.
func ClipGradNorm(x *tenon.Exec, params iter.Seq2[string, *Param], maxNorm float64, opts ...ClipOpt) *tenon.Tensor {
	opt := core.One("ClipGradNorm", opts)
	if params == nil {
		fail("ClipGradNorm", "the parameters are nil; give such as nn.Params(m)")
	}
	order := core.Or("ClipGradNorm", "Norm", opt.Norm, 2)
	if !(maxNorm >= 0) {
		fail("ClipGradNorm", "a norm cannot be at most %v; give a number that is not negative", maxNorm)
	}
	if !(order >= 0) {
		fail("ClipGradNorm", "Norm is %v; give an order that is not negative", order)
	}
	var grads []*core.Tensor
	for name, p := range params {
		core.OpenParam("ClipGradNorm", name, (*core.Tensor)(p.Tensor()))
		if g := p.Grad(); g != nil {
			grads = append(grads, (*core.Tensor)(g))
		}
	}
	return x.NoGrad().Within(func(x *tenon.Exec) *tenon.Tensor {
		if grads == nil {
			return x.Zeros(nil, tenon.Float32)
		}
		norm := x.VectorNorm((*tenon.Tensor)(core.VectorNorms((*core.Exec)(x), grads, order)), nil, tenon.VectorNormOpt{Ord: opt.Norm})
		factor := x.ClampMaxS(x.RDivS(x.AddS(norm, 1e-6), maxNorm), 1)
		core.ScaleAll((*core.Exec)(x), "ClipGradNorm", grads, (*core.Tensor)(factor))
		return norm
	})
}

// ClipGradValue clamps every element of the gradients of params to at most limit in magnitude, in place, as
// torch.nn.utils.clip_grad_value_ does.
func ClipGradValue(x *tenon.Exec, params iter.Seq2[string, *Param], limit float64) {
	if params == nil {
		fail("ClipGradValue", "the parameters are nil; give such as nn.Params(m)")
	}
	if !(limit >= 0) {
		fail("ClipGradValue", "no magnitude is at most %v; give a number that is not negative", limit)
	}
	core.Together((*core.Exec)(x.NoGrad()), "ClipGradValue", func(cx *core.Exec) {
		for name, p := range params {
			core.OpenParam("ClipGradValue", name, (*core.Tensor)(p.Tensor()))
			if g := p.Grad(); g != nil {
				(*tenon.Exec)(cx).ClampSInto(g, g, -limit, limit)
			}
		}
	})
}
