package core

import (
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
			"the input has size [0 2]":  func() { x.Interpolate(x.Ones([]int{1, 1, 0, 2}, dtype.Float32), InterpolateOpt{Size: []int{2}}) },
		} {
			if err := Try(f); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", want, err)
			}
		}
	})
}
