package compile_test

import (
	"fmt"
	"iter"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// clipping is a model with gradients of two types under autocast: bfloat16 of matrices and their biases, float32 of the rest.
type clipping struct {
	net      nn.Sequential
	in, want *tenon.Tensor
	take     func(x *tenon.Exec) error // the optimizer's step
	close    func()
	seen     []*tenon.Tensor // norms and other results of the last step
}

func newClipping(t *testing.T, x *tenon.Exec, kind string) *clipping {
	t.Helper()
	g := nn.NewHostGenerator(3)
	l := func(in, out int) nn.Module { return nn.NewLinear(x, in, out, nn.LinearOpt{Generator: g}) }
	w := &clipping{net: nn.Sequential{l(6, 16), nn.NewLayerNorm(x, []int{16}), l(16, 16), nn.NewLayerNorm(x, []int{16}), l(16, 3)}}
	w.in = x.MulS(x.Reshape(x.Arange(48, tenon.Float32), 8, 6), 1./16)
	w.want = tenon.From(x, []int64{0, 1, 2, 0, 1, 2, 0, 1}, 8)
	switch kind {
	case "SGD":
		o, err := optim.NewSGD(nn.Params(w.net), optim.SGDOpt{LR: 0.1, Momentum: 0.9})
		must(t, err)
		w.take, w.close = o.Step, o.Close
	case "two groups":
		matrices, others := nn.SplitParams(nn.Params(w.net), func(_ string, p *nn.Param) bool { return p.Tensor().Dim() > 1 })
		o, err := optim.NewAdamW(matrices, optim.AdamOpt{LR: 0.01})
		must(t, err)
		must(t, o.Add(others, optim.AdamOpt{LR: 0.02, WeightDecay: 0}))
		w.take, w.close = o.Step, o.Close
	default:
		o, err := optim.NewAdamW(nn.Params(w.net), optim.AdamOpt{LR: 0.01})
		must(t, err)
		w.take, w.close = o.Step, o.Close
	}
	return w
}

func (w *clipping) params() iter.Seq2[string, *nn.Param] { return nn.Params(w.net) }

func (w *clipping) clip(x *tenon.Exec, params iter.Seq2[string, *nn.Param], most float64) {
	w.seen = append(w.seen, x.Keep(nn.ClipGradNorm(x, params, most)))
}

// clippingCase is what a step does with its gradients.
type clippingCase struct {
	name, opt string
	// before runs when the gradients are there, and after, unless it is nil, when the step has been taken. Then the gradients are removed,
	// unless keep is true.
	before, after func(x *tenon.Exec, w *clipping)
	keep          bool
	// kernels says that some only scale or convert gradients.
	kernels bool
	// fused is how many calls run in kernels of several calls, unless it is 0: a step that scales does so with the call that would scale.
	fused int
}

func (c *clippingCase) step(x *tenon.Exec, w *clipping) error {
	for _, n := range w.seen {
		n.Close()
	}
	w.seen = nil
	for _, p := range w.params() {
		p.SetGrad(nil)
	}
	loss := x.CrossEntropy(w.net.Forward(x.Autocast(tenon.BFloat16), w.in), w.want)
	if err := x.Backward(loss); err != nil {
		return err
	}
	c.before(x, w)
	if err := w.take(x); err != nil {
		return err
	}
	if c.after != nil {
		c.after(x, w)
	}
	for _, p := range w.params() {
		if !c.keep {
			p.SetGrad(nil)
		}
	}
	return nil
}

// Clipping, and the conversion of gradients to float32, are part of the optimizer's step if nobody else needs what they make, and otherwise
// not. The bits are the same in any case.
func TestClippingIsPartOfTheStep(t *testing.T) {
	clip := func(x *tenon.Exec, w *clipping) { w.clip(x, w.params(), 0.1) }
	for _, c := range []clippingCase{
		{name: "as usual", before: clip, fused: 5 * (17 + 2)},
		{name: "two groups", opt: "two groups", before: clip, fused: 5 * (17 + 3)},
		{name: "SGD", opt: "SGD", before: clip},
		{name: "small gradients", before: func(x *tenon.Exec, w *clipping) { w.clip(x, w.params(), 1e9) }},
		{name: "no clipping", before: func(*tenon.Exec, *clipping) {}, fused: 5 * 17},
		{name: "twice", before: func(x *tenon.Exec, w *clipping) {
			w.clip(x, w.params(), 0.1)
			w.clip(x, w.params(), 0.05)
		}, kernels: true},
		{name: "gradients are kept", before: clip, keep: true, kernels: true},
		{name: "a gradient is read later", before: clip, after: func(x *tenon.Exec, w *clipping) {
			for _, p := range w.params() {
				w.seen = append(w.seen, x.Keep(x.AMax(p.Grad(), nil)))
				return
			}
		}, kernels: true},
		{name: "a parameter is not clipped", before: func(x *tenon.Exec, w *clipping) {
			_, others := nn.SplitParams(w.params(), func(name string, _ *nn.Param) bool { return name == "0.weight" })
			w.clip(x, others, 0.1)
		}, kernels: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := c.run(t, nil)
			for _, opt := range []compile.Opt{{NoGraphs: true}, {}, {NoFusion: true}} {
				if got := c.run(t, &opt); got != want {
					t.Errorf("with %+v\n%s\nwant\n%s", opt, got, want)
				}
			}
		})
	}
}

// run takes five steps, in a region unless opt is nil, and returns what they left.
func (c *clippingCase) run(t *testing.T, opt *compile.Opt) (out string) {
	x := open(t)
	w := newClipping(t, x, c.opt)
	run := func() { x.Scope(func(x *tenon.Exec) { must(t, c.step(x, w)) }) }
	var r *compile.Region
	if opt != nil {
		r = compile.New(*opt)
		run = func() { must(t, r.Do(x, func(x *tenon.Exec) error { return c.step(x, w) })) }
	}
	for range 5 {
		run()
		for _, n := range w.seen {
			v, err := x.Item(n)
			must(t, err)
			out += fmt.Sprintln("seen", v)
		}
	}
	for name, p := range w.params() {
		b, err := x.Bytes(p.Tensor())
		must(t, err)
		out += fmt.Sprintf("%s %s\n", name, digest(b))
		if g := p.Grad(); g != nil {
			b, err := x.Bytes(g)
			must(t, err)
			out += fmt.Sprintf("gradient %s\n", digest(b))
		}
	}
	if opt != nil && opt.NoGraphs {
		if s := r.Stats(x); c.fused > 0 && s.Fused != c.fused {
			t.Errorf("%d calls are fused, want %d", s.Fused, c.fused)
		}
		if scales, converts := clippingKernels(t, x, run); (scales > 0) != c.kernels || (converts > 0) != c.kernels {
			t.Errorf("%d kernels scale gradients, and %d convert them", scales, converts)
		}
	}
	w.close()
	nn.Close(w.net)
	return out
}

// clippingKernels counts the kernels of a run that only scale gradients, and those that only convert them.
func clippingKernels(t *testing.T, x *tenon.Exec, run func()) (scales, converts int) {
	t.Helper()
	p, err := x.Device().Profile()
	must(t, err)
	run()
	got, err := p.Stop()
	must(t, err)
	for _, op := range got.Ops {
		for _, k := range op.Kernels {
			switch {
			case strings.HasPrefix(k.Name, "mt_scale"):
				scales++
			case strings.HasPrefix(k.Name, "mt_copy_f32_bf16"):
				converts++
			}
		}
	}
	return scales, converts
}
