package compile_test

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A graph gets the new numbers of a fused kernel whose operands the plan has replaced: by the halves that were converted, or by the results
// of an equal call.
func TestNumbersBesideReplacedOperands(t *testing.T) {
	for name, f := range map[string]func(x *tenon.Exec, a, half *tenon.Tensor, v float64) *tenon.Tensor{
		"Halves": func(x *tenon.Exec, _, half *tenon.Tensor, v float64) *tenon.Tensor {
			wide := x.ToDType(x.MatMul(half, half), tenon.Float32)
			return x.Add(x.MulS(x.Softmax(wide, -1), v), x.Sum(x.MulS(x.AddS(wide, v), v), nil))
		},
		"Equal": func(x *tenon.Exec, a, _ *tenon.Tensor, v float64) *tenon.Tensor {
			b, c := x.MatMul(a, a), x.MatMul(a, a)
			return x.AddS(x.MulS(x.Add(x.MatMul(b, a), c), v), v)
		},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(r *compile.Region) (out string) {
				x := open(t)
				must(t, x.Generator().SetSeed(3))
				a := x.RandN([]int{1, 64, 64}, tenon.Float32)
				half := x.ToDType(a, tenon.BFloat16)
				for n := range 7 {
					var y *tenon.Tensor
					step := func(x *tenon.Exec) error {
						y = x.Keep(f(x, a, half, 0.5+float64(n)/8))
						return nil
					}
					if r == nil {
						x.Scope(func(x *tenon.Exec) { must(t, step(x)) })
					} else {
						must(t, r.Do(x, step))
					}
					b, err := x.Bytes(y)
					must(t, err)
					out += fmt.Sprintf("%x\n", b)
					y.Close()
				}
				if r == nil {
					return out
				}
				if s := r.Stats(x); s.Recordings != 1 || s.Replays < 4 || s.Dropped == 0 {
					t.Errorf("%+v", s)
				}
				return out
			}
			if got, want := run(compile.New()), run(nil); got != want {
				t.Errorf("in a region the results differ:\n%.300s\nwant\n%.300s", got, want)
			}
		})
	}
}
