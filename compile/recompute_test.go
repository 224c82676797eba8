package compile_test

import (
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
)

// recomputeCase is a function whose backward pass can compute values again. It gets a tensor of shape [8, 16] and parameters.
type recomputeCase struct {
	name string
	f    func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor
	// again is how many values a run does not save.
	again int
}

var recomputeCases = []recomputeCase{
	{"a GELU between products", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		return x.MatMul(x.GELU(x.MatMul(a, ps[0])), ps[0])
	}, 1},
	{"a norm before a product", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		return x.MatMul(x.LayerNorm(x.MatMul(a, ps[0]), ps[1], ps[2], []int{16}), ps[0])
	}, 1},
	{"a chain of which the end is saved", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		y := x.MatMul(a, ps[0])
		return x.MatMul(x.Sin(x.MulS(x.Cos(y), 2)), ps[0])
	}, 2},
	{"one value for two that were saved", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		y := x.AddS(x.MatMul(a, ps[0]), 1)
		return x.Mul(x.Sin(y), x.Cos(y))
	}, 2},
	{"casts of leaves", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		x = x.Autocast(tenon.BFloat16)
		return x.ToDType(x.MatMul(a, ps[0]), tenon.Float32)
	}, 2},
	{"not the cast of an argument that may be dropped", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		return x.ToDType(x.MatMul(x.ToDType(x.MulS(a, 2), tenon.BFloat16), x.ToDType(ps[0], tenon.BFloat16)), tenon.Float32)
	}, 2},
	{"nothing, if the operands are no smaller", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		return x.Sin(x.AddS(x.MatMul(a, ps[0]), 1))
	}, 0},
	{"nothing, if the result is saved", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		return x.Sigmoid(x.MatMul(a, ps[0]))
	}, 0},
	{"what a draw decided", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		return x.MatMul(x.Dropout(x.GELU(x.MatMul(a, ps[0])), 0.4), ps[0])
	}, 1},
	{"the same in bfloat16", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		y := x.ToDType(x.MatMul(a, ps[0]), tenon.BFloat16)
		return x.ToDType(x.MatMul(x.Dropout(x.GELU(y), 0.3), x.ToDType(ps[0], tenon.BFloat16)), tenon.Float32)
	}, 2},
	{"a softmax of halves", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		y := x.ToDType(x.MatMul(a, ps[0]), tenon.BFloat16)
		return x.MatMul(x.Softmax(x.ToDType(y, tenon.Float32), 1), ps[0])
	}, 1},
	{"a batch norm and what follows", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		y := x.BatchNorm(x.MatMul(a, ps[0]), ps[1], ps[2], nil, nil, tenon.BatchNormOpt{Training: true})
		return x.MatMul(x.ReLU(y), ps[0])
	}, 1},
	{"a value of a view", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		y := x.Exp(x.Transpose(x.MatMul(a, ps[0]), 0, 1))
		return x.MatMul(ps[0], x.Mul(y, y))
	}, 1},
}

// recomputeParameters returns parameters for the cases.
func recomputeParameters(x *tenon.Exec) []*tenon.Tensor {
	return []*tenon.Tensor{x.RandN([]int{16, 16}, tenon.Float32).SetRequiresGrad(true),
		x.Rand([]int{16}, tenon.Float32).SetRequiresGrad(true), x.Rand([]int{16}, tenon.Float32).SetRequiresGrad(true)}
}

// What a function does not save is computed again by its backward pass, with the same bits, on a warm-up, a recording and replays.
func TestRecompute(t *testing.T) {
	x := open(t)
	for _, c := range recomputeCases {
		t.Run(c.name, func(t *testing.T) {
			ps := recomputeParameters(x)
			run := func(f func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor) (all []string) {
				must(t, x.Generator().SetSeed(3))
				for range 4 {
					x.Scope(func(x *tenon.Exec) {
						a := x.RandN([]int{8, 16}, tenon.Float32).SetRequiresGrad(true)
						y := f(x, a, ps)
						must(t, x.Backward(x.Sum(x.Mul(y, y), nil)))
						all = append(all, read(t, x, y), read(t, x, a.Grad()))
						for _, p := range ps {
							if g := p.Grad(); g != nil {
								all = append(all, read(t, x, g))
							}
							p.SetGrad(nil)
						}
					})
				}
				return all
			}
			want := run(c.f)
			for _, o := range []compile.Opt{{}, {NoGraphs: true}, {NoFusion: true}, {NoRecompute: true}} {
				f := compile.Func(c.f, o)
				if got := run(f.Call); !slices.Equal(got, want) {
					t.Errorf("%+v: the results differ", o)
				}
				again := c.again
				if o.NoRecompute {
					again = 0
				}
				e := f.Explain(x)
				listed := slices.ContainsFunc(e.Segments, func(s compile.Segment) bool {
					return s.Kind == "forward" && len(s.Recomputed) == again &&
						!slices.ContainsFunc(s.Recomputed, func(r compile.Recomputed) bool {
							return r.Op == "" || r.Bytes == 0 || !strings.Contains(r.At, "recompute_test.go:")
						})
				})
				if !listed || strings.Count(e.String(), "not saved, but computed again") != again {
					t.Errorf("%+v: it should explain why %d values are not saved:\n%v", o, again, e)
				}
				again *= 4
				if s := f.Stats(x); s.Recomputed != again || !o.NoGraphs && s.Replays != 2 {
					t.Errorf("%+v: %v, want %d values that are computed again, and 2 replays", o, s, again)
				}
			}
		})
	}
}

