package compile_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// program is a program drawn from a seed: a step that runs several times on a state, with views, changes in place, branches, draws, reads,
// gradients, handles that outlive the step and others that are closed in it.
type program struct {
	seed uint64
	// params require gradients; state is changed in place; kept outlives a step.
	params, state, kept []*tenon.Tensor
	read                []float32
	// sgd is an optimizer; only some programs have one.
	sgd optim.Optimizer
}

const side = 4

func newProgram(x *tenon.Exec, seed uint64) *program {
	p := &program{seed: seed}
	rng := rand.New(rand.NewPCG(seed, 1))
	make1 := func(rows int) *tenon.Tensor {
		v := make([]float32, rows*side)
		for i := range v {
			v[i] = float32(rng.IntN(33)-16) / 8
		}
		return tenon.From(x, v, rows, side)
	}
	for range 3 {
		t := make1(side)
		t.SetRequiresGrad(true)
		p.params = append(p.params, t)
		p.state = append(p.state, make1(side))
	}
	if seed%4 == 1 {
		o, err := optim.NewSGD(func(yield func(string, *nn.Param) bool) {
			for i, t := range p.params {
				if !yield(fmt.Sprint(i), nn.NewParam(t)) {
					return
				}
			}
		}, optim.SGDOpt{LR: 0.125, Momentum: 0.5})
		if err != nil {
			panic(err)
		}
		p.sgd = o
	}
	return p
}

// step runs step n of the program. Steps are the same except for a branch, a length and numbers.
func (p *program) step(x *tenon.Exec, n int) error {
	rng := rand.New(rand.NewPCG(p.seed, 2))
	rows := side
	if p.seed%3 == 0 {
		rows = 1 + n%side
	}
	narrow := func(t *tenon.Tensor) *tenon.Tensor { return x.Narrow(t, 0, 0, rows) }
	if p.seed%5 == 0 && n%2 == 1 {
		p.state[0], p.state[1] = p.state[1], p.state[0]
	}
	live := []*tenon.Tensor{narrow(p.params[0]), narrow(p.params[1]), narrow(p.state[0]), narrow(p.state[1])}
	pick := func() *tenon.Tensor { return live[rng.IntN(len(live))] }
	for i := range 6 + rng.IntN(20) {
		if p.seed%7 == 0 && i == 4 && n%3 == 2 {
			live = append(live, x.Sigmoid(pick())) // a branch
		}
		a, b := pick(), pick()
		var y *tenon.Tensor
		switch rng.IntN(20) {
		case 0:
			y = x.Add(a, b)
		case 1:
			y = x.Mul(a, b)
		case 2:
			y = x.Sub(a, x.MulS(b, float64(n+1)/8))
		case 3:
			y = x.Sin(a)
		case 4:
			y = x.ReLU(a)
		case 5:
			y = x.MatMul(a, p.params[2])
		case 6:
			y = byRows(x, rng, a)
		case 7:
			y = x.Add(a, x.Sum(b, []int{0}, tenon.SumOpt{KeepDim: true}))
		case 8:
			y = x.Contiguous(x.Transpose(x.Contiguous(x.Transpose(a, 0, 1)), 0, 1))
		case 9:
			s := narrow(p.state[2])
			x.AddInto(s, s, x.Detach(a))
			y = x.Tanh(s)
		case 10:
			y = x.Dropout(a, 0.25)
		case 11:
			y = x.Where(x.Gt(a, b), a, b)
		case 12:
			t := x.Exp(x.MulS(a, 0.125))
			y = x.Add(t, b)
			t.Close()
		case 13:
			if rng.IntN(3) == 0 {
				v, err := x.Item(x.Sum(a, nil))
				if err != nil {
					return err
				}
				p.read = append(p.read, float32(v))
			}
			y = besideEachOther(x, rng, a, b)
		case 14:
			t := x.Clone(x.Detach(a))
			x.MulInto(t, t, x.Detach(b))
			y = t
		case 15:
			y = x.View(x.Contiguous(a), side, rows)
			y = x.Contiguous(x.Transpose(y, 0, 1))
		case 16:
			y = x.MulS(a, 0.5)
			x.MulInto(y, y, b) // keeps a copy if b requires a gradient
		case 17:
			y = x.Mul(a, x.Rand([]int{rows, side}, tenon.Float32))
			x.RandN([]int{3}, tenon.Float32).Close()
		case 18, 19:
			y = writtenOut(x, rng, a, b)
		}
		live = append(live, x.Clamp(y, x.Full(nil, -4, tenon.Float32), x.Full(nil, 4, tenon.Float32)))
	}
	loss := x.Mean(x.Add(x.Mul(pick(), pick()), live[len(live)-1]), nil)
	if loss.RequiresGrad() {
		if err := x.Backward(loss); err != nil {
			return err
		}
		if p.sgd != nil {
			if err := p.sgd.Step(x); err != nil {
				return err
			}
		}
		for _, q := range p.params {
			if g := q.Grad(); g != nil {
				y := x.NoGrad()
				y.AddInto(q, q, y.MulS(g, -0.5/float64(n+1)))
				if p.seed%2 == 0 {
					q.SetGrad(nil)
				}
			}
		}
	}
	p.kept = append(p.kept, x.Keep(x.Clone(x.Detach(loss))), x.Keep(x.Detach(pick())))
	return nil
}

