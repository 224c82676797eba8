package core

import (
	"runtime"
	"testing"
	"weak"

	"tenon.dev/dtype"
	"tenon.dev/internal/rt"
)

// A session keeps the Execs that differ in flags and stream, and none that owns a generator, a pool or hooks: those go with their last
// user.
func TestSessionKeepsNoOwnedExecs(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 2, 3)
		x.NoGrad()
		backward(t, x, sumOf(x, x.Mul(a, a)), BackwardOpt{})
		before := len(x.s.derived)
		var generators []weak.Pointer[rt.Generator]
		for range 100 {
			g := rt.NewGenerator(1)
			generators = append(generators, weak.Make(g))
			p, err := x.Device().NewMemPool(nil)
			if err != nil {
				t.Fatal(err)
			}
			keep := func(_ *Exec, t *Tensor) any { return t.alias() }
			x.WithGenerator(g).UsePool(p).SavedTensorHooks(keep, func(_ *Exec, v any) *Tensor { return v.(*Tensor) }, func(x *Exec) {
				x.Scope(func(x *Exec) {
					x.NoGrad().EnableGrad().Autocast(dtype.Float16).Rand([]int{2}, dtype.Float32)
				})
			})
			y := x.WithGenerator(g)
			y.Scope(func(y *Exec) { backward(t, x, sumOf(y, y.Mul(a, a)), BackwardOpt{}) })
			if y.WithGenerator(nil).NoGrad() != x.NoGrad() {
				t.Fatal("an Exec without the generator is not the session's own")
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(x.s.derived); n != before {
			t.Errorf("the session keeps %d derived Execs, before %d", n, before)
		}
		runtime.GC()
		left := 0
		for _, g := range generators {
			if g.Value() != nil {
				left++
			}
		}
		if left > 1 { // the last one may still lie in this frame
			t.Errorf("%d of 100 generators are still reachable", left)
		}
	})
}

// Modes derived from an Exec that owns a generator cost nothing the second time, and a backward pass through its operations as much as any.
func TestOwnedExecsAllocatesNothing(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, st := leafOf(x, 2, 3), x.Stream()
		y := x.WithGenerator(rt.NewGenerator(1))
		derive := func() { y.NoGrad().On(st).TF32(true).Autocast(dtype.Float16) }
		derive()
		if n := testing.AllocsPerRun(100, derive); n != 0 {
			t.Errorf("derived modes allocate %v objects", n)
		}
		step := func(y *Exec, length int) float64 {
			return testing.AllocsPerRun(20, func() {
				x.Scope(func(x *Exec) {
					b := a
					for range length {
						b = y.Mul(b, a)
					}
					backward(t, x, sumOf(y, b), BackwardOpt{})
				})
			})
		}
		if own, plain := step(y, 24)-step(y, 8), step(x, 24)-step(x, 8); own > plain+8 {
			t.Errorf("16 more operations with a generator of their own allocate %v objects, without %v", own, plain)
		}
	})
}
