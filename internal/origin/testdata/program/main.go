// Program makes mistakes on every route from a program's line to an operation. For each it prints the route and the line that the error
// names.
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/fault"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.development/x/layers"
)

// hidden has a module that nn.Params refuses.
type hidden struct{ lin *nn.Linear }

// net has the method Forward of its part.
type net struct{ *nn.Linear }

func main() {
	x, err := tenon.Open(tenon.CPU())
	stop(err)
	defer x.Close()
	a, b := x.Ones([]int{2, 3}, tenon.Float32), x.Ones([]int{2, 5}, tenon.Float32)
	bad := nn.Sequential{nn.NewLinear(x, 3, 4), nn.NewLinear(x, 5, 2)}
	deep := nn.Module(bad)
	for range 40 {
		deep = nn.Sequential{deep}
	}
	says("direct", func() { x.Add(a, b) })
	says("sequential", func() { bad.Forward(x, a) })
	says("deep", func() { deep.Forward(x, a) })
	says("module", func() { nn.Module(net{nn.NewLinear(x, 3, 4)}).Forward(x, b) })
	says("nil", func() { nn.Sequential{nil}.Forward(x, a) })
	says("params", func() {
		for range nn.Params(&hidden{nn.NewLinear(x, 2, 2)}) { // at params
		}
	})
	says("buffers", func() {
		next := nn.Buffers(&hidden{nn.NewLinear(x, 2, 2)})
		for range next { // at buffers
		}
	})
	says("collected", func() { maps.Collect(nn.StateDict(&hidden{nn.NewLinear(x, 2, 2)})) })
	says("body", func() {
		for range nn.Params(bad) {
			x.Add(a, b) // at body
		}
	})
	says("within", func() {
		x.Within(func(x *tenon.Exec) *tenon.Tensor {
			return x.Add(a, b) // at within
		})
	})
	says("function", func() {
		x.Within(func(x *tenon.Exec) *tenon.Tensor { return bad.Forward(x, a) }) // at function
	})
	says("called back", func() {
		nn.Sequential{nn.Func(func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
			return x.Add(in, b) // at called back
		})}.Forward(x, a)
	})
	says("generic", func() { tenon.From(x, []float32{1, 2, 3}, 2, 2) })
	says("method value", func() { add := x.Add; add(a, b) })
	says("method expression", func() { add := (*tenon.Exec).Add; add(x, a, b) })
	says("deferred", func() { defer x.Add(a, b) })
	says("layer", func() { layers.Twice{}.Forward(x, a, b) })
	says("layer's loop", func() { layers.Each(x, bad, a, b) })
	names(x)
	history(x)
}

// names makes mistakes in functions of the packages above the root, and prints the operation that each error names.
func names(x *tenon.Exec) {
	t := x.Ones([]int{2, 3}, tenon.Float32)
	closed, err := x.Fork()
	stop(err)
	lin, net := nn.NewLinear(x, 3, 4), nn.Sequential{nn.NewLinear(x, 5, 4)}
	gru := nn.NewGRU(x, 3, 4)
	scaler, err := optim.NewGradScaler()
	stop(err)
	stop(closed.Close())
	gone := x.Ones([]int{2, 3}, tenon.Float32)
	gone.Close()
	calls("NewLinear", func() { nn.NewLinear(closed, 2, 2) })
	calls("NewLayerNorm", func() { nn.NewLayerNorm(closed, []int{2}) })
	calls("InitNormal", func() { nn.InitNormal(x, gone, 0, 1) })
	calls("GradScaler.Scale", func() { scaler.Scale(closed, t) })
	calls("Linear", func() { lin.Forward(x, x.Ones([]int{2, 5}, tenon.Float32)) })
	calls("Linear", func() { net.Forward(x, t) })
	calls("Linear", func() { nn.Checkpoint(x, net, t) })
	calls("Sequential.Forward", func() { net.Forward(closed, t) })
	calls("GRU.Forward", func() { gru.Forward(closed, t) })
	calls("Add", func() { x.Within(func(x *tenon.Exec) *tenon.Tensor { return x.Add(t, gone) }) })
}

// calls prints the operation that f's error names, after the one that it should name.
func calls(want string, f func()) {
	var e *fault.Error
	if !errors.As(tenon.Try(f), &e) {
		e = &fault.Error{}
	}
	fmt.Printf("name\t%s %s\n", want, e.Op)
}

// history prints the stack of an allocation.
func history(x *tenon.Exec) {
	stop(x.Device().RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryAll, Context: cuda.ContextAlloc, Stacks: cuda.StacksGo, MaxEntries: 1}))
	x.Scope(func(x *tenon.Exec) {
		model := nn.Sequential{nn.Sequential{nn.NewLinear(x, 64, 32)}}
		in := x.Ones([]int{64}, tenon.Float32)
		x.Within(func(x *tenon.Exec) *tenon.Tensor { return model.Forward(x, in) })
	})
	s, err := x.Device().Snapshot()
	stop(err)
	for _, f := range s.Trace(0)[0].Frames {
		fmt.Printf("stack\t%s\n", f.Name)
	}
}

// says prints the line that f's error names.
func says(route string, f func()) {
	var e *fault.Error
	if !errors.As(tenon.Try(f), &e) {
		e = &fault.Error{}
	}
	fmt.Printf("%s\t%s:%d\n", route, e.File, e.Line)
}

func stop(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
