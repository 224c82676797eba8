package core

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

func TestShapeErrors(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, v, zero := x.Zeros([]int{2, 3}, dtype.Float32), x.Zeros([]int{3}, dtype.Float32), x.Zeros(nil, dtype.Float32)
		cube, index := x.Zeros([]int{2, 3, 4}, dtype.Float32), x.Zeros([]int{2, 3}, dtype.Int64)
		for part, f := range map[string]func(){
			"the first dimension comes after the last":                               func() { x.Flatten(cube, 2, 1) },
			"Dimension out of range (expected to be in range of [-2, 1], but got 2)": func() { x.Flatten(a, 0, 2) },
			"unflatten needs a dimension":                                            func() { x.Unflatten(zero, 0, 1) },
			"don't multiply up to the size of dim, 3":                                func() { x.Unflatten(a, 1, 2, -1) },
			"takes a tensor of at most 2 dimensions":                                 func() { x.T(cube) },
			"should contain the same number of dims":                                 func() { x.MoveDim(a, []int{0}, nil) },
			"repeated dim in":                                                        func() { x.MoveDim(a, []int{0, 0}, []int{0, 1}) },
			"Number of dimensions of repeat dims":                                    func() { x.Repeat(a, 2) },
			"the times to repeat must not be negative":                               func() { x.Repeat(v, -1) },
			"Narrow cannot be applied to a 0-dim":                                    func() { x.Narrow(zero, 0, 0, 0) },
			"start out of range":                                                     func() { x.Narrow(v, 0, 4, 0) },
			"length must be non-negative":                                            func() { x.Narrow(v, 0, 0, -1) },
			"exceeds dimension size (3)":                                             func() { x.Narrow(v, 0, -1, 2) },
			"split_sizes have only non-negative":                                     func() { x.SplitSizes(v, []int{4, -1}, 0) },
			"to sum exactly to 3":                                                    func() { x.SplitSizes(v, []int{1, 1}, 0) },
			"split expects split_size be positive":                                   func() { x.Split(v, 0, 0) },
			"split expects at least a 1-dimensional":                                 func() { x.Split(zero, 1, 0) },
			"chunk expects `chunks` to be greater than 0":                            func() { x.Chunk(v, 0, 0) },
			"chunk expects at least a 1-dimensional":                                 func() { x.Chunk(zero, 1, 0) },
			"but tensor has no dimensions":                                           func() { x.Unbind(zero, 0) },
			"the list of tensors is empty; give at least one":                        func() { x.Cat(nil, 0) },
			"zero-dimensional tensor":                                                func() { x.Cat([]*Tensor{zero}, 0) },
			"Tensors must have same number of dimensions":                            func() { x.Cat([]*Tensor{a, v}, 0) },
			"Sizes of tensors must match except in dimension 1. Expected size 2 but got size 1 for tensor number 1": func() {
				x.Cat([]*Tensor{a, x.Zeros([]int{1, 3}, dtype.Float32)}, 1)
			},
			"stack expects a non-empty TensorList":           func() { x.Stack(nil, 0) },
			"stack expects each tensor to be equal size":     func() { x.Stack([]*Tensor{a, v}, 0) },
			"appears multiple times in the list of dims":     func() { x.Flip(a, 0, -2) },
			"shifts and dimensions must align":               func() { x.Roll(a, []int{1, 2}, 0) },
			"input tensor must have at least 2 dimensions":   func() { x.Tril(v, 0) },
			"Length of pad should be even":                   func() { x.Pad(v, []int{1}, PadOpt{}) },
			"resulted in a negative output size":             func() { x.Pad(v, []int{-2, -2}, PadOpt{}) },
			"Unrecognised padding mode PadMode(9)":           func() { x.Pad(v, []int{1, 1}, PadOpt{Mode: 9}) },
			"doesn't take in value argument":                 func() { x.Pad(a, []int{1, 1}, PadOpt{Mode: PadReflect, Value: 1}) },
			"Padding size should be less than":               func() { x.Pad(a, []int{3, 0}, PadOpt{Mode: PadReflect}) },
			"wrapping around more than once":                 func() { x.Pad(a, []int{4, 0}, PadOpt{Mode: PadCircular}) },
			"is too small":                                   func() { x.Pad(a, []int{-2, -1}, PadOpt{Mode: PadReplicate}) },
			"the indexes of one_hot must be int64":           func() { x.OneHot(a, 3) },
			"the number of classes must be positive":         func() { x.OneHot(index, 0) },
			"must be a 4-D tensor":                           func() { x.ChannelsLast(a) },
			"Expected dtype int32/int64 for index":           func() { x.Gather(a, 0, a) },
			"Index tensor must have the same number of":      func() { x.Gather(v, 0, index) },
			"Size does not match at dimension 0":             func() { x.Gather(x.Slice(a, 0, 0, 1, 1), 1, index) },
			"Index is supposed to be a vector":               func() { x.IndexSelect(a, 0, index) },
			"should have the same number of dimensions":      func() { x.TakeAlongDim(v, index, 0) },
			"the tensor is float32, but src is float64":      func() { x.Scatter(a, 0, index, x.ToDType(a, dtype.Float64), ScatterOpt{}) },
			"to be no larger than src":                       func() { x.Scatter(a, 0, index, x.Slice(a, 1, 0, 2, 1), ScatterOpt{}) },
			"reduce argument must be either add or multiply": func() { x.Scatter(a, 0, index, a, ScatterOpt{Reduce: 9}) },
			"the weight must be a 2-D tensor":                func() { x.Embedding(index, v, EmbeddingOpt{}) },
			"the index is float32, but must be int64":        func() { x.Embedding(v, a, EmbeddingOpt{}) },
			"Padding_idx must be within num_embeddings":      func() { x.Embedding(index, a, EmbeddingOpt{Padding: true, PaddingIdx: 2}) },
			"step must be nonzero":                           func() { x.Arange(1, dtype.Int64, ArangeOpt{Step: 0}) },
			"inconsistent with step sign":                    func() { x.Arange(1, dtype.Int64, ArangeOpt{Step: -1}) },
			"has no finite size":                             func() { x.Arange(1e300, dtype.Float64, ArangeOpt{}) },
			"number of steps must be non-negative":           func() { x.Linspace(0, 1, -1, dtype.Float32) },
			"must not be negative, but are -1 and 2":         func() { x.Eye(-1, dtype.Float32, EyeOpt{Columns: new(2)}) },
			"expected input with shape [*, 2],":              func() { x.LayerNorm(a, nil, nil, []int{2}, NormOpt{}) },
			"Expected bias to be of same shape":              func() { x.LayerNorm(a, nil, a, []int{3}, NormOpt{}) },
			"cannot be divided into 2 equal groups":          func() { x.GroupNorm(a, nil, nil, 2, NormOpt{}) },
			"expected weight, bias and stat":                 func() { x.GroupNorm(a, x.Select(a, 1, 0), nil, 3, NormOpt{}) },
			"Expected at least 2 dimensions":                 func() { x.GroupNorm(v, nil, nil, 1, NormOpt{}) },
			"are needed outside of training":                 func() { x.BatchNorm(a, nil, nil, nil, nil, BatchNormOpt{}) },
			"must both be given, or neither": func() {
				x.BatchNorm(a, nil, nil, v, nil, BatchNormOpt{Training: true})
			},
			"Expected more than 1 value per channel": func() {
				x.BatchNorm(x.View(v, 1, 3), nil, nil, nil, nil, BatchNormOpt{Training: true})
			},
			"The size of tensor a (2) must match": func() { x.MSELoss(x.Slice(v, 0, 0, 2, 1), v, LossOpt{}) },
			"Target size":                         func() { x.BCEWithLogits(a, v, BCEWithLogitsOpt{}) },
		} {
			wantError(t, Try(f), fault.Invalid, part)
		}
		for part, f := range map[string]func(){
			"Only 2D, 3D, 4D, 5D padding":      func() { x.Pad(zero, []int{1, 1}, PadOpt{Mode: PadReflect}) },
			"a range of bool is not defined":   func() { x.Arange(1, dtype.Bool, ArangeOpt{}) },
			"linspace is not defined for bool": func() { x.Linspace(0, 1, 2, dtype.Bool) },
			"LayerNorm is not defined for":     func() { x.LayerNorm(index, nil, nil, []int{3}, NormOpt{}) },
			"MSELoss is not defined for":       func() { x.MSELoss(index, index, LossOpt{}) },
			"softmax is not implemented for":   func() { x.Softmax(index, 0, SoftmaxOpt{}) },
			"has no derivative": func() {
				g := x.Scatter(a, 0, index, v2(x).SetRequiresGrad(true), ScatterOpt{Reduce: ScatterMultiply})
				if err := x.Backward(x.Sum(g, nil, SumOpt{}), BackwardOpt{}); err != nil {
					panic(err)
				}
			},
		} {
			wantError(t, Try(f), fault.Unsupported, part)
		}
	})
}

