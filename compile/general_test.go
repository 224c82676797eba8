package compile_test

import (
	"bytes"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
)

// byLength are calls whose kernels depend on the length n of rows, and what is fused with them.
var byLength = []struct {
	name string
	f    func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor // a has the rows
}{
	{"Softmax", func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Softmax(x.MulS(a, 0.5), 1) }},
	{"MaskedSoftmax", func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		return x.MulS(x.Softmax(x.MaskedFillS(a, x.GtS(x.Narrow(a, 1, 0, 1), 0.3), -1), 1), 2)
	}},
	{"LogSoftmax", func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.LogSoftmax(a, 1) }},
	{"LayerNorm", func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		return x.SiLU(x.LayerNorm(x.Add(a, a), nil, nil, []int{a.Size(1)}))
	}},
	{"Sum", func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		return x.Tanh(x.Sum(x.Mul(a, a), []int{1}, tenon.SumOpt{KeepDim: true}))
	}},
	{"Var", func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Var(x.AddS(a, 1), []int{1}) }},
	{"LogSumExp", func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.LogSumExp(x.AddS(a, 1), []int{1}) }},
	{"ArgMax", func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		return x.ArgMax(x.Sin(x.MulS(a, 90)), []int{1})
	}},
	{"WrittenOut", func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { // a softmax and a norm, with several rounds
		keep := tenon.SumOpt{KeepDim: true}
		e := x.Exp(x.Sub(a, x.AMax(a, []int{1}, tenon.DimOpt{KeepDim: true})))
		s := x.Div(e, x.Sum(e, []int{1}, keep))
		d := x.Sub(s, x.Mean(s, []int{1}, keep))
		return x.Mul(d, x.Rsqrt(x.AddS(x.Mean(x.Mul(d, d), []int{1}, keep), 1e-5)))
	}},
}

// rowsOf returns rows of length n.
func rowsOf(x *tenon.Exec, rows, n int, dt tenon.DType) *tenon.Tensor {
	return x.ToDType(x.View(x.Sin(x.MulS(x.Arange(float64(rows*n), tenon.Float32), 0.37)), rows, n), dt)
}

// The kernels that stand for those of many lengths have the same bits.
func TestGeneralKernels(t *testing.T) {
	x := openAlone(t).NoGrad()
	d := (*core.Exec)(x).Device()
	defer d.SetKernelsOfKin(2)
	ns := append(lengths(1400)[:10], 1, 2, 3, 31, 32, 33, 64, 256, 512, 1024, 1536, 2048, 2049, 3072, 3584, 4094, 4096, 8192, 16384)
	types := []tenon.DType{tenon.Float32, tenon.BFloat16, tenon.Float64}
	if onGPU() { // whose driver takes long to compile kernels
		ns, types = []int{3, 32, 577, 1086, 1290, 1536, 2048, 2049, 4096, 8192, 16384}, types[:2]
	}
	// run returns the bytes of all results, eager and compiled, with general kernels from kernel number most on, and how many were built.
	run := func(most int, dt tenon.DType) (all [][]byte, built int64) {
		d.SetKernelsOfKin(most)
		for _, c := range byLength {
			r := compile.New(compile.Opt{DynamicLimit: -1, Branches: len(ns)})
			for i, n := range ns {
				rows := 24
				if onGPU() && i%2 == 0 { // so that a few threads share one
					rows = 2400
				}
				a := rowsOf(x, rows, n, dt)
				before := kernelsBuilt(x)
				eager := c.f(x, a)
				var y *tenon.Tensor
				for range 2 {
					must(t, r.Do(x, func(x *tenon.Exec) error {
						y = x.Keep(c.f(x, a))
						return nil
					}))
				}
				built += kernelsBuilt(x) - before
				e, err := x.Bytes(eager)
				must(t, err)
				f, err := x.Bytes(y)
				must(t, err)
				for _, u := range []*tenon.Tensor{a, eager, y} {
					u.Close()
				}
				if !bytes.Equal(e, f) {
					t.Errorf("%s of %d %v: eager and compiled differ", c.name, n, dt)
				}
				all = append(all, e)
			}
		}
		return all, built
	}
	for _, dt := range types {
		special, many := run(1<<30, dt)
		general, few := run(0, dt)
		t.Logf("%v: %d kernels, and %d with general ones", dt, many, few)
		if few*2 > many {
			t.Errorf("%v: there are %d kernels, and %d with general ones", dt, many, few)
		}
		for i := range special {
			if !bytes.Equal(special[i], general[i]) {
				t.Errorf("%s of %d %v: the general kernel has other bits", byLength[i/len(ns)].name, ns[i%len(ns)], dt)
			}
		}
	}
}
