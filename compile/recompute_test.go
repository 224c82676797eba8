package compile_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
	"tenon.dev/optim"
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
	{"nothing was dropped", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		return x.MatMul(x.Dropout(x.GELU(x.MatMul(a, ps[0])), 0), ps[0])
	}, 1},
	{"a dropout of a transposed tensor", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		y := x.MatMul(a, ps[0])
		return x.MatMul(ps[0], x.Dropout(x.GELU(x.Transpose(x.AddS(y, 1), 0, 1)), 0.4))
	}, 1},
	{"a part of a tensor", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		y := x.Split(x.MatMul(a, ps[0]), 8, 1)
		w := x.Narrow(ps[0], 0, 3, 8)
		return x.MatMul(x.Mul(x.GELU(y[1]), y[0]), w)
	}, 2},
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
	{"attention, of which it is saved what was dropped", func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
		y := x.ToDType(x.SiLU(x.MatMul(a, ps[0])), tenon.BFloat16)
		y = x.View(x.Cat([]*tenon.Tensor{y, y}, 0), 1, 1, 16, 16)
		y = x.ScaledDotProductAttention(y, y, y, tenon.AttentionOpt{Dropout: 0.3, Mask: x.GtS(ps[1], 0.2)})
		return x.ToDType(x.View(y, 16, 16), tenon.Float32)
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
					values := 0
					for _, r := range s.Recomputed {
						said := strings.Contains(e.String(), "computed again by the backward pass: "+r.String())
						if r.Op != "" && r.Bytes > 0 && strings.Contains(r.At, "recompute_test.go:") && said {
							values += r.Values
						}
					}
					return s.Kind == "forward" && values == again
				})
				if !listed {
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
		"by an optimizer": func(x *tenon.Exec, bias *tenon.Tensor) {
			sgd, err := optim.NewSGD(maps.All(map[string]*nn.Param{"bias": nn.NewParam(bias)}), optim.SGDOpt{LR: 0.5})
			must(t, err)
			bias.SetGrad(x.Keep(x.Ones([]int{16}, tenon.Float32)))
			must(t, sgd.Step(x))
			bias.SetGrad(nil)
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
	if failures < 8 {
		t.Errorf("only %d passes failed", failures)
	}
}

// What counts for the choice: whether an argument may be dropped, what is saved in any case, and how many calls would run again.
func TestRecomputeChoice(t *testing.T) {
	x := open(t)
	ps := recomputeParameters(x)
	low := func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor { return x.ToDType(t, tenon.BFloat16) }
	chain := func(n int) func(x *tenon.Exec, a *tenon.Tensor) []*tenon.Tensor {
		return func(x *tenon.Exec, a *tenon.Tensor) []*tenon.Tensor {
			h := x.Detach(ps[0])
			for range n {
				h = x.MulS(h, 1.01)
			}
			return []*tenon.Tensor{x.MatMul(x.MulS(a, 2), h)}
		}
	}
	for name, c := range map[string]struct { //tenon:unordered each has a function of its own
		f     func(x *tenon.Exec, a *tenon.Tensor) []*tenon.Tensor
		leaf  bool
		again int
	}{
		"an argument that may be dropped": {func(x *tenon.Exec, a *tenon.Tensor) []*tenon.Tensor {
			return []*tenon.Tensor{x.MatMul(low(x, a), low(x, ps[0]))}
		}, false, 1},
		"a leaf": {func(x *tenon.Exec, a *tenon.Tensor) []*tenon.Tensor {
			return []*tenon.Tensor{x.MatMul(low(x, a), low(x, ps[0]))}
		}, true, 2},
		"a result that is saved": {func(x *tenon.Exec, a *tenon.Tensor) []*tenon.Tensor {
			s := x.Sigmoid(x.MatMul(a, ps[0]))
			return []*tenon.Tensor{s, x.MatMul(x.MulS(s, 2), ps[0])}
		}, true, 1},
		"a short chain": {chain(90), true, 2}, // and the other operand
		"a long chain":  {chain(150), true, 1},
	} {
		f := compile.Func(c.f, compile.Opt{NoGraphs: true})
		x.Scope(func(x *tenon.Exec) {
			a := x.RandN([]int{8, 16}, tenon.Float32).SetRequiresGrad(c.leaf)
			loss := x.Zeros(nil, tenon.Float32)
			for _, y := range f.Call(x, a) {
				loss = x.Add(loss, x.Sum(x.ToDType(y, tenon.Float32), nil))
			}
			if loss.RequiresGrad() {
				must(t, x.Backward(loss))
			}
		})
		if got := f.Stats(x).Recomputed; got != c.again {
			t.Errorf("%s: %d values are computed again, want %d", name, got, c.again)
		}
	}
}

// What autocast converts in a function is saved if autocast was switched on outside: other uses of the parameter share the copy, and the
// gradients of all of them are added up in the half type.
func TestRecomputeUnderAutocast(t *testing.T) {
	x := open(t)
	ps := recomputeParameters(x)
	body := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.MatMul(x.GELU(x.MatMul(a, ps[0])), ps[0]) }
	run := func(call func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor) (all []string) {
		must(t, x.Generator().SetSeed(3))
		for range 4 {
			x.Scope(func(x *tenon.Exec) {
				low := x.Autocast(tenon.BFloat16)
				a := x.RandN([]int{8, 16}, tenon.Float32)
				must(t, x.Backward(x.Sum(x.ToDType(x.Add(low.MatMul(a, ps[0]), call(low, a)), tenon.Float32), nil)))
				all = append(all, read(t, x, ps[0].Grad()))
				ps[0].SetGrad(nil)
			})
		}
		return all
	}
	want := run(body)
	for again, o := range map[int]compile.Opt{1: {}, 0: {NoRecompute: true}} { //tenon:unordered each is compared
		f := compile.Func(body, o)
		if got := run(f.Call); !slices.Equal(got, want) {
			t.Errorf("%+v: the gradients differ", o)
		}
		if s := f.Stats(x); s.Recomputed != 4*again {
			t.Errorf("%+v: %v, want %d values that are computed again in each run", o, s, again)
		}
	}
}

