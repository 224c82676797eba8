package compile_test

import (
	"errors"
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/torchfile"
)

// training is a perceptron with dropout that is trained in half precision, with a scaler, clipped gradients, AdamW and a schedule that sets
// the tensor of the rate.
type training struct {
	net      nn.Sequential
	in, want *tenon.Tensor
	rate     *tenon.Tensor
	opt      *optim.AdamW
	sched    *optim.Schedule
	scaler   *optim.GradScaler
	loss     *tenon.Tensor // of the last step
}

func newTraining(t *testing.T, x *tenon.Exec) *training {
	t.Helper()
	must(t, x.Generator().SetSeed(5))
	g := nn.NewHostGenerator(3)
	l := func(in, out int) nn.Module { return nn.NewLinear(x, in, out, nn.LinearOpt{Generator: g}) }
	w := &training{net: nn.Sequential{l(6, 16), nn.NewDropout(0.25), l(16, 16), nn.NewDropout(0.25), l(16, 3)}}
	w.in = x.MulS(x.Reshape(x.Arange(48, tenon.Float32), 8, 6), 1./16)
	w.want = tenon.From(x, []int64{0, 1, 2, 0, 1, 2, 0, 1}, 8)
	w.rate = x.Full(nil, 0.01, tenon.Float64)
	var err error
	w.opt, err = optim.NewAdamW(nn.Params(w.net), optim.AdamOpt{LR: 0.01, AMSGrad: true})
	must(t, err)
	must(t, w.opt.SetLRTensor(0, w.rate))
	w.sched, err = optim.NewSchedule(w.opt, optim.CosineAnnealingLR(50, 0))
	must(t, err)
	w.scaler, err = optim.NewGradScaler(optim.GradScalerOpt{InitScale: 1 << 20, GrowthInterval: 3}) // it overflows at first
	must(t, err)
	return w
}

// step is an iteration that reads nothing.
func (w *training) step(x *tenon.Exec) error {
	h := x.Autocast(tenon.Float16)
	in := x.SubS(x.MulS(x.AddS(w.in, 0.5), 2), 1) // one kernel
	loss := x.CrossEntropy(w.net.Forward(h, in), w.want)
	if err := x.Backward(w.scaler.Scale(x, loss)); err != nil {
		return err
	}
	if err := w.scaler.Unscale(x, w.opt); err != nil {
		return err
	}
	nn.ClipGradNorm(x, nn.Params(w.net), 0.5)
	if err := errors.Join(w.scaler.Step(x, w.opt), w.scaler.Update(x), w.sched.Step()); err != nil {
		return err
	}
	w.opt.ZeroGrad()
	w.loss.Close()
	w.loss = x.Keep(x.Detach(loss))
	return nil
}

// look returns everything that persists from step to step.
func (w *training) look(t *testing.T, x *tenon.Exec) string {
	t.Helper()
	out := ""
	show := func(name string, a *tenon.Tensor) {
		b, err := x.Bytes(a)
		must(t, err)
		out += fmt.Sprintf("%s: version %d, %s\n", name, a.Version(), digest(b))
	}
	for name, p := range nn.Params(w.net) {
		show(name, p.Tensor())
		if p.Grad() != nil {
			show(name+"'s gradient", p.Grad())
		}
	}
	x.Scope(func(x *tenon.Exec) {
		d, err := optim.StateDict(x, w.opt)
		must(t, err)
		tensors(d, func(name string, a *tenon.Tensor) { show("state "+name, a) })
	})
	show("rate", w.rate)
	st, err := w.scaler.State(x)
	must(t, err)
	return out + fmt.Sprintf("%+v\ngenerator %x\n", st, x.Generator().State())
}

func (w *training) close() {
	w.loss.Close()
	w.scaler.Close()
	w.opt.Close()
	nn.Close(w.net)
}

// A whole training step is deferred and runs at the end of Do, with the same bits, versions and memory as without a region.
func TestTrainingStep(t *testing.T) {
	const steps = 100
	x := open(t)
	live := core.LiveStorages()
	run := func(r *compile.Region) (out string, used, peak int64) {
		x.Scope(func(x *tenon.Exec) {
			w := newTraining(t, x)
			defer w.close()
			x.Device().ResetPeakStats()
			for i := range steps {
				if r == nil {
					x.Scope(func(x *tenon.Exec) { must(t, w.step(x)) })
				} else {
					before := r.Stats(x)
					must(t, r.Do(x, func(x *tenon.Exec) error {
						err := w.step(x)
						if n := deferred(x); i >= 4 && n < 40 {
							t.Errorf("step %d: %d calls are deferred at the end", i, n)
						}
						return err
					}))
					if s := r.Stats(x); i >= 4 && (s.Eager != before.Eager || s.New != before.New || s.Forced != before.Forced) {
						t.Errorf("step %d: not all was deferred: %+v, and %+v before", i, s, before)
					}
				}
				loss, err := x.Item(w.loss)
				must(t, err)
				out += fmt.Sprintf("loss %v\n", loss)
			}
			peak = x.Device().MaxMemoryAllocated()
			out += w.look(t, x)
			if r != nil {
				must(t, compile.Reset(x))
			}
			used = x.Device().MemoryAllocated()
		})
		return out, used, peak
	}
	want, used, peak := run(nil)
	r := compile.New()
	got, mine, most := run(r)
	if got != want {
		t.Errorf("in a region the steps give\n%s\nwant\n%s", got, want)
	}
	if mine != used {
		t.Errorf("%d bytes are allocated at the end, %d without a region", mine, used)
	}
	if most > peak {
		t.Errorf("the peak is %d bytes, %d without a region", most, peak)
	}
	if n := core.LiveStorages(); n > live {
		t.Errorf("%d storages are left", n-live)
	}
	if s := r.Stats(x); s.Recordings != 1 || s.Replays < steps-5 {
		t.Errorf("%+v", s)
	}
}

// A replayed step is one launch of a graph: it reads nothing and waits for nothing, however often the scale and the rate change.
func TestTrainingStepReadsNothing(t *testing.T) {
	const steps, first = 100, 4
	x, rec := openRecorded(t)
	x.Scope(func(x *tenon.Exec) {
		w := newTraining(t, x)
		defer w.close()
		r := compile.New()
		scales := map[float64]bool{}
		for i := range steps {
			rec.Reset()
			must(t, r.Do(x, w.step))
			if i >= first {
				for _, call := range []string{"CopyDtoH", "Synchronize", "StreamSynchronize", "EventSynchronize"} {
					if n := rec.Count(call); n != 0 {
						t.Errorf("step %d: %s is called %d times", i, call, n)
					}
				}
				if n := rec.Count("GraphLaunch"); n != 1 {
					t.Errorf("step %d: %d graphs are launched", i, n)
				}
			}
			st, err := w.scaler.State(x)
			must(t, err)
			scales[st.Scale] = true
		}
		if s := r.Stats(x); s.Recordings != 1 || s.Forced != 0 || s.Replays < steps-first {
			t.Errorf("%+v", s)
		}
		if len(scales) < 3 {
			t.Errorf("the scale had %d values", len(scales))
		}
	})
}

// tensors yields the tensors of a state dictionary with their paths.
func tensors(v any, yield func(name string, a *tenon.Tensor)) {
	switch v := v.(type) {
	case *tenon.Tensor:
		yield("", v)
	case *torchfile.Dict:
		for i, k := range v.Keys {
			tensors(v.Values[i], func(name string, a *tenon.Tensor) { yield(fmt.Sprint(k, ".", name), a) })
		}
	}
}
