package core

import (
	"runtime"
	"sync"
	"weak"

	"tenon.dev/internal/infer"
)

// intList is an immutable list of whole numbers. Equal lists are the same object, so that comparing two means comparing pointers.
type intList struct {
	n    []int
	hash uint64
}

// form is the shape and strides of a tensor. It is immutable, and tensors with the same layout share one, so that comparing two means
// comparing pointers.
type form struct {
	shape, stride []int
	hash          uint64
	numel         int
	// extent is how many elements of storage there are from the first element to the last one, both included.
	extent int
	// contiguous says that the elements are in row-major order without gaps; plain that the strides are those of a new tensor, even in
	// dimensions of size 0 or 1.
	contiguous, plain bool
}

// lies reports whether the elements of f have the places of g's. The strides of dimensions of size 1 do not matter.
func (f *form) lies(g *form) bool {
	return f == g || infer.Same(f.shape, g.shape) && infer.SamePlaces(f.shape, f.stride, g.stride)
}

// interned holds objects that exist only once, by weak pointers: unused ones are collected.
type interned[T any] struct {
	mu sync.Mutex
	by map[uint64][]weak.Pointer[T]
}

// get returns the value with that hash for which same is true, or else a new one from make.
func (in *interned[T]) get(hash uint64, same func(*T) bool, make func() *T) *T {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.by == nil {
		in.by = map[uint64][]weak.Pointer[T]{}
	}
	live := in.by[hash][:0]
	var found *T
	for _, w := range in.by[hash] {
		if p := w.Value(); p != nil {
			live = append(live, w)
			if found == nil && same(p) {
				found = p
			}
		}
	}
	if found == nil {
		found = make()
		live = append(live, weak.Make(found))
		runtime.AddCleanup(found, in.forget, hash)
	}
	in.by[hash] = live
	return found
}

// forget drops the entries of a hash whose values were collected.
func (in *interned[T]) forget(hash uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	live := in.by[hash][:0]
	for _, w := range in.by[hash] {
		if w.Value() != nil {
			live = append(live, w)
		}
	}
	if len(live) == 0 {
		delete(in.by, hash)
		return
	}
	in.by[hash] = live
}

// size returns how many hashes have entries, for tests.
func (in *interned[T]) size() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.by)
}

var (
	allForms interned[form]
	allLists interned[intList]
)

// internCache is a session's cache of the forms, lists and attributes that it used last. It holds a bounded number of entries, by hash.
type internCache struct {
	forms [256]*form
	lists [64]*intList
	attrs [64]*attrs
	// The attributes of the last optimizer step.
	foreach, advance param
	lastNumbers      []float64
	lastList         numberList
}

// mixInts adds numbers to a hash. The multiplier is the odd number nearest to 2^64 over the golden ratio, as in Fibonacci hashing.
func mixInts(h uint64, n []int) uint64 {
	for _, v := range n {
		h = (h ^ uint64(v)) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return h
}

func hashForm(shape, stride []int) uint64 {
	return mixInts(mixInts(uint64(len(shape)), shape), stride)
}

// form returns the form of that shape and those strides; nil strides mean contiguous.
func (c *internCache) form(shape, stride []int) *form {
	var b [8]int
	if stride == nil {
		stride = infer.RowMajor(b[:0], shape)
	}
	h := hashForm(shape, stride)
	slot := &c.forms[h%uint64(len(c.forms))]
	if f := *slot; f != nil && f.hash == h && f.is(shape, stride) {
		return f
	}
	*slot = formOf(shape, stride)
	return *slot
}

// turned returns f with its last two dimensions, which it must have, swapped.
func (c *internCache) turned(f *form) *form {
	var b [16]int
	n := len(f.shape)
	g := append(append(b[:0], f.shape...), f.stride...)
	g[n-2], g[n-1], g[2*n-2], g[2*n-1] = g[n-1], g[n-2], g[2*n-1], g[2*n-2]
	return c.form(g[:n], g[n:])
}

// formOf is internCache.form without a session.
func formOf(shape, stride []int) *form {
	if stride == nil {
		stride = infer.RowMajor(nil, shape)
	}
	h := hashForm(shape, stride)
	return allForms.get(h, func(f *form) bool { return f.is(shape, stride) }, func() *form {
		d := make([]int, 2*len(shape))
		f := &form{shape: d[:len(shape):len(shape)], stride: d[len(shape):], hash: h}
		copy(f.shape, shape)
		copy(f.stride, stride)
		f.numel, f.extent, f.contiguous = infer.Numel(shape), infer.Extent(shape, stride), infer.Contiguous(shape, stride)
		f.plain = infer.Same(stride, infer.RowMajor(nil, shape))
		return f
	})
}

func (f *form) is(shape, stride []int) bool {
	return infer.Same(f.shape, shape) && infer.Same(f.stride, stride)
}

// list returns the list of those numbers, or nil if there are none.
func (c *internCache) list(n []int) *intList {
	if len(n) == 0 {
		return nil
	}
	h := mixInts(uint64(len(n)), n)
	slot := &c.lists[h%uint64(len(c.lists))]
	if l := *slot; l != nil && l.hash == h && infer.Same(l.n, n) {
		return l
	}
	*slot = listOf(n)
	return *slot
}

// listOf is internCache.list without a session.
func listOf(n []int) *intList {
	if len(n) == 0 {
		return nil
	}
	h := mixInts(uint64(len(n)), n)
	return allLists.get(h, func(l *intList) bool { return infer.Same(l.n, n) }, func() *intList {
		return &intList{append([]int(nil), n...), h}
	})
}

// ints returns the numbers, which nobody must change.
func (l *intList) ints() []int {
	if l == nil {
		return nil
	}
	return l.n
}

// geometry is a view's shape, strides and offset over some storage.
type geometry struct {
	shape, stride []int
	offset        int
}

// adjacent is the stride of a list of elements.
var adjacent = []int{1}
