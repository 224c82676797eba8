package bench

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// sixOps is chainKernel's chain as calls.
func sixOps(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
	return x.Add(x.MulS(x.SubS(x.Mul(x.AddS(x.MulS(a, 1.5), 0.25), a), 0.5), 0.75), a)
}

// compiled returns f in a region, with a result that outlives the region.
func compiled(t *testing.T, f func(x *tenon.Exec) *tenon.Tensor) func(x *tenon.Exec) {
	r := compile.New()
	return func(x *tenon.Exec) {
		var y *tenon.Tensor
		if err := r.Do(x, func(x *tenon.Exec) error { y = x.Keep(f(x)); return nil }); err != nil {
			t.Fatal(err)
		}
		y.Close()
	}
}

// TestFusions measures groups of operations in a region, which turns each group into one kernel.
func TestFusions(t *testing.T) {
	x := onGPU(t)
	x.Scope(func(x *tenon.Exec) {
		if err := x.Generator().SetSeed(3); err != nil {
			t.Fatal(err)
		}
		const rows, width, classes = 8192, 4096, 50304
		ng := x.NoGrad()
		h, r := ng.RandN([]int{rows, width}, tenon.BFloat16), ng.RandN([]int{rows, width}, tenon.BFloat16)
		w, bias := ng.RandN([]int{width}, tenon.BFloat16), ng.RandN([]int{width}, tenon.BFloat16)
		low := ng.Full(nil, -1e4, tenon.BFloat16)
		tall := ng.RandN([]int{1 << 20, 1024}, tenon.Float32)
		other := ng.RandN([]int{1 << 20, 1024}, tenon.Float32)
		logits := ng.RandN([]int{rows, classes}, tenon.BFloat16).SetRequiresGrad(true)
		want := ng.RandInt(classes, []int{rows}, tenon.Int64)
		const in, out = 8192, 28672 // a layer of a large language model
		row, factor := ng.RandN([]int{1, in}, tenon.BFloat16), ng.RandN([]int{out, 1}, tenon.BFloat16)
		weight := ng.RandInt(127, []int{out, in}, tenon.Int8)
		for _, c := range []struct {
			name  string
			inner int
			f     func(x *tenon.Exec) *tenon.Tensor
		}{
			{"rmsnorm", 100, func(x *tenon.Exec) *tenon.Tensor {
				return x.RMSNorm(x.Add(h, r), w, []int{width}, tenon.NormOpt{Eps: 1e-6})
			}},
			{"gelu", 100, func(x *tenon.Exec) *tenon.Tensor { return x.GELUTanh(x.Add(h, bias)) }},
			{"softmax", 100, func(x *tenon.Exec) *tenon.Tensor { return x.Softmax(x.Where(x.GtS(h, 0), x.MulS(h, 0.125), low), 1) }},
			{"layernorm", 5, func(x *tenon.Exec) *tenon.Tensor { return x.SiLU(x.LayerNorm(tall, nil, nil, []int{1024})) }},
			{"sine", 5, func(x *tenon.Exec) *tenon.Tensor { return x.Sigmoid(x.Exp(x.ReLU(x.Sin(x.AddS(x.MulS(tall, 2), 1))))) }},
			{"exp", 5, func(x *tenon.Exec) *tenon.Tensor {
				return x.MulS(x.ReLU(x.SubS(x.Mul(x.AddS(x.MulS(x.Exp(tall), 2), 1), tall), 0.5)), 0.25)
			}},
			{"distance", 5, func(x *tenon.Exec) *tenon.Tensor {
				d := x.Sub(tall, other)
				return x.Mean(x.Mul(d, d), nil)
			}},
			{"columns", 100, func(x *tenon.Exec) *tenon.Tensor { return x.Sum(x.Mul(h, r), []int{0}) }},
			{"dots", 100, func(x *tenon.Exec) *tenon.Tensor { return x.Sum(x.Mul(h, r), []int{1}) }},
			{"moments", 100, func(x *tenon.Exec) *tenon.Tensor {
				m := x.Mean(h, []int{1})
				return x.Sub(x.Mean(x.Mul(h, h), []int{1}), x.Mul(m, m))
			}},
			{"norm", 100, func(x *tenon.Exec) *tenon.Tensor {
				f, of := x.ToDType(h, tenon.Float32), tenon.SumOpt{KeepDim: true}
				r := x.Rsqrt(x.AddS(x.Mean(x.Mul(f, f), []int{1}, of), 1e-6))
				return x.Mul(x.ToDType(x.Mul(f, r), tenon.BFloat16), w)
			}},
			{"normalize", 10, func(x *tenon.Exec) *tenon.Tensor {
				return x.Div(tall, x.Sqrt(x.Sum(x.Mul(tall, tall), []int{1}, tenon.SumOpt{KeepDim: true})))
			}},
			{"written.layernorm", 100, func(x *tenon.Exec) *tenon.Tensor {
				f, of := x.ToDType(h, tenon.Float32), tenon.SumOpt{KeepDim: true}
				d := x.Sub(f, x.Mean(f, []int{1}, of))
				d = x.Mul(d, x.Rsqrt(x.AddS(x.Mean(x.Mul(d, d), []int{1}, of), 1e-5)))
				return x.Add(x.Mul(x.ToDType(d, tenon.BFloat16), w), bias)
			}},
			{"written.softmax", 10, func(x *tenon.Exec) *tenon.Tensor {
				e := x.Exp(x.MulS(x.Sub(tall, x.AMax(tall, []int{1}, tenon.DimOpt{KeepDim: true})), 0.125))
				return x.Div(e, x.Sum(e, []int{1}, tenon.SumOpt{KeepDim: true}))
			}},
			{"quantized", 50, func(x *tenon.Exec) *tenon.Tensor {
				return x.Linear(row, x.Mul(x.ToDType(weight, tenon.BFloat16), factor), nil)
			}},
		} {
			s := timed(t, ng, 10, repeated(c.inner, compiled(t, c.f)))
			recordFigure("fusion."+c.name, "ms", perRun(s, c.inner))
		}
		loss := func(x *tenon.Exec) {
			if err := x.Backward(x.CrossEntropy(x.ToDType(logits, tenon.Float32), want)); err != nil {
				t.Fatal(err)
			}
		}
		recordFigure("fusion.entropy.eager", "ms", perRun(timed(t, x, 10, repeated(5, func(x *tenon.Exec) {
			x.Scope(loss)
			logits.SetGrad(nil)
		})), 5))
		region := compile.New()
		recordFigure("fusion.entropy.compiled", "ms", perRun(timed(t, x, 10, repeated(5, func(x *tenon.Exec) {
			if err := region.Do(x, func(x *tenon.Exec) error { loss(x); return nil }); err != nil {
				t.Fatal(err)
			}
			logits.SetGrad(nil) // not in Do, which would leave the backward pass out
		})), 5))
	})
}

