package core

import (
	"math"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// InterpolateMode says how Interpolate finds an element between others.
type InterpolateMode uint8

// The modes of Interpolate: the nearest element before the place, the linear mixture of the neighbours in one, two or three dimensions, and
// the nearest element by the centres of elements.
const (
	InterpolateNearest InterpolateMode = iota
	InterpolateLinear
	InterpolateBilinear
	InterpolateTrilinear
	InterpolateNearestExact
)

// String returns the mode as PyTorch calls it, such as "nearest-exact".
func (m InterpolateMode) String() string {
	return nameOf(m, "nearest", "linear", "bilinear", "trilinear", "nearest-exact")
}

// InterpolateOpt are the options of Interpolate. Either Size or Scale is given.
type InterpolateOpt struct {
	// Size is the output's size in the dimensions after the first two, and Scale how many times as long as the input it is. One number
	// stands for all of these dimensions.
	Size  []int
	Scale []float64
	// Mode is InterpolateNearest (the zero value), InterpolateLinear, InterpolateBilinear, InterpolateTrilinear or InterpolateNearestExact.
	Mode InterpolateMode
	// AlignCorners makes the first and last elements of linear modes those of the input; otherwise edges of elements coincide.
	AlignCorners bool
	// RecomputeScale takes the distance of elements from the sizes, and not from Scale, which differ if a size is rounded.
	RecomputeScale bool
}

// resized is a dimension that Interpolate changes: its size before and after, and the distance of the output's elements in the input.
type resized struct {
	dim, from, to int
	step          float64
}

// Interpolate resizes the one to three dimensions of t [N, C, …] after the first two. The linear modes are for floating-point types and
// compute halves in float32. The result is channels last if t is.
func (x *Exec) Interpolate(t *Tensor, opt InterpolateOpt) *Tensor {
	return x.composite("Interpolate", func(x *Exec) *Tensor {
		dims := x.planInterpolate(t, &opt)
		var out *Tensor
		switch opt.Mode {
		case InterpolateNearest:
			out = x.nearest(t, dims, 0)
		case InterpolateNearestExact:
			out = x.nearest(t, dims, 0.5)
		default:
			out = x.linearBetween(t, dims, opt.AlignCorners)
		}
		if t.channelsLast() {
			return x.ChannelsLast(out)
		}
		return out
	})
}

// planInterpolate checks the options and returns the dimensions.
func (x *Exec) planInterpolate(t *Tensor, opt *InterpolateOpt) []resized {
	refuse := func(format string, args ...any) { x.fail("Interpolate", fault.Invalid, []*Tensor{t}, format, args...) }
	n := len(t.shape) - 2
	linear := opt.Mode >= InterpolateLinear && opt.Mode <= InterpolateTrilinear
	switch {
	case n < 1 || n > 3:
		refuse("Input Error: Only 3D, 4D and 5D input Tensors supported (got %dD)", len(t.shape))
	case opt.Mode > InterpolateNearestExact:
		refuse("there is no mode %v; give one of the constants", opt.Mode)
	case linear && int(opt.Mode-InterpolateLinear) != n-1:
		refuse("Got %dD input, but %v mode needs %dD input", len(t.shape), opt.Mode, int(opt.Mode-InterpolateLinear)+3)
	case opt.AlignCorners && !linear:
		refuse("AlignCorners can only be set with the modes linear, bilinear and trilinear, not with %v", opt.Mode)
	case linear && !t.dt.IsFloat():
		refuse("%v interpolation is not defined for %v; convert to a floating-point type first", opt.Mode, t.dt)
	case (len(opt.Size) > 0) == (len(opt.Scale) > 0):
		refuse("give either Size or Scale")
	}
	if given := max(len(opt.Size), len(opt.Scale)); given != 1 && given != n {
		refuse("Size or Scale has %d numbers for %d dimensions; give one, or one for each", given, n)
	}
	dims := make([]resized, n)
	for i := range dims {
		d := resized{dim: 2 + i, from: t.shape[2+i]}
		if len(opt.Size) > 0 {
			d.to = opt.Size[min(i, len(opt.Size)-1)]
			d.step = float64(d.from) / float64(d.to)
		} else {
			scale := opt.Scale[min(i, len(opt.Scale)-1)]
			to := float64(d.from) * scale
			if !(scale > 0) || to > math.MaxInt32 {
				refuse("a scale of %v is not possible here; give a positive number", scale)
			}
			d.to, d.step = int(to), 1/scale
			if opt.RecomputeScale {
				d.step = float64(d.from) / float64(d.to)
			}
		}
		if d.from < 1 || d.to < 1 {
			refuse("Input and output sizes should be greater than 0, but the input has size %v and the output %d there", t.shape[2:], d.to)
		}
		dims[i] = d
	}
	return dims
}

// nearest repeats or leaves out elements. Those of the output lie shift of its elements after their places.
func (x *Exec) nearest(t *Tensor, dims []resized, shift float64) *Tensor {
	if !slices.ContainsFunc(dims, func(d resized) bool { return d.to != d.from || d.step != 1 }) {
		return x.Clone(t)
	}
	if !slices.ContainsFunc(dims, func(d resized) bool { return d.to%d.from != 0 || d.step != float64(d.from)/float64(d.to) }) {
		split, repeated, shape := slices.Clone(t.shape[:2]), slices.Clone(t.shape[:2]), slices.Clone(t.shape[:2])
		for _, d := range dims {
			split, repeated = append(split, d.from, 1), append(repeated, d.from, d.to/d.from)
			shape = append(shape, d.to)
		}
		return x.Reshape(x.Expand(x.Reshape(t, split...), repeated...), shape...)
	}
	for _, d := range dims {
		at := x.MulS(x.Arange(float64(d.to), dtype.Float32, ArangeOpt{Start: shift, Step: 1}), float64(float32(d.step)))
		t = x.IndexSelect(t, d.dim, x.ToDType(x.ClampS(at, 0, float64(d.from-1)), dtype.Int64))
	}
	return t
}

// linearBetween mixes the two neighbours of each place, in one dimension after the other from the last, as PyTorch nests the mixtures.
func (x *Exec) linearBetween(t *Tensor, dims []resized, corners bool) *Tensor {
	compute := t.dt
	if compute != dtype.Float64 {
		compute = dtype.Float32
	}
	in := x.ToDType(t, compute)
	for _, d := range slices.Backward(dims) {
		at := x.Arange(float64(d.to), compute, ArangeOpt{})
		switch {
		case corners && d.to > 1:
			at = x.MulS(at, float64(d.from-1)/float64(d.to-1))
		case corners:
			at = x.MulS(at, 0)
		default:
			at = x.AddS(x.MulS(x.AddS(at, 0.5), d.step), -0.5)
		}
		at = x.ClampS(at, 0, float64(d.from-1))
		below := x.Floor(at)
		shape := []int{d.to}
		for range len(t.shape) - d.dim - 1 {
			shape = append(shape, 1)
		}
		part := x.View(x.Sub(at, below), shape...)
		first := x.ToDType(below, dtype.Int64)
		second := x.ClampS(x.AddS(first, 1), 0, float64(d.from-1))
		in = x.Add(x.Mul(x.IndexSelect(in, d.dim, first), x.RSubS(part, 1)), x.Mul(x.IndexSelect(in, d.dim, second), part))
	}
	return x.ToDType(in, t.dt)
}
