package core

import (
	"math"

	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// ownPackage is the folder of the package that defines most operations.
const ownPackage = "internal/core"

// rows holds every operation by name.
var rows = map[string]*row{}

// define registers an operation.
func define(r row) *row {
	if rows[r.Name] != nil {
		panic("core: operation " + r.Name + " is defined twice")
	}
	r.fit()
	if r.point != nil && r.infer == nil {
		r.infer = inferPoint
	}
	if r.pkg == "" {
		r.pkg = ownPackage
	}
	r.id = rt.RegisterOp(r.Name)
	rows[r.Name] = &r
	return &r
}

// op enters a frame for an operation with the given tensor operands.
func (x *Exec) op(r *row, ins ...*Tensor) *frame {
	f := x.s.enter(x, r)
	f.ins = copy(f.in[:], ins)
	return f
}

// setHole makes input i the scalar v. An integral v counts as an integer for the result's type, so that it does not turn integers into
// floats. Beside a floating-point operand every v does, since it changes no type: calls with other values are then of one structure.
func (f *frame) setHole(i int, v float64) {
	f.ins = max(f.ins, i+1)
	f.in[i] = nil
	f.holes |= 1 << i
	if (v != math.Trunc(v) || math.IsInf(v, 0)) && !f.hasFloats() {
		f.holeFloat |= 1 << i
	}
	f.hole[i] = kernels.Scalar{F: v, I: int64(v)}
}

// hasFloats reports whether an operand has a floating-point or complex type.
func (f *frame) hasFloats() bool {
	for _, t := range f.in[:f.ins] {
		if t != nil && (t.dt.IsFloat() || t.dt.IsComplex()) {
			return true
		}
	}
	return false
}

// withScalar enters a frame whose second operand is the scalar v.
func (x *Exec) withScalar(r *row, a *Tensor, v float64) *frame {
	f := x.op(r, a)
	f.setHole(1, v)
	return f
}

// call1 runs the operation, leaves the frame and returns the first output.
func (f *frame) call1() *Tensor {
	f.call()
	t := f.out[0]
	f.x.s.leave(f)
	return t
}

// call1Into runs an operation whose first output goes to dst.
func (f *frame) call1Into(dst *Tensor) {
	f.dst[0], f.outs = dst, 1
	f.call()
	f.x.s.leave(f)
}

// callMany runs an operation with many outputs, leaves the frame and returns them.
func (f *frame) callMany() []*Tensor {
	f.call()
	out := append([]*Tensor(nil), f.out[:f.outs]...)
	f.x.s.leave(f)
	return out
}

// composite runs f as one operation named name: errors carry the name, and temporaries are closed when it ends.
func (x *Exec) composite(name string, f func(x *Exec) *Tensor) *Tensor {
	s := x.s
	defer s.restore(s.mark())
	s.doing = append(s.doing, name)
	s.push()
	t := f(x)
	s.lift(t)
	return t
}

// compositeMany is composite for operations with several results.
func (x *Exec) compositeMany(name string, f func(x *Exec) []*Tensor) []*Tensor {
	s := x.s
	defer s.restore(s.mark())
	s.doing = append(s.doing, name)
	s.push()
	ts := f(x)
	for _, t := range ts {
		s.lift(t)
	}
	return ts
}
