package bench

import (
	"testing"

	"tenon.dev"
)

func BenchmarkHostMatMul(b *testing.B) {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		b.Fatal(err)
	}
	x.Scope(func(x *tenon.Exec) {
		p, q := noise(x, 1024, tenon.Float32), noise(x, 1024, tenon.Float32)
		b.ResetTimer()
		for range b.N {
			x.MM(p, q).Close()
		}
		b.ReportMetric(2*1024*1024*1024*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
	})
}

func BenchmarkHostConv(b *testing.B) {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		b.Fatal(err)
	}
	x.Scope(func(x *tenon.Exec) {
		in, w := x.Ones([]int{64, 16, 8, 8}, tenon.Float32), x.Ones([]int{32, 16, 3, 3}, tenon.Float32)
		in.SetRequiresGrad(true)
		w.SetRequiresGrad(true)
		opt := tenon.Conv2dOpt{Padding: [2]int{1, 1}}
		b.Run("forward", func(b *testing.B) {
			for range b.N {
				x.NoGrad().Conv2d(in, w, nil, opt).Close()
			}
		})
		b.Run("both", func(b *testing.B) {
			for range b.N {
				x.Scope(func(x *tenon.Exec) {
					y := x.Conv2d(in, w, nil, opt)
					if _, err := x.Grad([]*tenon.Tensor{y}, []*tenon.Tensor{in, w}, tenon.GradOpt{Gradients: []*tenon.Tensor{y}}); err !=
						nil {
						b.Fatal(err)
					}
				})
			}
		})
	})
}