// Backward passes that are kept, and changes between them, do not disturb each other, and what was computed again is freed after each pass.
func TestRecomputeRetained(t *testing.T) {
	x := open(t)
	two := x.Full([]int{16}, 2, tenon.Float32)
	var held []int64
	run := func(f func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor) (all []string) {
		must(t, x.Generator().SetSeed(3))
		held = held[:0]
		for range 4 {
			x.Scope(func(x *tenon.Exec) {
				ps := recomputeParameters(x)
				loss := x.Sum(f(x, x.RandN([]int{8, 16}, tenon.Float32), ps), nil)
				pass := func() {
					must(t, x.Backward(loss, tenon.BackwardOpt{RetainGraph: true}))
					for _, p := range ps {
						all = append(all, read(t, x, p.Grad()))
						p.SetGrad(nil)
					}
				}
				pass()
				held = append(held, x.Device().MemoryAllocated())
				pass()
				held = append(held, x.Device().MemoryAllocated())
				x.NoGrad().MulInto(ps[2], ps[2], two)
				pass()
				x.NoGrad().MulInto(ps[2], ps[2], two)
				pass()
				pass()
				loss = x.Sum(f(x, x.RandN([]int{8, 16}, tenon.Float32), ps), nil)
				remove := ps[1].RegisterHook(func(x *tenon.Exec, _ *tenon.Tensor) *tenon.Tensor { // after the norm was computed again
					x.NoGrad().MulInto(ps[2], ps[2], two)
					return nil
				})
				pass()
				remove()
				pass()
			})
		}
		return all
	}
	want := run(normed)
	f := compile.Func(normed, compile.Opt{NoGraphs: true})
	if got := run(f.Call); !slices.Equal(got, want) {
		t.Error("the gradients differ")
	}
	saving := slices.Clone(held)
	run(compile.Func(normed, compile.Opt{NoGraphs: true, NoRecompute: true}).Call)
	for i := range held {
		if saving[i] >= held[i] {
			t.Errorf("after pass %d %d bytes are held, and %d if all is saved", i, saving[i], held[i])
		}
	}
}

