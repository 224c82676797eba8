package core

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/infer"
)

// TestConvKeepsChannelsLast checks that a convolution keeps the layout of its input or weight, as in PyTorch, that each gradient has the
// layout of its tensor, and that the numbers do not depend on it.
func TestConvKeepsChannelsLast(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, c := range []struct {
			dt                       dtype.DType
			batch, in, out, side, by int // of a kernel of by x by
			opt                      Conv2dOpt
			bias                     bool
		}{
			{dtype.Float32, 2, 4, 8, 6, 3, Conv2dOpt{Padding: [2]int{1, 1}}, true},
			{dtype.Float32, 2, 5, 7, 6, 3, Conv2dOpt{Stride: [2]int{2, 1}}, false},
			{dtype.BFloat16, 2, 16, 24, 5, 3, Conv2dOpt{Padding: [2]int{1, 1}, Groups: 2}, true},
			{dtype.BFloat16, 1, 16, 8, 6, 1, Conv2dOpt{}, false},
			{dtype.BFloat16, 3, 16, 40, 5, 1, Conv2dOpt{Stride: [2]int{2, 2}}, false},
			{dtype.BFloat16, 2, 3, 16, 9, 3, Conv2dOpt{Stride: [2]int{2, 2}, Padding: [2]int{1, 1}}, false},
			{dtype.Float64, 2, 6, 4, 5, 2, Conv2dOpt{Dilation: [2]int{2, 1}}, true},
		} {
			numbers := func(shape ...int) *Tensor { // whole, so that sums are exact
				return x.ToDType(x.RandInt(4, shape, dtype.Int64, RandIntOpt{Low: -3}), c.dt)
			}
			in, w := numbers(c.batch, c.in, c.side, c.side), numbers(c.out, c.in/max(c.opt.Groups, 1), c.by, c.by)
			var b *Tensor
			if c.bias {
				b = numbers(c.out)
			}
			type result struct{ y, dx, dw []float64 }
			var first result
			for lie := range 4 {
				name := fmt.Sprintf("%+v, layout %d", c, lie)
				xi, wi := x.Clone(in), x.Clone(w)
				if lie&1 != 0 {
					xi = x.ChannelsLast(xi)
				}
				if lie&2 != 0 {
					wi = x.ChannelsLast(wi)
				}
				xi.SetRequiresGrad(true)
				wi.SetRequiresGrad(true)
				y := x.Conv2d(xi, wi, b, c.opt)
				weight := x.ToDType(x.AddS(x.Remainder(x.View(x.Arange(float64(y.Numel()), dtype.Int64, ArangeOpt{}), y.Shape()...),
					x.Full([]int{1}, 5, dtype.Int64)), -2), c.dt)
				if err := x.Backward(x.Sum(x.Mul(y, weight), nil, SumOpt{}), BackwardOpt{}); err != nil {
					t.Fatal(err)
				}
				last := channelsLast(xi) || channelsLast(wi)
				if want := channelsLastIf(last, y.Shape()); want != nil && !infer.Same(y.Stride(), want) || want == nil &&
					!y.IsContiguous() {
					t.Errorf("%s: the result has strides %v", name, y.Stride())
				}
				for i, l := range []*Tensor{xi, wi} {
					if g := l.Grad(); !infer.Same(g.Stride(), l.Stride()) {
						t.Errorf("%s: gradient %d has strides %v, its tensor %v", name, i, g.Stride(), l.Stride())
					}
				}
				got := result{doubles(t, x, y), doubles(t, x, xi.Grad()), doubles(t, x, wi.Grad())}
				if lie == 0 {
					if first = got; slices.ContainsFunc(got.y, math.IsNaN) ||
						!slices.ContainsFunc(got.dw, func(v float64) bool { return v != 0 }) {
						t.Fatalf("%s: %v", name, got)
					}
				}
				if !slices.Equal(got.y, first.y) || !slices.Equal(got.dx, first.dx) || !slices.Equal(got.dw, first.dw) {
					t.Errorf("%s: %v, want %v", name, got, first)
				}
			}
		}
	})
}
