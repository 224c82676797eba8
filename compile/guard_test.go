package compile_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
)

// A graph may run where a dropped tensor was, before the dropped memory is freed. Then memory checks neither report nor poison what the
// graph has written there.
func TestGraphOverGarbageIsNoDefect(t *testing.T) {
	for _, checks := range []cuda.MemoryChecks{{Guard: true}, {Poison: true}} {
		t.Run(fmt.Sprintf("%+v", checks), func(t *testing.T) {
			x := open(t).NoGrad()
			x.Device().SetMemoryChecks(checks)
			a := x.Ones([]int{64}, tenon.Float32)
			defer a.Close()
			r := compile.New()
			step := func(other bool) (y *tenon.Tensor) {
				must(t, r.Do(x, func(x *tenon.Exec) error {
					if other {
						y = x.Keep(x.Sum(a, nil))
					} else {
						y = x.Keep(x.AddS(x.MulS(a, 2), 1))
					}
					return nil
				}))
				return y
			}
			addr := func(y *tenon.Tensor) uint64 { return core.StoreOf((*core.Tensor)(y)).Addr() }
			for range 4 {
				step(false).Close()
			}
			live := core.LiveStorages()
			dropped := addr(step(true))
			for range 200 {
				if runtime.GC(); core.LiveStorages() <= live {
					break
				}
				time.Sleep(time.Millisecond)
			}
			replays := r.Stats(x).Replays
			y := step(false)
			defer y.Close()
			if r.Stats(x).Replays == replays || addr(y) != dropped {
				t.Error("no graph ran where the dropped tensor was")
			}
			err := tenon.Try(func() { x.Ones([]int{1}, tenon.Float32).Close() }) // frees the dropped tensor
			if err != nil {
				t.Error(err)
			}
			if got, want := read(t, x, y), fmt.Sprint(slices.Repeat([]float32{3}, 64)); got != want {
				t.Errorf("the graph gives %.40s; want %.40s", got, want)
			}
		})
	}
}
