package optim_test

import (
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// A line is fitted to four points.
func ExampleSGD() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	line := nn.NewLinear(x, 1, 1, nn.LinearOpt{Generator: nn.NewHostGenerator(0)})
	defer nn.Close(line)
	sgd, err := optim.NewSGD(nn.Params(line), optim.SGDOpt{LR: 0.05, Momentum: 0.9})
	if err != nil {
		log.Fatal(err)
	}
	defer sgd.Close()
	x.Scope(func(x *tenon.Exec) {
		in := tenon.From(x, []float32{0, 1, 2, 3}, 4, 1)
		target := tenon.From(x, []float32{1, 3, 5, 7}, 4, 1)
		for range 300 {
			x.Scope(func(x *tenon.Exec) {
				loss := x.MSELoss(line.Forward(x, in), target)
				sgd.ZeroGrad()
				if err := x.Backward(loss); err != nil {
					log.Fatal(err)
				}
				if err := sgd.Step(x); err != nil {
					log.Fatal(err)
				}
			})
		}
	})
	slope, err := x.Item(line.Weight.Tensor())
	if err != nil {
		log.Fatal(err)
	}
	offset, err := x.Item(line.Bias.Tensor())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.2f x + %.2f\n", slope, offset)
	// Output: 2.00 x + 1.00
}

// Weights decay, but biases and the parameters of norms, which have one dimension, do not. Both groups have the rate of the constructor.
func ExampleAdamW_Add() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	m := nn.Sequential{nn.NewLinear(x, 8, 8), nn.NewLayerNorm(x, []int{8})}
	defer nn.Close(m)
	matrices, vectors := nn.SplitParams(nn.Params(m), func(name string, p *nn.Param) bool { return p.Tensor().Dim() > 1 })
	adamw, err := optim.NewAdamW(matrices, optim.AdamOpt{LR: 3e-4, WeightDecay: 0.1})
	if err != nil {
		log.Fatal(err)
	}
	defer adamw.Close()
	if err := adamw.Add(vectors, optim.AdamOpt{WeightDecay: 0}); err != nil {
		log.Fatal(err)
	}
	for name := range matrices {
		fmt.Println("decays:", name)
	}
	for name := range vectors {
		fmt.Println("does not:", name)
	}
	fmt.Println("rates:", adamw.LR(0), adamw.LR(1))
	// Output:
	// decays: 0.weight
	// does not: 0.bias
	// does not: 1.weight
	// does not: 1.bias
	// rates: 0.0003 0.0003
}

// The learning rate can change at any step; here it falls by a tenth every ten steps.
func ExampleAdam() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	w := nn.NewParam(tenon.From(x, []float32{3}))
	defer w.Close()
	adam, err := optim.NewAdam(func(yield func(string, *nn.Param) bool) { yield("w", w) }, optim.AdamOpt{LR: 0.5})
	if err != nil {
		log.Fatal(err)
	}
	defer adam.Close()
	for i := range 100 {
		if i%10 == 9 {
			adam.SetLR(0, 0.9*adam.LR(0))
		}
		x.Scope(func(x *tenon.Exec) {
			loss := x.Square(w.Tensor())
			adam.ZeroGrad()
			if err := x.Backward(loss); err != nil {
				log.Fatal(err)
			}
			if err := adam.Step(x); err != nil {
				log.Fatal(err)
			}
		})
	}
	v, err := x.Item(w.Tensor())
	fmt.Printf("%.2f after 100 steps, learning rate %.2f, %v\n", v*v, adam.LR(0), err)
	// Output: 0.00 after 100 steps, learning rate 0.17, <nil>
}

// A step of mixed precision: the loss is scaled, so that the half-precision gradients do not vanish, and a step whose gradients overflow
// is skipped.
func ExampleGradScaler() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	line := nn.NewLinear(x, 1, 1)
	defer nn.Close(line)
	adam, err := optim.NewAdam(nn.Params(line))
	if err != nil {
		log.Fatal(err)
	}
	defer adam.Close()
	scaler, err := optim.NewGradScaler(optim.GradScalerOpt{InitScale: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer scaler.Close()
	for _, in := range []float32{1, 2} {
		x.Scope(func(x *tenon.Exec) {
			out := line.Forward(x.Autocast(tenon.Float16), tenon.From(x, []float32{in, in}, 2, 1))
			loss := scaler.Scale(x, x.Mean(out, nil))
			if err := x.Backward(loss); err != nil {
				log.Fatal(err)
			}
			if err := scaler.Step(x, adam); err != nil {
				log.Fatal(err)
			}
			if err := scaler.Update(x); err != nil {
				log.Fatal(err)
			}
			adam.ZeroGrad()
		})
		state, err := scaler.State(x)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(state.Scale)
	}
	// Output:
	// 524288
	// 262144
}
