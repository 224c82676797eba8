package compile_test

import (
	"errors"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
)

// A graph that a program captured of a tensor that a region left open keeps running on its memory, whoever captured it and whatever the
// region does meanwhile.
func TestCapturedOutputsStay(t *testing.T) {
	for _, own := range []bool{true, false} {
		x := open(t)
		y := x
		if !own {
			var err error
			y, err = x.Fork()
			must(t, err)
		}
		r := compile.New()
		var kept *tenon.Tensor
		run := func(v float64) (out *tenon.Tensor) {
			must(t, r.Do(x, func(x *tenon.Exec) error { out = x.Keep(x.Sin(x.Full([]int{4}, v, tenon.Float32))); return nil }))
			return out
		}
		for range 4 {
			kept.Close()
			kept = run(1)
		}
		must(t, x.Synchronize())
		want := read(t, x, x.Neg(kept))
		var out *tenon.Tensor
		g, err := y.Capture(func(y *tenon.Exec) { out = y.Neg(kept) })
		must(t, err)
		for i := range 4 {
			run(2 + float64(i)).Close()
			must(t, x.Synchronize())
			must(t, y.Replay(g))
			if got := read(t, y, out); got != want {
				t.Errorf("own %v, run %d: %s, want %s", own, i, got, want)
			}
		}
		kept.Close()
		must(t, g.Close())
		if !own {
			must(t, y.Close())
		}
		must(t, compile.Reset(x))
	}
}

// A refused replay of a graph that draws returns its error, and leaves the generator where it was.
func TestRefusedReplaysDrawNothing(t *testing.T) {
	x := open(t)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sin(a) })
	a := x.Ones([]int{4}, tenon.Float32)
	var kept *tenon.Tensor
	for range 4 {
		kept.Close()
		kept = f.Call(x, a)
	}
	g, err := x.Capture(func(x *tenon.Exec) { x.Add(kept, x.Rand([]int{4}, tenon.Float32)) })
	must(t, err)
	first := x.Generator().Offset()
	must(t, x.Replay(g))
	at := x.Generator().Offset()
	f.Call(x, a).Close()
	if err := x.Replay(g); err == nil {
		t.Error("the graph reads what was overwritten")
	}
	if now := x.Generator().Offset(); now != at || at == first {
		t.Errorf("the generator was at %d, after a replay at %d, and after a refused one at %d", first, at, now)
	}
	must(t, g.Close())
	kept.Close()
}

// A graph of a function's result is refused once the memory belongs to another tensor.
func TestCapturedResultsAreRefused(t *testing.T) {
	x := open(t)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sin(a) })
	a := x.Ones([]int{4}, tenon.Float32)
	var kept, out *tenon.Tensor
	for range 4 {
		kept.Close()
		kept = f.Call(x, a)
	}
	g, err := x.Capture(func(x *tenon.Exec) { out = x.Neg(kept) })
	must(t, err)
	must(t, x.Replay(g))
	if got, want := read(t, x, out), read(t, x, x.Neg(x.Sin(a))); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	f.Call(x, a).Close()
	if err := x.Replay(g); err == nil {
		t.Error("the graph reads what was overwritten")
	} else {
		t.Log(err)
	}
	must(t, g.Close())
	kept.Close()
	must(t, compile.Reset(x))
}

// Captures of one session continue while another session's regions record, leave their paths, restore the pool and start again.
func TestCapturesBesideRegions(t *testing.T) {
	for _, mode := range []struct {
		name string
		opt  tenon.CaptureOpt
	}{{"thread", tenon.CaptureOpt{}}, {"global", tenon.CaptureOpt{Mode: cuda.CaptureGlobal}},
		{"relaxed", tenon.CaptureOpt{Mode: cuda.CaptureRelaxed}}} {
		t.Run(mode.name, func(t *testing.T) {
			x := openRandom(t, 8, 0, nil)
			live := core.LiveStorages()
			y, err := x.Fork()
			must(t, err)
			const runs = 60
			b := y.Ones([]int{side, side}, tenon.Float32)
			must(t, y.Synchronize())
			var wg sync.WaitGroup
			var done = make(chan struct{})
			captured, ended := 0, 0
			wg.Go(func() {
				for ; ; captured++ {
					select {
					case <-done:
						return
					default:
					}
					var out *tenon.Tensor
					g, err := y.Capture(func(y *tenon.Exec) {
						h := y.MulS(b, 2)
						for range 20 {
							h = y.AddS(h, 1)
						}
						out = y.Sum(h, nil, tenon.SumOpt{})
					}, mode.opt)
					if err != nil && mode.opt.Mode == cuda.CaptureGlobal {
						ended++ // by a call of the other session, as the mode demands
						continue
					}
					if err == nil {
						err = y.Replay(g)
					}
					if err == nil {
						var v float64
						if v, err = y.Item(out); err == nil && v != 22*side*side {
							err = errors.New("a wrong sum")
						}
						err = errors.Join(err, g.Close())
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
			for i := range runs {
				if err := programBesides(x, i); err != nil {
					t.Error(err)
					break
				}
			}
			close(done)
			wg.Wait()
			t.Logf("%d captures, %d ended", captured, ended)
			if captured == ended && mode.opt.Mode != cuda.CaptureGlobal {
				t.Error("nothing was captured")
			}
			b.Close()
			must(t, y.Close())
			must(t, compile.Reset(x))
			if n := leftOver(x, live); n > 0 {
				t.Errorf("%d storages are left", n)
			}
		})
	}
}

// programBesides runs a region and a function whose paths branch, and checks their results.
func programBesides(x *tenon.Exec, n int) error {
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor, b bool) *tenon.Tensor {
		if b {
			return x.AddS(a, 1)
		}
		return x.MulS(x.AddS(a, 1), 1)
	})
	r := compile.New()
	var kept []*tenon.Tensor
	defer func() {
		for _, k := range kept {
			k.Close()
		}
	}()
	for i := range 8 {
		var sum float64
		err := r.Do(x, func(x *tenon.Exec) error {
			a := x.Full([]int{side, side}, float64(n), tenon.Float32)
			if i%4 == 3 {
				a = x.AddS(a, 0)
			}
			kept = append(kept, x.Keep(x.AddS(a, 1)))
			return nil
		})
		if err != nil {
			return err
		}
		x.Scope(func(x *tenon.Exec) {
			o := f.Call(x, f.Call(x, kept[i], i%3 == 0), i%2 == 0)
			sum, err = x.Item(x.Sum(o, nil, tenon.SumOpt{}))
		})
		if err != nil {
			return err
		}
		if sum != float64(n+3)*side*side {
			return errors.New("a wrong sum in a region")
		}
	}
	if n%5 == 4 {
		return compile.Reset(x)
	}
	return nil
}
