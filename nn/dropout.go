package nn

import "tenon.dev"

// Dropout sets elements to zero at random in training, and multiplies the others by 1/(1-p). In evaluation it does nothing.
type Dropout struct {
	Mode
	p float64
}

// NewDropout returns a module that drops each element with probability p; PyTorch's default is 0.5.
func NewDropout(p float64) *Dropout {
	if !(0 <= p && p <= 1) {
		fail("NewDropout", "dropout probability has to be between 0 and 1, but got %v", p)
	}
	return &Dropout{p: p}
}

// Training reports whether the module is in training mode.
func (d *Dropout) Training() bool { return made(d, "Dropout").Mode.Training() }

// Forward returns in with elements dropped, or in itself in evaluation.
func (d *Dropout) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	made(d, "Dropout")
	if !d.Training() {
		return in
	}
	return x.Dropout(in, d.p)
}
