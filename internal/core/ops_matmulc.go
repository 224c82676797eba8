package core

// Products with complex factors, for complex tensors.

// AddMMCOpt is AddMMOpt with complex factors.
type AddMMCOpt struct {
	// Beta is the factor of the tensor that is added, Alpha that of the product, real or complex numbers; the default of both is 1.
	Beta, Alpha Scalar
}

func (o AddMMCOpt) factors(op string) (beta, alpha complex128) {
	return orC(op, "Beta", o.Beta, 1), orC(op, "Alpha", o.Alpha, 1)
}

// AddMMC is AddMM with complex beta and alpha.
//
//tenon:into
func (x *Exec) AddMMC(in, a, b *Tensor, opt AddMMCOpt) *Tensor {
	beta, alpha := opt.factors("AddMMC")
	x.wantDim("AddMM", "mat1", a, 2)
	x.wantDim("AddMM", "mat2", b, 2)
	x.wantBroadcast("AddMM", in, a.shape[0], b.shape[1])
	return x.weighed("AddMM", in, a, b, beta, alpha)
}

// BAddBMMC is BAddBMM with complex beta and alpha.
//
//tenon:into
func (x *Exec) BAddBMMC(in, a, b *Tensor, opt AddMMCOpt) *Tensor {
	beta, alpha := opt.factors("BAddBMMC")
	x.wantDim("BAddBMM", "batch1", a, 3)
	x.wantDim("BAddBMM", "batch2", b, 3)
	x.wantBroadcast("BAddBMM", in, a.shape[0], a.shape[1], b.shape[2])
	return x.weighed("BAddBMM", in, a, b, beta, alpha)
}

func (x *Exec) weighed(op string, in, a, b *Tensor, beta, alpha complex128) *Tensor {
	return x.composite(op, func(x *Exec) *Tensor {
		x = x.casting(op, castLow, &in, &a, &b)
		y := x.Mul(x.product(a, b, nil, 1, 0), x.FullC(nil, alpha, a.dt))
		if beta == 0 {
			return y
		}
		return x.Add(x.Mul(in, x.FullC(nil, beta, a.dt)), y)
	})
}
