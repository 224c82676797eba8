package core

import (
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/rt"
)

// ladder is a small network with one parameter for each of its segments, which have two layers with dropout between them.
type ladder []*Tensor

func newLadder(x *Exec, n int) ladder {
	var l ladder
	for i := range n {
		w := x.AddS(x.MulS(x.View(x.Arange(64, dtype.Float32, ArangeOpt{}), 8, 8), 0.01), 0.02*float64(i))
		l = append(l, w.SetRequiresGrad(true))
	}
	return l
}

func (l ladder) segment(i int) func(x *Exec, ins []*Tensor) []*Tensor {
	return func(x *Exec, ins []*Tensor) []*Tensor {
		h := x.Dropout(x.Tanh(x.Linear(ins[0], l[i], nil)), 0.25)
		return x.Apply(softened{}, x.Linear(h, l[i], nil))
	}
}

// softened is tanh with a derivative of its own.
type softened struct{}

func (softened) Forward(x *Exec, c *FunctionContext, ins ...*Tensor) []*Tensor {
	y := x.Tanh(ins[0])
	c.Save(ins[0], y)
	return []*Tensor{y}
}

func (softened) Backward(x *Exec, c *FunctionContext, grads ...*Tensor) ([]*Tensor, error) {
	y := c.Saved()[1]
	return []*Tensor{x.Mul(grads[0], x.RSubS(x.Mul(y, y), 1))}, nil
}

// forward runs the segments, each by the given function.
func (l ladder) forward(x *Exec, in *Tensor, run func(x *Exec, f func(x *Exec, ins []*Tensor) []*Tensor,
	ins ...*Tensor) []*Tensor) *Tensor {
	for i := range l {
		in = run(x, l.segment(i), in)[0]
	}
	return in
}

func plainly(x *Exec, f func(x *Exec, ins []*Tensor) []*Tensor, ins ...*Tensor) []*Tensor {
	return x.WithinMany(func(x *Exec) []*Tensor { return f(x, ins) })
}

// twice runs a segment twice, each time as a checkpointed segment, inside another one.
func twice(x *Exec, f func(x *Exec, ins []*Tensor) []*Tensor, ins ...*Tensor) []*Tensor {
	return x.Checkpoint(func(x *Exec, ins []*Tensor) []*Tensor {
		return x.Checkpoint(f, x.Checkpoint(f, ins...)...)
	}, ins...)
}

func doubled(x *Exec, f func(x *Exec, ins []*Tensor) []*Tensor, ins ...*Tensor) []*Tensor {
	return plainly(x, f, plainly(x, f, ins...)...)
}

// gradients returns all results of a step: the output, the gradients of parameters and input, and the generator's position.
func (l ladder) gradients(t *testing.T, x *Exec, back BackwardOpt, passes int, run func(x *Exec, f func(x *Exec, ins []*Tensor) []*Tensor,
	ins ...*Tensor) []*Tensor) (all []float32) {
	t.Helper()
	x.Scope(func(x *Exec) {
		g := x.Generator()
		g.SetSeed(11)
		in := x.Full([]int{4, 8}, 0.5, dtype.Float32).SetRequiresGrad(true)
		y := l.forward(x, in, run)
		loss := x.Sum(x.ToDType(x.Mul(y, y), dtype.Float32), nil, SumOpt{})
		for range passes {
			if err := x.Backward(loss, back); err != nil {
				t.Fatal(err)
			}
		}
		all = append(floats(t, x, x.ToDType(y, dtype.Float32)), float32(g.Offset()))
		for _, p := range append(slices.Clone(l), in) {
			all = append(all, floats(t, x, p.Grad())...)
			p.SetGrad(nil)
		}
	})
	return all
}

// TestCheckpoint checks that a checkpointed segment gives the same bits as a plain one: outputs, gradients and the generator's state.
func TestCheckpoint(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		l := newLadder(x, 3)
		for name, y := range map[string]*Exec{"float32": x, "bfloat16": x.Autocast(dtype.BFloat16),
			"float16, nothing kept": x.Autocast(dtype.Float16).AutocastCache(false),
			"own generator":         x.WithGenerator(rt.NewGenerator(3))} {
			want := l.gradients(t, y, BackwardOpt{}, 1, plainly)
			if got := l.gradients(t, y, BackwardOpt{}, 1, (*Exec).Checkpoint); !slices.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", name, got, want)
			}
			retain := BackwardOpt{RetainGraph: true}
			want = l.gradients(t, y, retain, 2, plainly)
			if got := l.gradients(t, y, retain, 2, (*Exec).Checkpoint); !slices.Equal(got, want) {
				t.Errorf("%s, two passes: got %v, want %v", name, got, want)
			}
			want = l.gradients(t, y, BackwardOpt{}, 1, doubled)
			if got := l.gradients(t, y, BackwardOpt{}, 1, twice); !slices.Equal(got, want) {
				t.Errorf("%s, segments in segments: got %v, want %v", name, got, want)
			}
		}
	})
}

