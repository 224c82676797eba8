package nn_test

import (
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/rt"
	"tenon.dev/nn"
)

// graphOf graphs m and closes it, and m, when the test is over.
func graphOf(t *testing.T, x *tenon.Exec, m nn.Module, sample *tenon.Tensor, opt ...nn.GraphOpt) *nn.Graphed {
	t.Helper()
	g, err := nn.Graph(x, m, sample, opt...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// A graphed module gives the module's outputs and gradients; it sees an optimizer's steps in between, accumulates gradients, and runs the
// module itself in the other mode.
func TestGraphed(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		build := func() nn.Sequential {
			g := nn.NewHostGenerator(3)
			return nn.Sequential{nn.NewLinear(x, 4, 6, nn.LinearOpt{Generator: g}), nn.NewDropout(0.3),
				nn.NewLinear(x, 6, 2, nn.LinearOpt{Generator: g})}
		}
		plain, mine := build(), build()
		graphed := graphOf(t, x, mine, x.RandN([]int{3, 4}, tenon.Float32).SetRequiresGrad(true))
		defer func() {
			if err := errors.Join(graphed.Close(), graphed.Close()); err != nil {
				t.Error(err)
			}
			nn.Close(plain)
			nn.Close(mine)
		}()
		// step returns the results of one call and its backward pass, with the same random numbers for the same seed.
		step := func(m nn.Module, seed uint64, in *tenon.Tensor) []float32 {
			if err := x.Generator().SetSeed(seed); err != nil {
				t.Fatal(err)
			}
			var all []float32
			x.Scope(func(x *tenon.Exec) {
				in := x.Clone(in).SetRequiresGrad(true)
				out := m.Forward(x, in)
				if err := x.Backward(x.Sum(x.Mul(out, out), nil)); err != nil {
					t.Fatal(err)
				}
				all = append(floats(t, x, out), floats(t, x, in.Grad())...)
				for _, p := range nn.Params(m) {
					all = append(all, floats(t, x, p.Grad())...)
				}
			})
			return all
		}
		for i := range 4 {
			in := x.MulS(x.Ones([]int{3, 4}, tenon.Float32), float64(i+1))
			if got, want := step(graphed, uint64(i), in), step(plain, uint64(i), in); !slices.Equal(got, want) {
				t.Fatalf("step %d: the graphed module gives\n%v\nwant\n%v", i, got, want)
			}
			if i == 1 { // gradients accumulated twice; now the parameters move
				for _, m := range []nn.Module{plain, mine} {
					for _, p := range nn.Params(m) {
						x.NoGrad().AddScaledInto(p.Tensor(), p.Tensor(), p.Grad(), -0.1)
						p.SetGrad(nil)
					}
				}
			}
		}
		nn.Eval(graphed)
		nn.Eval(plain)
		in := x.Ones([]int{5, 4}, tenon.Float32) // another shape: the module runs
		if !slices.Equal(floats(t, x, graphed.Forward(x, in)), floats(t, x, plain.Forward(x, in))) {
			t.Error("in use the graphed module gives something else than the module")
		}
		nn.Train(graphed)
		var names []string
		for name := range nn.Params(graphed) {
			names = append(names, name)
		}
		if want := []string{"0.weight", "0.bias", "2.weight", "2.bias"}; !slices.Equal(names, want) {
			t.Errorf("the parameters are %v, want %v", names, want)
		}
		ng := x.NoGrad()
		if out := graphed.Forward(ng, x.Ones([]int{3, 4}, tenon.Float32)); out.RequiresGrad() {
			t.Error("a call without gradients is on the tape")
		}
	})
}

