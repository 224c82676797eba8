package core

import (
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/null"
	"tenon.dev/internal/rt"
)

// TestAllocs checks that an operation allocates its result's handle and nothing else.
func TestAllocs(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(d driver.Device) driver.Device { return null.New(d.Info().Image) }})
	if err != nil {
		t.Fatal(err)
	}
	x := New(dev, host)
	x.Scope(func(x *Exec) {
		a, b := x.Zeros([]int{4, 4}, dtype.Float32), x.Zeros([]int{4, 4}, dtype.Float32)
		for _, c := range []struct {
			name string
			most float64
			f    func()
		}{
			{"Add", 1, func() { x.Add(a, b).Close() }},
			{"AddInto", 0, func() { x.AddInto(a, a, b) }},
			{"MulS", 1, func() { x.MulS(a, 2).Close() }},
			{"Empty", 1, func() { x.Empty(a.Shape(), a.DType()).Close() }},
			{"NoGrad", 0, func() { x.NoGrad() }},
			{"View", 1, func() { x.View(a, 16).Close() }},
			{"Select", 1, func() { x.Select(a, 0, 1).Close() }},
			{"AddInto of a view", 1, func() {
				v := x.Slice(a, 0, 0, 2, 1)
				x.AddInto(v, v, v)
				v.Close()
			}},
			{"Sum", 1, func() { x.Sum(a, nil, SumOpt{}).Close() }},
		} {
			c.f()
			if n := testing.AllocsPerRun(100, c.f); n > c.most {
				t.Errorf("%s allocates %v objects, want at most %v", c.name, n, c.most)
			}
		}
	})
}
