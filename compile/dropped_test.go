package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
)

// A gradient that outlives a run, where earlier runs of the same calls closed it, is collected with its parameter.
func TestDroppedGradientsAreCollected(t *testing.T) {
	train := func(x *tenon.Exec, calls int) {
		v := x.Ones([]int{4, 4}, tenon.Float32).SetRequiresGrad(true)
		w := x.Ones([]int{3, 5}, tenon.Float32).SetRequiresGrad(true)
		r := compile.New()
		for _, learn := range [][2]bool{{true, true}, {false, true}, {true, true}, {true, false}, {false, false}, {false, true}} {
			v.SetRequiresGrad(learn[0])
			w.SetRequiresGrad(learn[1])
			must(t, r.Do(x, func(x *tenon.Exec) error {
				loss := x.Add(x.Mean(x.Tanh(w), nil), x.Mean(x.Square(v), nil))
				for range calls {
					x.Sin(x.Detach(loss))
				}
				if !loss.RequiresGrad() {
					return nil
				}
				return x.Backward(loss)
			}))
		}
	}
	for calls := range 11 {
		x, live := open(t), core.LiveStorages()
		train(x, calls)
		must(t, compile.Reset(x))
		if n := leftOver(x, live); n > 0 {
			t.Errorf("%d storages are left of a step with %d more calls", n, calls)
		}
	}
}
