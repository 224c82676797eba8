package compile_test

import (
	"bytes"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// againTensors are what the programs of againCase read.
type againTensors struct{ h, g, w, b, row *tenon.Tensor }

// againCase is a program with reductions within rows of arrays of shape, and how many kernels it takes.
type againCase struct {
	name    string
	dt      tenon.DType
	shape   []int
	f       func(x *tenon.Exec, o againTensors, v float64) []*tenon.Tensor
	kernels int
}

// run checks that the program gives the bits of eager execution, and counts its kernels.
func (c *againCase) run(t *testing.T) {
	t.Run(c.name, func(t *testing.T) {
		eachWay(t, c.kernels, func(x *tenon.Exec) func(x *tenon.Exec, v float64) []*tenon.Tensor {
			draw := func(shape ...int) *tenon.Tensor { return x.ToDType(x.RandN(shape, tenon.Float32), c.dt) }
			n := c.shape[len(c.shape)-1]
			o := againTensors{draw(c.shape...), draw(c.shape...), draw(n), draw(n), draw(c.shape[0])}
			return func(x *tenon.Exec, v float64) []*tenon.Tensor { return c.f(x, o, v) }
		})
	})
}

// oneResult is a program with one result.
func oneResult(f func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor) func(*tenon.Exec, againTensors, float64) []*tenon.Tensor {
	return func(x *tenon.Exec, o againTensors, v float64) []*tenon.Tensor { return []*tenon.Tensor{f(x, o, v)} }
}

// norm is the RMS norm of rows, as people write it.
func norm(x *tenon.Exec, h *tenon.Tensor, v float64) *tenon.Tensor {
	return x.Mul(h, x.Rsqrt(x.AddS(x.Mean(x.Mul(h, h), []int{-1}, tenon.SumOpt{KeepDim: true}), v)))
}

// A reduction within rows and the work that reads its results are one kernel, with the bits of separate kernels, while numbers change. The
// kernel goes through each row again.
func TestReductionsAndWhatReadsThem(t *testing.T) {
	last, keep, single, half := []int{-1}, tenon.SumOpt{KeepDim: true}, tenon.Float32, tenon.BFloat16
	for _, c := range []againCase{
		{"an RMS norm", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return norm(x, o.h, v)
		}), 1},
		{"an RMS norm in float32", half, []int{4, 75, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return x.Mul(x.ToDType(norm(x, x.ToDType(x.Add(o.h, o.b), single), v), half), o.w)
		}), 1},
		{"with what makes its input stored", half, []int{300, 264}, func(x *tenon.Exec, o againTensors, v float64) []*tenon.Tensor {
			h := x.Add(o.h, o.b)
			return []*tenon.Tensor{norm(x, h, v), h}
		}, 1},
		{"with what the row has stored", single, []int{300, 264}, func(x *tenon.Exec, o againTensors, v float64) []*tenon.Tensor {
			m := x.Mean(x.Mul(o.h, o.h), last, keep)
			r := x.Rsqrt(x.AddS(m, v))
			return []*tenon.Tensor{x.Mul(o.h, r), r, m}
		}, 1},
		{"a dimension put back", single, []int{3, 100, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			m := x.AddS(x.Sum(x.Abs(o.h), last), v)
			return x.Div(o.h, x.Unsqueeze(m, 2))
		}), 1},
		{"a mean and a variance", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			variance, mean := x.VarMean(o.h, last, tenon.VarOpt{KeepDim: true})
			return x.Add(x.Mul(x.Mul(x.Sub(o.h, mean), x.Rsqrt(x.AddS(variance, v))), o.w), o.b)
		}), 1},
		{"two reductions", half, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			most, least := x.AMax(o.h, last, tenon.DimOpt{KeepDim: true}), x.AMin(o.h, last, tenon.DimOpt{KeepDim: true})
			return x.Div(x.Sub(o.h, least), x.AddS(x.Sub(most, least), v))
		}), 1},
		{"a position", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			at := x.ArgMax(x.MulS(o.h, v), last, tenon.DimOpt{KeepDim: true})
			return x.Where(x.EqS(at, 7), o.h, x.MulS(o.h, v))
		}), 1},
		{"work for the row alone", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return x.Mul(x.Sqrt(x.AddS(x.Sum(x.Mul(o.h, o.h), last), v)), o.row)
		}), 1},
		{"a number for each row", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return x.Mul(o.h, x.Unsqueeze(x.Div(o.row, x.AddS(x.Sum(x.Abs(o.h), last), v)), 1))
		}), 1},
		{"rows that lie apart", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return norm(x, x.Narrow(o.h, 1, 8, 200), v)
		}), 1},
		{"a row with a rest, and two inputs that are read again", single, []int{1, 1029}, oneResult(func(x *tenon.Exec, o againTensors,
			v float64) *tenon.Tensor {
			h := x.Add(o.h, o.g)
			return x.Mul(x.Mul(h, x.Rsqrt(x.AddS(x.Mean(x.Mul(h, h), last, keep), v))), o.g)
		}), 1},
		{"double precision", tenon.Float64, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return x.Add(norm(x, o.h, v), o.g)
		}), 1},
		{"rows that fill shared memory", single, []int{150, 57600}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return norm(x, o.h, v)
		}), 1},
		{"rows that do not fit into it", single, []int{160, 65536}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return norm(x, o.h, v)
		}), 3},
		{"columns", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return x.Sub(o.h, x.MulS(x.Mean(o.h, []int{0}, keep), v))
		}), 3},
		{"few rows", single, []int{2, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return norm(x, o.h, v)
		}), 1},
		{"the reading of another row", single, []int{300, 300}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return x.Mul(o.h, x.MulS(x.Sum(x.Abs(o.h), last), v)) // the sum of row i for column i
		}), 2},
		{"a change in place", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			h := x.MulS(o.h, v)
			x.MulInto(h, h, x.Rsqrt(x.Mean(x.Mul(h, h), last, keep)))
			return h
		}), 2},
	} {
		c.run(t)
	}
}

