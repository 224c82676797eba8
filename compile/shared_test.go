package compile_test

import (
	"fmt"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// Regions of several sessions read the same weights at the same time. All of their calls are deferred, and their graphs are replayed.
func TestSessionsShareWeights(t *testing.T) {
	x := open(t)
	var ws []*tenon.Tensor
	for i := range 6 {
		ws = append(ws, x.MulS(x.Ones([]int{16, 16}, tenon.Float32), float64(i+1)/50))
	}
	forward := func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor {
		for _, w := range ws {
			h = x.Tanh(x.AddS(x.MatMul(h, w), 0.1))
		}
		return h
	}
	const sessions, runs = 4, 100
	step, call := compile.New(compile.Opt{Must: true}), compile.Func(forward)
	var stats, called [sessions]compile.Stats
	must(t, x.NoGrad().Parallel(sessions, func(x *tenon.Exec, i int) error {
		in := x.Full([]int{1, 16}, float64(i), tenon.Float32)
		want := read(t, x, forward(x, in))
		for range runs {
			out := x.Zeros([]int{1, 16}, tenon.Float32)
			if err := step.Do(x, func(x *tenon.Exec) error { x.CopyInto(out, forward(x, in)); return nil }); err != nil {
				return err
			}
			if got := read(t, x, out); got != want {
				t.Errorf("session %d: a region gives %s, want %s", i, got, want)
			}
			if got := read(t, x, call.Call(x, in)); got != want {
				t.Errorf("session %d: a callable gives %s, want %s", i, got, want)
			}
			out.Close()
		}
		stats[i], called[i] = step.Stats(x), call.Stats(x)
		return compile.Reset(x)
	}))
	for i := range sessions {
		for _, s := range []compile.Stats{stats[i], called[i]} {
			if s.Eager != 0 || s.Replays < runs-4 || s.Plain != 0 {
				t.Errorf("session %d: %+v", i, s)
			}
		}
	}
}

// A region may write what it has read together with another session's, once that one's calls have run.
func TestSharedStorageIsWrittenLater(t *testing.T) {
	x := open(t)
	y, err := x.Fork()
	must(t, err)
	w := x.Full([]int{4}, 1, tenon.Float32)
	train, eval := compile.New(compile.Opt{Must: true}), compile.New(compile.Opt{Must: true})
	for i := range 5 {
		out, seen := y.Zeros([]int{4}, tenon.Float32), x.Zeros([]int{4}, tenon.Float32)
		for first := range 2 { // either session is the first to read
			must(t, train.Do(x, func(x *tenon.Exec) error {
				reads := func() { x.AddInto(seen, seen, w) }
				if first == 0 {
					reads()
				}
				ended := make(chan error)
				go func() {
					ended <- eval.Do(y, func(y *tenon.Exec) error {
						y.AddInto(out, out, w)
						if first == 1 {
							ended <- nil
							<-ended
						}
						return nil
					})
				}()
				must(t, <-ended)
				if first == 1 {
					reads()
					ended <- nil
					must(t, <-ended)
				}
				x.AddSInto(w, w, 1)
				return nil
			}))
		}
		want := fmt.Sprint([]int{4*i + 3, 4*i + 3, 4*i + 3, 4*i + 3})
		if a, b := read(t, x, seen), read(t, y, out); a != want || b != want {
			t.Errorf("run %d: got %s and %s, want %s", i, a, b, want)
		}
	}
	must(t, y.Close())
}

// What the calls of several sessions are about to read is not changed by another, and is freed after the last of them.
func TestSharedStorageIsKept(t *testing.T) {
	x := open(t)
	w := x.Full([]int{64}, 3, tenon.Float32)
	const sessions = 3
	var here, done sync.WaitGroup
	here.Add(sessions)
	done.Add(1)
	read3 := func(x *tenon.Exec, got *string) error {
		r := compile.New()
		for i := range 4 {
			out := x.Zeros([]int{64}, tenon.Float32)
			err := r.Do(x, func(x *tenon.Exec) error {
				x.AddInto(out, x.MulS(w, 2), w)
				if i == 3 {
					here.Done()
					done.Wait()
				}
				return nil
			})
			if err != nil {
				return err
			}
			*got = read(t, x, x.Narrow(out, 0, 0, 2))
		}
		return nil
	}
	var got [sessions]string
	var all sync.WaitGroup
	errs := make([]error, sessions)
	var ys []*tenon.Exec
	for range sessions {
		y, err := x.Fork()
		must(t, err)
		ys = append(ys, y)
	}
	for i, y := range ys {
		all.Add(1)
		go func() { defer all.Done(); errs[i] = read3(y, &got[i]) }()
	}
	here.Wait()
	if err := tenon.Try(func() { x.MulSInto(w, w, 0) }); err == nil {
		t.Error("a tensor was changed that regions had yet to read")
	}
	if got := read(t, x, x.Narrow(x.AddS(w, 1), 0, 0, 1)); got != "[4]" { // others may read
		t.Error(got)
	}
	used := x.Device().MemoryAllocated()
	w.Close()
	if x.Device().MemoryAllocated() != used {
		t.Error("the memory was freed that regions had yet to read")
	}
	done.Done()
	all.Wait()
	for i := range sessions {
		must(t, errs[i])
		if got[i] != "[9 9]" {
			t.Errorf("session %d read %s", i, got[i])
		}
		must(t, ys[i].Close())
	}
	if n := x.Device().MemoryAllocated(); n >= used {
		t.Errorf("%d bytes are in use, before %d", n, used)
	}
}

// A graph that reads a copy of a tensor frees the copy, also if another session's calls read the tensor meanwhile.
func TestCopiesOfSharedStorageAreFreed(t *testing.T) {
	x := open(t)
	y, err := x.Fork()
	must(t, err)
	r := compile.New()
	data := x.RandN([]int{16, 8}, tenon.Float32)
	for n := range 8 {
		var results [2]*tenon.Tensor
		exp := func(x *tenon.Exec) *tenon.Tensor { return x.Exp(x.Narrow(data, 0, n, 2)) } // a place that moves, so a graph copies it
		must(t, r.Do(x, func(x *tenon.Exec) error {
			results[0] = x.Keep(exp(x)) // waits while the other session runs
			return r.Do(y, func(y *tenon.Exec) error {
				results[1] = y.Keep(exp(y))
				return nil
			})
		}))
		x.Scope(func(x *tenon.Exec) {
			for i, y := range results {
				if got, want := read(t, x, y), read(t, x, exp(x)); got != want {
					t.Errorf("run %d, session %d: %s, want %s", n, i, got, want)
				}
				y.Close()
			}
		})
	}
	if a, b := r.Stats(x), r.Stats(y); a.Replays == 0 || b.Replays == 0 {
		t.Errorf("%+v, %+v", a, b)
	}
	data.Close()
	must(t, compile.Reset(x))
	must(t, compile.Reset(y))
	must(t, y.Close())
	if n := x.Device().MemoryAllocated(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}
