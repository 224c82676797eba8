package math_test

import (
	"flag"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math/bigref"
	"tenon.dev/internal/kernels/math/mathtest"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"

	kmath "tenon.dev/internal/kernels/math"
)

var points = flag.Int("points", 300_000, "arguments per float32 function; float64 functions get a hundredth")

func build1(t testing.TB, u *mathtest.Unary, dt dtype.DType) *kir.Program {
	t.Helper()
	return program(t, u.Name+"_"+dt.Short(), func(k *kernel.Builder) {
		x := k.Scalar("x", dt)
		k.Buffer("out", dt).Store(k.I32(0), u.Build(k, x))
	})
}

func build2(t testing.TB, u *mathtest.Binary, dt dtype.DType) *kir.Program {
	t.Helper()
	return program(t, u.Name+"_"+dt.Short(), func(k *kernel.Builder) {
		x, y := k.Scalar("x", dt), k.Scalar("y", dt)
		k.Buffer("out", dt).Store(k.I32(0), u.Build(k, x, y))
	})
}

func program(t testing.TB, name string, f func(k *kernel.Builder)) *kir.Program {
	t.Helper()
	p, err := kernel.Build(name, f).Program()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// instructions counts a program's instructions except constants.
func instructions(b *kir.Block) (n int) {
	for _, in := range b.Instrs {
		if in.Op != kir.OpConst {
			n++
		}
		for _, s := range in.Blocks {
			n += instructions(s)
		}
	}
	return n
}

// specials32 are the arguments near which functions switch methods.
func specials32() []float32 {
	var out []float32
	add := func(v float64) {
		for _, s := range []float64{v, -v} {
			f := float32(s)
			b := math.Float32bits(f)
			for d := -3; d <= 3; d++ {
				out = append(out, math.Float32frombits(b+uint32(d)))
			}
		}
	}
	for _, v := range []float64{0, 1, 0.5, 0.25, 0.8, 2, 3, 4, 5, 6, 8, 9, 10, 10.1, 16, 17.3, 20, 40, 88.7, 88.72, 89.4, 90, 103.9, 104,
		126, 127, 128, 149, 150, 151,
		math.Pi, math.Pi / 2, math.Pi / 4, math.Sqrt2, math.Sqrt2 / 2, math.Ln2, math.Ln2 / 2, math.E, 1 << 17, 1 << 24,
		1 << 31, 100, 1000, 1e10,
		math.MaxFloat32, math.Inf(1), math.SmallestNonzeroFloat32, 0x1p-126, 0x1p-12, 0x1p-24, 0x1p-25, 0x1p-23} {
		add(v)
	}
	// The float32 closest to a multiple of π/2 relative to its size, and another one with a large exponent.
	add(math.Ldexp(16367173, 72))
	add(math.Ldexp(9112679, 13))
	return append(out, float32(math.NaN()))
}

// arguments32 returns all exponents with random mantissas, and as many arguments from the range where functions are interesting.
func arguments32(n int) []float32 {
	rng := rand.New(rand.NewPCG(1, 2))
	out := specials32()
	for len(out) < n {
		out = append(out, math.Float32frombits(rng.Uint32()), float32(rng.NormFloat64()*3), float32(rng.Float64()*2-1),
			float32(rng.Float64()*210-105))
	}
	return out
}

// TestFloat32 compares every function of one argument in float32 with Go's float64 functions, and prints a table of errors.
func TestFloat32(t *testing.T) {
	args := arguments32(*points)
	out := make([]float32, len(args))
	var table strings.Builder
	fmt.Fprintf(&table, "%-12s %6s %8s %14s\n", "float32", "instrs", "max ulp", "at")
	for i := range mathtest.Functions {
		u := &mathtest.Functions[i]
		p := build1(t, u, dtype.Float32)
		map32(t, u, args, out)
		w := u.Judge(args, out)
		fmt.Fprintf(&table, "%-12s %6d %8.3f %14g\n", u.Name, instructions(p.Body), w.Ulps, w.X)
		if w.Over > 0 {
			t.Errorf("%s: %d arguments are off by more than %d ulp; worst %.3g ulp: f(%v = %#x) = %v, want %v", u.Name, w.Over,
				mathtest.Limit, w.Ulps, w.X, math.Float32bits(w.X), w.Got, w.Want)
		}
	}
	t.Log("\n" + table.String())
}

// each calls the functions that worker returns for every i < n, on all processors.
func each(n int, worker func() func(i int)) {
	var wg sync.WaitGroup
	procs := runtime.GOMAXPROCS(0)
	for p := range procs {
		wg.Go(func() {
			f := worker()
			for i := n * p / procs; i < n*(p+1)/procs; i++ {
				f(i)
			}
		})
	}
	wg.Wait()
}

// arguments64 spreads n arguments over [lo, hi]: by exponent, evenly, and close to the ends and to small numbers.
func arguments64(lo, hi float64, n int) []float64 {
	rng := rand.New(rand.NewPCG(3, 4))
	var out []float64
	add := func(v float64) {
		if v > lo && v < hi && v != 0 {
			out = append(out, v)
		}
	}
	for _, v := range specials32() {
		if f := float64(v); !math.IsInf(f, 0) {
			add(f)
			add(math.Nextafter(f, 0))
			add(math.Nextafter(f, 1e300))
		}
	}
	add(math.Ldexp(6381956970095103, 797)) // the float64 closest to a multiple of π/2 relative to its size
	for len(out) < n {
		add(math.Float64frombits(rng.Uint64()))
		add(rng.NormFloat64() * 3)
		add(rng.Float64()*2 - 1)
		add(rng.Float64()*1500 - 750)
		add(lo + rng.ExpFloat64()*1e-3)
		add(hi - math.Ldexp(1, -rng.IntN(54))*rng.Float64())
		// Close to multiples of π/2, large and small.
		add(math.Pi / 2 * float64(rng.IntN(1<<20)))
	}
	return out
}

// TestFloat64 compares every function of one argument in float64 with series at 300 bits.
func TestFloat64(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "%-12s %6s %8s %14s\n", "float64", "instrs", "max ulp", "at")
	for i := range mathtest.Functions {
		u := &mathtest.Functions[i]
		p := build1(t, u, dtype.Float64)
		args := arguments64(u.Lo, u.Hi, *points/100)
		errs := make([]float64, len(args))
		each(len(args), func() func(i int) {
			m := newInterp(p)
			return func(i int) {
				got := math.Float64frombits(m.run(math.Float64bits(args[i]), 0)[0])
				errs[i] = mathtest.Ulps64(got, u.Big(bigref.Of(args[i])))
			}
		})
		worst := 0
		over := 0
		for i, e := range errs {
			if e > errs[worst] {
				worst = i
			}
			if e > mathtest.Limit {
				over++
			}
		}
		fmt.Fprintf(&table, "%-12s %6d %8.3f %14g\n", u.Name, instructions(p.Body), errs[worst], args[worst])
		if over > 0 {
			x := args[worst]
			got := math.Float64frombits(newInterp(p).run(math.Float64bits(x), 0)[0])
			t.Errorf("%s: %d of %d arguments are off by more than %d ulp; worst %.3g ulp: f(%v) = %v, want %v", u.Name, over, len(args),
				mathtest.Limit, errs[worst], x, got, u.Big(bigref.Of(x)).Text('g', 20))
		}
	}
	t.Log("\n" + table.String())
}

