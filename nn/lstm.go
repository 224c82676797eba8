package nn

import (
	"tenon.dev"
	"tenon.dev/internal/core"
)

// LSTM is a long short-term memory network. A step computes its gates i, f, g and o from the input x and the states h and c:
//
//	i, f, g, o = σ(…), σ(…), tanh(…), σ(…) of the four parts of W_ih·x + b_ih + W_hh·h + b_hh
//	c' = f·c + i·g
//	h' = o·tanh(c')
//
// Create one with NewLSTM. It has no projections (PyTorch's proj_size).
type LSTM struct {
	Mode
	// Weights are the parameters by layer and direction; their rows are those of the gates i, f, g and o.
	Weights [][]RecurrentWeights

	recurrent recurrent
}

// NewLSTM returns an LSTM from in to hidden features with PyTorch's initial values: uniform within ±1/√hidden.
func NewLSTM(x *tenon.Exec, in, hidden int, opts ...RecurrentOpt) *LSTM {
	l := &LSTM{}
	l.recurrent, l.Weights = newRecurrent(x, &lstmCell, in, hidden, core.One("NewLSTM", opts))
	return l
}

// LSTMForwardOpt are the options of LSTM.Forward. The zero value is PyTorch's default.
type LSTMForwardOpt struct {
	// Hidden and Cell are the initial states, [Layers·Directions, Batch, Hidden]; nil is zeros.
	Hidden, Cell *tenon.Tensor
	// Lengths are the lengths of the rows, integers [Batch]; nil means that all rows have as many steps as the input. What comes after a
	// row's end changes nothing, and the output there is 0: the final states are those after the row's last step, and the second
	// direction begins there. A row of length 0 ends with its initial states; a length beyond the input counts as the input's. This is
	// PyTorch's pack_padded_sequence and pad_packed_sequence, for rows in any order.
	Lengths *tenon.Tensor
}

// Training reports whether the module is in training mode.
func (l *LSTM) Training() bool { return made(l, "LSTM").Mode.Training() }

// Forward returns the states h of the last layer at every step, [Time, Batch, Directions·Hidden], for in [Time, Batch, In], and the final
// states h and c of all layers and directions, [Layers·Directions, Batch, Hidden]. An input without Batch gives results without it.
// The input product of all steps of a direction is one matrix product; then each step has one for its state.
func (l *LSTM) Forward(x *tenon.Exec, in *tenon.Tensor, opts ...LSTMForwardOpt) (out, hidden, cell *tenon.Tensor) {
	if made(l, "LSTM").recurrent.cell == nil {
		fail("LSTM", "the module is a zero value; use one that NewLSTM returned")
	}
	opt := core.One("LSTM", opts)
	r := l.recurrent.forward(x, l.Weights, l.Training(), in, opt.Lengths, opt.Hidden, opt.Cell)
	return r[0], r[1], r[2]
}

var lstmCell = cell{name: "LSTM", gates: 4, states: []string{"Hidden", "Cell"}, sums: true,
	next: func(x *tenon.Exec, input, hidden *tenon.Tensor, states []*tenon.Tensor) []*tenon.Tensor {
		g := x.Chunk(x.Add(input, hidden), 4, 1)
		c := x.Add(x.Mul(x.Sigmoid(g[1]), states[1]), x.Mul(x.Sigmoid(g[0]), x.Tanh(g[2])))
		return []*tenon.Tensor{x.Mul(x.Sigmoid(g[3]), x.Tanh(c)), c}
	}}
