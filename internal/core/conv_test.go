package core

import (
	"fmt"
	"math"
	"slices"
	"strings"
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
				last := xi.channelsLast() || wi.channelsLast()
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

// TestConvTranspose checks that a transposed convolution is the gradient that the convolution has for its input, plus the bias, whatever
// the layouts, that its result is channels last if an operand is, and that each gradient has the layout of its tensor.
func TestConvTranspose(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, c := range []struct {
			dt                       dtype.DType
			batch, in, out, side, by int // of a kernel of by x by
			opt                      ConvTranspose2dOpt
			bias                     bool
		}{
			{dtype.Float32, 2, 4, 8, 6, 3, ConvTranspose2dOpt{Padding: [2]int{1, 1}}, true},
			{dtype.Float32, 2, 5, 7, 4, 3, ConvTranspose2dOpt{Stride: [2]int{2, 3}, OutputPadding: [2]int{1, 2}}, false},
			{dtype.BFloat16, 2, 16, 24, 5, 3, ConvTranspose2dOpt{Stride: [2]int{2, 2}, Padding: [2]int{1, 1}, Groups: 2}, true},
			{dtype.BFloat16, 1, 16, 8, 6, 1, ConvTranspose2dOpt{}, false},
			{dtype.Float16, 3, 16, 40, 5, 2, ConvTranspose2dOpt{Stride: [2]int{2, 2}}, false},
			{dtype.Float64, 2, 6, 4, 5, 2, ConvTranspose2dOpt{Dilation: [2]int{2, 1}, Groups: 2}, true},
		} {
			numbers := func(shape ...int) *Tensor { // whole, so that sums are exact
				return x.ToDType(x.RandInt(4, shape, dtype.Int64, RandIntOpt{Low: -3}), c.dt)
			}
			in, w := numbers(c.batch, c.in, c.side, c.side), numbers(c.in, c.out/max(c.opt.Groups, 1), c.by, c.by)
			var b *Tensor
			if c.bias {
				b = numbers(c.out)
			}
			var want, dx, dw []float64
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
				y := x.ConvTranspose2d(xi, wi, b, c.opt)
				order := channelsLastIf(xi.channelsLast() || wi.channelsLast(), y.Shape())
				if order != nil && !infer.Same(y.Stride(), order) || order == nil && !y.IsContiguous() {
					t.Errorf("%s: the result has strides %v", name, y.Stride())
				}
				if lie == 0 { // of the convolution, whose result this one's input is
					image := x.Zeros(y.Shape(), c.dt).SetRequiresGrad(true)
					same := x.Conv2d(image, w, nil, Conv2dOpt{Stride: c.opt.Stride, Padding: c.opt.Padding, Dilation: c.opt.Dilation,
						Groups: c.opt.Groups})
					g, err := x.Grad([]*Tensor{same}, []*Tensor{image}, GradOpt{Gradients: []*Tensor{in}})
					if err != nil {
						t.Fatal(err)
					}
					if b != nil {
						g[0] = x.Add(g[0], x.View(b, c.out, 1, 1))
					}
					want = doubles(t, x, g[0])
				}
				if got := doubles(t, x, y); !slices.Equal(got, want) || !slices.ContainsFunc(got, func(v float64) bool { return v != 0 }) {
					t.Errorf("%s: %v, want %v", name, got, want)
				}
				if err := x.Backward(x.Sum(x.Mul(y, x.MulS(y, 0.25)), nil, SumOpt{}), BackwardOpt{}); err != nil {
					t.Fatal(err)
				}
				for i, l := range []*Tensor{xi, wi} {
					if g := l.Grad(); !infer.Same(g.Stride(), l.Stride()) {
						t.Errorf("%s: gradient %d has strides %v, its tensor %v", name, i, g.Stride(), l.Stride())
					}
				}
				if lie == 0 {
					dx, dw = doubles(t, x, xi.Grad()), doubles(t, x, wi.Grad())
				}
				if c.dt == dtype.Float64 && (!slices.Equal(doubles(t, x, xi.Grad()), dx) || !slices.Equal(doubles(t, x, wi.Grad()), dw)) {
					t.Errorf("%s: the gradients differ from those of contiguous operands", name)
				}
			}
		}
	})
}

