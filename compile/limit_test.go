package compile_test

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
)

// A function whose static argument differs in each call is recorded again 128 times, and no more.
func TestRerecordLimit(t *testing.T) {
	x := open(t)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) }, compile.Opt{Static: []int{0}})
	var inputs []*tenon.Tensor // they stay open, so that each has its own address
	defer func() {
		for _, in := range inputs {
			in.Close()
		}
	}()
	for i := range 140 {
		inputs = append(inputs, tenon.From(x, []float32{float32(i)}, 1))
		y := f.Call(x, inputs[i])
		if got, want := read(t, x, y), fmt.Sprint([]float32{float32(i + 1)}); got != want {
			t.Errorf("run %d: %s, want %s", i, got, want)
		}
		y.Close()
	}
	if trees, _ := compile.TreesOf(x); trees.Graphs != 129 || trees.Skips != 1 {
		t.Errorf("%d recordings and %d skips; want 129 and 1", trees.Graphs, trees.Skips)
	}
}

// Recordings that differ in which tensors are open do not count towards the limit for moved inputs: their number is bounded by the program
// and not by addresses.
func TestOpenTensorsAreNoMovedInputs(t *testing.T) {
	x := open(t)
	r := compile.New(compile.Opt{RerecordLimit: 2})
	a := x.Ones([]int{4}, tenon.Float32)
	const ways = 5
	for range 3 {
		for way := range ways {
			must(t, r.Do(x, func(x *tenon.Exec) error {
				var made []*tenon.Tensor
				y := a
				for range ways {
					y = x.Keep(x.Exp(y))
					made = append(made, y)
				}
				for i, m := range made {
					if i != way {
						m.Close()
					}
				}
				return nil
			}))
		}
	}
	if trees, _ := compile.TreesOf(x); trees.Skips != 0 || trees.Graphs < ways {
		t.Errorf("%d recordings and %d skips; want %d recordings or more, and no skip", trees.Graphs, trees.Skips, ways)
	}
}

// A run comes after another stream's work on a tensor that the function reads in place.
func TestReadsAfterOtherStreams(t *testing.T) {
	x := open(t)
	st, err := x.Device().Stream()
	must(t, err)
	other := x.On(st)
	cycles := int64((*core.Exec)(x).Device().Info().ClockKHz) // a millisecond
	w := x.Zeros([]int{2}, tenon.Float32)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Add(a, w) })
	a := x.Ones([]int{2}, tenon.Float32)
	for i := range 6 {
		other.Launch(spinner, tenon.LaunchShape{Grid: [3]int{1}, Block: [3]int{1}}, tenon.Integer(cycles))
		other.FillInto(w, float64(i))
		y := f.Call(x, a)
		if got, want := read(t, x, y), fmt.Sprint([]float32{float32(i + 1), float32(i + 1)}); got != want {
			t.Errorf("run %d: %s, want %s", i, got, want)
		}
	}
	if s := f.Stats(x); s.Recordings != 1 || s.Replays != 4 {
		t.Errorf("%+v", s)
	}
}

// If the program has the addresses of the outputs of a step's functions, all of these run without a graph from then on, and each is
// reported once.
func TestAddressesStay(t *testing.T) {
	x := open(t)
	a := tenon.From(x, []float32{1, 2, 3}, 3)
	var rs []*compile.Region
	for range 3 {
		rs = append(rs, compile.New())
	}
	var kept []*tenon.Tensor
	for i := range 3 {
		must(t, compile.MarkStep(x))
		for n, r := range rs {
			must(t, r.Do(x, func(x *tenon.Exec) error {
				kept = append(kept, x.Keep(x.MulS(a, float64(n))))
				return nil
			}))
			if n < 2 {
				kept[len(kept)-1].DataPtr()
			}
		}
		if trees, _ := compile.TreesOf(x); trees.Skips != min(2*i, 2) {
			t.Errorf("step %d: %d skips, want %d", i, trees.Skips, min(2*i, 2))
		}
	}
	for i, k := range kept {
		n := float32(i % 3)
		if got, want := read(t, x, k), fmt.Sprint([]float32{n, 2 * n, 3 * n}); got != want {
			t.Errorf("output %d is %s, want %s", i, got, want)
		}
		k.Close()
	}
}

// A run's work comes before later work of other streams on the tensors that it changes and reads, and all their work on its result comes
// before the next run.
func TestOtherStreamsComeAfter(t *testing.T) {
	x := open(t)
	var others []*tenon.Exec
	for range 3 {
		st, err := x.Device().Stream()
		must(t, err)
		others = append(others, x.On(st))
	}
	shape := tenon.LaunchShape{Grid: [3]int{1}, Block: [3]int{1}}
	spin := func(x *tenon.Exec, ms int) {
		x.Launch(spinner, shape, tenon.Integer(int64(ms*(*core.Exec)(x).Device().Info().ClockKHz)))
	}
	w, n := x.Zeros([]int{1}, tenon.Float32), x.Zeros([]int{1}, tenon.Float32)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		x.AddInto(n, n, a)
		return x.Add(a, w)
	})
	a := x.Ones([]int{1}, tenon.Float32)
	var counts, results []*tenon.Tensor
	for i := range 6 {
		spin(x, 1)
		y := f.Call(x, a)
		counts = append(counts, others[0].Clone(n))
		others[1].FillInto(w, float64(i+1))
		spin(others[0], 5)
		for _, o := range others { // the first, and so the last, of them is late
			results = append(results, o.Clone(y))
		}
		y.Close()
	}
	for i, c := range counts {
		if got, want := read(t, x, c), fmt.Sprint([]float32{float32(i + 1)}); got != want {
			t.Errorf("the count of run %d is %s; want %s", i, got, want)
		}
	}
	for i, c := range results {
		if got, want := read(t, x, c), fmt.Sprint([]float32{float32(i/3 + 1)}); got != want {
			t.Errorf("the result of run %d for stream %d is %s; want %s", i/3, i%3, got, want)
		}
	}
	if s := f.Stats(x); s.Recordings != 1 || s.Replays != 4 {
		t.Errorf("%+v", s)
	}
}

// A function within another one keeps only its results.
func TestInnerFunc(t *testing.T) {
	x := open(t)
	var tmp *tenon.Tensor
	inner := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		tmp = x.AddS(a, 1)
		return x.MulS(tmp, 2)
	})
	outer := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		y := inner.Call(x, a)
		if err := tenon.Try(func() { x.Sin(tmp) }); err == nil {
			t.Error("what the inner function made on its way is open")
		}
		return x.AddS(y, 1)
	})
	for i := range 4 {
		if got, want := read(t, x, outer.Call(x, tenon.From(x, []float32{float32(i)}, 1))),
			fmt.Sprint([]float32{float32(2*i + 3)}); got != want {
			t.Errorf("run %d: %s, want %s", i, got, want)
		}
	}
}
