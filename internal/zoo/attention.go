package zoo

import (
	"tenon.dev"
	"tenon.dev/nn"
)

// heads returns the view [B, n, T, D] of t [B, T, n·D].
func heads(x *tenon.Exec, t *tenon.Tensor, n int) *tenon.Tensor {
	return x.Transpose(x.Unflatten(t, -1, n, -1), 1, 2)
}

// joined is what heads undoes: it returns [B, T, n·D] of t [B, n, T, D].
func joined(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
	return x.Flatten(x.Transpose(t, 1, 2), 2, 3)
}

// initNormal draws the matrices of m from a normal distribution with deviation 0.02, and returns m.
func initNormal[M any](x *tenon.Exec, m M) M {
	for _, p := range nn.Params(m) {
		if p.Tensor().Dim() > 1 {
			nn.InitNormal(x, p.Tensor(), 0, 0.02)
		}
	}
	return m
}

// multihead is torch.nn.MultiheadAttention with the batch first.
type multihead struct {
	Weight *nn.Param  `torch:"in_proj_weight"`
	Bias   *nn.Param  `torch:"in_proj_bias"`
	Out    *nn.Linear `torch:"out_proj"`

	heads int
}

func newMultihead(x *tenon.Exec, width, heads int) *multihead {
	m := &multihead{
		Weight: nn.NewParam(x.Empty([]int{3 * width, width}, tenon.Float32)), Bias: nn.NewParam(x.Zeros([]int{3 * width}, tenon.Float32)),
		Out: nn.NewLinear(x, width, width), heads: heads,
	}
	nn.InitXavierUniform(x, m.Weight.Tensor())
	nn.InitConstant(x, m.Out.Bias.Tensor(), 0)
	return m
}

// forward attends from in [B, T, D] to memory [B, S, D], or to itself if that is nil.
func (m *multihead) forward(x *tenon.Exec, in, memory *tenon.Tensor, opt ...tenon.AttentionOpt) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		w, b := m.Weight.Tensor(), m.Bias.Tensor()
		var parts []*tenon.Tensor
		if memory == nil {
			parts = x.Chunk(x.Linear(in, w, b), 3, -1)
		} else {
			sizes := []int{in.Size(-1), 2 * in.Size(-1)}
			w, b := x.SplitSizes(w, sizes), x.SplitSizes(b, sizes)
			parts = append([]*tenon.Tensor{x.Linear(in, w[0], b[0])}, x.Chunk(x.Linear(memory, w[1], b[1]), 2, -1)...)
		}
		for i, p := range parts {
			parts[i] = heads(x, p, m.heads)
		}
		return m.Out.Forward(x, joined(x, x.ScaledDotProductAttention(parts[0], parts[1], parts[2], opt...)))
	})
}