// TestCheckpointHigher checks that second derivatives flow through a segment too, and that Grad finds tensors that the segment depends on
// besides its inputs.
func TestCheckpointHigher(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, b := leafOf(x, 0.5, 2), leafOf(x, 3, -1)
		cube := func(x *Exec, ins []*Tensor) []*Tensor {
			return []*Tensor{x.Mul(x.Mul(ins[0], ins[0]), x.Mul(ins[0], b))}
		}
		var all [2][]float32
		for i, run := range []func(x *Exec, f func(x *Exec, ins []*Tensor) []*Tensor, ins ...*Tensor) []*Tensor{
			plainly, (*Exec).Checkpoint} {
			y := x.Sum(run(x, cube, a)[0], nil, SumOpt{})
			g, err := x.Grad([]*Tensor{y}, []*Tensor{a, b}, GradOpt{CreateGraph: true})
			if err != nil {
				t.Fatal(err)
			}
			h, err := x.Grad([]*Tensor{x.Sum(x.Mul(g[0], g[1]), nil, SumOpt{})}, []*Tensor{a, b}, GradOpt{})
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range append(g, h...) {
				all[i] = append(all[i], floats(t, x, v)...)
			}
		}
		if !slices.Equal(all[0], all[1]) {
			t.Errorf("got %v, want %v", all[1], all[0])
		}
	})
}

// Backward passes within a segment, between its draws: its first run has not ended when they ask for what it has saved, and they come again
// when the segment runs again.
func TestCheckpointPassesWithin(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		w, in := newLadder(x, 1)[0], x.Full([]int{4, 8}, 0.5, dtype.Float32).SetRequiresGrad(true)
		segment := func(x *Exec, ins []*Tensor) []*Tensor {
			h := x.Dropout(x.Tanh(x.Linear(ins[0], w, nil)), 0.25)
			g, err := x.Grad([]*Tensor{x.Sum(x.Mul(h, h), nil, SumOpt{})}, ins, GradOpt{CreateGraph: true})
			if err != nil {
				t.Fatal(err)
			}
			inner := x.Detach(h).SetRequiresGrad(true)
			if err := x.Backward(x.Sum(x.Mul(x.Dropout(inner, 0.5), inner), nil, SumOpt{}), BackwardOpt{}); err != nil {
				t.Fatal(err)
			}
			return []*Tensor{x.Dropout(x.Mul(x.Mul(g[0], h), inner.Grad()), 0.25)}
		}
		step := func(x *Exec, g *rt.Generator, run func(x *Exec, f func(x *Exec, ins []*Tensor) []*Tensor,
			ins ...*Tensor) []*Tensor) []*Tensor {
			x = x.WithGenerator(g)
			y := run(x, segment, in)[0]
			gs, err := x.Grad([]*Tensor{x.Sum(y, nil, SumOpt{})}, []*Tensor{in, w}, GradOpt{})
			if err != nil {
				t.Fatal(err)
			}
			return append(gs, x.Detach(y))
		}
		read := func(ts []*Tensor) (all []float32) {
			for _, v := range ts {
				all = append(all, floats(t, x, v)...)
			}
			return all
		}
		mine, control := rt.NewGenerator(5), rt.NewGenerator(5)
		compare := func(what string, got []*Tensor, plain func(x *Exec, f func(x *Exec, ins []*Tensor) []*Tensor,
			ins ...*Tensor) []*Tensor) {
			t.Helper()
			if got, want := read(got), read(step(x, control, plain)); !slices.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", what, got, want)
			}
			if mine.Offset() != control.Offset() {
				t.Errorf("%s: the generators stand at %d and %d", what, mine.Offset(), control.Offset())
			}
		}
		for range 2 {
			compare("at once", step(x, mine, (*Exec).Checkpoint), plainly)
		}
		compare("segments in segments", step(x, mine, twice), doubled)
		var out []*Tensor
		g, err := x.Capture(func(x *Exec) { out = step(x, mine, (*Exec).Checkpoint) }, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
			compare("in a graph", out, plainly)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCheckpointMemory checks that a chain of checkpointed segments has a lower memory peak, and that each operation of a segment runs
// twice.
func TestCheckpointMemory(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		l, n := newLadder(x, 8), 256
		peak := func(run func(x *Exec, f func(x *Exec, ins []*Tensor) []*Tensor, ins ...*Tensor) []*Tensor) (bytes int64, products int) {
			mem := x.Device().Memory()
			mem.ResetPeakStats()
			before := mem.Stats().AllocatedBytes[0].Current
			setWatch(x, func(op string, _, end bool) {
				if op == "Tanh" && !end {
					products++
				}
			})
			defer setWatch(x, nil)
			x.Scope(func(x *Exec) {
				y := l.forward(x, x.Full([]int{n, 8}, 0.5, dtype.Float32), run)
				if err := x.Backward(x.Sum(y, nil, SumOpt{}), BackwardOpt{}); err != nil {
					t.Fatal(err)
				}
			})
			return mem.Stats().AllocatedBytes[0].Peak - before, products
		}
		plain, once := peak(plainly)
		less, again := peak((*Exec).Checkpoint)
		if once != 16 || again != 32 {
			t.Errorf("%d and %d operations, want 16 and 32", once, again)
		}
		// Of each segment the input is kept, and of the one under way what its layers save; without checkpoints, that of every segment.
		if !x.Device().Host && less*10 > plain*6 {
			t.Errorf("the peak is %d bytes, and %d without segments", less, plain)
		}
	})
}

