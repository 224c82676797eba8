package kernels

import (
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

const (
	// maxOperands is the length of Spec.DTypes.
	maxOperands = 10
	// maxDims is the maximum number of dimensions after mergeable neighbours are merged.
	maxDims = 32
	// lane32 keeps 32-bit indexes of a launch below 2^31, including the overshoot of its last block.
	lane32 = 1<<31 - 1<<20
)

// space is a set of dimensions over which a kernel iterates, innermost first, with the strides of count operands.
type space struct {
	nd, count int
	size      [maxDims]int
	stride    [maxOperands][maxDims]int
}

// spaceFull is the error for a space with too many dimensions.
const spaceFull = "the operands need more than 32 dimensions; make them contiguous first"

// open inserts a dimension of the given size at position at; the caller sets its strides. It reports whether there was room.
func (s *space) open(at, size int) bool {
	if s.nd == maxDims {
		return false
	}
	copy(s.size[at+1:s.nd+1], s.size[at:s.nd])
	s.size[at] = size
	for i := range s.count {
		copy(s.stride[i][at+1:s.nd+1], s.stride[i][at:s.nd])
		s.stride[i][at] = 0
	}
	s.nd++
	return true
}

// merge merges adjacent dimensions that are contiguous in all operands and drops those of size 1; at least one dimension remains.
func (s *space) merge() {
	w := -1
	for d := range s.nd {
		if s.size[d] == 1 && (w >= 0 || d < s.nd-1) {
			continue
		}
		even := w >= 0
		for i := 0; even && i < s.count; i++ {
			even = s.stride[i][d] == s.stride[i][w]*s.size[w]
		}
		if even {
			s.size[w] *= s.size[d]
			continue
		}
		w++
		s.size[w] = s.size[d]
		for i := range s.count {
			s.stride[i][w] = s.stride[i][d]
		}
	}
	if w < 0 {
		w, s.size[0] = 0, 1
		for i := range s.count {
			s.stride[i][0] = 0
		}
	}
	s.nd = w + 1
}

// numel returns the product of the sizes.
func (s *space) numel() int {
	n := 1
	for _, d := range s.size[:s.nd] {
		n *= d
	}
	return n
}

// reach returns the maximum distance of an operand's index from its first element, or the number of elements if that is more.
func (s *space) reach() int {
	r := s.numel()
	for i := range s.count {
		e := 0
		for d := range s.nd {
			e += (s.size[d] - 1) * abs(s.stride[i][d])
		}
		r = max(r, e)
	}
	return r
}

func abs(v int) int {
	if v < 0 {
		return -v
	}
	return v
}

// dimsClass returns the smallest number of dimensions that kernels are made for and that is at least nd.
func dimsClass(nd int) int {
	switch {
	case nd <= 2:
		return nd
	case nd <= 4:
		return 4
	case nd <= 8:
		return 8
	}
	return maxDims
}

// packSizes appends the sizes of the first dims dimensions; 32-bit sizes are followed by their dividers. An item is vec elements along the
// innermost dimension.
func (s *space) packSizes(l *Launch, dims, vec, index int) {
	for d := range dims {
		size := 1
		if d < s.nd {
			size = s.size[d]
		}
		if d == 0 {
			size /= vec
		}
		if index == 64 {
			l.u64(uint64(size))
			continue
		}
		v := newDivider(max(1, size))
		l.u32(uint32(size))
		l.u32(v.magic)
		l.u32(v.shift)
	}
}

// packStrides appends dims strides of each operand in slots.
func (s *space) packStrides(l *Launch, dims, vec, index int, slots operandSet) {
	for ; slots != 0; slots &= slots - 1 {
		stride := &s.stride[bits.TrailingZeros16(uint16(slots))]
		for d := range dims {
			v := 0
			if d < s.nd {
				v = stride[d]
			}
			if d == 0 {
				v *= vec
			}
			if index == 64 {
				l.u64(uint64(v))
			} else {
				l.u32(uint32(v))
			}
		}
	}
}

// strider turns the number of an item of a space into the operands' indexes, in a kernel.
type strider struct {
	k *kernel.Builder
	// ix is the type of items and indexes.
	ix             dtype.DType
	dims, slots    int
	nd             kernel.Value
	sizes, strides kernel.Array
}

// indexType returns the type of indexes of the given width in bits.
func indexType(width int) dtype.DType {
	if width == 64 {
		return dtype.Int64
	}
	return dtype.Int32
}

// divmod divides item by the size of dimension d.
func (s *strider) divmod(item, d kernel.Value) (q, r kernel.Value) {
	if s.ix == dtype.Int64 {
		size := s.sizes.Load(d)
		q = item.Div(size)
		return q, item.Sub(q.Mul(size))
	}
	d = d.Mul(s.k.I32(3))
	return divide(item, s.sizes.Load(d).Bitcast(dtype.Int32), s.sizes.Load(d.Add(s.k.I32(1))), s.sizes.Load(d.Add(s.k.I32(2))))
}

// locate returns the index of every slot for an item.
func (s *strider) locate(item kernel.Value) []kernel.Value {
	if s.dims == maxDims {
		return s.walk(item)
	}
	k := s.k
	at := make([]kernel.Value, s.slots)
	for d := range s.dims {
		q, r := item, item
		if d < s.dims-1 {
			if s.ix == dtype.Int64 {
				q, r = s.divmod(item, k.I32(d))
			} else {
				q, r = divide(item, s.sizes.Get(3*d).Bitcast(dtype.Int32), s.sizes.Get(3*d+1), s.sizes.Get(3*d+2))
			}
		}
		for o := range at {
			v := r.Mul(s.strides.Get(o*s.dims + d))
			if d > 0 {
				v = at[o].Add(v)
			}
			at[o] = v
		}
		item = q
	}
	return at
}

// walk is locate as a loop, for any number of dimensions.
func (s *strider) walk(item kernel.Value) []kernel.Value {
	k := s.k
	left := k.Var(item)
	at := make([]kernel.Var, s.slots)
	for o := range at {
		at[o] = k.Var(item.Like(0))
	}
	add := func(r, d kernel.Value) {
		for o := range at {
			at[o].Set(at[o].Get().Add(r.Mul(s.strides.Load(d.Add(k.I32(o * maxDims))))))
		}
	}
	last := s.nd.Sub(k.I32(1))
	k.For(k.I32(0), last, k.I32(1), func(d kernel.Value) {
		q, r := s.divmod(left.Get(), d)
		add(r, d)
		left.Set(q)
	})
	add(left.Get(), last)
	out := make([]kernel.Value, s.slots)
	for o := range out {
		out[o] = at[o].Get()
	}
	return out
}
