package compile_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// warnings returns the warnings that f leads to.
func warnings(f func()) string {
	var out bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	defer slog.SetDefault(old)
	f()
	return out.String()
}

// recordings counts the recordings that there are, and those at the ends of paths.
func recordings(x *tenon.Exec) (all, ends int) {
	trees, _ := compile.TreesOf(x)
	var walk func(ts []compile.Tree)
	walk = func(ts []compile.Tree) {
		for i := range ts {
			all++
			if len(ts[i].Children) == 0 {
				ends++
			}
			walk(ts[i].Children)
		}
	}
	walk(trees.Roots)
	return all, ends
}

// chain is the work of the tests on a tensor of n elements.
func chain(x *tenon.Exec, n int, v float64) *tenon.Tensor {
	a := x.MulS(x.Arange(float64(n), tenon.Float32), v)
	return x.Add(x.Sin(a), x.Exp(x.Cos(a)))
}

// A region that meets more lengths than it keeps forgets the least recently used ones. Every length is recorded and replayed, the results
// are those of eager calls, graphs and memory are bounded, and one warning names the line.
func TestLengthsBeyondBranches(t *testing.T) {
	x, rec := openRecorded(t)
	const branches = 8
	r := compile.New(compile.Opt{Branches: branches, DynamicLimit: -1, CheckPool: true})
	reserved := func() int64 { return x.Device().MaxMemoryReserved() }
	var first int64
	out := warnings(func() {
		for pass := range 4 {
			for n := 1; n <= 100; n++ {
				for i := range 3 {
					x.Scope(func(x *tenon.Exec) {
						v := float64(pass + i + 1)
						var y *tenon.Tensor
						must(t, r.Do(x, func(x *tenon.Exec) error { y = x.Keep(chain(x, n, v)); return nil }))
						if got, want := read(t, x, y), read(t, x, chain(x, n, v)); got != want {
							t.Fatalf("pass %d, length %d, run %d: %s, want %s", pass, n, i, got, want)
						}
						y.Close()
					})
				}
				if all, _ := recordings(x); all > branches+1 {
					t.Fatalf("pass %d, length %d: %d recordings are kept", pass, n, all)
				}
			}
			if pass == 0 {
				first = reserved()
			}
		}
	})
	if s := r.Stats(x); s.Recordings != 400 || s.Replays != 400 || s.WarmUps != 400 || s.Unknown != 0 {
		t.Errorf("%+v", s)
	}
	if now := reserved(); now > first {
		t.Errorf("%d bytes are reserved, %d after the first pass", now, first)
	}
	graphs := rec.Count("GraphInstantiate") - rec.Count("GraphExecDestroy")
	if graphs > branches+1 {
		t.Errorf("the device has %d graphs", graphs)
	}
	if strings.Count(out, "level=WARN") != 1 || !strings.Contains(out, "eviction_test.go:") || !strings.Contains(out, "Opt.Branches") {
		t.Errorf("not one warning with the line: %s", out)
	}
}

// doKeeping runs f in a region. It closes what f keeps after the run, so that the calls are needed.
func doKeeping(t *testing.T, r *compile.Region, x *tenon.Exec, f func(x *tenon.Exec, keep func(*tenon.Tensor))) {
	t.Helper()
	var kept []*tenon.Tensor
	must(t, r.Do(x, func(x *tenon.Exec) error {
		f(x, func(y *tenon.Tensor) { kept = append(kept, x.Keep(y)) })
		return nil
	}))
	for _, y := range kept {
		y.Close()
	}
}

// The branch that goes is the one that was used least recently: a length that comes all the time is recorded once.
func TestLeastRecentlyUsedGoes(t *testing.T) {
	x := open(t)
	r := compile.New(compile.Opt{Branches: 4, DynamicLimit: -1})
	run := func(n int) {
		doKeeping(t, r, x, func(x *tenon.Exec, keep func(*tenon.Tensor)) { keep(chain(x, n, 2)) })
	}
	for range 3 {
		run(1000)
	}
	before := r.Stats(x)
	for n := 1; n <= 40; n++ {
		run(n)
		run(1000)
	}
	if s := r.Stats(x); s.Replays-before.Replays != 40 || s.WarmUps-before.WarmUps != 40 {
		t.Errorf("%+v, before %+v", s, before)
	}
}

// A short run whose calls begin a longer one stays while it is used, when the longer one goes.
func TestShortRunsStay(t *testing.T) {
	x := open(t)
	r := compile.New(compile.Opt{Branches: 2, DynamicLimit: -1})
	a := x.Ones([]int{4}, tenon.Float32)
	short := func(long bool) {
		doKeeping(t, r, x, func(x *tenon.Exec, keep func(*tenon.Tensor)) {
			keep(x.Exp(a))
			must(t, compile.Break(x))
			if long {
				keep(x.Tanh(a))
			}
		})
	}
	for range 3 {
		short(false)
	}
	short(true)
	before := r.Stats(x)
	for i := range 32 {
		doKeeping(t, r, x, func(x *tenon.Exec, keep func(*tenon.Tensor)) {
			keep(x.Sin(a))
			for bit := range 4 {
				if i>>bit&1 == 0 {
					keep(x.Cos(a))
				} else {
					keep(x.Neg(a))
				}
			}
		})
		short(false)
	}
	if s := r.Stats(x); s.Forgotten == 0 || s.Replays-before.Replays < 32 {
		t.Errorf("%+v, before %+v", s, before)
	}
}

