package nn_test

import (
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
)

// Segments give the same bits as the whole, and run the modules before the last segment twice.
func TestCheckpointSequential(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		g, runs := nn.NewHostGenerator(1), 0
		count := nn.Func(func(_ *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { runs++; return in })
		net := nn.Sequential{nn.NewLinear(x, 4, 4, nn.LinearOpt{Generator: g}), count, nn.Tanh{}, nn.NewDropout(0.5),
			nn.NewLinear(x, 4, 4, nn.LinearOpt{Generator: g}), count, nn.Tanh{}}
		defer nn.Close(net)
		var want []float32
		for i, segments := range []int{0, 1, 2, 3, 7} {
			x.Scope(func(x *tenon.Exec) {
				runs = 0
				x.Generator().SetSeed(3)
				in := tenon.From(x, []float32{1, 2, 3, 4, 5, 6, 7, 8}, 2, 4)
				var out *tenon.Tensor
				if segments == 0 {
					out = net.Forward(x, in)
				} else {
					out = nn.CheckpointSequential(x, net, segments, in)
				}
				if err := x.Backward(x.Sum(out, nil)); err != nil {
					t.Fatal(err)
				}
				got, err := tenon.Read[float32](x, out)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range nn.Params(net) {
					v, err := tenon.Read[float32](x, p.Grad())
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, v...)
					p.SetGrad(nil)
				}
				if segments == 0 {
					want = got
				}
				if !slices.Equal(got, want) {
					t.Errorf("%d segments: got %v, want %v", segments, got, want)
				}
				// The segments end after modules 3 of 7, after 2 and 4, and after each: one that saves nothing does not run again.
				if again := []int{0, 0, 1, 1, 0}[i]; runs != 2+again {
					t.Errorf("%d segments: %d runs, want %d", segments, runs, 2+again)
				}
			})
		}
		x.Scope(func(x *tenon.Exec) {
			in := tenon.From(x, []float32{1, 2, 3, 4}, 1, 4)
			wantError(t, func() { nn.CheckpointSequential(x, net, 0, in) }, "7 modules cannot be divided into 0 segments")
			wantError(t, func() { nn.CheckpointSequential(x, net, 8, in) }, "8 segments")
			wantError(t, func() { nn.Checkpoint(x, nil, in) }, "the module is nil")
		})
	})
}
