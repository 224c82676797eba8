package core

import (
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// TestErrorsSayWhatToDo checks that errors name the types that differ and say how to convert, count elements and not bytes, and clip long
// lists.
func TestErrorsSayWhatToDo(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		f, d, n := x.Ones([]int{2, 2}, dtype.Float32), x.Ones([]int{2, 2}, dtype.Float64), x.Ones([]int{2, 2}, dtype.Int64)
		image := x.Ones([]int{1, 1, 4, 4}, dtype.Float32)
		deep := make([]int, 100)
		for i := range deep {
			deep[i] = 1
		}
		for _, c := range []struct {
			says []string
			run  func()
		}{
			{[]string{"float32 != float64", "x.ToDType"}, func() { x.MatMul(f, d) }},
			{[]string{"the tensor is float32, but src is float64; convert src with x.ToDType"}, func() {
				x.Scatter(f, 0, x.Zeros([]int{2, 2}, dtype.Int64), d, ScatterOpt{})
			}},
			{[]string{"got float32; convert it with x.ToDType"}, func() { x.Gather(f, 0, f) }},
			{[]string{"got float32; convert it with x.ToDType"}, func() { x.IndexSelect(f, 0, x.Ones([]int{1}, dtype.Float32)) }},
			{[]string{"the index is float32, but must be int64 or int32; convert it with x.ToDType"}, func() {
				x.Embedding(f, f, EmbeddingOpt{})
			}},
			{[]string{"the target must be numbers of classes, of an integer type, but is float32; convert it with x.ToDType"},
				func() { x.NLLLoss(f, x.Zeros([]int{2}, dtype.Float32), NLLLossOpt{}) }},
			{[]string{"the target is float64, but the input is float32; convert the target"}, func() { x.BCE(f, d, BCEOpt{}) }},
			{[]string{"Got: int64; convert it with x.ToDType"}, func() { x.Mean(n, nil, SumOpt{}) }},
			{[]string{"dtype int64; make one with a comparison"}, func() { x.Where(n, f, f) }},
			{[]string{"(float32) and weight or bias type (float64)", "x.ToDType"}, func() {
				x.Conv2d(x.Ones([]int{1, 1, 2, 2}, dtype.Float32), x.Ones([]int{1, 1, 1, 1}, dtype.Float64), nil, Conv2dOpt{})
			}},
			{[]string{"Stride is [2 0]; give both numbers, such as [2 2], or leave it out"}, func() {
				x.Conv2d(image, image, nil, Conv2dOpt{Stride: [2]int{2}})
			}},
			{[]string{"Dilation is [0 3]; give both numbers, such as [3 3], or leave it out"}, func() {
				x.Conv2d(image, image, nil, Conv2dOpt{Dilation: [2]int{0, 3}, Same: true})
			}},
			{[]string{"Dilation is [2 0]; give both"}, func() {
				x.MaxPool2d(image, [2]int{1, 1}, MaxPoolOpt{Dilation: [2]int{2}})
			}},
			{[]string{"Stride is [0 1]; give both"}, func() {
				x.AvgPool2d(image, [2]int{1, 1}, AvgPoolOpt{Stride: [2]int{0, 1}})
			}},
			{[]string{"the number 300 is out of range for uint8; give one from 0 to 255"}, func() { x.Full(nil, 300, dtype.Uint8) }},
			{[]string{"the number 1e+06 is out of range for float16; give one from -65504 to 65504"}, func() {
				x.Full(nil, 1e6, dtype.Float16)
			}},
			{[]string{"the number (1+2i) is complex, and the type is int64"}, func() { x.FullC(nil, 1+2i, dtype.Int64) }},
			{[]string{"there is no number from 5 to below 5"}, func() { x.RandInt(5, nil, dtype.Int64, RandIntOpt{Low: 5}) }},
			{[]string{"3 elements were given for a float32 tensor of shape [2 2], which has 4"}, func() {
				From(x, []float32{1, 2, 3}, 2, 2)
			}},
			{[]string{"3 bytes were given for a float32 tensor of shape [2 2], which has 16"}, func() {
				x.FromBytes(make([]byte, 3), dtype.Float32, 2, 2)
			}},
			{[]string{"shape [4 4611686018427387904] with strides [4611686018427387904 1] from element 0 on reaches beyond"},
				func() { x.AsStrided(f, []int{4, 1 << 62}, []int{1 << 62, 1}, 0) }},
			{[]string{"with strides [1] from element 9223372036854775807 on reaches beyond"}, func() {
				x.AsStrided(f, []int{2}, []int{1}, 1<<63-1)
			}},
			{[]string{"the stride -1 is negative; x.Flip reverses a dimension"}, func() { x.AsStrided(f, []int{3}, []int{-1}, 3) }},
			{[]string{"the shape [-1 2] has a negative dimension"}, func() { x.AsStrided(f, []int{-1, 2}, []int{1, 1}, 0) }},
			{[]string{"shape [3] with strides [1] from element 2 on reaches beyond the storage, which has 4 elements"}, func() {
				x.AsStrided(f, []int{3}, []int{1}, 2)
			}},
			{[]string{"[1 1 1 1 1 1 1 1 1 1 1 1 … of 100 numbers]"}, func() { x.View(f, deep...) }},
			{[]string{"(float32[1 1 1 1 1 1 1 1 1 1 1 1 … of 100 numbers])"}, func() { x.MM(x.Ones(deep, dtype.Float32), d) }},
		} {
			err := Try(c.run)
			wantError(t, err, fault.Invalid, c.says...)
			if err != nil && strings.Contains(err.Error(), "1 1 1 1 1 1 1 1 1 1 1 1 1") {
				t.Errorf("the error is long: %v", err)
			}
		}
		for said, run := range map[string]func(){
			"for integer tensors only, not float32; convert them first with x.ToDType": func() { x.BitwiseLeftShift(f, f) },
			"Rand draws floating-point numbers, not int64; draw those and convert":     func() { x.Rand([]int{2}, dtype.Int64) },
			"a range of complex64 is not defined; make one of a real type": func() {
				x.Arange(3, dtype.Complex64, ArangeOpt{})
			},
		} {
			wantError(t, Try(run), fault.Unsupported, said, "x.ToDType")
		}
	})
}