// settledLive returns the number of storages when those that earlier tests dropped have been collected. Nothing more is collected until t
// ends.
func settledLive(t *testing.T) int64 {
	old := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(old) })
	for n := live.Load(); ; {
		runtime.GC()
		time.Sleep(time.Millisecond) // cleanups run on their own
		last := n
		if n = live.Load(); n == last {
			return n
		}
	}
}

// TestCheckpointRetained checks that a pass that keeps the graph keeps nothing that a segment made for it.
func TestCheckpointRetained(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		l := newLadder(x, 2)
		y := x.Sum(l.forward(x, x.Full([]int{4, 8}, 0.5, dtype.Float32), (*Exec).Checkpoint), nil, SumOpt{})
		before := settledLive(t)
		for range 2 {
			if err := x.Backward(y, BackwardOpt{RetainGraph: true}); err != nil {
				t.Fatal(err)
			}
			if n := live.Load() - before; n != int64(len(l)) {
				t.Errorf("%d storages more after a pass, want %d gradients", n, len(l))
			}
		}
	})
}

// TestCheckpointUnused checks that a segment of which nothing wants a gradient keeps nothing, and that one that is never differentiated
// releases its inputs with its outputs.
func TestCheckpointUnused(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		l := newLadder(x, 1)
		in := x.Full([]int{4, 8}, 0.5, dtype.Float32)
		before := settledLive(t)
		for name, run := range map[string]func(x *Exec) *Tensor{
			"no gradient": func(x *Exec) *Tensor { return x.NoGrad().Checkpoint(l.segment(0), in)[0] },
			"nothing saved": func(x *Exec) *Tensor {
				return x.Checkpoint(func(x *Exec, ins []*Tensor) []*Tensor { return []*Tensor{x.Neg(ins[0])} }, in)[0]
			},
			"not differentiated": func(x *Exec) *Tensor { return x.Checkpoint(l.segment(0), in)[0] },
		} {
			run(x).Close()
			if n := live.Load() - before; n != 0 {
				t.Errorf("%s: %d storages are left", name, n)
			}
		}
		fails := func(x *Exec, ins []*Tensor) []*Tensor {
			l.segment(0)(x, ins)
			return []*Tensor{x.Add(ins[0], x.Ones([]int{3}, dtype.Float32))}
		}
		if err := Try(func() { x.Checkpoint(fails, in) }); err == nil {
			t.Error("a failing function gave no error")
		}
		if n := live.Load() - before; n != 0 {
			t.Errorf("%d storages are left of a segment that failed", n)
		}
	})
}

