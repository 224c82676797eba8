package conformance

import (
	"tenon.dev"
	"tenon.dev/linalg"
)

// Products of matrices, and convolutions.

// factors returns the options of a product to which a tensor is added.
func (a *args) factors() tenon.AddMMOpt {
	return tenon.AddMMOpt{Beta: a.option(-1, "beta"), Alpha: a.option(-1, "alpha")}
}

// factorsC is factors if one of them is complex.
func (a *args) factorsC() tenon.AddMMCOpt {
	return tenon.AddMMCOpt{Beta: a.complex(-1, "beta", 1), Alpha: a.complex(-1, "alpha", 1)}
}

func init() {
	binary("matmul", (*tenon.Exec).MatMul)
	binary("mm", (*tenon.Exec).MM)
	binary("bmm", (*tenon.Exec).BMM)
	binary("mv", (*tenon.Exec).MV)
	binary("dot", (*tenon.Exec).Dot)
	binary("outer", (*tenon.Exec).Outer)
	offer("addmm", func(x *tenon.Exec, a *args) any {
		if a.isComplex(-1, "beta") || a.isComplex(-1, "alpha") {
			return x.AddMMC(a.tensor(0, "input"), a.tensor(1, "mat1"), a.tensor(2, "mat2"), a.factorsC())
		}
		return x.AddMM(a.tensor(0, "input"), a.tensor(1, "mat1"), a.tensor(2, "mat2"), a.factors())
	})
	offer("baddbmm", func(x *tenon.Exec, a *args) any {
		if a.isComplex(-1, "beta") || a.isComplex(-1, "alpha") {
			return x.BAddBMMC(a.tensor(0, "input"), a.tensor(1, "batch1"), a.tensor(2, "batch2"), a.factorsC())
		}
		return x.BAddBMM(a.tensor(0, "input"), a.tensor(1, "batch1"), a.tensor(2, "batch2"), a.factors())
	})
	offer("nn.functional.linear", func(x *tenon.Exec, a *args) any {
		return x.Linear(a.tensor(0, "input"), a.tensor(1, "weight"), a.tensor(2, "bias"))
	})
	offer("nn.functional.conv1d", func(x *tenon.Exec, a *args) any {
		o := a.conv()
		return x.Conv1d(a.tensor(0, "input"), a.tensor(1, "weight"), a.tensor(2, "bias"),
			tenon.Conv1dOpt{Stride: o.Stride[1], Padding: o.Padding[1], Dilation: o.Dilation[1], Groups: o.Groups, Same: o.Same})
	})
	offer("nn.functional.conv2d", func(x *tenon.Exec, a *args) any {
		return x.Conv2d(a.tensor(0, "input"), a.tensor(1, "weight"), a.tensor(2, "bias"), a.conv())
	})
	offer("nn.functional.conv_transpose2d", func(x *tenon.Exec, a *args) any {
		return x.ConvTranspose2d(a.tensor(0, "input"), a.tensor(1, "weight"), a.tensor(2, "bias"), tenon.ConvTranspose2dOpt{
			Stride: a.pair(3, "stride", 1), Padding: a.pair(4, "padding", 0), OutputPadding: a.pair(5, "output_padding", 0),
			Groups: a.int(6, "groups", 1), Dilation: a.pair(7, "dilation", 1)})
	})
}

// conv returns the options of a convolution.
func (a *args) conv() tenon.Conv2dOpt {
	opt := tenon.Conv2dOpt{Stride: a.pair(3, "stride", 1), Dilation: a.pair(5, "dilation", 1), Groups: a.int(6, "groups", 1)}
	if s, named := a.get(4, "padding").(string); named {
		opt.Same = s == "same"
		return opt
	}
	opt.Padding = a.pair(4, "padding", 0)
	return opt
}

func init() {
	offer("addmv", func(x *tenon.Exec, a *args) any {
		return x.AddMV(a.tensor(0, "input"), a.tensor(1, "mat"), a.tensor(2, "vec"), a.factors())
	})
	offer("addr", func(x *tenon.Exec, a *args) any {
		if a.isComplex(-1, "beta") || a.isComplex(-1, "alpha") {
			return x.AddRC(a.tensor(0, "input"), a.tensor(1, "vec1"), a.tensor(2, "vec2"), a.factorsC())
		}
		return x.AddR(a.tensor(0, "input"), a.tensor(1, "vec1"), a.tensor(2, "vec2"), a.factors())
	})
	offer("addbmm", func(x *tenon.Exec, a *args) any {
		if a.isComplex(-1, "beta") || a.isComplex(-1, "alpha") {
			return x.AddBMMC(a.tensor(0, "input"), a.tensor(1, "batch1"), a.tensor(2, "batch2"), a.factorsC())
		}
		return x.AddBMM(a.tensor(0, "input"), a.tensor(1, "batch1"), a.tensor(2, "batch2"), a.factors())
	})
	offer("einsum", func(x *tenon.Exec, a *args) any {
		return x.Einsum(a.str(1, "equation", ""), a.tensors(0, "operands")...)
	})
	binary("vdot", (*tenon.Exec).VDot)
	binary("inner", (*tenon.Exec).Inner)
	offer("linalg.vecdot", func(x *tenon.Exec, a *args) any {
		return linalg.VecDot(x, a.tensor(0, "input"), a.tensor(1, "y"), a.int(-1, "dim", -1))
	})
	offer("linalg.multi_dot", func(x *tenon.Exec, a *args) any { return linalg.MultiDot(x, a.tensors(0, "tensors")) })
	offer("chain_matmul", func(x *tenon.Exec, a *args) any {
		ts := make([]*tenon.Tensor, len(a.at))
		for i := range ts {
			ts[i] = a.tensor(i, "matrices")
		}
		return linalg.MultiDot(x, ts)
	})
	cross := func(first bool) func(x *tenon.Exec, a *args) any {
		return func(x *tenon.Exec, a *args) any {
			t, dim := a.tensor(0, "input"), -1
			if first && !a.has(2, "dim") {
				for dim = 0; t.Size(dim) != 3; dim++ {
				}
			}
			return linalg.Cross(x, t, a.tensor(1, "other"), a.int(2, "dim", dim))
		}
	}
	offer("cross", cross(true))
	offer("linalg.cross", cross(false))
	offer("tensordot", func(x *tenon.Exec, a *args) any {
		t, u := a.tensor(0, "a"), a.tensor(1, "b")
		if l, ok := a.get(2, "dims").([]any); ok {
			b := &args{at: l}
			return x.TensorDot(t, u, b.ints(0, "dims"), b.ints(1, "dims"))
		}
		var over, of []int
		for i := range a.int(2, "dims", 2) {
			over, of = append(over, i-a.int(2, "dims", 2)), append(of, i)
		}
		return x.TensorDot(t, u, over, of)
	})
	offer("nn.functional.bilinear", func(x *tenon.Exec, a *args) any {
		return x.Bilinear(a.tensor(0, "input1"), a.tensor(1, "input2"), a.tensor(2, "weight"), a.tensor(3, "bias"))
	})
	offer("equal", func(x *tenon.Exec, a *args) any {
		same, err := x.Equal(a.tensor(0, "input"), a.tensor(1, "other"))
		if err != nil {
			panic(err)
		}
		return same
	})
}
