package gpt2

import (
	"errors"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// Language is a model of a language: Loss is the mean cross-entropy of the tokens want that follow those of tokens, both [B, T].
type Language interface {
	Loss(x *tenon.Exec, tokens, want *tenon.Tensor) *tenon.Tensor
}

// Training is a model of a language that trains on one batch.
type Training struct {
	// Model is the model in training, and Loss the loss of the last step.
	Model Language
	Loss  *tenon.Tensor
	// Rate is the learning rate, which the schedule fills.
	Rate *tenon.Tensor

	opt          *optim.AdamW
	schedule     *optim.Schedule
	tokens, want *tenon.Tensor
}

// NewTraining returns a model with random weights and a random batch of rows as long as the context.
func NewTraining(x *tenon.Exec, c Config, batch int) (*Training, error) {
	return Train(x, New(x, c), c.Vocabulary, batch, c.Context)
}

// Train returns model with a random batch of rows of the given length, of as many different tokens as vocabulary says. Closing the training
// closes the model.
func Train(x *tenon.Exec, model Language, vocabulary, batch, length int) (*Training, error) {
	shape := []int{batch, length}
	t := &Training{Model: model, Rate: x.Full(nil, 6e-4, tenon.Float32)}
	t.tokens = x.RandInt(int64(vocabulary), shape, tenon.Int64)
	t.want = x.RandInt(int64(vocabulary), shape, tenon.Int64)
	var err error
	if t.opt, err = optim.NewAdamW(nn.Params(t.Model), optim.AdamOpt{LR: 6e-4, Betas: []float64{0.9, 0.95}, WeightDecay: 0.1}); err !=
		nil {
		return nil, err
	}
	if err := t.opt.SetLRTensor(0, t.Rate); err != nil {
		return nil, err
	}
	t.schedule, err = optim.NewSchedule(t.opt, optim.CosineAnnealingLR(1000, 6e-5))
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
	if err := errors.Join(t.opt.Step(x), t.schedule.Step()); err != nil {
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
	for _, a := range []*tenon.Tensor{t.Loss, t.Rate, t.tokens, t.want} {
		a.Close()
	}
}
