package core

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// repeated is a launch of a pointwise operation of one kind. Another launch of that kind differs in its addresses and numbers alone, so
// nothing needs to be planned for it.
type repeated struct {
	kind        repeatKind
	fn          driver.Func
	grid, block [3]uint32
	shared      uint32
	waits       bool
}

// repeatKind is what a launch of a pointwise operation depends on besides addresses and numbers, if its operands are dense, of one shape,
// and at multiples of 16 bytes.
type repeatKind struct {
	op      *kernels.PointOp
	dev     *rt.Device
	n       int
	compute dtype.DType
	// types are those of the outputs, then of the inputs; a number has none.
	types [repeatOperands]dtype.DType
}

// repeatOperands is the maximum number of operands of a repeatKind, and repeatSlots the number of launches that a session remembers.
const repeatOperands, repeatSlots = 4, 32

// repeatKind returns the kind of a launch of op, if it has one, and the operands' addresses.
func (f *frame) repeatKind(op *kernels.PointOp, n int) (k repeatKind, ptrs [repeatOperands]uint64, ok bool) {
	form := f.out[0].form
	if op.BuildAt != nil || op.Asserts || f.hosts != 0 || f.described != nil || !form.plain || f.outs != op.Outs || f.ins != op.Ins ||
		f.outs+f.ins > repeatOperands || f.held {
		return k, ptrs, false
	}
	places := uint64(0)
	for i := range f.outs + f.ins {
		var t *Tensor
		if i < f.outs {
			t = f.out[i]
		} else if t = f.in[i-f.outs]; t == nil && f.holes&(1<<(i-f.outs)) != 0 {
			continue
		}
		if t == nil || t.form != form {
			return k, ptrs, false
		}
		k.types[i], ptrs[i] = t.dt, t.ptr()
		places |= ptrs[i]
	}
	k.op, k.dev, k.n, k.compute = op, f.x.m.stream.Device(), n, f.compute
	return k, ptrs, places%16 == 0
}

// keep remembers d, which was a launch of the kind.
func (r *repeated) keep(k *repeatKind, d *driver.Launch) {
	*r = repeated{*k, d.Func, d.Grid, d.Block, d.Shared, d.Waits}
}

// repeatSlot returns the place in the session's list for launches of op's kind.
func (f *frame) repeatSlot(k *repeatKind) *repeated {
	return &f.x.s.repeated[(uint(f.row.id)*7+uint(k.n)*0x9e3779b1>>13+uint(k.types[0]))%repeatSlots]
}

// relaunch launches r with other addresses and numbers.
func (f *frame) relaunch(r *repeated, ptrs *[repeatOperands]uint64, numbers []kernels.Scalar) error {
	kernels.PackRun(&f.launch, r.kind.op, r.kind.compute, r.kind.n, ptrs[:f.outs+f.ins], numbers)
	f.x.s.launches++
	d := f.dl
	d.Func, d.Grid, d.Block, d.Shared, d.Waits = r.fn, r.grid, r.block, r.shared, r.waits
	d.Stream, d.Args = f.x.m.stream.Handle(), f.launch.Args
	if d.Origin != nil {
		d.Origin = nil
	}
	return f.hand()
}
