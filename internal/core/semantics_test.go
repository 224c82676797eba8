package core

import (
	"bytes"
	"math"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// The numbers and refusals in this file are PyTorch's, for cases that its recorded ones leave out.

var nan, inf = float32(math.NaN()), float32(math.Inf(1))

// wantBits is want, but NaN equals NaN.
func wantBits(t *testing.T, x *Exec, got *Tensor, v ...float32) {
	t.Helper()
	g := floats(t, x, got)
	if len(g) != len(v) {
		t.Fatalf("got %v, want %v", g, v)
	}
	for i := range v {
		if g[i] != v[i] && (g[i] == g[i] || v[i] == v[i]) {
			t.Fatalf("got %v, want %v", g, v)
		}
	}
}

// TestSoftmaxOfInfinity checks that the softmax of a row whose greatest element is infinite is NaN, whatever the row's layout.
func TestSoftmaxOfInfinity(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{1, 2, inf, 3}, 2, 2)
		wantBits(t, x, x.Softmax(a, 0, SoftmaxOpt{}), nan, 0.26894143, nan, 0.7310586)
		wantBits(t, x, x.Softmax(a, 1, SoftmaxOpt{}), 0.26894143, 0.7310586, nan, nan)
		wantBits(t, x, x.Softmax(From(x, []float32{-inf, 0, -inf, 0}, 2, 2), 0, SoftmaxOpt{}), nan, 0.5, nan, 0.5)
		wantBits(t, x, x.Slice(x.LogSoftmax(a, 0, SoftmaxOpt{}), 1, 0, 1, 1), nan, nan)
		wantBits(t, x, x.LogSumExp(a, []int{0}, DimOpt{}), inf, 3.3132617)
		if s := x.Softmax(x.Transpose(a, 0, 1), 0, SoftmaxOpt{}).Stride(); s[0] != 2 || s[1] != 1 {
			t.Errorf("the softmax of a transposed matrix has strides %v; it is row-major", s)
		}
	})
}

// TestWideSumsOfNothing checks that sums over no elements support wide types.
func TestWideSumsOfNothing(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, dt := range []dtype.DType{dtype.Float64, dtype.Int64, dtype.Complex128} {
			none := x.Zeros([]int{3, 0, 4}, dt)
			want(t, x, x.ToDType(x.Sum(none, []int{0, 1}, SumOpt{}), dtype.Float32), 0, 0, 0, 0)
			want(t, x, x.ToDType(x.Any(none, []int{1}, DimOpt{}), dtype.Float32), make([]float32, 12)...)
		}
	})
}

// TestAddMMIgnoresInput checks that an input of a product with factor 0 is not read.
func TestAddMMIgnoresInput(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.Complex64} {
			a, bad := x.Ones([]int{1, 2, 2}, dt), x.ToDType(From(x, []float32{nan, inf}), dt)
			want(t, x, x.ToDType(x.BAddBMM(bad, a, a, AddMMOpt{Beta: 0, Alpha: 3}), dtype.Float32), 6, 6, 6, 6)
			a = x.Select(a, 0, 0)
			want(t, x, x.ToDType(x.AddMM(bad, a, a, AddMMOpt{Beta: 0}), dtype.Float32), 2, 2, 2, 2)
		}
		l := From(x, []float32{nan, 1}).SetRequiresGrad(true)
		a := x.Ones([]int{2, 2}, dtype.Float32)
		backward(t, x, x.Sum(x.AddMM(l, a, a, AddMMOpt{Beta: 0}), nil, SumOpt{}), BackwardOpt{})
		want(t, x, l.Grad(), 0, 0)
	})
}

