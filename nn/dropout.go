package nn

import "tenon.dev"

// Dropout sets elements to zero at random in training, and multiplies the others by 1/(1-p). In evaluation it does nothing. Create one with
// NewDropout.
type Dropout struct {
	Mode
	p    float64
	made bool
}

// NewDropout returns a module that drops each element with probability p; PyTorch's default is 0.5.
func NewDropout(p float64) *Dropout {
	if !(0 <= p && p <= 1) {
		fail("NewDropout", "dropout probability has to be between 0 and 1, but got %v", p)
	}
	return &Dropout{p: p, made: true}
}

// Training reports whether the module is in training mode.
func (d *Dropout) Training() bool { return made(d, "Dropout").Mode.Training() }

// Forward returns in with elements dropped, or in itself in evaluation or if the probability is 0.
func (d *Dropout) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	if !made(d, "Dropout").made {
		fail("Dropout", "the module is a zero value; use one that NewDropout returned")
	}
	if !d.Training() {
		return in
	}
	return x.Dropout(in, d.p)
}