// normed is a function whose backward pass computes a layer norm again, from its bias among others, which nothing saves.
func normed(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
	return x.MatMul(x.LayerNorm(x.MatMul(a, ps[0]), ps[1], ps[2], []int{16}), ps[0])
}

// A tensor that the backward pass would read only to compute values again may change before: it is read before it changes. If another
// session changes it, the error names the remedy.
func TestRecomputeFromChanged(t *testing.T) {
	x := open(t)
	two := x.Full([]int{16}, 2, tenon.Float32)
	other, err := x.Fork()
	must(t, err)
	defer func() { must(t, other.Close()) }()
	region := compile.New()
	changes := map[string]func(x *tenon.Exec, bias *tenon.Tensor){ //tenon:unordered each has a device of its own
		"in place":       func(x *tenon.Exec, bias *tenon.Tensor) { x.MulInto(bias, bias, two) },
		"by a composite": func(x *tenon.Exec, bias *tenon.Tensor) { x.LerpInto(bias, bias, two, two) },
		"in a view":      func(x *tenon.Exec, bias *tenon.Tensor) { x.FillInto(x.Narrow(bias, 0, 2, 3), 5) },
		"of many": func(x *tenon.Exec, bias *tenon.Tensor) {
			both := []*core.Tensor{(*core.Tensor)(bias), (*core.Tensor)(x.Ones([]int{3}, tenon.Float32))}
			core.ScaleAll((*core.Exec)(x), "ClipGradNorm", both, (*core.Tensor)(x.Full(nil, 2, tenon.Float32)))
		},
		"in a region": func(x *tenon.Exec, bias *tenon.Tensor) {
			must(t, region.Do(x, func(x *tenon.Exec) error { x.MulInto(bias, bias, two); return nil }))
		},
	}
	for name, change := range changes { //tenon:unordered see above
		t.Run(name, func(t *testing.T) {
			run := func(f func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor) (all []string) {
				must(t, x.Generator().SetSeed(3))
				for range 5 {
					x.Scope(func(x *tenon.Exec) {
						ps := recomputeParameters(x)
						a := x.RandN([]int{8, 16}, tenon.Float32)
						y := f(x, a, ps)
						change(x.NoGrad(), ps[2])
						must(t, x.Backward(x.Sum(y, nil)))
						for _, p := range ps {
							all = append(all, read(t, x, p.Grad()))
						}
					})
				}
				return all
			}
			want := run(normed)
			f := compile.Func(normed)
			if got := run(f.Call); !slices.Equal(got, want) {
				t.Error("the gradients differ")
			}
			if s := f.Stats(x); s.Recomputed != 5 {
				t.Errorf("%v: a norm should be computed again in each run", s)
			}
		})
	}
	f := compile.Func(normed)
	ps := recomputeParameters(x)
	y := f.Call(x, x.RandN([]int{8, 16}, tenon.Float32), ps)
	other.NoGrad().MulInto(ps[2], ps[2], two)
	err = x.Backward(x.Sum(y, nil))
	if err == nil || !strings.Contains(err.Error(), "compile.Opt.NoRecompute") {
		t.Errorf("after a change by another session: %v", err)
	}
	y.Close()
	y = f.Call(x, x.RandN([]int{8, 16}, tenon.Float32), ps)
	must(t, x.Backward(x.Sum(y, nil)))
}