// TestLayerNormOfNothing checks normalisations over rows without elements, and over no rows.
func TestLayerNormOfNothing(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, shape := range [][]int{{0}, {0, 4}, {2, 0}, {2, 2, 0, 1}} {
			k := min(len(shape), 2)
			if shape[0] == 0 && len(shape) > 1 {
				k = 1
			}
			over := shape[len(shape)-k:]
			for _, affine := range []bool{false, true} {
				in := x.Zeros(shape, dtype.Float32).SetRequiresGrad(true)
				var w, bias *Tensor
				if affine {
					w, bias = x.Ones(over, dtype.Float32).SetRequiresGrad(true), x.Zeros(over, dtype.Float32).SetRequiresGrad(true)
				}
				y := x.Add(x.LayerNorm(in, w, bias, over, NormOpt{}), x.RMSNorm(in, w, over, NormOpt{Eps: 1e-5}))
				if y.Numel() != 0 || len(y.shape) != len(shape) {
					t.Errorf("%v: got shape %v", shape, y.shape)
				}
				backward(t, x, x.Sum(y, nil, SumOpt{}), BackwardOpt{})
				if in.Grad().Numel() != 0 {
					t.Errorf("%v: the gradient has shape %v", shape, in.Grad().shape)
				}
				if affine {
					want(t, x, w.Grad(), make([]float32, infer.Numel(over))...)
					want(t, x, bias.Grad(), make([]float32, infer.Numel(over))...)
				}
			}
		}
	})
}

// slopes returns the first and second derivatives of f at v.
func slopes(t *testing.T, x *Exec, v []float32, f func(t *Tensor) *Tensor) (first, second []float32) {
	t.Helper()
	in := From(x, v).SetRequiresGrad(true)
	y := x.Sum(f(in), nil, SumOpt{})
	g, err := x.Grad([]*Tensor{y}, []*Tensor{in}, GradOpt{CreateGraph: true})
	if err != nil {
		t.Fatal(err)
	}
	h, err := x.Grad([]*Tensor{x.Sum(g[0], nil, SumOpt{})}, []*Tensor{in}, GradOpt{})
	if err != nil {
		t.Fatal(err)
	}
	return floats(t, x, g[0]), floats(t, x, h[0])
}

// TestKinks checks derivatives at kinks and outside of a function's domain.
func TestKinks(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		at0 := []float32{0}
		if _, h := slopes(t, x, at0, func(v *Tensor) *Tensor { return x.ELU(v, ELUOpt{Alpha: 2}) }); h[0] != 0 {
			t.Errorf("the second derivative of elu at 0 is %v", h)
		}
		if _, h := slopes(t, x, []float32{2, 2.5}, func(v *Tensor) *Tensor {
			return x.Softplus(v, SoftplusOpt{Threshold: 2})
		}); h[0] != 0 || h[1] != 0 {
			t.Errorf("the second derivatives of softplus at the threshold and above it are %v", h)
		}
		if g, _ := slopes(t, x, []float32{-2, 0}, x.Acosh); math.Abs(float64(g[0])-0.57735026919) > 1e-6 || g[1] == g[1] {
			t.Errorf("the derivatives of acosh at -2 and 0 are %v, want 0.57735 and NaN", g)
		}
		// Straight parts of losses begin at their bounds, and the slope of prelu at 0 is the weight.
		zero := From(x, []float32{0})
		if g, h := slopes(t, x, []float32{0.5}, func(v *Tensor) *Tensor {
			return x.SmoothL1Loss(v, zero, SmoothL1LossOpt{Beta: 0.5})
		}); g[0] != 1 ||
			h[0] != 0 {
			t.Errorf("the derivatives of smooth l1 at its bound are %v and %v", g, h)
		}
		if g, h := slopes(t, x, []float32{-2}, func(v *Tensor) *Tensor {
			return x.HuberLoss(v, zero, HuberLossOpt{Delta: 2})
		}); g[0] != -2 ||
			h[0] != 0 {
			t.Errorf("the derivatives of huber at its bound are %v and %v", g, h)
		}
		l := leafOf(x, 0, 1)
		backward(t, x, x.Sum(x.PReLU(l, x.Full(nil, 0.25, dtype.Float32)), nil, SumOpt{}), BackwardOpt{})
		want(t, x, l.Grad(), 0.25, 1)
		// Certain mistakes have bounded derivatives.
		for _, y := range []float32{0, 1} {
			target := From(x, []float32{y, y})
			if g, _ := slopes(t, x, []float32{0, 1}, func(v *Tensor) *Tensor {
				return x.BCE(v, target,
					BCEOpt{Reduction: ReduceSum})
			}); math.Abs(float64(g[0])+float64(y)*1e12) > 1e5 || math.Abs(float64(g[1])-float64(1-y)*1e12) > 1e5 {
				t.Errorf("the derivatives of bce at 0 and 1 for target %v are %v", y, g)
			}
		}
		// A variance without degrees of freedom is NaN; so is its derivative along a dimension, while that over all elements is infinite.
		l = leafOf(x, 3)
		backward(t, x, x.Var(l, []int{0}, VarOpt{}), BackwardOpt{})
		wantBits(t, x, l.Grad(), nan)
		l = leafOf(x, 3)
		backward(t, x, x.Var(l, nil, VarOpt{}), BackwardOpt{})
		wantBits(t, x, l.Grad(), inf)
	})
}

