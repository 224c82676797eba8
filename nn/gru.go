package nn

import (
	"tenon.dev"
	"tenon.dev/internal/core"
)

// GRU is a network of gated recurrent units. A step computes its gates r, z and n from the input x and the state h:
//
//	r, z = σ(…) of the first two of three parts of W_ih·x + b_ih + W_hh·h + b_hh
//	n = tanh(p + r·q), where p is the third part of W_ih·x + b_ih and q that of W_hh·h + b_hh
//	h' = (1-z)·n + z·h
//
// Create one with NewGRU.
type GRU struct {
	Mode
	// Weights are the parameters by layer and direction; their rows are those of the gates r, z and n.
	Weights [][]RecurrentWeights

	recurrent recurrent
}

// NewGRU returns a GRU from in to hidden features with PyTorch's initial values: uniform within ±1/√hidden.
func NewGRU(x *tenon.Exec, in, hidden int, opts ...RecurrentOpt) *GRU {
	g := &GRU{}
	g.recurrent, g.Weights = newRecurrent(x, &gruCell, in, hidden, core.One("NewGRU", opts))
	return g
}

// GRUForwardOpt are the options of GRU.Forward. The zero value is PyTorch's default.
type GRUForwardOpt struct {
	// Hidden is the initial state, [Layers·Directions, Batch, Hidden]; nil is zeros.
	Hidden *tenon.Tensor
	// Lengths are the lengths of the rows, integers [Batch], as in LSTMForwardOpt; nil means that all rows have the same length.
	Lengths *tenon.Tensor
}

// Training reports whether the module is in training mode.
func (g *GRU) Training() bool { return made(g, "GRU").Mode.Training() }

// Forward returns the states h of the last layer at every step, [Time, Batch, Directions·Hidden], for in [Time, Batch, In], and the final
// states of all layers and directions, [Layers·Directions, Batch, Hidden]. An input without Batch gives results without it. The input
// product of all steps of a direction is one matrix product; then each step has one for its state.
func (g *GRU) Forward(x *tenon.Exec, in *tenon.Tensor, opts ...GRUForwardOpt) (out, hidden *tenon.Tensor) {
	if made(g, "GRU").recurrent.cell == nil {
		fail("GRU", "the module is a zero value; use one that NewGRU returned")
	}
	opt := core.One("GRU", opts)
	r := g.recurrent.forward(x, g.Weights, g.Training(), in, opt.Lengths, opt.Hidden)
	return r[0], r[1]
}

var gruCell = cell{name: "GRU", gates: 3, states: []string{"Hidden"},
	next: func(x *tenon.Exec, input, hidden *tenon.Tensor, states []*tenon.Tensor) []*tenon.Tensor {
		i, h := x.Chunk(input, 3, 1), x.Chunk(hidden, 3, 1)
		reset, update := x.Sigmoid(x.Add(i[0], h[0])), x.Sigmoid(x.Add(i[1], h[1]))
		return []*tenon.Tensor{x.Lerp(x.Tanh(x.Add(i[2], x.Mul(reset, h[2]))), states[0], update)}
	}}