func v2(x *Exec) *Tensor { return x.Ones([]int{2, 3}, dtype.Float32) }

// TestIndexOutOfRange checks that an index out of range is a wrong argument on the processor.
func TestIndexOutOfRange(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		if !x.Device().Host {
			return // it loses the device
		}
		a := From(x, []float32{1, 2})
		wantError(t, Try(func() { x.Gather(a, 0, From(x, []int64{2})) }), fault.Invalid, "index 2 is out of range for size 2")
		wantError(t, Try(func() { x.CrossEntropy(x.View(a, 1, 2), From(x, []int64{5}), CrossEntropyOpt{}) }), fault.Invalid,
			"target 5 is out of range for 2 classes")
	})
}

func TestManyPieces(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		const n = 300 // more than a node can number
		v := numbers(n)
		a := From(x, v).SetRequiresGrad(true)
		for _, f := range []func() []*Tensor{
			func() []*Tensor { return x.Unbind(a, 0) },
			func() []*Tensor { return x.Split(a, 1, 0) },
			func() []*Tensor { return x.Unbind(x.Slice(a, 0, 0, 100, 1), 0) },
		} {
			a.SetGrad(nil)
			parts := f()
			sum := x.Zeros(nil, dtype.Float32)
			for i, p := range parts {
				if !p.SharesStorage(a) {
					t.Fatal("a piece is no view")
				}
				sum = x.Add(sum, x.MulS(x.Sum(p, nil, SumOpt{}), float64(i)))
			}
			if err := x.Backward(sum, BackwardOpt{}); err != nil {
				t.Fatal(err)
			}
			for i, g := range floats(t, x, a.Grad()) {
				if i < len(parts) && g != float32(i) {
					t.Fatalf("gradient %d of %d is %v", i, len(parts), g)
				}
			}
		}
	})
}

