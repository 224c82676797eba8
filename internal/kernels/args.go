package kernels

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// pad appends zeros until the size of the arguments is a multiple of a, a power of two.
func (l *Launch) pad(a int) {
	for len(l.Args)&(a-1) != 0 {
		l.Args = append(l.Args, 0)
	}
}

// room appends n bytes for the caller to fill.
func (l *Launch) room(n int) []byte {
	at := len(l.Args)
	l.Args = slices.Grow(l.Args, n)[:at+n]
	return l.Args[at:]
}

func (l *Launch) u64(v uint64) {
	l.pad(8)
	l.Args = binary.LittleEndian.AppendUint64(l.Args, v)
}

func (l *Launch) u32(v uint32) {
	l.pad(4)
	l.Args = binary.LittleEndian.AppendUint32(l.Args, v)
}

func (l *Launch) f32(v float32) { l.u32(math.Float32bits(v)) }

func (l *Launch) f64(v float64) { l.u64(math.Float64bits(v)) }

// Scalar is a number that a kernel gets as a launch parameter. F and Im are for floating-point and complex computation; I is for integers
// and bool, so that 64-bit integers stay exact.
type Scalar struct {
	F, Im float64
	I     int64
}

// FloatScalar returns v for any type of computation. I is v truncated and saturated, 0 for NaN.
func FloatScalar(v float64) Scalar {
	s := Scalar{F: v}
	switch {
	case v != v:
	case v >= 1<<63:
		s.I = math.MaxInt64
	case v < -1<<63:
		s.I = math.MinInt64
	default:
		s.I = int64(v)
	}
	return s
}

// IntScalar returns v for any type of computation.
func IntScalar(v int64) Scalar { return Scalar{F: float64(v), I: v} }

// scalar appends s in the form in which declareScalar declares it for the same type.
func (l *Launch) scalar(s *Scalar, t dtype.DType) {
	switch t {
	case dtype.Float32:
		l.f32(float32(s.F))
	case dtype.Float64:
		l.f64(s.F)
	case dtype.Complex64:
		l.f32(float32(s.F))
		l.f32(float32(s.Im))
	case dtype.Complex128:
		l.f64(s.F)
		l.f64(s.Im)
	default:
		l.u64(uint64(s.I))
	}
}

// divider holds the constants that replace a division of numbers below 2^31 by a constant d: q = (hi(n*magic) + n) >> shift (T. Granlund,
// P. Montgomery, "Division by invariant integers using multiplication", PLDI 1994, figure 4.1).
type divider struct{ magic, shift uint32 }

func newDivider(d int) divider {
	s := uint32(bits.Len64(uint64(d - 1)))
	m := (uint64(1)<<32)*(uint64(1)<<s-uint64(d))/uint64(d) + 1
	return divider{uint32(m), s}
}

// divide returns n / d and n % d for an Int32 n ≥ 0. magic and shift (Uint32) are the divider of d, an Int32.
func divide(n, d, magic, shift kernel.Value) (q, r kernel.Value) {
	u := n.Bitcast(dtype.Uint32)
	q = u.MulHi(magic).Add(u).Shr(shift).Bitcast(dtype.Int32)
	return q, n.Sub(q.Mul(d))
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// opmath returns the type in which values of t are computed: Float32 for the halves, otherwise t.
func opmath(t dtype.DType) dtype.DType {
	if t == dtype.Float16 || t == dtype.BFloat16 {
		return dtype.Float32
	}
	return t
}
