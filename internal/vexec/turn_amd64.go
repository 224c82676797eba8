package vexec

import "unsafe"

func turn32AVX2(d, a unsafe.Pointer, rows, cols, ldd, lda int) {
	turnBlocks[uint32](d, a, rows, cols, ldd, lda, 8, turn32x8)
}

func turn64AVX2(d, a unsafe.Pointer, rows, cols, ldd, lda int) {
	turnBlocks[uint64](d, a, rows, cols, ldd, lda, 4, turn64x4)
}

// turnBlocks transposes strips of blocks of side x side elements, and the rest in plain Go. strip transposes n blocks; its strides are in
// bytes.
func turnBlocks[T raw](d, a unsafe.Pointer, rows, cols, ldd, lda, side int, strip func(d, a unsafe.Pointer, n, ldd, lda int)) {
	size := int(unsafe.Sizeof(T(0)))
	down, across := rows-rows%side, cols-cols%side
	for i := 0; i < down && across > 0; i += side {
		strip(at(d, i*size), at(a, i*lda*size), across/side, ldd*size, lda*size)
	}
	// Without a rest, its address would lie behind the matrix.
	if across < cols {
		turnPlain[T](at(d, across*ldd*size), at(a, across*size), down, cols-across, ldd, lda)
	}
	if down < rows {
		turnPlain[T](at(d, down*size), at(a, down*lda*size), rows-down, cols, ldd, lda)
	}
}
