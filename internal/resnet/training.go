package resnet

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

	opt            *optim.SGD
	images, labels *tenon.Tensor
}

// NewTraining returns a model with random weights and a random batch of images.
func NewTraining(x *tenon.Exec, c Config, batch int) (*Training, error) {
	t := &Training{Model: New(x, c), images: c.images(x, batch)}
	t.labels = x.RandInt(int64(c.Classes), []int{batch}, tenon.Int64)
	var err error
	t.opt, err = optim.NewSGD(nn.Params(t.Model), optim.SGDOpt{LR: 0.1, Momentum: 0.9})
	return t, err
}

// Step is a training iteration with bf16 autocast. It reads nothing from the device, and keeps the gradients that it used.
func (t *Training) Step(x *tenon.Exec) error {
	t.opt.ZeroGrad()
	low := x.Autocast(tenon.BFloat16)
	loss := low.CrossEntropy(t.Model.Forward(low, t.images), t.labels)
	if err := x.Backward(loss); err != nil {
		return err
	}
	if err := t.opt.Step(x); err != nil {
		return err
	}
	t.Loss.Close()
	t.Loss = x.Keep(x.Detach(loss))
	return nil
}

// Close closes the tensors.
func (t *Training) Close() {
	t.opt.Close()
	nn.Close(t.Model)
	for _, a := range []*tenon.Tensor{t.Loss, t.images, t.labels} {
		a.Close()
	}
}

// Inference is a model in evaluation mode.
type Inference struct {
	// Model is in evaluation mode, and Logits [N, classes] are those of the last step.
	Model  *Model
	Logits *tenon.Tensor

	images *tenon.Tensor
}

// NewInference returns a model with random weights and a random batch of images.
func NewInference(x *tenon.Exec, c Config, batch int) *Inference {
	i := &Inference{Model: New(x, c), images: c.images(x, batch)}
	nn.Eval(i.Model)
	return i
}

// Step computes the logits with bf16 autocast and without gradients. It reads nothing from the device.
func (i *Inference) Step(x *tenon.Exec) error {
	logits := i.Model.Forward(x.NoGrad().Autocast(tenon.BFloat16), i.images)
	i.Logits.Close()
	i.Logits = x.Keep(logits)
	return nil
}

// Close closes the tensors.
func (i *Inference) Close() {
	nn.Close(i.Model)
	i.Logits.Close()
	i.images.Close()
}
