package compile_test

import (
	"runtime"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/null"
)

// openNull opens a device that computes nothing.
func openNull(t *testing.T) *tenon.Exec {
	t.Helper()
	x := openWrapped(t, func(d driver.Device) driver.Device {
		must(t, d.Close())
		return null.New("")
	})
	t.Cleanup(func() { must(t, x.Close()) })
	return x
}

// A region that is replayed allocates nothing besides the handles of what its calls make, eleven at once.
func TestReplayAllocatesNothing(t *testing.T) {
	x := openNull(t).NoGrad()
	a := x.Ones([]int{16}, tenon.Float32)
	for handles, f := range []func(x *tenon.Exec) error{
		func(x *tenon.Exec) error { x.AddSInto(a, a, 1); x.AddInto(a, a, a); return nil },
		func(x *tenon.Exec) error { x.AddInto(a, a, x.MulS(a, 2)); return nil },
		func(x *tenon.Exec) error { x.AddInto(a, a, x.MulS(x.Exp(a), 2)); return nil },
	} {
		r := compile.New()
		run := func() { must(t, r.Do(x, f)) }
		for range 4 {
			run()
		}
		eleven := func() {
			for range 11 {
				run()
			}
		}
		if n := testing.AllocsPerRun(100, eleven); n != float64(handles) {
			t.Errorf("%v allocations where eleven times %d handles are made", n, handles)
		}
		if s := r.Stats(x); s.Replays < 100 {
			t.Errorf("%+v", s)
		}
	}
}

// Handles that the program may drop are allocated one by one, since the memory of one goes back when it is collected.
func TestDroppedOutputIsCollected(t *testing.T) {
	x := open(t)
	a := x.Ones([]int{16}, tenon.Float32)
	r := compile.New()
	var held []*tenon.Tensor
	for i := range 12 {
		var dropped core.Store
		must(t, r.Do(x, func(x *tenon.Exec) error {
			p, q := x.AddS(a, 1), x.MulS(a, 2)
			if i >= 5 { // up to now, nobody has held them
				held = append(held, x.Keep(p))
				dropped = core.StoreOf((*core.Tensor)(x.Keep(q)))
			}
			return nil
		}))
		if i < 6 { // what the handles are for is known from here on
			continue
		}
		runtime.GC()
		if dropped.Held() {
			t.Errorf("run %d: the dropped tensor has not been collected, though another one of its run is held", i)
		}
	}
	if s := r.Stats(x); s.Replays < 5 {
		t.Errorf("%+v", s)
	}
	want := read(t, x, x.AddS(a, 1))
	for _, h := range held {
		if got := read(t, x, h); got != want {
			t.Errorf("a held tensor has %s, want %s", got, want)
		}
	}
}
