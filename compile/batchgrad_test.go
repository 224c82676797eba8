package compile_test

import (
	"fmt"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/driver"
)

// normBlock is what a batch norm in training needs: a convolution or a product before it, its vectors, and the tensors whose gradients are
// wanted.
type normBlock struct {
	kernel, weight, bias, mean, variance *tenon.Tensor
	wanted                               []*tenon.Tensor
}

// gradCase is a program with batch norms and their gradients.
type gradCase struct {
	dt    tenon.DType
	shape []int
	last  bool // channels last
	x     *tenon.Exec
	in    *tenon.Tensor
	all   []normBlock
	top   float64 // the upper bound of Hardtanh, a value
}

func newGradCase(x *tenon.Exec, dt tenon.DType, shape []int, last bool) *gradCase {
	c := &gradCase{dt: dt, shape: shape, last: last, x: x, top: 6}
	n := shape[1]
	leaf := func(t *tenon.Tensor) *tenon.Tensor {
		t.SetRequiresGrad(true)
		return t
	}
	c.in = x.RandN(shape, dt)
	if last {
		c.in = x.ChannelsLast(c.in)
	}
	leaf(c.in)
	for range 4 {
		b := normBlock{kernel: x.RandN([]int{n, n, 1, 1}, dt), weight: leaf(x.RandN([]int{n}, tenon.Float32)),
			bias: leaf(x.RandN([]int{n}, tenon.Float32)), mean: x.RandN([]int{n}, tenon.Float32), variance: x.Ones([]int{n}, tenon.Float32)}
		if len(shape) == 2 {
			b.kernel = x.RandN([]int{n, n}, dt)
		}
		leaf(b.kernel)
		b.wanted = []*tenon.Tensor{b.kernel, b.weight, b.bias}
		c.all = append(c.all, b)
	}
	return c
}

// norm is batch norm number i, in training, after a convolution or a product.
func (c *gradCase) norm(x *tenon.Exec, in *tenon.Tensor, i int) *tenon.Tensor {
	return c.normAs(x, in, i, tenon.BatchNormOpt{Training: true})
}

func (c *gradCase) normAs(x *tenon.Exec, in *tenon.Tensor, i int, opt tenon.BatchNormOpt) *tenon.Tensor {
	b := &c.all[i]
	if len(c.shape) == 2 {
		in = x.MatMul(in, b.kernel)
	} else {
		in = x.Conv2d(in, b.kernel, nil)
	}
	return x.BatchNorm(in, b.weight, b.bias, b.mean, b.variance, opt)
}

func (c *gradCase) relu6(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Hardtanh(in, tenon.HardtanhOpt{Min: 0, Max: c.top})
}

// gradients returns y and the gradients of what the first n norms have.
func (c *gradCase) gradients(x *tenon.Exec, y *tenon.Tensor, n int) []*tenon.Tensor {
	of := all(c.in)
	for _, b := range c.all[:n] {
		of = append(of, b.wanted...)
	}
	g, err := x.Grad(all(x.Sum(x.Mul(y, y), nil)), of)
	if err != nil {
		panic(err)
	}
	return append(all(y), g...)
}

// gradPrograms are programs by name. The product at the end keeps the gradient of what is before it from being made element by element.
var gradPrograms = map[string]func(c *gradCase, x *tenon.Exec) []*tenon.Tensor{
	"relu": func(c *gradCase, x *tenon.Exec) []*tenon.Tensor {
		return c.gradients(x, c.norm(x, x.ReLU(c.norm(x, c.in, 0)), 1), 2)
	},
	"relu6": func(c *gradCase, x *tenon.Exec) []*tenon.Tensor {
		return c.gradients(x, c.norm(x, c.relu6(x, c.norm(x, c.in, 0)), 1), 2)
	},
	"no activation": func(c *gradCase, x *tenon.Exec) []*tenon.Tensor {
		return c.gradients(x, c.norm(x, c.norm(x, c.in, 0), 1), 2)
	},
	"two gradients": func(c *gradCase, x *tenon.Exec) []*tenon.Tensor {
		y := x.ReLU(c.norm(x, c.in, 0))
		return c.gradients(x, x.Add(c.norm(x, y, 1), c.norm(x, y, 2)), 3)
	},
	"residual": func(c *gradCase, x *tenon.Exec) []*tenon.Tensor {
		y := x.ReLU(c.norm(x, c.in, 0))
		y = c.relu6(x, c.norm(x, y, 1))
		return c.gradients(x, c.norm(x, x.ReLU(x.Add(c.norm(x, y, 2), c.in)), 3), 4)
	},
	"shortcut with a norm": func(c *gradCase, x *tenon.Exec) []*tenon.Tensor {
		return c.gradients(x, c.norm(x, x.ReLU(x.Add(c.norm(x, c.in, 0), c.norm(x, c.in, 1))), 2), 3)
	},
	"cast": func(c *gradCase, x *tenon.Exec) []*tenon.Tensor {
		y := x.ToDType(x.ReLU(x.ToDType(c.norm(x, c.in, 0), tenon.Float32)), c.dt)
		return c.gradients(x, c.norm(x, y, 1), 2)
	},
	"no weight": func(c *gradCase, x *tenon.Exec) []*tenon.Tensor {
		y := x.BatchNorm(c.in, nil, nil, nil, nil, tenon.BatchNormOpt{Training: true})
		return c.gradients(x, c.norm(x, x.ReLU(y), 0), 1)
	},
	"the mask is kept": func(c *gradCase, x *tenon.Exec) []*tenon.Tensor {
		y := x.ReLU(c.norm(x, c.in, 0))
		return append(c.gradients(x, c.norm(x, y, 1), 2), y)
	},
	"the bias changes": func(c *gradCase, x *tenon.Exec) []*tenon.Tensor {
		b := x.Clone(c.all[0].bias)
		y := x.ReLU(x.BatchNorm(c.in, c.all[0].weight, b, nil, nil, tenon.BatchNormOpt{Training: true}))
		y = c.norm(x, y, 1)
		x.NoGrad().MulSInto(b, b, 2)
		g, err := x.Grad(all(x.Sum(x.Mul(y, y), nil)), all(c.in, c.all[0].weight, c.all[1].weight))
		if err != nil {
			panic(err)
		}
		return append(g, b)
	},
	"evaluation": func(c *gradCase, x *tenon.Exec) []*tenon.Tensor {
		y := x.ReLU(c.normAs(x, c.in, 0, tenon.BatchNormOpt{}))
		return c.gradients(x, c.normAs(x, y, 1, tenon.BatchNormOpt{}), 2)
	},
}

