package vexec

import (
	"math"
	"math/bits"
	"unsafe"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

//go:generate go run ./lanegen

// kern computes n lanes of an operation: d from operands a, b and c, as far as the operation has them. Each points at the first lane, or at
// one scalar that all lanes share; the table says which form takes which. d may be an operand of the same lane size. A kernel may also
// compute up to laneSlack-1 more lanes of d: registers have room for them, and they hold nothing else.
type kern func(d, a, b, c unsafe.Pointer, n int)

// laneSlack is the number of additional lanes at the end of every register.
const laneSlack = 32

// opTable holds the kernel of each operation on each type. The last index says which operands are scalars. Two operands: none, second,
// first; three: none, second, third, both. OpGet stands for moves (lanes, or one scalar to all), OpSpecial for counting from a in steps of
// b.
type opTable [64][16][4]kern

// cvtTable holds the kernels that convert from the first type to the second.
type cvtTable [16][16]kern

var (
	// plainOps and plainCvts compute exactly n lanes; they also serve scalars, with n = 1.
	plainOps  opTable
	plainCvts cvtTable
	// laneOps and laneCvts are the fastest kernels on this machine.
	laneOps  opTable
	laneCvts cvtTable
)

func init() {
	fillTables(&plainOps, &plainCvts)
	laneOps, laneCvts = plainOps, plainCvts
	accelerate()
	for _, t := range []dtype.DType{dtype.Int32, dtype.Uint32} {
		laneOps[kir.OpDiv][t][1] = byOne[int32](laneOps[kir.OpDiv][t][1], mov[uint32])
	}
	for _, t := range []dtype.DType{dtype.Int64, dtype.Uint64} {
		laneOps[kir.OpDiv][t][1] = byOne[int64](narrowDivision(laneOps[kir.OpDiv][t][1]), mov[uint64])
	}
}

type integer interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

type float interface{ ~float32 | ~float64 }

type number interface{ integer | float }

type raw interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64
}

func lanes[T any](p unsafe.Pointer, n int) []T { return unsafe.Slice((*T)(p), n) }

// mov copies lanes.
func mov[T raw](d, a, _, _ unsafe.Pointer, n int) { copy(lanes[T](d, n), lanes[T](a, n)) }

// fill sets all lanes to a scalar.
func fill[T raw](d, a, _, _ unsafe.Pointer, n int) {
	v := *(*T)(a)
	ds := lanes[T](d, n)
	for i := range ds {
		ds[i] = v
	}
}

// count sets lanes to a, a+b, a+2b and so on.
func count[T uint32 | uint64](d, a, b, _ unsafe.Pointer, n int) {
	v, step := *(*T)(a), *(*T)(b)
	ds := lanes[T](d, n)
	for i := range ds {
		ds[i] = v
		v += step
	}
}

// cvt converts between numbers if Go's conversion is that of the IR.
func cvt[F, T number](d, a, _, _ unsafe.Pointer, n int) {
	as := lanes[F](a, n)
	for i, ds := 0, lanes[T](d, n); i < n; i++ {
		ds[i] = T(as[i])
	}
}

func toBool[F number](d, a, _, _ unsafe.Pointer, n int) {
	as := lanes[F](a, n)
	for i, ds := 0, lanes[uint8](d, n); i < n; i++ {
		ds[i] = bit(as[i] != 0)
	}
}

// byOne returns a division by a scalar with a fast path for 1, which is the usual value of strides and dilations.
func byOne[T int32 | int64](divide, move kern) kern {
	return func(d, a, b, c unsafe.Pointer, n int) {
		if *(*T)(b) == 1 {
			move(d, a, nil, nil, n)
			return
		}
		divide(d, a, b, c, n)
	}
}

// narrowDivision returns a 64-bit division by a scalar that uses the faster 32-bit instruction if the numbers fit.
func narrowDivision(divide kern) kern {
	return func(dp, ap, bp, _ unsafe.Pointer, n int) {
		as := lanes[uint64](ap, n)
		b := *(*uint64)(bp)
		all := b
		for _, v := range as {
			all |= v
		}
		if all>>32 != 0 || b == 0 {
			divide(dp, ap, bp, nil, n)
			return
		}
		ds, b32 := lanes[uint64](dp, n), uint32(b)
		for i, v := range as {
			ds[i] = uint64(uint32(v) / b32)
		}
	}
}

func bit(b bool) uint8 {
	var r uint8
	if b {
		r = 1
	}
	return r
}

func pick[T raw](c uint8, a, b T) T {
	if c != 0 {
		b = a
	}
	return b
}

