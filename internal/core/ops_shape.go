package core

import (
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// Views and copies by shape that are composed of the views in ops_view.go.

// Ravel returns t's elements as a contiguous vector in row-major order: a view of t if that is contiguous, else a copy.
func (x *Exec) Ravel(t *Tensor) *Tensor {
	if t.IsContiguous() {
		return x.View(t, -1)
	}
	return x.composite("Ravel", func(x *Exec) *Tensor { return x.View(x.copyAs(t, t.dt, true), -1) })
}

// Flatten returns t with dimensions from the first to the second of dims, by default 0 and -1, joined to one: a view where possible, else
// a copy. Negative dimensions count from the end; a 0-d tensor becomes a vector of one element.
func (x *Exec) Flatten(t *Tensor, dims ...int) *Tensor {
	n, ends := len(t.shape), Ints("Flatten", "the first and last dimension", dims, 0, -1)
	s, e := x.dimOf("Flatten", t, ends[0]), x.dimOf("Flatten", t, ends[1])
	if s > e {
		x.fail("Flatten", fault.Invalid, []*Tensor{t}, "the first dimension comes after the last; give them in order")
	}
	if n == 0 {
		return x.Reshape(t, 1)
	}
	shape := append([]int(nil), t.shape[:s]...)
	shape = append(append(shape, infer.Numel(t.shape[s:e+1])), t.shape[e+1:]...)
	return x.Reshape(t, shape...)
}

// Unflatten returns the view of t with dimension dim divided into the given sizes, one of which may be -1.
func (x *Exec) Unflatten(t *Tensor, dim int, sizes ...int) *Tensor {
	d := x.dimOf("Unflatten", t, dim)
	if len(t.shape) == 0 || len(sizes) == 0 {
		x.fail("Unflatten", fault.Invalid, []*Tensor{t}, "unflatten needs a dimension and sizes for it")
	}
	return x.View(t, slices.Replace(slices.Clone(t.shape), d, d+1, x.fitSizes("Unflatten", t, sizes, t.shape[d])...)...)
}

// fitSizes replaces one -1 in sizes so that their product is n.
func (x *Exec) fitSizes(op string, t *Tensor, sizes []int, n int) []int {
	sizes = slices.Clone(sizes)
	known, hole := 1, -1
	for i, s := range sizes {
		if s == -1 && hole < 0 {
			hole = i
			continue
		}
		known *= s
	}
	if hole >= 0 && known > 0 && n%known == 0 {
		sizes[hole] = n / known
		known = n
	}
	if known != n {
		x.fail(op, fault.Invalid, []*Tensor{t}, "Provided sizes %v don't multiply up to the size of dim, %d", sizes, n)
	}
	return sizes
}

// dimOf converts a dimension of t, which may count from the end, to 0 … n-1.
func (x *Exec) dimOf(op string, t *Tensor, d int) int {
	d, err := infer.Dim(d, len(t.shape))
	x.refuse(op, err, t)
	return d
}

// T returns the transposed view of a matrix, or a view of t itself if it has fewer dimensions.
func (x *Exec) T(t *Tensor) *Tensor {
	switch len(t.shape) {
	case 0, 1:
		return x.Permute(t, infer.DimsUpTo(len(t.shape))...)
	case 2:
		return x.Transpose(t, 0, 1)
	}
	x.fail("T", fault.Invalid, []*Tensor{t}, "T takes a tensor of at most 2 dimensions, but this one has %d; use x.Transpose", len(t.shape))
	return nil
}

// MoveDim returns the view in which the dimensions source are moved to the positions destination; the others keep their order.
func (x *Exec) MoveDim(t *Tensor, source, destination []int) *Tensor {
	n := len(t.shape)
	if len(source) != len(destination) {
		x.fail("MoveDim", fault.Invalid, []*Tensor{t}, "movedim: Invalid source or destination dims: source (%v dims) should contain "+
			"the same number of dims as destination (%v dims)", source, destination)
	}
	perm := make([]int, n)
	for i := range perm {
		perm[i] = -1
	}
	used := make([]bool, max(n, 1))
	for i := range source {
		s, d := x.dimOf("MoveDim", t, source[i]), x.dimOf("MoveDim", t, destination[i])
		if n == 0 {
			continue
		}
		if used[s] || perm[d] >= 0 {
			x.fail("MoveDim", fault.Invalid, []*Tensor{t}, "movedim: repeated dim in `source` (%v) or `destination` (%v)",
				source, destination)
		}
		used[s], perm[d] = true, s
	}
	next := 0
	for i := range perm {
		if perm[i] >= 0 {
			continue
		}
		for used[next] {
			next++
		}
		perm[i] = next
		next++
	}
	return x.Permute(t, perm...)
}

// ExpandAs returns the view of t expanded to o's shape.
func (x *Exec) ExpandAs(t, o *Tensor) *Tensor { return x.Expand(t, o.shape...) }

// Repeat returns t repeated times[i] times along dimension i; dimensions that t lacks come first.
func (x *Exec) Repeat(t *Tensor, times ...int) *Tensor {
	lead := len(times) - len(t.shape)
	if lead < 0 {
		x.fail("Repeat", fault.Invalid, []*Tensor{t},
			"Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
	}
	return x.composite("Repeat", func(x *Exec) *Tensor {
		// Every dimension becomes two: the copy, and the index within it.
		var single, wide, final []int
		for i, n := range times {
			d := 1
			if i >= lead {
				d = t.shape[i-lead]
			}
			if n < 0 {
				x.fail("Repeat", fault.Invalid, []*Tensor{t}, "the times to repeat must not be negative, but are %v", times)
			}
			single, wide, final = append(single, 1, d), append(wide, n, d), append(final, n*d)
		}
		return x.View(x.copyAs(x.Expand(x.Reshape(t, single...), wide...), t.dt, true), final...)
	})
}

// Tile is Repeat, with 1 for missing leading times.
func (x *Exec) Tile(t *Tensor, times ...int) *Tensor {
	for len(times) < len(t.shape) {
		times = append([]int{1}, times...)
	}
	return x.Repeat(t, times...)
}

// Narrow returns the view of length elements of dimension dim, starting at start.
func (x *Exec) Narrow(t *Tensor, dim, start, length int) *Tensor {
	d := x.dimOf("Narrow", t, dim)
	if len(t.shape) == 0 {
		x.fail("Narrow", fault.Invalid, []*Tensor{t}, "Narrow cannot be applied to a 0-dim tensor")
	}
	n := t.shape[d]
	if start < -n || start > n {
		x.fail("Narrow", fault.Invalid, []*Tensor{t}, "start out of range (expected to be in range of [%d, %d], but got %d)", -n, n, start)
	}
	if start < 0 {
		start += n
	}
	if length < 0 {
		x.fail("Narrow", fault.Invalid, []*Tensor{t}, "length must be non-negative")
	}
	if start+length > n {
		x.fail("Narrow", fault.Invalid, []*Tensor{t}, "start (%d) + length (%d) exceeds dimension size (%d)", start, length, n)
	}
	return x.Slice(t, d, start, start+length, 1)
}

// AtLeast1D returns t, or a vector if t has no dimensions.
func (x *Exec) AtLeast1D(t *Tensor) *Tensor {
	if len(t.shape) > 0 {
		return t
	}
	return x.Reshape(t, 1)
}
