package compile_test

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// A schedule that changes the numbers of an optimizer changes values, which a recorded step accepts without a new recording.
func TestScheduledRateIsAValue(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(m any) (optim.Optimizer, error)
	}{
		{"SGD", func(m any) (optim.Optimizer, error) {
			return optim.NewSGD(nn.Params(m), optim.SGDOpt{LR: 0.1, Momentum: 0.9, Nesterov: true})
		}},
		{"AdamW", func(m any) (optim.Optimizer, error) {
			return optim.NewAdamW(nn.Params(m), optim.AdamOpt{LR: 0.1})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := open(t)
			run := func(r *compile.Region) (out string) {
				x.Scope(func(x *tenon.Exec) {
					must(t, x.Generator().SetSeed(5))
					l := nn.NewLinear(x, 6, 3)
					defer nn.Close(l)
					in := x.RandN([]int{4, 6}, tenon.Float32)
					o, err := c.make(l)
					must(t, err)
					defer o.Close()
					s, err := optim.NewSchedule(o, optim.OneCycleLR([]float64{0.2}, 30))
					must(t, err)
					for range 24 {
						step := func(x *tenon.Exec) error {
							o.ZeroGrad()
							if err := x.Backward(x.Sum(x.Square(l.Forward(x, in)), nil)); err != nil {
								return err
							}
							return o.Step(x)
						}
						if r == nil {
							must(t, x.Do(step))
						} else {
							must(t, r.Do(x, step))
						}
						must(t, s.Step())
						v, err := x.Bytes(l.Weight.Tensor())
						must(t, err)
						out += fmt.Sprintf("%v %s\n", o.LR(0), digest(v))
					}
				})
				return out
			}
			want := run(nil)
			r := compile.New()
			if got := run(r); got != want {
				t.Errorf("in a region the steps give\n%s\nwant\n%s", got, want)
			}
			if s := r.Stats(x); s.Recordings != 1 || s.Replays < 24-5 {
				t.Errorf("%+v", s)
			}
			must(t, compile.Reset(x))
		})
	}
}

// rowRepeated adds its operand to itself n times, each time with a kernel: so its number decides how much work it has, and does not say so.
var rowRepeated = core.Define(core.Op{Name: "TestRepeated", Package: "compile", Takes: "t; n",
	Infer: func(f *core.Frame) { f.NewOut(0, f.In(0).DType(), f.In(0).Shape(), nil) },
	Run: func(f *core.Frame) error {
		out, in := core.ElementsOf(f.Out(0)), core.ElementsOf(f.In(0))
		from := in
		for range int(f.Number(0)) {
			err := kernels.Pointwise(f, kernels.Add, out.DType, nil, []kernels.Operand{out}, []kernels.Operand{from, in})
			if err != nil {
				return err
			}
			from = out
		}
		return nil
	}})

// A number with which a call has more or less work than in the recording is not put into that graph: the calls are recorded again.
func TestNumberThatChangesTheWork(t *testing.T) {
	x := openSim(t)
	r := compile.New()
	in := tenon.From(x, []float32{1, 2})
	for i, n := range []float64{2, 2, 2, 3, 1, 2, 3, 1} {
		must(t, r.Do(x, func(x *tenon.Exec) error {
			f := core.Begin((*core.Exec)(x), rowRepeated, (*core.Tensor)(in))
			f.SetNumber(0, n)
			y := (*tenon.Tensor)(f.Do())
			defer y.Close()
			if got := testdevice.Read[float32](t, x, y); got[0] != float32(n)+1 || got[1] != 2*float32(n)+2 {
				t.Errorf("run %d: %v for %v times", i, got, n)
			}
			return nil
		}))
	}
	if s := r.Stats(x); s.Recordings != 3 || s.Replays != 4 {
		t.Errorf("%+v", s)
	}
	has(t, r.Explain(x).String(), "a number could not be changed in the graph")
	must(t, compile.Reset(x))
}
