// Package nn provides neural-network modules: layers with their parameters, containers, losses and initialisers, under PyTorch's names
// and with its state-dict keys. It must not depend on optimizers, on data or on how an operation runs: modules call the operations of the
// Exec that they get.
//
// A module is a struct whose exported fields are its parameters (*[Param]), its buffers (*[Buffer]) and other modules; [Params] and
// [StateDict] find them. Constructors and Forward panic with a *tenon.Error, as operations do.
package nn

import (
	"tenon.dev"
	"tenon.dev/internal/core"
)

// Param is a parameter: a stable box around a tensor that requires a gradient. Modules, optimizers and modules that share a parameter
// hold the box, so all of them see the new tensor after a module is moved, converted or loaded. It is not safe to use concurrently with
// such a change.
type Param struct{ t *tenon.Tensor }

// NewParam returns a parameter that holds t, which it takes out of its scope and makes require a gradient; t must be a leaf of a
// floating-point or complex type.
func NewParam(t *tenon.Tensor) *Param {
	t = own("NewParam", (*tenon.Tensor)(core.RequireGrad("NewParam", core.MadeTensor((*core.Tensor)(t), "NewParam"), true)))
	core.MarkParam((*core.Tensor)(t))
	return &Param{t}
}

// Tensor returns the parameter's tensor, nil for a nil Param. The box owns it: do not close it.
func (p *Param) Tensor() *tenon.Tensor {
	if p == nil {
		return nil
	}
	return p.t
}

// Set replaces the tensor and closes the former one with its gradient. The box becomes t's owner, and does not change whether t requires a
// gradient.
func (p *Param) Set(t *tenon.Tensor) {
	replace("Param.Set", &made(p, "Param.Set").t, t)
	core.MarkParam((*core.Tensor)(p.t))
}

// Grad returns the accumulated gradient, or nil. The parameter owns it.
func (p *Param) Grad() *tenon.Tensor { return made(p, "Param.Grad").t.Grad() }

// SetGrad replaces the accumulated gradient and closes the former one; nil drops it. The parameter becomes g's owner.
func (p *Param) SetGrad(g *tenon.Tensor) { p.open("Param.SetGrad").t.SetGrad(g) }

// SetRequiresGrad freezes the parameter (false) or lets it learn again (true).
func (p *Param) SetRequiresGrad(on bool) {
	p.open("Param.SetRequiresGrad")
	if !on && p.t.RequiresGrad() {
		p.t.SetGrad(nil)
	}
	p.t.SetRequiresGrad(on)
}

// SetRequiresGrad freezes all parameters of m (false), which also drops their gradients, or lets them learn again (true).
func SetRequiresGrad(m any, on bool) {
	for _, p := range Params(m) {
		p.SetRequiresGrad(on)
	}
}

// open returns p, whose method op was called, and refuses one that was closed.
func (p *Param) open(op string) *Param {
	core.OpenParam(op, "", (*core.Tensor)(made(p, op).t))
	return p
}

// Close frees the tensor and its gradient.
func (p *Param) Close() {
	if p != nil {
		p.t.Close()
	}
}

// String describes the parameter, such as "Param float32[3 4] on NVIDIA H200 requires grad".
func (p *Param) String() string { return "Param " + p.Tensor().String() }

// Buffer is state of a module that is not learned, such as a running mean: a stable box around a tensor. It is moved and closed with the
// module, and saved with it unless it is non-persistent.
type Buffer struct {
	t         *tenon.Tensor
	transient bool
}

// BufferOpt are the options of NewBuffer. The zero value is PyTorch's default.
type BufferOpt struct {
	// NonPersistent leaves the buffer out of the state dict, and so of files: it is moved, converted and closed with its module, but the
	// program recomputes it, as it does a mask or a table of positions.
	NonPersistent bool
}

// NewBuffer returns a buffer that holds t, which it takes out of its scope.
func NewBuffer(t *tenon.Tensor, opts ...BufferOpt) *Buffer {
	opt := core.One("NewBuffer", opts)
	return &Buffer{own("NewBuffer", t), opt.NonPersistent}
}

// Tensor returns the buffer's tensor, nil for a nil Buffer. The box owns it: do not close it.
func (b *Buffer) Tensor() *tenon.Tensor {
	if b == nil {
		return nil
	}
	return b.t
}

// Set replaces the tensor and closes the former one. The box becomes t's owner.
func (b *Buffer) Set(t *tenon.Tensor) {
	replace("Buffer.Set", &made(b, "Buffer.Set").t, t)
}

// Close frees the tensor.
func (b *Buffer) Close() {
	if b != nil {
		b.t.Close()
	}
}

// replace puts t in a box in place of the former tensor, which it closes.
func replace(op string, box **tenon.Tensor, t *tenon.Tensor) {
	if *box == t {
		return
	}
	t = own(op, t)
	(*box).Close()
	*box = t
}

// own takes t, given to op, out of its scope.
func own(op string, t *tenon.Tensor) *tenon.Tensor {
	c := (*core.Tensor)(t)
	core.Given(op, 0, c)
	return (*tenon.Tensor)(core.Own(c))
}
