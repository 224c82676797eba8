package compile

import (
	"strings"
	"testing"

	"tenon.dev"
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
	fo.warm = append(fo.warm, output{Store: core.StoreOf((*core.Tensor)(in)), f: fo.warm[0].f, about: fo.warm[0].about})
	err = fo.checkPool(func(core.Store) bool { return false })
	if err == nil || !strings.Contains(err.Error(), "are not allocated in pool") ||
		!strings.Contains(err.Error(), sprintf("%#x", in.DataPtr())) {
		t.Errorf("an output that lies elsewhere: %v", err)
	}
	fo.warm = fo.warm[:1]
	y.Close()
}
