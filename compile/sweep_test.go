package compile

import (
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/core"
)

// After memory ran out, a function whose output is in use stays in snapshots until the output has left the pool, even if its calls are
// forgotten.
func TestForgottenFunctionWithOutputs(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	a := x.Ones([]int{64}, tenon.Float32)
	r := New()
	var kept *tenon.Tensor
	run := func() {
		t.Helper()
		if err := r.Do(x, func(x *tenon.Exec) error { kept = x.Keep(x.Sin(a)); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	run()
	c := (*core.Exec)(x)
	fo := forestOf(c, c.Device(), false)
	f := fo.warm[0].f
	fo.Relieve()
	fo.gone = append(fo.gone, f)
	for _, live := range []bool{true, false} {
		if !live {
			fo.forget()
		}
		fo.sweep()
		if slices.Contains(fo.warmers, f) != live || slices.Contains(fo.gone, f) != live {
			t.Errorf("with outputs in the pool %v: %v, %v", live, fo.warmers, fo.gone)
		}
	}
	kept.Close()
}
