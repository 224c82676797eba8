package optim_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"

	"tenon.dev"
	"tenon.dev/data"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/torchfile"
)

// Training writes a checkpoint after every third step, and resumes from one that it finds.
func ExampleCheckpoint() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "run.pt")
	for range 2 { // the first time no file exists, the second time only two steps remain
		if err := train(file, 2); err != nil {
			log.Fatal(err)
		}
	}
	if err := readModel(file); err != nil {
		log.Fatal(err)
	}
	// Output:
	// from step 0 to step 8
	// from step 6 to step 8
	// 0.weight [8 4]
	// 0.bias [8]
	// 3.weight [2 8]
	// 3.bias [2]
}

func train(file string, epochs int) error {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		return err
	}
	defer x.Close()
	model := nn.Sequential{nn.NewLinear(x, 4, 8), nn.ReLU{}, nn.NewDropout(0.1), nn.NewLinear(x, 8, 2)}
	adamw, err := optim.NewAdamW(nn.Params(model), optim.AdamOpt{LR: 0.01})
	if err != nil {
		return err
	}
	schedule, err := optim.NewSchedule(adamw, optim.CosineAnnealingLR(100))
	if err != nil {
		return err
	}
	samples, err := data.NewTable(data.NewColumn(make([]float32, 64), 4), data.NewColumn(make([]int64, 16)))
	if err != nil {
		return err
	}
	loader, err := data.NewLoader(samples, data.LoaderOpt{BatchSize: 4, Shuffle: true})
	if err != nil {
		return err
	}

	var progress struct {
		Steps int
		Best  float64
	}
	checkpoint := &optim.Checkpoint{Model: model, Optimizer: adamw, Schedule: schedule, Loader: loader, Extra: &progress}
	if err := checkpoint.Load(x, file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	began := progress.Steps
	for loader.State().Epoch < epochs {
		for batch, err := range loader.Epoch(x) {
			if err != nil {
				return err
			}
			err := x.Do(func(x *tenon.Exec) error {
				adamw.ZeroGrad()
				loss := x.CrossEntropy(model.Forward(x, batch.Tensors[0]), batch.Tensors[1])
				if err := x.Backward(loss); err != nil {
					return err
				}
				if err := adamw.Step(x); err != nil {
					return err
				}
				return schedule.Step()
			})
			if err != nil {
				return err
			}
			progress.Steps++
			if progress.Steps%3 == 0 {
				if err := checkpoint.Save(x, file); err != nil {
					return err
				}
			}
		}
	}
	fmt.Println("from step", began, "to step", progress.Steps)
	return nil
}

// readModel reads only the model from a checkpoint.
func readModel(name string) error {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		return err
	}
	defer x.Close()
	model := nn.Sequential{nn.NewLinear(x, 4, 8), nn.ReLU{}, nn.NewDropout(0.1), nn.NewLinear(x, 8, 2)}
	nn.Eval(model)

	file, err := torchfile.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	return x.Do(func(x *tenon.Exec) error {
		state, err := file.StateDict(x, "model")
		if err != nil {
			return err
		}
		for key, t := range nn.StateDict(model) {
			fmt.Println(key, t.Shape())
		}
		return nn.Load(x, model, state)
	})
}