// A captured backward pass reads what the forward pass saw, and what it computes again is not taken for computed. A graph that changes a
// source between the passes is found out.
func TestRecomputeInCaptures(t *testing.T) {
	x := open(t)
	type function = func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor
	run := func(f function, way func(x *tenon.Exec, y *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor) (all []string) {
		must(t, x.Generator().SetSeed(3))
		for range 4 {
			x.Scope(func(x *tenon.Exec) {
				ps := recomputeParameters(x)
				all = append(all, read(t, x, way(x, f(x, x.RandN([]int{8, 16}, tenon.Float32), ps), ps)))
			})
		}
		return all
	}
	grad := func(x *tenon.Exec, y *tenon.Tensor, ps []*tenon.Tensor, retain bool) *tenon.Tensor {
		ones := []*tenon.Tensor{x.NoGrad().OnesLike(y)}
		gs, err := x.Grad([]*tenon.Tensor{y}, ps[:1], tenon.GradOpt{Gradients: ones, RetainGraph: retain})
		must(t, err)
		return gs[0]
	}
	for name, way := range map[string]func(x *tenon.Exec, y *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor{ //tenon:unordered apart
		"replayed after a change": func(x *tenon.Exec, y *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
			g := x.Zeros([]int{16, 16}, tenon.Float32)
			graph, err := x.Capture(func(x *tenon.Exec) { x.NoGrad().CopyInto(g, grad(x, y, ps, true)) })
			must(t, err)
			x.NoGrad().MulSInto(ps[2], ps[2], 3)
			must(t, x.Replay(graph))
			must(t, x.Synchronize())
			must(t, graph.Close())
			return g
		},
		"never replayed": func(x *tenon.Exec, y *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor {
			graph, err := x.Capture(func(x *tenon.Exec) { grad(x, y, ps, true) })
			must(t, err)
			g := grad(x, y, ps, false)
			must(t, graph.Close())
			return g
		},
	} {
		if got, want := run(compile.Func(normed, compile.Opt{NoGraphs: true}).Call, way), run(normed, way); !slices.Equal(got, want) {
			t.Errorf("%s: the gradients differ", name)
		}
	}
	other, err := x.Fork()
	must(t, err)
	defer func() { must(t, other.Close()) }()
	ps := recomputeParameters(x)
	y := compile.Func(normed).Call(x, x.RandN([]int{8, 16}, tenon.Float32), ps)
	must(t, x.Synchronize())
	ones := other.OnesLike(y)
	_, err = other.Capture(func(x *tenon.Exec) {
		_, _ = x.Grad([]*tenon.Tensor{y}, ps[:1], tenon.GradOpt{Gradients: []*tenon.Tensor{ones}, RetainGraph: true})
	})
	if err == nil || !strings.Contains(err.Error(), "compile.Opt.NoRecompute") {
		t.Errorf("in a capture of another session: %v", err)
	}
	graph, err := x.Capture(func(x *tenon.Exec) { x.NoGrad().MulSInto(ps[2], ps[2], 3) })
	must(t, err)
	loss := x.Sum(compile.Func(normed).Call(x, x.RandN([]int{8, 16}, tenon.Float32), ps), nil)
	must(t, x.Replay(graph))
	if err := x.Backward(loss); err == nil || !strings.Contains(err.Error(), "compile.Opt.NoRecompute") {
		t.Errorf("after a graph has changed a source: %v", err)
	}
	must(t, graph.Close())
}

// A change of a source that fails leaves the backward pass as it was: in a Together, or at a driver call, in a region or not.
func TestRecomputeAfterFailedChange(t *testing.T) {
	x, d := openFailing(t)
	region := compile.New()
	type function = func(x *tenon.Exec, a *tenon.Tensor, ps []*tenon.Tensor) *tenon.Tensor
	changes := map[string]func(x *tenon.Exec, ps []*tenon.Tensor) error{ //tenon:unordered each is compared with eager
		"Together": func(x *tenon.Exec, ps []*tenon.Tensor) error {
			return tenon.Try(func() {
				core.Together((*core.Exec)(x.NoGrad()), "Test", func(c *core.Exec) {
					x := (*tenon.Exec)(c)
					x.MulInto(ps[2], ps[2], ps[1])
					x.MulInto(ps[1], ps[1], ps[0]) // which has another shape
				})
			})
		},
		"eager": func(x *tenon.Exec, ps []*tenon.Tensor) error {
			return tenon.Try(func() { x.NoGrad().MulInto(ps[2], ps[2], x.NoGrad().Sin(ps[1])) })
		},
		"region": func(x *tenon.Exec, ps []*tenon.Tensor) error {
			return region.Do(x, func(x *tenon.Exec) error {
				x.NoGrad().MulInto(ps[2], ps[2], x.NoGrad().Sin(ps[1]))
				return nil
			})
		},
	}
	for name, change := range changes { //tenon:unordered see above
		grads := func(f function, arm int) (all []string, fired bool) {
			x.Scope(func(x *tenon.Exec) {
				must(t, x.Generator().SetSeed(3))
				ps := recomputeParameters(x)
				loss := x.Sum(f(x, x.RandN([]int{8, 16}, tenon.Float32), ps), nil)
				x.Scope(func(x *tenon.Exec) { // what was computed before is not in free memory any more
					for range 8 {
						x.Full([]int{8, 16}, 7, tenon.Float32)
					}
				})
				must(t, x.Synchronize())
				d.Arm(arm, 0)
				err := change(x, ps)
				method, _ := d.Fired()
				fired = method != ""
				d.Arm(0, 0)
				if err != nil && !fired && name != "Together" { // a region may succeed without a graph
					t.Fatalf("%s, point %d: %v", name, arm, err)
				}
				must(t, x.Backward(loss))
				for _, p := range ps {
					all = append(all, read(t, x, p.Grad()))
				}
			})
			return all, fired
		}
		want, _ := grads(normed, 0)
		points := 0
		for before := range 3 {
			for n := 1; ; n++ {
				f := compile.Func(normed)
				for range before {
					grads(f.Call, 0)
				}
				got, fired := grads(f.Call, n)
				if !slices.Equal(got, want) {
					t.Fatalf("%s, point %d of run %d: the gradients differ", name, n, before)
				}
				if !fired {
					break
				}
				points++
			}
		}
		if name != "Together" && points < 5 {
			t.Errorf("%s: only %d changes failed", name, points)
		}
	}
}

// A source that is the result of another session's graph is not read later: the next run overwrites it.
func TestRecomputeFromGraphs(t *testing.T) {
	x := open(t)
	other, err := x.Fork()
	must(t, err)
	defer func() { must(t, other.Close()) }()
	double := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.MulS(a, 2) })
	var r *tenon.Tensor
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.MatMul(a, x.Sin(r)) })
	w, next := x.RandN([]int{16, 16}, tenon.Float32), x.RandN([]int{16, 16}, tenon.Float32)
	must(t, x.Synchronize())
	var first string
	for n := range 6 {
		x.Scope(func(x *tenon.Exec) {
			a := x.Ones([]int{8, 16}, tenon.Float32).SetRequiresGrad(true)
			if n < 2 { // the function first sees a result of its own session
				r = x.MulS(w, 2)
			} else {
				other.Scope(func(o *tenon.Exec) { r = o.Keep(double.Call(o.NoGrad(), w)) })
				must(t, other.Synchronize())
			}
			y := f.Call(x, a)
			must(t, x.Synchronize())
			r.Close()
			other.Scope(func(o *tenon.Exec) { double.Call(o.NoGrad(), next) })
			must(t, other.Synchronize())
			must(t, x.Backward(x.Sum(y, nil)))
			if g := read(t, x, a.Grad()); n == 0 {
				first = g
			} else if g != first {
				t.Errorf("run %d: the gradient is %.60s, want %.60s", n, g, first)
			}
		})
	}
}

