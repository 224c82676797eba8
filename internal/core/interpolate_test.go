package core

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

// Interpolate keeps the memory order and the type, makes a tensor of its own, and gives the same bits whatever the order of the input.
func TestInterpolate(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		in := x.View(x.Arange(2*3*2*3, dtype.Float32, ArangeOpt{}), 2, 3, 2, 3)
		for _, opt := range []InterpolateOpt{
			{Scale: []float64{2}}, {Scale: []float64{1}}, {Size: []int{5, 4}}, {Scale: []float64{1.7}, Mode: InterpolateNearestExact},
			{Scale: []float64{3, 2}, Mode: InterpolateNearestExact}, {Size: []int{3, 7}, Mode: InterpolateBilinear},
			{Size: []int{1, 3}, Mode: InterpolateBilinear, AlignCorners: true},
		} {
			out := x.Interpolate(in, opt)
			if out.st == in.st || !out.IsContiguous() {
				t.Errorf("%+v: the result has strides %v, or the memory of the input", opt, out.Stride())
			}
			last := x.Interpolate(x.ChannelsLast(in), opt)
			if !last.channelsLast() || !slices.Equal(doubles(t, x, last), doubles(t, x, out)) {
				t.Errorf("%+v: with channels last the strides are %v and the elements %v, want %v", opt, last.Stride(), doubles(t, x, last),
					doubles(t, x, out))
			}
			half := x.Interpolate(x.ToDType(in, dtype.Float16), opt)
			if want := x.ToDType(out, dtype.Float16); half.dt != dtype.Float16 || !slices.Equal(doubles(t, x, half), doubles(t, x, want)) {
				t.Errorf("%+v: half precision is %v, want %v", opt, doubles(t, x, half), doubles(t, x, want))
			}
		}
		row := x.View(x.Arange(3, dtype.Int64, ArangeOpt{}), 1, 1, 3)
		for _, c := range []struct {
			opt  InterpolateOpt
			want []float64
		}{
			{InterpolateOpt{Scale: []float64{2}}, []float64{0, 0, 1, 1, 2, 2}}, {InterpolateOpt{Size: []int{2}}, []float64{0, 1}},
			{InterpolateOpt{Size: []int{2}, Mode: InterpolateNearestExact}, []float64{0, 2}},
			{InterpolateOpt{Size: []int{5}}, []float64{0, 0, 1, 1, 2}},
		} {
			if got := doubles(t, x, x.Interpolate(row, c.opt)); !slices.Equal(got, c.want) {
				t.Errorf("%+v gives %v, want %v", c.opt, got, c.want)
			}
		}
		for want, f := range map[string]func(){
			"got 2D":                    func() { x.Interpolate(x.Ones([]int{2, 2}, dtype.Float32), InterpolateOpt{Size: []int{2}}) },
			"needs 3D input":            func() { x.Interpolate(in, InterpolateOpt{Size: []int{2}, Mode: InterpolateLinear}) },
			"mode InterpolateMode(9); ": func() { x.Interpolate(in, InterpolateOpt{Size: []int{2}, Mode: 9}) },
			"AlignCorners can":          func() { x.Interpolate(in, InterpolateOpt{Size: []int{2}, AlignCorners: true}) },
			"not defined for int64":     func() { x.Interpolate(row, InterpolateOpt{Size: []int{2}, Mode: InterpolateLinear}) },
			"either Size or Scale":      func() { x.Interpolate(in, InterpolateOpt{}) },
			"give either":               func() { x.Interpolate(in, InterpolateOpt{Size: []int{2}, Scale: []float64{2}}) },
			"3 numbers for 2":           func() { x.Interpolate(in, InterpolateOpt{Size: []int{2, 2, 2}}) },
			"scale of -1":               func() { x.Interpolate(in, InterpolateOpt{Scale: []float64{-1}}) },
			"the output 0":              func() { x.Interpolate(in, InterpolateOpt{Scale: []float64{0.1}}) },
			"2^31 in the linear modes, but here is 4294967296": func() {
				x.Interpolate(x.Ones([]int{1, 1, 1}, dtype.Float32), InterpolateOpt{Size: []int{1 << 32}, Mode: InterpolateLinear})
			},
			"but here is 2147483648": func() {
				long := x.Expand(x.Ones([]int{1, 1, 1}, dtype.Float32), 1, 1, 1<<31)
				x.Interpolate(long, InterpolateOpt{Size: []int{2}, Mode: InterpolateLinear})
			},
			"the input has size [0 2]": func() { x.Interpolate(x.Ones([]int{1, 1, 0, 2}, dtype.Float32), InterpolateOpt{Size: []int{2}}) },
		} {
			if err := Try(f); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", want, err)
			}
		}
	})
}

