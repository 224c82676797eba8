package vexec

import "unsafe"

// microFunc adds to rows x cols of c a product of depth k; strides are in bytes.
type microFunc func(c, a, b unsafe.Pointer, k, ldc, rs, cs, ldb int)

func dotF32AVX512(c, a, b unsafe.Pointer, m, n, k, rs, cs int) {
	dotBlocks[float32](c, a, b, m, n, k, rs, cs, 8, 32, dotF32x8x32, 16, dotF32x8x16)
}

func dotF64AVX512(c, a, b unsafe.Pointer, m, n, k, rs, cs int) {
	dotBlocks[float64](c, a, b, m, n, k, rs, cs, 8, 16, dotF64x8x16, 8, dotF64x8x8)
}

func dotF32AVX2(c, a, b unsafe.Pointer, m, n, k, rs, cs int) {
	dotBlocks[float32](c, a, b, m, n, k, rs, cs, 4, 16, dotF32x4x16, 8, dotF32x4x8)
}

func dotF64AVX2(c, a, b unsafe.Pointer, m, n, k, rs, cs int) {
	dotBlocks[float64](c, a, b, m, n, k, rs, cs, 4, 8, dotF64x4x8, 4, dotF64x4x4)
}

// dotBlocks covers the result with blocks of rows x wide columns, then rows x narrow, and computes the rest in plain Go.
func dotBlocks[T float32 | float64](c, a, b unsafe.Pointer, m, n, k, rs, cs, rows, wide int, wideFunc microFunc, narrow int,
	narrowFunc microFunc) {
	size := int(unsafe.Sizeof(T(0)))
	full := m - m%rows
	j := 0
	for ; j+narrow <= n; j += narrow {
		f := narrowFunc
		if j+wide <= n {
			f = wideFunc
		}
		for i := 0; i < full; i += rows {
			f(unsafe.Add(c, (i*n+j)*size), unsafe.Add(a, i*rs*size), unsafe.Add(b, j*size), k, n*size, rs*size, cs*size, n*size)
		}
		if j+wide <= n {
			j += wide - narrow
		}
	}
	C, A, B := lanes[T](c, m*n), lanes[T](a, (m-1)*rs+(k-1)*cs+1), lanes[T](b, k*n)
	if j < n {
		dotRest(C, A, B, full, j, n, k, 0, rs, cs)
	}
	if full < m {
		dotRest(C[full*n:], A, B, m-full, 0, n, k, full*rs, rs, cs)
	}
}
