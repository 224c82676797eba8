package linalg

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
)

// TestInto checks that the forms with a destination give the same bits as those that make a tensor, with as many kernels if the destination
// has the layout of that tensor.
func TestInto(t *testing.T) {
	for _, sel := range devices() {
		x := testdevice.Open(t, sel)
		r := rand.New(rand.NewPCG(3, 4))
		a, b := tenon.From(x, numbers(r, 9), 3, 3), tenon.From(x, numbers(r, 9), 3, 3)
		three := []*tenon.Tensor{a, b, a}
		launches := func(f func()) int64 {
			before := core.KernelLaunches((*core.Exec)(x))
			f()
			return core.KernelLaunches((*core.Exec)(x)) - before
		}
		for name, c := range map[string]struct {
			plain  func() *tenon.Tensor
			into   func(dst *tenon.Tensor)
			copies int64
		}{
			"Cross":    {func() *tenon.Tensor { return Cross(x, a, b, -1) }, func(d *tenon.Tensor) { CrossInto(x, d, a, b, -1) }, 0},
			"VecDot":   {func() *tenon.Tensor { return VecDot(x, a, b, 0) }, func(d *tenon.Tensor) { VecDotInto(x, d, a, b, 0) }, 0},
			"MultiDot": {func() *tenon.Tensor { return MultiDot(x, three) }, func(d *tenon.Tensor) { MultiDotInto(x, d, three) }, 1},
			"NuclearNorm": {func() *tenon.Tensor {
				return NuclearNorm(x, a, nil)
			}, func(d *tenon.Tensor) { NuclearNormInto(x, d, a, nil) }, 1},
		} {
			var want *tenon.Tensor
			plain := launches(func() { want = c.plain() })
			dst, wide := x.EmptyLike(want), x.Empty(append([]int{2}, want.Shape()...), tenon.Float64)
			if got := launches(func() { c.into(dst) }); got != plain+c.copies {
				t.Errorf("%sInto launches %d kernels, want %d", name, got, plain+c.copies)
			}
			w, err := x.Bytes(want)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := x.Bytes(dst); err != nil || !bytes.Equal(got, w) {
				t.Errorf("%sInto: %v (%v), want %v", name, got, err, w)
			}
			if err := tenon.Try(func() { c.into(wide) }); err == nil || !strings.Contains(err.Error(), name+"Into") ||
				!strings.Contains(err.Error(), "the destination has shape") {
				t.Errorf("%sInto of another shape: %v", name, err)
			}
		}
	}
}
