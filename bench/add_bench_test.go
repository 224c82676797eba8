package bench

import (
	"testing"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/null"
	"tenon.dev/internal/rt"
)

// BenchmarkAdd is the Go part of a small add, on a driver that does nothing.
func BenchmarkAdd(b *testing.B) {
	host, err := rt.Host()
	if err != nil {
		b.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(d driver.Device) driver.Device { return null.New(d.Info().Image) }})
	if err != nil {
		b.Fatal(err)
	}
	x := (*tenon.Exec)(core.New(dev, host))
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
