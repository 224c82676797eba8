package core

import (
	"math"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// numbers returns n distinct numbers in no order.
func numbers(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32((i*7919)%10007) / 1000
	}
	return v
}

// plainMaxPool computes max pooling of planes by the definition.
func plainMaxPool(v []float32, planes, h, w, kernel, stride, pad int) (out []float32, at []int) {
	oh, ow := (h+2*pad-kernel)/stride+1, (w+2*pad-kernel)/stride+1
	for p := range planes {
		for y := range oh {
			for x := range ow {
				best, where := float32(math.Inf(-1)), -1
				for ky := range kernel {
					for kx := range kernel {
						iy, ix := y*stride-pad+ky, x*stride-pad+kx
						if iy < 0 || ix < 0 || iy >= h || ix >= w {
							continue
						}
						if e := v[(p*h+iy)*w+ix]; e > best {
							best, where = e, (p*h+iy)*w+ix
						}
					}
				}
				out, at = append(out, best), append(at, where)
			}
		}
	}
	return out, at
}

func TestMaxPool2d(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		v := numbers(2 * 3 * 8 * 9)
		for _, c := range []struct{ kernel, stride, pad int }{{2, 2, 0}, {3, 2, 1}, {3, 1, 1}} {
			in := From(x, v, 2, 3, 8, 9).SetRequiresGrad(true)
			y := x.MaxPool2d(in, [2]int{c.kernel, c.kernel}, MaxPoolOpt{Stride: [2]int{c.stride, c.stride}, Padding: [2]int{c.pad, c.pad}})
			out, at := plainMaxPool(v, 6, 8, 9, c.kernel, c.stride, c.pad)
			want(t, x, y, out...)
			g := numbers(len(out))
			if err := x.Backward(y, BackwardOpt{Gradient: x.View(From(x, g), y.Shape()...)}); err != nil {
				t.Fatal(err)
			}
			d := make([]float32, len(v))
			for i, p := range at {
				d[p] += g[i]
			}
			want(t, x, in.Grad(), d...)
		}
	})
}

func TestMaxPoolChannelsLastAndNaN(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		v := numbers(2 * 4 * 4)
		v[5] = float32(math.NaN())
		in := x.Permute(From(x, v, 1, 4, 4, 2), 0, 3, 1, 2)
		y, places := x.MaxPool2dWithIndices(in, [2]int{2, 2}, MaxPoolOpt{})
		if !infer.Same(y.Stride(), []int{8, 1, 4, 2}) {
			t.Errorf("strides %v, want those of channels last", y.Stride())
		}
		got := floats(t, x, y)
		if got[5] == got[5] {
			t.Errorf("the window with a NaN gives %v", got[5])
		}
		i, err := Read[int64](x, places)
		if err != nil {
			t.Fatal(err)
		}
		if i[5] != 2 {
			t.Errorf("the NaN's place is %d, want 2", i[5])
		}
	})
}

// TestMaxPoolSecondDerivative checks that the second derivative of a pooling followed by a cube is that of the selected elements.
func TestMaxPoolSecondDerivative(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		in := From(x, []float32{1, 2, 3, 4}, 1, 1, 2, 2).SetRequiresGrad(true)
		y := x.MaxPool2d(in, [2]int{2, 2}, MaxPoolOpt{})
		s := x.Sum(x.Mul(x.Mul(y, y), y), nil, SumOpt{})
		g, err := x.Grad([]*Tensor{s}, []*Tensor{in}, GradOpt{CreateGraph: true})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, g[0], 0, 0, 0, 48)
		h, err := x.Grad([]*Tensor{x.Sum(g[0], nil, SumOpt{})}, []*Tensor{in}, GradOpt{})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, h[0], 0, 0, 0, 24)
	})
}

