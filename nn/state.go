package nn

import (
	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/origin"
)

// To moves the parameters, their gradients and the buffers of m to x's device. Tensors that are already there stay as they are.
func To(x *tenon.Exec, m any) (err error) {
	defer origin.Located("To", &err)
	return change(x, m, func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor { return moved(x, t) })
}

// ToDType converts the floating-point parameters, their gradients and the floating-point buffers of m, which must be on x's device, to type
// dt.
func ToDType(x *tenon.Exec, m any, dt tenon.DType) (err error) {
	defer origin.Located("ToDType", &err)
	if !dt.IsFloat() && !dt.IsComplex() {
		return fault.New(fault.Invalid, "a module can be converted to floating-point and complex types only, not to %v", dt)
	}
	return change(x, m, func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
		if !t.DType().IsFloat() && !t.DType().IsComplex() {
			return t
		}
		return x.ToDType(t, dt)
	})
}

// ToChannelsLast gives the parameters and buffers of m that have four dimensions, and their gradients, the channels-last memory order, as
// [tenon.Exec.ChannelsLast] does for images; m must be on x's device. A convolution whose weight is in that order takes images in either
// order and returns them channels last.
func ToChannelsLast(x *tenon.Exec, m any) (err error) {
	defer origin.Located("ToChannelsLast", &err)
	return change(x, m, func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
		if t.Dim() != 4 {
			return t
		}
		return x.ChannelsLast(t)
	})
}

// change replaces every tensor t of m with f(t).
func change(x *tenon.Exec, m any, f func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor) error {
	return tenon.Try(func() {
		x := x.NoGrad()
		made := func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			t = f(x, t)
			core.Check("To", core.Force((*core.Exec)(x))) // before what it stands for goes
			return t
		}
		for _, p := range Params(m) {
			changeParam(x, p, made)
		}
		for _, b := range Buffers(m) {
			b.Set(made(x, b.t))
		}
	})
}

func changeParam(x *tenon.Exec, p *Param, f func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor) {
	t := f(x, p.t)
	if t == p.t {
		return
	}
	if p.t.RequiresGrad() {
		t.SetRequiresGrad(true)
		if g := p.Grad(); g != nil {
			if to := f(x, g); to == g {
				t.SetGrad(x.Clone(g))
			} else {
				t.SetGrad(to)
			}
		}
	}
	p.Set(t)
}