// A graphed callable refuses what it cannot do correctly.
func TestGraphedRefusals(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		lin := nn.NewLinear(x, 2, 2, nn.LinearOpt{Generator: nn.NewHostGenerator(1)})
		defer nn.Close(lin)
		sample := x.Ones([]int{3, 2}, tenon.Float32)
		g := graphOf(t, x, lin, sample)
		in := x.Ones([]int{3, 2}, tenon.Float32)
		wantError(t, func() { g.Forward(x, x.Ones([]int{4, 2}, tenon.Float32)) }, "Graphed.Forward: input 0 is float32[4 2]",
			"captured with float32[3 2]", "; pad or convert it to that, or call the module itself")
		wantError(t, func() { g.Forward(x, x.Ones([]int{3, 2}, tenon.Int64)) }, "input 0 is int64[3 2]")
		wantError(t, func() { g.Forward(x, x.Clone(in).SetRequiresGrad(true)) }, "requires a gradient, but the sample")
		wantError(t, func() { g.Forward(x, nil) }, "input 0 is nil")

		backward := func(out *tenon.Tensor, opt ...tenon.BackwardOpt) error {
			return x.Backward(x.Sum(out, nil), opt...)
		}
		wantErr := func(err error, part string) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), "graphed_test.go") {
				t.Errorf("the error is %v; want one that says %q and names the line of the call", err, part)
			}
		}
		first := g.Forward(x, in)
		second := g.Forward(x, in)
		wantErr(backward(first), "called again since")
		wantErr(backward(second, tenon.BackwardOpt{CreateGraph: true}), "no second derivatives")
		if err := backward(g.Forward(x, in), tenon.BackwardOpt{RetainGraph: true}); err != nil {
			t.Error(err)
		}

		last := g.Forward(x, in)
		lin.Weight.Set(nn.NewParam(x.Ones([]int{2, 2}, tenon.Float32)).Tensor())
		wantError(t, func() { g.Forward(x, in) }, "the parameter weight has another tensor", "capture again")
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(backward(last), "closed")
		wantErr(tenon.Try(func() { g.Forward(x, in) }), "the callable was closed")
		wantError(t, func() { new(nn.GraphedCallable).Call(x, in) }, "the callable is a zero value")

		one := func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor { return in[:1] }
		for _, c := range []struct {
			what string
			fs   []nn.Callable
			opt  nn.GraphOpt
			say  string
		}{
			{"no function", []nn.Callable{{}}, nn.GraphOpt{}, "callable 0 has no Forward"},
			{"a nil sample", []nn.Callable{{Forward: one, Samples: []*tenon.Tensor{nil}}}, nn.GraphOpt{}, "must contain only Tensors"},
			{"runs", []nn.Callable{{Forward: one, Samples: []*tenon.Tensor{in}}}, nn.GraphOpt{Warmup: 1001}, "1001 warm-up runs"},
			{"a read", []nn.Callable{{Forward: func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor {
				if x.Capturing() {
					if _, err := x.Item(x.Sum(in[0], nil)); err != nil {
						panic(err)
					}
				}
				return in
			}, Samples: []*tenon.Tensor{in}}}, nn.GraphOpt{}, "reading a tensor cannot be captured"},
			{"an unused input", []nn.Callable{{Forward: func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor {
				return []*tenon.Tensor{x.MulS(in[0], 2)}
			},
				Samples: []*tenon.Tensor{x.Clone(in).SetRequiresGrad(true), x.Clone(in).SetRequiresGrad(true)}}}, nn.GraphOpt{},
				"appears to not have been used"},
			{"no output", []nn.Callable{{Forward: func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor { return []*tenon.Tensor{nil} },
				Samples: []*tenon.Tensor{in}}}, nn.GraphOpt{}, "output 0 of a callable is nil"},
		} {
			gs, err := nn.GraphCallables(x, c.fs, c.opt)
			if err == nil || !strings.Contains(err.Error(), c.say) || gs != nil {
				t.Errorf("%s: the error is %v; want one that says %q", c.what, err, c.say)
			}
		}
		if _, err := nn.Graph(x, nil, in); err == nil || !strings.Contains(err.Error(), "the module is nil") {
			t.Errorf("a nil module: %v", err)
		}
	})
}

