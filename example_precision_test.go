package tenon_test

import (
	"errors"
	"fmt"
	"log"
	"math"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// A model is trained with products in float16, gradients that are scaled, and clipping. Each step is the launch of a graph.
func Example_mixedPrecision() {
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
	scaler, err := optim.NewGradScaler()
	if err != nil {
		log.Fatal(err)
	}
	defer scaler.Close()

	step := func(x *tenon.Exec) error {
		adamw.ZeroGrad()
		low := x.Autocast(tenon.Float16)
		loss := low.CrossEntropy(model.Forward(low, points), labels)
		if err := x.Backward(scaler.Scale(x, loss)); err != nil {
			return err
		}
		if err := scaler.Unscale(x, adamw); err != nil { // so that gradients are clipped at their own size
			return err
		}
		nn.ClipGradNorm(x, nn.Params(model), 1)
		if err := scaler.Step(x, adamw); err != nil {
			return err
		}
		return scaler.Update(x)
	}
	region := compile.New()
	for range 200 {
		if err := region.Do(x, step); err != nil {
			log.Fatal(err)
		}
	}
	err = x.NoGrad().Do(func(x *tenon.Exec) error {
		loss, err := x.Item(x.CrossEntropy(model.Forward(x, points), labels))
		fmt.Println(loss < 0.2, region.Stats(x).Replays > 190)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: true true
}

// Under Autocast a loss is computed in float32; outside, it has the type of its input.
func Example_lossUnderAutocast() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	model, labels := nn.NewLinear(x, 4, 3), tenon.From(x, []int64{0, 2})
	low := x.Autocast(tenon.BFloat16)
	logits := model.Forward(low, x.Ones([]int{2, 4}, tenon.Float32))
	fmt.Println(logits.DType(), low.CrossEntropy(logits, labels).DType(), x.CrossEntropy(logits, labels).DType())
	// Output: bfloat16 float32 bfloat16
}

// Memory that is missing is freed, and the call is made again with less.
func ExampleError() {
	x, err := tenon.Open(tenon.Sim(64 << 20))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	rows := 1 << 25
	for {
		err := x.Do(func(x *tenon.Exec) error {
			x.Ones([]int{rows}, tenon.Float64)
			return nil
		})
		var e *tenon.Error
		if errors.As(err, &e) && e.Kind == tenon.OutOfMemory && rows > 1 {
			rows /= 2
			continue
		}
		fmt.Println(math.Log2(float64(rows)), err)
		return
	}
	// Output: 23 <nil>
}
