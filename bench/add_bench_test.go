package bench

import (
	"testing"

	"tenon.dev"
)

// BenchmarkAdd measures the Go part of a small add, on a driver that does nothing.
func BenchmarkAdd(b *testing.B) {
	x := onNull(b)
	x.Scope(func(x *tenon.Exec) {
		a, c := x.Ones([]int{16}, tenon.Float32), x.Ones([]int{16}, tenon.Float32)
		ng := x.NoGrad()
		b.ReportAllocs()
		b.ResetTimer()
		for i := 0; i < b.N; i += 50 {
			x.Scope(func(*tenon.Exec) {
				for range 50 {
					ng.Add(a, c)
				}
			})
		}
	})
}