// A function that is forgotten while its recording is part of the current path, and its result in use, keeps both until the path ends.
func TestForgottenOnThePath(t *testing.T) {
	for _, noWarmup := range []bool{false, true} {
		t.Run(fmt.Sprint("NoWarmup=", noWarmup), func(t *testing.T) { forgetOnThePath(t, noWarmup) })
	}
}

func forgetOnThePath(t *testing.T, noWarmup bool) {
	x, rec := openRecorded(t)
	opt := compile.Opt{Branches: 2, DynamicLimit: -1, CheckPool: true, NoWarmup: noWarmup}
	f := compile.Func(func(x *tenon.Exec, n int, v float64) *tenon.Tensor { return chain(x, n, v) }, opt)
	g := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.MulS(a, 2) }, opt)
	warnings(func() {
		for step := range 40 {
			must(t, compile.MarkStep(x))
			x.Scope(func(x *tenon.Exec) {
				v := float64(step + 1)
				ns := []int{1, 2}
				if step%8 >= 5 {
					ns = append(ns, 3+step%2)
				}
				var ys []*tenon.Tensor
				for _, n := range ns {
					ys = append(ys, f.Call(x, n, v))
				}
				z := g.Call(x, ys[0])
				for i, n := range ns {
					if got, want := read(t, x, ys[i]), read(t, x, chain(x, n, v)); got != want {
						t.Fatalf("step %d, length %d: %s, want %s", step, n, got, want)
					}
				}
				if got, want := read(t, x, z), read(t, x, x.MulS(chain(x, 1, v), 2)); got != want {
					t.Fatalf("step %d: %s, want %s", step, got, want)
				}
			})
			all, _ := recordings(x)
			if graphs := rec.Count("GraphInstantiate") - rec.Count("GraphExecDestroy"); graphs != all {
				t.Fatalf("step %d: the device has %d graphs, and there are %d recordings", step, graphs, all)
			}
		}
	})
	if s := f.Stats(x); s.Forgotten < 10 || s.Replays < 20 {
		t.Errorf("%+v", s)
	}
}

// A working set within the limit is never forgotten, and nothing is warned of.
func TestNothingIsForgottenWithinBranches(t *testing.T) {
	x := open(t)
	r := compile.New(compile.Opt{Branches: 20})
	out := warnings(func() {
		for range 5 {
			for n := 1; n <= 20; n++ {
				doKeeping(t, r, x, func(x *tenon.Exec, keep func(*tenon.Tensor)) { keep(chain(x, n, 2)) })
			}
		}
	})
	if s := r.Stats(x); s.Recordings != 20 || s.Replays != 60 || out != "" {
		t.Errorf("%+v, %s", s, out)
	}
}

// lengthPair makes a tensor of length n and one of length m.
type lengthPair func(x *tenon.Exec, n, m int) (a, b *tenon.Tensor)

