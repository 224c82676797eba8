package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// The steps of optimizers, each operation in the order in which torch.optim does it. The first input is the parameter, the second its gradient, the
// outputs are the new parameter and the new state.
var (
	// SGD: inputs p, g; output p. Scalars: ±1 for minimizing or maximizing, weight decay, -lr.
	SGD = point(PointOp{Name: "sgd", Ins: 2, Scalars: 3, Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		g := decayed(in, s)
		return []Num{in[0].Add(g.Mul(s[2]))}
	}})
	// SGDMomentum: inputs p, g, buffer; outputs p, buffer. Scalars: those of SGD, momentum, 1 - dampening. The buffer starts as the first
	// gradient: then momentum is 0 and dampening 0.
	SGDMomentum = point(PointOp{Name: "sgd_momentum", Ins: 3, Outs: 2, Scalars: 5, Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		g := decayed(in, s)
		buf := in[2].Mul(s[3]).Add(g.Mul(s[4]))
		return []Num{in[0].Add(buf.Mul(s[2])), buf}
	}})
	// SGDNesterov is SGDMomentum that steps by the gradient plus scalar 5, the momentum, times the buffer.
	SGDNesterov = point(PointOp{Name: "sgd_nesterov", Ins: 3, Outs: 2, Scalars: 6, Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		g := decayed(in, s)
		buf := in[2].Mul(s[3]).Add(g.Mul(s[4]))
		return []Num{in[0].Add(g.Add(buf.Mul(s[5])).Mul(s[2])), buf}
	}})
	// Adam and its kin: inputs p, g, mean, mean of squares and, with AMSGrad, the largest of those; outputs all but g. Scalars: ±1 for
	// minimizing or maximizing; weight decay, or 1 - lr·decay for AdamW; 1 - β₁; β₂; 1 - β₂; -lr/(1-β₁ᵗ); √(1-β₂ᵗ); ε.
	Adam, AdamW           = adam("adam", false, false), adam("adamw", true, false)
	AdamAMSGrad, AdamWAMS = adam("adam_amsgrad", false, true), adam("adamw_amsgrad", true, true)
)

// decayed returns the gradient with its sign, plus the weight decay times the parameter if there is one.
func decayed(in, s []Num) Num {
	g := in[1].Mul(s[0])
	return choose(s[1].NonZero(), g.Add(in[0].Mul(s[1])), g)
}

func adam(name string, decoupled, amsgrad bool) *PointOp {
	op := PointOp{Name: name, Ins: 4, Outs: 3, Scalars: 8, Heavy: true}
	if amsgrad {
		op.Ins, op.Outs = 5, 4
	}
	op.Build = func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		p, g := in[0], in[1].Mul(s[0])
		if decoupled {
			p = p.Mul(s[1])
		} else {
			g = decayed(in, s)
		}
		// lerp goes from the nearer end.
		m, w := in[2], s[2]
		near, far := m.Add(g.Sub(m).Mul(w)), g.Sub(g.Sub(m).Mul(w.like(1).Sub(w)))
		m = choose(w.Re.Lt(w.Re.Like(0.5)), near, far)
		v := in[3].Mul(s[3]).Add(g.Mul(s[4]).Mul(g))
		outs := []Num{p, m, v}
		square := v
		if amsgrad {
			square = choose(in[4].Re.Lt(v.Re).Or(v.IsNaN()), v, in[4])
			outs = append(outs, square)
		}
		d := realNum(square.Re.Sqrt()).Div(s[6]).Add(s[7])
		outs[0] = p.Add(m.Mul(s[5]).Div(d))
		return outs
	}
	return point(op)
}
