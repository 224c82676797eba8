package compile_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

var (
	refusals     = flag.Int("refusals", 50, "how many programs TestRandomRefusals runs")
	refusalsFrom = flag.Uint64("refusalsfrom", 0, "the first of them")
)

// refusingProgram is a random program of steps that make the same calls, some of which are refused in every step or in some, run at once,
// or end the step. The program goes on after a refused call.
type refusingProgram struct {
	x *tenon.Exec
	// region is nil if the program runs eagerly.
	region        *compile.Region
	seed          uint64
	params, state []*tenon.Tensor
	live, kept    []*tenon.Tensor // what the step has made, and what of that outlives the scope that made it
	said          []string
}

var errStop = errors.New("the step stops")

func newRefusingProgram(x *tenon.Exec, seed uint64) *refusingProgram {
	p := &refusingProgram{x: x, seed: seed}
	rng := rand.New(rand.NewPCG(seed, 61))
	draw := func() *tenon.Tensor {
		v := make([]float32, 16)
		for i := range v {
			v[i] = rng.Float32() - 0.5
		}
		return tenon.From(x, v, 4, 4)
	}
	for range 2 {
		p.params, p.state = append(p.params, draw().SetRequiresGrad(true)), append(p.state, draw())
	}
	return p
}

// told notes an error without its lines.
func (p *refusingProgram) told(err error) {
	if err != nil {
		text, _, _ := strings.Cut(err.Error(), " (at ")
		p.said = append(p.said, fmt.Sprintf("%v: %s", fault.KindOf(err), text))
	}
}

// apart runs f at once if the program has a region.
func (p *refusingProgram) apart(x *tenon.Exec, f func(x *tenon.Exec) error) error {
	if p.region == nil {
		return f(x)
	}
	return compile.Disable(x, f)
}

// statement is one of the program's statements in step n.
func (p *refusingProgram) statement(x *tenon.Exec, rng *rand.Rand, kind, n int) (err error) {
	pick := func() *tenon.Tensor {
		if len(p.live) == 0 || rng.IntN(3) == 0 {
			return slices.Concat(p.params, p.state)[rng.IntN(4)]
		}
		return p.live[rng.IntN(len(p.live))]
	}
	keep := func(t *tenon.Tensor) { p.live = append(p.live, t) }
	a, b, s, w := pick(), pick(), p.state[rng.IntN(2)], p.params[rng.IntN(2)]
	every, odd := 2+rng.IntN(2), rng.IntN(2)
	sometimes := n%every == odd
	stops := false
	err = tenon.Try(func() {
		switch kind {
		case 0, 1:
			keep(x.Sin(a))
		case 2, 3:
			keep(x.Tanh(x.Mul(a, b)))
		case 4:
			x.NoGrad().AddInto(s, s, x.Detach(a))
		case 5: // a change of a leaf, which is refused while it requires grad
			w.SetRequiresGrad(!sometimes)
			defer w.SetRequiresGrad(true)
			x.MulSInto(w, w, 0.9)
		case 6: // a destination of another shape or type
			dst := x.Zeros([]int{4}, tenon.Float32)
			if sometimes {
				dst = x.Zeros([]int{4, 4}, tenon.Int32)
			}
			x.NoGrad().AddInto(dst, x.Detach(a), x.Detach(b))
		case 7: // a destination whose elements share memory
			x.NoGrad().FillInto(x.Expand(x.Zeros([]int{1, 4}, tenon.Float32), 4, 4), 2)
		case 8:
			x.MatMul(a, x.Zeros([]int{3, 2}, tenon.Float32))
		case 9: // memory that nothing has written, made at once or not
			var t *tenon.Tensor
			empty := func(x *tenon.Exec) error {
				t = x.Keep(x.Empty([]int{4, 4}, tenon.Float32))
				p.kept = append(p.kept, t)
				return nil
			}
			if sometimes {
				p.told(p.apart(x, empty))
			} else {
				p.told(empty(x))
			}
			x.NoGrad().CopyInto(t, x.Detach(a))
			keep(t)
		case 10:
			keep(tenon.From(x, []float32{1, 2, 3, float32(n)}, 4, 1))
		case 11:
			_, err := x.Item(x.Sum(x.Detach(a), nil))
			p.told(err)
		case 12: // a call on a closed tensor
			t := x.Cos(a)
			t.Close()
			keep(x.Exp(t))
		case 13:
			p.told(p.apart(x, func(x *tenon.Exec) error {
				p.kept = append(p.kept, x.Keep(x.MulS(a, 0.5)))
				keep(p.kept[len(p.kept)-1])
				return tenon.Try(func() { x.View(a, 3, 3) })
			}))
		case 14:
			if p.region != nil {
				p.told(compile.Break(x))
			}
		case 15:
			stops = sometimes
		case 16:
			p.told(x.Backward(x.Sum(x.Mul(w, x.Detach(a)), nil)))
			w.SetGrad(nil)
		}
	})
	if stops {
		return errStop
	}
	return err
}

// run runs the program and returns what it showed.
func (p *refusingProgram) run() []string {
	for n := range 8 {
		step := func(x *tenon.Exec) error {
			rng := rand.New(rand.NewPCG(p.seed, 62))
			p.live = p.live[:0]
			for range 4 + rng.IntN(6) {
				err := p.statement(x, rng, rng.IntN(17), n)
				if errors.Is(err, errStop) {
					return err
				}
				p.told(err)
			}
			var loss *tenon.Tensor
			for _, t := range append(slices.Clone(p.live), p.params...) {
				if m := x.Mean(x.Tanh(t), nil); loss == nil {
					loss = m
				} else {
					loss = x.Add(loss, m)
				}
			}
			p.told(x.Backward(loss))
			return nil
		}
		var err error
		if p.region != nil {
			err = p.region.Do(p.x, step)
		} else {
			err = p.x.Do(step)
		}
		p.told(err)
		for _, t := range p.kept {
			t.Close()
		}
		p.kept = p.kept[:0]
		for _, t := range slices.Concat(p.params, p.state) {
			p.show(t)
			if g := t.Grad(); g != nil {
				p.show(g)
				t.SetGrad(nil)
			}
		}
	}
	return p.said
}

func (p *refusingProgram) show(t *tenon.Tensor) {
	v, err := tenon.Read[float32](p.x.NoGrad(), t)
	p.said = append(p.said, fmt.Sprint(v, err))
}

// TestRandomRefusals compares programs whose calls are refused, run at once or end a step with eager execution: results, errors and the
// tensors that are left.
func TestRandomRefusals(t *testing.T) {
	opts := []compile.Opt{{}, {NoWarmup: true}, {CheckPool: true}, {NoGraphs: true}, {NoFusion: true}}
	for seed := *refusalsFrom; seed < *refusalsFrom+uint64(*refusals); seed++ {
		x, closed := openUntil(t, machine())
		want := newRefusingProgram(x, seed).run()
		p := newRefusingProgram(x, seed)
		p.region = compile.New(opts[seed%uint64(len(opts))])
		live := core.LiveStorages()
		got := p.run()
		for i := range want {
			if i >= len(got) || got[i] != want[i] {
				t.Fatalf("program %d differs at %d of %d: %s in the region, and eagerly %s", seed, i, len(want),
					append(got, "the end")[min(i, len(got))], want[i])
			}
		}
		must(t, compile.Reset(x))
		if n := leftOver(x, live); n > 0 {
			t.Fatalf("program %d leaves %d storages", seed, n)
		}
		closed()
	}
}
