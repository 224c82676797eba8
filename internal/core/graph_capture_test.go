package core

import (
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/rt"
)

func TestCapture(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, b, c := From(x, []float32{1, 2}), From(x, []float32{3, 4}), From(x, []float32{10, 20})
		var y *Tensor
		g, err := x.Capture(func(x *Exec) { y = x.Add(x.Mul(a, b), c) }, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		if g.Nodes() != 2 {
			t.Errorf("%d nodes", g.Nodes())
		}
		for i := range 3 {
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
			k := float32(i)
			want(t, x, y, 3+10+k, 8+20+k)
			x.CopyInto(c, x.AddS(c, 1))
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		wantError(t, x.Replay(g), fault.Closed, "graph")
	})
}

// TestCaptureBackward captures a training step as a graph: every replay computes the gradients again.
func TestCaptureBackward(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		w := leafOf(x, 1, 2)
		in := From(x, []float32{3, 4})
		g, err := x.Capture(func(x *Exec) {
			if err := x.Backward(x.Sum(x.Mul(x.Mul(w, w), in), nil, SumOpt{}), BackwardOpt{}); err != nil {
				t.Error(err)
			}
		}, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
			k := float32(i + 1)
			want(t, x, w.Grad(), 2*k*3, 2*2*k*4)
			x.NoGrad().AddInto(w, w, From(x, []float32{1, 2}))
		}
		w.SetGrad(nil)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCaptureRefusals(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{1, 2})
		_, err := x.Capture(func(x *Exec) {
			if _, err := x.Item(x.Sum(a, nil, SumOpt{})); err == nil {
				t.Error("a capture let a read pass")
			} else {
				wantError(t, err, fault.Capture, "Item: ", "cannot be captured", "capture_test.go")
				panic(err)
			}
		}, CaptureOpt{})
		wantError(t, err, fault.Capture, "reading a tensor")
		_, err = x.Capture(func(x *Exec) {
			_ = Try(func() { x.composite("Composed", func(x *Exec) *Tensor { x.Nonzero(a); return nil }) })
		}, CaptureOpt{})
		wantError(t, err, fault.Capture, "Composed: reading a tensor", "capture_test.go")
		g, err := x.Capture(func(x *Exec) { _, _ = x.Item(x.Sum(a, nil, SumOpt{})) }, CaptureOpt{})
		if g != nil {
			t.Error("a capture whose function passes over an error gave a graph")
		}
		wantError(t, err, fault.Capture, "reading a tensor", "capture_test.go")
		for name, f := range map[string]func(x *Exec){ //tenon:unordered the captures do not depend on each other
			"Backward": func(x *Exec) { _ = x.Backward(x.Sum(a, nil, SumOpt{}), BackwardOpt{}) },
			"Grad":     func(x *Exec) { _, _ = x.Grad([]*Tensor{x.Sum(a, nil, SumOpt{})}, []*Tensor{a}, GradOpt{}) },
		} {
			if g, err = x.Capture(f, CaptureOpt{}); g != nil {
				t.Errorf("a capture whose function passes over an error of %s gave a graph", name)
			}
			wantError(t, err, fault.Invalid, name+"(", "require grad")
		}
		_, err = x.Capture(func(x *Exec) { // of several errors, the first
			_ = x.Backward(x.Sum(a, nil, SumOpt{}), BackwardOpt{})
			_, _ = x.Grad([]*Tensor{x.Sum(a, nil, SumOpt{})}, []*Tensor{a}, GradOpt{})
		}, CaptureOpt{})
		wantError(t, err, fault.Invalid, "Backward(", "require grad")
		_, err = x.Capture(func(x *Exec) { From(x, []float32{1}) }, CaptureOpt{})
		wantError(t, err, fault.Capture, "copying host data")
		_, err = x.Capture(func(x *Exec) { x.Add(a, x.Empty([]int{3}, a.dt)) }, CaptureOpt{})
		wantError(t, err, fault.Invalid, "must match")
		want(t, x, x.Add(a, a), 2, 4) // the device is usable
	})
}

