package compile_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A backward pass is deferred; gradients exist, another session that uses one gets an error, and tensors that change in place are saved
// with their old values.
func TestBackward(t *testing.T) {
	x := open(t)
	y, err := x.Fork()
	must(t, err)
	p, q := tenon.From(x, []float32{1, 2, 3}, 3).SetRequiresGrad(true), tenon.From(x, []float32{4, 5, 6}, 3).SetRequiresGrad(true)
	step := func(x *tenon.Exec) error {
		a := x.MulS(p, 2)
		x.MulInto(a, a, q) // q's gradient reads the old value of a
		x.MulInto(a, a, a)
		return x.Backward(x.Sum(a, nil))
	}
	read := func() (out string) {
		for _, t := range []*tenon.Tensor{p, q} {
			b, err := tenon.Read[float32](x, t.Grad())
			out += fmt.Sprint(b, err, t.Grad().Version())
		}
		return out
	}
	var want []string
	for range 4 {
		must(t, step(x))
		want = append(want, read())
	}
	p.SetGrad(nil)
	q.SetGrad(nil)
	r := compile.New()
	for i := range 4 {
		must(t, r.Do(x, func(x *tenon.Exec) error {
			err := step(x)
			if n := deferred(x); i > 1 && n < 10 {
				t.Errorf("run %d: %d calls are deferred", i, n)
			}
			if _, err := y.Bytes(p.Grad()); i > 1 && (err == nil || strings.Count(err.Error(), "leaf_test.go") != 2) {
				t.Errorf("run %d: another session reads a gradient: %v", i, err)
			}
			return err
		}))
		if got := read(); got != want[i] {
			t.Errorf("run %d: the gradients are %s, want %s", i, got, want[i])
		}
	}
	if s := r.Stats(x); s.Eager > 0 {
		t.Errorf("not all was deferred: %+v", s)
	}
}

// Gradients of leaves shared by regions of several sessions add up, and no pass waits forever.
func TestSharedLeaves(t *testing.T) {
	x := open(t)
	const sessions, runs = 4, 30
	ps := []*tenon.Tensor{x.Ones([]int{4}, tenon.Float32).SetRequiresGrad(true), x.Ones([]int{4}, tenon.Float32).SetRequiresGrad(true)}
	must(t, x.Synchronize())
	r := compile.New()
	var wg sync.WaitGroup
	for g := range sessions {
		y, err := x.Fork()
		must(t, err)
		wg.Go(func() {
			for range runs {
				if err := r.Do(y, func(y *tenon.Exec) error {
					for i := range ps { // in turn, in the opposite order in every second session
						p := ps[(i+g)%2]
						if err := y.Backward(y.Sum(y.MulS(p, float64(g+1)), nil)); err != nil {
							return err
						}
					}
					return nil
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, p := range ps {
		got, err := tenon.Read[float32](x, p.Grad())
		must(t, err)
		if want := float32(runs * sessions * (sessions + 1) / 2); got[0] != want || got[3] != want {
			t.Errorf("the gradient is %v, want %v", got, want)
		}
	}
}

// A pass runs the deferred calls of another session's region, whose goroutine waits for the pass; that region gets the errors.
func TestSharedLeafOfWaitingRegion(t *testing.T) {
	x := openOn(t, tenon.Sim(64<<20))
	y, err := x.Fork()
	must(t, err)
	p := x.Ones([]int{1}, tenon.Float32).SetRequiresGrad(true)
	must(t, x.Synchronize())
	backward := func(x *tenon.Exec, n int) error {
		return x.Backward(x.Sum(x.MulS(x.Expand(p, n), 1), nil))
	}
	r := compile.New()
	const n = 1 << 20
	for i := range 4 {
		var hog *tenon.Tensor
		if i == 3 {
			must(t, x.Device().EmptyCache())
			hog = x.Empty([]int{60 << 20}, tenon.Uint8)
		}
		started, done := make(chan bool), make(chan error)
		go func() {
			<-started
			done <- backward(y, 2)
		}()
		err := r.Do(x, func(x *tenon.Exec) error {
			err := backward(x, n)
			if put := deferred(x); i >= 2 && put == 0 {
				t.Errorf("run %d: nothing is deferred", i)
			}
			started <- true
			must(t, <-done)
			return err
		})
		var e *tenon.Error
		if failed := errors.As(err, &e) && e.Kind == tenon.OutOfMemory; failed != (i == 3) {
			t.Fatalf("run %d: %v", i, err)
		}
		hog.Close()
	}
	got, err := x.Item(p.Grad())
	must(t, err)
	if want := 3.*(n+2) + 2; got != want {
		t.Errorf("the gradient is %v, want %v", got, want)
	}
}
