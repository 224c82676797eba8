package compile_test

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
)

// New numbers for a run's graph are not lost if the run fails before it does any work.
func TestFailedRunKeepsNumbers(t *testing.T) {
	x, d := openFailing(t)
	a := x.Ones([]int{4}, tenon.Float32)
	defer a.Close()
	r := compile.New()
	step := func(p, q float64) (y *tenon.Tensor, err error) {
		err = r.Do(x, func(x *tenon.Exec) error {
			y = x.Keep(x.Sin(x.AddS(x.Sin(x.MulS(a, p)), q)))
			return nil
		})
		return y, err
	}
	show := func(p, q float64) string {
		y, err := step(p, q)
		must(t, err)
		defer y.Close()
		return read(t, x, y)
	}
	failed := 0
	for n, fired := 0, true; fired; n++ {
		for range 3 {
			show(2, 3)
		}
		d.Arm(n, 0)
		y, err := step(4, 3)
		method, _ := d.Fired()
		d.Arm(0, 0)
		y.Close()
		if fired = method != "" || n == 0; err != nil {
			failed++
		}
		for _, p := range [][2]float64{{4, 5}, {2, 5}, {2, 3}} {
			out := show(p[0], p[1])
			x.Scope(func(x *tenon.Exec) {
				if want := read(t, x, x.Sin(x.AddS(x.Sin(x.MulS(a, p[0])), p[1]))); out != want {
					t.Errorf("call %d, %s: with %v %s, want %s", n, method, p, out, want)
				}
			})
		}
	}
	if s := r.Stats(x); failed == 0 || s.Replays < 10*failed/2 {
		t.Errorf("%d runs failed: %+v", failed, s)
	}
	must(t, compile.Reset(x))
}

// A function's result is not overwritten before a region of another session reads it.
func TestOverwriteWaitsForOthers(t *testing.T) {
	x := open(t)
	y, err := x.Fork()
	must(t, err)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) })
	a := x.Ones([]int{4}, tenon.Float32)
	must(t, x.Synchronize())
	r := compile.New()
	for i := range 6 {
		out := f.Call(x, a)
		must(t, x.Synchronize())
		var got *tenon.Tensor
		err := r.Do(y, func(y *tenon.Exec) error {
			got = y.Keep(y.MulS(out, 2))
			f.Call(x, a).Close()
			return nil
		})
		if err != nil {
			t.Logf("run %d: %v", i, err)
		} else if s := read(t, y, got); s != "[4 4 4 4]" {
			t.Errorf("run %d: %s", i, s)
		}
		got.Close()
		out.Close()
	}
	must(t, y.Close())
}

// Frozen also holds after a Reset within it.
func TestFrozenReset(t *testing.T) {
	x := open(t)
	a := x.Ones([]int{4}, tenon.Float32)
	r := compile.New()
	must(t, compile.Frozen(x, func(x *tenon.Exec) error {
		for i := range 8 {
			if i == 3 {
				must(t, compile.Reset(x))
			}
			must(t, r.Do(x, func(x *tenon.Exec) error { x.AddSInto(a, a, 1); return nil }))
		}
		return nil
	}))
	if s := r.Stats(x); s.WarmUps+s.Recordings+s.Replays > 0 {
		t.Errorf("%+v", s)
	}
}

// A replay that fails before its graph is launched leaves the device's copy of the generator's offset where it was. The next replay draws
// the right numbers, even if the program has drawn as many as the failed one would have.
func TestFailedRunKeepsDraws(t *testing.T) {
	x, d := openFailing(t)
	r := compile.New()
	step := func(in *tenon.Tensor) (y *tenon.Tensor, err error) {
		err = r.Do(x, func(x *tenon.Exec) error {
			y = x.Keep(x.Add(x.Rand([]int{3}, tenon.Float32), in))
			return nil
		})
		return y, err
	}
	var ins []*tenon.Tensor // they are at different addresses, so they are copied, and not by a kernel: they have no whole words
	for i := range 4 {
		ins = append(ins, x.Full([]int{3}, float64(i), tenon.Uint8))
	}
	g, failed := x.Generator(), 0
	for n, fired := 1, true; fired; n++ {
		for _, in := range ins {
			y, err := step(in)
			must(t, err)
			y.Close()
		}
		d.Arm(n, 0)
		y, err := step(ins[2])
		method, _ := d.Fired()
		d.Arm(0, 0)
		y.Close()
		if fired = method != ""; err != nil {
			failed++
			x.Rand([]int{3}, tenon.Float32).Close() // as many as the region draws
		}
		from := g.State()
		y, err = step(ins[3])
		must(t, err)
		got := read(t, x, y)
		y.Close()
		must(t, g.SetState(from))
		x.Scope(func(x *tenon.Exec) {
			if want := read(t, x, x.AddS(x.Rand([]int{3}, tenon.Float32), 3)); got != want {
				t.Errorf("call %d, %s: %s, want %s", n, method, got, want)
			}
		})
	}
	if s := r.Stats(x); failed == 0 || s.Replays < failed {
		t.Errorf("%d runs failed: %+v", failed, s)
	}
	must(t, compile.Reset(x))
}

