// Digits trains a small convolutional network on handwritten digits, on the best device available: an NVIDIA GPU or a simulated one.
// It must not depend on anything but the public packages of Tenon.
//
//	go run ./examples/digits
//	go run ./examples/digits -device cpu -epochs 5 -seed 1
//	go run ./examples/digits -compile
//
// Every fifth image is kept for testing and never trained on. With the same seed PyTorch's CPU generator gives the same initial weights and
// the same batches.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/data"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "digits:", err)
		os.Exit(1)
	}
}

// options are the command-line options.
type options struct {
	device        string
	epochs, batch int
	seed          uint64
	data, svg     string
	shuffleLabels bool
	compile       bool
}

func parse(args []string, out io.Writer) (o options, err error) {
	f := flag.NewFlagSet("digits", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.device, "device", "best", "best, cuda, cuda:1, …, cpu, sim, or sim:2GiB for a simulated device of that size")
	f.IntVar(&o.epochs, "epochs", 20, "how often to go through the training images")
	f.IntVar(&o.batch, "batch", 64, "images in a training step")
	f.Uint64Var(&o.seed, "seed", 0, "what weights and order begin with")
	f.StringVar(&o.data, "data", "", "CSV file with 64 pixels from 0 to 16 and a label in each line, also compressed; empty is the file "+
		"within the program")
	f.StringVar(&o.svg, "svg", "digits.svg", "file for the curves of loss and accuracy; empty is none")
	f.BoolVar(&o.shuffleLabels, "shuffle-labels", false, "give the training images each other's labels, so that there is nothing to learn")
	f.BoolVar(&o.compile, "compile", false, "run each training step as one graph from the third on; the results are the same")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(out)
			fmt.Fprintln(out, "digits trains a network on handwritten digits. Options:")
			f.PrintDefaults()
		}
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("there is no argument %q; options begin with a dash, and -h lists them", f.Arg(0))
	case o.epochs < 1:
		return o, fmt.Errorf("-epochs is %d; give at least 1", o.epochs)
	case o.batch < 1:
		return o, fmt.Errorf("-batch is %d; give at least 1", o.batch)
	}
	return o, nil
}

// run is main without the process. When ctx ends, it stops after the current step.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	sel, err := tenon.ParseSelector(o.device)
	if err != nil {
		return err
	}
	images, err := load(o.data)
	if err != nil {
		return err
	}
	train, test := split(images)
	if len(train) < o.batch {
		return fmt.Errorf("a batch of %d needs more than the %d training images that there are; give a smaller -batch", o.batch, len(train))
	}
	if o.shuffleLabels {
		shuffleLabels(train, o.seed)
	}
	x, err := tenon.Open(sel)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, x.Device().Name())
	var failed error
	if stopped := tenon.Try(func() { failed = learn(ctx, x, o, train, test, out) }); stopped != nil {
		failed = stopped
	}
	var e *tenon.Error
	if errors.As(failed, &e) && e.Kind == tenon.OutOfMemory {
		remedy := "a smaller -batch or another -device"
		if o.batch == 1 {
			remedy = "another -device"
		}
		failed = fmt.Errorf("%s with %s is too small for a batch of %d images; give %s",
			x.Device().Name(), readable(int64(x.Device().TotalMemory())), o.batch, remedy)
	}
	return errors.Join(failed, x.Close())
}

// network is two convolutions and two linear layers.
func network(x *tenon.Exec, seed uint64) nn.Sequential {
	g := nn.NewHostGenerator(seed)
	size, pad := [2]int{3, 3}, nn.Conv2dOpt{Padding: [2]int{1, 1}, Generator: g}
	return nn.Sequential{
		nn.NewConv2d(x, 1, 16, size, pad), nn.ReLU{},
		nn.NewConv2d(x, 16, 32, size, pad), nn.ReLU{},
		nn.MaxPool2d{Kernel: [2]int{2, 2}}, nn.Flatten{},
		nn.NewLinear(x, 32*4*4, 64, nn.LinearOpt{Generator: g}), nn.ReLU{},
		nn.NewLinear(x, 64, 10, nn.LinearOpt{Generator: g}),
	}
}