// TestCheckpointErrors checks that a segment that cannot be run again in the same way is an error of the backward pass, which leaves
// nothing behind.
func TestCheckpointErrors(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		runs := 0
		first := func() bool { return runs == 1 }
		for name, c := range map[string]struct {
			f      func(x *Exec, in, w *Tensor) *Tensor
			change func(x *Exec, in, w *Tensor)
			want   []string
		}{
			"changed input": {f: func(x *Exec, in, w *Tensor) *Tensor { return x.Mul(in, w) },
				change: func(x *Exec, in, w *Tensor) {
					x.NoGrad().AddInto(in, in, in)
				}, want: []string{"modified by an inplace operation", "version"}},
			"changed parameter": {f: func(x *Exec, in, w *Tensor) *Tensor { return x.Mul(in, w) },
				change: func(x *Exec, in, w *Tensor) {
					x.NoGrad().AddInto(w, w, w)
				}, want: []string{"modified by an inplace operation", "version"}},
			"closed": {f: func(x *Exec, in, w *Tensor) *Tensor { return x.Mul(in, w) },
				change: func(x *Exec, in, w *Tensor) { w.Close() }, want: []string{"closed"}},
			"fewer": {f: func(x *Exec, in, w *Tensor) *Tensor {
				if first() {
					return x.Mul(x.Exp(in), w)
				}
				return x.Mul(in, w)
			}, want: []string{"did not do the same", "2 tensors", "3 before"}},
			"more": {f: func(x *Exec, in, w *Tensor) *Tensor {
				if first() {
					return x.Mul(in, w)
				}
				return x.Mul(x.Exp(in), w)
			}, want: []string{"did not do the same", "3 tensors", "2 before"}},
			"other shapes": {f: func(x *Exec, in, w *Tensor) *Tensor {
				if first() {
					return x.Mul(in, w)
				}
				return x.Mul(x.Slice(in, 0, 0, 1, 1), x.Slice(w, 0, 0, 1, 1))
			}, want: []string{"did not do the same", "float32[1]", "before"}},
		} {
			x.Scope(func(x *Exec) {
				runs = 0
				in, w := x.AddS(leafOf(x, 0.5, 2), 0), leafOf(x, 3, -1)
				y := x.Checkpoint(func(x *Exec, ins []*Tensor) []*Tensor {
					runs++
					return []*Tensor{c.f(x, ins[0], w)}
				}, in)[0]
				loss := x.Sum(y, nil, SumOpt{})
				if c.change != nil {
					c.change(x, in, w)
				}
				err := x.Backward(loss, BackwardOpt{})
				if err == nil {
					t.Fatalf("%s: no error", name)
				}
				for _, part := range c.want {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%s: %v does not say %q", name, err, part)
					}
				}
				if x.s.depth != 0 {
					t.Errorf("%s: the session is left at depth %d", name, x.s.depth)
				}
			})
		}
	})
}

// TestCheckpointInGraphs checks that a segment captured with its backward pass draws the same numbers twice in each replay, others in the
// next, and those of an eager step.
func TestCheckpointInGraphs(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		l := newLadder(x, 2)
		in := x.Full([]int{4, 8}, 0.5, dtype.Float32)
		step := func(x *Exec, g *rt.Generator, run func(x *Exec, f func(x *Exec, ins []*Tensor) []*Tensor,
			ins ...*Tensor) []*Tensor) []*Tensor {
			x = x.WithGenerator(g)
			y := x.Sum(l.forward(x, in, run), nil, SumOpt{})
			gs, err := x.Grad([]*Tensor{y}, l, GradOpt{})
			if err != nil {
				t.Fatal(err)
			}
			return append(gs, y)
		}
		read := func(ts []*Tensor) (all []float32) {
			for _, v := range ts {
				all = append(all, floats(t, x, v)...)
			}
			return all
		}
		mine, control := rt.NewGenerator(5), rt.NewGenerator(5)
		var out []*Tensor
		g, err := x.Capture(func(x *Exec) { out = step(x, mine, (*Exec).Checkpoint) }, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		var last []float32
		for range 3 {
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
			got, want := read(out), read(step(x, control, plainly))
			if !slices.Equal(got, want) || slices.Equal(got, last) {
				t.Errorf("a replay gives %v, an eager step %v, the replay before %v", got, want, last)
			}
			last = got
			if mine.Offset() != control.Offset() {
				t.Errorf("the generators stand at %d and %d", mine.Offset(), control.Offset())
			}
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		// A segment that drew numbers outside of the graph cannot be run again inside it.
		y := x.Sum(l.forward(x, in, (*Exec).Checkpoint), nil, SumOpt{})
		_, err = x.Capture(func(x *Exec) {
			if _, err := x.Grad([]*Tensor{y}, l, GradOpt{}); err != nil {
				panic(err)
			}
		}, CaptureOpt{})
		wantError(t, err, fault.Capture, "capture both or neither")
	})
}
