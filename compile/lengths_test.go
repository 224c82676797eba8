package compile_test

import (
	"math"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// lengths are sixty different lengths, odd and even, up to longest, in mixed order.
func lengths(longest int) []int {
	out := make([]int, 60)
	for i := range out {
		out[i] = longest - ((i+30)*37%60)*(longest-5)/60
	}
	return out
}

// Inputs of sixty lengths share kernels: a group of fused calls needs at most six, and repeated lengths need no more.
func TestSixtyLengthsShareKernels(t *testing.T) {
	const width = 64
	for _, c := range []struct {
		name   string
		groups int // that calls are fused to
		f      func(x *tenon.Exec, a, row *tenon.Tensor) *tenon.Tensor
	}{
		{"Column", 1, func(x *tenon.Exec, a, row *tenon.Tensor) *tenon.Tensor { return six(x, x.Select(a, 1, 0), 2) }},
		{"Vector", 1, func(x *tenon.Exec, a, row *tenon.Tensor) *tenon.Tensor {
			return six(x, x.Narrow(x.Flatten(a, 0, 1), 0, 0, a.Size(0)), 2)
		}},
		{"Rows", 1, func(x *tenon.Exec, a, row *tenon.Tensor) *tenon.Tensor { return x.Tanh(x.Sub(x.Mul(a, row), row)) }},
		{"Mask", 2, func(x *tenon.Exec, a, row *tenon.Tensor) *tenon.Tensor { // with the positions
			s := x.MulS(x.Mul(x.Unsqueeze(x.Select(a, 1, 0), 1), x.Select(a, 1, 1)), 0.5)
			p := x.Arange(float64(a.Size(0)), tenon.Int64)
			return x.MaskedFillS(s, x.Lt(x.Unsqueeze(p, 1), p), math.Inf(-1))
		}},
		{"Softmax", 1, func(x *tenon.Exec, a, row *tenon.Tensor) *tenon.Tensor {
			return x.Softmax(x.MulS(x.View(a, width, a.Size(0)), 0.125), 1)
		}},
		{"HalfSoftmax", 1, func(x *tenon.Exec, a, row *tenon.Tensor) *tenon.Tensor {
			return x.Softmax(x.MulS(x.ToDType(x.View(a, width, a.Size(0)), tenon.BFloat16), 0.125), 1)
		}},
		{"LayerNorm", 1, func(x *tenon.Exec, a, row *tenon.Tensor) *tenon.Tensor {
			return x.SiLU(x.LayerNorm(x.View(a, width, a.Size(0)), nil, nil, []int{a.Size(0)}))
		}},
		{"Norm", 1, func(x *tenon.Exec, a, row *tenon.Tensor) *tenon.Tensor { // written out
			v := x.View(a, width, a.Size(0))
			return x.Div(v, x.Sqrt(x.Sum(x.Mul(v, v), []int{1}, tenon.SumOpt{KeepDim: true})))
		}},
		{"Attention", 4, func(x *tenon.Exec, a, row *tenon.Tensor) *tenon.Tensor {
			h := x.GELU(x.Add(x.LayerNorm(a, nil, nil, []int{width}), row))
			s := x.Softmax(x.MulS(x.MatMul(h, x.T(h)), 0.125), -1)
			return x.Add(a, x.MatMul(s, h))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := openOn(t, tenon.Sim(0)).NoGrad() // with nothing built yet
			row := x.Full([]int{width}, 2, tenon.Float32)
			r := compile.New(compile.Opt{DynamicLimit: -1})
			var built [4]int64
			for pass := range built {
				for _, n := range lengths(600) {
					a := x.Full([]int{n, width}, 0.5, tenon.Float32)
					before := kernelsBuilt(x)
					var y *tenon.Tensor
					must(t, r.Do(x, func(x *tenon.Exec) error {
						y = x.Keep(c.f(x, a, row))
						return nil
					}))
					built[pass] += kernelsBuilt(x) - before
					y.Close()
					a.Close()
				}
			}
			t.Logf("%d kernels are built in the first pass", built[0])
			if built[0] > int64(6*c.groups) || built[0] == 0 {
				t.Errorf("%d kernels are built for %d groups", built[0], c.groups)
			}
			if more := built[1] + built[2] + built[3]; more != 0 {
				t.Errorf("%v kernels are built in the passes, want none from the second on", built)
			}
			if s := r.Stats(x); s.Recordings != 60 || s.Replays != 2*60 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The graphs of sixty lengths need only the memory of the longest, in any order.
func TestSixtyLengthsShareMemory(t *testing.T) {
	const width, longest = 8192, 700 // larger than a page of the pool
	run := func(ls []int) int64 {
		x := openOn(t, tenon.Sim(0)).NoGrad() // its allocator is that of a GPU
		a := x.Ones([]int{longest, width}, tenon.Float32)
		r := compile.New(compile.Opt{DynamicLimit: -1})
		for range 2 {
			for _, n := range ls {
				var y *tenon.Tensor
				must(t, r.Do(x, func(x *tenon.Exec) error {
					y = x.Keep(x.Softmax(x.AddS(x.Narrow(a, 0, 0, n), 1), 1))
					return nil
				}))
				y.Close()
			}
		}
		return x.Device().MaxMemoryReserved()
	}
	alone, up := run([]int{longest}), lengths(longest)
	slices.Sort(up)
	for name, ls := range map[string][]int{"mixed": lengths(longest), "rising": up} {
		if all := run(ls); float64(all) > 1.05*float64(alone) {
			t.Errorf("%s: sixty lengths take %d MiB, the longest alone %d MiB", name, all>>20, alone>>20)
		}
	}
}
