package compile_test

import (
	"fmt"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// Element-wise work that reads a matrix product is part of the product's kernel, with the bits of separate kernels, while its numbers
// change.
func TestProductsAndWhatReadsThem(t *testing.T) {
	type operands struct{ a, b, bias, column, whole *tenon.Tensor }
	for _, c := range []struct {
		name    string
		m, k, n int
		dt      tenon.DType
		f       func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor
		kernels int // per run
	}{
		{"activation", 24, 16, 32, tenon.Float32, func(x *tenon.Exec, o operands, _ float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.ReLU(x.AddMM(o.bias, o.a, o.b))}
		}, 1},
		{"not what is complex", 24, 16, 32, tenon.Float32, func(x *tenon.Exec, o operands, _ float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.RealPart(x.Exp(x.ToDType(x.MatMul(o.a, o.b), tenon.Complex64)))}
		}, 2},
		{"the product is needed too", 24, 16, 32, tenon.BFloat16, func(x *tenon.Exec, o operands, _ float64) []*tenon.Tensor {
			h := x.MatMul(o.a, o.b)
			return []*tenon.Tensor{x.GELU(h), h}
		}, 1},
		{"a chain with numbers", 24, 16, 32, tenon.BFloat16, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			h := x.MulS(x.Add(x.MulS(x.MatMul(o.a, o.b), v), o.whole), v)
			return []*tenon.Tensor{x.Add(h, o.column), x.Tanh(h)}
		}, 1},
		{"parts of the depth, with numbers", 24, 4096, 32, tenon.Float32, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.Sigmoid(x.MulS(x.MatMul(o.a, o.b), v))}
		}, 2},
		{"another shape", 24, 16, 32, tenon.Float16, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			h := x.View(x.MatMul(o.a, o.b), 2, 3, 4, 32)
			return []*tenon.Tensor{x.ToDType(x.AddS(x.Add(h, o.column), v), tenon.Float32)}
		}, 1},
		{"comparison", 24, 16, 32, tenon.Float64, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.GtS(x.MatMul(o.a, o.b), v)}
		}, 1},
		{"one row", 1, 16, 32, tenon.Float32, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.Add(x.Exp(x.MatMul(o.a, o.b)), o.column)}
		}, 1},
		{"one column", 24, 16, 1, tenon.Float32, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.Exp(x.MatMul(o.a, o.b))}
		}, 2},
		{"in place", 24, 24, 24, tenon.Float32, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			a := x.Clone(o.a)
			x.AddInto(a, a, x.MatMul(a, o.b))
			return []*tenon.Tensor{a}
		}, 3},
		{"an operand of both", 24, 24, 24, tenon.Float32, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.Mul(x.MatMul(o.a, o.b), o.a)}
		}, 1},
		{"transposed", 24, 24, 24, tenon.Float32, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.Exp(x.Transpose(x.MatMul(o.a, o.b), 0, 1))}
		}, 2},
		{"two products", 24, 16, 32, tenon.Float32, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.Mul(x.MatMul(o.a, o.b), x.Sigmoid(x.AddMM(o.bias, o.a, o.b)))}
		}, 2},
		{"a norm comes first", 24, 16, 32, tenon.Float32, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.Softmax(x.MulS(x.MatMul(o.a, o.b), v), -1)}
		}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachWay(t, c.kernels, func(x *tenon.Exec) func(x *tenon.Exec, v float64) []*tenon.Tensor {
				draw := func(shape ...int) *tenon.Tensor { return x.ToDType(x.RandN(shape, tenon.Float32), c.dt) }
				o := operands{draw(c.m, c.k), draw(c.k, c.n), draw(c.n), draw(c.n), draw(c.m, c.n)}
				return func(x *tenon.Exec, v float64) []*tenon.Tensor { return c.f(x, o, v) }
			})
		})
	}
}

