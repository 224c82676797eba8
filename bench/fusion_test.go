package bench

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// sixOps is the chain of chainKernel as calls.
func sixOps(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
	return x.Add(x.MulS(x.SubS(x.Mul(x.AddS(x.MulS(a, 1.5), 0.25), a), 0.5), 0.75), a)
}

// compiled is f in a region, whose result outlives it.
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

// BenchmarkChain runs six operations on one tensor, each by itself and in a region, which makes them one kernel.
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
