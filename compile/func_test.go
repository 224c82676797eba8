package compile_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

func read(t *testing.T, x *tenon.Exec, v *tenon.Tensor) string {
	t.Helper()
	got, err := tenon.Read[float32](x, v)
	must(t, err)
	return fmt.Sprint(got)
}

// For each shape a function runs normally, then is recorded, and then is replayed.
func TestFunc(t *testing.T) {
	x := open(t)
	cube := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Mul(x.Mul(a, a), a) })
	for n := 2; n < 4; n++ {
		for i := range 4 {
			a := x.Full([]int{n}, float64(i), tenon.Float32)
			b := cube.Call(x, a)
			if got, want := read(t, x, b), read(t, x, x.Full([]int{n}, float64(i*i*i), tenon.Float32)); got != want {
				t.Errorf("run %d: %s, want %s", i, got, want)
			}
			b.Close()
		}
	}
	trees, ok := compile.TreesOf(x)
	if !ok || len(trees.Roots) != 2 || trees.Roots[0].Descendants() != 0 || trees.Live != 0 || trees.Copied != 2 {
		t.Errorf("%+v", trees)
	}
	if s := cube.Stats(x); s.WarmUps != 2 || s.Recordings != 2 || s.Replays != 4 {
		t.Errorf("%+v", s)
	}
}

// The backward pass of a function is a function too.
func TestFuncBackward(t *testing.T) {
	x := open(t)
	w := tenon.From(x, []float32{1, 2, 3}, 3)
	w.SetRequiresGrad(true)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sin(x.Mul(x.Mul(a, w), a)) })
	step := func(call func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor, i int) (out, grad string) {
		x.Scope(func(x *tenon.Exec) {
			a := x.Full([]int{3}, 1/float64(i+1), tenon.Float32)
			y := call(x, a)
			must(t, x.Backward(x.Sum(y, nil)))
			out, grad = read(t, x, y), read(t, x, w.Grad())
			w.SetGrad(nil)
		})
		return out, grad
	}
	eager := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sin(x.Mul(x.Mul(a, w), a)) }
	for i := range 6 {
		o, g := step(f.Call, i)
		wo, wg := step(eager, i)
		if o != wo || g != wg {
			t.Errorf("run %d: %s %s, want %s %s", i, o, g, wo, wg)
		}
	}
	trees, _ := compile.TreesOf(x)
	t.Logf("%+v", trees)
	if len(trees.Roots) != 1 || trees.Roots[0].Descendants() != 1 || trees.Graphs != 2 {
		t.Errorf("%+v", trees)
	}
}

// The backward pass of a function, and what follows it, is work of the region in which it runs.
func TestFuncBackwardInRegion(t *testing.T) {
	x := open(t)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sin(x.Mul(a, a)) })
	in := x.Ones([]int{3}, tenon.Float32).SetRequiresGrad(true)
	r := compile.New()
	for range 5 {
		in.SetGrad(nil)
		loss := x.Sum(f.Call(x, in), nil)
		must(t, r.Do(x, func(x *tenon.Exec) error {
			if err := x.Backward(loss); err != nil {
				return err
			}
			x.NoGrad().MulSInto(in.Grad(), in.Grad(), 2)
			return nil
		}))
	}
	if got := read(t, x, in.Grad()); got != "[2.161209 2.161209 2.161209]" { // 4·cos 1
		t.Error(got)
	}
	if s := r.Stats(x); s.Deferred < 5*4 || s.Replays != 3 || s.Forced > 0 {
		t.Errorf("%+v", s)
	}
}

// Wherever the backward pass of a function runs, none is pending afterwards.
func TestPending(t *testing.T) {
	x := open(t)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sin(a) })
	r := compile.New()
	for i := range 4 {
		for _, within := range []bool{false, true} {
			x.Scope(func(x *tenon.Exec) {
				a := x.Full([]int{3}, float64(i), tenon.Float32).SetRequiresGrad(true)
				loss := x.Sum(f.Call(x, a), nil)
				if trees, _ := compile.TreesOf(x); !trees.Pending {
					t.Error("no backward pass is to come")
				}
				back := func(x *tenon.Exec) error { return x.Backward(loss) }
				if within {
					must(t, r.Do(x, back))
				} else {
					must(t, back(x))
				}
				if got, want := read(t, x, a.Grad()), read(t, x, x.NoGrad().Cos(a)); got != want {
					t.Errorf("run %d, in a region %v: the gradient is %s, want %s", i, within, got, want)
				}
				if trees, _ := compile.TreesOf(x); trees.Pending {
					t.Errorf("run %d, in a region %v: a backward pass is to come", i, within)
				}
			})
		}
	}
}

