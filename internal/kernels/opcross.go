package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Cross takes the three parts of the first factor and of the second, and returns those of the cross product. CrossF16 and CrossBF16 round
// every product to the half, as PyTorch does, although they compute in float32.
var (
	Cross     = cross("cross", dtype.Invalid)
	CrossF16  = cross("cross_f16", dtype.Float16)
	CrossBF16 = cross("cross_bf16", dtype.BFloat16)
)

func cross(name string, half dtype.DType) *PointOp {
	return point(PointOp{Name: name, Ins: 6, Outs: 3, Build: func(_ *kernel.Builder, t dtype.DType, in, _ []Num) []Num {
		product := func(i, j int) Num {
			p := in[i].Mul(in[3+j])
			if half != dtype.Invalid && t == dtype.Float32 {
				p = realNum(p.Re.Convert(half).Convert(t))
			}
			return p
		}
		part := func(i, j int) Num { return product(i, j).Sub(product(j, i)) }
		return []Num{part(1, 2), part(2, 0), part(0, 1)}
	}})
}
