package tenon_test

import (
	"fmt"
	"log"
	"maps"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/data"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// A network learns which points lie within a circle. After a few steps, each is the launch of one graph.
func Example_training() {
	x, err := tenon.Open(tenon.Best())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	points := x.RandN([]int{512, 2}, tenon.Float32)
	labels := x.ToDType(x.LtS(x.VectorNorm(points, []int{-1}), 1.2), tenon.Int64)
	model := nn.Sequential{nn.NewLinear(x, 2, 64), nn.ReLU{}, nn.NewLinear(x, 64, 2)}
	adamw, err := optim.NewAdamW(nn.Params(model), optim.AdamOpt{LR: 0.01})
	if err != nil {
		log.Fatal(err)
	}
	step := compile.New()
	for range 200 {
		err := step.Do(x, func(x *tenon.Exec) error {
			adamw.ZeroGrad()
			loss := x.CrossEntropy(model.Forward(x, points), labels)
			if err := x.Backward(loss); err != nil {
				return err
			}
			return adamw.Step(x)
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	err = x.NoGrad().Do(func(x *tenon.Exec) error {
		right := x.Mean(x.ToDType(x.Eq(x.ArgMax(model.Forward(x, points), []int{-1}), labels), tenon.Float32), nil)
		accuracy, err := x.Item(right)
		fmt.Println(accuracy > 0.95, step.Stats(x).Replays > 190)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: true true
}

// The gradients of two batches are added up before each step of the optimizer.
func Example_gradientAccumulation() {
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	points := make([]float32, 2*20)
	for i := range points {
		points[i] = float32(i%7) - 3
	}
	samples, err := data.NewTable(data.NewColumn(points, 2), data.NewColumn(make([]int64, 20)))
	if err != nil {
		log.Fatal(err)
	}
	loader, err := data.NewLoader(samples, data.LoaderOpt{BatchSize: 4})
	if err != nil {
		log.Fatal(err)
	}
	model := nn.NewLinear(x, 2, 2)
	adamw, err := optim.NewAdamW(nn.Params(model))
	if err != nil {
		log.Fatal(err)
	}

	const group = 2
	region, steps := compile.New(), 0
	for range 6 {
		for batch, err := range loader.Epoch(x) {
			if err != nil {
				log.Fatal(err)
			}
			first, last := batch.Index%group == 0, batch.Index%group == group-1 || batch.Last
			err := region.Do(x, func(x *tenon.Exec) error {
				if first {
					adamw.ZeroGrad()
				}
				loss := x.CrossEntropy(model.Forward(x, batch.Tensors[0]), batch.Tensors[1])
				if err := x.Backward(x.DivS(loss, group)); err != nil || !last {
					return err
				}
				return adamw.Step(x)
			})
			if err != nil {
				log.Fatal(err)
			}
			if last {
				steps++
			}
		}
	}
	s := region.Stats(x) // of three kinds of runs, each recorded once, or twice if the loader put its second batch elsewhere
	fmt.Println(steps, "steps,", s.Recordings <= 2*3, s.Replays > 20)
	// Output: 18 steps, true true
}

// A second model follows the first one: after each step its parameters move a part of the way, and its buffers are copied.
func Example_averagedModel() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	build := func() nn.Sequential {
		return nn.Sequential{nn.NewLinear(x, 2, 3), nn.NewBatchNorm1d(x, 3), nn.NewLinear(x, 3, 1)}
	}
	model, average := build(), build()
	defer nn.Close(model)
	defer nn.Close(average)
	if err := nn.Load(x, average, maps.Collect(nn.StateDict(model))); err != nil {
		log.Fatal(err)
	}
	follow := func(x *tenon.Exec, part float64) {
		free := x.NoGrad()
		trained := maps.Collect(nn.Params(model))
		for name, p := range nn.Params(average) {
			e := p.Tensor()
			free.LerpSInto(e, e, trained[name].Tensor(), part)
		}
		state := maps.Collect(nn.Buffers(model))
		for name, b := range nn.Buffers(average) {
			free.CopyInto(b.Tensor(), state[name].Tensor())
		}
	}
	for _, p := range nn.Params(model) { // in place of a step
		x.NoGrad().FillInto(p.Tensor(), 1)
	}
	for _, p := range nn.Params(average) {
		x.NoGrad().FillInto(p.Tensor(), 0)
	}
	for range 2 {
		follow(x, 0.25)
	}
	for name, p := range nn.Params(average) {
		v, err := tenon.Read[float32](x, p.Tensor())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(name, v[0])
		break
	}
	// Output: 0.weight 0.4375
}
