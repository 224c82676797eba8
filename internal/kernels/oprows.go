package kernels

import (
	gomath "math"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

var (
	softmaxOp = rowWise(rowOp{name: "softmax", outs: []rowKind{rowFull}, ins: []rowKind{rowFull}, build: func(r *rowKernel) {
		_, e, s := r.softmax(r.in(0))
		if s.Type() == dtype.Float64 {
			r.put(0, r.each(func(v ...kernel.Value) kernel.Value { return v[0].Div(s) }, e))
			return
		}
		// One division per row: an exact division of each element would take as long as reading it.
		inverse := s.Like(1).Div(s)
		r.put(0, r.each(func(v ...kernel.Value) kernel.Value { return v[0].Mul(inverse) }, e))
	}})
	logSoftmaxOp = rowWise(rowOp{name: "log_softmax", outs: []rowKind{rowFull}, ins: []rowKind{rowFull}, build: func(r *rowKernel) {
		x := r.in(0)
		m, _, s := r.softmax(x)
		log := math.Log(r.k, s)
		r.put(0, r.each(func(v ...kernel.Value) kernel.Value { return v[0].Sub(m).Sub(log) }, x))
	}})
	// in: gradient, result.
	softmaxBackwardOp = rowWise(rowOp{name: "softmax_backward", outs: []rowKind{rowFull}, ins: []rowKind{rowFull, rowFull},
		build: func(r *rowKernel) {
			g, y := r.in(0), r.in(1)
			s := r.sum(r.each(func(v ...kernel.Value) kernel.Value { return v[0].Mul(v[1]) }, g, y))
			r.put(0, r.each(func(v ...kernel.Value) kernel.Value { return v[0].Sub(s).Mul(v[1]) }, g, y))
		}})
	logSoftmaxBackwardOp = rowWise(rowOp{name: "log_softmax_backward", outs: []rowKind{rowFull}, ins: []rowKind{rowFull, rowFull},
		build: func(r *rowKernel) {
			g, y := r.in(0), r.in(1)
			s := r.sum(g)
			r.put(0, r.each(func(v ...kernel.Value) kernel.Value { return v[0].Sub(math.Exp(r.k, v[1]).Mul(s)) }, g, y))
		}})
	// out: y, mean, rstd; in: x, weight, bias; scalar: eps.
	layerNormOp = rowWise(rowOp{name: "layer_norm", outs: []rowKind{rowFull, rowOne, rowOne}, ins: []rowKind{rowFull, rowFull, rowFull},
		scalars: 1, build: func(r *rowKernel) {
			x := r.in(0)
			mean := r.mean(x)
			d := r.each(func(v ...kernel.Value) kernel.Value { return v[0].Sub(mean) }, x)
			rstd := math.Rsqrt(r.k, r.mean(r.each(squared, d)).Add(r.scalars[0]))
			r.putOne(1, mean)
			r.putOne(2, rstd)
			y := r.each(func(v ...kernel.Value) kernel.Value { return v[0].Mul(rstd) }, d)
			r.put(0, r.affine(y, 1, 2))
		}})
	// out: dx; in: dy, x, mean, rstd, weight.
	layerNormBackwardOp = rowWise(rowOp{name: "layer_norm_backward", outs: []rowKind{rowFull},
		ins: []rowKind{rowFull, rowFull, rowOne, rowOne, rowFull}, build: layerNormBackward})
	// The same with the gradients of weight and bias after dx, of either alone, and of RMS norm's weight.
	layerNormBackwardAffine = withSums(layerNormBackwardOp, "affine", normAffineGrad)
	layerNormBackwardWeight = withSums(layerNormBackwardOp, "weight", normWeightGrad)
	layerNormBackwardBias   = withSums(layerNormBackwardOp, "bias", normBiasGrad)
	rmsNormBackwardWeight   = withSums(rmsNormBackwardOp, "weight", rmsWeightGrad)
	// out: y, rstd; in: x, weight; scalar: eps.
	rmsNormOp = rowWise(rowOp{name: "rms_norm", outs: []rowKind{rowFull, rowOne}, ins: []rowKind{rowFull, rowFull}, scalars: 1,
		build: func(r *rowKernel) {
			x := r.in(0)
			rstd := math.Rsqrt(r.k, r.mean(r.each(squared, x)).Add(r.scalars[0]))
			r.putOne(1, rstd)
			r.put(0, r.affine(r.each(func(v ...kernel.Value) kernel.Value { return v[0].Mul(rstd) }, x), 1, -1))
		}})
	// out: dx; in: dy, x, rstd, weight.
	rmsNormBackwardOp = rowWise(rowOp{name: "rms_norm_backward", outs: []rowKind{rowFull},
		ins: []rowKind{rowFull, rowFull, rowOne, rowFull}, build: func(r *rowKernel) {
			rstd := r.one(2)
			h := r.each(func(v ...kernel.Value) kernel.Value { return v[0].Mul(rstd) }, r.in(1))
			g := r.affine(r.in(0), 3, -1)
			b := r.mean(r.each(multiply, g, h))
			r.put(0, r.each(func(v ...kernel.Value) kernel.Value { return v[0].Sub(v[1].Mul(b)).Mul(rstd) }, g, h))
		}})
)

func layerNormBackward(r *rowKernel) {
	mean, rstd := r.one(2), r.one(3)
	h := r.each(func(v ...kernel.Value) kernel.Value { return v[0].Sub(mean).Mul(rstd) }, r.in(1))
	g := r.affine(r.in(0), 4, -1)
	a := r.mean(g)
	b := r.mean(r.each(multiply, g, h))
	r.put(0, r.each(func(v ...kernel.Value) kernel.Value { return v[0].Sub(v[1].FMA(b, a)).Mul(rstd) }, g, h))
}

// withSums returns op with the outputs of sums, which takes op's first inputs, after its own.
func withSums(op *rowOp, name string, sums *ReduceOp) *rowOp {
	with := *op
	with.name, with.sums, with.freeWidth = op.name+"_"+name, sums, true
	return rowWise(with)
}

func squared(v ...kernel.Value) kernel.Value  { return v[0].Mul(v[0]) }
func multiply(v ...kernel.Value) kernel.Value { return v[0].Mul(v[1]) }

var (
	// out: normalizer, loss; in: logits, target, weight of the classes, shared by all rows; scalar: the ignored target. The loss of an
	// ignored row is 0.
	crossEntropyOp = rowWise(rowOp{name: "cross_entropy", outs: []rowKind{rowOne, rowOne}, ins: []rowKind{rowFull, rowOne, rowOne},
		scalars: 1, scalarTypes: []dtype.DType{dtype.Int64}, freeWidth: true, halvesToo: true, build: func(r *rowKernel) {
			k, c := r.k, r.integer(1)
			m, s := r.normalizer(r.in(0))
			lse := m.Add(math.Log(k, s))
			r.putOne(0, lse)
			r.once(func() {
				loss := k.Var(k.Const(r.t, 0))
				k.If(c.Ne(r.scalars[0]), func() {
					assertClass(k, c, r.n.Convert(dtype.Int64))
					v := lse.Add(r.inputAt(0, c.Convert(r.ix)).Neg())
					if r.has(2) {
						w := len(r.op.outs) + 2
						v = v.Mul(r.arrays[w].load(r.bases[w].Add(c.Convert(r.ix)), 1)[0].Convert(r.t).Re)
					}
					loss.Set(v)
				})
				r.arrays[1].store(r.bases[1], realNum(loss.Get()))
			})
		}})
	// out: gradient of the logits; in: logits, normalizer, target, weight of the target's class, sum of weights, gradient of the loss;
	// scalar: the ignored target. The results equal those of CrossEntropyBackward bit for bit.
	crossEntropyBackwardOp = rowWise(rowOp{name: "cross_entropy_backward", outs: []rowKind{rowFull},
		ins:     []rowKind{rowFull, rowOne, rowOne, rowOne, rowOne, rowOne},
		scalars: 1, scalarTypes: []dtype.DType{dtype.Int64}, freeWidth: true, build: func(r *rowKernel) {
			x := r.in(0)
			r.hold(x)
			lse, c, g := r.one(1), r.integer(2), r.one(5)
			if r.has(3) {
				g = g.Mul(r.one(3))
			}
			if r.has(4) {
				g = g.Div(r.one(4))
			}
			used := c.Ne(r.scalars[0])
			g = used.Select(g, g.Like(0))
			// The number of columns fits the index type, so a valid target does; a target that is not a column becomes -1.
			used = used.And(c.Ge(r.k.I64(0))).And(c.Lt(r.n.Convert(dtype.Int64)))
			p := r.each(func(v ...kernel.Value) kernel.Value { return math.ExpDifference(r.k, v[0].Sub(lse)) }, x)
			at := used.Select(c, r.k.I64(-1)).Convert(r.ix)
			r.putSome(0, func(ps []spot) [][]kernel.Value {
				all := r.changed(at, ps, p, func(p kernel.Value) kernel.Value { return p.Sub(p.Like(1)) })
				for _, vs := range all {
					for j := range vs {
						vs[j] = vs[j].Mul(g)
					}
				}
				return all
			})
		}})
)

// assertClass stops the device if a target is not a class.
func assertClass(k *kernel.Builder, target, classes kernel.Value) {
	k.Assert(target.Ge(k.I64(0)).And(target.Lt(classes)), "target %v is out of range for %v classes", target, classes)
}

// affine multiplies s by input w and adds input b, if they are present; -1 stands for none.
func (r *rowKernel) affine(s source, w, b int) source {
	switch hasW, hasB := w >= 0 && r.has(w), b >= 0 && r.has(b); {
	case hasW && hasB:
		return r.each(func(v ...kernel.Value) kernel.Value { return v[0].FMA(v[1], v[2]) }, s, r.in(w), r.in(b))
	case hasW:
		return r.each(multiply, s, r.in(w))
	case hasB:
		return r.each(func(v ...kernel.Value) kernel.Value { return v[0].Add(v[1]) }, s, r.in(b))
	}
	return s
}

// softmax returns the greatest element m of the row, e^(x-m), and the sum of that, which is NaN if m is infinite, like e^(m-m).
func (r *rowKernel) softmax(x source) (m kernel.Value, e source, s kernel.Value) {
	exp := func(v ...kernel.Value) kernel.Value { return math.ExpDifference(r.k, v[0].Sub(m)) }
	if r.chunks == 0 {
		m, s = r.normalizer(x)
		return m, r.each(exp, x), s
	}
	// A NaN may be lost here, but it makes the sum NaN anyway.
	m = r.fold([]kernel.Value{r.k.Const(r.t, gomath.Inf(-1))}, x,
		func(a []kernel.Value, x kernel.Value) []kernel.Value { return []kernel.Value{a[0].Max(x)} },
		func(a, b []kernel.Value) []kernel.Value { return []kernel.Value{a[0].Max(b[0])} })[0]
	e = r.each(exp, x)
	return m, e, r.sum(e)
}

// normalizer returns softmax's m and s. A held row takes a pass for each; a row that is read again gets both from one pass (see LogSumExp).
func (r *rowKernel) normalizer(x source) (m, s kernel.Value) {
	if r.chunks > 0 {
		m, _, s = r.softmax(x)
		return m, s
	}
	state := r.foldSome(onlineInit(r.k, r.t), x, func(a, xs []kernel.Value) []kernel.Value { return onlineSome(r.k, a, xs) },
		func(a, b []kernel.Value) []kernel.Value { return onlineCombine(r.k, a, b) })
	m, s = state[0], state[1]
	return m, s.Add(m.Sub(m))
}