func quo[T integer](a, b T) T {
	if b == 0 {
		return ^T(0)
	}
	return a / b
}

func rem[T integer](a, b T) T {
	if b == 0 {
		return a
	}
	return a % b
}

func minFloat[T float](a, b T) T {
	if a < b || b != b {
		return a
	}
	if a == b && 1/a < 0 { // -0 is less than +0
		return a
	}
	if a != a || b <= a {
		return b
	}
	return a
}

func maxFloat[T float](a, b T) T {
	if a > b || b != b {
		return a
	}
	if a == b && 1/a > 0 {
		return a
	}
	if a != a || b >= a {
		return b
	}
	return a
}

// oneNaN has the bits of every NaN that a GPU makes in float32.
const oneNaN = 1<<31 - 1

// minimum and maximum are that NaN if an operand is a NaN.
func minimum(a, b float32) float32 {
	if a != a || b != b {
		return math.Float32frombits(oneNaN)
	}
	return minFloat(a, b)
}

func maximum(a, b float32) float32 {
	if a != a || b != b {
		return math.Float32frombits(oneNaN)
	}
	return maxFloat(a, b)
}

func mulHiU64(a, b uint64) uint64 {
	hi, _ := bits.Mul64(a, b)
	return hi
}

func mulHi64(a, b int64) int64 {
	hi, _ := bits.Mul64(uint64(a), uint64(b))
	return int64(hi) - a>>63&b - b>>63&a
}

func fmaf64(a, b, c float64) float64 { return math.FMA(a, b, c) }

// fmaf32 rounds a*b+c once: the product is exact in float64, and the sum is rounded to odd there, so that the second rounding gives the
// correct result (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums").
func fmaf32(a, b, c float32) float32 {
	p, z := float64(float64(a)*float64(b)), float64(c)
	s := p + z
	t := s - p
	e := (p - (s - t)) + (z - t) // the error of the sum (Knuth's two-sum); NaN if s is not finite
	if u := math.Float64bits(s); (e > 0 || e < 0) && u&1 == 0 {
		if (e > 0) == (s > 0) {
			u++
		} else {
			u--
		}
		s = math.Float64frombits(u)
	}
	return float32(s)
}

// stickyFloat64 converts an integer so that a later rounding to fewer than 52 bits gives the same result as rounding the exact value.
func stickyFloat64[T int64 | uint64](v T) float64 {
	neg := v < 0
	u := uint64(v)
	if neg {
		u = -u
	}
	if u>>53 != 0 && u&0x7ff != 0 {
		u = u&^0x7ff | 0x800
	}
	if neg {
		return -float64(u)
	}
	return float64(u)
}

func saturate[T integer](f, least, most float64, lo, hi T) T {
	switch {
	case f != f:
		return 0
	case f <= least:
		return lo
	case f >= most:
		return hi
	}
	return T(f)
}

func satUint8(f float64) uint8   { return saturate[uint8](f, 0, math.MaxUint8, 0, math.MaxUint8) }
func satUint16(f float64) uint16 { return saturate[uint16](f, 0, math.MaxUint16, 0, math.MaxUint16) }
func satUint32(f float64) uint32 { return saturate[uint32](f, 0, math.MaxUint32, 0, math.MaxUint32) }
func satInt8(f float64) int8 {
	return saturate[int8](f, math.MinInt8, math.MaxInt8, math.MinInt8, math.MaxInt8)
}
func satInt16(f float64) int16 {
	return saturate[int16](f, math.MinInt16, math.MaxInt16, math.MinInt16, math.MaxInt16)
}
func satInt32(f float64) int32 {
	return saturate[int32](f, math.MinInt32, math.MaxInt32, math.MinInt32, math.MaxInt32)
}
func satInt64(f float64) int64 {
	return saturate[int64](f, -1<<63, 1<<63, math.MinInt64, math.MaxInt64)
}
func satUint64(f float64) uint64 { return saturate[uint64](f, 0, 1<<64, 0, math.MaxUint64) }

// readInt returns the integer of type t at p.
func readInt(p unsafe.Pointer, t dtype.DType) int64 {
	switch t {
	case dtype.Bool, dtype.Uint8:
		return int64(*(*uint8)(p))
	case dtype.Int8:
		return int64(*(*int8)(p))
	case dtype.Uint16:
		return int64(*(*uint16)(p))
	case dtype.Int16:
		return int64(*(*int16)(p))
	case dtype.Uint32:
		return int64(*(*uint32)(p))
	case dtype.Int32:
		return int64(*(*int32)(p))
	}
	return *(*int64)(p)
}