func repeated(count int, f func(x *tenon.Exec)) func(x *tenon.Exec) {
	return func(x *tenon.Exec) {
		for range count {
			f(x)
		}
	}
}

// perRun returns the milliseconds per run, for seconds of count runs each.
func perRun(seconds []float64, count int) []float64 {
	for i := range seconds {
		seconds[i] *= 1e3 / float64(count)
	}
	return seconds
}

// BenchmarkChain runs six operations on one tensor, as single calls and in a region, which turns them into one kernel.
func BenchmarkChain(b *testing.B) {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		b.Fatal(err)
	}
	defer x.Close()
	x = x.NoGrad()
	for _, n := range []int{1 << 10, 16 << 20} {
		a := x.Full([]int{n}, 1.5, tenon.Float32)
		run := func(name string, do func(x *tenon.Exec, f func(x *tenon.Exec) error) error) {
			var y *tenon.Tensor
			step := func() {
				err := do(x, func(x *tenon.Exec) error { y = x.Keep(sixOps(x, a)); return nil })
				if err == nil {
					err = x.Synchronize()
				}
				if err != nil {
					b.Fatal(err)
				}
				y.Close()
			}
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				b.SetBytes(8 * int64(n))
				b.ReportAllocs()
				for range 3 {
					step()
				}
				for b.Loop() {
					step()
				}
			})
		}
		run("eager", func(x *tenon.Exec, f func(x *tenon.Exec) error) (err error) {
			x.Scope(func(x *tenon.Exec) { err = f(x) })
			return err
		})
		run("region", compile.New().Do)
		run("unfused", compile.New(compile.Opt{NoFusion: true}).Do)
		a.Close()
	}
}
