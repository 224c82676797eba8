package compile_test

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/kernel"
)

// spinner keeps its stream busy for a number of cycles of the device's clock.
var spinner = kernel.Build("spin", func(k *kernel.Builder) {
	cycles := k.Scalar("cycles", tenon.Int64)
	start := k.Clock()
	k.Loop(func() { k.If(k.Clock().Sub(start).Ge(cycles), func() { k.Break() }) })
})

// A run comes after other streams' work on results of the previous run, even if nobody holds them any more, and after their pending work on
// its inputs.
func TestOtherStreams(t *testing.T) {
	for _, drop := range []string{"closed", "in use"} {
		x := open(t)
		st, err := x.Device().Stream()
		must(t, err)
		other := x.On(st)
		cycles := int64((*core.Exec)(x).Device().Info().ClockKHz) // a millisecond
		f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) }, compile.Opt{})
		var copies []*tenon.Tensor
		for i := range 6 {
			in := x.Full([]int{4}, float64(i), tenon.Float32)
			y := f.Call(x, in)
			other.Launch(spinner, tenon.LaunchShape{Grid: [3]int{1}, Block: [3]int{1}}, tenon.Integer(cycles))
			copies = append(copies, other.Clone(y))
			if drop == "closed" {
				y.Close()
			}
			// the argument, too, is used by another stream
			other.FillInto(in, 100)
		}
		for i, c := range copies {
			v := float32(i + 1)
			if got, want := read(t, x, c), fmt.Sprint([]float32{v, v, v, v}); got != want {
				t.Errorf("results %s: the copy of run %d is %s; want %s", drop, i, got, want)
			}
		}
		trees, _ := compile.TreesOf(x)
		if trees.Graphs != 1 {
			t.Errorf("results %s: %d recordings; want 1", drop, trees.Graphs)
		}
	}
}

// A warm-up, too, comes after other streams' work on results whose memory its own results get.
func TestWarmUpAfterOtherStreams(t *testing.T) {
	x := open(t)
	st, err := x.Device().Stream()
	must(t, err)
	other := x.On(st)
	cycles := int64((*core.Exec)(x).Device().Info().ClockKHz) // a millisecond
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) })
	for i := range 6 {
		y := f.Call(x, x.Full([]int{4}, float64(i), tenon.Float32))
		other.Launch(spinner, tenon.LaunchShape{Grid: [3]int{1}, Block: [3]int{1}}, tenon.Integer(cycles))
		c := other.Clone(y)
		r := compile.New()
		var z *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			z = x.Keep(x.Sin(x.MulS(y, 20)))
			y.Close()
			return nil
		}))
		z.Close()
		v := float32(i + 1)
		if got, want := read(t, x, c), fmt.Sprint([]float32{v, v, v, v}); got != want {
			t.Errorf("the copy of run %d is %s; want %s", i, got, want)
		}
		if s := r.Stats(x); s.WarmUps != 1 {
			t.Errorf("%+v", s)
		}
	}
}

// Graphs of two streams draw from one generator in turn. The first finds the right offset on the device, and waits for a third stream. The
// second needs another offset, which is set after the first has read its own.
func TestDrawsOfOtherStreams(t *testing.T) {
	draw := func(graphs bool) (out [2]string) {
		x := open(t)
		must(t, x.Generator().SetSeed(3))
		var on [3]*tenon.Exec
		var sums [3]*tenon.Tensor
		for i := range on {
			st, err := x.Device().Stream()
			must(t, err)
			on[i], sums[i] = x.On(st), x.Zeros([]int{4}, tenon.Float32)
		}
		cycles := int64((*core.Exec)(x).Device().Info().ClockKHz) // a millisecond
		between := x.Zeros([]int{4}, tenon.Float32)
		r := [2]*compile.Region{compile.New(compile.Opt{NoGraphs: !graphs}), compile.New(compile.Opt{NoGraphs: !graphs})}
		must(t, x.Synchronize())
		for n := range 6 {
			on[2].Launch(spinner, tenon.LaunchShape{Grid: [3]int{1}, Block: [3]int{1}}, tenon.Integer(cycles))
			on[2].FillInto(sums[2], float64(n))
			for i := range r {
				must(t, r[i].Do(on[i], func(x *tenon.Exec) error {
					x.AddInto(sums[i], x.Add(sums[i], sums[2-i]), x.Rand([]int{4}, tenon.Float32))
					return nil
				}))
				if i == 0 { // so that the second needs another offset
					x.RandInto(between)
				}
			}
		}
		if a, b := r[0].Stats(x), r[1].Stats(x); graphs && (a.Replays < 3 || b.Replays < 3) {
			t.Error(a, b)
		}
		for i := range r {
			out[i] = read(t, x, sums[i])
		}
		return out
	}
	if got, want := draw(true), draw(false); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
