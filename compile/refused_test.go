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

// A call without work, such as Empty, may run at once in some runs and be deferred in others.
func TestIdleCallsAtOnce(t *testing.T) {
	x := open(t)
	r, p, sum := compile.New(compile.Opt{CheckPool: true}), x.Ones([]int{4}, tenon.Float32), x.Zeros([]int{4}, tenon.Float32)
	for i := range 12 {
		must(t, r.Do(x, func(x *tenon.Exec) error {
			a := x.MulS(p, 2)
			var b *tenon.Tensor
			f := func(x *tenon.Exec) error {
				b = x.Empty([]int{4}, tenon.Float32)
				return nil
			}
			switch i % 3 {
			case 0:
				must(t, compile.Disable(x, f))
			case 1:
				must(t, f(x))
			case 2:
				b = tenon.From(x, []float32{1, 2, 3, 4})
			}
			x.CopyInto(b, a)
			x.AddInto(sum, sum, b)
			return nil
		}))
	}
	if got := read(t, x, sum); got != "[24 24 24 24]" {
		t.Error(got)
	}
	if s := r.Stats(x); s.Replays < 4 {
		t.Errorf("%+v", s)
	}
}