// A region or another function reads the result of a function, in any state of both.
func TestReadsResults(t *testing.T) {
	x := open(t)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) })
	r := compile.New()
	g := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.MulS(a, 2) })
	for i := range 6 {
		want := read(t, x, x.Full([]int{3}, float64(2*i+2), tenon.Float32))
		if got := read(t, x, g.Call(x, f.Call(x, x.Full([]int{3}, float64(i), tenon.Float32)))); got != want {
			t.Errorf("run %d of two functions: %s, want %s", i, got, want)
		}
		x.Scope(func(x *tenon.Exec) {
			y := f.Call(x, x.Full([]int{3}, float64(i), tenon.Float32))
			var z *tenon.Tensor
			must(t, r.Do(x, func(x *tenon.Exec) error { z = x.Keep(x.MulS(y, 2)); return nil }))
			if got := read(t, x, z); got != want {
				t.Errorf("run %d of a region: %s, want %s", i, got, want)
			}
		})
	}
}

// The calls of a function that panics run before the panic goes on, so that another session may use what they changed.
func TestFuncThatPanics(t *testing.T) {
	x := open(t)
	y, err := x.Fork()
	must(t, err)
	sum, one := x.Zeros([]int{1}, tenon.Float32), x.Ones([]int{1}, tenon.Float32)
	planned := errors.New("planned")
	f := compile.Func(func(x *tenon.Exec, fails bool) {
		x.AddInto(sum, sum, one)
		if fails {
			panic(planned)
		}
	})
	for i := range 6 {
		func() {
			defer func() {
				if v := recover(); (v == planned) != (i%2 == 1) {
					t.Errorf("run %d panics with %v", i, v)
				}
			}()
			f.Call(x, i%2 == 1)
		}()
		v, err := y.Item(sum)
		must(t, err)
		if v != float64(i+1) {
			t.Errorf("after run %d the sum is %v", i, v)
		}
	}
	must(t, y.Close())
}

// The result of a call that is not deferred has a different address in each run; the graph after it copies it.
func TestFuncCopiesFresh(t *testing.T) {
	x := open(t)
	f := compile.Func(func(x *tenon.Exec, v float32) *tenon.Tensor {
		b := tenon.From(x, []float32{v, 1, 2}, 3)
		return x.Mul(b, b)
	})
	for i := range 6 {
		x.Ones([]int{3}, tenon.Float32) // is kept, so that the next tensor lies behind it
		y := f.Call(x, float32(i))
		if got, want := read(t, x, y), fmt.Sprint([]float32{float32(i * i), 1, 4}); got != want {
			t.Errorf("run %d: %s, want %s", i, got, want)
		}
	}
	if s := f.Stats(x); s.Recordings != 1 || s.Replays != 4 {
		t.Errorf("%+v", s)
	}
}

// Numbers on the host, and tensors made from them, do not end a segment.
func TestHostNumbers(t *testing.T) {
	x := open(t)
	a, h := tenon.From(x, []float32{1, 2}, 2), x.Host().Full([]int{1}, 3, tenon.Float32)
	twice(t, x, func(x *tenon.Exec, second bool) error {
		y := x.Exp(a)
		v, err := x.Host().Item(h)
		must(t, err)
		b := tenon.From(x, []float32{float32(v), 4}, 2)
		x.Mul(y, b)
		if n := deferred(x); n != 2 {
			t.Errorf("%d calls are deferred, want 2", n)
		}
		return nil
	})
}

