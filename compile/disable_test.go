package compile_test

import (
	"errors"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/fault"
	"tenon.dev/internal/testdevice"
)

func openSim(t *testing.T) *tenon.Exec {
	t.Helper()
	x, err := tenon.Open(machine())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

func TestSettingRunsAllAtOnce(t *testing.T) {
	for word, want := range map[string][2]bool{"off": {false, false}, "fusion": {true, false}, "graphs": {false, true},
		"on": {true, true}} {
		t.Setenv("TENON_COMPILE", word)
		x := openSim(t)
		a := tenon.From(x, make([]float32, 64), 64)
		r := compile.New()
		for range 3 {
			err := r.Do(x, func(x *tenon.Exec) error {
				x.AddSInto(a, x.MulS(a, 2), 1)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		s := r.Stats(x)
		if fused, graphs := s.Fused > 0, s.Recordings > 0; fused != want[0] || graphs != want[1] || word == "off" && s.Runs != 0 {
			t.Errorf("TENON_COMPILE=%s gives %+v", word, s)
		}
		if v, err := tenon.Read[float32](x, a); err != nil || v[0] != 7 {
			t.Errorf("TENON_COMPILE=%s: got %v, %v", word, v, err)
		}
	}
}

func TestDisable(t *testing.T) {
	x := openSim(t)
	a := tenon.From(x, make([]float32, 64), 64)
	r := compile.New(compile.Opt{Must: true})
	var b *tenon.Tensor
	for range 4 {
		err := r.Do(x, func(x *tenon.Exec) error {
			x.AddSInto(a, a, 1)
			err := compile.Disable(x, func(x *tenon.Exec) error {
				x.MulSInto(a, a, 2)
				return nil
			})
			x.AddSInto(a, a, 3)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	s := r.Stats(x)
	if s.Eager != 4 || s.Deferred != 8 || s.Replays == 0 {
		t.Errorf("in a region: %+v", s)
	}
	before := s
	if err := compile.Disable(x, func(x *tenon.Exec) error {
		return r.Do(x, func(x *tenon.Exec) error {
			b = x.AddS(a, 1)
			return tenon.Try(func() { x.MulSInto(b, b, 1) })
		})
	}); err != nil || r.Stats(x) != before {
		t.Errorf("around a region: %v, %+v", err, r.Stats(x))
	}
	net := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) })
	if err := compile.Disable(x, func(x *tenon.Exec) error { return tenon.Try(func() { net.Call(x, a).Close() }) }); err != nil ||
		net.Stats(x).Runs != 0 {
		t.Errorf("around a callable: %v, %+v", err, net.Stats(x))
	}
	if v, err := tenon.Read[float32](x, a); err != nil || v[0] != 75 {
		t.Errorf("got %v, %v", v[0], err)
	}
	failed := errors.New("failed")
	if err := compile.Disable(x, func(*tenon.Exec) error { return failed }); err != failed {
		t.Errorf("an error: %v", err)
	}
}

// MarkStep, Frozen and Disable concern one session on one device; Reset forgets that there were steps. A failed operation panics through
// Frozen and Disable.
func TestWhatStepsAndFreezesConcern(t *testing.T) {
	m := tenon.SimMachine(2, 0)
	x, second := openOn(t, m), openOn(t, m.At(1))
	other := x.On(second.Stream())
	fork, err := x.Fork()
	must(t, err)
	defer func() { must(t, fork.Close()) }()
	add := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) }
	f := compile.Func(add)
	oneStep := func(x *tenon.Exec) (one bool) {
		x.Scope(func(x *tenon.Exec) {
			y := f.Call(x, x.Zeros([]int{2}, tenon.Float32))
			f.Call(x, x.Zeros([]int{2}, tenon.Float32))
			_, err := x.Bytes(y)
			one = err == nil
		})
		return one
	}
	must(t, compile.MarkStep(x))
	for _, c := range []struct {
		what string
		x    *tenon.Exec
		one  bool
	}{{"the session", x, true}, {"another one", fork, false}, {"another device", other, false}} {
		if got := oneStep(c.x); got != c.one {
			t.Errorf("%s: both calls are in one step: %v, want %v", c.what, got, c.one)
		}
	}
	must(t, compile.Reset(x))
	if oneStep(x) {
		t.Error("after a Reset both calls are in one step")
	}
	for name, within := range map[string]func(x *tenon.Exec, f func(x *tenon.Exec) error) error{
		"Frozen": compile.Frozen, "Disable": compile.Disable,
	} {
		g := compile.Func(add)
		must(t, within(x, func(x *tenon.Exec) error {
			for range 3 {
				x.Scope(func(x *tenon.Exec) { g.Call(x, x.Zeros([]int{2}, tenon.Float32)) })
				other.Scope(func(x *tenon.Exec) { g.Call(x, x.Zeros([]int{2}, tenon.Float32)) })
			}
			return nil
		}))
		if s := g.Stats(x); s.WarmUps != 1 || s.Recordings != 1 || s.Replays != 1 { // on the other device
			t.Errorf("%s: %v", name, s)
		}
		failed := tenon.Try(func() {
			must(t, within(x, func(x *tenon.Exec) error {
				x.Add(x.Ones([]int{2}, tenon.Float32), x.Ones([]int{3}, tenon.Float32))
				return nil
			}))
		})
		if fault.KindOf(failed) != fault.Invalid {
			t.Errorf("%s: a failed operation: %v", name, failed)
		}
	}
}

func TestMust(t *testing.T) {
	x := openSim(t)
	a := tenon.From(x, make([]float32, 64), 64)
	refused := func(what string, err error, words ...string) {
		t.Helper()
		if fault.KindOf(err) != fault.Unsupported && fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: no error", what)
			return
		}
		for _, w := range append(words, "Opt.Must") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q lacks %q", what, err, w)
			}
		}
	}
	do := func(o compile.Opt, f func(x *tenon.Exec)) (err error) {
		r := compile.New(o)
		for range 3 {
			err = errors.Join(err, r.Do(x, func(x *tenon.Exec) error { f(x); return nil }))
		}
		return err
	}
	host := testdevice.Open(t, tenon.CPU())
	b := tenon.From(host, make([]float32, 64))
	refused("the processor", compile.New(compile.Opt{Must: true}).Do(host, func(x *tenon.Exec) error { x.AddSInto(b, b, 1); return nil }),
		"Do: this work cannot run as a graph, which Opt.Must asks for: compile uses no graphs on the processor; leave out Opt.Must there "+
			"(at ", "disable_test.go:")
	if err := do(compile.Opt{Must: true}, func(x *tenon.Exec) { x.AddSInto(a, a, 1) }); err != nil {
		t.Errorf("what has a graph: %v", err)
	}
	refused("no graphs", do(compile.Opt{Must: true, NoGraphs: true}, func(x *tenon.Exec) { x.AddSInto(a, a, 1) }), "NoGraphs")
	refused("a call that waits", do(compile.Opt{Must: true}, func(x *tenon.Exec) { x.Nonzero(a).Close() }), "Nonzero",
		"it waits for the device; call it in compile.Disable")
	add := func(x *tenon.Exec) { x.AddSInto(a, a, 1) }
	refused("an Exec of ManualStreams", do(compile.Opt{Must: true}, func(x *tenon.Exec) { add(x.ManualStreams()) }), "AddS",
		"its Exec is of ManualStreams; call it")
	pool, err := cuda.NewMemPool(x.Device())
	must(t, err)
	defer pool.Close()
	refused("an Exec of UsePool", do(compile.Opt{Must: true}, func(x *tenon.Exec) { add(x.UsePool(pool)) }),
		"its Exec is of UsePool; call it")
	number := host.Full(nil, 2, tenon.Float32)
	refused("a number of the processor", do(compile.Opt{Must: true}, func(x *tenon.Exec) { x.MulInto(a, a, number) }), "Mul",
		"an operand is in the processor's memory; call it")
	refused("a copy from the processor", do(compile.Opt{Must: true}, func(x *tenon.Exec) { x.CopyInto(a, b) }),
		"; call it in compile.Disable")
	if err := do(compile.Opt{Must: true}, func(x *tenon.Exec) { x.Launch(spinner, tenon.Over(1), tenon.Integer(1)) }); err != nil {
		t.Errorf("a kernel: %v", err)
	}
	net := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		x.AddSInto(a, a, 1)
		return x.MulS(a, 2)
	}, compile.Opt{Must: true})
	refused("a changed argument", tenon.Try(func() { net.Call(x, a) }), "mutated inputs", "arg0 at ",
		"name the argument in Opt.Static")
}