// A backward pass may run twice, be recorded itself, run in another session or a region, or never.
func TestRecomputeAgain(t *testing.T) {
	x := open(t)
	f := compile.Func(normed)
	other, err := x.Fork()
	must(t, err)
	defer func() { must(t, other.Close()) }()
	region := compile.New()
	ways := map[string]func(x *tenon.Exec, loss *tenon.Tensor, ps []*tenon.Tensor){ //tenon:unordered each is compared with eager
		"twice": func(x *tenon.Exec, loss *tenon.Tensor, _ []*tenon.Tensor) {
			must(t, x.Backward(loss, tenon.BackwardOpt{RetainGraph: true}))
			must(t, x.Backward(loss))
		},
		"recorded": func(x *tenon.Exec, loss *tenon.Tensor, ps []*tenon.Tensor) {
			gs, err := x.Grad([]*tenon.Tensor{loss}, ps, tenon.GradOpt{CreateGraph: true})
			must(t, err)
			must(t, x.Backward(x.Sum(x.Mul(gs[0], gs[0]), nil)))
		},
		"in another session": func(_ *tenon.Exec, loss *tenon.Tensor, _ []*tenon.Tensor) { must(t, other.Backward(loss)) },
		"in a region": func(x *tenon.Exec, loss *tenon.Tensor, _ []*tenon.Tensor) {
			must(t, region.Do(x, func(x *tenon.Exec) error { return x.Backward(loss) }))
		},
		"never": func(*tenon.Exec, *tenon.Tensor, []*tenon.Tensor) {},
		"of a part": func(x *tenon.Exec, loss *tenon.Tensor, ps []*tenon.Tensor) {
			gs, err := x.Grad([]*tenon.Tensor{loss}, ps[1:])
			must(t, err)
			ps[1].SetGrad(gs[0])
			ps[2].SetGrad(gs[1])
		},
	}
	for name, back := range ways { //tenon:unordered see above
		t.Run(name, func(t *testing.T) {
			run := func(f func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor) (all []string) {
				must(t, x.Generator().SetSeed(3))
				for range 5 {
					x.Scope(func(x *tenon.Exec) {
						ps := recomputeParameters(x)
						y := f(x, x.RandN([]int{8, 16}, tenon.Float32), ps)
						back(x, x.Sum(x.Mul(y, y), nil), ps)
						for _, p := range ps {
							if g := p.Grad(); g != nil {
								all = append(all, read(t, x, g))
							}
						}
					})
				}
				return all
			}
			want := run(normed)
			live := core.LiveStorages()
			if got := run(f.Call); !slices.Equal(got, want) {
				t.Error("the gradients differ")
			}
			must(t, compile.Reset(x))
			if n := core.LiveStorages() - live; n > 0 {
				t.Errorf("%d storages are left", n)
			}
		})
	}
	if s := f.Stats(x); s.Recomputed != 5*len(ways) {
		t.Errorf("%v: a norm should be computed again in each run", s)
	}
}

// What is not saved takes no memory between the passes.
func TestRecomputeSavesMemory(t *testing.T) {
	x := open(t)
	const layers, rows, n = 6, 512, 64
	w := x.RandN([]int{n, n}, tenon.Float32).SetRequiresGrad(true)
	held := func(o compile.Opt) (bytes int64) {
		f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
			for range layers {
				a = x.GELU(x.MatMul(a, w))
			}
			return a
		}, o)
		for range 3 {
			x.Scope(func(x *tenon.Exec) {
				a := x.RandN([]int{rows, n}, tenon.Float32)
				before := x.Device().MemoryAllocated()
				y := f.Call(x, a)
				bytes = x.Device().MemoryAllocated() - before
				must(t, x.Backward(x.Sum(y, nil)))
				w.SetGrad(nil)
			})
		}
		must(t, compile.Reset(x))
		return bytes
	}
	all, less := held(compile.Opt{NoRecompute: true, NoGraphs: true}), held(compile.Opt{NoGraphs: true})
	if saved := all - less; saved != (layers-1)*rows*n*4 {
		t.Errorf("%d bytes are held instead of %d, which is %d less; want %d", less, all, saved, (layers-1)*rows*n*4)
	}
}

// If the backward pass fails while it computes values again, it can be repeated.
func TestRecomputeFails(t *testing.T) {
	x, d := openFailing(t)
	live, used := core.LiveStorages(), x.Device().MemoryAllocated()
	type function = func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor
	grads := func(f function, arm int) (all []string, fired bool, failed error) {
		x.Scope(func(x *tenon.Exec) {
			must(t, x.Generator().SetSeed(3))
			ps := recomputeParameters(x)
			loss := x.Sum(f(x, x.RandN([]int{8, 16}, tenon.Float32), ps), nil)
			d.Arm(arm, 0)
			failed = x.Backward(loss, tenon.BackwardOpt{RetainGraph: true})
			method, _ := d.Fired()
			fired = method != ""
			d.Arm(0, 0)
			if failed != nil {
				if err := x.Backward(loss); err != nil {
					t.Fatalf("after %v: %v", failed, err)
				}
			}
			for _, p := range ps {
				all = append(all, read(t, x, p.Grad()))
			}
		})
		return all, fired, failed
	}
	want, _, _ := grads(normed, 0)
	failures := 0
	for before := range 3 {
		for n := 1; ; n++ {
			f := compile.Func(normed)
			for range before {
				grads(f.Call, 0)
			}
			got, fired, failed := grads(f.Call, n)
			if !fired {
				break
			}
			if failed != nil {
				failures++
			}
			if !slices.Equal(got, want) {
				t.Fatalf("point %d of run %d, %v: the gradients differ", n, before, failed)
			}
		}
	}
	must(t, compile.Reset(x))
	if n, m := core.LiveStorages()-live, x.Device().MemoryAllocated()-used; n > 0 || m != 0 {
		t.Errorf("%d storages and %d bytes are left", n, m)
	}
	if failures < 10 {
		t.Errorf("only %d passes failed", failures)
	}
}