//tenon:table of calls and the errors that they end in
func TestRefusals(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		yes, one := x.Ones([]int{2}, dtype.Bool), x.Ones([]int{2}, dtype.Int32)
		real, none := x.Ones([]int{2}, dtype.Float32), x.Zeros([]int{2, 0}, dtype.Float32)
		leaf, class := x.Ones([]int{2}, dtype.Float32).SetRequiresGrad(true), x.Zeros([]int{2}, dtype.Int64)
		rows := x.Ones([]int{2, 2}, dtype.Float32)
		cube, half := x.Ones([]int{2, 3, 2}, dtype.Float32), x.Ones([]int{2}, dtype.Float16)
		const minus = "Subtraction, the `-` operator, with "
		for _, c := range []struct {
			f    func()
			kind fault.Kind
			want string
		}{
			{func() { x.Sub(yes, yes) }, fault.Unsupported, minus + "two bool tensors is not supported"},
			{func() { x.Sub(one, yes) }, fault.Unsupported, minus + "a bool tensor is not supported"},
			{func() { x.Sub(yes, real) }, fault.Unsupported, minus + "a bool tensor"},
			{func() { x.SubS(yes, 0.5) }, fault.Unsupported, minus + "a bool tensor"},
			{func() { x.RSubS(yes, 1) }, fault.Unsupported, minus + "a bool tensor"},
			{func() { x.AddCDiv(real, one, one, AddCMulOpt{}) }, fault.Unsupported, "Integer division with addcdiv is no longer supported"},
			{func() { x.Arange(3, dtype.Int32, ArangeOpt{Step: 0.5}) }, fault.Invalid, "step must be nonzero"},
			{func() { x.Full([]int{1}, 300, dtype.Int8) }, fault.Invalid, "is out of range for int8"},
			{func() { x.FullLike(one, math.Inf(1), LikeOpt{}) }, fault.Invalid, "is out of range for int32"},
			{func() { x.Full([]int{1}, 1e6, dtype.Float16) }, fault.Invalid, "is out of range for float16"},
			{func() { x.PowS(half, 1e9) }, fault.Invalid, "is out of range for float16"},
			{func() { x.MaskedFillS(one, yes, 1e10) }, fault.Invalid, "is out of range for int32"},
			{func() {
				x.MaskedFill(real, yes, x.FullC(nil, 1i, dtype.Complex64))
			}, fault.Invalid, "value cannot be converted to type float32 without"},
			{func() {
				x.ClampS(x.Ones([]int{1}, dtype.Uint8), -300, 3)
			}, fault.Invalid, "is out of range for uint8"},
			{func() { x.ClampMaxS(one, 1e10) }, fault.Invalid, "is out of range for int32"},
			{func() {
				x.PowS(x.Ones([]int{1}, dtype.Int8), 200)
			}, fault.Invalid, "is out of range for int8"},
			{func() {
				x.Linear(rows, rows, x.Ones([]int{3}, dtype.Float32))
			}, fault.Invalid, "the bias of shape [3] does not broadcast to [2 2]"},
			{func() { x.Linear(x.Select(rows, 0, 0), rows, x.Ones([]int{1, 1, 2}, dtype.Float32)) }, fault.Invalid, "does not broadcast"},
			{func() { x.TakeAlongDim(cube, x.Zeros([]int{2, 3, 3}, dtype.Int64), 1) }, fault.Invalid, "The size of tensor a (2) must " +
				"match the size of tensor b (3) at non-singleton dimension 2"},
			{func() {
				x.IndexSelect(none, 0, x.Zeros([]int{1}, dtype.Float32))
			}, fault.Invalid, "Expected dtype int32 or int64 for index, but got float32"},
			{func() {
				x.Sum(x.Ones(nil, dtype.Float32), []int{0, -1}, SumOpt{})
			}, fault.Invalid, "dim 0 appears multiple times in the list of dims"},
			{func() { x.BCE(real, real, BCEOpt{Weight: rows}) }, fault.Invalid, "the input has 2 dimensions and cannot be expanded to [2]"},
			{func() { x.BCEWithLogits(real, real, BCEWithLogitsOpt{PositiveWeight: x.Ones([]int{3}, dtype.Float32)}) }, fault.Invalid,
				"The expanded size of the tensor (2) must match the existing size (3)"},
			{func() {
				x.GroupNorm(x.Ones([]int{1, 2}, dtype.Float32), nil, nil, 2, NormOpt{})
			}, fault.Invalid, "Expected more than 1 value per channel when training"},
			{func() {
				x.Conv2d(x.Ones([]int{1, 2, 3, 3}, dtype.Float32), x.Ones([]int{2, 2, 0, 2}, dtype.Float32), nil, Conv2dOpt{})
			}, fault.Invalid, "kernel size should be greater than zero"},
			{func() {
				x.Conv1d(x.Ones([]int{1, 2, 3}, dtype.Float32), x.Ones([]int{2, 2, 0}, dtype.Float32), nil, Conv1dOpt{})
			}, fault.Invalid, "kernel size should be greater than zero"},
			{func() { x.VectorNorm(none, nil, VectorNormOpt{Ord: -1}) }, fault.Invalid,
				"VectorNorm cannot compute the -1 norm on an " +
					"empty tensor because the operation does not have an identity"},
			{func() { x.VectorNorm(none, []int{1}, VectorNormOpt{Ord: math.Inf(1)}) }, fault.Invalid,
				"VectorNorm cannot compute the +Inf " +
					"norm on the dimension 1 because this dimension is empty and the operation does not have an identity"},
			{func() {
				x.IndexSelect(x.Ones(nil, dtype.Float32), 0, class)
			}, fault.Invalid, "Index to scalar can have only 1 value, got 2 value(s)"},
			{func() {
				x.NLLLoss(rows, class, NLLLossOpt{Weight: leaf})
			}, fault.Unsupported, "the derivative for 'weight' is not implemented"},
			{func() {
				x.BatchNorm(rows, nil, nil, leaf, real, BatchNormOpt{})
			}, fault.Unsupported, "the derivative for 'running_mean' is not implemented"},
			{func() {
				x.PReLU(cube, real)
			}, fault.Invalid, "Mismatch of parameter numbers and input channel size. Found parameter numbers = 2 and channel size = 3"},
			{func() { x.PReLU(real, real) }, fault.Invalid, "Found parameter numbers = 2 and channel size = 1"},
			{func() { x.PReLU(x.Select(real, 0, 0), real) }, fault.Invalid, "Not allow zero-dim input tensor"},
			{func() { x.PReLU(cube, rows) }, fault.Invalid, "Expected `weight` to be a scalar or 1D tensor, but got: ndim = 2"},
			{func() { x.PReLU(real, half) }, fault.Invalid, "the input is float32, but the slopes are float16; convert one with x.ToDType"},
			{func() { x.PReLU(one, x.Slice(one, 0, 0, 1, 1)) }, fault.Unsupported, "PReLU is defined for floating-point tensors only"},
			{func() {
				x.SmoothL1Loss(real, real, SmoothL1LossOpt{Beta: -1})
			}, fault.Invalid, "smooth_l1_loss does not support negative values for beta"},
			{func() { x.SmoothL1Loss(real, real, SmoothL1LossOpt{Reduction: 9}) }, fault.Invalid, "is not a valid value for reduction"},
			{func() { x.SmoothL1Loss(one, one, SmoothL1LossOpt{}) }, fault.Unsupported, "not defined for int32"},
			{func() { x.HuberLoss(real, real, HuberLossOpt{Delta: 0}) }, fault.Invalid,
				"huber_loss does not support non-positive values for delta"},
			{func() {
				x.BCE(real, rows, BCEOpt{})
			}, fault.Invalid, "Using a target size ([2 2]) that is different to the input size ([2]) is deprecated"},
			{func() {
				x.BCE(real, half, BCEOpt{})
			}, fault.Invalid, "the target is float16, but the input is float32; convert the target with x.ToDType"},
			{func() { x.Autocast(dtype.Float16).BCE(real, real, BCEOpt{}) }, fault.Unsupported, "torch.nn.BCELoss are unsafe to autocast"},
			{func() { x.KLDiv(real, real, KLDivOpt{Reduction: 9}) }, fault.Invalid, "is not a valid value for reduction"},
			{func() { x.BitwiseLeftShift(yes, yes) }, fault.Unsupported, "BitwiseLeftShift is defined for integer tensors only, not bool"},
			{func() {
				x.BitwiseRightShift(one, real)
			}, fault.Unsupported, "BitwiseRightShift is defined for integer tensors only, not float32"},
			{func() { x.LogAddExp2(one, one) }, fault.Unsupported, "floating-point tensors only"},
			{func() { x.VarMean(one, nil, VarOpt{}) }, fault.Invalid, "only floating point and complex dtypes are supported"},
			{func() { x.LogNormalInto(real, 0, 0) }, fault.Invalid, "the standard deviation is 0; give a positive one"},
			{func() { x.ExponentialInto(real, -1) }, fault.Invalid, "the rate is -1; give a positive one"},
			{func() { x.ExponentialInto(one, 1) }, fault.Unsupported, "draws floating-point numbers, not int32"},
			{func() { x.CauchyInto(real, 0, math.NaN()) }, fault.Invalid, "the scale is NaN; give a positive one"},
			{func() { x.GeometricInto(real, 1) }, fault.Invalid, "the probability is 1; give one between 0 and 1"},
			{func() { x.GeometricInto(yes, 0.5) }, fault.Unsupported, "GeometricInto draws real numbers, not bool"},
			{func() { x.Linear(rows, x.Ones([]int{3}, dtype.Float32), nil) }, fault.Invalid, "shapes cannot be multiplied ([2 2] and [3] " +
				"transposed); the input's last dimension is 2, but the weight takes 3"},
			{func() {
				x.Linear(x.Ones([]int{2, 8, 4, 4}, dtype.Float32), x.Ones([]int{3, 128}, dtype.Float32), nil)
			}, fault.Invalid, "last dimension is 4, but the weight takes 128: flatten the input with x.Flatten(in, 1, -1)"},
			{func() { x.Linear(x.Ones(nil, dtype.Float32), rows, nil) }, fault.Invalid, "; the input has no dimensions"},
			{func() {
				x.CrossEntropy(rows, real, CrossEntropyOpt{})
			}, fault.Invalid, "got float32[2]; class numbers must be integers (convert them with x.ToDType), and probabilities need " +
				"shape [2 2]"},
			{func() {
				x.CrossEntropy(rows, x.Unsqueeze(class, 1), CrossEntropyOpt{})
			}, fault.Invalid, "Expected target size [2], got [2 1]; remove its last dimension with x.Squeeze(target, -1)"},
			{func() {
				x.CrossEntropy(x.Ones([]int{2, 3, 5}, dtype.Float32), x.Zeros([]int{2, 3}, dtype.Int64), CrossEntropyOpt{})
			}, fault.Invalid, "Expected target size [2 5], got [2 3]; the classes are dimension 1: for classes in the last one, give " +
				"x.View(t, -1, 5) and x.View(target, -1)"},
			{func() { x.Autocast(dtype.Float32) }, fault.Invalid, "not in float32; tenon.DType(0) switches it off"},
			{func() {
				x.check("Backward", x.Backward(x.MulS(leaf, 2), BackwardOpt{}))
			}, fault.Invalid, "pass one of shape [2] as BackwardOpt{Gradient: …}, or reduce the tensor to one element"},
			{func() {
				_, err := x.Grad([]*Tensor{x.MulS(leaf, 2)}, []*Tensor{leaf}, GradOpt{})
				x.check("Grad", err)
			}, fault.Invalid, "pass one of shape [2] as GradOpt{Gradients: …}"},
		} {
			wantError(t, Try(c.f), c.kind, c.want)
		}
		// PyTorch allows these: negative numbers wrap in uint8, fractions are cut off, infinities stay, no slice of no dimension is taken.
		want(t, x, x.ToDType(x.Full([]int{1}, -1, dtype.Uint8), dtype.Float32), 255)
		want(t, x, x.ToDType(x.Full([]int{1}, 127.5, dtype.Int8), dtype.Float32), 127)
		want(t, x, x.ToDType(x.ClampMaxS(half, 1e10), dtype.Float32), 1, 1)
		want(t, x, x.Full([]int{1}, math.Inf(-1), dtype.Float32), -inf)
		want(t, x, x.ToDType(x.MaskedFillS(one, yes, -1.5), dtype.Float32), -1, -1)
		want(t, x, x.ToDType(x.MaskedFill(one, yes, x.Full(nil, 2.75, dtype.Float64)), dtype.Float32), 2, 2)
		want(t, x, x.ToDType(x.MaskedFill(yes, yes, x.Full(nil, 2, dtype.Int32)), dtype.Float32), 1, 1)
		if n := x.VectorNorm(x.Zeros([]int{0, 2}, dtype.Float32), []int{1}, VectorNormOpt{Ord: math.Inf(1)}).Numel(); n != 0 {
			t.Errorf("the norms of no rows are %d", n)
		}
	})
}

