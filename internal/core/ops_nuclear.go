package core

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// nuclearSteps is how often polarFactor applies its step: singular values grow by 3/2 a step until they are near 1, so those of 2e-14 of the
// Frobenius norm and more arrive, and five steps square the rest of the error away.
const nuclearSteps = 83

// polarFactor returns the unitary factor UV* of the matrices USV* in the last two dimensions of a, of a float64 or complex128 tensor, by the
// iteration X(3 - X*X)/2 of Newton and Schulz (N. J. Higham, "Functions of Matrices", SIAM 2008, section 8.3). Singular values of 0 stay 0.
func (x *Exec) polarFactor(a *Tensor) *Tensor {
	last := []int{-2, -1}
	norm := x.VectorNorm(a, 2, last, SumOpt{KeepDim: true})
	u := x.Mul(a, x.pick(x.EqS(norm, 0), nil, 1, x.Reciprocal(norm), 0))
	wide := a.shape[len(a.shape)-2] < a.shape[len(a.shape)-1]
	step := func(x *Exec) *Tensor {
		h := x.adjoint(u)
		var cube *Tensor
		if wide {
			cube = x.MatMul(x.MatMul(u, h), u)
		} else {
			cube = x.MatMul(u, x.MatMul(h, u))
		}
		return x.AddScaled(x.MulS(u, 1.5), cube, -0.5)
	}
	for range nuclearSteps {
		next := x.within(step)
		u.close()
		u = next
	}
	return u
}

// nuclear is the nuclear norm of the matrices in the last two dimensions. Its derivative is the polar factor.
type nuclear struct{}

func (nuclear) Forward(x *Exec, c *FunctionContext, ins ...*Tensor) []*Tensor {
	a := ins[0]
	c.Save(a)
	p := x.Mul(x.conjugate(x.polarFactor(a)), a)
	if p.dt.IsComplex() {
		p = x.RealPart(p)
	}
	return []*Tensor{x.Sum(p, []int{-2, -1}, SumOpt{})}
}

func (nuclear) Backward(x *Exec, c *FunctionContext, grads ...*Tensor) ([]*Tensor, error) {
	g := x.Unsqueeze(x.Unsqueeze(grads[0], -1), -1)
	return []*Tensor{x.Mul(x.polarFactor(c.Saved()[0]), g)}, nil
}

// NuclearNorm returns the nuclear norm, the sum of the singular values, of the matrices in two dimensions of t; nil dims mean those of a matrix.
// It is computed in float64. That of a complex tensor is real.
func (x *Exec) NuclearNorm(t *Tensor, dims []int, opt SumOpt) *Tensor {
	n := len(t.shape)
	if dims == nil && n == 2 {
		dims = []int{0, 1}
	}
	if len(dims) != 2 {
		x.fail("NuclearNorm", fault.Invalid, []*Tensor{t}, "nuclear norm can only be computed over exactly two dimensions of a tensor, not over %v of %d", dims, n)
	}
	if !t.dt.IsComplex() && t.dt != dtype.Float32 && t.dt != dtype.Float64 && x.m.autocast == dtype.Invalid {
		x.fail("NuclearNorm", fault.Unsupported, []*Tensor{t}, "the nuclear norm is not implemented for %v; convert the tensor to float32 first", t.dt)
	}
	return x.composite("NuclearNorm", func(x *Exec) *Tensor {
		x = x.casting("NuclearNorm", castFloat32, &t)
		high, out := dtype.Float64, opt.DType
		if t.dt.IsComplex() {
			high = dtype.Complex128
		}
		if out == dtype.Invalid {
			out = t.dt.Real()
		}
		order := make([]int, 0, n)
		f := x.op(rowPermute, t)
		a, b := f.dim(dims[0], n), f.dim(dims[1], n)
		x.s.leave(f)
		for i := range n {
			if i != a && i != b {
				order = append(order, i)
			}
		}
		m := x.Permute(t, append(order, a, b)...)
		y := x.ToDType(x.Apply(nuclear{}, x.ToDType(m, high))[0], out)
		if opt.KeepDim {
			kept := slices.Clone(t.shape)
			kept[a], kept[b] = 1, 1
			y = x.View(y, kept...)
		}
		return y
	})
}
