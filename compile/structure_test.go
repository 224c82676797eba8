package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A call that differs from a recorded one in any part of its structure is a different call: the region keeps both, and gives the bits of
// eager execution for each.
func TestCallsOfOtherStructureAreOtherCalls(t *testing.T) {
	x := open(t)
	must(t, x.Generator().SetSeed(5))
	a, b := x.RandN([]int{4, 4}, tenon.Float32), x.RandN([]int{4, 4}, tenon.Float32)
	grad := x.RandN([]int{4, 4}, tenon.Float32).SetRequiresGrad(true)
	whole := x.RandInt(4, []int{4, 4}, tenon.Int64)
	st, err := x.Device().Stream()
	must(t, err)
	for name, f := range map[string]func(x *tenon.Exec, n int) *tenon.Tensor{
		"dimension":  func(x *tenon.Exec, n int) *tenon.Tensor { return x.Softmax(a, n) },
		"dimensions": func(x *tenon.Exec, n int) *tenon.Tensor { return x.Sum(a, []int{n}) },
		"type": func(x *tenon.Exec, n int) *tenon.Tensor {
			return x.ToDType(a, []tenon.DType{tenon.Float16, tenon.BFloat16}[n])
		},
		"number of inputs": func(x *tenon.Exec, n int) *tenon.Tensor { return x.Cat([]*tenon.Tensor{a, b, b}[:2+n], 0) },
		"operand":          func(x *tenon.Exec, n int) *tenon.Tensor { return x.Sub(a, []*tenon.Tensor{a, b}[n]) },
		"number that is structure": func(x *tenon.Exec, n int) *tenon.Tensor {
			return x.VectorNorm(a, nil, tenon.VectorNormOpt{Ord: []float64{1, 2}[n]})
		},
		"exponent":      func(x *tenon.Exec, n int) *tenon.Tensor { return x.PowS(a, []float64{2, 3}[n]) },
		"number's type": func(x *tenon.Exec, n int) *tenon.Tensor { return x.AddS(whole, []float64{1, 0.5}[n]) },
		"optional operand": func(x *tenon.Exec, n int) *tenon.Tensor {
			return x.Linear(a, b, []*tenon.Tensor{nil, x.Select(a, 0, 0)}[n])
		},
		"strides": func(x *tenon.Exec, n int) *tenon.Tensor { return x.Exp([]*tenon.Tensor{a, x.Transpose(a, 0, 1)}[n]) },
		"gradients": func(x *tenon.Exec, n int) *tenon.Tensor {
			if n == 1 {
				x = x.NoGrad()
			}
			return x.Exp(grad)
		},
		"stream": func(x *tenon.Exec, n int) *tenon.Tensor {
			if n == 1 {
				x = x.On(st)
			}
			return x.Exp(a)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := compile.New()
			for i, n := range []int{0, 1, 1, 0, 0, 1, 0, 1} {
				var got *tenon.Tensor
				must(t, r.Do(x, func(x *tenon.Exec) error {
					got = x.Keep(f(x, n))
					return nil
				}))
				want := f(x, n)
				bits := func(y *tenon.Tensor) string { return read(t, x, x.ToDType(y, tenon.Float32)) }
				if bits(got) != bits(want) || got.RequiresGrad() != want.RequiresGrad() || got.DType() != want.DType() {
					t.Errorf("run %d, of form %d: %v %s, %v; want %v %s, %v", i, n, got.DType(), bits(got), got.RequiresGrad(),
						want.DType(), bits(want), want.RequiresGrad())
				}
				got.Close()
			}
			if forks := r.Explain(x).Forks; len(forks) != 1 {
				t.Errorf("the two forms make %d forks: %v", len(forks), forks)
			}
		})
	}
}

// A graph with draws that is replayed in a region draws anew each time, even if the region has deferred other work.
func TestGraphsWithDrawsReplayInRegions(t *testing.T) {
	x := open(t)
	must(t, x.Generator().SetSeed(3))
	var noise *tenon.Tensor
	g, err := x.Capture(func(x *tenon.Exec) { noise = x.RandN([]int{8}, tenon.Float32) })
	must(t, err)
	defer g.Close()
	draws := func(replay func() error) (all []string) {
		must(t, x.Generator().SetSeed(4))
		for range 5 {
			must(t, replay())
			all = append(all, read(t, x, noise))
		}
		return all
	}
	want := draws(func() error { return x.Replay(g) })
	r := compile.New()
	got := draws(func() error {
		return r.Do(x, func(x *tenon.Exec) error {
			x.Exp(x.Ones([]int{4}, tenon.Float32)) // open until the replay makes it run
			return x.Replay(g)
		})
	})
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("replay %d in a region drew %s, want %s", i, got[i], want[i])
		}
		if i > 0 && want[i] == want[i-1] {
			t.Errorf("replays %d and %d drew the same", i-1, i)
		}
	}
}
