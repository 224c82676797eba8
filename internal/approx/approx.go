// Package approx computes what two approximate instructions of NVIDIA GPUs return, bit for bit: ex2.approx.ftz.f32 and rcp.approx.ftz.f32.
// So kernels that use them give the same bits on the simulator. It must not depend on how instructions are run.
//
// The hardware evaluates a parabola for each of 64 or 128 intervals, with the square of the argument's lower bits made without its lowest
// columns; Oberman and Siu describe such a unit ("A High-Performance Area-Efficient Multifunction Interpolator", ARITH 2005). The widths of
// its numbers and its coefficients were determined from the results of an H200. On that device the results agree for all 2^32 arguments.
package approx

import "math"

// Parabola has the coefficients of an interval: C0 in quarters of the last place of the result.
type Parabola struct{ C0, C1, C2 int32 }

const (
	fraction = 23
	one      = 1 << fraction
	infinity = 0x7f800000
	nan      = 0x7fffffff
)

// square returns the square of x, which has 17 bits, in units of 2^19: the sum of the products of its bits that are worth at least that.
// With x = 512 h + l, those are products of bits of h, or of one of h and one of l.
func square(x uint32) uint32 {
	h, l := x>>9, x&511
	s := h * h / 2 // without the lowest bit
	s += l >> 8 & -(h >> 1 & 1)
	s += l >> 7 & -(h >> 2 & 1)
	s += l >> 6 & -(h >> 3 & 1)
	s += l >> 5 & -(h >> 4 & 1)
	s += l >> 4 & -(h >> 5 & 1)
	s += l >> 3 & -(h >> 6 & 1)
	s += l >> 2 & -(h >> 7)
	return s
}

// Exp2 returns 2^x as ex2.approx.ftz.f32 does. Its relative error is at most 2^-22. The argument has 23 bits of fraction: the rest is cut
// off. A subnormal argument gives 1, a result below 2^-126 is 0, and a NaN has the bits 0x7fffffff.
func Exp2(x float32) float32 {
	b := math.Float32bits(x)
	e := int(b >> fraction & 255)
	if e >= 127+8 { // at least 256
		switch {
		case b&^(1<<31) > infinity:
			return math.Float32frombits(nan)
		case b>>31 != 0:
			return 0
		}
		return math.Float32frombits(infinity)
	}
	v := b&(one-1) | one
	if e >= 127 {
		v <<= e - 127
	} else {
		v >>= min(127-e, 31)
	}
	if b>>31 != 0 {
		if v&(one-1) == 0 {
			v = -v
		} else {
			v = ^v // and not -v, which takes a longer addition
		}
	}
	n := int32(v) >> fraction
	switch {
	case n >= 128:
		return math.Float32frombits(infinity)
	case n < -126:
		return 0
	}
	t, x17 := &Exp2Table[v>>17&63], v&(1<<17-1)
	const round = 6114 // in units of 2^-15, as the sum
	y := int64(t.C0)<<13 + round + int64(t.C1)*int64(x17) + int64(t.C2)*int64(square(x17))
	return math.Float32frombits(uint32(n+127)<<fraction + uint32(y>>15))
}

// Reciprocal returns 1/x as rcp.approx.ftz.f32 does: at most one unit in the last place from the correctly rounded result. Subnormal
// arguments count as 0, and subnormal results are 0. A NaN has the bits 0x7fffffff.
func Reciprocal(x float32) float32 {
	b := math.Float32bits(x)
	e, sign := int32(b>>fraction&255), b&(1<<31)
	switch {
	case b&^(1<<31) > infinity:
		return math.Float32frombits(nan)
	case e == 255:
		return math.Float32frombits(sign)
	case e == 0:
		return math.Float32frombits(sign | infinity)
	}
	t, x17 := &ReciprocalTable[b>>16&127], b&(1<<16-1)<<1
	const round = 8092 // in units of 2^-17, as the sum
	y := int64(t.C0)<<15 + round + int64(t.C1)<<1*int64(x17) + int64(t.C2)*int64(square(x17))
	// y has 24 bits, or it is 2^24 if x is a power of two.
	bits := (252-e)<<fraction + int32(y>>17)
	if bits < one {
		bits = 0
	}
	return math.Float32frombits(sign | uint32(bits))
}