func TestCatOfTypesAndLayouts(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		i, f := From(x, []int64{1, 2}), From(x, []float32{.5})
		y := x.Cat([]*Tensor{i, f, x.Zeros([]int{0}, dtype.Float64)}, 0)
		if y.DType() != dtype.Float64 {
			t.Errorf("the result is %v", y.DType())
		}
		want(t, x, x.ToDType(y, dtype.Float32), 1, 2, .5)
		last := x.ChannelsLast(x.Ones([]int{2, 3, 2, 2}, dtype.Float32))
		if c := x.Cat([]*Tensor{last, last}, 1); !infer.Same(c.Stride(), []int{24, 1, 12, 6}) {
			t.Errorf("channels last became %v", c.Stride())
		}
		if c := x.Cat([]*Tensor{x.Zeros([]int{0}, dtype.Int32)}, 3); c.Numel() != 0 || c.DType() != dtype.Int32 {
			t.Errorf("nothing became %v", c)
		}
	})
}

func TestEmbeddingOptions(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		index := x.View(From(x, []int64{1, 0, 1, 2}), 2, 2)
		for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
			for _, c := range []struct {
				opt  EmbeddingOpt
				want []float32
			}{
				{EmbeddingOpt{}, []float32{1, 1, 2, 2, 1, 1}},
				{EmbeddingOpt{Padding: true, PaddingIdx: -2}, []float32{1, 1, 0, 0, 1, 1}},
				{EmbeddingOpt{ScaleGradByFreq: true}, []float32{1, 1, 1, 1, 1, 1}},
			} {
				w := x.Detach(x.ToDType(From(x, []float32{1, 2, 3, 4, 5, 6}, 3, 2), dt)).SetRequiresGrad(true)
				y := x.Embedding(index, w, c.opt)
				want(t, x, x.ToDType(y, dtype.Float32), 3, 4, 1, 2, 3, 4, 5, 6)
				if err := x.Backward(x.Sum(y, nil, SumOpt{}), BackwardOpt{}); err != nil {
					t.Fatal(err)
				}
				want(t, x, x.ToDType(w.Grad(), dtype.Float32), c.want...)
			}
		}
		w := From(x, []float32{3, 4, .3, .4, 30, 40}, 3, 2)
		x.Embedding(From(x, []int64{0, 1}), w, EmbeddingOpt{MaxNorm: 1})
		want(t, x, w, .6, .8, .3, .4, 30, 40)
	})
}