func TestConvTransposeErrors(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		ones := func(shape ...int) *Tensor { return x.Ones(shape, dtype.Float32) }
		in, w := ones(1, 4, 3, 3), ones(4, 2, 2, 2)
		for want, f := range map[string]func(){
			"4D weight":                       func() { x.ConvTranspose2d(ones(2, 3), w, nil, ConvTranspose2dOpt{}) },
			"to have 4 channels, but got":     func() { x.ConvTranspose2d(ones(1, 3, 3, 3), w, nil, ConvTranspose2dOpt{}) },
			"divisible by groups":             func() { x.ConvTranspose2d(in, w, nil, ConvTranspose2dOpt{Groups: 3}) },
			"with 2 elements":                 func() { x.ConvTranspose2d(in, w, ones(4), ConvTranspose2dOpt{}) },
			"with 4 elements":                 func() { x.ConvTranspose2d(in, w, ones(2), ConvTranspose2dOpt{Groups: 2}) },
			"Output size is too small":        func() { x.ConvTranspose2d(in, w, nil, ConvTranspose2dOpt{Padding: [2]int{0, 2}}) },
			"input size per channel":          func() { x.ConvTranspose2d(ones(1, 4, 0, 3), w, nil, ConvTranspose2dOpt{}) },
			"smaller than either":             func() { x.ConvTranspose2d(in, w, nil, ConvTranspose2dOpt{OutputPadding: [2]int{1, 0}}) },
			"must be positive":                func() { x.ConvTranspose2d(in, w, nil, ConvTranspose2dOpt{Groups: -1}) },
			"kernel size should be":           func() { x.ConvTranspose2d(in, ones(4, 2, 0, 2), nil, ConvTranspose2dOpt{}) },
			"but here is 1152921504606846976": func() { x.ConvTranspose2d(in, w, nil, ConvTranspose2dOpt{Stride: [2]int{1 << 60, 1}}) },
			"but here is 2147483648": func() {
				x.ConvTranspose2d(in, w, nil, ConvTranspose2dOpt{Stride: [2]int{1 << 30, 1}, Padding: [2]int{1 << 30, 0}})
			},
			"but here is 4294967294": func() { // 3 rows reach too far
				x.ConvTranspose2d(in, w, nil, ConvTranspose2dOpt{Stride: [2]int{1<<31 - 1, 1}, Padding: [2]int{1<<31 - 1, 0}})
			},
			"Stride is [2 0]":    func() { x.ConvTranspose2d(in, w, nil, ConvTranspose2dOpt{Stride: [2]int{2}}) },
			"should be the same": func() { x.ConvTranspose2d(in, x.ToDType(w, dtype.Float64), nil, ConvTranspose2dOpt{}) },
			"bias type":          func() { x.ConvTranspose2d(in, w, x.Ones([]int{2}, dtype.Float64), ConvTranspose2dOpt{}) },
			"not defined for int64": func() {
				x.ConvTranspose2d(x.ToDType(in, dtype.Int64), x.ToDType(w, dtype.Int64), nil, ConvTranspose2dOpt{})
			},
		} {
			if err := Try(f); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "ConvTranspose2d") {
				t.Errorf("%s: %v", want, err)
			}
		}
		if y := x.ConvTranspose2d(ones(0, 4, 3, 3), w, nil, ConvTranspose2dOpt{}); !slices.Equal(y.Shape(), []int{0, 2, 4, 4}) {
			t.Errorf("no image gives %v", y.Shape())
		}
		none := x.ConvTranspose2d(ones(1, 0, 3, 3), ones(0, 2, 2, 2), ones(2), ConvTranspose2dOpt{})
		if v := doubles(t, x, none); len(v) != 32 || slices.Min(v) != 1 || slices.Max(v) != 1 {
			t.Errorf("no channels give %v", v)
		}
	})
}