// If a run cannot wait for another stream's work on a tensor that it reads in place, that is an error, and nothing runs too early.
func TestFailedWaitIsReported(t *testing.T) {
	x, d := openFailing(t)
	st, err := x.Device().Stream()
	must(t, err)
	other, dev := x.On(st), (*core.Exec)(x).Device()
	w := x.Zeros([]int{2}, tenon.Float32)
	r := compile.New()
	run := func() (y *tenon.Tensor, err error) {
		err = r.Do(x, func(x *tenon.Exec) error { y = x.Keep(x.AddS(w, 1)); return nil })
		return y, err
	}
	for range 4 {
		y, err := run()
		must(t, err)
		y.Close()
	}
	other.FillInto(w, 5)
	var free []driver.Event
	for range 16 { // the wait needs a new event
		e, err := dev.AcquireEvent(false)
		must(t, err)
		free = append(free, e)
	}
	d.Arm(1, 0)
	y, err := run()
	method, _ := d.Fired()
	d.Arm(0, 0)
	for _, e := range free {
		dev.ReleaseEvent(e, false)
	}
	y.Close()
	if method != "EventCreate" || err == nil {
		t.Errorf("call %q fails, and the run returns %v", method, err)
	}
	y, err = run()
	must(t, err)
	if got, want := read(t, x, y), fmt.Sprint([]float32{6, 6}); got != want {
		t.Errorf("afterwards %s, want %s", got, want)
	}
	y.Close()
	if s := r.Stats(x); s.Recordings != 1 || s.Replays != 3 {
		t.Errorf("%+v", s)
	}
}

// While a tensor of a graph's memory may become garbage, graphs wait for work of all streams, which may have used it, also after a tensor
// that its owner closed in a recorded region.
func TestGraphsAwaitUsersOfGarbage(t *testing.T) {
	x, rec := openRecorded(t)
	other, err := x.Fork()
	must(t, err)
	other = other.NoGrad().On(streamsOf(t, x)[0])
	x = x.NoGrad()
	in := x.Cos(x.View(x.Arange(64, tenon.Float32), 8, 8))
	count := other.Zeros([]int{1}, tenon.Float32)
	r := compile.New()
	for i := range 6 {
		waits := 0
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			a := x.Keep(x.MatMul(in, in))
			must(t, compile.Break(x))
			other.AddSInto(count, count, 1)
			y = x.Keep(x.MatMul(a, in))
			a.Close()
			waits = rec.Count("StreamWait")
			return nil
		}))
		if waits = rec.Count("StreamWait") - waits; i >= 2 && waits == 0 {
			t.Errorf("run %d does not wait for the other stream", i)
		}
		y.Close()
	}
	if s := r.Stats(x); s.Recordings != 2 || s.Replays != 8 {
		t.Errorf("%+v", s)
	}
}

// Frozen records nothing again: a step whose graph does not fit, because a tensor that it reads has moved, runs without one.
func TestFrozenMismatch(t *testing.T) {
	x := open(t)
	a, b := tenon.From(x, []float32{1, 2, 3, 4}), tenon.From(x, []float32{5, 6, 7, 8})
	r, w, out := compile.New(), a, x.Zeros([]int{4}, tenon.Float32)
	run := func(*tenon.Exec) error {
		return r.Do(x, func(x *tenon.Exec) error {
			x.AddInto(out, x.MulS(w, 2), w)
			return nil
		})
	}
	for range 3 {
		must(t, run(x))
	}
	for i, w2 := range []*tenon.Tensor{b, a} {
		before := r.Stats(x)
		w = w2
		must(t, compile.Frozen(x, run))
		if v, want := read(t, x, out), []string{"[15 18 21 24]", "[3 6 9 12]"}[i]; v != want {
			t.Errorf("the step gave %s, want %s", v, want)
		}
		s := r.Stats(x)
		if s.Recordings != before.Recordings || s.Plain-before.Plain != 1-i || s.Replays-before.Replays != i {
			t.Errorf("the stats went from %+v to %+v", before, s)
		}
	}
}
