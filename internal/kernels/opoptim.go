package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// The steps of optimizers. Operations are in the order of torch.optim. The first input is the parameter, the second its gradient; the
// outputs are the new parameter and, in the order of the inputs, the new state. The first scalar is always ±1, for minimizing or
// maximizing. The second is the weight decay or, if the decay is decoupled from the gradient, the factor of the parameter.
//
// Of the numbers given to the optimizer, the first is the learning rate, the second ±1 and the third the weight decay.
var (
	// SGD: numbers lr, ±1, decay. Scalars: ±1, decay, -lr.
	SGD = step(PointOp{Name: "sgd", Ins: 2, Scalars: 3, Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		g := decayed(in, s)
		return []Num{in[0].Add(g.Mul(s[2]))}
	}}, 3, func(_ *kernel.Builder, h, _ []kernel.Value) []kernel.Value { return sgdRow(h) })
	// SGDMomentum: inputs p, g, buffer. Numbers: those of SGD, momentum, 1 - dampening. Scalars: those of SGD and the same two, which are 0
	// and 1 in the first step, so that the buffer starts as the first gradient.
	SGDMomentum = step(PointOp{Name: "sgd_momentum", Ins: 3, Outs: 2, Scalars: 5, Build: func(_ *kernel.Builder, _ dtype.DType,
		in, s []Num) []Num {
		g := decayed(in, s)
		buf := in[2].Mul(s[3]).Add(g.Mul(s[4]))
		return []Num{in[0].Add(buf.Mul(s[2])), buf}
	}}, 5, func(k *kernel.Builder, h, m []kernel.Value) []kernel.Value {
		return append(sgdRow(h), sgdMomenta(k, h, m)...)
	})
	// SGDNesterov is SGDMomentum, but it steps by the gradient plus the last scalar, the momentum, times the buffer.
	SGDNesterov = step(PointOp{Name: "sgd_nesterov", Ins: 3, Outs: 2, Scalars: 6, Build: func(_ *kernel.Builder, _ dtype.DType,
		in, s []Num) []Num {
		g := decayed(in, s)
		buf := in[2].Mul(s[3]).Add(g.Mul(s[4]))
		return []Num{in[0].Add(g.Add(buf.Mul(s[5])).Mul(s[2])), buf}
	}}, 5, func(k *kernel.Builder, h, m []kernel.Value) []kernel.Value {
		return append(append(sgdRow(h), sgdMomenta(k, h, m)...), h[3])
	})
	// Adam and its variants: inputs p, g, mean, mean of squares and, with AMSGrad, the largest of those. Numbers: lr, ±1, decay, β₁, β₂, ε.
	// Scalars: ±1; decay, or 1 - lr·decay for AdamW; 1 - β₁; β₂; 1 - β₂; -lr/(1-β₁ᵗ); √(1-β₂ᵗ); ε.
	Adam, AdamW           = adam("adam", false, false), adam("adamw", true, false)
	AdamAMSGrad, AdamWAMS = adam("adam_amsgrad", false, true), adam("adamw_amsgrad", true, true)
	// NAdam, NAdamW: inputs p, g, mean, mean of squares. Numbers: those of Adam and the momentum's decay ψ. With μₜ = β₁(1 - 0.96^(tψ)/2)
	// and Π their product so far, scalars: ±1; decay or 1 - lr·decay; 1 - β₁; β₂; 1 - β₂; 1 - β₂ᵗ; -lr(1-μₜ)/(1-Π); -lr·μₜ₊₁/(1-Π·μₜ₊₁); ε.
	NAdam, NAdamW = nadam("nadam", false), nadam("nadamw", true)
	// RAdam, RAdamW: inputs p, g, mean, mean of squares. Numbers: those of Adam. Scalars: ±1; decay or 1 - lr·decay; 1 - β₁; β₂; 1 - β₂; 1
	// - β₁ᵗ; -lr; the rectification times √(1-β₂ᵗ), or 0 while there is none; ε.
	RAdam, RAdamW = radam("radam", false), radam("radamw", true)
	// Adamax: inputs p, g, mean, largest magnitude. Numbers: those of Adam. Scalars: ±1; decay; 1 - β₁; β₂; ε; -lr/(1-β₁ᵗ).
	Adamax = step(PointOp{Name: "adamax", Ins: 4, Outs: 3, Scalars: 6, Heavy: true, Build: func(_ *kernel.Builder, _ dtype.DType,
		in, s []Num) []Num {
		g := decayed(in, s)
		m := lerp(in[2], g, s[2])
		most := larger(in[3].Mul(s[3]), realNum(g.Re.Abs()).Add(s[4]))
		return []Num{in[0].Add(m.Mul(s[5]).Div(most)), m, most}
	}}, 6, func(k *kernel.Builder, h, m []kernel.Value) []kernel.Value {
		one := k.F64(1)
		return []kernel.Value{h[1], h[2], one.Sub(h[3]), h[4], h[5], h[0].Neg().Div(one.Sub(math.Pow(k, h[3], m[0])))}
	})
	// Adagrad: inputs p, g, sum of squares. Numbers: lr, ±1, decay, the rate's decay, ε. Scalars: ±1; decay; -lr/(1+(t-1)·the rate's
	// decay); ε.
	Adagrad = step(PointOp{Name: "adagrad", Ins: 3, Outs: 2, Scalars: 4, Heavy: true, Build: func(_ *kernel.Builder, _ dtype.DType,
		in, s []Num) []Num {
		g := decayed(in, s)
		sum := in[2].Add(g.Mul(g))
		return []Num{in[0].Add(g.Mul(s[2]).Div(root(sum).Add(s[3]))), sum}
	}}, 5, func(k *kernel.Builder, h, m []kernel.Value) []kernel.Value {
		one := k.F64(1)
		return []kernel.Value{h[1], h[2], h[0].Neg().Div(one.Add(m[0].Sub(one).Mul(h[3]))), h[4]}
	})
	// Adadelta: inputs p, g, mean of squares, mean of squared changes. Numbers: lr, ±1, decay, ρ, ε. Scalars: ±1; decay; ρ; 1 - ρ; ε; -lr.
	Adadelta = step(PointOp{Name: "adadelta", Ins: 4, Outs: 3, Scalars: 6, Heavy: true, Build: func(_ *kernel.Builder, _ dtype.DType,
		in, s []Num) []Num {
		g := decayed(in, s)
		square := in[2].Mul(s[2]).Add(g.Mul(s[3]).Mul(g))
		change := root(in[3].Add(s[4])).Div(root(square.Add(s[4]))).Mul(g)
		changes := in[3].Mul(s[2]).Add(change.Mul(s[3]).Mul(change))
		return []Num{in[0].Add(change.Mul(s[5])), square, changes}
	}}, 5, func(k *kernel.Builder, h, _ []kernel.Value) []kernel.Value {
		return []kernel.Value{h[1], h[2], h[3], k.F64(1).Sub(h[3]), h[4], h[0].Neg()}
	})
	// RMSprop and its variants: inputs p, g, mean of squares, with Centered the mean, with Momentum the buffer. Numbers: lr, ±1, decay, α,
	// ε, momentum. Scalars: ±1; decay; α; 1 - α; ε; -lr; momentum.
	RMSprop, RMSpropCentered                 = rmsprop("rmsprop", false, false), rmsprop("rmsprop_centered", true, false)
	RMSpropMomentum, RMSpropCenteredMomentum = rmsprop("rmsprop_momentum", false, true), rmsprop("rmsprop_centered_momentum", true, true)
	// Rprop: inputs p, g, the preceding gradient, step size. Numbers: lr, ±1, decay (not used), η₋, η₊, smallest and largest step. Scalars:
	// ±1, 0, the last four.
	Rprop = step(PointOp{Name: "rprop", Ins: 4, Outs: 3, Scalars: 6, Heavy: true, Build: func(_ *kernel.Builder, _ dtype.DType,
		in, s []Num) []Num {
		g := in[1].Mul(s[0])
		turn := g.Mul(in[2]).Re
		zero := turn.Like(0)
		back := turn.Lt(zero)
		factor := turn.Gt(zero).Select(s[3].Re, back.Select(s[2].Re, turn.Eq(zero).Select(turn.Like(1), turn)))
		size := in[3].Re.Mul(factor)
		size = size.Lt(s[4].Re).Select(s[4].Re, size)
		size = size.Gt(s[5].Re).Select(s[5].Re, size)
		g = choose(back, g.like(0), g)
		return []Num{in[0].Sub(realNum(sign(g.Re).Mul(size))), g, realNum(size)}
	}}, 7, func(_ *kernel.Builder, h, _ []kernel.Value) []kernel.Value {
		return []kernel.Value{h[1], h[1].Like(0), h[3], h[4], h[5], h[6]}
	})
	// ASGD: inputs p, g, average. Numbers: lr, ±1, decay, λ, α, t₀. With η = lr/(1+λ·lr·t)^α and μ = 1/max(1, t-t₀) of the preceding step
	// (lr and 1 at first), scalars: ±1; decay; 1 - λη; -η; μ.
	ASGD = step(PointOp{Name: "asgd", Ins: 3, Outs: 2, Scalars: 5, Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		g := decayed(in, s)
		p := in[0].Mul(s[2]).Add(g.Mul(s[3]))
		return []Num{p, choose(s[4].Eq(s[4].like(1)), p, in[2].Add(p.Sub(in[2]).Mul(s[4])))}
	}}, 6, func(k *kernel.Builder, h, m []kernel.Value) []kernel.Value {
		one := k.F64(1)
		first := m[0].Eq(one)
		eta, mu := first.Select(h[0], m[1]), first.Select(one, m[2])
		m[1] = h[0].Div(math.Pow(k, one.Add(h[3].Mul(h[0]).Mul(m[0])), h[4]))
		m[2] = one.Div(one.Max(m[0].Sub(h[5])))
		return []kernel.Value{h[1], h[2], one.Sub(h[3].Mul(eta)), eta.Neg(), mu}
	})
)

