package core

import (
	"testing"

	"tenon.dev/fault"
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

// A training step captured as a graph: the gradients are computed anew at every replay.
func TestCaptureBackward(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		w := leafOf(x, 1, 2)
		in := From(x, []float32{3, 4})
		g, err := x.Capture(func(x *Exec) {
			if err := x.Backward(x.Sum(x.Mul(x.Mul(w, w), in), nil, SumOpt{}), nil, BackwardOpt{}); err != nil {
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
		g, err := x.Capture(func(x *Exec) { _, _ = x.Item(x.Sum(a, nil, SumOpt{})) }, CaptureOpt{})
		if g != nil {
			t.Error("a capture whose function passes over an error gave a graph")
		}
		wantError(t, err, fault.Capture, "reading a tensor", "capture_test.go")
		_, err = x.Capture(func(x *Exec) { From(x, []float32{1}) }, CaptureOpt{})
		wantError(t, err, fault.Capture, "copying host data")
		_, err = x.Capture(func(x *Exec) { x.Add(a, x.Empty([]int{3}, a.dt)) }, CaptureOpt{})
		wantError(t, err, fault.Invalid, "must match")
		want(t, x, x.Add(a, a), 2, 4) // the device is usable
	})
}

// Work on a second stream joins the capture and is joined to its end.
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
