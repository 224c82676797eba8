package llama

import (
	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// Training is a model that trains on one batch.
type Training struct {
	// Model is the model in training, and Loss the loss of the last step.
	Model *Model
	Loss  *tenon.Tensor

	opt          *optim.AdamW
	tokens, want *tenon.Tensor
}

// NewTraining returns a model with random weights and a random batch of rows as long as the context.
func NewTraining(x *tenon.Exec, c Config, batch int) (*Training, error) {
	t := &Training{Model: New(x, c)}
	shape := []int{batch, c.Context}
	t.tokens, t.want = x.RandInt(int64(c.Vocabulary), shape, tenon.Int64), x.RandInt(int64(c.Vocabulary), shape, tenon.Int64)
	var err error
	t.opt, err = optim.NewAdamW(nn.Params(t.Model), optim.AdamOpt{LR: 6e-4, Betas: []float64{0.9, 0.95}, WeightDecay: 0.1})
	return t, err
}

// Step is a training iteration with bf16 autocast and clipped gradients. It reads nothing from the device.
func (t *Training) Step(x *tenon.Exec) error { return t.StepWith(x, t.Forward) }

// Forward returns the loss of the model under bf16 autocast.
func (t *Training) Forward(x *tenon.Exec, tokens, want *tenon.Tensor) *tenon.Tensor {
	return t.Model.Loss(x.Autocast(tenon.BFloat16), tokens, want)
}

// StepWith is Step with another function in place of Forward.
func (t *Training) StepWith(x *tenon.Exec, forward func(x *tenon.Exec, tokens, want *tenon.Tensor) *tenon.Tensor) error {
	loss := forward(x, t.tokens, t.want)
	if err := x.Backward(loss); err != nil {
		return err
	}
	nn.ClipGradNorm(x, nn.Params(t.Model), 1)
	if err := t.opt.Step(x); err != nil {
		return err
	}
	t.opt.ZeroGrad()
	t.Loss.Close()
	t.Loss = x.Keep(x.Detach(loss))
	return nil
}

// Close closes the tensors.
func (t *Training) Close() {
	t.opt.Close()
	nn.Close(t.Model)
	for _, a := range []*tenon.Tensor{t.Loss, t.tokens, t.want} {
		a.Close()
	}
}
