package core

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"tenon.dev/dtype"
)

// TestSharedOperands lets goroutines with separate sessions share operands.
func TestSharedOperands(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, b := leafOf(x, 1, 2, 3), From(x, []float32{4, 5, 6})
		if err := x.Synchronize(); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 4 {
			y, err := x.Fork()
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				for range 20 {
					y.Scope(func(y *Exec) {
						g, err := y.Grad([]*Tensor{sumOf(y, y.Mul(a, b))}, []*Tensor{a}, GradOpt{})
						if err != nil {
							t.Error(err)
							return
						}
						if got, err := Read[float32](y, g[0]); err != nil || !slices.Equal(got, []float32{4, 5, 6}) {
							t.Errorf("gradient %v, %v", got, err)
						}
					})
				}
			})
		}
		all.Wait()
	})
}

func TestWatch(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		var seen []string
		setWatch(x, func(op string, view, end bool) { seen = append(seen, fmt.Sprint(op, ":", view, ":", end)) })
		a := ones(x, 2, 2)
		x.Autocast(dtype.Float16).MM(a, x.Transpose(a, 0, 1))
		setWatch(x, nil)
		x.Neg(a)
		got := strings.Join(seen, " ")
		const wanted = "Full:false:false Full:false:true Permute:true:false Permute:true:true " +
			"Copy:false:false Copy:false:true Copy:false:false Copy:false:true MatMul:false:false MatMul:false:true"
		if got != wanted {
			t.Errorf("seen %s, want %s", got, wanted)
		}
	})
}

// TestForeignPanic checks that a panic from a bug in a user's function restores the session to its state when the scope was opened.
func TestForeignPanic(t *testing.T) {
	settled(t)
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 1, 2)
		before := live.Load()
		func() {
			defer func() {
				if r := recover(); r != "foreign" {
					t.Errorf("the panic came out as %v", r)
				}
			}()
			x.Scope(func(x *Exec) {
				x.SavedTensorHooks(func(x *Exec, t *Tensor) any { panic("foreign") }, nil, func(x *Exec) { x.Mul(a, x.Neg(a)) })
			})
		}()
		if n := live.Load() - before; n != 0 || x.s.depth != 0 {
			t.Errorf("%d storages are left, depth %d", n, x.s.depth)
		}
		want(t, x, x.Neg(a), -1, -2)
	})
}
