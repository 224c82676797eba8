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
			run := func(opt *compile.Opt) (out string) {
				x := open(t)
				must(t, x.Generator().SetSeed(3))
				draw := func(shape ...int) *tenon.Tensor { return x.ToDType(x.RandN(shape, tenon.Float32), c.dt) }
				o := operands{draw(c.m, c.k), draw(c.k, c.n), draw(c.n), draw(c.n), draw(c.m, c.n)}
				var r *compile.Region
				if opt != nil {
					r = compile.New(*opt)
				}
				for n := range 6 {
					var results []*tenon.Tensor
					step := func(x *tenon.Exec) error {
						results = nil
						for _, y := range c.f(x, o, 0.5+float64(n)/8) {
							results = append(results, x.Keep(y))
						}
						return nil
					}
					before := 0
					if r == nil {
						x.Scope(func(x *tenon.Exec) { must(t, step(x)) })
					} else {
						before = r.Stats(x).Kernels
						must(t, r.Do(x, step))
						if k := r.Stats(x).Kernels - before; !opt.NoFusion && k != c.kernels {
							t.Errorf("run %d: %d kernels, want %d\n%s", n, k, c.kernels, r.Explain(x))
						}
					}
					for _, y := range results {
						b, err := x.Bytes(y)
						must(t, err)
						out += fmt.Sprintf("%x\n", b)
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
