package compile_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// pair is a function of two tensors with two results, which may share memory.
type pair func(x *tenon.Exec, a, b *tenon.Tensor) (c, d *tenon.Tensor)

// pairs are functions over w, which may change.
func pairs(w []*tenon.Tensor) []pair {
	return []pair{
		func(x *tenon.Exec, a, b *tenon.Tensor) (c, d *tenon.Tensor) {
			c = x.Mul(x.Add(a, b), w[0])
			return c, x.Select(c, 0, 0)
		},
		func(x *tenon.Exec, a, b *tenon.Tensor) (c, d *tenon.Tensor) {
			return x.Sin(x.Mul(a, w[1])), x.Exp(x.MulS(b, 0.25))
		},
		func(x *tenon.Exec, a, b *tenon.Tensor) (c, d *tenon.Tensor) {
			c = x.Tanh(x.MatMul(a, w[2]))
			return x.Add(c, b), c
		},
		func(x *tenon.Exec, a, b *tenon.Tensor) (c, d *tenon.Tensor) {
			c = x.Sigmoid(a)
			if err := compile.Break(x); err != nil {
				panic(err)
			}
			return x.Sub(c, x.Mul(b, b)), x.ReLU(b)
		},
		func(x *tenon.Exec, a, b *tenon.Tensor) (c, d *tenon.Tensor) {
			if !x.GradEnabled() {
				x.AddInto(b, b, x.Select(w[0], 0, 1))
			}
			return x.Add(a, b), x.Transpose(x.Mul(a, b), 0, 1)
		},
	}
}

// twin is a tensor made by compiled functions and its counterpart made without them.
type twin struct{ a, want *tenon.Tensor }

// walkFunctions runs steps of calls of compiled functions on each other's results, on new tensors and on copies, some with backward passes.
// Steps repeat, and branch from each other.
func walkFunctions(t *testing.T, seed uint64, opt compile.Opt) {
	x := open(t)
	rng := rand.New(rand.NewPCG(seed, 7))
	var w []*tenon.Tensor
	fill := func() *tenon.Tensor {
		v := make([]float32, 16)
		for i := range v {
			v[i] = float32(rng.IntN(33)-16) / 16
		}
		return tenon.From(x, v, 4, 4)
	}
	for range 3 {
		w = append(w, fill().SetRequiresGrad(true))
	}
	plain := pairs(w)
	var compiled []*compile.Callable[pair]
	for _, p := range plain {
		compiled = append(compiled, compile.Func(p, opt))
	}
	region := compile.New(opt)
	var programs [3]uint64
	for i := range programs {
		programs[i] = rng.Uint64()
	}
	var kept []twin // gradients and copies of earlier steps
	same := func(n int, what string, a, want *tenon.Tensor) {
		if g, w := read(t, x, a), read(t, x, want); g != w {
			t.Fatalf("seed %d, step %d: %s is %s; want %s", seed, n, what, g, w)
		}
	}
	for n := range 30 {
		calls := 1 // per step, if steps are not marked
		if seed%2 == 0 {
			must(t, compile.MarkStep(x))
			calls = 4
		}
		program := programs[rng.IntN(len(programs))]
		if rng.IntN(6) == 0 {
			old := w[rng.IntN(3)] // its memory may change too
			x.NoGrad().MulSInto(x.Detach(old), x.Detach(old), 0.5)
		}
		x.Scope(func(x *tenon.Exec) {
			step := rand.New(rand.NewPCG(program, 8))
			y := x
			if step.IntN(3) == 0 {
				y = x.NoGrad()
			}
			have := []twin{}
			for range 3 {
				v := fill()
				have = append(have, twin{v, x.Clone(v)})
			}
			for k := range 1 + step.IntN(calls) {
				i, a, b := step.IntN(len(plain)), have[step.IntN(len(have))], have[step.IntN(len(have))]
				if rng.IntN(8) == 0 { // not from the usual place
					a = twin{y.Clone(a.a), y.Clone(a.want)}
				}
				c, d := compiled[i].Call(y, a.a, b.a)
				wc, wd := plain[i](y, a.want, b.want)
				same(n, fmt.Sprintf("result 0 of call %d", k), c, wc)
				same(n, fmt.Sprintf("result 1 of call %d", k), d, wd)
				have = append(have, twin{c, wc})
				if d.Dim() == 2 {
					have = append(have, twin{d, wd})
				}
				if rng.IntN(4) == 0 {
					d.Close()
					if len(have) > 4 && have[len(have)-1].a == d {
						have = have[:len(have)-1]
					}
				}
			}
			last := have[len(have)-1]
			if calls > 1 && step.IntN(3) == 0 {
				var half *tenon.Tensor
				must(t, region.Do(y, func(x *tenon.Exec) error { half = x.Keep(x.MulS(x.Detach(last.a), 0.5)); return nil }))
				kept = append(kept, twin{x.Keep(half), x.Keep(x.MulS(x.Detach(last.want), 0.5))})
			}
			if last.a.RequiresGrad() && step.IntN(3) > 0 {
				var grads []twin
				must(t, x.Backward(x.Sum(last.a, nil)))
				for _, p := range w {
					g := p.Grad()
					if g != nil {
						g = x.Clone(g)
					}
					grads = append(grads, twin{a: g})
					p.SetGrad(nil)
				}
				must(t, x.Backward(x.Sum(last.want, nil)))
				for i, p := range w {
					if g := p.Grad(); (g == nil) != (grads[i].a == nil) {
						t.Fatalf("seed %d, step %d: gradient %d is %v; want %v", seed, n, i, grads[i].a, g)
					} else if g != nil {
						same(n, fmt.Sprintf("gradient %d", i), grads[i].a, g)
					}
					p.SetGrad(nil)
				}
			}
			if rng.IntN(4) == 0 {
				kept = append(kept, twin{x.Keep(x.Clone(x.Detach(last.a))), x.Keep(x.Clone(x.Detach(last.want)))})
			}
			for i, h := range have {
				same(n, fmt.Sprintf("tensor %d at the end", i), h.a, h.want)
			}
		})
		for i, k := range kept {
			same(n, fmt.Sprintf("kept tensor %d", i), k.a, k.want)
		}
	}
	for _, k := range kept {
		k.a.Close()
		k.want.Close()
	}
	trees, _ := compile.TreesOf(x)
	if trees.Graphs == 0 {
		t.Errorf("seed %d: nothing was recorded", seed)
	}
	must(t, compile.Reset(x))
}

// TestWalks compares many walks with the same calls without recordings.
func TestWalks(t *testing.T) {
	old := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // skips are logged
	defer slog.SetDefault(old)
	for seed := range uint64(30) {
		walkFunctions(t, seed, compile.Opt{CheckPool: true, NoWarmup: seed%3 == 0})
	}
}