// A function that only allocates is not a graph.
func TestFuncOfNoWork(t *testing.T) {
	x := open(t)
	f := compile.Func(func(x *tenon.Exec) *tenon.Tensor { return x.Empty([]int{3}, tenon.Float32) })
	for range 4 {
		f.Call(x)
	}
	if s := f.Stats(x); s.Recordings+s.WarmUps+s.Plain != 0 {
		t.Errorf("%+v", s)
	}
}

// A recording whose second result was not needed is not used for a run that needs it.
func TestFuncResultsGrow(t *testing.T) {
	x := open(t)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor, both bool) []*tenon.Tensor {
		b, c := x.AddS(a, 1), x.AddS(a, 2)
		if both {
			return []*tenon.Tensor{b, c}
		}
		return []*tenon.Tensor{b}
	})
	for i := range 9 {
		both := i > 2 && i%2 == 1
		for k, y := range f.Call(x, x.Full([]int{2}, float64(i), tenon.Float32), both) {
			if got, want := read(t, x, y), fmt.Sprint([]int{i + 1 + k, i + 1 + k}); got != want {
				t.Errorf("run %d, result %d: %s, want %s", i, k, got, want)
			}
		}
	}
	if s := f.Stats(x); s.Recordings != 2 || s.Replays != 6 {
		t.Errorf("%+v", s)
	}
}

// The error for a captured tensor that moved names only that tensor. The argument has another address than in the latest recording too, but
// it is where the recording that does not fit has it: an earlier function made it.
func TestMovedTensorIsNamedAlone(t *testing.T) {
	x := open(t)
	in, w := x.Ones([]int{4}, tenon.Float32), x.Ones([]int{4}, tenon.Float32)
	one := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) })
	two := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) (first, second *tenon.Tensor) { return x.MulS(a, 2), x.MulS(a, 3) })
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Mul(a, w) },
		compile.Opt{Static: []int{0}, FixedStatic: true})
	after := func(before func() *tenon.Tensor) {
		must(t, compile.MarkStep(x))
		x.Scope(func(x *tenon.Exec) { f.Call(x, before()) })
	}
	afterOne := func() { after(func() *tenon.Tensor { return one.Call(x, in) }) }
	for range 3 {
		afterOne()
	}
	for range 3 {
		after(func() *tenon.Tensor { _, y := two.Call(x, in); return y })
	}
	if s := f.Stats(x); s.Recordings != 2 {
		t.Fatalf("got %+v", s)
	}
	w = x.Ones([]int{4}, tenon.Float32)
	err := tenon.Try(afterOne)
	if err == nil || !strings.Contains(err.Error(), "input name: input1. ") || strings.Contains(err.Error(), "arg0") {
		t.Errorf("got %v", err)
	}
}

// The error for a captured tensor that moved names it if the calls only write it, too.
func TestMovedTensorThatIsOnlyWritten(t *testing.T) {
	x := open(t)
	in, out := x.Ones([]int{4}, tenon.Float32), x.Zeros([]int{4}, tenon.Float32)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) { x.AddSInto(out, a, 1) }, compile.Opt{FixedStatic: true})
	for range 3 {
		f.Call(x, in)
	}
	old := out
	out = x.Zeros([]int{4}, tenon.Float32)
	err := tenon.Try(func() { f.Call(x, in) })
	if err == nil || !strings.Contains(err.Error(), "input name: input1. ") || !strings.Contains(err.Error(), "x.AddSInto(out, a, 1)") {
		t.Errorf("got %v", err)
	}
	old.Close()
}

// A tensor that was an argument of an earlier call, and that the function captures, is read in place: it is no argument any more.
func TestArgumentsOfEarlierCalls(t *testing.T) {
	x := open(t)
	w, in := x.Full([]int{4}, 3, tenon.Float32), x.Full([]int{4}, 2, tenon.Float32)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Mul(a, w) })
	f.Call(x, w).Close()
	for range 3 {
		if got := read(t, x, f.Call(x, in)); got != "[6 6 6 6]" {
			t.Error(got)
		}
	}
	e := f.Explain(x)
	s := e.Segments[0]
	if len(s.Graphs) != 1 || s.Graphs[0].Static != 1 || s.Graphs[0].Copied != 1 {
		t.Errorf("got %+v", e.Segments)
	}
}
