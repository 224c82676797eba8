package core

import (
	"math"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
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

// resampling is the attribute of the rows of the linear modes: the sizes before and after in the dimensions that change, or 1, and the bits
// of the distances. last says that both tensors are channels last, which the gradient of planes of one element does not show.
type resampling struct {
	from, to      [3]int
	step          [3]uint64
	corners, last bool
}

func (resampling) param() {}

var rowInterpolate, rowInterpolateGrad *row

func init() {
	rowInterpolate = define(resampleRow("InterpolateLinear", "nn.functional.interpolate", false, (*kernels.Resample).Forward))
	rowInterpolateGrad = define(resampleRow("InterpolateLinearBackward", "", true, (*kernels.Resample).Backward))
}

func init() {
	rowInterpolate.back = func(b *back) {
		x, g, r := b.x, b.grad(0), b.n.opt.(resampling)
		if r.from != [3]int{1, 1, 1} {
			b.set(0, x.resampleOp(rowInterpolateGrad, b.n.opt, g))
			return
		}
		// One element gets everything, and a reduction uses more of the device for that.
		dx := x.Sum(g, []int{2, 3, 4}[:len(g.shape)-2], SumOpt{KeepDim: true})
		if r.last {
			dx = x.ChannelsLast(dx)
		}
		b.set(0, dx)
	}
	rowInterpolateGrad.back = func(b *back) { b.set(0, b.x.resampleOp(rowInterpolate, b.n.opt, b.grad(0))) }
}

// resampleRow returns the row of the linear modes, or of their derivative, whose output has the input's sizes.
func resampleRow(name, torch string, gradient bool, run func(p *kernels.Resample, is kernels.Issuer, out, in kernels.Operand) error) row {
	return row{Name: name, Torch: torch, takes: "t;; options",
		infer: func(f *frame) {
			t, r := f.in[0], f.opt.(resampling)
			sizes := r.to
			if gradient {
				sizes = r.from
			}
			shape := append(f.lists[:0], t.shape[:2]...)
			shape = append(shape, sizes[:len(t.shape)-2]...)
			f.newOut(0, t.dt, shape, channelsLastIf(r.last, shape))
		},
		run: func(f *frame) error {
			r := f.opt.(resampling)
			p := kernels.Resample{Corners: r.corners}
			for i, step := range r.step {
				p.Step[i] = math.Float64frombits(step)
			}
			return run(&p, f, operand(f.out[0]), operand(f.in[0]))
		},
	}
}

func (x *Exec) resampleOp(r *row, opt param, t *Tensor) *Tensor {
	f := x.op(r, t)
	f.opt = opt
	return f.call1()
}

// Interpolate resizes the one to three dimensions of t [N, C, …] after the first two. The linear modes are for floating-point types and
// compute halves in float32. The result is channels last if t is.
func (x *Exec) Interpolate(t *Tensor, opt InterpolateOpt) *Tensor {
	dims := x.planInterpolate(t, &opt)
	shift := 0.0
	switch opt.Mode {
	case InterpolateNearest:
	case InterpolateNearestExact:
		shift = 0.5
	default:
		return x.resampleOp(rowInterpolate, x.planLinear(t, dims, opt.AlignCorners), t)
	}
	return x.composite("Interpolate", func(x *Exec) *Tensor {
		out := x.nearest(t, dims, shift)
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
		refuse("Got %dD input, but %v mode needs %dD input; the mode for this input is %v", len(t.shape), opt.Mode,
			int(opt.Mode-InterpolateLinear)+3, InterpolateLinear+InterpolateMode(n-1))
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

// planLinear returns the attribute of a linear mode.
func (x *Exec) planLinear(t *Tensor, dims []resized, corners bool) resampling {
	r := resampling{from: [3]int{1, 1, 1}, to: [3]int{1, 1, 1}, corners: corners, last: t.channelsLast()}
	for i, d := range dims {
		if d.from > math.MaxInt32 || d.to > math.MaxInt32 {
			x.fail("Interpolate", fault.Invalid, []*Tensor{t},
				"integer out of range: sizes are below 2^31 in the linear modes, but here is %d", max(d.from, d.to))
		}
		step := d.step
		switch {
		case corners && d.to > 1:
			step = float64(d.from-1) / float64(d.to-1)
		case corners:
			step = 0
		}
		r.from[i], r.to[i], r.step[i] = d.from, d.to, math.Float64bits(step)
	}
	return r
}
