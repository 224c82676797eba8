package core

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

var rowCopy, rowCopyInto, rowCopyFromHostInto *row

func init() {
	// rowCopy copies its input to a tensor of the frame's type: row-major if i[0] is 1, channels last if it is 2, else in the input's
	// memory order.
	rowCopy = define(row{Name: "Copy", takes: "t;; order dtype", Torch: "clone", infer: inferCopy, run: runCopy, points: true,
		back: func(b *back) { b.set(0, b.grad(0)) }})
	// rowCopyInto copies input 0, broadcast, to the destination.
	rowCopyInto = define(row{Name: "CopyInto", takes: "src", flags: flagInto, Torch: "copy_", infer: func(f *frame) {
		f.check(f.in[0].fits(f.dst[0]))
		f.newOut(0, dtype.Bool, f.dst[0].shape, nil)
	}, run: runCopy, points: true,
		back: func(b *back) { b.set(0, b.grad(0)) }})
	// rowCopyFromHostInto copies its input, of the processor and not page-locked, to the destination, of the same type, shape and strides
	// and without gaps.
	rowCopyFromHostInto = define(row{Name: "CopyFromHostInto", takes: "src", Torch: "copy_", flags: flagForeign | flagWaits | flagInto,
		run:   runCopyFromHost,
		infer: func(f *frame) { f.newOut(0, f.dst[0].dt, f.dst[0].shape, nil) }})
}

func runCopyFromHost(f *frame) error {
	if err := f.x.s.capture.refuse("copying host data to a tensor"); err != nil {
		return err
	}
	src, dst := f.in[0], f.out[0]
	n := dst.Numel() * dst.dt.Size()
	return f.queue(driverCall{kind: callWrite, dst: driver.Ptr(dst.ptr()),
		host: src.st.dev.Driver().HostView(driver.Ptr(src.ptr()), uint64(n))})
}

func inferCopy(f *frame) {
	t := f.in[0]
	var stride []int
	switch f.i[0] {
	case 0:
		stride = f.layout(t.shape)
	case 2:
		stride = infer.ChannelsLastStrides(t.shape)
	}
	f.newOut(0, f.dt, t.shape, stride)
}

func runCopy(f *frame) error {
	if infer.Numel(f.out[0].shape) == 0 {
		return nil
	}
	outs, ins := f.operandsOf()
	compute := f.in[0].dt
	if f.out[0].dt.IsComplex() && !compute.IsComplex() {
		compute = f.out[0].dt
	}
	return f.pointwise(kernels.Copy, compute, nil, outs, ins)
}

func (x *Exec) copyAs(t *Tensor, dt dtype.DType, rowMajor bool) *Tensor {
	f := x.op(rowCopy, t)
	f.dt = dt
	if rowMajor {
		f.i[0] = 1
	}
	return f.call1()
}

// Clone returns a copy of t, in its memory order if that has no gaps.
func (x *Exec) Clone(t *Tensor) *Tensor { return x.copyAs(t, t.dt, false) }

// Contiguous returns t if it is contiguous, else a row-major copy.
func (x *Exec) Contiguous(t *Tensor) *Tensor {
	if t.IsContiguous() {
		return t
	}
	return x.copyAs(t, t.dt, true)
}

// ChannelsLast returns t [N, C, H, W] if its channels are innermost in memory, else a copy with that layout.
func (x *Exec) ChannelsLast(t *Tensor) *Tensor {
	x.wantDim("ChannelsLast", "the tensor", t, 4)
	if infer.Same(t.stride, infer.ChannelsLastStrides(t.shape)) {
		return t
	}
	f := x.op(rowCopy, t)
	f.dt, f.i[0] = t.dt, 2
	return f.call1()
}

// ToDType returns t if it has type dt, else a converted copy.
func (x *Exec) ToDType(t *Tensor, dt dtype.DType) *Tensor {
	if t.dt == dt {
		return t
	}
	return x.copyAs(t, dt, false)
}

// fits returns an error unless t broadcasts to dst, which it is copied to.
func (t *Tensor) fits(dst *Tensor) error { return infer.FitsInto("the source", t.Shape(), dst.Shape()) }

// CopyInto sets dst's elements to src's, broadcast and converted. src may be on another device. A contiguous src of the processor that has
// dst's type and shape is copied without memory on the device.
func (x *Exec) CopyInto(dst, src *Tensor) {
	if src.st.dev != x.m.stream.Device() {
		if src.st.dev.Host && dst.st.dev == x.m.stream.Device() && !src.IsPinned() && x.sameBytes(dst, src) {
			x.op(rowCopyFromHostInto, src).call1Into(dst)
			return
		}
		x.scoped(func(x *Exec) { x.CopyInto(dst, x.To(src, ToOpt{})) })
		return
	}
	x.op(rowCopyInto, src).call1Into(dst)
}

// Reshape returns t's elements in another shape, one size of which may be -1: a view where possible, else a copy.
func (x *Exec) Reshape(t *Tensor, shape ...int) *Tensor {
	if t.IsContiguous() {
		return x.View(t, shape...)
	}
	f := x.op(rowView, t)
	f.dims = append(f.dims, shape...)
	to, err := infer.View(f.lists[len(f.lists)/2:][:0], f.dims, t.Numel())
	f.check(err)
	_, ok := infer.ViewStrides(f.lists[:0:len(f.lists)/2], t.shape, t.stride, to)
	x.s.leave(f)
	if ok {
		return x.View(t, shape...)
	}
	return x.composite("Reshape", func(x *Exec) *Tensor { return x.View(x.copyAs(t, t.dt, true), shape...) })
}

// toHost and toDevice copy the bytes of contiguous t, and report the copy to a profiler.
func toHost(st *rt.Stream, t *Tensor, b []byte) error {
	src, p := driver.Ptr(t.ptr()), st.Device().Profiler()
	if p == nil {
		return st.Device().Driver().CopyDtoH(b, src, st.Handle())
	}
	return transfer(p, st, "Read", t, len(b), func() error { return st.Device().Driver().CopyDtoH(b, src, st.Handle()) })
}

func toDevice(st *rt.Stream, t *Tensor, b []byte) error {
	dst, p := driver.Ptr(t.ptr()), st.Device().Profiler()
	if p == nil {
		return st.Device().Driver().CopyHtoD(dst, b, st.Handle())
	}
	return transfer(p, st, "Write", t, len(b), func() error { return st.Device().Driver().CopyHtoD(dst, b, st.Handle()) })
}