// TestClosedGraph checks that a closed graph can be closed again, and that neither it nor its memory can be used.
func TestClosedGraph(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{1, 2})
		g := captureOf(t, x, CaptureOpt{}, func(x *Exec) { x.Add(a, a) })
		for range 2 {
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
		}
		wantError(t, x.Replay(g), fault.Closed, "the graph was closed; capture it again")
		_, err := x.Capture(func(x *Exec) { x.Add(a, a) }, CaptureOpt{Share: g})
		wantError(t, err, fault.Closed, "the graph was closed; capture it again")
	})
}

// TestCaptureForks checks that work on a second stream joins the capture and is joined at its end.
func TestCaptureForks(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		st, err := x.Device().Stream()
		if err != nil {
			t.Fatal(err)
		}
		a := From(x, []float32{1, 2})
		var y *Tensor
		g, err := x.Capture(func(x *Exec) {
			b := x.MulS(a, 2)
			c := x.On(st).MulS(b, 3)
			y = x.Add(b, c)
			x.On(st).MulS(b, 5) // not joined by any operand
		}, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Replay(g); err != nil {
			t.Fatal(err)
		}
		want(t, x, y, 8, 16)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestKernelsWaitForTheOneAhead checks kernels that start before the previous one is complete: they must still read what it wrote, and
// overwrite nothing that it reads. The mean of a large tensor goes into a small one, and that into all of the large one again.
func TestKernelsWaitForTheOneAhead(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		n, rounds := 1<<10, 3
		if x.Device().Info().Image == driver.FormatPTX {
			n, rounds = 1<<23, 200
		}
		big, small := x.Zeros([]int{n}, dtype.Float64), x.Zeros(nil, dtype.Float64)
		count := func(x *Exec) {
			for range rounds {
				x.Scope(func(x *Exec) {
					x.AddSInto(small, x.Mean(big, nil, SumOpt{}), 1)
					x.CopyInto(big, x.Expand(small, n))
				})
			}
		}
		count(x)
		g := captureOf(t, x, CaptureOpt{}, count)
		mustReplay(t, x, g)
		mustReplay(t, x, g)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		for _, v := range []*Tensor{small, x.AMin(big, nil, DimOpt{}), x.AMax(big, nil, DimOpt{})} {
			if got := doubles(t, x, v)[0]; got != float64(3*rounds) {
				t.Fatalf("after %d rounds there is a %v", 3*rounds, got)
			}
		}
	})
}

// captureOf captures f, and fails the test if that fails.
func captureOf(t *testing.T, x *Exec, opt CaptureOpt, f func(x *Exec)) *Graph {
	t.Helper()
	g, err := x.Capture(f, opt)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func mustReplay(t *testing.T, x *Exec, g *Graph) {
	t.Helper()
	if err := x.Replay(g); err != nil {
		t.Fatal(err)
	}
}

// TestCaptureForkedMemory checks that a tensor that a capture makes on another stream, and closes, is memory of the graph: eager work does
// not get it.
func TestCaptureForkedMemory(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		st, err := x.Device().Stream()
		if err != nil {
			t.Fatal(err)
		}
		a := From(x, []float32{1, 2})
		var y *Tensor
		var temp uint64
		g := captureOf(t, x, CaptureOpt{}, func(x *Exec) {
			b := x.MulS(a, 2)
			c := x.On(st).MulS(b, 3)
			temp = c.DataPtr()
			y = x.Add(b, c)
			c.Close()
		})
		side := x.On(st)
		for range 4 {
			if p := side.Full([]int{2}, 9, a.dt).DataPtr(); p == temp {
				t.Fatalf("eager work got the graph's memory %#x", p)
			}
		}
		mustReplay(t, x, g)
		want(t, x, y, 8, 16)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCaptureKeepsOperands checks that an operand that is closed during the capture, or after it, lives as long as the graph.
func TestCaptureKeepsOperands(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, b := From(x, []float32{1, 2}), From(x, []float32{3, 4})
		held := map[uint64]bool{a.DataPtr(): true, b.DataPtr(): true}
		var y *Tensor
		g := captureOf(t, x, CaptureOpt{}, func(x *Exec) {
			y = x.Add(a, b)
			a.Close()
		})
		b.Close()
		for range 4 {
			if p := x.Full([]int{2}, 9, dtype.Float32).DataPtr(); held[p] {
				t.Fatalf("a new tensor got an operand's memory %#x", p)
			}
		}
		mustReplay(t, x, g)
		want(t, x, y, 4, 6)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		// A capture that fails keeps nothing.
		c := From(x, []float32{1})
		_, err := x.Capture(func(x *Exec) {
			x.Add(c, c)
			c.Close()
			_ = x.Synchronize()
		}, CaptureOpt{})
		wantError(t, err, fault.Capture, "Synchronize cannot be captured")
	})
}

