package tenon_test

import (
	"fmt"
	"log"
	"slices"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// A training step is captured as one graph, whose learning rate a schedule changes between replays.
func Example_capturedTraining() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	model := nn.Sequential{nn.NewLinear(x, 2, 16), nn.Tanh{}, nn.NewLinear(x, 16, 1)}
	adamw, err := optim.NewAdamW(nn.Params(model), optim.AdamOpt{LR: 0.05})
	if err != nil {
		log.Fatal(err)
	}
	if err := adamw.SetLRTensor(0, x.Full(nil, adamw.LR(0), tenon.Float32)); err != nil {
		log.Fatal(err)
	}
	schedule, err := optim.NewSchedule(adamw, optim.CosineAnnealingLR(100))
	if err != nil {
		log.Fatal(err)
	}

	in, want := x.Zeros([]int{32, 2}, tenon.Float32), x.Zeros([]int{32, 1}, tenon.Float32)
	loss := x.Zeros(nil, tenon.Float32)
	step := func(x *tenon.Exec) error {
		adamw.ZeroGrad()
		l := x.MSELoss(model.Forward(x, in), want)
		if err := x.Backward(l); err != nil {
			return err
		}
		x.NoGrad().CopyInto(loss, l)
		return adamw.Step(x)
	}
	// The first step makes the optimizer's state, so it is not captured.
	if err := x.Do(step); err != nil {
		log.Fatal(err)
	}
	graph, err := x.Capture(func(x *tenon.Exec) { _ = step(x) }) // it returns an error of Backward or Step too
	if err != nil {
		log.Fatal(err)
	}
	defer graph.Close()

	var losses []float32
	for range 100 {
		err := x.Do(func(x *tenon.Exec) error {
			batch := x.RandN([]int{32, 2}, tenon.Float32)
			x.CopyInto(in, batch)
			x.CopyInto(want, x.Prod(batch, []int{1}, tenon.SumOpt{KeepDim: true}))
			return x.Replay(graph)
		})
		if err != nil {
			log.Fatal(err)
		}
		if err := schedule.Step(); err != nil {
			log.Fatal(err)
		}
		l, err := x.Item(loss)
		if err != nil {
			log.Fatal(err)
		}
		losses = append(losses, float32(l))
	}
	fmt.Println(slices.Min(losses[90:]) < losses[0]/2, adamw.LR(0) < 1e-9)
	// Output: true true
}

// A model serves several goroutines, each with an Exec of its own.
func Example_serving() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	model := nn.Sequential{nn.NewLinear(x, 4, 8), nn.ReLU{}, nn.NewLinear(x, 8, 3)}
	nn.Eval(model)

	type reply struct {
		scores []float32
		err    error
	}
	type request struct {
		features []float32
		answer   chan reply
	}
	requests := make(chan request)
	served := make(chan error)
	go func() {
		err := x.NoGrad().Parallel(4, func(x *tenon.Exec, worker int) error {
			for r := range requests {
				var out reply
				out.err = x.Do(func(x *tenon.Exec) (err error) {
					in := tenon.From(x, r.features, 1, len(r.features))
					out.scores, err = tenon.Read[float32](x, x.Softmax(model.Forward(x, in), -1))
					return err
				})
				r.answer <- out
			}
			return nil
		})
		for r := range requests { // all workers have ended: while requests still come, no worker got an Exec, and err says why
			r.answer <- reply{err: err}
		}
		served <- err
	}()

	for _, features := range [][]float32{{1, 2, 3, 4}, {1, 2}} {
		r := request{features, make(chan reply, 1)}
		requests <- r
		out := <-r.answer
		fmt.Println(len(out.scores), out.err != nil)
	}
	close(requests)
	if err := <-served; err != nil {
		log.Fatal(err)
	}
	// Output:
	// 3 false
	// 0 true
}

// A worker answers waiting requests together, by a graph of a whole batch.
func Example_batching() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	model := nn.Sequential{nn.NewLinear(x, 4, 8), nn.ReLU{}, nn.NewLinear(x, 8, 3)}
	nn.Eval(model)

	type reply struct {
		scores []float32
		err    error
	}
	type request struct {
		features []float32
		answer   chan reply
	}
	requests := make(chan request, 10)
	all := make([]request, 5)
	for i := range all {
		all[i] = request{[]float32{1, 2, 3, float32(i)}, make(chan reply, 1)}
		requests <- all[i]
	}
	close(requests)

	const most, features, classes = 4, 4, 3
	nn.SetRequiresGrad(model, false) // once, before the workers start; otherwise Graph captures a backward pass too
	y, err := x.Fork()
	if err != nil {
		log.Fatal(err)
	}
	defer y.Close()
	y = y.NoGrad() // in each worker; y is its Exec
	graph, err := nn.Graph(y, model, y.Zeros([]int{most, features}, tenon.Float32))
	if err != nil {
		log.Fatal(err)
	}
	defer graph.Close()
	for first := range requests {
		batch := append(make([]request, 0, most), first)
		for waiting := true; waiting && len(batch) < most; {
			select {
			case r, open := <-requests:
				if waiting = open; open {
					batch = append(batch, r)
				}
			default:
				waiting = false
			}
		}
		rows := make([]float32, most*features) // a smaller batch is padded with zeros: the graph has one shape
		for i, r := range batch {
			copy(rows[i*features:(i+1)*features], r.features) // requests of another length were refused on arrival
		}
		var scores []float32
		err := y.Do(func(y *tenon.Exec) (err error) {
			scores, err = tenon.Read[float32](y, y.Softmax(graph.Forward(y, tenon.From(y, rows, most, features)), -1))
			return err
		})
		for i, r := range batch {
			out := reply{err: err}
			if err == nil {
				out.scores = scores[i*classes : (i+1)*classes]
			}
			r.answer <- out
		}
	}
	for _, r := range all {
		out := <-r.answer
		fmt.Print(len(out.scores), " ", out.err, " ")
	}
	// Output:
	// 3 <nil> 3 <nil> 3 <nil> 3 <nil> 3 <nil>
}
