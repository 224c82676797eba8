package core

import (
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/null"
	"tenon.dev/internal/rt"
)

// onNull returns an Exec of a device that does nothing.
func onNull(t *testing.T) *Exec {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(d driver.Device) driver.Device { return null.New(d.Info().Image) }})
	if err != nil {
		t.Fatal(err)
	}
	return New(dev, host)
}

// TestFramesAreLeftEmpty checks that every call leaves its frame empty: the next one never takes its attributes, operands or destinations.
func TestFramesAreLeftEmpty(t *testing.T) {
	x := onNull(t)
	x.Scope(func(x *Exec) {
		a, b := x.Zeros([]int{4, 4}, dtype.Float32), x.Ones([]int{4, 4}, dtype.Float32)
		g := x.Ones([]int{4, 4}, dtype.Float32).SetRequiresGrad(true)
		for name, f := range map[string]func(){ //tenon:unordered each leaves the frames empty
			"a number":                    func() { x.AddSInto(a, b, 2) },
			"a factor":                    func() { x.AddScaled(a, b, 3) },
			"a list":                      func() { x.Sum(a, []int{0}, SumOpt{}) },
			"an attribute of its own":     func() { x.LayerNorm(a, nil, nil, []int{4}, NormOpt{}) },
			"operands in a list":          func() { x.Cat([]*Tensor{a, b}, 0) },
			"a draw":                      func() { x.Rand([]int{3}, dtype.Float32) },
			"a change that is recorded":   func() { y := x.Exp(g); x.MulInto(y, y, b); x.Sum(y, nil, SumOpt{}) },
			"a draw with another operand": func() { x.Dropout(g, 0.5) },
		} {
			f()
			for i, f := range x.s.frames {
				if f.attrs != (attrs{}) || f.drawn.g != nil || f.described != nil || len(f.many)+len(f.altered)+len(f.temps)+
					f.ins+f.outs > 0 {
					t.Errorf("after a call with %s, frame %d has %+v, %v, %v", name, i, f.attrs, f.drawn.g, f.described)
				}
				for _, list := range [][]*Tensor{f.in[:], f.before[:], f.dst[:], f.out, f.many[:cap(f.many)]} {
					for _, o := range list {
						if o != nil {
							t.Errorf("after a call with %s, frame %d has the tensor %v", name, i, o)
						}
					}
				}
			}
		}
	})
}

// TestOutputsOfOneForm checks that operands with the same layout decide the form of an output as broadcasting would.
func TestOutputsOfOneForm(t *testing.T) {
	x := onNull(t)
	x.Scope(func(x *Exec) {
		for _, shape := range [][]int{nil, {0}, {1}, {5}, {2, 3}, {2, 0, 3}, {1, 4, 1}, {2, 3, 4, 5}} {
			a, b := x.Empty(shape, dtype.Int32), x.Empty(shape, dtype.Float32)
			if y := x.Add(a, b); y.form != a.form || y.dt != dtype.Float32 {
				t.Errorf("of %v: %v", a, y)
			}
			if len(shape) > 1 {
				v := x.Transpose(a, 0, 1)
				if y := x.Add(v, v); y.form == nil || !y.form.is(v.shape, x.Add(v, x.Transpose(b, 0, 1)).stride) {
					t.Errorf("of the view %v: %v with strides %v", v, y, y.Stride())
				}
			}
		}
		e := x.Expand(x.Empty([]int{1}, dtype.Float32), 6)
		if y := x.Add(e, e); y.Stride()[0] != 1 || y.Numel() != 6 {
			t.Errorf("of %v with one element: strides %v", e, y.Stride())
		}
	})
}
