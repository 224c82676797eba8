package vexec

import "unsafe"

// turnFunc sets d, cols rows that are ldd elements apart, to the transpose of a, rows rows that are lda elements apart.
type turnFunc func(d, a unsafe.Pointer, rows, cols, ldd, lda int)

// turns maps the size of an element to the function that transposes.
var turns = [9]turnFunc{4: turnPlain[uint32], 8: turnPlain[uint64]}

func turnPlain[T raw](d, a unsafe.Pointer, rows, cols, ldd, lda int) {
	if rows == 0 || cols == 0 {
		return
	}
	const block = 8
	ds, as := lanes[T](d, (cols-1)*ldd+rows), lanes[T](a, (rows-1)*lda+cols)
	for i0 := 0; i0 < rows; i0 += block {
		for j := range cols {
			out := ds[j*ldd:][:rows]
			for i := i0; i < min(i0+block, rows); i++ {
				out[i] = as[i*lda+j]
			}
		}
	}
}