// Strides, dilations, paddings and what they reach are 32-bit numbers in kernels.
func TestConvolutionsThatReachTooFar(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		ones := func(shape ...int) *Tensor { return x.Ones(shape, dtype.Float32) }
		in, w, two := ones(1, 1, 4, 4), ones(1, 1, 1, 1), ones(1, 1, 2, 2)
		far := [2]int{1 << 30, 0}
		for i, f := range []func(){
			func() { x.Conv2d(in, w, nil, Conv2dOpt{Stride: [2]int{1 << 32, 1}}) },
			func() { x.Conv2d(in, w, nil, Conv2dOpt{Padding: [2]int{0, 1 << 31}}) },
			func() { x.Conv2d(in, w, nil, Conv2dOpt{Padding: far, Stride: [2]int{1 << 30, 1}}) },
			func() { x.Conv2d(in, w, nil, Conv2dOpt{Dilation: [2]int{1 << 62, 1}}) },
			func() {
				x.Conv2d(in, two, nil, Conv2dOpt{Padding: [2]int{1<<30 - 3, 0}, Dilation: [2]int{1<<31 - 1, 1}})
			},
			func() {
				x.Conv2d(in, ones(1, 1, 9, 1), nil, Conv2dOpt{Dilation: [2]int{1 << 62, 1}, Same: true})
			},
			func() {
				x.Conv1d(ones(1, 1, 4), ones(1, 1, 1), nil, Conv1dOpt{Stride: 1 << 31})
			},
		} {
			if err := Try(f); err == nil || !strings.Contains(err.Error(), "integer out of range") {
				t.Errorf("%d: %v", i, err)
			}
		}
		y := x.Conv2d(in, w, nil, Conv2dOpt{Stride: [2]int{1<<31 - 1, 1}, Padding: [2]int{1<<30 - 3, 0}, Dilation: [2]int{1<<31 - 1, 1}})
		if v := doubles(t, x, y); !slices.Equal(v, []float64{0, 0, 0, 0}) {
			t.Errorf("the first row of a padding is %v", v)
		}
	})
}

// A convolution of images without channels gives zeros, or the bias, in every layout.
func TestConvolutionsOfNothing(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		bias := From(x, []float32{1, 2, 3, 4, 5, 6, 7, 8})
		for _, last := range []bool{false, true} {
			in, w := x.Zeros([]int{2, 0, 4, 4}, dtype.Float32), x.Zeros([]int{8, 0, 3, 3}, dtype.Float32)
			if last {
				in, w = x.ChannelsLast(in), x.ChannelsLast(w)
			}
			for _, b := range []*Tensor{nil, bias} {
				out := x.Conv2d(in, w, b, Conv2dOpt{Padding: [2]int{1, 1}})
				for i, v := range doubles(t, x, out) {
					want := 0.0
					if b != nil {
						want = float64(1 + i/16%8)
					}
					if v != want {
						t.Fatalf("channels last %v, a bias %v: element %d is %v, want %v", last, b != nil, i, v, want)
					}
				}
			}
		}
	})
}

// TestDepthwiseEdges: images without pixels have results of zeros or the bias, and an infinite input reaches only the taps that meet it.
func TestDepthwiseEdges(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, shape := range [][]int{{2, 4, 0, 5}, {2, 4, 5, 0}} {
			in := x.Ones(shape, dtype.Float32)
			w, bias := x.Ones([]int{4, 1, 3, 3}, dtype.Float32), x.Full([]int{4}, 2, dtype.Float32)
			w.SetRequiresGrad(true)
			y := x.Conv2d(in, w, bias, Conv2dOpt{Padding: [2]int{2, 2}, Groups: 4})
			if err := x.Backward(x.Sum(y, nil, SumOpt{}), BackwardOpt{}); err != nil {
				t.Fatal(err)
			}
			for _, v := range doubles(t, x, y) {
				if v != 2 {
					t.Fatalf("an image of shape %v gives %v, not the bias", shape, v)
				}
			}
			for _, v := range doubles(t, x, w.Grad()) {
				if v != 0 {
					t.Fatalf("an image of shape %v gives the weight the gradient %v", shape, v)
				}
			}
		}
		in := x.Zeros([]int{1, 4, 1, 8}, dtype.Float32)
		x.FillInto(x.Narrow(in, 3, 7, 1), math.Inf(1))
		w := x.Ones([]int{4, 1, 1, 3}, dtype.Float32)
		w.SetRequiresGrad(true)
		if err := x.Backward(x.Sum(x.Conv2d(in, w, nil, Conv2dOpt{Groups: 4}), nil, SumOpt{}), BackwardOpt{}); err != nil {
			t.Fatal(err)
		}
		for i, v := range doubles(t, x, w.Grad()) {
			if want := []float64{0, 0, math.Inf(1)}[i%3]; v != want {
				t.Errorf("tap %d has the gradient %v, want %v", i%3, v, want)
			}
		}
	})
}