// eachWay runs what prepare returns six times with changing numbers, eagerly and in regions. All results must have equal bits, and a run in
// a region with fusion must take that many kernels, unless kernels is 0.
func eachWay(t *testing.T, kernels int, prepare func(x *tenon.Exec) func(x *tenon.Exec, v float64) []*tenon.Tensor) {
	t.Helper()
	run := func(opt *compile.Opt) (out string) {
		x := openAlone(t)
		must(t, x.Generator().SetSeed(3))
		f := prepare(x)
		var r *compile.Region
		if opt != nil {
			r = compile.New(*opt)
		}
		for n := range 6 {
			var results []*tenon.Tensor
			step := func(x *tenon.Exec) error {
				results = nil
				for _, y := range f(x, 0.5+float64(n)/8) {
					results = append(results, x.Keep(y))
				}
				return nil
			}
			if r == nil {
				x.Scope(func(x *tenon.Exec) { must(t, step(x)) })
			} else {
				before := r.Stats(x).Kernels
				must(t, r.Do(x, step))
				if k := r.Stats(x).Kernels - before; !opt.NoFusion && kernels > 0 && k != kernels {
					t.Errorf("run %d: %d kernels, want %d\n%s", n, k, kernels, r.Explain(x))
				}
			}
			for _, y := range results {
				b, err := x.Bytes(y)
				must(t, err)
				out += fmt.Sprintf("%v %s\n", y.Stride(), digest(b))
				y.Close()
			}
		}
		if r != nil && !opt.NoGraphs {
			if s := r.Stats(x); s.Recordings != 1 || s.Replays < 3 {
				t.Errorf("%+v", s)
			}
		}
		return out
	}
	want := run(nil)
	for _, opt := range []compile.Opt{{NoGraphs: true}, {}, {NoFusion: true}} {
		if got := run(&opt); got != want {
			t.Errorf("with %+v:\n%.500s\nwant\n%.500s", opt, got, want)
		}
	}
}

