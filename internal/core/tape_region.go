package core

import (
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// region is the place of a view in its base. The region rows lay out gradients of a base like the base itself, so that the view's strides
// find its elements.
type region struct {
	// base is the base's type, shape and strides; part are the view's.
	base, part meta
	// offset is the view's first element, counted in its own elements from the base's first.
	offset int
}

// region returns the place of the view t in its base.
func (t *Tensor) region() region {
	b := t.root()
	return region{metaOf(b), metaOf(t), (t.offset*t.dt.Size() - b.offset*b.dt.Size()) / t.dt.Size()}
}

// inside reports whether the region has no elements beyond the base's first and last one.
func (r region) inside() bool {
	end := (r.offset + infer.Extent(r.part.shape, r.part.stride)) * r.part.dt.Size()
	return infer.Numel(r.part.shape) == 0 || r.offset >= 0 && end <= infer.Extent(r.base.shape, r.base.stride)*r.base.dt.Size()
}

// of describes the region of a tensor that begins at ptr and has the base's layout.
func (r region) of(ptr uint64) kernels.Operand {
	return kernels.Operand{Ptr: ptr + uint64(r.offset*r.part.dt.Size()), DType: r.part.dt, Shape: r.part.shape, Stride: r.part.stride}
}

// lies reports whether t has the base's layout.
func (r region) lies(t *Tensor) bool {
	for i, n := range r.base.shape {
		if n > 1 && t.stride[i] != r.base.stride[i] {
			return false
		}
	}
	return true
}

// The derivatives of views and of changes of views; opt is a region. rowRegion returns a copy of the region of its input, a tensor of the
// base's shape; rowSpread returns zeros of the base's shape with its input in the region; rowHollow returns its input, of the base's shape,
// with zeros in the region. rowOverlay exists only as a node, which a recorded change of a view leaves: input 0, the base before, with
// input 1 laid over the region.
var (
	rowRegion, rowSpread, rowHollow *row
	rowOverlay                      = &row{Name: "Overlay"}
)

func init() {
	rowRegion = define(row{Name: "Region", takes: "t;; options", run: runRegion, infer: func(f *frame) {
		p := f.opt.(region).part
		f.newOut(0, p.dt, p.shape, nil)
	}})
	rowSpread = define(row{Name: "Spread", takes: "t;; options", run: runSpread, infer: func(f *frame) {
		b := f.opt.(region).base
		f.newOut(0, b.dt, b.shape, b.stride)
	}})
	rowHollow = define(row{Name: "Hollow", takes: "t;; options", run: runHollow, infer: func(f *frame) {
		b := f.opt.(region).base
		f.newOut(0, b.dt, b.shape, b.stride)
	}})
}

func init() {
	rowRegion.back = func(b *back) { b.set(0, b.x.fromRegion(b.grad(0), b.n.opt.(region))) }
	rowSpread.back = func(b *back) { b.set(0, b.x.regionOp(rowRegion, b.grad(0), b.n.opt.(region)).call1()) }
	rowHollow.back = func(b *back) { b.set(0, b.x.regionOp(rowHollow, b.grad(0), b.n.opt.(region)).call1()) }
	rowOverlay.back = backOverlay
}

// regionOp enters a frame of one of the rows that take a tensor of the base's shape; these rows need its type too.
func (x *Exec) regionOp(r *row, g *Tensor, u region) *frame {
	f := x.op(r, x.ToDType(g, u.base.dt))
	f.opt = u
	return f
}

func backOverlay(b *back) {
	g, u := b.grad(0), b.n.opt.(region)
	if b.need(1) { // first, because g may be overwritten below
		b.set(1, b.x.regionOp(rowRegion, g, u).call1())
	}
	if !b.need(0) {
		return
	}
	f := b.x.regionOp(rowHollow, g, u)
	if b.r != nil && b.r.own(g) && g.dt == u.base.dt && u.lies(g) {
		f.call1Into(g)
		b.set(0, g)
		return
	}
	b.set(0, f.call1())
}

// fromRegion returns zeros of the base's shape with g in the region. Where several elements of the region are one element of the base, that
// gets their sum.
func (x *Exec) fromRegion(g *Tensor, u region) *Tensor {
	g = x.ToDType(g, u.part.dt)
	var repeated, shape, stride []int
	for i, n := range u.part.shape {
		if n > 1 && u.part.stride[i] == 0 {
			repeated = append(repeated, i)
			continue
		}
		shape, stride = append(shape, n), append(stride, u.part.stride[i])
	}
	if repeated != nil {
		v := u
		v.part.form = x.s.made.form(shape, stride)
		return x.fromRegion(x.Sum(g, repeated, SumOpt{}), v)
	}
	if !distinct(shape, stride) || !u.inside() {
		if u.part.dt != u.base.dt {
			x.fail("AsStrided", fault.Unsupported, []*Tensor{g}, "the parts of a complex tensor's view whose elements share memory have "+
				"no derivative after a change in place")
		}
		return x.stridedGrad(g, geometry{u.base.shape, u.base.stride, 0}, geometry{shape, stride, u.offset})
	}
	f := x.op(rowSpread, g)
	f.opt = u
	return f.call1()
}

// laid returns the address of t's elements in the base's layout: where they are, or in workspace.
func (f *frame) laid(t *Tensor, u region) (uint64, error) {
	if u.lies(t) {
		return t.ptr(), nil
	}
	ptr, err := f.Workspace(infer.Extent(u.base.shape, u.base.stride) * t.dt.Size())
	if err != nil {
		return 0, err
	}
	return ptr, f.copyTo(kernels.Operand{Ptr: ptr, DType: t.dt, Shape: u.base.shape, Stride: u.base.stride}, operand(t))
}

func runRegion(f *frame) error {
	if f.out[0].Numel() == 0 {
		return nil
	}
	u := f.opt.(region)
	ptr, err := f.laid(f.in[0], u)
	if err != nil {
		return err
	}
	return f.copyTo(operand(f.out[0]), u.of(ptr))
}

func runSpread(f *frame) error {
	out, u := f.out[0], f.opt.(region)
	if out.st.bytes == 0 {
		return nil
	}
	if infer.Numel(u.part.shape)*u.part.dt.Size() != out.st.bytes {
		if err := f.Memset(out.ptr(), 0, out.st.bytes); err != nil {
			return err
		}
	}
	if infer.Numel(u.part.shape) == 0 {
		return nil
	}
	return f.copyTo(u.of(out.ptr()), operand(f.in[0]))
}

func runHollow(f *frame) error {
	out, u := f.out[0], f.opt.(region)
	if out.Numel() == 0 {
		return nil
	}
	if out != f.in[0] {
		if err := f.copyTo(operand(out), operand(f.in[0])); err != nil {
			return err
		}
	}
	if infer.Numel(u.part.shape) == 0 {
		return nil
	}
	return kernels.Pointwise(f, kernels.Fill, u.part.dt, append(f.scalarB[:0], kernels.Scalar{}), []kernels.Operand{u.of(out.ptr())}, nil)
}

func (region) param() {}