// TestLinearVector checks that a weight with one dimension is a linear layer of one output without a dimension for it.
func TestLinearVector(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		in, w := From(x, []float32{1, 2, 3, 4, 5, 6}, 3, 2), From(x, []float32{10, 1})
		want(t, x, x.Linear(in, w, nil), 12, 34, 56)
		y := x.Linear(x.Reshape(in, 1, 3, 2), w, x.Full(nil, 1, dtype.Float32))
		want(t, x, y, 13, 35, 57)
		if len(y.shape) != 2 {
			t.Errorf("got shape %v", y.shape)
		}
		want(t, x, x.Linear(x.Select(in, 0, 0), w, nil), 12)
	})
}

// TestSmoothedCrossEntropyIgnores checks that the row of an ignored target does not count, even if it has infinities.
func TestSmoothedCrossEntropyIgnores(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		in := From(x, []float32{0, inf, 1, 1}, 2, 2)
		y := x.CrossEntropy(in, From(x, []int64{0, 1}), CrossEntropyOpt{Ignore: true, LabelSmoothing: 0.2})
		if got := floats(t, x, y); math.Abs(float64(got[0])-math.Ln2) > 1e-6 {
			t.Errorf("got %v, want log 2", got)
		}
	})
}

// TestComplexPowOfZero checks that complex 0 to a power with a negative real part is infinite.
func TestComplexPowOfZero(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, dt := range []dtype.DType{dtype.Complex64, dtype.Complex128} {
			zero := x.Zeros([]int{4}, dt)
			y := x.Pow(zero, x.ToDType(From(x, []complex64{-2, -1 + 1i, 0, 2 + 1i}), dt))
			wantBits(t, x, x.ToDType(x.RealPart(y), dtype.Float32), inf, inf, 1, 0)
			wantBits(t, x, x.ToDType(x.ImagPart(y), dtype.Float32), nan, nan, 0, 0)
		}
	})
}