func TestAvgPool2d(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		in := From(x, []float32{1, 2, 3, 4, 5, 6, 7, 8, 9}, 1, 3, 3).SetRequiresGrad(true)
		for _, c := range []struct {
			opt  AvgPoolOpt
			want []float32
			grad []float32
		}{
			{AvgPoolOpt{Stride: [2]int{1, 1}}, []float32{3, 4, 6, 7}, []float32{.25, .5, .25, .5, 1, .5, .25, .5, .25}},
			{AvgPoolOpt{Stride: [2]int{2, 2}, Padding: [2]int{1, 1}}, []float32{.25, 1.25, 2.75, 7},
				[]float32{.25, .25, .25, .25, .25, .25, .25, .25, .25}},
			{AvgPoolOpt{Stride: [2]int{2, 2}, Padding: [2]int{1, 1}, ExcludePadding: true}, []float32{1, 2.5, 5.5, 7},
				[]float32{1, .5, .5, .5, .25, .25, .5, .25, .25}},
			{AvgPoolOpt{Stride: [2]int{2, 2}, CeilMode: true, Divisor: 2}, []float32{6, 4.5, 7.5, 4.5},
				[]float32{.5, .5, .5, .5, .5, .5, .5, .5, .5}},
		} {
			y := x.AvgPool2d(in, [2]int{2, 2}, c.opt)
			want(t, x, y, c.want...)
			g, err := x.Grad([]*Tensor{x.Sum(y, nil, SumOpt{})}, []*Tensor{in}, GradOpt{})
			if err != nil {
				t.Fatal(err)
			}
			want(t, x, g[0], c.grad...)
		}
		y := x.AdaptiveAvgPool2d(in, [2]int{2, 0})
		want(t, x, y, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5)
		g, err := x.Grad([]*Tensor{x.Sum(y, nil, SumOpt{})}, []*Tensor{in}, GradOpt{})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, g[0], .5, .5, .5, 1, 1, 1, .5, .5, .5)
	})
}

func TestPoolErrors(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		in := x.Zeros([]int{1, 3, 3}, dtype.Float32)
		k := [2]int{2, 2}
		wantError(t, Try(func() { x.MaxPool2d(in, k, MaxPoolOpt{Padding: [2]int{2, 2}}) }), fault.Invalid,
			"pad should be at most half of effective kernel size")
		wantError(t, Try(func() { x.MaxPool2d(in, [2]int{4, 4}, MaxPoolOpt{}) }), fault.Invalid, "Output size is too small")
		wantError(t, Try(func() { x.MaxPool2d(x.Zeros([]int{2, 2}, dtype.Float32), k, MaxPoolOpt{}) }), fault.Invalid, "Expected 3D or 4D")
		wantError(t, Try(func() { x.AvgPool2d(in, [2]int{}, AvgPoolOpt{}) }), fault.Invalid, "must be greater than zero")
		wantError(t, Try(func() { x.AvgPool2d(x.ToDType(in, dtype.Int64), k, AvgPoolOpt{}) }), fault.Unsupported,
			"pooling is not defined for int64")
		wantError(t, Try(func() { x.AdaptiveAvgPool2d(in, [2]int{-1, 1}) }), fault.Invalid, "must not be negative")
	})
}

// TestPoolGradientFormat checks that the gradient of a pooling to planes of one element lies as the pooling's input.
func TestPoolGradientFormat(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		in := x.Permute(From(x, numbers(2*3*3*4), 2, 3, 3, 4), 0, 3, 1, 2).SetRequiresGrad(true)
		for _, y := range []*Tensor{x.AdaptiveAvgPool2d(in, [2]int{1, 1}), x.AvgPool2d(in, [2]int{3, 3}, AvgPoolOpt{}),
			x.MaxPool2d(in, [2]int{3, 3}, MaxPoolOpt{})} {
			one := x.Full([]int{2, 4, 1, 1}, 1, dtype.Float32)
			g, err := x.Grad([]*Tensor{y}, []*Tensor{in}, GradOpt{Gradients: []*Tensor{one}})
			if err != nil {
				t.Fatal(err)
			}
			if !infer.Same(g[0].Stride(), in.Stride()) {
				t.Errorf("strides %v, want %v", g[0].Stride(), in.Stride())
			}
		}
	})
}
