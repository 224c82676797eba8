package compile_test

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/kernel"
)

// A call that is refused in some runs, for reasons that are no part of the call, is no part of those runs, and its error is that of the
// program without a region.
func TestRefusedCalls(t *testing.T) {
	x := open(t)
	square := kernel.Build("square", func(k *kernel.Builder) {
		n, in, out := k.Scalar("n", tenon.Int64), k.Buffer("in", tenon.Float32), k.Buffer("out", tenon.Float32)
		k.ForEach(n, func(i kernel.Value) { out.Store(i, in.Load(i).Mul(in.Load(i))) })
	})
	for name, change := range map[string]func(x *tenon.Exec, w, wide *tenon.Tensor, i int){
		"Leaf": func(x *tenon.Exec, w, _ *tenon.Tensor, i int) {
			w.SetRequiresGrad(i%2 == 1)
			x.MulSInto(w, w, 2)
		},
		"TwoMistakes": func(x *tenon.Exec, w, wide *tenon.Tensor, i int) { x.AddInto(w.SetRequiresGrad(true), w, wide) },
		"Launch": func(x *tenon.Exec, w, _ *tenon.Tensor, i int) {
			x.Launch(square, tenon.Over(4), tenon.Integer(4), tenon.In(w))
		},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(do func(x *tenon.Exec, f func(x *tenon.Exec) error) error) (out string) {
				x.Scope(func(x *tenon.Exec) {
					w, wide, sum := x.Ones([]int{4}, tenon.Float32), x.Ones([]int{2, 4}, tenon.Float32), x.Zeros([]int{4}, tenon.Float32)
					for i := range 8 {
						must(t, do(x, func(x *tenon.Exec) error {
							a := x.Sin(sum)
							out += fmt.Sprintln(tenon.Try(func() { change(x, w, wide, i) }))
							x.AddInto(sum, sum, x.Add(a, x.Detach(w)))
							return nil
						}))
						out += read(t, x, sum) + read(t, x, w) + "\n"
					}
				})
				return out
			}
			want := run((*tenon.Exec).Do)
			if got := run(compile.New(compile.Opt{CheckPool: true}).Do); got != want {
				t.Errorf("in a region\n%s\nwant\n%s", got, want)
			}
		})
	}
}