func sgdRow(h []kernel.Value) []kernel.Value { return []kernel.Value{h[1], h[2], h[0].Neg()} }

func sgdMomenta(k *kernel.Builder, h, m []kernel.Value) []kernel.Value {
	first := m[0].Eq(k.F64(1))
	return []kernel.Value{first.Select(k.F64(0), h[3]), first.Select(k.F64(1), h[4])}
}

// decayed returns the gradient with its sign, plus the weight decay times the parameter if there is decay.
func decayed(in, s []Num) Num {
	g := in[1].Mul(s[0])
	return choose(s[1].NonZero(), g.Add(in[0].Mul(s[1])), g)
}

// shrunk returns the parameter and the result of decayed or, if the decay is decoupled, the scaled parameter and the gradient.
func shrunk(in, s []Num, decoupled bool) (p, g Num) {
	if decoupled {
		return in[0].Mul(s[1]), in[1].Mul(s[0])
	}
	return in[0], decayed(in, s)
}

// shrinking returns the second scalar.
func shrinking(k *kernel.Builder, h []kernel.Value, decoupled bool) kernel.Value {
	if decoupled {
		return k.F64(1).Sub(h[0].Mul(h[2]))
	}
	return h[2]
}

// lerp interpolates from a to b by the fraction w, from the nearer end.
func lerp(a, b, w Num) Num {
	near, far := a.Add(b.Sub(a).Mul(w)), b.Sub(b.Sub(a).Mul(w.like(1).Sub(w)))
	return choose(w.Re.Lt(w.Re.Like(0.5)), near, far)
}

