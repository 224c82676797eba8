package compile_test

import (
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
)

// The stacks of what a region allocates, which happens when its segment runs, show the region's method, and nothing that is inside of it.
func TestStacksOfRegions(t *testing.T) {
	x := open(t)
	dev := x.Device()
	must(t, dev.RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryAll, Context: cuda.ContextAlloc, Stacks: cuda.StacksGo}))
	a := x.Ones([]int{64}, tenon.Float32)
	r := compile.New()
	for range 3 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error { return tenon.Try(func() { y = x.Keep(x.Exp(x.Neg(a))) }) }))
		y.Close()
	}
	s, err := dev.Snapshot()
	must(t, err)
	seen := false
	for _, e := range s.Trace(dev.Ordinal()) {
		for _, f := range e.Frames {
			seen = seen || strings.HasSuffix(f.Name, "compile.(*Region).Do")
			if f.Name == "tenon.Try" || strings.Contains(f.Name, "compile.(*trace)") || strings.Contains(f.Name, "compile.(*forest)") {
				t.Errorf("a stack of %s shows %s", e.Action, f.Name)
			}
		}
	}
	if !seen {
		t.Error("no stack shows the region's method")
	}
}
