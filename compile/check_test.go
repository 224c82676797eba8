package compile

import (
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/core"
)

// An output that does not lie in the pool is reported with its address.
func TestCheckPool(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	f := Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) }, Opt{CheckPool: true})
	in := x.Ones([]int{4}, tenon.Float32)
	y := f.Call(x, in)
	c := (*core.Exec)(x)
	fo := forestOf(c, c.Device(), false)
	if err := fo.checkPool(func(core.Store) bool { return false }); err != nil {
		t.Error(err)
	}
	other := fo.warm[0]
	other.Store = core.StoreOf((*core.Tensor)(in))
	fo.warm = append(fo.warm, other)
	err = fo.checkPool(func(core.Store) bool { return false })
	if err == nil || !strings.Contains(err.Error(), "are not allocated in pool") ||
		!strings.Contains(err.Error(), sprintf("%#x", in.DataPtr())) {
		t.Errorf("an output that lies elsewhere: %v", err)
	}
	fo.warm = fo.warm[:1]
	y.Close()
}

// Outputs of a warm-up for which the pool had no room lie elsewhere, which is no error of the warm-ups after it.
func TestCheckPoolWithoutRoom(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(4 << 20))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	f := Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sin(a) }, Opt{CheckPool: true})
	g := Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Cos(a) }, Opt{CheckPool: true})
	in := x.Ones([]int{4}, tenon.Float32)
	var ballast []*tenon.Tensor
	for tenon.Try(func() { ballast = append(ballast, x.Empty([]int{1 << 20}, tenon.Uint8)) }) == nil {
		continue
	}
	if err := MarkStep(x); err != nil { // so that both calls belong to one step
		t.Fatal(err)
	}
	x.Scope(func(x *tenon.Exec) {
		y := f.Call(x, in)
		for _, t := range ballast {
			t.Close()
		}
		if err := tenon.Try(func() { g.Call(x, y) }); err != nil {
			t.Error(err)
		}
	})
	if s := g.Stats(x); s.WarmUps != 1 {
		t.Errorf("%+v", s)
	}
}

// Memory of the pool that belongs to no output is an error of the recording after which it is found, and of the warm-up.
func TestCheckPoolAfterEachRun(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	region := New(Opt{CheckPool: true})
	run := func(n int) error {
		var y *tenon.Tensor
		err := region.Do(x, func(x *tenon.Exec) error {
			y = x.Keep(x.MulS(x.Ones([]int{n}, tenon.Float32), 2))
			return nil
		})
		y.Close()
		return err
	}
	if err := run(4); err != nil {
		t.Fatal(err)
	}
	c := (*core.Exec)(x)
	pool := forestOf(c, c.Device(), false).pool
	b, err := pool.Alloc(512, alloc.Stream(x.Stream().Handle()))
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range []int{4, 8} { // a recording, and then a warm-up
		if err := run(n); err == nil || !strings.Contains(err.Error(), "not accounted for") ||
			!strings.Contains(err.Error(), sprintf("%#x", b.Addr())) {
			t.Errorf("%d elements, with memory that is no output: %v", n, err)
		}
		if s := region.Stats(x); s.Recordings != 1 || s.WarmUps != 1+i {
			t.Errorf("%d elements: %+v", n, s)
		}
	}
	if err := c.Device().Free(b); err != nil {
		t.Fatal(err)
	}
	if err := run(16); err != nil {
		t.Error(err)
	}
}