// TestLossValues checks values of operations that the recorded cases leave out.
func TestLossValues(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, b := From(x, []float32{0, 1, 4}), From(x, []float32{0.5, 1, 1})
		want(t, x, x.SmoothL1Loss(a, b, SmoothL1LossOpt{Reduction: ReduceNone}), 0.125, 0, 2.5)
		want(t, x, x.SmoothL1Loss(a, b, SmoothL1LossOpt{Beta: 0, Reduction: ReduceSum}), 3.5)
		want(t, x, x.HuberLoss(a, b, HuberLossOpt{Delta: 2, Reduction: ReduceNone}), 0.125, 0, 4)
		if y := x.HuberLoss(x.ToDType(a, dtype.Float16), x.ToDType(b, dtype.Float64), HuberLossOpt{Delta: 2}); y.dt != dtype.Float16 {
			t.Errorf("huber of a half against doubles has type %v", y.dt)
		}
		target := From(x, []float32{0.5}).SetRequiresGrad(true)
		backward(t, x, x.BCE(From(x, []float32{0}), target, BCEOpt{}), BackwardOpt{})
		wantBits(t, x, target.Grad(), inf)
		want(t, x, x.BCE(From(x, []float32{0, 1, 0, 1}), From(x, []float32{0, 1, 1, 0}), BCEOpt{Weight: From(x, []float32{1, 1, 1, 2}),
			Reduction: ReduceNone}), 0, 0, 100, 200)
		p := x.ToDType(From(x, []float32{0, 1, 0.5}), dtype.Float16)
		got := floats(t, x, x.ToDType(x.BCE(p, x.Ones([]int{3}, dtype.Float16), BCEOpt{Reduction: ReduceNone}), dtype.Float32))
		if got[0] != 100 || got[1] != 0 || math.Abs(float64(got[2])-math.Ln2) > 1e-3 {
			t.Errorf("bce of halves: %v", got)
		}
		ln := From(x, []float32{0, float32(-math.Ln2)}, 2, 1)
		want(t, x, x.KLDiv(ln, From(x, []float32{0, 1}, 2, 1), KLDivOpt{Reduction: ReduceNone}), 0, math.Ln2)
		want(t, x, x.KLDiv(ln, From(x, []float32{0, 1}, 2, 1), KLDivOpt{Reduction: ReduceBatchMean}), math.Ln2/2)
		if y := x.Autocast(dtype.Float16).KLDiv(x.ToDType(ln, dtype.Float16), x.ToDType(ln, dtype.Float16),
			KLDivOpt{LogTarget: true}); y.dt != dtype.Float32 {
			t.Errorf("a divergence under autocast has type %v", y.dt)
		}
		want(t, x, x.NanSum(From(x, []float32{1, nan, 2}), nil, SumOpt{}), 3)
		want(t, x, x.Angle(From(x, []float32{-1, 1, 0})), math.Pi, 0, 0)
		i := From(x, []int32{1, -8, 3})
		want(t, x, x.ToDType(x.BitwiseLeftShift(i, From(x, []int32{4, 1, 32})), dtype.Float32), 16, -16, 0)
		want(t, x, x.ToDType(x.BitwiseRightShift(i, From(x, []int32{1, 1, -1})), dtype.Float32), 0, -4, 0)
		v, m := x.VarMean(From(x, []float32{1, 2, 3, 6}, 2, 2), []int{1}, VarOpt{KeepDim: true})
		want(t, x, v, 0.5, 4.5)
		want(t, x, m, 1.5, 4.5)
		if len(v.shape) != 2 || len(m.shape) != 2 {
			t.Errorf("shapes %v and %v", v.shape, m.shape)
		}
		w := From(x, []float32{0.5, 2, 4})
		want(t, x, x.PReLU(From(x, []float32{-1, 1, -1, 1, -1, 1}, 1, 3, 2), w), -0.5, 1, -2, 1, -4, 1)
		want(t, x, x.PReLU(x.Full(nil, -3, dtype.Float32), x.Slice(w, 0, 1, 2, 1)), -6)
	})
}

