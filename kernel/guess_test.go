package kernel_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// collatz halves v, at least 1, or triples and increases it, until it is 1, but at most 9 times. It returns the number of steps and what v
// is after them. Values above 40 are rare: they are halved first, and 1 is subtracted.
func collatz(k *kernel.Builder, v kernel.Value) []kernel.Value {
	big := k.Var(v)
	k.Rarely(v.Gt(k.I32(40)), func() { big.Set(v.Shr(k.I32(1)).Sub(k.I32(1))) })
	at, steps := k.Var(big.Get()), k.Var(k.I32(0))
	k.For(k.I32(0), k.I32(9), k.I32(1), func(kernel.Value) {
		k.If(at.Get().Le(k.I32(1)), k.Break)
		odd := at.Get().And(k.I32(1)).Ne(k.I32(0))
		at.Set(odd.Select(at.Get().Mul(k.I32(3)).Add(k.I32(1)), at.Get().Shr(k.I32(1))))
		k.Rarely(at.Get().Gt(k.I32(90)), func() { steps.Set(steps.Get().Add(k.I32(100))) }) // in a loop it is an If
		steps.Set(steps.Get().Add(k.I32(1)))
	})
	k.Rarely(steps.Get().Eq(k.I32(7)), func() { steps.Set(k.I32(-7)) })
	return []kernel.Value{steps.Get(), at.Get()}
}

// wantCollatz is collatz in Go.
func wantCollatz(v int32) (steps, at int32) {
	if at = v; v > 40 {
		at = v>>1 - 1
	}
	for range 9 {
		if at <= 1 {
			break
		}
		if at&1 != 0 {
			at = at*3 + 1
		} else {
			at >>= 1
		}
		if at > 90 {
			steps += 100
		}
		steps++
	}
	if steps == 7 {
		steps = -7
	}
	return steps, at
}

// guessing returns a kernel that computes collatz for two elements a thread, in one Guess for both, in a Guess for each within another, or
// without one.
func guessing(how string) *kernel.Kernel {
	return kernel.Build("guess_"+how, func(k *kernel.Builder) {
		n, in, out := k.Scalar("n", tenon.Int64), k.BufferRO("in", tenon.Int32), k.Buffer("out", tenon.Int32)
		k.ForEach(n, func(i kernel.Value) {
			j := i.Add(n)
			v, w := in.Load(i), in.Load(j)
			both := func() []kernel.Value { return append(collatz(k, v), collatz(k, w)...) }
			var r []kernel.Value
			switch how {
			case "none":
				r = both()
			case "one":
				r = k.Guess(both)
			case "each":
				r = append(k.Guess(func() []kernel.Value { return collatz(k, v) }),
					k.Guess(func() []kernel.Value { return collatz(k, w) })...)
			case "nested":
				r = k.Guess(func() []kernel.Value {
					inner := k.Guess(func() []kernel.Value { return collatz(k, v) })
					return append(slices.Clone(inner), collatz(k, w)...)
				})
			}
			at := func(i kernel.Value, part int64) kernel.Value { return i.Add(n.Mul(k.I64(2 * part))) }
			out.Store(at(i, 0), r[0])
			out.Store(at(i, 1), r[1])
			out.Store(at(j, 0), r[2])
			out.Store(at(j, 1), r[3])
		})
	})
}

// TestGuess: the values are those of the whole function, in whatever threads a rare condition holds.
func TestGuess(t *testing.T) {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	rng := rand.New(rand.NewPCG(7, 7))
	for _, limit := range []int32{200, 45, 20} {
		const n = 1000
		in := make([]int32, 2*n)
		for i := range in {
			in[i] = 1 + rng.Int32N(limit)
		}
		want := make([]int32, 4*n)
		for i, v := range in {
			want[i], want[2*n+i] = wantCollatz(v)
		}
		for _, how := range []string{"none", "one", "each", "nested"} {
			out := x.Full([]int{4 * n}, -1, tenon.Int32)
			x.Launch(guessing(how), tenon.Over(n), tenon.Integer(n), tenon.In(tenon.From(x, in)), tenon.Out(out))
			got, err := tenon.Read[int32](x, out)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("up to %d, Guess %s: other values", limit, how)
			}
		}
	}
}

// TestGuessJumps: one condition guards all rare parts of a Guess, and one without rare parts leaves the kernel as it is.
func TestGuessJumps(t *testing.T) {
	ifs := func(build func(k *kernel.Builder, v kernel.Value) []kernel.Value) int {
		p, err := kernel.Build("k", func(k *kernel.Builder) {
			b := k.Buffer("b", tenon.Float32)
			for i, v := range build(k, b.Load(k.I32(0))) {
				b.Store(k.I32(i), v)
			}
		}).Program()
		if err != nil {
			t.Fatal(err)
		}
		top := 0
		for _, in := range p.Body.Instrs {
			if in.Op == kir.OpIf {
				top++
			}
		}
		return top
	}
	rare := func(k *kernel.Builder, v kernel.Value) []kernel.Value {
		var all []kernel.Value
		for range 4 {
			w := k.Var(v.Mul(v))
			k.Rarely(v.Gt(k.F32(9)), func() { w.Set(k.F32(81)) })
			all = append(all, w.Get())
		}
		return all
	}
	none := func(k *kernel.Builder, v kernel.Value) []kernel.Value { return []kernel.Value{v.Mul(v)} }
	guess := func(f func(k *kernel.Builder, v kernel.Value) []kernel.Value) func(k *kernel.Builder, v kernel.Value) []kernel.Value {
		return func(k *kernel.Builder, v kernel.Value) []kernel.Value {
			return k.Guess(func() []kernel.Value { return f(k, v) })
		}
	}
	if got := []int{ifs(rare), ifs(guess(rare)), ifs(none), ifs(guess(none))}; !slices.Equal(got, []int{4, 1, 0, 0}) {
		t.Errorf("the kernels have %d conditions, want 4 without and 1 with Guess, and none without rare parts", got)
	}
	text := func(f func(k *kernel.Builder, v kernel.Value) []kernel.Value) string {
		p, err := kernel.Build("k", func(k *kernel.Builder) {
			b := k.Buffer("b", tenon.Float32)
			b.Store(k.I32(0), f(k, b.Load(k.I32(0)))[0])
		}).Program()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(string(kir.Print(p))), " ")
	}
	if text(none) != text(guess(none)) {
		t.Error("a Guess without rare parts changes the kernel")
	}
}