// Several rounds of reductions, each of what is made with the results of the one before, are one kernel too.
func TestReductionsInRounds(t *testing.T) {
	last, keep, most, single, half := []int{-1}, tenon.SumOpt{KeepDim: true}, tenon.DimOpt{KeepDim: true}, tenon.Float32, tenon.BFloat16
	for _, c := range []againCase{
		{"a softmax", half, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			e := x.Exp(x.MulS(x.Sub(o.h, x.AMax(o.h, last, most)), v))
			return x.Div(e, x.Sum(e, last, keep))
		}), 1},
		{"a softmax whose parts are kept", single, []int{300, 264}, func(x *tenon.Exec, o againTensors, v float64) []*tenon.Tensor {
			greatest := x.AMax(o.h, last, most)
			e := x.Exp(x.Mul(x.MulS(x.Sub(o.h, greatest), v), o.w))
			sum := x.Sum(e, last, keep)
			return []*tenon.Tensor{x.Div(e, sum), e, greatest, x.Log(sum)}
		}, 1},
		{"a sum of exponentials", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			h := x.MulS(o.h, v)
			greatest := x.AMax(h, last, most)
			return x.Add(x.Log(x.Sum(x.Exp(x.Sub(h, greatest)), last)), x.Squeeze(greatest, 1))
		}), 1},
		{"a layer norm", half, []int{4, 75, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			h := x.ToDType(o.h, single)
			h = x.Sub(h, x.Mean(h, last, keep))
			return x.Add(x.Mul(x.ToDType(norm(x, h, v), half), o.w), o.b)
		}), 1},
		{"a layer norm of a sum, in rows that lie apart, with a rest", single, []int{9, 1037},
			func(x *tenon.Exec, o againTensors, v float64) []*tenon.Tensor {
				h := x.Add(x.Narrow(o.h, 1, 8, 1029), x.Narrow(o.g, 1, 8, 1029))
				h = x.Sub(h, x.Mean(h, last, keep))
				return []*tenon.Tensor{norm(x, h, v), h}
			}, 1},
		{"three rounds", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			h := x.Sub(o.h, x.Mean(o.h, last, keep))
			h = x.Div(h, x.AddS(x.AMax(x.Abs(h), last, most), v))
			return x.Sub(h, x.Mul(x.Mean(x.Mul(h, o.w), last, keep), o.g))
		}), 1},
		{"four rounds", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			h := o.h
			for range 4 {
				h = x.Sub(h, x.MulS(x.Mean(x.Abs(h), last, keep), v))
			}
			return h
		}), 2},
		{"a round of another type", half, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			e := x.Exp(x.ToDType(x.Sub(o.h, x.Mean(o.h, last, keep)), single))
			return x.Div(e, x.AddS(x.Sum(e, last, keep), v))
		}), 2},
		{"a maximum of another type", half, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			e := x.Exp(x.ToDType(x.Sub(o.h, x.AMax(o.h, last, most)), single))
			return x.Div(e, x.AddS(x.Sum(e, last, keep), v))
		}), 1},
		{"a minimum of another type, later", half, []int{9, 4000},
			func(x *tenon.Exec, o againTensors, v float64) []*tenon.Tensor {
				h := x.ToDType(o.h, single)
				h = x.Sub(h, x.MulS(x.Mean(h, last, keep), v))
				low := x.AMin(x.ToDType(h, half), last, most)
				return []*tenon.Tensor{low, x.AMax(x.Abs(h), last, most), x.Sub(h, x.ToDType(low, single))}
			}, 1},
		{"a variance", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			h := x.Sub(o.h, x.MulS(x.Mean(o.h, last, keep), v))
			return x.Mean(x.Mul(h, h), last)
		}), 1},
	} {
		c.run(t)
	}
}

