package vexec

import "unsafe"

// near bounds the offsets of a gather in machine code, so that sums of 32-bit indexes do not wrap into range.
const near = 1 << 30

// gather4 gathers 4-byte elements: most of them in machine code, the rest and out-of-bounds ones in plain Go.
func gather4[I int32 | int64](fast func(d, idx, mem, b unsafe.Pointer, n, off, limit int) int) gatherFunc {
	return func(d, from unsafe.Pointer, step int, idx unsafe.Pointer, mem []byte, off, scale int64, b []uint8, n int) int {
		done := 0
		if limit := len(mem) / 4; n >= 32 && scale == 4 && off&3 == 0 && off > -near && off < near && limit > 0 && limit < near {
			done = fast(d, idx, unsafe.Pointer(unsafe.SliceData(mem)), unsafe.Pointer(unsafe.SliceData(b)), n, int(off/4), limit)
			if done == n {
				return n
			}
		}
		var z I
		if b != nil {
			b = b[done:]
		}
		return done + gather[uint32, I](unsafe.Add(d, 4*done), from, step, unsafe.Add(idx, done*int(unsafe.Sizeof(z))), mem,
			off, scale, b, n-done)
	}
}