// TestBatchNormGradients: the gradients of batch norms have the bits of eager execution, whatever is made again in their kernels.
func TestBatchNormGradients(t *testing.T) {
	shapes := []struct {
		shape []int
		last  bool
	}{{[]int{4, 16, 6, 8}, true}, {[]int{4, 16, 6, 8}, false}, {[]int{3, 5, 7, 3}, true}, {[]int{3, 5, 7, 3}, false},
		{[]int{2, 33, 9, 16}, false}, {[]int{2, 12, 1, 1}, true}, {[]int{70, 24}, false}, {[]int{9, 7}, false},
		{[]int{16, 64, 12, 12}, true}}
	few, closed := openFew(t)
	defer closed()
	many := openWrapped(t, func(d driver.Device) driver.Device { return manyProcessors{d} })
	defer func() { must(t, many.Close()) }()
	for n, x := range []*tenon.Exec{openAlone(t), few, many} {
		must(t, x.Generator().SetSeed(5))
		for _, s := range shapes {
			for _, dt := range []tenon.DType{tenon.BFloat16, tenon.Float16, tenon.Float32, tenon.Float64} {
				if dt == tenon.Float64 && (n > 0 || s.shape[0] > 4) || dt == tenon.Float16 && n > 0 {
					continue // the first device's runs show the types, the others' the kernels' choices
				}
				c := newGradCase(x, dt, s.shape, s.last)
				for name, run := range gradPrograms {
					t.Run(fmt.Sprint(n, s.shape, s.last, dt, name), func(t *testing.T) { sameGradients(t, c, run) })
				}
			}
		}
	}
}

// manyProcessors has as many multiprocessors as a large GPU, so that kernels of reductions are too small to do other work.
type manyProcessors struct{ driver.Device }

func (d manyProcessors) Info() *driver.Info {
	i := *d.Device.Info()
	i.Multiprocessors = 132
	return &i
}

// sameGradients compares three runs of a region with eager ones.
func sameGradients(t *testing.T, c *gradCase, run func(c *gradCase, x *tenon.Exec) []*tenon.Tensor) {
	r := compile.New()
	for i := range 3 {
		c.top = 6 - float64(i) // a value, which needs no new kernels
		var want, got []*tenon.Tensor
		keep := func(to *[]*tenon.Tensor) func(x *tenon.Exec) {
			return func(x *tenon.Exec) {
				for _, y := range run(c, x) {
					*to = append(*to, x.Keep(y))
				}
			}
		}
		c.x.Scope(keep(&want))
		must(t, r.Do(c.x, func(x *tenon.Exec) error {
			keep(&got)(x)
			return nil
		}))
		if a, b := shown(t, c.x, want), shown(t, c.x, got); a != b {
			t.Fatalf("run %d differs\n%s", i, r.Explain(c.x))
		}
		closeAll(want)
		closeAll(got)
	}
}

// TestBatchNormGradientsMove counts what the kernels of the gradient read and write, in arrays of the norm's size. An incoming gradient
// that an activation masks is made in both kernels, of what the activation's gradient and the norm read; one that others need is written
// by the first kernel.
func TestBatchNormGradientsMove(t *testing.T) {
	x := open(t)
	for name, want := range map[string][]int{ // sums, gradient, sums, …
		"relu":                 {2, 3},
		"relu6":                {2, 3},
		"two gradients":        {2, 3, 4, 3},
		"residual":             {4, 3, 2, 3, 2, 3},
		"shortcut with a norm": {4, 3, 2, 3},
		"the mask is kept":     {2, 3},
	} {
		for _, last := range []bool{true, false} {
			c := newGradCase(x, tenon.BFloat16, []int{16, 32, 16, 16}, last)
			r := compile.New()
			var got []*tenon.Tensor
			must(t, r.Do(x, func(x *tenon.Exec) error {
				for _, y := range gradPrograms[name](c, x) {
					got = append(got, x.Keep(y))
				}
				return nil
			}))
			var moved []int
			for _, k := range r.Explain(x).Segments[0].Kernels {
				if strings.Contains(k.Text+k.Name, "BatchNormSums") || strings.Contains(k.Text+k.Name, "BatchNormBackward") {
					moved = append(moved, k.Bytes/(c.in.Numel()*2))
				}
			}
			if fmt.Sprint(moved[2:]) != fmt.Sprint(want) { // the last norm, which comes first, has no activation
				t.Errorf("%s, channels last %v: %v arrays, want %v\n%s", name, last, moved[2:], want, r.Explain(x))
			}
			closeAll(got)
		}
	}
}