// TestPowersOfHalf checks that powers of ±1/2 are roots.
func TestPowersOfHalf(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{-inf, -1, 4, inf})
		wantBits(t, x, x.PowS(a, 0.5), nan, nan, 2, inf)
		wantBits(t, x, x.PowS(a, -0.5), nan, nan, 0.5, 0)
		zero := x.Neg(x.Zeros([]int{1}, dtype.Float32))
		wantBits(t, x, x.PowS(zero, -0.5), -inf)
		if !math.Signbit(float64(floats(t, x, x.PowS(zero, 0.5))[0])) {
			t.Error("the root of -0 is 0")
		}
		want(t, x, x.PowS(From(x, []int32{4, 9}), 0.5), 2, 3)
		want(t, x, x.PowS(x.Zeros([]int{0}, dtype.Float32), 0.5))
		want(t, x, x.PowS(From(x, []int32{2, 1}), math.Inf(-1)), 0, 1)
		l := leafOf(x, 4)
		backward(t, x, x.PowS(l, 0.5), BackwardOpt{})
		want(t, x, l.Grad(), 0.25)
	})
}

// TestPowersAsProducts checks that whole powers that are short products have the bits of those products; for halves every step rounds.
func TestPowersAsProducts(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, dt := range []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32, dtype.Float64} {
			v := x.Cat([]*Tensor{x.ToDType(x.MulS(x.RandN([]int{2000}, dtype.Float64), 3), dt),
				x.ToDType(From(x, []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), 1e-30, -1e30}), dt)}, 0)
			one := x.Ones(nil, dt)
			for e, w := range map[float64]*Tensor{1: v, 2: x.Mul(v, v), 3: x.Mul(x.Mul(v, v), v), -1: x.Reciprocal(v),
				-2: x.Div(one, x.Mul(v, v)), 0.5: x.Sqrt(v), -0.5: x.Rsqrt(v)} {
				a, b := bytesOf(t, x, x.PowS(v, e)), bytesOf(t, x, w)
				for i := range v.Numel() {
					if p, q := dtype.Float64At(dt, a, i), dtype.Float64At(dt, b, i); math.Float64bits(p) != math.Float64bits(q) &&
						(p == p || q == q) {
						t.Fatalf("%v to the power %v is %v, not %v", dtype.Float64At(dt, bytesOf(t, x, v), i), e, p, q)
					}
				}
			}
		}
		want(t, x, x.ToDType(x.PowS(From(x, []int32{-3, 9}), 3), dtype.Float32), -27, 729)
		z := From(x, []complex64{3 + 4i})
		if a, b := bytesOf(t, x, x.PowS(z, -1)), bytesOf(t, x, x.Reciprocal(z)); !bytes.Equal(a, b) {
			t.Errorf("the power -1 of a complex number is %v, not %v", a, b)
		}
	})
}

func bytesOf(t *testing.T, x *Exec, v *Tensor) []byte {
	t.Helper()
	b, err := x.Bytes(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