// The kernel keeps results of calls of many instructions that several rounds need.
func TestReductionsKeepWhatIsDear(t *testing.T) {
	last, keep, single := []int{-1}, tenon.SumOpt{KeepDim: true}, tenon.Float32
	away := func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor { return x.Sub(h, x.Mean(h, last, keep)) }
	share := func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor { return x.Div(h, x.Sum(h, last, keep)) }
	for _, c := range []againCase{
		{"for the results", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return share(x, x.Exp(x.MulS(away(x, o.h), v)))
		}), 1},
		{"two of a round", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			d := away(x, o.h)
			return x.Add(share(x, x.Exp(d)), share(x, x.Sigmoid(x.MulS(d, v))))
		}), 1},
		{"of two rounds", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			e := x.Exp(o.h)
			return x.Mul(share(x, x.Sigmoid(x.MulS(away(x, e), v))), e)
		}), 1},
		{"what is written too", single, []int{1, 1029}, func(x *tenon.Exec, o againTensors, v float64) []*tenon.Tensor {
			e := x.Exp(x.MulS(away(x, o.h), v))
			return []*tenon.Tensor{share(x, e), e}
		}, 1},
		{"one of the other", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			e := x.Exp(away(x, o.h))
			return x.Add(share(x, x.Sigmoid(x.MulS(e, v))), e)
		}), 1},
		{"in one round", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			return share(x, x.Exp(x.MulS(o.h, v)))
		}), 1},
		{"for each round", single, []int{300, 264}, oneResult(func(x *tenon.Exec, o againTensors, v float64) *tenon.Tensor {
			e := x.Exp(o.h)
			return share(x, x.Mul(x.Add(x.Abs(away(x, e)), o.w), x.MulS(e, v)))
		}), 1},
	} {
		c.run(t)
		x := open(t)
		h := x.RandN(c.shape, c.dt)
		o := againTensors{h: h, w: x.RandN(c.shape[1:], c.dt)}
		r := compile.New()
		must(t, r.Do(x, func(x *tenon.Exec) error {
			for _, y := range c.f(x, o, 0.5) {
				x.Keep(y)
			}
			return nil
		}))
		if text := r.Explain(x).String(); !strings.Contains(text, "_keep_") {
			t.Errorf("%s: nothing is kept\n%s", c.name, text)
		}
	}
}

