package compile_test

import (
	"fmt"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// The gradients of weights do not wait for those of inputs: the graph of a small training step has two lanes, and the bits of eager
// execution, with changed numbers too, and with numbers that it draws.
func TestLanes(t *testing.T) {
	for _, p := range []float64{0, 0.25} {
		t.Run(fmt.Sprintf("Dropout%v", p), func(t *testing.T) { testLanes(t, p) })
	}
}

func testLanes(t *testing.T, p float64) {
	run := func(do func(x *tenon.Exec, step func(x *tenon.Exec) error) error) (out string) {
		x := open(t)
		must(t, x.Generator().SetSeed(3))
		net := nn.Sequential{nn.NewLinear(x, 48, 64), nn.ReLU{}, nn.NewLinear(x, 64, 64), nn.ReLU{}, nn.NewLinear(x, 64, 10)}
		forward := func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
			if p == 0 {
				return net.Forward(x, in)
			}
			return net[2:].Forward(x, x.Dropout(net[:2].Forward(x, x.Dropout(in, p)), p))
		}
		for _, p := range nn.Params(net) {
			n := x.Arange(float64(p.Tensor().Numel()), tenon.Float32)
			x.NoGrad().MulSInto(p.Tensor(), x.View(x.Sin(n), p.Tensor().Shape()...), 0.1)
		}
		opt, err := optim.NewSGD(nn.Params(net), optim.SGDOpt{LR: 0.1, Momentum: 0.9})
		must(t, err)
		defer opt.Close()
		in := x.Cos(x.View(x.Arange(32*48, tenon.Float32), 32, 48))
		labels := tenon.From(x, make([]int64, 32))
		for n := range 8 {
			opt.SetLR(0, 0.1/float64(1+n/5))
			must(t, do(x, func(x *tenon.Exec) error {
				opt.ZeroGrad()
				loss := x.CrossEntropy(forward(x, in), labels)
				if err := x.Backward(loss); err != nil {
					return err
				}
				return opt.Step(x)
			}))
		}
		for _, p := range nn.Params(net) {
			out += fmt.Sprintln(read(t, x, x.Detach(p.Tensor())))
		}
		nn.Close(net)
		return out + fmt.Sprintln(read(t, x, x.Rand([]int{4}, tenon.Float32)))
	}
	want := run(func(x *tenon.Exec, f func(x *tenon.Exec) error) (err error) {
		x.Scope(func(x *tenon.Exec) { err = f(x) })
		return err
	})
	r := compile.New(compile.Opt{Must: true})
	said := ""
	got := run(func(x *tenon.Exec, f func(x *tenon.Exec) error) error {
		err := r.Do(x, f)
		said = fmt.Sprint(r.Explain(x))
		return err
	})
	if got != want {
		t.Errorf("in lanes:\n%.300s\neager:\n%.300s", got, want)
	}
	if !strings.Contains(said, "kernels in 2 lanes;") {
		t.Errorf("the step has no lanes:\n%s", said)
	}
}

// Many sessions have regions on one device at once, each with recordings.
func TestManySessions(t *testing.T) {
	x := open(t)
	r := compile.New(compile.Opt{Must: true})
	for n := range 25 {
		y, err := x.Fork()
		must(t, err)
		a := y.Full([]int{8}, float64(n), tenon.Float32)
		for range 4 {
			must(t, r.Do(y, func(y *tenon.Exec) error { y.AddSInto(a, a, 1); return nil }))
		}
		if got, want := read(t, y, a), fmt.Sprintf("[%d ", n+4); !strings.HasPrefix(got, want) {
			t.Errorf("session %d has %s; want %s", n, got, want)
		}
	}
}
