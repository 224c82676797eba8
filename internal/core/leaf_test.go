package core

import (
	"runtime"
	"slices"
	"sync"
	"testing"
)

// TestSharedLeaf lets several sessions add to the gradient of one leaf at once, and checks that the sum has all terms.
func TestSharedLeaf(t *testing.T) {
	const goroutines, passes, rounds = 4, 3, 200
	x := toClose(t, nil)
	var forks []*Exec
	for range goroutines {
		forks = append(forks, forkOf(t, x))
	}
	for range rounds {
		x.Scope(func(x *Exec) {
			w, v := From(x, []float32{1, 2, 3, 4}).SetRequiresGrad(true), ones(x, 4).SetRequiresGrad(true)
			var wg sync.WaitGroup
			start := make(chan struct{})
			for i, y := range forks {
				opt := BackwardOpt{CreateGraph: i == 0}
				wg.Go(func() {
					<-start
					for range passes {
						y.Scope(func(y *Exec) {
							if err := y.Backward(sumOf(y, y.Add(y.MulS(w, 1), v)), opt); err != nil {
								t.Error(err)
							}
						})
					}
				})
			}
			close(start)
			wg.Wait()
			for _, leaf := range []*Tensor{w, v} {
				if g, err := Read[float32](x, leaf.Grad()); err != nil || !slices.Equal(g, []float32{12, 12, 12, 12}) {
					t.Errorf("the gradient is %v, %v; want 12", g, err)
				}
			}
		})
		if t.Failed() {
			break
		}
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// TestSharedLeafInOrder adds to one leaf from sessions that follow each other, and checks that the terms are added in that order, whatever
// the streams do.
func TestSharedLeafInOrder(t *testing.T) {
	x := toClose(t, nil)
	terms := []float32{1 << 24, 1, 1, -1 << 24} // their sum depends on the order
	var sum float32
	for _, v := range terms {
		sum += v
	}
	for range 50 {
		x.Scope(func(x *Exec) {
			w := ones(x, 2).SetRequiresGrad(true)
			for _, v := range terms {
				done := make(chan struct{})
				y := forkOf(t, x)
				go func() {
					defer close(done)
					y.Scope(func(y *Exec) {
						if err := y.Backward(sumOf(y, y.MulS(w, float64(v))), BackwardOpt{}); err != nil {
							t.Error(err)
						}
					})
				}()
				<-done
			}
			if g, err := Read[float32](x, w.Grad()); err != nil || g[0] != sum {
				t.Errorf("the gradient is %v, %v; want %v", g, err, sum)
			}
		})
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// TestChangesOnSeveralStreams makes Togethers on two goroutines that use the same two streams in opposite order.
func TestChangesOnSeveralStreams(t *testing.T) {
	x := toClose(t, nil)
	var streams [2]*Exec
	for i := range streams {
		streams[i] = forkOf(t, x)
	}
	var wg sync.WaitGroup
	a := [2]*Tensor{ones(x, 4), ones(x, 4)}
	for i := range 2 {
		y := forkOf(t, x)
		wg.Go(func() {
			for range 2000 {
				y.together("Change", func(y *Exec) {
					for _, j := range []int{i, 1 - i} {
						y := y.On(streams[j].Stream())
						y.AddSInto(a[j], a[j], 1)
						runtime.Gosched()
					}
				})
			}
			if err := y.Synchronize(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, w := range a {
		if v, err := Read[float32](x, w); err != nil || v[0] != 4001 {
			t.Errorf("the changes gave %v, %v", v, err)
		}
		w.Close()
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}