// Pairs of lengths make bounded numbers of recordings, within a region and with functions that follow each other.
func TestPairsOfLengthsAreBounded(t *testing.T) {
	const lengths, branches = 12, 12 // at one call; in pairs there are three times as many as are kept
	for _, c := range []struct {
		name string
		make func(opt compile.Opt) lengthPair
	}{
		{"Region", func(opt compile.Opt) lengthPair {
			r := compile.New(opt)
			return func(x *tenon.Exec, n, m int) (a, b *tenon.Tensor) {
				must(t, r.Do(x, func(x *tenon.Exec) error {
					a = x.Keep(chain(x, n, 2))
					must(t, compile.Break(x))
					b = x.Keep(chain(x, m, 3))
					return nil
				}))
				return a, b
			}
		}},
		{"Functions", func(opt compile.Opt) lengthPair {
			f := compile.Func(func(x *tenon.Exec, n int) *tenon.Tensor { return chain(x, n, 2) }, opt)
			g := compile.Func(func(x *tenon.Exec, n int) *tenon.Tensor { return chain(x, n, 3) }, opt)
			return func(x *tenon.Exec, n, m int) (a, b *tenon.Tensor) {
				must(t, compile.MarkStep(x))
				return f.Call(x, n), g.Call(x, m)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := open(t)
			f := c.make(compile.Opt{Branches: branches, DynamicLimit: -1, CheckPool: true})
			for range 4 {
				for n := 1; n <= lengths; n++ {
					for m := 1; m <= lengths; m++ {
						x.Scope(func(x *tenon.Exec) {
							a, b := f(x, n, m)
							got, want := read(t, x, a)+read(t, x, b), read(t, x, chain(x, n, 2))+read(t, x, chain(x, m, 3))
							if got != want {
								t.Fatalf("lengths %d and %d: %s, want %s", n, m, got, want)
							}
							a.Close()
							b.Close()
						})
						if all, ends := recordings(x); ends > 4*branches+lengths || all > 8*branches {
							t.Fatalf("%d recordings are kept, %d paths", all, ends)
						}
					}
				}
			}
		})
	}
}

// Of the orders of recordings the one that was used least recently goes: a pair that comes all the time is recorded once.
func TestLeastRecentlyUsedOrderGoes(t *testing.T) {
	x := open(t)
	const lengths = 6
	opt := compile.Opt{Branches: lengths, DynamicLimit: -1}
	f := compile.Func(func(x *tenon.Exec, n int) *tenon.Tensor { return chain(x, n, 2) }, opt)
	g := compile.Func(func(x *tenon.Exec, n int) *tenon.Tensor { return chain(x, n, 3) }, opt)
	pair := func(n, m int) (replayed bool) {
		before := g.Stats(x).Replays
		must(t, compile.MarkStep(x))
		a := f.Call(x, n)
		g.Call(x, m).Close()
		a.Close()
		return g.Stats(x).Replays > before
	}
	warnings(func() {
		for range 4 {
			pair(1, 1)
		}
		for n := range lengths {
			for m := range lengths {
				for range 3 {
					pair(n+1, m+1)
				}
				if !pair(1, 1) {
					t.Errorf("after lengths %d and %d the pair that comes all the time is not replayed", n+1, m+1)
				}
			}
		}
	})
	if s := g.Stats(x); s.Forgotten == 0 {
		t.Errorf("%+v", s)
	}
}

// Callables of many lengths with their backward passes, of which up to three are pending at once, give the bits of eager calls.
func TestCallablesBeyondBranches(t *testing.T) {
	x := open(t)
	w := tenon.From(x, []float32{0.5, -1.25, 2}, 3).SetRequiresGrad(true)
	eager := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sin(x.Mul(x.Mul(a, w), w)) }
	f := compile.Func(eager, compile.Opt{Branches: 5, DynamicLimit: -1, CheckPool: true})
	rng := rand.New(rand.NewPCG(1, 2))
	warnings(func() {
		for i := range 300 {
			x.Scope(func(x *tenon.Exec) {
				var inputs, outs []*tenon.Tensor
				for range 1 + i%3 {
					n := 1 + rng.IntN(3)*rng.IntN(10)
					inputs = append(inputs, x.Full([]int{n, 3}, rng.Float64(), tenon.Float32))
				}
				grad := func(call func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor) (out string) {
					outs = outs[:0]
					for _, a := range inputs {
						outs = append(outs, call(x, a))
					}
					for _, k := range rng.Perm(len(outs))[:1] { // the others' never comes
						must(t, x.Backward(x.Sum(outs[k], nil)))
						out += fmt.Sprint(k, read(t, x, outs[k]), read(t, x, w.Grad()))
						w.SetGrad(nil)
					}
					return out
				}
				seed := rng.Uint64()
				rng = rand.New(rand.NewPCG(seed, 3))
				got := grad(f.Call)
				rng = rand.New(rand.NewPCG(seed, 3))
				if want := grad(eager); got != want {
					t.Fatalf("step %d: %s, want %s", i, got, want)
				}
			})
		}
	})
	if s := f.Stats(x); s.Unknown != 0 || s.Replays < 50 {
		t.Errorf("%+v", s)
	}
}

// Random walks with functions that forget all the time.
func TestWalksBeyondBranches(t *testing.T) {
	warnings(func() {
		for seed := range uint64(30) {
			walkFunctions(t, seed, compile.Opt{Branches: 1 + int(seed%3), CheckPool: true, NoWarmup: seed%4 == 0})
		}
	})
}

// Sessions of several goroutines share a region of many lengths, while snapshots are taken.
func TestSessionsBeyondBranches(t *testing.T) {
	x := open(t)
	r := compile.New(compile.Opt{Branches: 3, DynamicLimit: -1})
	w := tenon.From(x, []float32{0.5}, 1)
	warnings(func() {
		var wg sync.WaitGroup
		for g := range 4 {
			y, err := x.Fork()
			must(t, err)
			wg.Go(func() {
				defer y.Close()
				for i := range 60 {
					n := 1 + (i/3*7+g)%11
					var got *tenon.Tensor
					if err := r.Do(y, func(x *tenon.Exec) error { got = x.Keep(x.Mul(chain(x, n, 2), w)); return nil }); err != nil {
						t.Error(err)
						return
					}
					a, err := tenon.Read[float32](y, got)
					b, err2 := tenon.Read[float32](y, y.Mul(chain(y, n, 2), w))
					if err != nil || err2 != nil || fmt.Sprint(a) != fmt.Sprint(b) {
						t.Errorf("goroutine %d, run %d: %v, want %v; %v, %v", g, i, a, b, err, err2)
						return
					}
					if i%10 == 0 {
						if _, err := y.Device().Snapshot(); err != nil {
							t.Error(err)
						}
					}
					if all, _ := recordings(y); all > 4 {
						t.Errorf("%d recordings are kept", all)
					}
				}
			})
		}
		wg.Wait()
	})
}
