package compile_test

import (
	"bytes"
	"fmt"
	"regexp"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// halves splits the last dimension.
func halves(x *tenon.Exec, t *tenon.Tensor) (a, b *tenon.Tensor) {
	h := x.Chunk(t, 2, -1)
	return h[0], h[1]
}

// sideBySide are programs that put tensors side by side, or whose chains go through other shapes, orders and norms. t is [2, 3, 4, 8], cos
// and sin are [4, 8].
var sideBySide = []struct {
	name    string
	kernels int // of the replay; 0 if it depends on the type
	f       func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor
}{
	{"Rotary", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor {
		a, b := halves(x, t)
		c, s := x.Narrow(cos, 1, 0, 4), x.Narrow(sin, 1, 0, 4)
		y := x.Cat([]*tenon.Tensor{x.Sub(x.Mul(a, c), x.Mul(b, s)), x.Add(x.Mul(b, c), x.Mul(a, s))}, -1)
		return []*tenon.Tensor{x.ToDType(y, t.DType())}
	}},
	{"RotateHalf", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor {
		a, b := halves(x, t)
		return []*tenon.Tensor{x.Add(x.Mul(t, cos), x.Mul(x.Cat([]*tenon.Tensor{x.Neg(b), a}, -1), sin))}
	}},
	{"Backward", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // of RotateHalf
		g := x.Mul(t, sin)
		a, b := halves(x, g)
		return []*tenon.Tensor{x.Add(x.Mul(t, cos), x.Cat([]*tenon.Tensor{b, x.Neg(a)}, -1))}
	}},
	{"Interleaved", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor {
		v := x.View(t, 2, 3, 4, 4, 2)
		a, b := x.Select(v, -1, 0), x.Select(v, -1, 1)
		c, s := x.Narrow(cos, 1, 0, 4), x.Narrow(sin, 1, 0, 4)
		y := x.Stack([]*tenon.Tensor{x.Sub(x.Mul(a, c), x.Mul(b, s)), x.Add(x.Mul(b, c), x.Mul(a, s))}, -1)
		return []*tenon.Tensor{x.ToDType(x.Flatten(y, 3, 4), t.DType())}
	}},
	{"Transposed", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor {
		a, b := halves(x, t)
		return []*tenon.Tensor{x.Contiguous(x.Transpose(x.Cat([]*tenon.Tensor{x.Neg(b), x.Sin(a)}, -1), 1, 2))}
	}},
	{"Kept", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // all of what the group makes
		a, b := halves(x, t)
		n := x.Neg(b)
		c := x.Cat([]*tenon.Tensor{n, a}, -1)
		return []*tenon.Tensor{n, c, x.Exp(c)}
	}},
	{"First", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // along another dimension, and a column
		n := x.Exp(t)
		return []*tenon.Tensor{x.Mul(x.Cat([]*tenon.Tensor{n, x.Neg(n), t}, 0), x.Narrow(cos, 1, 3, 1))}
	}},
	{"Same", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor {
		n := x.Exp(t)
		return []*tenon.Tensor{x.MulS(x.Cat([]*tenon.Tensor{n, n}, 1), 3)}
	}},
	{"Used", 2, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // what is repeated is not done again for each part
		n := x.Exp(x.Narrow(t, 0, 0, 1))
		return []*tenon.Tensor{x.Mul(x.Cat([]*tenon.Tensor{n, x.Narrow(t, 0, 1, 1)}, 0), n)}
	}},
	{"Shapes", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // a chain through other shapes, all of it kept
		a := x.Mul(t, cos)
		b := x.Exp(x.Flatten(a, 0, 2))
		return []*tenon.Tensor{a, x.Add(b, x.Narrow(cos, 0, 1, 1)), x.Mul(x.View(b, 6, 32), x.Sin(x.View(a, 6, 32)))}
	}},
	{"Columns", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // seen in the shape of the first call
		return []*tenon.Tensor{x.Neg(x.View(x.Mul(t, x.View(x.Narrow(cos, 1, 2, 1), 4, 1)), 192))}
	}},
	{"NoShape", 2, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // neither shape has places for both vectors
		a := x.Mul(x.View(t, 6, 32), x.Narrow(x.View(cos, 32), 0, 0, 32))
		a = x.Mul(a, x.View(x.Narrow(x.View(sin, 32), 0, 0, 6), 6, 1))
		return []*tenon.Tensor{x.Mul(x.View(a, 64, 3), x.Narrow(x.View(cos, 32), 0, 4, 3))}
	}},
	{"GroupNorm", 2, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // the statistics, and the rest
		w := x.Narrow(x.View(cos, 32), 0, 0, 4)
		return []*tenon.Tensor{x.SiLU(x.GroupNorm(x.View(t, 2, 4, 3, 8), w, w, 2))}
	}},
	{"GroupNormLast", 3, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // a copy with channels last before them
		w := x.Narrow(x.View(cos, 32), 0, 0, 4)
		return []*tenon.Tensor{x.SiLU(x.GroupNorm(x.ChannelsLast(x.View(t, 2, 4, 3, 8)), w, w, 2))}
	}},
	{"GroupNormAlone", 2, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // without a weight and a bias
		return []*tenon.Tensor{x.SiLU(x.GroupNorm(x.View(t, 2, 4, 3, 8), nil, nil, 2))}
	}},
	{"GroupNormWeight", 3, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // with a strided weight
		return []*tenon.Tensor{x.ReLU(x.GroupNorm(x.View(t, 2, 4, 3, 8), x.ToDType(x.Select(cos, 1, 3), t.DType()), nil, 2))}
	}},
	{"BatchNormWeight", 3, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor {
		y := x.BatchNorm(x.View(t, 2, 4, 3, 8), x.Contiguous(x.Select(cos, 1, 3)), nil, nil, nil, tenon.BatchNormOpt{Training: true})
		return []*tenon.Tensor{x.ReLU(y)}
	}},
	{"Fills", 0, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // a result is broadcast after a change of shape
		a, b := x.Sin(x.Full([]int{24, 1}, 0.5, tenon.Float32)), x.Cos(x.Full([]int{8, 24}, 0.25, tenon.Float32))
		return []*tenon.Tensor{x.Add(x.View(a, 24), b)}
	}},
	{"Turned", 0, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // a result in another order and shape
		return []*tenon.Tensor{x.Contiguous(x.Permute(x.Cos(x.View(x.Sin(x.View(t, 24, 8)), 4, 6, 8)), 1, 0, 2))}
	}},
	{"Twice", 0, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // one tensor is broadcast differently in two shapes
		v := x.Narrow(x.View(cos, 32, 1), 0, 0, 4)
		return []*tenon.Tensor{x.Add(x.View(x.Mul(x.View(x.Narrow(x.View(t, 192), 0, 0, 64), 4, 16), v), 2, 2, 4, 4), v)}
	}},
	{"CastGroupNorm", 0, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor {
		w := x.Narrow(x.View(cos, 32), 0, 0, 4)
		x = x.Autocast(tenon.BFloat16)
		return []*tenon.Tensor{x.ToDType(x.SiLU(x.GroupNorm(x.View(t, 2, 4, 3, 8), w, w, 2)), tenon.BFloat16)}
	}},
	{"Square", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // one tensor, read along the parts and across them
		v, w := x.Narrow(cos, 0, 0, 2), x.Narrow(sin, 0, 0, 2)
		return []*tenon.Tensor{x.Mul(x.Stack([]*tenon.Tensor{x.Mul(v, w), x.Mul(x.Neg(v), w)}, 1), v)}
	}},
	{"Cube", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor {
		c := x.View(x.Narrow(x.View(t, 192), 0, 0, 64), 4, 4, 4)
		return []*tenon.Tensor{x.Contiguous(x.Transpose(x.MulS(x.Neg(c), 3), 0, 1))}
	}},
	{"Half", 2, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // a copy of some of them
		return []*tenon.Tensor{x.Clone(x.Narrow(x.Cat([]*tenon.Tensor{x.Neg(t), x.Sin(t)}, 0), 0, 0, 2))}
	}},
	{"Ones", 1, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // what has dimensions of size 1 besides
		n := x.Neg(x.View(t, 6, 1, 1, 32))
		return []*tenon.Tensor{x.Cat([]*tenon.Tensor{x.View(n, 6, 32), x.View(x.Exp(x.View(t, 1, 6, 32)), 6, 32)}, 1)}
	}},
	{"Into", 4, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // memory that was there is no part of a group
		y := x.Empty([]int{4, 3, 4, 8}, t.DType())
		x.CatInto(y, []*tenon.Tensor{x.Neg(t), x.Exp(x.MulS(t, 2))}, 0)
		return []*tenon.Tensor{y}
	}},
	{"Unequal", 4, func(x *tenon.Exec, t, cos, sin *tenon.Tensor) []*tenon.Tensor { // parts of several sizes are copied
		n := x.Exp(x.Narrow(t, 3, 0, 3))
		return []*tenon.Tensor{x.MulS(x.Cat([]*tenon.Tensor{n, x.Narrow(t, 3, 3, 5)}, 3), 3)}
	}},
}

