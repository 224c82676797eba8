package vexec

import (
	"unsafe"

	"tenon.dev/dtype"
)

// dotFunc adds to c [m, n] the product of a [m, k], whose element (i, l) is at i*rs + l*cs, and b [k, n]. c and b are stored by rows. Every
// element of c adds its k products in ascending order.
type dotFunc func(c, a, b unsafe.Pointer, m, n, k, rs, cs int)

// dots maps the type in which tiles are kept to their product.
var dots = map[dtype.DType]dotFunc{dtype.Float32: dotPlain[float32], dtype.Float64: dotPlain[float64], dtype.Int32: dotPlain[int32]}

// dotPlain keeps 2 rows by 4 columns of c in registers.
func dotPlain[T float32 | float64 | int32](c, a, b unsafe.Pointer, m, n, k, rs, cs int) {
	C, A, B := lanes[T](c, m*n), lanes[T](a, (m-1)*rs+(k-1)*cs+1), lanes[T](b, k*n)
	i := 0
	for ; i+2 <= m; i += 2 {
		j := 0
		for ; j+4 <= n; j += 4 {
			c0, c1 := C[i*n+j:][:4], C[(i+1)*n+j:][:4]
			s00, s01, s02, s03 := c0[0], c0[1], c0[2], c0[3]
			s10, s11, s12, s13 := c1[0], c1[1], c1[2], c1[3]
			x, y := i*rs, (i+1)*rs
			for l := 0; l < k; l++ {
				bl := B[l*n+j:][:4]
				a0, a1 := A[x], A[y]
				s00 += T(a0 * bl[0])
				s01 += T(a0 * bl[1])
				s02 += T(a0 * bl[2])
				s03 += T(a0 * bl[3])
				s10 += T(a1 * bl[0])
				s11 += T(a1 * bl[1])
				s12 += T(a1 * bl[2])
				s13 += T(a1 * bl[3])
				x += cs
				y += cs
			}
			c0[0], c0[1], c0[2], c0[3] = s00, s01, s02, s03
			c1[0], c1[1], c1[2], c1[3] = s10, s11, s12, s13
		}
		dotRest(C[i*n:], A, B, 2, j, n, k, i*rs, rs, cs)
	}
	if i < m {
		dotRest(C[i*n:], A, B, m-i, 0, n, k, i*rs, rs, cs)
	}
}

// dotRest computes the columns from j on for some rows.
func dotRest[T float32 | float64 | int32](C, A, B []T, rows, j, n, k, first, rs, cs int) {
	for i := range rows {
		for j := j; j < n; j++ {
			s := C[i*n+j]
			for l := range k {
				s += T(A[first+i*rs+l*cs] * B[l*n+j])
			}
			C[i*n+j] = s
		}
	}
}