// Work that is stored before it is reduced is not kept: that would need memory of its own, and nothing would read it.
func TestReductionsKeepNothingTheyStore(t *testing.T) {
	for _, shape := range [][]int{{300, 264}, {132, 58368}} { // rows that shared memory would hold, and others
		x := open(t)
		h := x.RandN(shape, tenon.Float32)
		program := func(x *tenon.Exec) (e, s *tenon.Tensor) {
			e = x.Exp(h)
			return x.Keep(e), x.Keep(x.Log(x.Sum(e, []int{-1})))
		}
		var e, s *tenon.Tensor
		r := compile.New()
		must(t, r.Do(x, func(x *tenon.Exec) error { e, s = program(x); return nil }))
		if text := r.Explain(x).String(); r.Stats(x).Kernels != 1 || strings.Contains(text, "_keep_") {
			t.Errorf("want one kernel that keeps nothing\n%s", text)
		}
		wantE, wantS := program(x)
		for i, y := range [][2]*tenon.Tensor{{e, wantE}, {s, wantS}} {
			got, err := x.Bytes(y[0])
			must(t, err)
			want, err := x.Bytes(y[1])
			must(t, err)
			if !bytes.Equal(got, want) {
				t.Errorf("%v: result %d has other bits", shape, i)
			}
		}
	}
}

// Work for a reduction's results on another stream is not part of its kernel.
func TestReductionsKeepToTheirStream(t *testing.T) {
	x := open(t)
	st, err := x.Device().Stream()
	must(t, err)
	h := x.RandN([]int{300, 264}, tenon.Float32)
	r := compile.New(compile.Opt{})
	for range 3 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			y = x.Keep(x.On(st).Mul(h, x.Mean(x.Mul(h, h), []int{-1}, tenon.SumOpt{KeepDim: true})))
			return nil
		}))
		y.Close()
	}
	if s := r.Stats(x); s.Kernels != 6 {
		t.Errorf("%d kernels in three runs, want two in each\n%s", s.Kernels, r.Explain(x))
	}
}

// Groups do calls again with operands whose storage is another call's, since the program has computed them twice: here in a checkpoint.
func TestCallsAreDoneAgainWithMergedOperands(t *testing.T) {
	eachWay(t, 0, func(x *tenon.Exec) func(x *tenon.Exec, v float64) []*tenon.Tensor {
		slope := x.Full([]int{1}, 0.25, tenon.Float32).SetRequiresGrad(true)
		in := x.RandN([]int{4, 5}, tenon.Float32).SetRequiresGrad(true)
		w := x.RandN([]int{5}, tenon.Float32).SetRequiresGrad(true)
		relu := func(x *tenon.Exec, in []*tenon.Tensor) []*tenon.Tensor { return []*tenon.Tensor{x.ReLU(in[0])} }
		return func(x *tenon.Exec, v float64) []*tenon.Tensor {
			h := x.Mul(x.Dropout(x.Checkpoint(relu, x.PReLU(in, slope))[0], 0.5), w)
			first, err := x.Grad([]*tenon.Tensor{x.Sum(h, nil)}, []*tenon.Tensor{in}, tenon.GradOpt{CreateGraph: true})
			must(t, err)
			second, err := x.Grad([]*tenon.Tensor{x.MulS(x.Sum(x.Square(first[0]), nil), v)}, []*tenon.Tensor{w, slope})
			must(t, err)
			return second
		}
	})
}
