package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A graph that reads a part of an earlier graph's output does not run for another part, whose address differs.
func TestPartsOfManagedInputs(t *testing.T) {
	x := open(t)
	first := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.MulS(a, 2) })
	second := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) })
	a := tenon.From(x, []float32{1, 2, 3, 4, 5, 6, 7, 8})
	for i, from := range []int{0, 0, 0, 4, 4, 0, 4} {
		must(t, compile.MarkStep(x))
		x.NoGrad().Scope(func(x *tenon.Exec) {
			y := first.Call(x, a)
			z := second.Call(x, x.Narrow(y, 0, from, 4))
			if s, want := read(t, x, z), map[int]string{0: "[3 5 7 9]", 4: "[11 13 15 17]"}[from]; s != want {
				t.Errorf("run %d: %s, want %s", i, s, want)
			}
		})
	}
	if s := second.Stats(x); s.Recordings < 2 || s.Replays < 1 {
		t.Errorf("%+v", s)
	}
}