// learn trains the network and prints its progress.
func learn(ctx context.Context, x *tenon.Exec, o options, train, test []image, out io.Writer) error {
	net := network(x, o.seed)
	defer nn.Close(net)
	adam, err := optim.NewAdam(nn.Params(net), optim.AdamOpt{LR: 1e-3})
	if err != nil {
		return err
	}
	defer adam.Close()
	samples, err := table(train)
	if err != nil {
		return err
	}
	loader, err := data.NewLoader(samples, data.LoaderOpt{BatchSize: o.batch, DropLast: true, Shuffle: true, Seed: o.seed})
	if err != nil {
		return err
	}
	testPixels, testLabels := columns(test)
	testImages := tenon.From(x, testPixels, len(test), 1, side, side)
	defer testImages.Close()

	around := scoped
	if o.compile {
		around = compile.New().Do
	}
	var losses, accuracies []float64
	var working time.Duration
	for epoch := 1; epoch <= o.epochs; epoch++ {
		start := time.Now()
		loss, err := pass(ctx, x, around, net, adam, loader, newBar(out, fmt.Sprintf("epoch %2d/%d", epoch, o.epochs), loader.Len()))
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted in epoch %d of %d", epoch, o.epochs)
		}
		if err != nil {
			return err
		}
		working += time.Since(start)
		accuracy, err := evaluate(x, net, testImages, testLabels, o.batch)
		if err != nil {
			return err
		}
		losses, accuracies = append(losses, loss), append(accuracies, accuracy)
		fmt.Fprintf(out, "epoch %2d/%d  loss %.4f  test accuracy %.1f %%\n", epoch, o.epochs, losses[epoch-1], 100*accuracy)
	}
	speed := float64(o.epochs*loader.Len()*o.batch) / working.Seconds()
	peak := x.Device().Stats()["allocated_bytes.all.peak"]
	_, err = fmt.Fprintf(out, "test accuracy %.1f %%, %.0f images/s, peak memory %s, %s\n", 100*accuracies[o.epochs-1], speed,
		readable(peak), x.Device().Name())
	if err != nil {
		return fmt.Errorf("the result cannot be printed: %w", err)
	}
	if o.svg != "" {
		if err := os.WriteFile(o.svg, curves(losses, accuracies), 0o644); err != nil {
			return fmt.Errorf("the curves cannot be written: %w", err)
		}
	}
	return nil
}

// pass trains on all batches once and returns the mean of their losses.
func pass(ctx context.Context, x *tenon.Exec, around runner, net nn.Module, opt optim.Optimizer, loader *data.Loader, bar *bar) (
	loss float64, err error) {
	defer bar.clear()
	for b, err := range loader.Epoch(x) {
		if err != nil {
			return 0, err
		}
		one, err := step(x, around, net, opt, b)
		if err != nil {
			return 0, err
		}
		loss += one / float64(loader.Len())
		bar.advance()
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	return loss, nil
}

// runner runs a step and closes what it made: scoped, or a region's Do.
type runner func(x *tenon.Exec, f func(x *tenon.Exec) error) error

func scoped(x *tenon.Exec, f func(x *tenon.Exec) error) (err error) {
	x.Scope(func(x *tenon.Exec) { err = f(x) })
	return err
}

// step trains on one batch and returns its loss.
func step(x *tenon.Exec, around runner, net nn.Module, opt optim.Optimizer, b *data.Batch) (value float64, err error) {
	err = around(x, func(x *tenon.Exec) error {
		loss := x.CrossEntropy(net.Forward(x, b.Tensors[0]), b.Tensors[1])
		opt.ZeroGrad()
		if err := x.Backward(loss); err != nil {
			return err
		}
		if err := opt.Step(x); err != nil {
			return err
		}
		value, err = x.Item(loss)
		return err
	})
	return value, err
}

// evaluate returns which part of the images the network names rightly. It looks at so many at once as there are in a batch, so that a
// smaller batch needs less memory.
func evaluate(x *tenon.Exec, net nn.Module, images *tenon.Tensor, labels []int64, batch int) (accuracy float64, err error) {
	right := 0
	for first := 0; first < len(labels) && err == nil; first += batch {
		some := labels[first:min(first+batch, len(labels))]
		x.NoGrad().Scope(func(x *tenon.Exec) {
			var scores []float32
			if scores, err = tenon.Read[float32](x, net.Forward(x, x.Slice(images, 0, first, first+len(some), 1))); err == nil {
				right += hits(scores, some)
			}
		})
	}
	return float64(right) / float64(len(labels)), err
}

// hits counts the labels whose scores, ten for each image, are the highest.
func hits(scores []float32, labels []int64) (n int) {
	for i, label := range labels {
		best := 0
		for class, score := range scores[10*i : 10*i+10] {
			if score > scores[10*i+best] {
				best = class
			}
		}
		if int64(best) == label {
			n++
		}
	}
	return n
}

// readable writes a size for people.
func readable(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}