// result reads everything that the program left, and closes it.
func (p *program) result(x *tenon.Exec) (string, error) {
	out := fmt.Sprintf("%x", p.read)
	for _, t := range slices.Concat(p.params, p.state, p.kept) {
		b, err := x.Bytes(x.NoGrad().Contiguous(t))
		if err != nil {
			return "", err
		}
		out += fmt.Sprintf("\n%s", digest(b))
		if g := t.Grad(); g != nil {
			if b, err = x.Bytes(g); err != nil {
				return "", err
			}
			out += fmt.Sprintf(" grad %s", digest(b))
		}
	}
	if p.sgd != nil { // it took the parameters out of their scope
		p.sgd.Close()
		for _, t := range p.params {
			t.Close()
		}
	}
	return out, nil
}

// runProgram runs a program's steps, in a region or not.
func runProgram(x *tenon.Exec, seed uint64, r *compile.Region) (out string, err error) {
	if err := x.Generator().SetSeed(seed); err != nil {
		return "", err
	}
	x.Scope(func(x *tenon.Exec) {
		p := newProgram(x, seed)
		for n := range 6 {
			step := func(x *tenon.Exec) error { return p.step(x, n) }
			if r == nil {
				err = x.Do(step)
			} else {
				err = r.Do(x, step)
			}
			if err != nil {
				err = fmt.Errorf("step %d: %w", n, err)
				return
			}
		}
		out, err = p.result(x)
	})
	return out, err
}

// Random programs leave the same bits with and without a region, and leak no memory.
func TestRandomPrograms(t *testing.T) {
	x := openAlone(t)
	total := compile.Stats{}
	for seed := range uint64(programs) {
		live := core.LiveStorages()
		want, err := runProgram(x, seed, nil)
		if err != nil {
			t.Fatalf("program %d, eager: %v", seed, err)
		}
		r := compile.New()
		got, err := runProgram(x, seed, r)
		if err != nil {
			t.Fatalf("program %d: %v", seed, err)
		}
		if got != want {
			t.Fatalf("program %d gives other results in a region:\n%s\nwant\n%s", seed, got, want)
		}
		must(t, compile.Reset(x))
		if n := core.LiveStorages(); n > live {
			t.Fatalf("program %d leaves %d storages", seed, n-live)
		}
		s := r.Stats(x)
		total.Deferred += s.Deferred
		total.Eager += s.Eager
		total.New += s.New
		total.WarmUps += s.WarmUps
		total.Recordings += s.Recordings
		total.Replays += s.Replays
		total.Plain += s.Plain
		total.Kernels += s.Kernels
		total.Fused += s.Fused
		total.Dropped += s.Dropped
	}
	t.Logf("%+v", total)
	if total.Deferred < 4*total.Eager || total.Replays < programs || total.Recordings < programs {
		t.Error("too few calls were deferred")
	}
	if total.Fused < total.Deferred/10 {
		t.Error("too few calls were fused")
	}
}

// besideEachOther returns parts of a and b that are put side by side, and what is done with them before and after that.
func besideEachOther(x *tenon.Exec, rng *rand.Rand, a, b *tenon.Tensor) *tenon.Tensor {
	left, right := x.Narrow(a, 1, 0, side/2), x.Narrow(a, 1, side/2, side/2)
	switch rng.IntN(4) {
	case 0:
		return x.Cat([]*tenon.Tensor{x.Narrow(a, 1, 0, 2), x.Narrow(b, 1, 2, 2)}, 1)
	case 1:
		return x.Add(x.Mul(a, b), x.Mul(x.Cat([]*tenon.Tensor{x.Neg(right), left}, 1), b))
	case 2:
		s := x.Stack([]*tenon.Tensor{x.Mul(left, right), x.Sin(x.Narrow(b, 1, 0, side/2))}, 2)
		return x.Tanh(x.Flatten(s, 1, 2))
	}
	return x.Narrow(x.Mul(x.Cat([]*tenon.Tensor{x.Sin(a), b}, 0), x.Narrow(b, 0, 0, 1)), 0, 0, a.Size(0))
}

// writtenOut returns an RMS norm, a layer norm or a softmax of a and b made of single operations, with reductions and what reads their
// results, or their results alone.
func writtenOut(x *tenon.Exec, rng *rand.Rand, a, b *tenon.Tensor) *tenon.Tensor {
	switch rng.IntN(4) {
	case 0:
		d := x.Sub(a, x.Mean(b, []int{1}, tenon.SumOpt{KeepDim: true}))
		variance := x.Mean(x.Mul(d, d), []int{1}, tenon.SumOpt{KeepDim: true})
		if rng.IntN(3) == 0 {
			return x.Mul(a, variance)
		}
		return x.Mul(d, x.Rsqrt(x.AddS(variance, 1)))
	case 1:
		return x.Mul(a, x.Rsqrt(x.AddS(x.Mean(x.Mul(b, b), []int{1}, tenon.SumOpt{KeepDim: true}), 1)))
	}
	e := x.Exp(x.MulS(x.Sub(a, x.AMax(b, []int{1}, tenon.DimOpt{KeepDim: true})), 0.125))
	return x.Div(e, x.Unsqueeze(x.AddS(x.Sum(e, []int{1}), 0.5), 1))
}

// byRows returns the result of a row-wise operation on a.
func byRows(x *tenon.Exec, rng *rand.Rand, a *tenon.Tensor) *tenon.Tensor {
	switch rng.IntN(4) {
	case 0:
		return x.LogSoftmax(a, rng.IntN(2))
	case 1:
		return x.LayerNorm(a, nil, nil, []int{a.Size(1)})
	case 2:
		return x.RMSNorm(a, nil, []int{a.Size(1)}, tenon.NormOpt{Eps: 1e-5})
	}
	return x.Softmax(a, 1)
}