// TestBatchNormRunning checks that batch norm's running statistics move by the momentum, towards the unbiased variance.
func TestBatchNormRunning(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		in := From(x, []float32{1, 10, 3, 30, 5, 50}, 3, 2)
		mean, variance := From(x, []float32{1, 2}), From(x, []float32{1, 2})
		version := mean.Version()
		y := x.BatchNorm(in, nil, nil, mean, variance, BatchNormOpt{Momentum: 0.25, Eps: 0, Training: true})
		want(t, x, mean, .75+.25*3, 1.5+.25*30)
		want(t, x, variance, .75+.25*4, 1.5+.25*400)
		if mean.Version() == version {
			t.Error("the version of the running mean has not moved")
		}
		const r = 1.2247449
		want(t, x, x.Slice(y, 1, 0, 1, 1), -r, 0, r)
		z := x.BatchNorm(in, nil, nil, From(x, []float32{1, 10}), From(x, []float32{4, 100}), BatchNormOpt{Momentum: 0, Eps: 0})
		want(t, x, z, 0, 0, 1, 2, 2, 4)
	})
}

// TestWideIndexes checks that 64-bit indexes give the same results as 32-bit ones.
func TestWideIndexes(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		run := func() (out []float32) {
			in := From(x, numbers(2*3*6*6), 2, 3, 6, 6).SetRequiresGrad(true)
			y := x.MaxPool2d(in, [2]int{2, 2}, MaxPoolOpt{Stride: [2]int{1, 1}})
			y = x.Gather(x.Flatten(y, 1, -1), 1, x.Zeros([]int{2, 9}, dtype.Int64))
			y = x.LogSoftmax(x.Roll(x.Flip(y, 1), []int{3}, 1), 1, SoftmaxOpt{})
			l := x.CrossEntropy(y, From(x, []int64{3, 8}), CrossEntropyOpt{})
			if err := x.Backward(l, BackwardOpt{}); err != nil {
				t.Fatal(err)
			}
			return append(floats(t, x, l), floats(t, x, in.Grad())...)
		}
		narrow := run()
		x.Device().SetIndex32(16)
		defer x.Device().SetIndex32(1<<31 - 1)
		for i, v := range run() {
			if v != narrow[i] {
				t.Fatalf("number %d is %v, with 32-bit indexes %v", i, v, narrow[i])
			}
		}
	})
}

