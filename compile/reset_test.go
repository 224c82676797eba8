package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A function's result stays when its graphs are removed.
func TestResetKeepsTensors(t *testing.T) {
	x := open(t)
	for runs := 1; runs < 4; runs++ {
		for _, fork := range []bool{false, true} {
			y := x
			if fork {
				var err error
				y, err = x.Fork()
				must(t, err)
			}
			f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) })
			var out *tenon.Tensor
			for range runs {
				if out != nil {
					out.Close()
				}
				out = f.Call(y, y.Full([]int{3}, 4, tenon.Float32))
			}
			if fork {
				must(t, y.Close())
			} else {
				must(t, compile.Reset(y))
			}
			must(t, x.Device().Synchronize())
			must(t, x.Device().EmptyCache())
			for range 8 {
				x.Full([]int{3}, 7, tenon.Float32)
			}
			if got := read(t, x, out); got != "[5 5 5]" {
				t.Errorf("after %d runs, of a fork %v: %s", runs, fork, got)
			}
			out.Close()
			// a function whose graphs are removed starts again
			for range 3 {
				if !fork {
					if got := read(t, x, f.Call(x, x.Full([]int{3}, 4, tenon.Float32))); got != "[5 5 5]" {
						t.Errorf("anew: %s", got)
					}
				}
			}
		}
	}
}

// A region whose graphs are removed while it runs continues without graphs, and leaves no pool.
func TestResetWithin(t *testing.T) {
	x := open(t)
	r := compile.New()
	a := x.Full([]int{3}, 4, tenon.Float32)
	for i := range 4 {
		x.Scope(func(x *tenon.Exec) {
			var y *tenon.Tensor
			must(t, r.Do(x, func(x *tenon.Exec) error {
				y = x.AddS(a, 1)
				must(t, compile.Reset(x))
				y = x.Keep(x.MulS(y, 2))
				return nil
			}))
			if got := read(t, x, y); got != "[10 10 10]" {
				t.Errorf("run %d: %s", i, got)
			}
		})
	}
	must(t, compile.Reset(x))
	must(t, x.Device().Synchronize())
	must(t, x.Device().EmptyCache())
	snap, err := x.Device().Snapshot()
	must(t, err)
	for _, s := range snap.Segments() {
		if s.Pool != [2]uint64{} {
			t.Errorf("there is a segment of the pool %v", s.Pool)
		}
	}
}
