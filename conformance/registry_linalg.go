package conformance

import "tenon.dev"

// Products of matrices, and convolutions.

func init() {
	binary("matmul", (*tenon.Exec).MatMul)
	binary("mm", (*tenon.Exec).MM)
	binary("bmm", (*tenon.Exec).BMM)
	binary("mv", (*tenon.Exec).MV)
	binary("dot", (*tenon.Exec).Dot)
	binary("outer", (*tenon.Exec).Outer)
	offer("addmm", func(x *tenon.Exec, a *args) any {
		if a.isComplex(-1, "beta") || a.isComplex(-1, "alpha") {
			return x.AddMMC(a.tensor(0, "input"), a.tensor(1, "mat1"), a.tensor(2, "mat2"), a.complex(-1, "beta", 1), a.complex(-1, "alpha", 1))
		}
		return x.AddMM(a.tensor(0, "input"), a.tensor(1, "mat1"), a.tensor(2, "mat2"), a.float(-1, "beta", 1), a.float(-1, "alpha", 1))
	})
	offer("baddbmm", func(x *tenon.Exec, a *args) any {
		if a.isComplex(-1, "beta") || a.isComplex(-1, "alpha") {
			return x.BAddBMMC(a.tensor(0, "input"), a.tensor(1, "batch1"), a.tensor(2, "batch2"), a.complex(-1, "beta", 1), a.complex(-1, "alpha", 1))
		}
		return x.BAddBMM(a.tensor(0, "input"), a.tensor(1, "batch1"), a.tensor(2, "batch2"), a.float(-1, "beta", 1), a.float(-1, "alpha", 1))
	})
	offer("nn.functional.linear", func(x *tenon.Exec, a *args) any {
		return x.Linear(a.tensor(0, "input"), a.tensor(1, "weight"), a.tensor(2, "bias"))
	})
	offer("nn.functional.conv1d", func(x *tenon.Exec, a *args) any {
		return x.Conv1d(a.tensor(0, "input"), a.tensor(1, "weight"), a.tensor(2, "bias"), a.conv())
	})
	offer("nn.functional.conv2d", func(x *tenon.Exec, a *args) any {
		return x.Conv2d(a.tensor(0, "input"), a.tensor(1, "weight"), a.tensor(2, "bias"), a.conv())
	})
}

// conv returns the options of a convolution.
func (a *args) conv() tenon.ConvOpt {
	opt := tenon.ConvOpt{Stride: a.pair(3, "stride", 1), Dilation: a.pair(5, "dilation", 1), Groups: a.int(6, "groups", 1)}
	if s, named := a.get(4, "padding").(string); named {
		opt.Same = s == "same"
		return opt
	}
	opt.Padding = a.pair(4, "padding", 0)
	return opt
}