// larger is the maximum, or NaN if b is NaN.
func larger(a, b Num) Num { return choose(a.Re.Lt(b.Re).Or(b.IsNaN()), b, a) }

func root(n Num) Num { return realNum(n.Re.Sqrt()) }

// moments returns the mean and the mean of squares after a step with the scalars 1 - β₁, β₂ and 1 - β₂ from s[2] on.
func moments(in, s []Num, g Num) (mean, square Num) {
	return lerp(in[2], g, s[2]), in[3].Mul(s[3]).Add(g.Mul(s[4]).Mul(g))
}

// betas returns those scalars.
func betas(k *kernel.Builder, h []kernel.Value) []kernel.Value {
	return []kernel.Value{k.F64(1).Sub(h[3]), h[4], k.F64(1).Sub(h[4])}
}

// correction is 1 - βᵗ.
func correction(k *kernel.Builder, beta, t kernel.Value) kernel.Value {
	return k.F64(1).Sub(math.Pow(k, beta, t))
}

func adam(name string, decoupled, amsgrad bool) *StepOp {
	op := PointOp{Name: name, Ins: 4, Outs: 3, Scalars: 8, Heavy: true}
	if amsgrad {
		op.Ins, op.Outs = 5, 4
	}
	op.Build = func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		p, g := shrunk(in, s, decoupled)
		m, v := moments(in, s, g)
		outs := []Num{p, m, v}
		square := v
		if amsgrad {
			square = larger(in[4], v)
			outs = append(outs, square)
		}
		d := root(square).Div(s[6]).Add(s[7])
		outs[0] = p.Add(m.Mul(s[5]).Div(d))
		return outs
	}
	return step(op, 6, func(k *kernel.Builder, h, m []kernel.Value) []kernel.Value {
		s := append([]kernel.Value{h[1], shrinking(k, h, decoupled)}, betas(k, h)...)
		return append(s, h[0].Neg().Div(correction(k, h[3], m[0])), correction(k, h[4], m[0]).Sqrt(), h[5])
	})
}

