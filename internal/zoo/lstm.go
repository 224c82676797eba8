package zoo

import (
	"tenon.dev"
	"tenon.dev/nn"
)

// lstm is a bidirectional LSTM of two layers over words, whose mean output over time tells ten classes apart.
type lstm struct {
	classes

	Emb *nn.Embedding `torch:"emb"`
	RNN *nn.LSTM      `torch:"rnn"`
	FC  *nn.Linear    `torch:"fc"`
}

const lstmWords, lstmClasses = 1000, 10

func newLSTM(x *tenon.Exec) Network {
	return &lstm{
		Emb: nn.NewEmbedding(x, lstmWords, 128),
		RNN: nn.NewLSTM(x, 128, 192, nn.RecurrentOpt{NumLayers: 2, BatchFirst: true, Bidirectional: true}),
		FC:  nn.NewLinear(x, 2*192, lstmClasses),
	}
}

func lstmInputs(x *tenon.Exec, batch, size int) ([]*tenon.Tensor, *tenon.Tensor) {
	return []*tenon.Tensor{ints(x, "ids", lstmWords, batch, size)}, ints(x, "label", lstmClasses, batch)
}

func (m *lstm) Forward(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		out, _, _ := m.RNN.Forward(x, m.Emb.Forward(x, in[0]))
		return m.FC.Forward(x, x.Mean(out, []int{1}))
	})
}