// Element-wise work that reads a convolution whose channels lie last is part of the convolution's kernel: a batch norm with fixed
// statistics, a residual, an activation.
func TestConvolutionsAndWhatReadsThem(t *testing.T) {
	type operands struct {
		in, other, first, w, bias, residual, perPixel *tenon.Tensor
		mean, variance, weight, offset                *tenon.Tensor
	}
	norm := func(x *tenon.Exec, o operands, t *tenon.Tensor, eps float64) *tenon.Tensor {
		return x.BatchNorm(t, o.weight, o.offset, o.mean, o.variance, tenon.BatchNormOpt{Eps: eps})
	}
	for _, c := range []struct {
		name          string
		in, out, taps int
		dt            tenon.DType
		f             func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor
		kernels       int
	}{
		{"one tap, norm and activation", 16, 24, 1, tenon.BFloat16, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.ReLU(norm(x, o, x.Conv2d(o.in, o.w, nil), v))}
		}, 1},
		{"nine taps, norm, residual and activation", 16, 24, 3, tenon.BFloat16,
			func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
				y := norm(x, o, x.Conv2d(o.in, o.w, nil, tenon.Conv2dOpt{Padding: [2]int{1, 1}}), v)
				return []*tenon.Tensor{x.ReLU(x.Add(y, o.residual))}
			}, 2}, // the depth is divided into parts
		{"of float32, which is needed too", 16, 24, 3, tenon.Float32, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			y := x.Conv2d(o.in, o.w, nil, tenon.Conv2dOpt{Padding: [2]int{1, 1}})
			return []*tenon.Tensor{y, x.MulS(x.Add(y, x.View(o.offset, 24, 1, 1)), v)}
		}, 2},
		{"two normed and added", 16, 24, 1, tenon.BFloat16, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.ReLU(x.Add(norm(x, o, x.Conv2d(o.in, o.w, nil), v), norm(x, o, x.Conv2d(o.other, o.w, nil), 2*v)))}
		}, 2},
		{"parts of the depth", 2048, 24, 1, tenon.Float32, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.ReLU(norm(x, o, x.Conv2d(o.in, o.w, nil), v))}
		}, 2},
		{"a bias", 16, 24, 1, tenon.BFloat16, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.MulS(x.Conv2d(o.in, o.w, o.bias), v)}
		}, 1},
		{"nine taps and a bias, needed before the activation too", 16, 24, 3, tenon.BFloat16,
			func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
				y := x.Conv2d(o.in, o.w, o.bias, tenon.Conv2dOpt{Padding: [2]int{1, 1}})
				return []*tenon.Tensor{y, x.ReLU(x.MulS(y, v))}
			}, 2}, // the depth is divided into parts
		{"a bias that is read again", 16, 24, 1, tenon.Float32, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.MulS(x.Mul(x.Conv2d(o.in, o.w, o.bias), x.View(o.bias, 24, 1, 1)), v)}
		}, 1},
		{"one column", 16, 1, 1, tenon.Float32, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.MulS(x.Conv2d(o.in, o.w, o.bias), v)}
		}, 2},
		{"groups", 16, 24, 1, tenon.BFloat16, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.MulS(x.Conv2d(o.in, x.Narrow(o.w, 1, 0, 8), nil, tenon.Conv2dOpt{Groups: 2}), v)}
		}, 3}, // one copies the half of the weight
		{"channels first", 16, 24, 1, tenon.BFloat16, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.MulS(x.Conv2d(o.first, o.w, nil), v)}
		}, 3}, // one lays the result
		{"an element for each pixel", 16, 24, 1, tenon.BFloat16, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			return []*tenon.Tensor{x.MulS(x.Mul(x.Conv2d(o.in, o.w, nil), o.perPixel), v)}
		}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachWay(t, c.kernels, func(x *tenon.Exec) func(x *tenon.Exec, v float64) []*tenon.Tensor {
				const n, h, w = 2, 5, 6
				draw := func(shape ...int) *tenon.Tensor { return x.ToDType(x.RandN(shape, tenon.Float32), c.dt) }
				vector := func() *tenon.Tensor { return x.RandN([]int{c.out}, tenon.Float32) }
				first := draw(n, c.in, h, w)
				o := operands{in: x.ChannelsLast(first), other: x.ChannelsLast(draw(n, c.in, h, w)), first: first,
					w:    x.ChannelsLast(draw(c.out, c.in, c.taps, c.taps)),
					bias: draw(c.out), residual: x.ChannelsLast(draw(n, c.out, h, w)), mean: vector(), variance: x.Abs(vector()),
					weight: vector(), offset: vector(), perPixel: draw(h, w)}
				return func(x *tenon.Exec, v float64) []*tenon.Tensor { return c.f(x.NoGrad(), o, v) }
			})
		})
	}
}

// Explain shows the product of a group.
func TestProductIsExplained(t *testing.T) {
	x := open(t)
	a, b := x.Ones([]int{8, 8}, tenon.Float32), x.Ones([]int{8, 8}, tenon.Float32)
	r := compile.New()
	for range 3 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			y = x.Keep(x.ReLU(x.MatMul(a, b)))
			return nil
		}))
		y.Close()
	}
	e := r.Explain(x)
	k := e.Segments[0].Kernels
	if len(k) != 1 || !strings.HasPrefix(k[0].Name, "product and relu") || !strings.Contains(k[0].Text, "product MatMul") {
		t.Errorf("%+v", k)
	}
}

