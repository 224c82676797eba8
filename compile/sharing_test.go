package compile_test

import (
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
)

// Sessions of several goroutines train shared weights, in one region, with their own functions and tensors: gradients add up.
func TestSharedTraining(t *testing.T) {
	t.Run("Segments", sharedTraining)
	t.Run("Expandable", func(t *testing.T) { // its pages are released without a wait for all streams
		t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
		sharedTraining(t)
	})
}

func sharedTraining(t *testing.T) {
	x := openRandom(t, 5, 0, nil)
	live := core.LiveStorages()
	const sessions, runs = 8, 40
	w := []*tenon.Tensor{x.Full([]int{side, side}, 0.5, tenon.Float32).SetRequiresGrad(true), x.Full([]int{side, side}, 2, tenon.Float32).
		SetRequiresGrad(true)}
	must(t, x.Synchronize())
	r := compile.New()
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Mul(x.Mul(a, w[0]), w[1]) })
	var wg sync.WaitGroup
	for g := range sessions {
		y, err := x.Fork()
		must(t, err)
		wg.Go(func() {
			if err := trainShared(y, g, runs, r, f, w); err != nil {
				t.Errorf("session %d: %v", g, err)
			}
			if err := y.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	const want = float32(runs * sessions * (sessions + 1) / 2 * 2)
	for i, q := range w {
		got, err := tenon.Read[float32](x, q.Grad())
		must(t, err)
		if of := want * []float32{2, 0.5}[i]; got[0] != of || got[side*side-1] != of {
			t.Errorf("gradient %d is %v, want %v", i, got, of)
		}
		q.SetGrad(nil)
		q.Close()
	}
	if n := leftOver(x, live); n > 0 {
		t.Errorf("%d storages are left", n)
	}
}

func trainShared(y *tenon.Exec, g, runs int, r *compile.Region, f *compile.Callable[func(*tenon.Exec, *tenon.Tensor) *tenon.Tensor],
	w []*tenon.Tensor) error {
	var kept *tenon.Tensor
	defer func() { kept.Close() }()
	a := y.Full([]int{side, side}, float64(g+1), tenon.Float32)
	defer a.Close()
	for i := range runs {
		if err := r.Do(y, func(y *tenon.Exec) error { // half of the gradient
			h := y.Mul(y.Mul(a, w[g%2]), w[1-g%2])
			if kept != nil && i%3 == 0 {
				y.AddInto(kept, kept, y.Detach(h))
			}
			old := kept
			kept = y.Keep(y.MulS(y.Detach(h), 2))
			old.Close()
			return y.Backward(y.Sum(h, nil))
		}); err != nil {
			return err
		}
		var err error
		y.Scope(func(y *tenon.Exec) {
			err = y.Backward(y.Sum(f.Call(y, a), nil))
		})
		if err != nil {
			return err
		}
	}
	return nil
}