func nadam(name string, decoupled bool) *StepOp {
	op := PointOp{Name: name, Ins: 4, Outs: 3, Scalars: 9, Heavy: true}
	op.Build = func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		p, g := shrunk(in, s, decoupled)
		m, v := moments(in, s, g)
		d := root(v.Div(s[5])).Add(s[8])
		return []Num{p.Add(g.Div(d).Mul(s[6])).Add(m.Div(d).Mul(s[7])), m, v}
	}
	return step(op, 7, func(k *kernel.Builder, h, m []kernel.Value) []kernel.Value {
		one := k.F64(1)
		mu := func(t kernel.Value) kernel.Value {
			return h[3].Mul(one.Sub(k.F64(0.5).Mul(math.Pow(k, k.F64(0.96), t.Mul(h[6])))))
		}
		now, next := mu(m[0]), mu(m[0].Add(one))
		product := m[0].Eq(one).Select(one, m[1]).Mul(now)
		m[1] = product
		s := append([]kernel.Value{h[1], shrinking(k, h, decoupled)}, betas(k, h)...)
		return append(s, correction(k, h[4], m[0]), h[0].Neg().Mul(one.Sub(now)).Div(one.Sub(product)),
			h[0].Neg().Mul(next).Div(one.Sub(product.Mul(next))), h[5])
	})
}

func radam(name string, decoupled bool) *StepOp {
	op := PointOp{Name: name, Ins: 4, Outs: 3, Scalars: 9, Heavy: true}
	op.Build = func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		p, g := shrunk(in, s, decoupled)
		m, v := moments(in, s, g)
		by := m.Div(s[5]).Mul(s[6])
		rectified := by.Mul(s[7].Div(root(v).Add(s[8])))
		return []Num{p.Add(choose(s[7].NonZero(), rectified, by)), m, v}
	}
	return step(op, 6, func(k *kernel.Builder, h, m []kernel.Value) []kernel.Value {
		one, two, four := k.F64(1), k.F64(2), k.F64(4)
		t := m[0]
		end := two.Div(one.Sub(h[4])).Sub(one)
		kept := math.Pow(k, h[4], t)
		rho := end.Sub(two.Mul(t).Mul(kept).Div(one.Sub(kept)))
		rect := rho.Sub(four).Mul(rho.Sub(two)).Mul(end).Div(end.Sub(four).Mul(end.Sub(two)).Mul(rho)).Sqrt()
		rect = rho.Gt(k.F64(5)).Select(rect.Mul(one.Sub(kept).Sqrt()), k.F64(0))
		s := append([]kernel.Value{h[1], shrinking(k, h, decoupled)}, betas(k, h)...)
		return append(s, correction(k, h[3], t), h[0].Neg(), rect, h[5])
	})
}

func rmsprop(name string, centered, momentum bool) *StepOp {
	op := PointOp{Name: name, Ins: 3, Outs: 2, Scalars: 7, Heavy: true}
	for _, more := range []bool{centered, momentum} {
		if more {
			op.Ins, op.Outs = op.Ins+1, op.Outs+1
		}
	}
	op.Build = func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num {
		g := decayed(in, s)
		square := in[2].Mul(s[2]).Add(g.Mul(s[3]).Mul(g))
		outs, mid := []Num{in[0], square}, square
		if centered {
			mean := lerp(in[3], g, s[3])
			outs, mid = append(outs, mean), square.Sub(mean.Mul(mean))
		}
		by := g.Div(root(mid).Add(s[4]))
		if momentum {
			by = in[op.Ins-1].Mul(s[6]).Add(by)
			outs = append(outs, by)
		}
		outs[0] = in[0].Add(by.Mul(s[5]))
		return outs
	}
	return step(op, 6, func(k *kernel.Builder, h, _ []kernel.Value) []kernel.Value {
		return []kernel.Value{h[1], h[2], h[3], k.F64(1).Sub(h[3]), h[4], h[0].Neg(), h[5]}
	})
}
