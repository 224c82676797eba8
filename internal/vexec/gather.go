package vexec

import "unsafe"

// gatherFunc moves n lanes between registers and mem at off + index*scale. It returns how many lanes it moved before one was outside mem or
// misaligned. Loads use d; stores use from, step bytes apart. Lanes whose byte in b (if not nil) is 0 are skipped.
type gatherFunc func(d, from unsafe.Pointer, step int, idx unsafe.Pointer, mem []byte, off, scale int64, b []uint8, n int) int

// scatterFunc copies the lanes of a, step bytes apart, whose byte in b is 1 to d.
type scatterFunc func(d, a unsafe.Pointer, step int, b []uint8)

// stridedFunc copies n elements, dstep bytes apart in d and step bytes apart in a.
type stridedFunc func(d, a unsafe.Pointer, dstep, step, n int)

// Types for the lanes of wide values, for those that accesses move and those that operations make of them.
type (
	pair [2]uint64
	quad [4]uint64
	oct  [8]uint64
)

var (
	gathers = [17][2]gatherFunc{
		1: {gather[uint8, int32], gather[uint8, int64]}, 2: {gather[uint16, int32], gather[uint16, int64]},
		4: {gather[uint32, int32], gather[uint32, int64]}, 8: {gather[uint64, int32], gather[uint64, int64]},
		16: {gather[pair, int32], gather[pair, int64]},
	}
	scatters = [17][2]gatherFunc{
		1: {scatter[uint8, int32], scatter[uint8, int64]}, 2: {scatter[uint16, int32], scatter[uint16, int64]},
		4: {scatter[uint32, int32], scatter[uint32, int64]}, 8: {scatter[uint64, int32], scatter[uint64, int64]},
		16: {scatter[pair, int32], scatter[pair, int64]},
	}
	maskedMoves = [129]scatterFunc{1: maskedMove[uint8], 2: maskedMove[uint16], 4: maskedMove[uint32], 8: maskedMove[uint64],
		16: maskedMove[pair], 32: maskedMove[quad], 64: maskedMove[oct], 128: maskedMove[[16]uint64]}
	stridedMoves = [129]stridedFunc{1: stridedMove[uint8], 2: stridedMove[uint16], 4: stridedMove[uint32], 8: stridedMove[uint64],
		16: stridedMove[pair], 32: stridedMove[quad], 64: stridedMove[oct], 128: stridedMove[[16]uint64]}
)

func gather[T any, I int32 | int64](d, _ unsafe.Pointer, _ int, idx unsafe.Pointer, mem []byte, off, scale int64, b []uint8, n int) int {
	var z T
	size := int64(unsafe.Sizeof(z))
	align := uint64(size - 1)
	if scale == size {
		align = 0 // the caller has checked the alignment
	}
	ds, is := lanes[T](d, n), lanes[I](idx, n)
	most := uint64(int64(len(mem)) - size)
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if b == nil {
		for i := 0; i < n; i++ {
			u := uint64(off + int64(is[i])*scale)
			if u > most || u&align != 0 {
				return i
			}
			ds[i] = *(*T)(unsafe.Add(p, u))
		}
		return n
	}
	b = b[:n]
	for i := 0; i < n; i++ {
		if b[i] == 0 {
			continue
		}
		u := uint64(off + int64(is[i])*scale)
		if u > most || u&align != 0 {
			return i
		}
		ds[i] = *(*T)(unsafe.Add(p, u))
	}
	return n
}

func scatter[T any, I int32 | int64](_, from unsafe.Pointer, step int, idx unsafe.Pointer, mem []byte, off, scale int64,
	b []uint8, n int) int {
	var z T
	size := int64(unsafe.Sizeof(z))
	align := uint64(size - 1)
	if scale == size {
		align = 0
	}
	is := lanes[I](idx, n)
	most := uint64(int64(len(mem)) - size)
	p := unsafe.Pointer(unsafe.SliceData(mem))
	for i := 0; i < n; i++ {
		if b != nil && b[i] == 0 {
			continue
		}
		u := uint64(off + int64(is[i])*scale)
		if u > most || u&align != 0 {
			return i
		}
		*(*T)(unsafe.Add(p, u)) = *(*T)(unsafe.Add(from, i*step))
	}
	return n
}

func maskedMove[T any](d, a unsafe.Pointer, step int, b []uint8) {
	ds := lanes[T](d, len(b))
	if step == 0 {
		v := *(*T)(a)
		for i, m := range b {
			if m != 0 {
				ds[i] = v
			}
		}
		return
	}
	as := lanes[T](a, len(b))
	for i, m := range b {
		if m != 0 {
			ds[i] = as[i]
		}
	}
}

func stridedMove[T any](d, a unsafe.Pointer, dstep, step, n int) {
	var z T
	size := int(unsafe.Sizeof(z))
	switch {
	case step == 0:
		v := *(*T)(a)
		if dstep == size {
			for i, ds := 0, lanes[T](d, n); i < n; i++ {
				ds[i] = v
			}
			return
		}
		for i := 0; i < n; i++ {
			*(*T)(unsafe.Add(d, i*dstep)) = v
		}
	case dstep == size && step == size:
		copy(lanes[T](d, n), lanes[T](a, n))
	case dstep == size:
		ds := lanes[T](d, n)
		for i, at := 0, 0; i < n; i++ {
			ds[i] = *(*T)(unsafe.Add(a, at))
			at += step
		}
	default:
		for i, at, dat := 0, 0, 0; i < n; i++ {
			*(*T)(unsafe.Add(d, dat)) = *(*T)(unsafe.Add(a, at))
			at += step
			dat += dstep
		}
	}
}

// storeMasked stores the lanes whose byte in b is 1.
func storeMasked(size int32, d, a unsafe.Pointer, dstep, step int, b []uint8) {
	if dstep == int(size) {
		maskedMoves[size](d, a, step, b)
		return
	}
	move := stridedMoves[size]
	for i, m := range b {
		if m != 0 {
			move(unsafe.Add(d, i*dstep), unsafe.Add(a, i*step), dstep, step, 1)
		}
	}
}
