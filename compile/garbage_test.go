package compile_test

import (
	"fmt"
	"runtime"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A recording that used the memory of garbage, which was collected while it was recorded, does not run while a tensor has that memory.
func TestRecordingCollectsGarbage(t *testing.T) {
	done := make(chan bool)
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
			}
		}
	}()
	for try := 0; try < 200 && !t.Failed(); try++ {
		collectsGarbage(t)
	}
}

func collectsGarbage(t *testing.T) {
	x, closed := openUntil(t, machine())
	defer closed()
	a := x.Ones([]int{1024}, tenon.Float32)
	results := func(op func(x *tenon.Exec, i int) *tenon.Tensor) func(x *tenon.Exec) []*tenon.Tensor {
		return func(x *tenon.Exec) (all []*tenon.Tensor) {
			for i := range 6 {
				all = append(all, op(x, i))
			}
			return all
		}
	}
	f := compile.Func(results(func(x *tenon.Exec, i int) *tenon.Tensor { return x.AddS(a, float64(i)) }), compile.Opt{NoFusion: true})
	g := compile.Func(results(func(x *tenon.Exec, i int) *tenon.Tensor { return x.MulS(a, float64(10+i)) }),
		compile.Opt{NoFusion: true, NoWarmup: true})
	for i := range 6 {
		must(t, compile.MarkStep(x))
		ys := f.Call(x)
		if i < 4 { // garbage; in step 3 g is recorded after it
			ys = nil
		}
		if i < 3 {
			continue
		}
		zs := g.Call(x)
		for k, y := range ys {
			x.Scope(func(x *tenon.Exec) {
				if got, want := read(t, x, x.Narrow(y, 0, 0, 1)), fmt.Sprintf("[%d]", 1+k); got != want {
					t.Errorf("step %d: result %d is %s, want %s", i, k, got, want)
				}
			})
			y.Close()
		}
		for _, z := range zs {
			z.Close()
		}
	}
	must(t, compile.Reset(x))
}
