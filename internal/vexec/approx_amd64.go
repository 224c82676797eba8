package vexec

import (
	"unsafe"

	"tenon.dev/internal/approx"
)

// packParabolas packs each interval's coefficients in two dwords. The first has C0 divided by 4, the remainder from bit rest on, and in its
// last bit whether the magnitude of C1 is 2^15 or more. The second has the other 15 bits of that magnitude in its lower half, and C2.
func packParabolas(table []approx.Parabola, rest int) (packed [][2]uint32) {
	for _, p := range table {
		slope := uint32(max(p.C1, -p.C1))
		packed = append(packed, [2]uint32{uint32(p.C0)>>2 | uint32(p.C0)&3<<rest | slope>>15<<31, slope&(1<<15-1) | uint32(p.C2)<<16})
	}
	return packed
}

var (
	exp2Pairs       = packParabolas(approx.Exp2Table[:], 24)
	reciprocalPairs = packParabolas(approx.ReciprocalTable[:], 26)
)

func exp2AVX2(d, a, _, _ unsafe.Pointer, n int) { exp2Lanes(d, a, unsafe.Pointer(&exp2Pairs[0]), n) }

func reciprocalAVX2(d, a, _, _ unsafe.Pointer, n int) {
	reciprocalLanes(d, a, unsafe.Pointer(&reciprocalPairs[0]), n)
}
