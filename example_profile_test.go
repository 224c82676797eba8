package tenon_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/profile"
)

// A profile of a training step: what each operation does, and what the memory is used for.
func Example_profile() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	net := nn.Sequential{nn.NewLinear(x, 64, 128), nn.ReLU{}, nn.NewLinear(x, 128, 10)}
	opt, err := optim.NewSGD(nn.Params(net), optim.SGDOpt{LR: 0.1, Momentum: 0.9})
	if err != nil {
		log.Fatal(err)
	}
	step := func(x *tenon.Exec) error {
		in := tenon.From(x, make([]float32, 32*64), 32, 64)
		out := net.Forward(x, in)
		loss := x.Mean(x.Mul(out, out), nil)
		if err := x.Backward(loss); err != nil {
			return err
		}
		return opt.Step(x)
	}

	p, err := x.Device().ProfileFunc(func() error { return x.Do(step) })
	if err != nil {
		log.Fatal(err)
	}

	rows, err := p.Rows(profile.ByOp)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range rows {
		if r.FLOPs > 100_000 {
			fmt.Printf("%d of %s: %v on the device, %d bytes, %d FLOPs\n", r.Calls, r.Key, r.Device, r.Bytes, r.FLOPs)
		}
	}
	peak := p.Peak()
	fmt.Println(peak.By[profile.Parameters], "bytes of parameters,", peak.By[profile.OptimizerState], "of the optimizer's state")

	f, err := os.Create(filepath.Join(os.TempDir(), "step.profile"))
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	if err := p.Write(f); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 3 of MatMul (backward): 6µs on the device, 102912 bytes, 688128 FLOPs
	// 2 of MatMul: 4µs on the device, 80680 bytes, 606208 FLOPs
	// 38912 bytes of parameters, 39424 of the optimizer's state
}
