package dtype

import (
	"fmt"
	"math"
)

// F16 holds the bits of an IEEE 754 binary16 number.
type F16 uint16

// BF16 holds the bits of a bfloat16 number: the high half of a float32.
type BF16 uint16

// F16FromFloat32 rounds f to nearest, ties to even; overflow gives infinity, and every NaN becomes 0x7fff as on NVIDIA devices.
func F16FromFloat32(f float32) F16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	abs := b & 0x7fffffff
	switch {
	case abs > 0x7f800000:
		return 0x7fff
	case abs >= 0x477ff000: // rounds to 2^16 or more
		return F16(sign | 0x7c00)
	case abs < 0x33000001: // at most half the least subnormal
		return F16(sign)
	case abs < 0x38800000: // subnormal result
		shift := 126 - abs>>23
		m := abs&0x7fffff | 0x800000
		q := m >> shift
		rest, half := m&(1<<shift-1), uint32(1)<<(shift-1)
		if rest > half || rest == half && q&1 == 1 {
			q++
		}
		return F16(sign | uint16(q))
	}
	r := abs + 0xfff + (abs >> 13 & 1) - 0x38000000
	return F16(sign | uint16(r>>13))
}

// Float32 returns h's value, exactly.
func (h F16) Float32() float32 {
	sign := uint32(h&0x8000) << 16
	e, m := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch e {
	case 0:
		f := float32(m) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | m<<13)
	}
	return math.Float32frombits(sign | (e+112)<<23 | m<<13)
}

// String returns the number as fmt prints a float32.
func (h F16) String() string { return fmt.Sprint(h.Float32()) }

// F16FromFloat64 rounds f once to nearest even.
func F16FromFloat64(f float64) F16 { return F16FromFloat32(roundToOdd(f)) }

// BF16FromFloat32 rounds f to nearest, ties to even; every NaN becomes 0x7fff as on NVIDIA devices.
func BF16FromFloat32(f float32) BF16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return 0x7fff
	}
	return BF16((b + 0x7fff + (b >> 16 & 1)) >> 16)
}

// Float32 returns h's value, exactly.
func (h BF16) Float32() float32 { return math.Float32frombits(uint32(h) << 16) }

// String returns the number as fmt prints a float32.
func (h BF16) String() string { return fmt.Sprint(h.Float32()) }

// BF16FromFloat64 rounds f once to nearest even.
func BF16FromFloat64(f float64) BF16 { return BF16FromFloat32(roundToOdd(f)) }

// roundToOdd narrows f so that a second rounding to fewer bits gives the result of a single rounding: truncated, with the last bit set if
// anything was lost (S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd").
func roundToOdd(f float64) float32 {
	r := float32(f)
	if float64(r) == f || f != f || math.IsInf(float64(r), 0) {
		return r
	}
	b := math.Float32bits(r)
	if math.Abs(float64(r)) > math.Abs(f) {
		b--
	}
	return math.Float32frombits(b | 1)
}
