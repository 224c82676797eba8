package core

import (
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/record"
)

// A leaf takes over a gradient that is laid out like it, such as that of a weight with channels last, and does not copy it.
func TestGradientsAreTakenOver(t *testing.T) {
	var rec *record.Device
	x, _ := simExec(t, func(d driver.Device) driver.Device { rec = record.New(d); return rec })
	for _, c := range []struct {
		name     string
		lay      func(t *Tensor) *Tensor // the leaf
		gradient func(t *Tensor) *Tensor
		launches int // the product that makes the gradient, and a copy
	}{
		{"contiguous", x.Contiguous, x.Contiguous, 1},
		{"channels last", x.ChannelsLast, x.ChannelsLast, 1},
		{"transposed", func(t *Tensor) *Tensor { return x.Clone(x.Transpose(t, 0, 1)) }, func(t *Tensor) *Tensor { return t }, 1},
		{"contiguous leaf", x.Contiguous, x.ChannelsLast, 2},
	} {
		x.Scope(func(x *Exec) {
			w := c.lay(x.RandN([]int{2, 3, 4, 5}, dtype.Float32)).SetRequiresGrad(true)
			dy := c.gradient(x.FullLike(x.Detach(w), 2, LikeOpt{}))
			y, ones := x.Mul(w, dy), x.FullLike(dy, 1, LikeOpt{})
			rec.Reset()
			if err := x.Backward(y, BackwardOpt{Gradient: ones}); err != nil {
				t.Fatal(err)
			}
			if n := rec.Count("Launch"); n != c.launches {
				t.Errorf("%s: the gradient took %d launches, want %d", c.name, n, c.launches)
			}
			if g := w.Grad(); c.launches == 1 && !slices.Equal(g.Stride(), w.Stride()) {
				t.Errorf("%s: the gradient has strides %v, the leaf %v", c.name, g.Stride(), w.Stride())
			}
			want(t, x, x.Sub(w.Grad(), dy), make([]float32, 120)...)
		})
	}
}

// TestStepsAreOrdered: a step of an optimizer waits once for another stream that uses what the step changes, or that writes a gradient, and
// other streams wait once for the step. If a stream and a step both only read a gradient, neither waits.
func TestStepsAreOrdered(t *testing.T) {
	var rec *record.Device
	x, _ := simExec(t, func(d driver.Device) driver.Device { rec = record.New(d); return rec })
	ys := forks(t, x, 2)
	for operand, name := range []string{"parameter", "gradient", "momentum", "rows"} {
		for _, writes := range []bool{false, true} {
			for _, stepFirst := range []bool{false, true} {
				p, g, m := From(x, []float32{1, 2}), From(x, []float32{10, 20}), x.Zeros([]int{2}, dtype.Float32)
				rows := x.Zeros([]int{1, StepRow}, dtype.Float64)
				used := []*Tensor{p, g, m, rows}[operand]
				for _, y := range ys {
					if err := y.WaitStream(x.Stream()); err != nil {
						t.Fatal(err)
					}
				}
				step := func(y *Exec) {
					TakeStep(y, "SGD", &Step{Op: SGDMomentum, Numbers: make([]float64, SGDMomentum.Numbers), Rows: rows, Which: []int32{0},
						Lists: [][]*Tensor{{p}, {g}, {m}}})
				}
				use := func(y *Exec) {
					if writes {
						y.FillInto(used, 0)
					} else {
						y.MulS(used, 2).Close()
					}
				}
				first, second := use, step
				if stepFirst {
					first, second = step, use
				}
				first(ys[0])
				rec.Reset()
				second(ys[1])
				want := 1
				if !writes && used == g {
					want = 0
				}
				if got := strings.Count(rec.Text(), "StreamWait"); got != want {
					t.Errorf("another stream uses the %s (it writes: %v; the step is first: %v): %d waits, want %d", name, writes,
						stepFirst, got, want)
				}
				for _, v := range []*Tensor{p, g, m, rows} {
					v.Close()
				}
			}
		}
	}
}
