package core

import (
	"sync/atomic"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// Tensor is a handle of an n-dimensional array in device memory: a storage, an element type, and the shape, strides and offset of a view of
// it. All of these are immutable; the elements are not. Its methods never touch the device: operations that do are methods of Exec.
//
// Operations whose names end in Into change the elements of their destination, which may be a view. Gradients follow such changes by
// PyTorch's rules, unless they are made on an Exec of NoGrad; a leaf that requires grad, or a view of one, can be changed only on such an
// Exec.
//
// A tensor made while a scope is open belongs to it and is closed with it; see Exec.Within. Any other is loose: Close it, or leave it to
// the garbage collector, which takes longer.
type Tensor struct {
	st     *storage
	dt     dtype.DType
	out    uint8  // which output of node
	maker  uint16 // the number of the session that made it, 0 for none
	closed lifetime
	offset int // elements from the storage's start
	// For a base, views counts the holders of its history besides the first, and gen the recorded changes of it in place.
	views atomic.Int32
	gen   atomic.Uint32
	*form // shape and strides
	scope *scope

	// The history. A view's may be stale; see derive.
	node *node    // the operation that made it, if gradients flow through it
	leaf *leaf    // the accumulator, if it is a leaf that requires one
	view *lineage // of a view whose base's history matters
}

// fresh is a new tensor with its storage, in one allocation.
type fresh struct {
	Tensor
	own storage
}

// DType returns the element type.
func (t *Tensor) DType() dtype.DType { return t.dt }

// Shape returns the size of every dimension. The caller must not change it.
func (t *Tensor) Shape() []int {
	if t.form == nil {
		return nil
	}
	return t.shape
}

// Stride returns, for every dimension, how many elements apart neighbours are. The caller must not change it.
func (t *Tensor) Stride() []int {
	if t.form == nil {
		return nil
	}
	return t.stride
}

// Dim returns the number of dimensions.
func (t *Tensor) Dim() int { return len(t.Shape()) }

// Size returns the size of dimension i; negative i counts from the end.
func (t *Tensor) Size(i int) int {
	d := i
	if d < 0 {
		d += len(t.shape)
	}
	if d < 0 || d >= len(t.shape) {
		panicAt("Size", fault.Invalid, "%s has no dimension %d; it has %d, numbered from 0", describe(t), i, len(t.shape))
	}
	return t.shape[d]
}

// Numel returns the number of elements.
func (t *Tensor) Numel() int {
	if t.form == nil {
		return 1
	}
	return t.numel
}

// Offset returns the first element's place in the storage, in elements.
func (t *Tensor) Offset() int { return t.offset }

// DataPtr returns the device address of the first element. It is not a Go pointer.
func (t *Tensor) DataPtr() uint64 {
	if t.st.deferral() != 0 {
		t.st.forceOwner("DataPtr")
		Check("DataPtr", (&session{}).barred(t, false))
	}
	t.st.expose()
	return t.ptr()
}

// IsContiguous reports whether the elements are in row-major order without gaps.
func (t *Tensor) IsContiguous() bool { return t.form == nil || t.contiguous }

// Device returns the device that holds the elements.
func (t *Tensor) Device() *rt.Device { return t.st.dev }

// SharesStorage reports whether t and o are views of the same memory.
func (t *Tensor) SharesStorage(o *Tensor) bool { return t.st == o.st }

// Version counts the in-place changes of the storage, which all its views share.
func (t *Tensor) Version() int { return int(t.st.version.Load()) }

// String describes the tensor without reading the device, such as "float32[3 4] on NVIDIA H200", or "… on device 1 (NVIDIA H200)".
func (t *Tensor) String() string {
	if t == nil || t.st == nil {
		return "nil tensor"
	}
	s := describe(t)
	if t.closed.Load() {
		return s + " (closed)"
	}
	s += " on " + placeOf(t.st.dev)
	if t.RequiresGrad() {
		s += " requires grad"
	}
	return s
}

// placeOf names a device in a description: by its name alone if it is the first.
func placeOf(d *rt.Device) string {
	if d.Info().Ordinal == 0 {
		return d.Info().Name
	}
	return d.String()
}

func describe(t *Tensor) string {
	if t == nil {
		return "nil"
	}
	return t.dt.String() + infer.Clipped(t.Shape())
}

// Close releases the handle at once; the memory is freed with its last handle, view or saved use. Closing twice does nothing.
func (t *Tensor) Close() {
	if t == nil || t.st == nil || t.closed.end(0) {
		return
	}
	// If another goroutine is in the scope's session, or has torn it, the scope keeps the handle; closing it again then frees nothing.
	if sc := t.scope; sc != nil && sc.s.gate.free() {
		sc.leave(t)
		sc.s.gate.open()
	}
	if !t.postponed() {
		t.letGo()
	}
}

// close is Close for the library, within the session.
func (t *Tensor) close() { t.closeAs(0) }

// closeAs is close with further bits for the handle's state.
func (t *Tensor) closeAs(how uint32) {
	if t == nil || t.st == nil || t.closed.end(how) {
		return
	}
	if sc := t.scope; sc != nil {
		sc.leave(t)
	}
	if !t.closed.elsewhere() || !t.postponed() {
		t.letGo()
	}
}

// letGo releases everything that a closed handle holds.
func (t *Tensor) letGo() {
	if t.node != nil {
		t.node.dropKept(t)
	}
	if l := t.leaf; l != nil && l.owner == t {
		l.setGrad(nil)
	}
	t.leaf = nil
	if t.view != nil {
		t.forget()
		t.view.base.unshare()
	} else {
		t.unshare()
	}
	// A free fails on a lost device, which the next operation reports, or for want of an event, which the allocator then retries.
	_ = t.st.release()
}

func (t *Tensor) ptr() uint64 { return t.st.ptr + uint64(t.offset*t.dt.Size()) }

// bytesOnce returns the bytes of t's elements. It counts elements that a stride of 0 repeats once.
func bytesOnce(t *Tensor) int64 {
	n := int64(t.dt.Size())
	for i, d := range t.shape {
		if t.stride[i] != 0 || d == 0 {
			n *= int64(d)
		}
	}
	return n
}
