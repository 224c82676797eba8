package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/nn"
)

// A loss that is copied or added up for a log belongs to the history of the log's tensor, unless it is changed without gradients: a copy
// keeps what the latest run saved, a sum what all runs have saved. The region replays its graph in each case.
func TestLoggedLosses(t *testing.T) {
	const runs = 8
	for name, c := range map[string]struct {
		log  func(x *tenon.Exec, sum, loss *tenon.Tensor)
		kept int // how many runs' values are kept
	}{
		"no gradients": {func(x *tenon.Exec, sum, loss *tenon.Tensor) {
			x.NoGrad().AddInto(sum, sum, loss)
		}, 0},
		"detached": {func(x *tenon.Exec, sum, loss *tenon.Tensor) {
			x.AddInto(sum, sum, x.Detach(loss))
		}, 0},
		"copy": {func(x *tenon.Exec, sum, loss *tenon.Tensor) { x.CopyInto(sum, loss) }, 1},
		"sum":  {func(x *tenon.Exec, sum, loss *tenon.Tensor) { x.AddInto(sum, sum, loss) }, runs},
	} {
		x := open(t)
		net := nn.Sequential{nn.NewLinear(x, 64, 64), nn.ReLU{}, nn.NewLinear(x, 64, 64)}
		in, sum, r := x.Ones([]int{64, 64}, tenon.Float32), x.Zeros(nil, tenon.Float32), compile.New()
		before := x.Device().MemoryAllocated()
		for range runs {
			must(t, r.Do(x, func(x *tenon.Exec) error {
				c.log(x, sum, x.Mean(net.Forward(x, in), nil))
				return nil
			}))
		}
		const saved = 4 * 64 * 64 // the bytes of the activations that a run saves for its backward pass
		graphs := 0               // what the latest run saved is in the memory of the graph
		if c.kept > 0 {
			graphs = saved
		}
		if n, want := int(x.Device().MemoryAllocated()-before), c.kept*saved; n < want-graphs || n > want {
			t.Errorf("%s: %d bytes are kept, want %d", name, n, want)
		}
		if s := r.Stats(x); s.Replays != runs-2 || sum.RequiresGrad() != (c.kept > 0) {
			t.Errorf("%s: %+v, and the log's tensor requires a gradient: %v", name, s, sum.RequiresGrad())
		}
	}
}
