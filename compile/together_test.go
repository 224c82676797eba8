package compile_test

import (
	"errors"
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
)

// An all-or-nothing change stays one if it is deferred, in whole or in part, if it stops half-way, and if it is nested in another one.
func TestTogether(t *testing.T) {
	x := open(t)
	planned := tenon.Try(func() { x.View(x.Zeros([]int{2}, tenon.Float32), 3) })
	if planned == nil {
		t.Fatal("nothing stops")
	}
	// step changes a first, and then b and c together; stop ends that half-way, and more adds a call to it that is new.
	step := func(x *tenon.Exec, a, b, c *tenon.Tensor, stop bool, more int) (undone bool, err error) {
		x.AddSInto(a, a, 1)
		err = tenon.Try(func() {
			core.Together((*core.Exec)(x), "Both", func(cx *core.Exec) {
				x := (*tenon.Exec)(cx)
				core.Undo(cx, func() { undone = true })
				x.NormalInto(b, 0, 1)
				core.Together(cx, "Within", func(*core.Exec) { x.AddInto(b, b, a) })
				if more > 0 {
					x.AddInto(b, b, x.Select(x.Ones([]int{more, 2}, tenon.Float32), 0, 0))
				}
				if stop {
					panic(planned)
				}
				x.AddInto(c, c, b)
			})
		})
		if stop == errors.Is(err, planned) && (stop || err == nil) {
			err = nil
		}
		x.MulSInto(a, a, 2)
		return undone, err
	}
	run := func(r *compile.Region) (out string) {
		must(t, x.Generator().SetSeed(4))
		a, b, c := x.Ones([]int{2}, tenon.Float32), x.Ones([]int{2}, tenon.Float32), x.Ones([]int{2}, tenon.Float32)
		for i := range 12 {
			stop, more := i%3 == 2, 0
			if i%4 == 3 {
				more = i
			}
			f := func(x *tenon.Exec) error {
				undone, err := step(x, a, b, c, stop, more)
				if undone != stop {
					t.Errorf("run %d: undone is %v", i, undone)
				}
				out += fmt.Sprintf("%x %d %d %d\n", x.Generator().State(), a.Version(), b.Version(), c.Version())
				return err
			}
			if r == nil {
				x.Scope(func(x *tenon.Exec) { must(t, f(x)) })
			} else {
				must(t, r.Do(x, f))
			}
			for _, v := range []*tenon.Tensor{a, b, c} {
				bytes, err := x.Bytes(v)
				must(t, err)
				out += fmt.Sprintf("%s\n", digest(bytes))
			}
		}
		return out
	}
	want := run(nil)
	r := compile.New()
	if got := run(r); got != want {
		t.Errorf("in a region\n%s\nwant\n%s", got, want)
	}
	if s := r.Stats(x); s.Deferred < 30 || s.Replays == 0 {
		t.Errorf("%+v", s)
	}
}
