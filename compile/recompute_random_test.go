package compile_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
)

var callables = flag.Int("callables", 300, "how many programs TestRandomCallables runs")

// callable is a program drawn from a seed: a function that is called several times, with a backward pass after something that may change
// what the backward pass reads.
type callable struct {
	seed          uint64
	f             func(x *tenon.Exec, a, b *tenon.Tensor) []*tenon.Tensor
	params, state []*tenon.Tensor
	// Of data, of which batches are parts, and of table, rows of which the function reads, each step uses another part.
	data, table *tenon.Tensor
	n           int
	out         string
}

func newCallable(x *tenon.Exec, seed uint64) *callable {
	c := &callable{seed: seed}
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 3 {
		c.params = append(c.params, c.make(x, rng, side, side).SetRequiresGrad(true))
		c.state = append(c.state, c.make(x, rng, side))
	}
	c.params = append(c.params, c.make(x, rng, side).SetRequiresGrad(true))
	c.data, c.table = c.make(x, rng, 24, side), c.make(x, rng, 5, side)
	c.f = c.body
	return c
}

func (c *callable) make(x *tenon.Exec, rng *rand.Rand, shape ...int) *tenon.Tensor {
	v := make([]float32, 1)
	for _, n := range shape {
		v = append(make([]float32, 0, n*len(v)), make([]float32, n*len(v))...)
	}
	for i := range v {
		v[i] = float32(rng.IntN(33)-16) / 8
	}
	return tenon.From(x, v, shape...)
}

// body is the function.
func (c *callable) body(x *tenon.Exec, a, b *tenon.Tensor) []*tenon.Tensor {
	rng := rand.New(rand.NewPCG(c.seed, 2))
	live := []*tenon.Tensor{a, b, x.MatMul(a, c.params[0])}
	pick := func() *tenon.Tensor { return live[rng.IntN(len(live))] }
	half := func(t *tenon.Tensor) *tenon.Tensor { return x.ToDType(t, tenon.BFloat16) }
	for range 4 + rng.IntN(24) {
		a, b := pick(), pick()
		var y *tenon.Tensor
		switch rng.IntN(26) {
		case 0:
			y = x.Add(a, b)
		case 1, 2:
			y = x.Mul(a, b)
		case 3:
			y = x.GELU(a)
		case 4:
			y = x.Sin(a)
		case 5:
			y = x.Sigmoid(a)
		case 6, 7:
			y = x.MatMul(a, c.params[rng.IntN(3)])
		case 8:
			y = byRows(x, rng, a)
		case 9:
			y = x.LayerNorm(a, c.params[3], c.state[0], []int{side})
		case 10:
			y = x.BatchNorm(a, c.params[3], c.state[1], nil, nil, tenon.BatchNormOpt{Training: true})
		case 11:
			y = x.Dropout(a, 0.25)
		case 12:
			y = x.ToDType(x.MatMul(half(a), half(c.params[1])), tenon.Float32)
		case 13:
			y = x.ToDType(x.Mul(half(a), half(b)), tenon.Float32)
		case 14:
			y = x.Add(a, x.Sum(b, []int{0}, tenon.SumOpt{KeepDim: true}))
		case 15:
			y = x.Exp(x.MulS(x.Mul(a, c.state[2]), 0.125))
		case 16:
			y = x.MulS(a, 0.5)
			x.MulInto(y, y, b)
		case 17:
			y = x.Contiguous(x.Transpose(x.Cos(x.Contiguous(x.Transpose(a, 0, 1))), 0, 1))
		case 18:
			y = besideEachOther(x, rng, a, x.Sin(b))
		case 19:
			y = x.AddS(a, float64(1+rng.IntN(3)))
		case 20:
			y = x.Where(x.Gt(a, b), x.Sin(a), x.Cos(b))
		case 21:
			y = x.Tanh(x.Mul(x.Mul(a, c.state[0]), x.AddS(c.params[3], 1)))
		case 22:
			y = x.Sin(x.Mul(a, x.Select(c.table, 0, c.n)))
		case 23: // computed again for the backward pass
			y = x.Checkpoint(func(x *tenon.Exec, in []*tenon.Tensor) []*tenon.Tensor {
				return []*tenon.Tensor{x.Mul(x.ReLU(in[0]), x.Sin(in[1]))}
			}, a, b)[0]
		case 24: // as are these, each with the same bits
			y = x.Mul(x.Mul(x.ReLU(a), b), x.Mul(x.ReLU(a), c.state[2]))
		case 25:
			y = x.Mul(x.PReLU(a, x.Narrow(c.params[3], 0, 0, 1)), x.ReLU(x.SubS(a, 0.5)))
		}
		live = append(live, x.Clamp(y, x.Full(nil, -4, tenon.Float32), x.Full(nil, 4, tenon.Float32)))
	}
	out := []*tenon.Tensor{live[len(live)-1]}
	for range rng.IntN(3) {
		out = append(out, pick())
	}
	return out
}

