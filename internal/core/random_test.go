package core

import (
	"math"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/rt"
)

func TestRandomRepeats(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		g := rt.NewGenerator(5)
		y := x.WithGenerator(g)
		a := floats(t, x, y.Rand([]int{1000}, dtype.Float32))
		if g.Offset() == 0 || g.Offset()%4 != 0 {
			t.Errorf("offset %d after a draw", g.Offset())
		}
		b := floats(t, x, y.Rand([]int{1000}, dtype.Float32))
		if slices.Equal(a, b) {
			t.Error("two draws are equal")
		}
		g.SetSeed(5)
		if c := floats(t, x, y.Rand([]int{1000}, dtype.Float32)); !slices.Equal(a, c) {
			t.Error("the same seed gives other numbers")
		}
		state := g.State()
		d := floats(t, x, y.RandN([]int{100}, dtype.Float32))
		if err := g.SetState(state); err != nil {
			t.Fatal(err)
		}
		if e := floats(t, x, y.RandN([]int{100}, dtype.Float32)); !slices.Equal(d, e) {
			t.Error("the same state gives other numbers")
		}
		wantError(t, g.SetState(make([]byte, 3)), fault.Invalid, "RNG state is wrong size")
	})
}

func TestDistributions(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		const n = 20000
		mean := func(v []float64) (m float64) {
			for _, e := range v {
				m += e
			}
			return m / float64(len(v))
		}
		z := x.Empty([]int{n}, dtype.Float32)
		x.UniformInto(z, -2, 6)
		if v := doubles(t, x, z); math.Abs(mean(v)-2) > 0.1 || slices.Min(v) < -2 || slices.Max(v) >= 6 {
			t.Errorf("uniform in [-2, 6): mean %v, from %v to %v", mean(v), slices.Min(v), slices.Max(v))
		}
		x.NormalInto(z, 3, 0.5)
		if m := mean(doubles(t, x, z)); math.Abs(m-3) > 0.03 {
			t.Errorf("normal of mean 3: %v", m)
		}
		x.BernoulliSInto(z, 0.25)
		if m := mean(doubles(t, x, z)); math.Abs(m-0.25) > 0.02 {
			t.Errorf("bernoulli of 0.25: %v", m)
		}
		if v := doubles(t, x, x.RandInt(4, []int{n}, dtype.Int64, RandIntOpt{Low: -3})); math.Abs(mean(v)) > 0.1 || slices.Min(v) != -3 ||
			slices.Max(v) != 3 {
			t.Errorf("integers in [-3, 4): mean %v, from %v to %v", mean(v), slices.Min(v), slices.Max(v))
		}
		x.ExponentialInto(z, 0.5)
		if v := doubles(t, x, z); math.Abs(mean(v)-2) > 0.1 || slices.Min(v) <= 0 {
			t.Errorf("exponential of rate 0.5: mean %v, least %v", mean(v), slices.Min(v))
		}
		x.LogNormalInto(z, 1, 0.25)
		if v := doubles(t, x, x.Log(z)); math.Abs(mean(v)-1) > 0.02 {
			t.Errorf("logarithms of log-normal numbers of mean 1: %v", mean(v))
		}
		x.CauchyInto(z, -3, 2)
		if v := doubles(t, x, z); true {
			slices.Sort(v)
			if math.Abs(v[n/2]+3) > 0.15 || math.Abs(v[n/4]+5) > 0.3 || math.Abs(v[3*n/4]+1) > 0.3 {
				t.Errorf("quartiles of cauchy numbers around -3 of scale 2: %v, %v, %v", v[n/4], v[n/2], v[3*n/4])
			}
		}
		k := x.Empty([]int{n}, dtype.Int32)
		x.GeometricInto(k, 0.25)
		if v := doubles(t, x, k); math.Abs(mean(v)-4) > 0.15 || slices.Min(v) != 1 {
			t.Errorf("geometric of 0.25: mean %v, least %v", mean(v), slices.Min(v))
		}
		p := x.Full([]int{n}, 0.75, dtype.Float32)
		if m := mean(doubles(t, x, x.Bernoulli(p))); math.Abs(m-0.75) > 0.02 {
			t.Errorf("bernoulli of 0.75: %v", m)
		}
	})
}