// A result of another callable's call may be an argument, also where the call is cut before it reads the argument. As anything else it is
// overwritten once the call's first calls have run; what reads it at once then fails like what is deferred.
func TestArgumentsLastThroughCuts(t *testing.T) {
	x := open(t)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Cos(x.Exp(a)) })
	a, b := x.Full([]int{8, 8}, 0.5, tenon.Float32), x.Full([]int{8, 8}, 0.25, tenon.Float32)
	x.Sin(a).Close() // the session knows how to launch it
	for name, use := range map[string]func(x *tenon.Exec, y *tenon.Tensor) *tenon.Tensor{
		"Sin":    func(x *tenon.Exec, y *tenon.Tensor) *tenon.Tensor { return x.Sin(y) },
		"Mul":    func(x *tenon.Exec, y *tenon.Tensor) *tenon.Tensor { return x.Mul(y, y) },
		"MatMul": func(x *tenon.Exec, y *tenon.Tensor) *tenon.Tensor { return x.MatMul(y, y) },
		"Sum":    func(x *tenon.Exec, y *tenon.Tensor) *tenon.Tensor { return x.Sum(y, []int{0}) },
		"Cat":    func(x *tenon.Exec, y *tenon.Tensor) *tenon.Tensor { return x.Cat([]*tenon.Tensor{y, y}, 0) },
		"SinInto": func(x *tenon.Exec, y *tenon.Tensor) *tenon.Tensor {
			x.SinInto(y, b)
			return x.Clone(y)
		},
		"a part": func(x *tenon.Exec, y *tenon.Tensor) *tenon.Tensor {
			x.FillInto(x.Narrow(y, 0, 1, 2), 3)
			return x.Clone(y)
		},
		"IndexFill": func(x *tenon.Exec, y *tenon.Tensor) *tenon.Tensor {
			x.IndexFillSInto(y, y, 0, x.Full([]int{1}, 1, tenon.Int64), 2)
			return x.Clone(y)
		},
	} {
		var captured *tenon.Tensor
		body := func(x *tenon.Exec, y, b *tenon.Tensor) (h, z *tenon.Tensor) {
			h = x.Exp(b)
			must(t, compile.Disable(x, func(x *tenon.Exec) error {
				if y == nil {
					y = captured
				}
				z = use(x, y)
				return nil
			}))
			return h, z
		}
		g := compile.Func(body)
		for n := range 4 {
			x.Scope(func(x *tenon.Exec) {
				h, z := g.Call(x, f.Call(x, a), b)
				_, want := body(x, x.Cos(x.Exp(a)), b)
				if got, want := read(t, x, z), read(t, x, want); got != want {
					t.Errorf("%s, run %d: %s, want %s", name, n, got, want)
				}
				h.Close()
				captured = f.Call(x, a)
				err := tenon.Try(func() { g.Call(x, nil, b) })
				if err == nil || !strings.Contains(err.Error(), "overwritten by a subsequent run") {
					t.Errorf("%s, run %d: a captured result: %v", name, n, err)
				}
			})
			must(t, x.Synchronize())
		}
	}
}
