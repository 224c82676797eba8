package compile_test

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A batch norm, whose statistics are vectors of one element per channel, runs with the following element-wise work as one kernel, with the
// bits of eager execution. In training one kernel before it computes the statistics, and one after it the running statistics.
func TestBatchNormRunsWithWhatFollows(t *testing.T) {
	x := open(t)
	must(t, x.Generator().SetSeed(3))
	const n, c, h, w = 2, 5, 6, 7
	single := x.RandN([]int{n, c, h, w}, tenon.Float32)
	half := x.ToDType(single, tenon.BFloat16)
	vector := func() *tenon.Tensor { return x.RandN([]int{c}, tenon.Float32) }
	mean, variance, weight, bias := vector(), x.Abs(vector()), vector(), vector()
	other := x.Reshape(x.Narrow(x.RandN([]int{c, 3}, tenon.Float32), 1, 1, 1), c) // with gaps
	apart := x.Narrow(x.RandN([]int{2 * c}, tenon.Float32), 0, c, c)
	moving, variations := vector(), vector() // for training
	leaf := x.Clone(half)
	leaf.SetRequiresGrad(true)
	norm := func(x *tenon.Exec, in, weight, bias *tenon.Tensor, eps float64) *tenon.Tensor {
		return x.BatchNorm(in, weight, bias, mean, variance, tenon.BatchNormOpt{Eps: eps})
	}
	for _, p := range []struct {
		name    string
		kernels int // 0: any number
		run     func(x *tenon.Exec, eps float64) *tenon.Tensor
	}{
		{"float32", 1, func(x *tenon.Exec, eps float64) *tenon.Tensor {
			return x.ReLU(norm(x.NoGrad(), single, weight, bias, eps))
		}},
		{"halves and a residual", 1, func(x *tenon.Exec, eps float64) *tenon.Tensor {
			return x.ReLU(x.Add(norm(x.NoGrad(), half, weight, bias, eps), half))
		}},
		{"channels last", 2, func(x *tenon.Exec, eps float64) *tenon.Tensor { // one transposes the input
			return x.ReLU(norm(x.NoGrad(), x.ChannelsLast(half), weight, bias, eps))
		}},
		{"three dimensions", 1, func(x *tenon.Exec, eps float64) *tenon.Tensor {
			return x.ReLU(norm(x.NoGrad(), x.View(single, n, c, h*w), weight, bias, eps))
		}},
		{"a matrix", 1, func(x *tenon.Exec, eps float64) *tenon.Tensor {
			return x.ReLU(norm(x.NoGrad(), x.View(single, n*h*w, c), weight, bias, eps))
		}},
		{"a vector that work before it makes", 2, func(x *tenon.Exec, eps float64) *tenon.Tensor {
			return x.ReLU(norm(x.NoGrad(), single, x.AddS(weight, 1), bias, eps))
		}},
		{"vectors with gaps and from elsewhere", 1, func(x *tenon.Exec, eps float64) *tenon.Tensor {
			return x.ReLU(norm(x.NoGrad(), single, other, apart, eps))
		}},
		{"a vector that is read twice", 0, func(x *tenon.Exec, eps float64) *tenon.Tensor {
			y := norm(x.NoGrad(), single, weight, weight, eps)
			return x.Add(x.ReLU(y), x.View(x.Neg(weight), c, 1, 1))
		}},
		{"no weight", 0, func(x *tenon.Exec, eps float64) *tenon.Tensor {
			return x.ReLU(norm(x.NoGrad(), single, nil, bias, eps))
		}},
		{"training", 3, func(x *tenon.Exec, eps float64) *tenon.Tensor {
			return x.ReLU(x.Add(x.NoGrad().BatchNorm(half, weight, bias, moving, variations, tenon.BatchNormOpt{Eps: eps, Training: true}),
				half))
		}},
		{"training, gradients", 0, func(x *tenon.Exec, eps float64) *tenon.Tensor {
			y := x.ReLU(x.BatchNorm(leaf, weight, bias, moving, variations, tenon.BatchNormOpt{Eps: eps, Training: true}))
			g, err := x.Grad([]*tenon.Tensor{x.Sum(x.Mul(y, y), nil)}, []*tenon.Tensor{leaf})
			must(t, err)
			return g[0]
		}},
		{"gradients", 0, func(x *tenon.Exec, eps float64) *tenon.Tensor {
			g, err := x.Grad([]*tenon.Tensor{x.Sum(x.ReLU(norm(x, leaf, weight, bias, eps)), nil)}, []*tenon.Tensor{leaf})
			must(t, err)
			return g[0]
		}},
	} {
		t.Run(p.name, func(t *testing.T) {
			r := compile.New()
			for i := range 4 {
				eps := 1e-5 * float64(i) // a value, which needs no new kernels
				var want, got *tenon.Tensor
				x.Scope(func(x *tenon.Exec) { want = x.Keep(p.run(x, eps)) })
				before := r.Stats(x)
				must(t, r.Do(x, func(x *tenon.Exec) error {
					got = x.Keep(p.run(x, eps))
					return nil
				}))
				show := func(y *tenon.Tensor) string {
					v, err := x.Bytes(y)
					must(t, err)
					return fmt.Sprintf("%v %s", y.Stride(), digest(v))
				}
				if a, b := show(want), show(got); a != b {
					t.Errorf("run %d: eager execution gives\n%s, the region\n%s", i, a, b)
				}
				if k := r.Stats(x).Kernels - before.Kernels; p.kernels > 0 && int(k) != p.kernels {
					t.Errorf("run %d takes %d kernels, want %d", i, k, p.kernels)
				}
				want.Close()
				got.Close()
			}
		})
	}
}
