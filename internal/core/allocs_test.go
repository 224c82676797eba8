package core

import (
	"testing"

	"tenon.dev/dtype"
)

// TestAllocs checks that an operation allocates its result's handle and nothing else.
func TestAllocs(t *testing.T) {
	x := onNull(t)
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

// TestBackwardAllocates checks what an operation adds to the allocations of a forward and a backward pass: its result, its node and the
// gradient. The pass reuses its own lists.
func TestBackwardAllocates(t *testing.T) {
	x := onNull(t)
	w := x.Ones([]int{4, 4}, dtype.Float32).SetRequiresGrad(true)
	defer w.Close()
	c := x.Ones([]int{4, 4}, dtype.Float32)
	defer c.Close()
	pass := func(n int, f func(x *Exec, y *Tensor) *Tensor) float64 {
		step := func() {
			x.Scope(func(x *Exec) {
				y := w
				for range n {
					y = f(x, y)
				}
				if err := x.Backward(x.Sum(y, nil, SumOpt{}), BackwardOpt{}); err != nil {
					t.Fatal(err)
				}
			})
			w.SetGrad(nil)
		}
		step()
		return testing.AllocsPerRun(100, step)
	}
	for _, op := range []struct {
		name string
		most float64
		f    func(x *Exec, y *Tensor) *Tensor
	}{
		{"Neg", 3, func(x *Exec, y *Tensor) *Tensor { return x.Neg(y) }},
		{"MulS", 3, func(x *Exec, y *Tensor) *Tensor { return x.MulS(y, 2) }},
		{"Transpose", 3, func(x *Exec, y *Tensor) *Tensor { return x.Transpose(y, 0, 1) }},
		// Besides, a handle of the saved operand, one of its transpose, and a list of three edges.
		{"MM", 6, func(x *Exec, y *Tensor) *Tensor { return x.MM(y, c) }},
	} {
		if n := (pass(24, op.f) - pass(8, op.f)) / 16; n > op.most {
			t.Errorf("%s adds %.2f allocations to a pass, want at most %v", op.name, n, op.most)
		}
	}
}