// Element-wise work that makes the matrix of a product of few rows, such as a weight from its quantized form, is part of the product's
// kernel, with the bits of separate kernels, while its numbers change.
func TestProductsAndWhatMakesTheirMatrix(t *testing.T) {
	type operands struct{ a, q, factor, bias *tenon.Tensor }
	half := tenon.BFloat16
	weight := func(x *tenon.Exec, o operands) *tenon.Tensor {
		return x.Mul(x.ToDType(o.q, o.factor.DType()), o.factor)
	}
	one := func(f func(x *tenon.Exec, o operands, v float64) *tenon.Tensor) func(*tenon.Exec, operands, float64) []*tenon.Tensor {
		return func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor { return []*tenon.Tensor{f(x, o, v)} }
	}
	for _, c := range []struct {
		name    string
		m       int
		dt      tenon.DType
		turned  bool // the weight is [In, Out]
		f       func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor
		kernels int // per run
	}{
		{"a linear layer", 1, half, false, one(func(x *tenon.Exec, o operands, _ float64) *tenon.Tensor {
			return x.Linear(o.a, weight(x, o), o.bias)
		}), 1},
		{"a linear layer and an activation", 2, half, false, one(func(x *tenon.Exec, o operands, v float64) *tenon.Tensor {
			return x.MulS(x.GELU(x.Linear(o.a, weight(x, o), o.bias)), v)
		}), 1},
		{"a number that changes on both sides", 3, tenon.Float32, true, one(func(x *tenon.Exec, o operands, v float64) *tenon.Tensor {
			return x.Exp(x.MulS(x.MatMul(o.a, x.AddS(weight(x, o), v)), v/100))
		}), 1},
		{"a conversion", 4, half, false, one(func(x *tenon.Exec, o operands, _ float64) *tenon.Tensor {
			return x.Linear(o.a, x.ToDType(o.q, half), nil)
		}), 1},
		{"a matrix of no operands", 1, half, false, one(func(x *tenon.Exec, o operands, v float64) *tenon.Tensor {
			return x.Linear(o.a, x.MulS(x.Full([]int{72, 264}, 2, half), v), nil)
		}), 2},
		{"a matrix of complex numbers", 1, tenon.Float32, false, func(x *tenon.Exec, o operands, v float64) []*tenon.Tensor {
			z := x.ToDType(o.q, tenon.Complex64)
			return []*tenon.Tensor{x.Linear(o.a, x.Abs(z), nil), z}
		}, 2},
		{"a vector", 1, half, false, one(func(x *tenon.Exec, o operands, _ float64) *tenon.Tensor {
			return x.MatMul(weight(x, o), x.Select(o.a, 0, 0))
		}), 2},
		{"many rows", 24, half, false, one(func(x *tenon.Exec, o operands, _ float64) *tenon.Tensor {
			return x.Linear(o.a, weight(x, o), nil)
		}), 2},
		{"the matrix is needed too", 1, half, false, func(x *tenon.Exec, o operands, _ float64) []*tenon.Tensor {
			w := weight(x, o)
			return []*tenon.Tensor{x.Linear(o.a, w, nil), w}
		}, 2},
		{"two products", 1, half, false, one(func(x *tenon.Exec, o operands, v float64) *tenon.Tensor {
			w := weight(x, o)
			return x.Add(x.Linear(o.a, w, nil), x.Linear(x.MulS(o.a, v), w, nil))
		}), 4},
		{"a part of the matrix", 1, half, false, one(func(x *tenon.Exec, o operands, v float64) *tenon.Tensor {
			return x.Linear(o.a, x.Narrow(weight(x, o), 0, 0, 64), nil)
		}), 2},
		{"the matrix is made from a transpose", 1, half, true, one(func(x *tenon.Exec, o operands, v float64) *tenon.Tensor {
			return x.MatMul(x.Narrow(o.a, 1, 0, 72), x.Contiguous(x.Transpose(x.ToDType(o.q, half), 0, 1)))
		}), 3},
		{"the row is made too", 1, half, false, one(func(x *tenon.Exec, o operands, v float64) *tenon.Tensor {
			return x.Linear(x.SiLU(x.MulS(o.a, v)), weight(x, o), o.bias)
		}), 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			const in, out = 264, 72
			eachWay(t, c.kernels, func(x *tenon.Exec) func(x *tenon.Exec, v float64) []*tenon.Tensor {
				draw := func(shape ...int) *tenon.Tensor { return x.ToDType(x.RandN(shape, tenon.Float32), c.dt) }
				o := operands{a: draw(c.m, in), factor: draw(out, 1), bias: draw(out)}
				q := x.MulS(x.RandN([]int{out, in}, tenon.Float32), 40)
				if c.turned {
					q, o.factor = x.MulS(x.RandN([]int{in, out}, tenon.Float32), 40), draw(out)
				}
				o.q = x.ToDType(q, tenon.Int8)
				return func(x *tenon.Exec, v float64) []*tenon.Tensor { return c.f(x, o, v) }
			})
		})
	}
}