// TestCaptureKeep checks that Keep takes a result out of the graph, which the result then outlives.
func TestCaptureKeep(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{1, 2})
		var y, z *Tensor
		g := captureOf(t, x, CaptureOpt{}, func(x *Exec) {
			z = x.MulS(a, 2)
			y = x.Keep(x.AddS(z, 1))
		})
		mustReplay(t, x, g)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		want(t, x, y, 3, 5)
		wantError(t, Try(func() { x.Add(z, z) }), fault.Closed, "closed")
	})
}

// TestReplaysOfOnePool checks that runs of graphs that share memory wait for each other, on any streams.
func TestReplaysOfOnePool(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		if x.Device().Host {
			t.Skip("all streams of the processor run in the order of the calls, so nothing can overtake")
		}
		s0, err := x.Device().Stream()
		if err != nil {
			t.Fatal(err)
		}
		s1, err := x.Device().Stream()
		if err != nil {
			t.Fatal(err)
		}
		a := x.Full([]int{1 << 16}, 1, dtype.Float32)
		sum := func(y **Tensor, n int, v float64) func(x *Exec) {
			return func(x *Exec) {
				b := a
				for range n {
					c := x.AddS(b, v)
					if b != a {
						b.Close()
					}
					b = c
				}
				*y = b
			}
		}
		var y0, y1 *Tensor
		g0 := captureOf(t, x, CaptureOpt{}, sum(&y0, 8, 1))
		g1 := captureOf(t, x, CaptureOpt{Share: g0}, sum(&y1, 1, 2)) // the result is where the first graph has an intermediate tensor
		slow := x.On(s0).Full([]int{1 << 20}, 1, dtype.Float32)
		for range 20 {
			for range 8 { // the second graph would overtake the first
				x.On(s0).AddInto(slow, slow, slow)
			}
			mustReplay(t, x.On(s0), g0)
			mustReplay(t, x.On(s1), g1)
			if err := x.Device().Synchronize(); err != nil { // wait for whichever ran last
				t.Fatal(err)
			}
			want(t, x, x.Sum(y1, nil, SumOpt{}), 3<<16)
		}
		mustReplay(t, x, g0)
		want(t, x, x.Sum(y0, nil, SumOpt{}), 9<<16)
		for _, g := range []*Graph{g1, g0} {
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestReplaysOfDraws checks that consecutive replays write nothing for their random numbers, and that the numbers are right after a draw or
// a seed in between.
func TestReplaysOfDraws(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		gen := rt.NewGenerator(1)
		var y *Tensor
		g := captureOf(t, x, CaptureOpt{}, func(x *Exec) { y = x.WithGenerator(gen).Rand([]int{8}, dtype.Float32) })
		var filled int
		setWatch(x, func(op string, _, end bool) {
			if end && op == "FillInto" {
				filled++
			}
		})
		defer setWatch(x, nil)
		step := func(what string, want int) {
			t.Helper()
			filled = 0
			mustReplay(t, x, g)
			if filled != want {
				t.Errorf("%s: %d fillings, want %d", what, filled, want)
			}
		}
		step("the first replay", 2)
		step("the next", 0)
		step("the one after", 0)
		x.WithGenerator(gen).Rand([]int{8}, dtype.Float32)
		step("after a draw", 1)
		if err := gen.SetSeed(1); err != nil {
			t.Fatal(err)
		}
		step("after the same seed", 1)
		first := x.Clone(y)
		if err := gen.SetSeed(2); err != nil {
			t.Fatal(err)
		}
		step("after another seed", 2)
		if slices.Equal(floats(t, x, y), floats(t, x, first)) {
			t.Error("another seed draws the same")
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if gen.Kept(x.Device()) != nil {
			t.Error("the generator keeps memory for graphs that are gone")
		}
	})
}

// TestSeedWaitsForReplay checks that a new seed for a replay on one stream does not reach one that is still queued on another.
func TestSeedWaitsForReplay(t *testing.T) {
	x, sim := simExec(t, nil)
	gen := rt.NewGenerator(1)
	var ys [2]*Tensor
	var gs [2]*Graph
	for i := range gs {
		gs[i] = captureOf(t, x, CaptureOpt{}, func(x *Exec) { ys[i] = x.WithGenerator(gen).Rand([]int{8}, dtype.Float32) })
		defer gs[i].Close()
	}
	other := forks(t, x, 1)[0]
	mustReplay(t, x, gs[0])
	want := slices.Clone(floats(t, x, ys[0]))
	elsewhere(func() { mustReplay(t, other, gs[1]) }) // from now on, its stream need not wait for what the first replay wrote
	if err := gen.SetSeed(1); err != nil {
		t.Fatal(err)
	}
	release := sim.Hold(x.Stream().Handle())
	mustReplay(t, x, gs[0])
	if err := gen.SetSeed(2); err != nil {
		t.Fatal(err)
	}
	elsewhere(func() { mustReplay(t, other, gs[1]) })
	if idle(t, other) {
		t.Error("the second replay runs before the first")
	}
	release()
	if got := floats(t, x, ys[0]); !slices.Equal(got, want) {
		t.Errorf("the first replay gives %v, want %v", got, want)
	}
	if got := floats(t, other, ys[1]); slices.Equal(got, want) {
		t.Error("the second replay has the first seed")
	}
}

// TestCaptureStreamIsAlone checks that nobody else gets the stream of a capture, however many streams others ask for, and that captures
// reuse it in turn.
func TestCaptureStreamIsAlone(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{1})
		var used []*rt.Stream
		for range 3 {
			g := captureOf(t, x, CaptureOpt{}, func(x *Exec) {
				used = append(used, x.Stream())
				for range 80 {
					if st, err := x.Device().Stream(); err != nil || st == x.Stream() {
						t.Fatalf("another user has the capture's stream %d, %v", st.ID(), err)
					}
				}
				x.Add(a, a)
			})
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if used[1] != used[0] || used[2] != used[0] {
			t.Errorf("three captures one after another took the streams %d, %d and %d", used[0].ID(), used[1].ID(), used[2].ID())
		}
		var held []func()
		for range 31 {
			_, back, err := CaptureStream(x)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, back)
		}
		_, err := x.Capture(func(x *Exec) { x.Add(a, a) }, CaptureOpt{})
		wantError(t, err, fault.Capture, "31 captures are under way")
		for _, back := range held {
			back()
		}
		g := captureOf(t, x, CaptureOpt{}, func(x *Exec) { x.Add(a, a) })
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestGraphsOfAnotherDevice checks that a graph is neither replayed nor shared on another device.
func TestGraphsOfAnotherDevice(t *testing.T) {
	x, _ := openWith(t, rt.Selector{Kind: rt.Sim, Memory: 64 << 20})
	a := x.Ones([]int{3}, dtype.Float32)
	defer a.close()
	g, err := x.Capture(func(x *Exec) { x.AddSInto(a, a, 1) }, CaptureOpt{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for _, sel := range []rt.Selector{{Kind: rt.CPU}, {Kind: rt.Sim, Memory: 64 << 20}} {
		y, dev := openWith(t, sel)
		here, there := rt.Apart(dev, x.m.stream.Device())
		captured := "the graph was captured on " + there + ", and this Exec works on " + here
		wantError(t, y.Replay(g), fault.Invalid, captured)
		_, err := y.Capture(func(y *Exec) { y.Neg(y.Ones([]int{3}, dtype.Float32)) }, CaptureOpt{Share: g})
		wantError(t, err, fault.Invalid, captured)
	}
	want(t, x, a, 1, 1, 1)
}