func TestDropout(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := x.Full([]int{4000}, 3, dtype.Float32).SetRequiresGrad(true)
		y := x.Dropout(a, 0.25)
		g, err := x.Grad([]*Tensor{x.Sum(y, nil, SumOpt{})}, []*Tensor{a}, GradOpt{})
		if err != nil {
			t.Fatal(err)
		}
		v, gv := floats(t, x, y), floats(t, x, g[0])
		kept := 0
		for i := range v {
			switch {
			case v[i] == 4 && math.Abs(float64(gv[i])-4.0/3) < 1e-6:
				kept++
			case v[i] != 0 || gv[i] != 0:
				t.Fatalf("element %d is %v with gradient %v", i, v[i], gv[i])
			}
		}
		if math.Abs(float64(kept)/4000-0.75) > 0.04 {
			t.Errorf("%d of 4000 elements are kept", kept)
		}
		want(t, x, x.Dropout(From(x, []float32{1, 2}), 1), 0, 0)
		if x.Dropout(a, 0) != a {
			t.Error("dropout with probability 0 does not return its operand")
		}
		y = x.Dropout(a, 0.25)
		if g, err = x.Grad([]*Tensor{x.Sum(x.Mul(y, x.Mul(y, y)), nil, SumOpt{})}, []*Tensor{a}, GradOpt{CreateGraph: true}); err != nil {
			t.Fatal(err)
		}
		h, err := x.Grad([]*Tensor{x.Sum(g[0], nil, SumOpt{})}, []*Tensor{a}, GradOpt{})
		if err != nil {
			t.Fatal(err)
		}
		v, gv = floats(t, x, y), floats(t, x, h[0])
		for i := range v { // of y³
			if want := float64(v[i]) * 6 * 16 / 9; math.Abs(float64(gv[i])-want) > 1e-5*want {
				t.Fatalf("element %d of %v has the second derivative %v, want %v", i, v[i], gv[i], want)
			}
		}
	})
}

// TestRandomInGraphs checks that replays and eager draws interleave as if all were eager, and that reseeding between replays takes effect.
func TestRandomInGraphs(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		control, mine := rt.NewGenerator(7), rt.NewGenerator(7)
		var a, b *Tensor
		g, err := x.Capture(func(x *Exec) {
			y := x.WithGenerator(mine)
			a = y.Rand([]int{300}, dtype.Float32)
			b = y.Dropout(y.RandN([]int{300}, dtype.Float32), 0.5)
		}, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		eager := func(g *rt.Generator) []float32 {
			y := x.WithGenerator(g)
			return append(floats(t, x, y.Rand([]int{300}, dtype.Float32)),
				floats(t, x, y.Dropout(y.RandN([]int{300}, dtype.Float32), 0.5))...)
		}
		for round := range 4 {
			if round == 2 {
				control.SetSeed(99)
				mine.SetSeed(99)
			}
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
			if got, want := append(floats(t, x, a), floats(t, x, b)...), eager(control); !slices.Equal(got, want) {
				t.Fatalf("round %d: the replay's numbers differ from eager ones", round)
			}
			if !slices.Equal(eager(mine), eager(control)) || mine.Offset() != control.Offset() {
				t.Fatalf("round %d: after the replay the generators differ: offsets %d and %d", round, mine.Offset(), control.Offset())
			}
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestBernoulliOfHalves checks that half-precision probabilities are compared with the same random numbers as float32 ones.
func TestBernoulliOfHalves(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		p := x.Full([]int{4, 300}, 0.25, dtype.Float32)
		draw := func(p *Tensor) *Tensor { return x.WithGenerator(rt.NewGenerator(3)).Bernoulli(p) }
		want := doubles(t, x, draw(p))
		for _, dt := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
			got := draw(x.ToDType(p, dt))
			if got.DType() != dt {
				t.Errorf("probabilities of %v give %v", dt, got.DType())
			}
			if v := doubles(t, x, got); !slices.Equal(v, want) {
				t.Errorf("%v draws otherwise than float32", dt)
			}
		}
	})
}

// TestGeneratorOfAnotherDevice: the default generator of a device serves that device alone, and one that belongs to none serves all.
func TestGeneratorOfAnotherDevice(t *testing.T) {
	x, y := twoDevices(t, nil)
	wantError(t, Try(func() { x.WithGenerator(y.Device().Generator()) }), fault.Invalid,
		"WithGenerator: the generator is the default one of device 1 (Simulated GPU), and this Exec works on device 0 (Simulated GPU); "+
			"give one of NewGenerator or Clone, or that device's", "random_test.go")
	own := x.WithGenerator(x.Device().Generator())
	for dev, z := range map[*rt.Device]*Exec{x.Device(): own, y.Device(): own.On(y.Stream()), x.Host().Device(): own.Host()} {
		if z.Generator() != dev.Generator() {
			t.Errorf("on %v, an Exec with the default generator of device 0 does not draw from that device's", dev)
		}
	}
	for _, g := range []*rt.Generator{rt.NewGenerator(3), y.Device().Generator().Clone()} {
		if z := x.WithGenerator(g); z.Generator() != g || z.On(y.Stream()).Generator() != g {
			t.Error("a generator of no device is lost")
		}
	}
}
