package linalg

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/infer"
)

// nuclearSteps is how often polarFactor applies its step: each step multiplies small singular values by 3/2 until they are near 1. So those
// of at least 2e-14 of the Frobenius norm get there, and the last five steps square the error each time.
const nuclearSteps = 83

// polarFactor returns the unitary factor UV* of the matrices USV* in the last two dimensions of a, of a float64 or complex128 tensor, by
// the iteration X(3 - X*X)/2 of Newton and Schulz (N. J. Higham, "Functions of Matrices", SIAM 2008, section 8.3). Singular values of 0
// stay 0.
func polarFactor(x *core.Exec, a *core.Tensor) *core.Tensor {
	norm := x.VectorNorm(a, []int{-2, -1}, core.VectorNormOpt{KeepDim: true})
	u := x.Mul(a, x.MaskedFillS(x.Reciprocal(norm), x.EqS(norm, 0), 1))
	wide := a.Size(-2) < a.Size(-1)
	step := func(x *core.Exec) *core.Tensor {
		h := conjugate(x, x.Transpose(u, -2, -1))
		var cube *core.Tensor
		if wide {
			cube = x.MatMul(x.MatMul(u, h), u)
		} else {
			cube = x.MatMul(u, x.MatMul(h, u))
		}
		return x.AddScaled(x.MulS(u, 1.5), cube, -0.5)
	}
	for range nuclearSteps {
		next := x.Within(step)
		u.Close()
		u = next
	}
	return u
}

// nuclear computes the nuclear norm of the matrices in the last two dimensions. Its derivative is the polar factor.
type nuclear struct{}

func (nuclear) Forward(x *core.Exec, c *core.FunctionContext, ins ...*core.Tensor) []*core.Tensor {
	a := ins[0]
	c.Save(a)
	p := x.Mul(conjugate(x, polarFactor(x, a)), a)
	if p.DType().IsComplex() {
		p = x.RealPart(p)
	}
	return []*core.Tensor{x.Sum(p, []int{-2, -1}, core.SumOpt{})}
}

func (nuclear) Backward(x *core.Exec, c *core.FunctionContext, grads ...*core.Tensor) ([]*core.Tensor, error) {
	g := x.Unsqueeze(x.Unsqueeze(grads[0], -1), -1)
	return []*core.Tensor{x.Mul(polarFactor(x, c.Saved()[0]), g)}, nil
}

func nuclearNorm(x *core.Exec, t *core.Tensor, dims []int, opt core.SumOpt) *core.Tensor {
	n := t.Dim()
	if dims == nil && n == 2 {
		dims = []int{0, 1}
	}
	if len(dims) != 2 {
		err := fault.New(fault.Invalid, "nuclear norm can only be computed over exactly two dimensions of a tensor, not over %v of %d",
			dims, n)
		core.Refuse(x, "NuclearNorm", err, t)
	}
	if dt := t.DType(); !dt.IsComplex() && dt != dtype.Float32 && dt != dtype.Float64 && x.AutocastDType() == dtype.Invalid {
		err := fault.New(fault.Unsupported, "the nuclear norm is not implemented for %v; convert the tensor to float32 first", dt)
		core.Refuse(x, "NuclearNorm", err, t)
	}
	return core.Composite(x, "NuclearNorm", func(x *core.Exec) *core.Tensor {
		x = core.Casting(x, "NuclearNorm", core.CastFloat32, &t)
		high, out := dtype.Float64, opt.DType
		if t.DType().IsComplex() {
			high = dtype.Complex128
		}
		if out == dtype.Invalid {
			out = t.DType().Real()
		}
		two, err := infer.Dims(dims, n)
		core.Refuse(x, "NuclearNorm", err, t)
		m := x.Permute(t, append(infer.OtherDims(n, two), two...)...)
		y := x.ToDType(x.Apply(nuclear{}, x.ToDType(m, high))[0], out)
		if opt.KeepDim {
			kept := slices.Clone(t.Shape())
			kept[two[0]], kept[two[1]] = 1, 1
			y = x.View(y, kept...)
		}
		return y
	})
}