// Two sessions may run backward passes through one run of a function at once.
func TestRecomputeInTwoSessions(t *testing.T) {
	x := open(t)
	other, err := x.Fork()
	must(t, err)
	defer func() { must(t, other.Close()) }()
	p := x.RandN([]int{16, 16}, tenon.Float32).SetRequiresGrad(true)
	body := func(x *tenon.Exec, a, b *tenon.Tensor) []*tenon.Tensor {
		h := x.Sin(x.Detach(p))
		return []*tenon.Tensor{x.MatMul(a, h), x.MatMul(b, h)}
	}
	f := compile.Func(body, compile.Opt{NoGraphs: true})
	for range 60 {
		x.Scope(func(x *tenon.Exec) {
			a, b := x.Ones([]int{8, 16}, tenon.Float32).SetRequiresGrad(true), x.Ones([]int{8, 16}, tenon.Float32).SetRequiresGrad(true)
			ys := f.Call(x, a, b)
			l, m := x.Sum(ys[0], nil), x.Sum(ys[1], nil)
			must(t, x.Synchronize())
			done := make(chan error)
			go func() { done <- compile.Disable(other, func(o *tenon.Exec) error { return o.Backward(m) }) }()
			must(t, compile.Disable(x, func(x *tenon.Exec) error { return x.Backward(l) }))
			must(t, <-done)
			if g, h := read(t, x, a.Grad()), read(t, x, b.Grad()); g != h {
				t.Fatalf("the gradients are %.60s and %.60s", g, h)
			}
		})
	}
}