// Tensors that lie side by side are made in their places, and what reads all of them is done in the same kernel. Chains go through other
// shapes, through copies to other orders, and through norms.
func TestSideBySide(t *testing.T) {
	for _, c := range sideBySide {
		for _, dt := range []tenon.DType{tenon.Float32, tenon.BFloat16} {
			t.Run(fmt.Sprint(c.name, dt), func(t *testing.T) {
				x := open(t).NoGrad()
				in := func(n, seed int, dt tenon.DType, shape ...int) *tenon.Tensor {
					return x.ToDType(x.View(x.Sin(x.AddS(x.Arange(float64(n), tenon.Float32), float64(seed))), shape...), dt)
				}
				a, cos, sin := in(192, 1, dt, 2, 3, 4, 8), in(32, 2, tenon.Float32, 4, 8), in(32, 3, tenon.Float32, 4, 8)
				want := c.f(x, a, cos, sin)
				r := compile.New()
				var got []*tenon.Tensor
				for range 4 {
					must(t, r.Do(x, func(x *tenon.Exec) error {
						got = c.f(x, a, cos, sin)
						for _, y := range got {
							x.Keep(y)
						}
						return nil
					}))
					for i := range want {
						u, err := x.Bytes(want[i])
						must(t, err)
						v, err := x.Bytes(x.Contiguous(got[i]))
						must(t, err)
						if !bytes.Equal(u, v) {
							t.Fatalf("result %d is %v, want %v\n%s", i, v, u, r.Explain(x))
						}
						got[i].Close()
					}
				}
				if text := r.Explain(x).String(); c.kernels > 0 && !hasKernels(text, c.kernels) {
					t.Errorf("there should be %d kernels in a run:\n%s", c.kernels, text)
				}
			})
		}
	}
}

// hasKernels reports whether the first graph of an explanation has exactly n kernels.
func hasKernels(text string, n int) bool {
	return regexp.MustCompile(fmt.Sprintf(`(?m)^ +graph 0, first: .*, %d kernels?( in|;)`, n)).MatchString(text)
}

// A copy that exchanges two dimensions of one size does not take over the memory of what it reads, which lies as its result does.
func TestTurnedCopyKeepsItsInput(t *testing.T) {
	x := open(t).NoGrad()
	const n = 64
	in := x.View(x.Arange(n*n*n, tenon.Float32), n, n, n)
	step := func(x *tenon.Exec) *tenon.Tensor {
		a := x.Flip(in, 0) // in memory that nobody needs later
		return x.Contiguous(x.Permute(x.Sin(a), 1, 0, 2))
	}
	want, err := x.Bytes(step(x))
	must(t, err)
	r := compile.New()
	for run := range 4 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			y = x.Keep(step(x))
			return nil
		}))
		got, err := x.Bytes(y)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Fatalf("run %d gives another result\n%s", run, r.Explain(x))
		}
		y.Close()
	}
}
