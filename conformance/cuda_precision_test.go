package conformance

import (
	"fmt"
	"testing"

	"tenon.dev"
)

// precisionTests are the behaviours of the precision of products.
var precisionTests = []cudaTest{
	{name: "CUDA-019_test_cublas_allow_tf32_get_set", run: testTF32},
	{name: "CUDA-020_test_float32_matmul_precision_get_set", run: testMatMulPrecision},
	{name: "CUDA-021_test_cublas_allow_fp16_reduced_precision_reduction_get_set", run: func(t *testing.T, x *tenon.Exec) {
		testHalfSums(t, x, tenon.Float16, 4099, 4100)
	}},
	{name: "CUDA-022_test_cublas_allow_bf16_reduced_precision_reduction_get_set", run: func(t *testing.T, x *tenon.Exec) {
		testHalfSums(t, x, tenon.BFloat16, 771, 772)
	}},
	{name: "CUDA-023_test_cudnn_allow_tf32_get_set", run: testConvTF32},
}

// exact and rounded bound the relative errors of products of float32 numbers from 1 to 2: exact with rounded sums, rounded with operands
// of 10 fraction bits.
const exact, rounded = 1e-5, 1.0 / (1 << 9)

// farthest returns the largest relative difference between the product y and the product in float64.
func farthest(t *testing.T, x *tenon.Exec, y, want *tenon.Tensor) float64 {
	return item(t, x, x.AMax(x.Abs(x.SubS(x.Div(x.ToDType(y, tenon.Float64), want), 1)), nil))
}

// wantPrecision checks that a product is exact without tf32, and that on a GPU it is not exact with tf32.
func wantPrecision(t *testing.T, x *tenon.Exec, product func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor, a, b *tenon.Tensor) {
	t.Helper()
	want := product(x, x.ToDType(a, tenon.Float64), x.ToDType(b, tenon.Float64))
	for _, on := range []bool{false, true} {
		far := farthest(t, x, product(x.TF32(on), a, b), want)
		if !on && far > exact || far > rounded || on && onGPU() && far < 2*exact {
			t.Errorf("tf32 %v: the product is %.3g away", on, far)
		}
	}
}

// wantSwitch checks that tf32 is off at first, that an Exec passes its setting to derived ones, and that it keeps its own.
func wantSwitch(t *testing.T, x *tenon.Exec) {
	t.Helper()
	check(t, "tf32 at first", x.TF32Enabled(), false)
	y := x.TF32(true)
	check(t, "tf32 on", y.TF32Enabled(), true)
	check(t, "tf32 on, without gradients", y.NoGrad().TF32Enabled(), true)
	check(t, "tf32 off again", y.TF32(false).TF32Enabled(), false)
	check(t, "tf32 of the first Exec", x.TF32Enabled(), false)
}

func testTF32(t *testing.T, x *tenon.Exec) {
	wantSwitch(t, x)
	n := sized(512, 64)
	a, b := x.AddS(x.Rand([]int{n, n}, tenon.Float32), 1), x.AddS(x.Rand([]int{n, n}, tenon.Float32), 1)
	wantPrecision(t, x, func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor { return x.MatMul(a, b) }, a, b)
}

// testMatMulPrecision covers PyTorch's precisions. With tf32 off, "highest", products are exact. With tf32 on, which stands for the other
// two, they keep 10 fraction bits of the operands, more than the 7 that "medium" requires.
func testMatMulPrecision(t *testing.T, x *tenon.Exec) {
	check(t, "tf32 at first", x.TF32Enabled(), false)
	n := sized(512, 64)
	a, b := x.AddS(x.Rand([]int{n, n}, tenon.Float32), 1), x.AddS(x.Rand([]int{n, n}, tenon.Float32), 1)
	want := x.MatMul(x.ToDType(a, tenon.Float64), x.ToDType(b, tenon.Float64))
	for _, p := range []struct {
		word  string
		tf32  bool
		bound float64
	}{{"medium", true, rounded}, {"high", true, rounded}, {"highest", false, exact}} {
		x := x.TF32(p.tf32)
		check(t, p.word, x.TF32Enabled(), p.tf32)
		if far := farthest(t, x, x.MatMul(a, b), want); far > p.bound {
			t.Errorf("%s: the product is %.3g away", p.word, far)
		}
	}
}

// testHalfSums multiplies ones of a half type, so many that their sum n exceeds what the type can count one by one: the product is n in
// float32, rounded once.
func testHalfSums(t *testing.T, x *tenon.Exec, dt tenon.DType, n int, want float64) {
	for _, rows := range []int{1, 16, sized(256, 40)} {
		allAre(t, x, fmt.Sprintf("%d rows of sums of %d ones", rows, n), x.MatMul(x.Ones([]int{rows, n}, dt), x.Ones([]int{n, rows}, dt)),
			want)
	}
}

func testConvTF32(t *testing.T, x *tenon.Exec) {
	wantSwitch(t, x)
	n := sized(128, 16)
	a, w := x.AddS(x.Rand([]int{2, n, 16, 16}, tenon.Float32), 1), x.AddS(x.Rand([]int{n, n, 3, 3}, tenon.Float32), 1)
	wantPrecision(t, x, func(x *tenon.Exec, a, w *tenon.Tensor) *tenon.Tensor { return x.Conv2d(a, w, nil) }, a, w)
}