// The backward pass reads the part of a tensor that its own run read, though a run with another part found the plan.
func TestRecomputeFromParts(t *testing.T) {
	x := open(t)
	w := tenon.From(x, []float32{2}).SetRequiresGrad(true)
	for _, kind := range []tenon.DType{tenon.Float32, tenon.Float64, tenon.BFloat16} {
		data := x.ToDType(tenon.From(x, []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 8, 2), kind)
		at := 0
		for name, part := range map[string]func(x *tenon.Exec, at int) *tenon.Tensor{
			"Narrow":    func(x *tenon.Exec, at int) *tenon.Tensor { return x.Narrow(data, 0, at, 2) },
			"Select":    func(x *tenon.Exec, at int) *tenon.Tensor { return x.Select(data, 0, at) },
			"AsStrided": func(x *tenon.Exec, at int) *tenon.Tensor { return x.AsStrided(data, []int{3}, []int{1}, 2*at) },
		} {
			for _, inside := range []bool{false, true} {
				loss := func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
					if inside {
						in = part(x, at)
					}
					return x.Sum(x.Square(x.Mul(in, w)), nil)
				}
				f := compile.Func(loss)
				for _, at = range []int{0, 1, 2, 4, 5, 6, 4, 0, 1} {
					var grads [2]string
					for i, call := range []func(*tenon.Exec, *tenon.Tensor) *tenon.Tensor{loss, f.Call} {
						x.Scope(func(x *tenon.Exec) {
							must(t, x.Backward(call(x, part(x, at))))
							grads[i] = read(t, x, w.Grad())
							w.SetGrad(nil)
						})
					}
					if grads[0] != grads[1] {
						t.Errorf("%s of %v at %d, inside %v: the gradient is %s, want %s", name, kind, at, inside, grads[1], grads[0])
					}
				}
				if s := f.Stats(x); s.Recomputed == 0 {
					t.Errorf("%s of %v, inside %v: nothing was computed again", name, kind, inside)
				}
				must(t, compile.Reset(x))
			}
		}
	}
}
