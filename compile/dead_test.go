package compile_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// Calls of any operation whose results nobody needs do not run, in graphs too.
func TestDeadCallsOfAllKinds(t *testing.T) {
	for _, opt := range []compile.Opt{{}, {NoGraphs: true}} {
		x := open(t).NoGrad()
		a := x.Full([]int{16, 16}, 0.5, tenon.Float32)
		r := compile.New(opt)
		for range 4 {
			var y *tenon.Tensor
			must(t, r.Do(x, func(x *tenon.Exec) error {
				x.MM(a, a)
				x.Sum(a, nil)
				x.Mean(a, []int{0})
				x.Contiguous(x.T(a))
				dst := x.Empty([]int{16, 16}, tenon.Float32)
				x.MMInto(dst, a, a)
				y = x.Keep(x.Tanh(x.Exp(a)))
				return nil
			}))
			y.Close()
		}
		if s := r.Stats(x); s.Dropped != 6*4 || s.Kernels != 4 || !opt.NoGraphs && s.Replays != 2 {
			t.Errorf("%+v: %+v", opt, s)
		}
	}
}

// A segment of which nobody needs anything does not run, and is no graph; its draws count.
func TestDeadSegment(t *testing.T) {
	for _, opt := range []compile.Opt{{}, {NoGraphs: true}, {NoWarmup: true}, {Must: true}} {
		x := open(t).NoGrad()
		a := x.Full([]int{16, 16}, 0.5, tenon.Float32)
		r := compile.New(opt)
		for i := range 5 {
			var y *tenon.Tensor
			must(t, r.Do(x, func(x *tenon.Exec) error {
				z := x.Sum(x.Exp(x.MM(a, a)), nil)
				if i == 3 {
					y = x.Keep(z)
				}
				return nil
			}))
			if i == 3 {
				if v, err := x.Item(y); err != nil || v < 13977 || v > 13978 { // 256 times the exponential of 4
					t.Errorf("%+v: %v, %v", opt, v, err)
				}
				y.Close()
			}
		}
		if s := r.Stats(x); s.Dropped != 3*4 || s.Kernels != 2 || s.Recordings+s.WarmUps > 1 || s.Replays != 0 {
			t.Errorf("%+v: %+v", opt, s)
		}
	}
}

// A draw that nobody looks at advances the generator as it does without a region.
func TestDeadDraw(t *testing.T) {
	x := open(t)
	draw := func(x *tenon.Exec) error {
		x.Exp(x.Rand([]int{100}, tenon.Float32))
		return nil
	}
	r := compile.New()
	for i := range 4 {
		must(t, x.Generator().SetSeed(5))
		x.Scope(func(x *tenon.Exec) { must(t, draw(x)) })
		want := x.Generator().State()
		must(t, x.Generator().SetSeed(5))
		must(t, r.Do(x, draw))
		if !bytes.Equal(x.Generator().State(), want) {
			t.Errorf("run %d leaves another state of the generator", i)
		}
	}
}

// A call that checks its operands does so though nobody needs its result.
func TestDeadChecks(t *testing.T) {
	x := openOn(t, tenon.Sim(0)).NoGrad()
	a, index := x.Ones([]int{4}, tenon.Float32), tenon.From(x, []int64{0, 7})
	p := x.Full([]int{4}, 2, tenon.Float32)
	for name, f := range map[string]func(x *tenon.Exec){
		"index": func(x *tenon.Exec) { x.Gather(a, 0, index) },
		"input": func(x *tenon.Exec) { x.BCE(p, p) },
	} {
		r := compile.New()
		for i := range 4 {
			err := r.Do(x, func(x *tenon.Exec) error {
				f(x)
				return nil
			})
			if err = errors.Join(err, x.Synchronize()); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("run %d: the error is %v; want one of the %s", i, err, name)
			}
		}
	}
}