// A group norm keeps channels last, also in its gradient, and computes what it computes of the contiguous tensor.
func TestGroupNormLast(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
			run := func(last, gradientLast bool) (out []*Tensor) {
				order := func(t *Tensor, last bool) *Tensor {
					if last {
						return x.ChannelsLast(t)
					}
					return t
				}
				in := func(shape ...int) *Tensor {
					return x.ToDType(x.View(x.Sin(x.Arange(float64(infer.Numel(shape)), dtype.Float32, ArangeOpt{})), shape...), dt)
				}
				a, w, b := order(in(3, 12, 5, 7), last).SetRequiresGrad(true), in(12).SetRequiresGrad(true), in(12).SetRequiresGrad(true)
				y := x.GroupNorm(a, w, b, 4, NormOpt{})
				k := order(x.Cos(in(3, 12, 5, 7)), gradientLast)
				grads, err := x.Grad([]*Tensor{y}, []*Tensor{a, w, b}, GradOpt{Gradients: []*Tensor{k}})
				if err != nil {
					t.Fatal(err)
				}
				if y.channelsLast() != last || grads[0].channelsLast() != last {
					t.Errorf("%v, last %v: strides %v and %v", dt, last, y.stride, grads[0].stride)
				}
				return append(grads, y)
			}
			want := run(false, false)
			for i, got := range [][]*Tensor{run(true, true), run(true, false), run(false, true)} {
				for j, g := range got {
					a, b := doubles(t, x, g), doubles(t, x, want[j])
					for k := range a {
						bound := 1e-5
						if dt == dtype.BFloat16 {
							bound = 0.02
						}
						if math.Abs(a[k]-b[k]) > bound*max(1, math.Abs(b[k])) {
							t.Fatalf("%v, case %d, tensor %d: element %d is %v, want %v", dt, i, j, k, a[k], b[k])
						}
					}
				}
			}
		}
	})
}

// A batch of no images has a group norm and gradients in every order.
func TestGroupNormOfNone(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := x.ChannelsLast(x.Zeros([]int{0, 3, 2, 4}, dtype.Float32)).SetRequiresGrad(true)
		w := x.Ones([]int{3}, dtype.Float32).SetRequiresGrad(true)
		y := x.GroupNorm(a, w, w, 3, NormOpt{})
		grads, err := x.Grad([]*Tensor{x.Sum(y, nil, SumOpt{})}, []*Tensor{a, w}, GradOpt{})
		if err != nil || !slices.Equal(grads[0].Shape(), a.Shape()) || !slices.Equal(doubles(t, x, grads[1]), []float64{0, 0, 0}) {
			t.Errorf("gradients %v, %v", grads, err)
		}
	})
}

// The gradients of a group norm do not depend on the strides of its weight and of the gradient that comes in.
func TestGroupNormOfTurned(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		in := func(shape ...int) *Tensor {
			return x.View(x.Sin(x.Arange(float64(infer.Numel(shape)), dtype.Float32, ArangeOpt{})), shape...)
		}
		run := func(turned bool) (out [][]byte) {
			a := in(2, 4, 6).SetRequiresGrad(true)
			rows := in(4, 3)
			w := x.Select(rows, 1, 1)
			if !turned {
				w = x.Clone(w)
			}
			w.SetRequiresGrad(true)
			y, k := x.GroupNorm(a, w, nil, 2, NormOpt{}), in(2, 6, 4)
			if turned {
				y = x.Mul(x.Transpose(y, 1, 2), k)
			} else {
				y = x.Mul(y, x.Contiguous(x.Transpose(k, 1, 2)))
			}
			if err := x.Backward(x.Sum(x.Transpose(y, 1, 2), nil, SumOpt{}), BackwardOpt{}); err != nil {
				t.Fatal(err)
			}
			for _, g := range []*Tensor{a.Grad(), w.Grad()} {
				b, err := x.Bytes(g)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, b)
			}
			return out
		}
		for i, want := range run(false) {
			if got := run(true)[i]; !bytes.Equal(got, want) {
				t.Errorf("gradient %d is %x, want %x", i, got, want)
			}
		}
	})
}
