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
