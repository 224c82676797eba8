package compile_test

import (
	"bytes"
	"errors"
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

func Example() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	w := tenon.From(x, []float32{1, 2}, 2)
	w.SetRequiresGrad(true)
	const steps = 4
	train := func(x *tenon.Exec, i int) error {
		loss := x.Sum(x.Mul(w, w), nil)
		if err := x.Backward(loss); err != nil {
			return err
		}
		ng := x.NoGrad()
		ng.AddInto(w, w, ng.MulS(w.Grad(), -0.25))
		w.SetGrad(nil)
		return nil
	}

	step := compile.New()
	for i := range steps {
		err := step.Do(x, func(x *tenon.Exec) error {
			return train(x, i)
		})
		if err != nil {
			log.Fatal(err)
		}
	}

	v, err := tenon.Read[float32](x, w)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(v, step.Stats(x).Deferred > 0)
	// Output: [0.0625 0.125] true
}

func ExampleFunc() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	model := nn.Sequential{nn.NewLinear(x, 2, 8), nn.ReLU{}, nn.NewLinear(x, 8, 1)}
	in := tenon.From(x, []float32{1, 2}, 1, 2)

	net := compile.Func(model.Forward)
	y := net.Call(x, in)

	fmt.Println(y.Shape())
	// Output: [1 1]
}

// A callable of forward pass and loss is a part of a training step. Autocast is called inside, so that the copies of the parameters need no
// memory until the backward pass.
func ExampleFunc_training() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	model := nn.Sequential{nn.NewLinear(x, 2, 8), nn.GELU{}, nn.NewLinear(x, 8, 3)}
	sgd, err := optim.NewSGD(nn.Params(model), optim.SGDOpt{LR: 0.1})
	if err != nil {
		log.Fatal(err)
	}
	in := tenon.From(x, []float32{1, 2, -1, 1}, 2, 2)
	want := tenon.From(x, []int64{2, 0}, 2)

	forward := compile.Func(func(x *tenon.Exec, in, want *tenon.Tensor) *tenon.Tensor {
		low := x.Autocast(tenon.BFloat16)
		return low.CrossEntropy(model.Forward(low, in), want)
	})
	for range 5 {
		x.Scope(func(x *tenon.Exec) {
			loss := forward.Call(x, in, want)
			if err := errors.Join(x.Backward(loss), sgd.Step(x)); err != nil {
				log.Fatal(err)
			}
			sgd.ZeroGrad()
		})
	}
	s := forward.Stats(x)
	fmt.Println(s.Replays, "replays;", s.Recomputed/s.Runs, "values are computed again in each backward pass")
	// Output: 3 replays; 4 values are computed again in each backward pass
}

// A step that reads nothing is one segment. Its loss is read after it.
func ExampleRegion_loss() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	line := nn.NewLinear(x, 1, 1)
	sgd, err := optim.NewSGD(nn.Params(line), optim.SGDOpt{LR: 0.1})
	if err != nil {
		log.Fatal(err)
	}
	in, target := x.Ones([]int{1, 1}, tenon.Float32), x.Zeros([]int{1, 1}, tenon.Float32)
	step := compile.New()

	last := x.Zeros(nil, tenon.Float32)
	for range 4 {
		err := step.Do(x, func(x *tenon.Exec) error {
			loss := x.MSELoss(line.Forward(x, in), target)
			x.NoGrad().CopyInto(last, loss)
			sgd.ZeroGrad()
			if err := x.Backward(loss); err != nil {
				return err
			}
			return sgd.Step(x)
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	v, err := x.Item(last)

	fmt.Println(v >= 0, err, step.Stats(x).Forced)
	// Output: true <nil> 0
}

func ExampleDisable() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	a := tenon.From(x, []float32{1, 2}, 2)
	forward := func(x *tenon.Exec) { x.AddSInto(a, a, 1) }
	debug := func(x *tenon.Exec) error {
		x.MulSInto(a, a, 2)
		return nil
	}

	step := compile.New()
	err = step.Do(x, func(x *tenon.Exec) error {
		forward(x)
		return compile.Disable(x, debug) // every call of debug runs at once
	})
	if err != nil {
		log.Fatal(err)
	}

	s := step.Stats(x)
	fmt.Println(s.Deferred, s.Eager)
	// Output: 1 1
}

func ExampleRegion_Explain() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	a := tenon.From(x, []float32{1, 2}, 2)
	file := &bytes.Buffer{}
	step := compile.New()
	for range 5 {
		err := step.Do(x, func(x *tenon.Exec) error {
			x.AddSInto(a, a, 1)
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}

	e := step.Explain(x)
	fmt.Println(e.Segments[0].Replays, e.Segments[0].Kernels[0].Name)
	err = e.WriteJSON(file)
	if err != nil {
		log.Fatal(err)
	}
	// Output: 3 Add
}

// A cache is written at a position that a tensor holds, so that each run makes the same calls and is the launch of one graph.
func Example_cache() {
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	sum := x.Zeros(nil, tenon.Float32)
	cache, at := x.Zeros([]int{2, 16, 3}, tenon.Float32), x.Zeros([]int{1}, tenon.Int64)
	decode := compile.New()
	for range 12 {
		err := decode.Do(x, func(x *tenon.Exec) error {
			k := x.Ones([]int{2, 1, 3}, tenon.Float32)
			x.IndexCopyInto(cache, cache, 1, at, k)
			x.CopyInto(sum, x.Sum(cache, nil))
			x.AddSInto(at, at, 1)
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(x.Item(sum))
	fmt.Println(decode.Stats(x).Replays)
	// Output:
	// 72 <nil>
	// 10
}
