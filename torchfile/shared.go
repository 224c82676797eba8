package torchfile

import (
	"slices"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/origin"
)

// memory identifies what tensors share: the start of a storage, its device, and the element type of the tensors.
type memory struct {
	base   uint64
	device string
	dt     dtype.DType
}

func memoryOf(t *tenon.Tensor) memory {
	return memory{t.DataPtr() - uint64(t.Offset()*t.DType().Size()), t.Device().Name(), t.DType()}
}

// stretch is the data written as one storage: a tensor, or everything from the first to the last element of several tensors that share
// memory.
type stretch struct {
	// only is the tensor if there is one, written in row-major order; any is one of several tensors.
	only, any *tenon.Tensor
	// first and end bound the elements of several tensors, in elements of the storage.
	first, end int
	// key is the storage's number in the file, once it is written there.
	key     int
	written bool
}

// extentOf returns where the elements of t, which is not empty, begin and end in its storage.
func extentOf(t *tenon.Tensor) (first, end int) {
	first, end = t.Offset(), t.Offset()+1
	for d, n := range t.Shape() {
		end += (n - 1) * t.Stride()[d]
	}
	return first, end
}

// add extends the stretch by t.
func (r *stretch) add(t *tenon.Tensor) {
	first, end := extentOf(t)
	switch {
	case r.any == nil:
		r.only, r.any, r.first, r.end = t, t, first, end
		return
	case r.only != nil && identityOf(r.only) != identityOf(t):
		r.only = nil
	}
	r.first, r.end = min(r.first, first), max(r.end, end)
}

// count returns the number of elements written.
func (r *stretch) count() int {
	if r.only != nil {
		return r.only.Numel()
	}
	return r.end - r.first
}

// place returns the offset and strides of t in the data written.
func (r *stretch) place(t *tenon.Tensor) (offset int, stride []int) {
	if r.only == nil {
		return t.Offset() - r.first, t.Stride()
	}
	shape := t.Shape()
	stride = make([]int, len(shape))
	for d, n := len(shape)-1, 1; d >= 0; d-- {
		stride[d] = n
		n *= max(shape[d], 1)
	}
	return 0, stride
}

// bytes reads the elements.
func (r *stretch) bytes(x *tenon.Exec) (b []byte, err error) {
	if r.only != nil {
		return x.Bytes(r.only)
	}
	if r.any.Device() != x.Device() {
		x = x.Host()
	}
	failed := tenon.Try(func() {
		x.NoGrad().Scope(func(x *tenon.Exec) { b, err = x.Bytes(x.AsStrided(r.any, []int{r.count()}, []int{1}, r.first)) })
	})
	if failed != nil {
		return nil, failed
	}
	return b, err
}

// note finds the tensors in a result of plain and those among them that share memory.
func (w *writer) note(v any) {
	switch v := v.(type) {
	case []any:
		w.noteAll(v)
	case Tuple:
		w.noteAll(v)
	case *Dict:
		w.noteAll(v.Values)
	case *tenon.Tensor:
		if v.Numel() == 0 {
			return
		}
		at := memoryOf(v)
		if w.memory[at] == nil {
			w.memory[at] = &stretch{}
		}
		w.memory[at].add(v)
	}
}

func (w *writer) noteAll(vs []any) {
	for _, v := range vs {
		w.note(v)
	}
}

// LoadAll returns several of this file's tensors on x's device. Tensors of one type that share a storage in the file share memory, so that
// an in-place change of one shows in the others. They have the file's strides and occupy the memory from their first to their last element;
// all others are as Load returns them.
func (f *File) LoadAll(x *tenon.Exec, ts ...*Tensor) (out []*tenon.Tensor, err error) {
	defer origin.Located("torchfile.File.LoadAll", &err)
	defer func() {
		if err != nil {
			for _, t := range out {
				t.Close()
			}
			out = nil
		}
	}()
	if err := f.opened(); err != nil {
		return nil, err
	}
	if err := tenon.Try(func() { core.Made((*core.Exec)(x), "torchfile.LoadAll") }); err != nil {
		return nil, err
	}
	type shared struct {
		s  *storage
		dt dtype.DType
	}
	with := map[shared][]*Tensor{}
	for _, t := range ts {
		if t != nil && t.storage != nil && slices.Min(append([]int{1}, t.Shape...)) > 0 {
			k := shared{t.storage, t.DType}
			with[k] = append(with[k], t)
		}
	}
	bases := map[shared]*base{}
	var made []*base
	defer func() {
		for _, b := range made {
			b.t.Close()
		}
	}()
	for _, t := range ts {
		var k shared
		if t != nil {
			k = shared{t.storage, t.DType}
		}
		if len(with[k]) < 2 || t.DType == dtype.Invalid {
			one, err := f.Load(x, t)
			if err != nil {
				return out, err
			}
			out = append(out, one)
			continue
		}
		if bases[k] == nil {
			b, err := f.base(x, with[k])
			if err != nil {
				return out, err
			}
			bases[k], made = b, append(made, b)
		}
		b := bases[k]
		if err := tenon.Try(func() { out = append(out, x.AsStrided(b.t, t.Shape, t.Stride, t.offset-b.first)) }); err != nil {
			return out, err
		}
	}
	return out, nil
}

// base is the memory that tensors of a file share, starting at element first of their storage.
type base struct {
	t     *tenon.Tensor
	first int
}

// base copies the memory that tensors of one storage and type share to x's device.
func (f *File) base(x *tenon.Exec, ts []*Tensor) (*base, error) {
	all := *ts[0]
	end := 0
	for _, t := range ts {
		n, _, _ := t.extent()
		all.offset, end = min(all.offset, t.offset), max(end, t.offset+int(n))
	}
	all.Shape, all.Stride = []int{end - all.offset}, []int{1}
	t, err := f.Load(x, &all)
	if err != nil {
		return nil, fault.Wrap(fault.KindOf(err), err, "the memory of %d tensors", len(ts))
	}
	return &base{t, all.offset}, nil
}