// TestGraphWarmup: Warmup says how often a callable runs before it is recorded: 3 times if it is 0, and not at all if it is negative.
func TestGraphWarmup(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for warmup, want := range map[int]int{0: 3, 2: 2, -1: 0} {
			runs := 0
			gs, err := nn.GraphCallables(x, []nn.Callable{{Forward: func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor {
				if !x.Capturing() {
					runs++
				}
				return []*tenon.Tensor{x.Mul(in[0], in[0])}
			}, Samples: []*tenon.Tensor{x.Ones([]int{3}, tenon.Float32).SetRequiresGrad(true)}}}, nn.GraphOpt{Warmup: warmup})
			if err != nil {
				t.Fatal(err)
			}
			if runs != want {
				t.Errorf("with Warmup %d it ran %d times before it was recorded, want %d", warmup, runs, want)
			}
			a := tenon.From(x, []float32{1, 2, 3}).SetRequiresGrad(true)
			y := gs[0].Call(x, a)[0]
			wantFloats(t, x, y, 1, 4, 9)
			if err := x.Backward(x.Sum(y, nil)); err != nil {
				t.Fatal(err)
			}
			wantFloats(t, x, a.Grad(), 2, 4, 6)
			if err := gs[0].Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestGraphCallables: several callables of one pool run in order, with other work between them, and functions need no parameters or
// gradients.
func TestGraphCallables(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		square := nn.Callable{
			Forward: func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor {
				return []*tenon.Tensor{x.Mul(in[0], in[0]), x.AddS(in[1], 1)}
			},
			Samples: []*tenon.Tensor{x.Ones([]int{3}, tenon.Float32).SetRequiresGrad(true), x.Ones([]int{2}, tenon.Int64)},
		}
		gs, err := nn.GraphCallables(x, []nn.Callable{square, square}, nn.GraphOpt{Pool: cuda.NewPoolID(), Warmup: 1})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			a := tenon.From(x, []float32{1, 2, float32(i)}).SetRequiresGrad(true)
			n := tenon.From(x, []int64{int64(i), 7})
			first := gs[0].Call(x, a, n)
			second := gs[1].Call(x, x.MulS(first[0], 2), first[1])
			if err := x.Backward(x.Sum(second[0], nil)); err != nil {
				t.Fatal(err)
			}
			v := float32(i)
			wantFloats(t, x, second[0], 4, 64, 4*v*v*v*v)
			wantFloats(t, x, a.Grad(), 16, 128, 16*v*v*v)
			if got, err := tenon.Read[int64](x, second[1]); err != nil || !slices.Equal(got, []int64{int64(i) + 2, 9}) {
				t.Errorf("integers %v, %v", got, err)
			}
		}
		// Data written directly to the static input is not copied.
		in := gs[0].Inputs()
		x.NoGrad().CopyInto(in[0], x.Full([]int{3}, 3, tenon.Float32))
		wantFloats(t, x, gs[0].Call(x, in...)[0], 9, 9, 9)
		for _, g := range gs {
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Every driver call of capturing, calling and differentiating fails once with each of its error codes: nothing leaks, and the next
// attempt succeeds.
func TestGraphedWalk(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	sim, err := hostsim.New(hostsim.Options{}).Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer sim.Close()
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	faults.Walk(t, sim, func(d driver.Device) (err error) {
		dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(own driver.Device) driver.Device {
			own.Close()
			return unclosed{d}
		}})
		if err != nil {
			return err
		}
		before := core.LiveStorages()
		x := (*tenon.Exec)(core.New(dev, host))
		failed := tenon.Try(func() {
			x.Scope(func(x *tenon.Exec) {
				w, in := x.Ones([]int{2, 2}, tenon.Float32), x.Ones([]int{1, 2}, tenon.Float32).SetRequiresGrad(true)
				var gs []*nn.GraphedCallable
				if gs,
					err = nn.GraphCallables(x,
					[]nn.Callable{{Samples: []*tenon.Tensor{in}, Forward: func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor {
						return []*tenon.Tensor{x.Dropout(x.MatMul(in[0], w), 0.5)}
					}}}, nn.GraphOpt{Warmup: 1}); err != nil {
					return
				}
				defer func() { err = errors.Join(err, gs[0].Close()) }()
				err = x.Backward(x.Sum(gs[0].Call(x, in)[0], nil))
				err = errors.Join(err, x.Synchronize())
			})
		})
		err = errors.Join(failed, err)
		if n := core.LiveStorages() - before; n != 0 {
			t.Errorf("%d storages are left: %v", n, err)
		}
		return errors.Join(err, dev.Close())
	}, faults.Recovered("MemAlloc", "EventCreate", "EventRecord"))
}

// unclosed is a device whose Close does nothing, so that it can be opened again.
type unclosed struct{ driver.Device }

func (unclosed) Close() error { return nil }
