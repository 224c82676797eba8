package compile_test

import (
	"errors"
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
)

// drawing draws in every way, with results that nobody reads, a seed and a read of the state in between, and draws of another session from
// the same generator, and returns the bits of everything.
func drawing(t *testing.T, x, other *tenon.Exec, g *cuda.Generator, r *compile.Region, runs int) (out string) {
	t.Helper()
	must(t, x.Generator().SetSeed(7))
	must(t, g.SetSeed(8))
	p := x.Full([]int{3, 4}, 0.25, tenon.Float32)
	h := x.ToDType(p, tenon.Float16)
	dst := x.Zeros([]int{5}, tenon.Float32)
	for i := range runs {
		var all []*tenon.Tensor
		f := func(x *tenon.Exec) error {
			z := x.WithGenerator(g)
			all = append(all, x.Rand([]int{7}, tenon.Float32), z.RandN([]int{300}, tenon.Float64), x.RandInt(9, []int{4}, tenon.Int64))
			x.Rand([]int{1000}, tenon.Float32).Close() // nobody reads it
			all = append(all, x.Bernoulli(p), x.Bernoulli(h), x.Dropout(p, 0.5), x.Multinomial(p, 2))
			out += fmt.Sprintf("%x\n", x.Generator().State())
			all = append(all, x.Multinomial(p, 3, tenon.MultinomialOpt{Replacement: true}), x.Rand([]int{0}, tenon.Float32))
			if err := x.Generator().SetSeed(uint64(i)); err != nil {
				return err
			}
			heads := x.Reshape(x.Expand(x.Unsqueeze(h, 0), 8, 3, 4), 1, 2, 3, 16)
			all = append(all, x.Dropout(p, 0.5), x.ScaledDotProductAttention(heads, heads, heads, tenon.AttentionOpt{Dropout: 0.5}))
			theirs, err := other.WithGenerator(g).Bytes(other.WithGenerator(g).Rand([]int{2}, tenon.Float32))
			out += fmt.Sprintf("theirs %x\n", theirs)
			z.NormalInto(dst, 0, float64(i+1))
			all = append(all, x.Clone(dst))
			for j, a := range all {
				all[j] = x.Keep(a)
			}
			if r != nil && i > 0 && deferred(x) < 15 {
				t.Errorf("run %d: %d calls are deferred", i, deferred(x))
			}
			return err
		}
		if r == nil {
			x.Scope(func(x *tenon.Exec) { must(t, f(x)) })
		} else {
			must(t, r.Do(x, f))
		}
		for _, a := range all {
			b, err := x.Bytes(a)
			must(t, err)
			out += fmt.Sprintf("%x\n", b)
			a.Close()
		}
		out += fmt.Sprintf("%x %x\n", x.Generator().State(), g.State())
	}
	return out
}

// Draws take their numbers when they are called, whatever happens to the generator before they run.
func TestDraws(t *testing.T) {
	x := open(t)
	other, err := x.Fork()
	must(t, err)
	g := cuda.NewGenerator(1)
	r := compile.New()
	if got, want := drawing(t, x, other, g, r, 4), drawing(t, x, other, g, nil, 4); got != want {
		t.Errorf("in a region the draws are\n%s\nwant\n%s", got, want)
	}
	if s := r.Stats(x); s.Eager > 0 || s.Forced > 0 {
		t.Errorf("not all was deferred: %+v", s)
	}
}

// A region that fails leaves the generator where eager execution leaves it when it fails at the same call.
func TestFailedDraws(t *testing.T) {
	x := openOn(t, tenon.Sim(64<<20))
	one := x.Ones([]int{1}, tenon.Float32)
	var kept []*tenon.Tensor // a result that nobody needs is not computed
	defer func() {
		for _, t := range kept {
			t.Close()
		}
	}()
	f := func(n int) func(x *tenon.Exec) error {
		return func(x *tenon.Exec) error {
			x.Rand([]int{4}, tenon.Float32)
			kept = append(kept, x.Keep(x.AddS(x.Expand(one, n), 1)))
			x.Rand([]int{5000}, tenon.Float32)
			x.Dropout(one, 0.5)
			return nil
		}
	}
	offset := func(run func() error, want bool) uint64 {
		t.Helper()
		must(t, x.Generator().SetSeed(3))
		err := run()
		var e *tenon.Error
		if failed := errors.As(err, &e) && e.Kind == tenon.OutOfMemory; failed != want {
			t.Fatal(err)
		}
		return x.Generator().Offset()
	}
	const much = 1 << 26
	eager := func() error { return tenon.Try(func() { x.Scope(func(x *tenon.Exec) { _ = f(much)(x) }) }) }
	r := compile.New()
	for _, n := range []int{4, much, 4, much} { // a different size branches
		must := n == much
		offset(func() error { return r.Do(x, f(n)) }, must)
	}
	want, got := offset(eager, true), offset(func() error { return r.Do(x, f(much)) }, true)
	if got != want || want == 0 {
		t.Errorf("the generator is at %d, want %d", got, want)
	}
}

// A checkpointed segment draws the same numbers again in its backward pass, from a generator that differs in every run.
func TestCheckpointedDraws(t *testing.T) {
	x := open(t)
	p := tenon.From(x, []float32{1, 2, 3, 4}, 4).SetRequiresGrad(true)
	step := func(x *tenon.Exec) error {
		y := x.Checkpoint(func(x *tenon.Exec, ins []*tenon.Tensor) []*tenon.Tensor {
			return []*tenon.Tensor{x.Exp(x.Dropout(x.MulS(ins[0], 0.5), 0.5))}
		}, p)[0]
		return x.Backward(x.Sum(y, nil))
	}
	r := compile.New()
	run := func(do func(f func(x *tenon.Exec) error) error) (out string) {
		must(t, x.Generator().SetSeed(9))
		for range 5 {
			must(t, do(step))
			b, err := x.Bytes(p.Grad())
			must(t, err)
			out += fmt.Sprintf("%x %x\n", b, x.Generator().State())
			p.SetGrad(nil)
		}
		return out
	}
	want := run(func(f func(x *tenon.Exec) error) (err error) {
		x.Scope(func(x *tenon.Exec) { err = f(x) })
		return err
	})
	if got := run(func(f func(x *tenon.Exec) error) error { return r.Do(x, f) }); got != want {
		t.Errorf("in a region the gradients are\n%s\nwant\n%s", got, want)
	}
	if s := r.Stats(x); s.Forced > 0 || s.Eager > 0 || s.Deferred < 40 {
		t.Errorf("not all was deferred: %+v", s)
	}
}