// TestSpecials64 checks zeros, infinities, NaNs and the ends of domains in float64, where the results are exact.
func TestSpecials64(t *testing.T) {
	for i := range mathtest.Functions {
		u := &mathtest.Functions[i]
		m := newInterp(build1(t, u, dtype.Float64))
		for _, x := range []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), -2, -1, 1, 2, 1e300, -1e300,
			5e-324, -5e-324} {
			want := u.Ref(x)
			if want != 0 && !math.IsInf(want, 0) && !math.IsNaN(want) {
				continue
			}
			got := math.Float64frombits(m.run(math.Float64bits(x), 0)[0])
			if math.IsNaN(want) != math.IsNaN(got) || want == want && math.Float64bits(got) != math.Float64bits(want) {
				t.Errorf("%s(%v) = %v, want %v", u.Name, x, got, want)
			}
		}
	}
}

// pairs returns arguments for functions of two arguments: all pairs of specials, and random ones of every size.
func pairs(n int, wide bool) (out [][2]float64) {
	s := []float64{0, 1, 0.5, 2, 3, 4, 5, 0.1, 10, math.Inf(1), math.MaxFloat32, math.MaxFloat64, 0x1p-149, 5e-324, 0x1p-126, 0x1p-1022,
		1 << 24, 1<<24 - 1, 1 << 53, 1<<53 - 1, 1.0000001, 0.9999999}
	for _, v := range s {
		s = append(s, -v)
	}
	s = append(s, math.NaN())
	for _, x := range s {
		for _, y := range s {
			out = append(out, [2]float64{x, y})
		}
	}
	rng := rand.New(rand.NewPCG(5, 6))
	bits := func() float64 {
		if wide {
			return math.Float64frombits(rng.Uint64())
		}
		return float64(math.Float32frombits(rng.Uint32()))
	}
	for len(out) < n {
		x := math.Exp(rng.NormFloat64() * 10)
		out = append(out, [2]float64{bits(), bits()}, [2]float64{bits(), rng.NormFloat64()},
			[2]float64{rng.NormFloat64(), rng.NormFloat64()},
			[2]float64{x, rng.NormFloat64() * 20}, [2]float64{-x, math.Round(rng.NormFloat64() * 10)},
			[2]float64{1 + rng.NormFloat64()*1e-3, rng.NormFloat64() * 1e5},
			[2]float64{x, 700 / math.Log(x) * rng.Float64()}, [2]float64{x, -80 / math.Log(x) * rng.Float64()})
	}
	return out
}

