package compile_test

import (
	"fmt"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/profile"
)

// A graph gets the new numbers of a fused kernel whose operands the plan has replaced: by the halves that were converted, or by the results
// of an equal call. Afterwards the calls are as they were, so that a profile knows whose memory a replay uses.
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
						p, err := x.Device().Profile()
						must(t, err)
						must(t, r.Do(x, step))
						got, err := p.Stop()
						must(t, err)
						if makers := makersIn(got); n > 2 && (!slices.Contains(makers, "MatMul") || !slices.Contains(makers, "Fused")) {
							t.Errorf("run %d: the memory is made by %q", n, makers)
						}
					}
					b, err := x.Bytes(y)
					must(t, err)
					out += fmt.Sprintf("%s\n", digest(b))
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

// makersIn returns the operations that the memory of p is made by.
func makersIn(p *profile.Profile) (names []string) {
	for _, e := range p.Memory {
		if e.Bytes > 0 && e.Op >= 0 {
			names = append(names, p.Ops[e.Op].Name)
		}
	}
	return names
}

// A number beside floats is a value, whether it is whole or not. Beside integers a fraction makes other results, and so another recording.
func TestWholeNumbersAreValuesBesideFloats(t *testing.T) {
	x := open(t)
	floats, halves := x.Ones([]int{3}, tenon.Float32), x.Ones([]int{3}, tenon.BFloat16)
	mask, integers := x.Ones([]int{3}, tenon.Bool), x.Ones([]int{3}, tenon.Int64)
	for _, c := range []struct {
		name  string
		f     func(x *tenon.Exec, v float64) *tenon.Tensor
		forks int
	}{
		{"product", func(x *tenon.Exec, v float64) *tenon.Tensor { return x.MulS(halves, v) }, 0},
		{"quotient", func(x *tenon.Exec, v float64) *tenon.Tensor { return x.RDivS(floats, v) }, 0},
		{"mix", func(x *tenon.Exec, v float64) *tenon.Tensor { return x.LerpS(floats, floats, v) }, 0},
		{"clamp", func(x *tenon.Exec, v float64) *tenon.Tensor { return x.ClampS(floats, v, v+1) }, 0},
		{"masked", func(x *tenon.Exec, v float64) *tenon.Tensor { return x.MaskedFillS(halves, mask, v) }, 0},
		{"integers", func(x *tenon.Exec, v float64) *tenon.Tensor { return x.MulS(integers, v) }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := compile.New()
			for n := range 9 {
				must(t, r.Do(x, func(x *tenon.Exec) error {
					x.Keep(c.f(x, float64(n)/4)).Close()
					return nil
				}))
			}
			if e := r.Explain(x); len(e.Forks) != c.forks {
				t.Errorf("%d forks, want %d\n%s", len(e.Forks), c.forks, e)
			}
		})
	}
}
