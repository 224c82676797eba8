package compile_test

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/fault"
)

// A program of several segments that keeps its results, and fits into a device without a region, also fits with one, but for the copies of
// one step, and gives the same results.
func TestFits(t *testing.T) {
	t.Run("Segments", func(t *testing.T) { fits(t, 3<<19) }) // larger ones have their own segments
	t.Run("Expandable", func(t *testing.T) {
		t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
		fits(t, 1<<18)
	})
}

// fits runs the program with tensors of the given number of elements, of 8 bytes each.
func fits(t *testing.T, elements int) {
	unit := elements * 8
	run := func(size int, region bool) (out string, err error) {
		x, closed := openUntil(t, tenon.Sim(uint64(size*unit)))
		defer closed()
		r := compile.New()
		var kept *tenon.Tensor
		stopped := tenon.Try(func() {
			a := x.Full([]int{elements}, 0.5, tenon.Float64)
			for n := range 7 {
				step := func(x *tenon.Exec) error {
					first := x.AddS(a, 0.25)
					second := x.MulS(first, 2)
					if region {
						if err := compile.Break(x); err != nil {
							return err
						}
					}
					b := x.Mul(first, second) // the last use of both
					first.Close()
					second.Close()
					c := x.Mul(b, a)
					d := x.AddS(c, 1)
					e := x.Add(d, b)
					b.Close()
					x.AddInto(a, e, c)
					x.ClampSInto(a, a, -1, 1)
					old := kept
					kept = x.Keep(x.MulS(e, 2))
					x.AddInto(kept, kept, d)
					if old != nil && n%2 == 1 {
						x.AddInto(kept, kept, old)
					}
					old.Close()
					return nil
				}
				if region {
					err = r.Do(x, step)
				} else {
					x.Scope(func(x *tenon.Exec) { err = step(x) })
				}
				if err != nil {
					return
				}
				x.Scope(func(x *tenon.Exec) {
					v,
						err := tenon.Read[float64](x, x.Cat([]*tenon.Tensor{x.Narrow(kept, 0, elements-1, 1),
						x.Narrow(a, 0, elements/2, 1)}, 0))
					out += fmt.Sprint(v, err)
				})
			}
		})
		if err == nil {
			err = stopped
		}
		if region {
			t.Logf("%d tensors: %+v, %v", size, r.Stats(x), err)
		}
		return out, err
	}
	least := 0
	for size := 3; size < 15; size++ {
		want, err := run(size, false)
		got, wrong := run(size, true)
		if err == nil && least == 0 {
			least = size
		}
		switch {
		case wrong != nil && fault.KindOf(wrong) != fault.OutOfMemory:
			t.Errorf("with room for %d tensors: %v", size, wrong)
		case wrong != nil && err == nil && size > least+1:
			t.Errorf("room for %d tensors is enough, but not for %d with a region: %v", least, size, wrong)
		case wrong == nil && err == nil && got != want:
			t.Errorf("with room for %d tensors: %s, want %s", size, got, want)
		}
	}
}

// Outputs of an earlier step that do not fit twice stay where they are, and the graphs are recorded again.
func TestKeptFits(t *testing.T) {
	const elements, kepts = 3 << 19, 4
	run := func(size int, region bool) (out string, err error) {
		x, closed := openUntil(t, tenon.Sim(uint64(size*elements*8)))
		defer closed()
		r := compile.New()
		stopped := tenon.Try(func() {
			a := x.Full([]int{elements}, 0.5, tenon.Float64)
			kept := make([]*tenon.Tensor, kepts)
			for i := range kept {
				kept[i] = x.Full([]int{elements}, float64(i), tenon.Float64)
			}
			for range 6 {
				step := func(x *tenon.Exec) error {
					for i, k := range kept {
						kept[i] = x.Keep(x.Add(k, a))
						k.Close()
					}
					return nil
				}
				if region {
					err = r.Do(x, step)
				} else {
					x.Scope(func(x *tenon.Exec) { err = step(x) })
				}
				if err != nil {
					return
				}
			}
			for _, k := range kept {
				v, err := tenon.Read[float64](x, x.Narrow(k, 0, elements-1, 1))
				out += fmt.Sprint(v, err)
			}
		})
		if err == nil {
			err = stopped
		}
		return out, err
	}
	for size := kepts + 1; size < 2*kepts+3; size++ {
		want, err := run(size, false)
		got, wrong := run(size, true)
		if err == nil && (wrong != nil || got != want) {
			t.Errorf("with room for %d tensors: %s, want %s: %v", size, got, want, wrong)
		}
	}
}
