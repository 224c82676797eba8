package kernels

import "tenon.dev/kernel"

// VecDot sums the products of the elements of its inputs, the first one conjugated. It computes halves in float32 and rounds only the sum.
var VecDot = reduction(ReduceOp{Name: "vec_dot", Ins: 2, State: parts,
	Init: func(r *Reduction) []kernel.Value {
		var vs []kernel.Value
		for _, t := range parts(r.T) {
			vs = append(vs, r.K.Const(t, 0))
		}
		return vs
	},
	Step: func(_ *Reduction, a []kernel.Value, in []Num, _ kernel.Value) []kernel.Value {
		x := in[0]
		if x.IsComplex() {
			x = x.Conj()
		}
		return pack(unpack(a).Add(x.Mul(in[1])))
	},
	Combine: func(_ *Reduction, a, b []kernel.Value) []kernel.Value { return pack(unpack(a).Add(unpack(b))) },
	Finish:  func(_ *Reduction, a []kernel.Value) []Num { return []Num{unpack(a)} },
})