// TestPairs compares the functions of two arguments with references, in both types.
func TestPairs(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "%-12s %6s %8s %s\n", "pairs", "instrs", "max ulp", "at")
	for i := range mathtest.Pairs {
		u := &mathtest.Pairs[i]
		p := build2(t, u, dtype.Float32)
		m := newInterp(p)
		worst, at, over := 0.0, [2]float64{}, 0
		for _, a := range pairs(*points/4, false) {
			x, y := float32(a[0]), float32(a[1])
			got := math.Float32frombits(uint32(m.run(uint64(math.Float32bits(x)), uint64(math.Float32bits(y)), 0)[0]))
			want := u.Ref(float64(x), float64(y))
			e := mathtest.Ulps32(got, want)
			if e > mathtest.Limit {
				if over++; over < 10 {
					t.Errorf("%s(%v, %v) = %v, want %v: %.3g ulp", u.Name, x, y, got, want, e)
				}
			}
			if e > worst {
				worst, at = e, [2]float64{float64(x), float64(y)}
			}
		}
		fmt.Fprintf(&table, "%-8s f32 %6d %8.3f %v\n", u.Name, instructions(p.Body), worst, at)

		p = build2(t, u, dtype.Float64)
		m = newInterp(p)
		worst, over = 0, 0
		for _, a := range pairs(max(*points/100, 4000), true) {
			x, y := a[0], a[1]
			got := math.Float64frombits(m.run(math.Float64bits(x), math.Float64bits(y), 0)[0])
			want := u.Ref(x, y)
			if want != want || x != x || y != y || math.IsInf(x, 0) || math.IsInf(y, 0) || x == 0 || y == 0 {
				if math.IsNaN(want) != math.IsNaN(got) || want == want && mathtest.Ulps64(got, bigInf(want)) > 1 {
					t.Errorf("%s(%v, %v) = %v, want %v", u.Name, x, y, got, want)
				}
				continue
			}
			// Powers beyond float64 are only checked to be so.
			if lim := math.Abs(y * math.Log2(math.Abs(x))); u.Name == "pow" && lim > 1100 {
				if got != want {
					t.Errorf("pow(%v, %v) = %v, want %v", x, y, got, want)
				}
				continue
			}
			e := mathtest.Ulps64(got, u.Big(bigref.Of(x), bigref.Of(y)))
			if e > mathtest.Limit {
				if over++; over < 10 {
					t.Errorf("%s(%v, %v) = %v, want %v: %.3g ulp", u.Name, x, y, got, want, e)
				}
			}
			if e > worst {
				worst, at = e, a
			}
		}
		fmt.Fprintf(&table, "%-8s f64 %6d %8.3f %v\n", u.Name, instructions(p.Body), worst, at)
	}
	t.Log("\n" + table.String())
}

func bigInf(v float64) *big.Float { return new(big.Float).SetFloat64(v) }

var (
	fmod      = mathtest.Binary{Name: "fmod", Build: kmath.Fmod, Ref: math.Mod}
	remainder = mathtest.Binary{Name: "remainder", Build: kmath.Remainder, Ref: func(x, y float64) float64 {
		r := math.Mod(x, y)
		if r != 0 && (r < 0) != (y < 0) {
			r += y
		}
		return r
	}}
)

// TestFmod checks that Fmod is exact and Remainder follows it, in both types.
func TestFmod(t *testing.T) {
	for _, u := range []*mathtest.Binary{&fmod, &remainder} {
		narrow, wide := newInterp(build2(t, u, dtype.Float32)), newInterp(build2(t, u, dtype.Float64))
		for _, a := range pairs(20_000, true) {
			got := math.Float64frombits(wide.run(math.Float64bits(a[0]), math.Float64bits(a[1]), 0)[0])
			if want := u.Ref(a[0], a[1]); math.Float64bits(got) != math.Float64bits(want) && want == want ||
				(got != got) != (want != want) {
				t.Fatalf("%s(%v, %v) = %v, want %v", u.Name, a[0], a[1], got, want)
			}
		}
		for _, a := range pairs(20_000, false) {
			x, y := float32(a[0]), float32(a[1])
			got := math.Float32frombits(uint32(narrow.run(uint64(math.Float32bits(x)), uint64(math.Float32bits(y)), 0)[0]))
			// The remainder of floats is a float. The sum rounds once, and from float64 it rounds to the same result as from higher
			// precision.
			want := float32(math.Mod(float64(x), float64(y)))
			if u == &remainder && want != 0 && (want < 0) != (y < 0) {
				want += y
			}
			if math.Float32bits(got) != math.Float32bits(want) && want == want || (got != got) != (want != want) {
				t.Fatalf("%s(%v, %v) = %v, want %v", u.Name, x, y, got, want)
			}
		}
	}
}
