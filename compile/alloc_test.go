package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/null"
	"tenon.dev/internal/rt"
)

// A region that is replayed allocates nothing besides the handles of what its calls make.
func TestReplayAllocatesNothing(t *testing.T) {
	host, err := rt.Host()
	must(t, err)
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(d driver.Device) driver.Device { return null.New(d.Info().Image) }})
	must(t, err)
	defer dev.Close()
	x := (*tenon.Exec)(core.New(dev, host)).NoGrad()
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
		if n := testing.AllocsPerRun(100, run); n != float64(handles) {
			t.Errorf("%v allocations where %d handles are made", n, handles)
		}
		if s := r.Stats(x); s.Replays < 100 {
			t.Errorf("%+v", s)
		}
	}
}