// step calls the function, changes something, and runs the backward pass. What that refuses, it must always refuse.
func (c *callable) step(x *tenon.Exec, n int) (err error) {
	rng := rand.New(rand.NewPCG(c.seed, 3))
	rows := side
	if c.seed%5 == 0 {
		rows += n % 2
	}
	args := rand.New(rand.NewPCG(c.seed, uint64(10+n)))
	a, b := c.make(x, args, rows, side), c.make(x, args, rows, side)
	c.n = n
	if c.seed%4 >= 2 {
		a = x.Narrow(c.data, 0, n, rows)
		if c.seed%8 >= 6 {
			b = x.Narrow(c.data, 0, 10+2*((n+2)%4), rows)
		}
	}
	if c.seed%3 == 0 {
		a.SetRequiresGrad(true)
	}
	y := c.f(x, a, b)
	loss := x.Mean(x.Mul(y[0], y[0]), nil)
	for _, o := range y[1:] {
		loss = x.Add(loss, x.Sum(o, nil))
	}
	show := func(t *tenon.Tensor) {
		if err == nil && t != nil {
			var v []byte
			if v, err = x.Bytes(x.NoGrad().Contiguous(t)); err == nil {
				c.out += fmt.Sprintf("%s\n", digest(v))
			}
		}
	}
	for _, o := range y {
		show(o)
	}
	free, g := x.NoGrad(), x.NoGrad()
	if rng.IntN(2) == 0 {
		switch rng.IntN(6) {
		case 0:
			free.MulS(c.state[0], 0.5).Close()
			free.AddInto(c.state[0], c.state[0], c.state[1])
		case 1:
			free.AddInto(c.params[3], c.params[3], c.state[0]) // some functions save it
		case 2:
			free.AddInto(b, b, a)
		case 3:
			o := free.Detach(y[len(y)-1])
			free.AddInto(o, o, b)
		case 4:
			b.Close()
		case 5:
			if rng.IntN(2) == 0 {
				y[0].Close()
			}
			free.AddInto(c.state[2], c.state[2], c.state[1])
		}
	}
	if !loss.RequiresGrad() {
		return err
	}
	if c.seed%7 == 3 { // the loss is how large the gradients are
		gs, failed := x.Grad([]*tenon.Tensor{loss}, c.params, tenon.GradOpt{CreateGraph: true, AllowUnused: true})
		if c.out += fmt.Sprintln(failed != nil); failed != nil {
			return err
		}
		loss = x.Zeros(nil, tenon.Float32)
		for _, g := range gs {
			if g != nil {
				show(g)
				loss = x.Add(loss, x.Mean(x.Square(g), nil))
			}
		}
		if !loss.RequiresGrad() {
			return err
		}
	}
	failed := x.Backward(loss, tenon.BackwardOpt{RetainGraph: c.seed%4 == 0})
	if failed == nil && c.seed%4 == 0 {
		failed = x.Backward(loss)
	}
	c.out += fmt.Sprintln(failed != nil)
	show(a.Grad())
	for _, p := range c.params {
		show(p.Grad())
		if grad := p.Grad(); grad != nil {
			g.AddInto(p, p, g.MulS(grad, -0.125))
			p.SetGrad(nil)
		}
	}
	return err
}

// runCallable runs a program, with wrap around its function.
func runCallable(x *tenon.Exec, seed uint64, wrap func(c *callable)) (out string, err error) {
	if err := x.Generator().SetSeed(seed); err != nil {
		return "", err
	}
	x.Scope(func(x *tenon.Exec) {
		c := newCallable(x, seed)
		wrap(c)
		for n := range 5 {
			if err = x.Do(func(x *tenon.Exec) error { return c.step(x, n) }); err != nil {
				err = fmt.Errorf("step %d: %w", n, err)
				return
			}
		}
		out = c.out
	})
	return out, err
}

// Random functions give the same bits as callables, whatever the backward pass computes again, and leak no memory.
func TestRandomCallables(t *testing.T) {
	x := openAlone(t)
	again, replays := 0, 0
	for seed := range uint64(*callables) {
		live := core.LiveStorages()
		want, err := runCallable(x, seed, func(*callable) {})
		if err != nil {
			t.Fatalf("program %d, eager: %v", seed, err)
		}
		for _, o := range []compile.Opt{{}, {NoGraphs: seed%2 == 0, NoFusion: seed%2 == 1}} {
			var f *compile.Callable[func(x *tenon.Exec, a, b *tenon.Tensor) []*tenon.Tensor]
			got, err := runCallable(x, seed, func(c *callable) {
				f = compile.Func(c.body, o)
				c.f = f.Call
			})
			if err != nil {
				t.Fatalf("program %d, %+v: %v", seed, o, err)
			}
			if got != want {
				t.Fatalf("program %d gives other results as a callable with %+v:\n%s\nwant\n%s", seed, o, got, want)
			}
			s := f.Stats(x)
			again, replays = again+s.Recomputed, replays+s.Replays
			must(t, compile.Reset(x))
		}
		if n := core.LiveStorages(); n > live {
			t.Fatalf("program %d leaves %d storages", seed, n-live)
		}
	}
	t.Logf("%d values were computed again, and %d runs were replays", again, replays)
	if again < 10**callables || replays < *callables {
		t.Error("too little was computed again, or replayed")
	}
}
