// Resnet trains a small residual network in half precision. Its images are random, with one brighter quadrant, which the network learns
// to find. It shows autocast with a GradScaler, training steps as graphs, and a snapshot of the memory for tenon memviz.
//
//	go run ./examples/resnet
//	go run ./examples/resnet -compile -snapshot resnet.pickle && go run ./cmd/tenon memviz resnet.pickle
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// convolution returns a convolution followed by a batch norm.
func convolution(x *tenon.Exec, in, out, kernel, stride int) nn.Sequential {
	opt := nn.Conv2dOpt{Stride: [2]int{stride, stride}, Padding: [2]int{kernel / 2, kernel / 2}, NoBias: true}
	return nn.Sequential{nn.NewConv2d(x, in, out, [2]int{kernel, kernel}, opt), nn.NewBatchNorm2d(x, out)}
}

// residual adds the output of Body to its input, or to the output of Skip where the shapes differ.
type residual struct {
	Body nn.Sequential
	Skip nn.Sequential `torch:"downsample"`
}

func newResidual(x *tenon.Exec, in, out, stride int) *residual {
	r := &residual{Body: nn.Sequential{convolution(x, in, out, 3, stride), nn.ReLU{}, convolution(x, out, out, 3, 1)}}
	if stride != 1 || in != out {
		r.Skip = convolution(x, in, out, 1, stride)
	}
	return r
}

func (r *residual) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		return x.ReLU(x.Add(r.Body.Forward(x, in), r.Skip.Forward(x, in)))
	})
}

func newModel(x *tenon.Exec) nn.Sequential {
	return nn.Sequential{
		convolution(x, 3, 8, 3, 1), nn.ReLU{}, nn.MaxPool2d{Kernel: [2]int{2, 2}},
		newResidual(x, 8, 8, 1), newResidual(x, 8, 16, 2),
		nn.AdaptiveAvgPool2d{Size: [2]int{1, 1}}, nn.Flatten{}, nn.NewLinear(x, 16, 4),
	}
}

// draw returns n random images and the number of each one's bright quadrant.
func draw(x *tenon.Exec, n int) (images, labels *tenon.Tensor) {
	const half = 8
	labels = x.RandInt(4, []int{n}, tenon.Int64)
	bright := x.MulS(x.View(x.OneHot(labels, 4), n, 1, 2, 1, 2, 1), 0.5)
	noise := x.Rand([]int{n, 3, 2, half, 2, half}, tenon.Float32)
	return x.View(x.Add(noise, bright), n, 3, 2*half, 2*half), labels
}

// options are the command-line options.
type options struct {
	device, snapshot string
	steps            int
	compile, amp     bool
}

func main() {
	var o options
	flag.StringVar(&o.device, "device", "best", "best, cuda:1, cpu, sim, …")
	flag.StringVar(&o.snapshot, "snapshot", "", "file for a snapshot of the memory")
	flag.IntVar(&o.steps, "steps", 40, "training steps")
	flag.BoolVar(&o.compile, "compile", false, "run steps as graphs")
	flag.BoolVar(&o.amp, "amp", true, "compute in half precision")
	flag.Parse()
	if err := run(o, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(o options, out io.Writer) error {
	device, err := tenon.ParseSelector(o.device)
	if err != nil {
		return err
	}
	x, err := tenon.Open(device)
	if err != nil {
		return err
	}
	defer x.Close()
	x.Device().Generator().SetSeed(3)
	if o.snapshot != "" {
		history := cuda.History{MaxEntries: 100_000}
		if err := x.Device().RecordMemoryHistory(history); err != nil {
			return err
		}
	}
	model := newModel(x)
	defer nn.Close(model)
	if err := train(x, model, o, out); err != nil {
		return err
	}
	accuracy, err := evaluate(x, model, 64)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "accuracy %.2f\n", accuracy)
	if o.snapshot != "" {
		return x.Device().DumpSnapshot(o.snapshot)
	}
	return nil
}

// train takes training steps and prints the loss of every tenth.
func train(x *tenon.Exec, model nn.Module, o options, out io.Writer) error {
	sgd, err := optim.NewSGD(nn.Params(model), optim.SGDOpt{LR: 0.05, Momentum: 0.9, WeightDecay: 1e-4, Nesterov: true})
	if err != nil {
		return err
	}
	defer sgd.Close()
	scaler, err := optim.NewGradScaler(optim.GradScalerOpt{Disabled: !o.amp, InitScale: 1024})
	if err != nil {
		return err
	}
	defer scaler.Close()
	do := (*tenon.Exec).Do
	if o.compile {
		do = compile.New().Do
	}
	for step := range o.steps {
		var loss *tenon.Tensor
		err := do(x, func(x *tenon.Exec) error {
			forward := x
			if o.amp {
				forward = x.Autocast(tenon.Float16)
			}
			images, labels := draw(x, 16)
			loss = x.Keep(forward.CrossEntropy(model.Forward(forward, images), labels, tenon.CrossEntropyOpt{LabelSmoothing: 0.05}))
			sgd.ZeroGrad()
			if err := x.Backward(scaler.Scale(x, loss)); err != nil {
				return err
			}
			if err := scaler.Step(x, sgd); err != nil {
				return err
			}
			return scaler.Update(x)
		})
		if err != nil {
			return err
		}
		if step%10 == 9 {
			value, err := x.Item(loss)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "step %d  loss %.6f\n", step+1, value)
		}
		loss.Close()
	}
	return nil
}

// evaluate returns the fraction of n new images that the model classifies correctly.
func evaluate(x *tenon.Exec, model nn.Module, n int) (accuracy float64, err error) {
	nn.Eval(model)
	err = x.NoGrad().Do(func(x *tenon.Exec) error {
		images, labels := draw(x, n)
		right := x.Eq(x.ArgMax(model.Forward(x, images), []int{1}), labels)
		accuracy, err = x.Item(x.Mean(right, nil, tenon.SumOpt{DType: tenon.Float32}))
		return err
	})
	return accuracy, err
}
