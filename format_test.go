package tenon_test

import (
	"fmt"
	"log"
	"math"
	"strings"
	"testing"

	"tenon.dev"
)

func ExampleExec_Format() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	a := tenon.From(x, []float32{1, 2.5, -3, 0.125}, 2, 2)
	fmt.Println(x.Format(a))
	// Output:
	// [[    1   2.5]
	//  [   -3 0.125]] float32[2 2] on CPU <nil>
}

func TestFormat(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	host := x.Host()
	for _, c := range []struct {
		t    *tenon.Tensor
		want string
	}{
		{tenon.From(host, []float64{math.Pi}, []int{}...), "[3.142] float64[1] on CPU"},
		{x.Full(nil, 7, tenon.Int8), "7 int8[] on Simulated GPU"},
		{tenon.From(x, []float32{float32(math.NaN()), float32(math.Inf(-1)), 1e10, 0}),
			"[  NaN  -Inf 1e+10     0] float32[4] on Simulated GPU"},
		{x.Full([]int{2}, 0.1, tenon.Float16), "[0.09998 0.09998] float16[2] on Simulated GPU"},
		{tenon.From(x, []bool{true, false}), "[ true false] bool[2] on Simulated GPU"},
		{tenon.From(x, []int64{1 << 62, -1}), "[4611686018427387904                  -1] int64[2] on Simulated GPU"},
		{tenon.From(x, []complex64{1 + 2i}), "[(1+2i)] complex64[1] on Simulated GPU"},
		{x.Empty([]int{0, 3}, tenon.Float32), "[] float32[0 3] on Simulated GPU"},
		{x.Empty([]int{3, 0}, tenon.Float32), "[] float32[3 0] on Simulated GPU"},
		{x.Empty([]int{math.MaxInt, 0}, tenon.Float32), "[] float32[9223372036854775807 0] on Simulated GPU"},
		{x.Arange(8, tenon.Uint8).SetRequiresGrad(false), "[0 1 2 3 4 5 6 7] uint8[8] on Simulated GPU"},
		{x.Ones([]int{2, 1, 2}, tenon.Int32), "[[[1 1]]\n\n [[1 1]]] int32[2 1 2] on Simulated GPU"},
		{x.Arange(1001, tenon.Int64).SetRequiresGrad(false), "[   0    1    2 …  998  999 1000] int64[1001] on Simulated GPU"},
		{x.Ones([]int{2, 501}, tenon.Float32).SetRequiresGrad(true), "[[1 1 1 … 1 1 1]\n [1 1 1 … 1 1 1]] float32[2 501] on Simulated " +
			"GPU requires grad"},
		{x.Ones([]int{501, 2}, tenon.Float32), "[[1 1]\n [1 1]\n [1 1]\n …\n [1 1]\n [1 1]\n [1 1]] float32[501 2] on Simulated GPU"},
	} {
		if got, err := x.Format(c.t); got != c.want || err != nil {
			t.Errorf("got %q, %v\nwant %q", got, err, c.want)
		}
	}
	a := x.Ones([]int{3}, tenon.Float32)
	a.Close()
	for _, closed := range []*tenon.Tensor{a, nil} {
		if text, err := x.Format(closed); text != "" || err == nil {
			t.Errorf("%v gave %q and %v", closed, text, err)
		}
	}
	var failed error
	_, err = x.Capture(func(x *tenon.Exec) { _, failed = x.Format(x.Ones([]int{3}, tenon.Float32)) })
	if err == nil || failed == nil || !strings.Contains(failed.Error(), "cannot be captured") {
		t.Errorf("in a capture: %v, %v", err, failed)
	}
}
