package tenon_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/profile"
)

// Gradients that live from one run of a region into the next, where a second backward pass adds to them, count as gradients, as eager ones
// do: in the first runs, in those that record graphs, and in replays.
func TestProfileAccumulatedGradients(t *testing.T) {
	const steps = 2
	var eager map[profile.Category]int64
	for _, way := range []string{"eager", "no graphs", "graphs"} {
		x := testdevice.Open(t, tenon.Sim(0))
		net := nn.Sequential{nn.NewLinear(x, 64, 128), nn.ReLU{}, nn.NewLinear(x, 128, 16)}
		opt, err := optim.NewAdamW(nn.Params(net))
		must(t, err)
		in := tenon.From(x, make([]float32, 16*64), 16, 64)
		region := compile.New(compile.Opt{NoGraphs: way == "no graphs"})
		half := func(last bool) {
			step := func(x *tenon.Exec) error {
				if !last {
					opt.ZeroGrad()
				}
				y := net.Forward(x, in)
				if err := x.Backward(x.Mean(x.Mul(y, y), nil)); err != nil || !last {
					return err
				}
				return opt.Step(x)
			}
			if way == "eager" {
				must(t, x.Do(step))
			} else {
				must(t, region.Do(x, step))
			}
		}
		for range 4 {
			half(false)
			half(true)
		}
		p := profiled(t, x, func() {
			for range steps {
				half(false)
				half(true)
			}
			opt.ZeroGrad()
		})
		if replays, _ := replays(p); (len(replays) > 0) != (way == "graphs") {
			t.Fatalf("%s: %d replays", way, len(replays))
		}
		most := mostUsed(t, p)
		if way == "eager" {
			eager = most
		}
		if n := most[profile.Gradients]; n < eager[profile.Gradients] || n > eager[profile.Gradients]+128*64*4 {
			t.Errorf("%s: at most %d bytes of gradients, eager %d and a copy of one weight's while it moves out of the pool", way, n,
				eager[profile.Gradients])
		}
		for _, c := range []profile.Category{profile.Parameters, profile.OptimizerState, profile.Activations, profile.Inputs} {
			want := eager[c]
			if c == profile.Activations && way != "eager" { // without the first product, from which ReLU is made in one kernel
				want -= 7 << 10
			}
			if most[c] == 0 || most[c] != want {
				t.Errorf("%s: at most %d bytes of %s, want %d", way, most[c], c, want)
			}
		}
		if n := p.Peak().By[profile.Gradients]; n != eager[profile.Gradients] {
			t.Errorf("%s: %d bytes of gradients at the peak, want all %d", way, n, eager[profile.Gradients])
		}
		nn.Close(net)
		opt.Close()
	}
}

// Gradients count as gradients though no operation of the profile uses them after the backward pass.
func TestProfileUnusedGradients(t *testing.T) {
	for _, way := range []string{"eager", "no graphs", "graphs"} {
		x := testdevice.Open(t, tenon.Sim(0))
		net := nn.NewLinear(x, 64, 64)
		in := tenon.From(x, make([]float32, 16*64), 16, 64)
		region := compile.New(compile.Opt{NoGraphs: way == "no graphs"})
		pass := func() {
			step := func(x *tenon.Exec) error { return x.Backward(x.Sum(net.Forward(x, in), nil)) }
			if way == "eager" {
				must(t, x.Do(step))
			} else {
				must(t, region.Do(x, step))
			}
		}
		for range 4 {
			pass()
			for _, p := range nn.Params(net) {
				p.SetGrad(nil)
			}
		}
		most := mostUsed(t, profiled(t, x, pass))
		if n := most[profile.Gradients]; n < 4*(64*64+64) {
			t.Errorf("%s: %d bytes of gradients; by category %v", way, n, most)
		}
		nn.Close(net)
	}
}
