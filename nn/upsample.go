package nn

import "tenon.dev"

// Upsample resizes images, or whatever has one to three dimensions after the first two, as [tenon.Exec.Interpolate] does. Either Size or
// Scale is given; one number stands for all dimensions.
type Upsample struct {
	Size  []int
	Scale []float64
	// Mode is tenon.InterpolateNearest if it is left out.
	Mode tenon.InterpolateMode
	// AlignCorners is for the linear modes; RecomputeScale takes distances from the sizes instead of Scale.
	AlignCorners, RecomputeScale bool
}

// Forward returns in [N, C, …] resized.
func (u Upsample) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Interpolate(in, tenon.InterpolateOpt(u))
}
