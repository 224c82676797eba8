// Models times three models at their real sizes: training steps of GPT-2 with 124 million parameters and of ResNet-50, whose inference it
// times too, and decoding with a model of 1.2 billion parameters. Each runs eagerly and as a compiled region. Weights and data are random.
//
//	go run ./examples/models
//	go run ./examples/models -small -device sim
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/optim"
)

// work is what is timed. A run fills result, and reads nothing from the device.
type work struct {
	name   string
	result *tenon.Tensor
	run    func(x *tenon.Exec) error
}

// models make models of real or small size; a model lives until its device is closed.
var models = []func(x *tenon.Exec, small bool) ([]work, error){gpt2, resnet50, decoder}

// training returns training steps in bfloat16, whose result is the loss that forward computes.
func training(x *tenon.Exec, name string, opt optim.Optimizer, forward func(x *tenon.Exec) *tenon.Tensor) work {
	result := x.Zeros(nil, tenon.Float32)
	return work{name, result, func(x *tenon.Exec) error {
		opt.ZeroGrad()
		loss := forward(x.Autocast(tenon.BFloat16))
		x.CopyInto(result, x.Detach(loss))
		if err := x.Backward(loss); err != nil {
			return err
		}
		return opt.Step(x)
	}}
}

// measure returns the median time of a run in milliseconds, over samples of several runs.
func measure(x *tenon.Exec, o options, run func() error) (float64, error) {
	const warm = 2
	var times []float64
	for range warm + o.samples {
		began := time.Now()
		for range o.runs {
			if err := run(); err != nil {
				return 0, err
			}
		}
		if err := x.Synchronize(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(began).Seconds()*1e3/float64(o.runs))
	}
	times = times[warm:]
	slices.Sort(times)
	return times[len(times)/2], nil
}

// options are the command-line options.
type options struct {
	device        string
	small         bool
	runs, samples int
}

func main() {
	var o options
	flag.StringVar(&o.device, "device", "best", "best, cuda:1, cpu, sim, …")
	flag.BoolVar(&o.small, "small", false, "small models")
	flag.IntVar(&o.runs, "runs", 5, "runs in a sample")
	flag.IntVar(&o.samples, "samples", 5, "samples")
	flag.Parse()
	if err := run(o, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(o options, out io.Writer) error {
	for _, model := range models {
		if err := timed(o, out, model); err != nil {
			return err
		}
	}
	return nil
}

// timed times the work of a model on a device of its own, and prints the greatest memory so far.
func timed(o options, out io.Writer, model func(x *tenon.Exec, small bool) ([]work, error)) error {
	selector, err := tenon.ParseSelector(o.device)
	if err != nil {
		return err
	}
	x, err := tenon.Open(selector)
	if err != nil {
		return err
	}
	defer x.Close()
	return x.Do(func(x *tenon.Exec) error {
		all, err := model(x, o.small)
		if err != nil {
			return err
		}
		for _, w := range all {
			eager, err := measure(x, o, func() error { return x.Do(w.run) })
			if err != nil {
				return err
			}
			region := compile.New()
			compiled, err := measure(x, o, func() error { return region.Do(x, w.run) })
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%s: eager %.2f ms, compiled %.2f ms, at most %.2f GiB\n", w.name, eager, compiled,
				float64(x.Device().MaxMemoryAllocated())/(1<<30))
		}
		return nil
	})
}