// composedLinear is a linear mode as operations: it mixes the two neighbours of each place in one dimension after the other, from the last.
func composedLinear(x *Exec, t *Tensor, opt InterpolateOpt) *Tensor {
	compute := t.dt
	if compute != dtype.Float64 {
		compute = dtype.Float32
	}
	in := x.ToDType(t, compute)
	for _, d := range slices.Backward(x.planInterpolate(t, &opt)) {
		at := x.Arange(float64(d.to), compute, ArangeOpt{})
		switch {
		case opt.AlignCorners && d.to > 1:
			at = x.MulS(at, float64(d.from-1)/float64(d.to-1))
		case opt.AlignCorners:
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

// linearCases are calls of the linear modes: each size before and after, and scales that do not divide.
var linearCases = []struct {
	shape []int
	opt   InterpolateOpt
}{
	{[]int{2, 3, 7}, InterpolateOpt{Size: []int{12}, Mode: InterpolateLinear}},
	{[]int{2, 3, 12}, InterpolateOpt{Size: []int{5}, Mode: InterpolateLinear}},
	{[]int{1, 1, 1}, InterpolateOpt{Size: []int{9}, Mode: InterpolateLinear}},
	{[]int{1, 2, 29}, InterpolateOpt{Size: []int{1}, Mode: InterpolateLinear}},
	{[]int{1, 2, 10}, InterpolateOpt{Scale: []float64{3.7}, Mode: InterpolateLinear}},
	{[]int{1, 2, 10}, InterpolateOpt{Scale: []float64{0.33}, Mode: InterpolateLinear, RecomputeScale: true}},
	{[]int{2, 8, 5, 6}, InterpolateOpt{Scale: []float64{2}, Mode: InterpolateBilinear}},
	{[]int{2, 8, 9, 6}, InterpolateOpt{Size: []int{4, 11}, Mode: InterpolateBilinear}},
	{[]int{2, 3, 1, 1}, InterpolateOpt{Size: []int{7, 5}, Mode: InterpolateBilinear}},
	{[]int{2, 3, 9, 1}, InterpolateOpt{Scale: []float64{1.3, 2.9}, Mode: InterpolateBilinear}},
	{[]int{3, 4, 1, 6}, InterpolateOpt{Size: []int{1, 6}, Mode: InterpolateBilinear}},
	{[]int{1, 2, 11, 13}, InterpolateOpt{Scale: []float64{0.4, 0.21}, Mode: InterpolateBilinear}},
	{[]int{0, 2, 3, 3}, InterpolateOpt{Size: []int{4}, Mode: InterpolateBilinear}},
	{[]int{2, 0, 3, 3}, InterpolateOpt{Size: []int{4}, Mode: InterpolateBilinear}},
	{[]int{2, 3, 3, 4, 5}, InterpolateOpt{Size: []int{5, 3, 8}, Mode: InterpolateTrilinear}},
	{[]int{1, 2, 1, 5, 4}, InterpolateOpt{Scale: []float64{2, 1.5, 0.7}, Mode: InterpolateTrilinear}},
}

// TestInterpolateLinear checks that the linear modes have the bits of their operations, and gradients near theirs, whatever the layout.
func TestInterpolateLinear(t *testing.T) {
	layouts := map[string]func(x *Exec, t *Tensor) *Tensor{
		"contiguous": func(_ *Exec, t *Tensor) *Tensor { return t },
		"turned":     func(x *Exec, t *Tensor) *Tensor { return x.Transpose(x.Contiguous(x.Transpose(t, 1, -1)), 1, -1) },
		"channels last": func(x *Exec, t *Tensor) *Tensor {
			if len(t.shape) != 4 {
				return x.Transpose(x.Contiguous(x.Transpose(t, 0, 1)), 0, 1)
			}
			return x.ChannelsLast(t)
		},
		"repeated": func(x *Exec, t *Tensor) *Tensor {
			return x.Expand(x.Slice(t, 1, 0, min(1, t.shape[1]), 1), t.shape...)
		},
	}
	opened(t, func(t *testing.T, x *Exec) {
		for i, c := range linearCases {
			for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.Float16, dtype.BFloat16} {
				for layout, lay := range layouts {
					for _, corners := range []bool{false, true} {
						c.opt.AlignCorners = corners
						x.Scope(func(x *Exec) {
							x.Generator().SetSeed(uint64(i))
							in := lay(x, x.RandN(c.shape, dt)).SetRequiresGrad(true)
							compareLinear(t, x, fmt.Sprintf("%s %v of %v, %+v", layout, dt, c.shape, c.opt), in, c.opt)
						})
					}
				}
			}
		}
	})
}

// compareLinear compares a call, its gradient and the gradient of that with those of composedLinear.
func compareLinear(t *testing.T, x *Exec, what string, in *Tensor, opt InterpolateOpt) {
	t.Helper()
	got, want := x.Interpolate(in, opt), composedLinear(x, in, opt)
	if got.dt != want.dt || !slices.Equal(got.shape, want.shape) || got.channelsLast() != in.channelsLast() ||
		!in.channelsLast() && !got.IsContiguous() {
		t.Errorf("%s: %v %v with strides %v, want %v %v", what, got.dt, got.shape, got.Stride(), want.dt, want.shape)
	}
	if !slices.Equal(doubles(t, x, got), doubles(t, x, want)) {
		t.Errorf("%s: %v, want %v", what, doubles(t, x, got), doubles(t, x, want))
	}
	dy := x.RandN(want.shape, want.dt).SetRequiresGrad(true)
	gradient := func(y, of, dy *Tensor) *Tensor {
		g, err := x.Grad([]*Tensor{y}, []*Tensor{of}, GradOpt{Gradients: []*Tensor{dy}, CreateGraph: true})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return g[0]
	}
	dx := gradient(got, in, dy)
	if dx.dt != in.dt || dx.channelsLast() != in.channelsLast() {
		t.Errorf("%s: the gradient is %v with strides %v", what, dx.dt, dx.Stride())
	}
	// The derivative of the gradient is the mode itself, since both are linear.
	if second := doubles(t, x, gradient(dx, dy, x.Detach(in))); !slices.Equal(second, doubles(t, x, got)) {
		t.Errorf("%s: the derivative of the gradient is %v, want %v", what, second, doubles(t, x, got))
	}
	tol := map[dtype.DType]float64{dtype.Float32: 4e-6, dtype.Float64: 4e-14, dtype.Float16: 4e-3, dtype.BFloat16: 4e-2}[in.dt]
	far := doubles(t, x, gradient(want, in, dy))
	for i, v := range doubles(t, x, dx) {
		if !(math.Abs(v-far[i]) <= tol*(1+math.Abs(far[i]))) {
			t.Errorf("%s: element %d of the gradient is %v, want %v", what, i, v, far[i])
			return
		}
	}
}
