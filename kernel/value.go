package kernel

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// Const returns a constant of type t with the value v, rounded to t.
func (b *Builder) Const(t dtype.DType, v float64) Value {
	var bits uint64
	switch {
	case t == dtype.Bool:
		if v != 0 {
			bits = 1
		}
	case t == dtype.Float64:
		bits = math.Float64bits(v)
	case t == dtype.Float32:
		bits = uint64(math.Float32bits(float32(v)))
	case t == dtype.Float16:
		bits = uint64(dtype.F16FromFloat64(v))
	case t == dtype.BFloat16:
		bits = uint64(dtype.BF16FromFloat64(v))
	case v < 0:
		return b.Bits(t, uint64(int64(v)))
	default:
		return b.Bits(t, uint64(v))
	}
	return b.Bits(t, bits)
}

// Int returns an integer constant of type t.
func (b *Builder) Int(t dtype.DType, v int64) Value { return b.Bits(t, uint64(v)) }

// Bits returns the constant of type t with the given bits; bits beyond its width are dropped.
func (b *Builder) Bits(t dtype.DType, bits uint64) Value {
	if !t.Valid() || t.IsComplex() {
		b.fail("kernels have no constants of type %v", t)
		return Value{b, 0, t}
	}
	if s := t.Size(); s < 8 {
		bits &= 1<<(8*s) - 1
	}
	return b.emit(&kir.Instr{Op: kir.OpConst, Type: t, Imm: bits}, t)
}

// I32 returns an int32 constant.
func (b *Builder) I32(v int) Value { return b.Bits(dtype.Int32, uint64(int64(v))) }

// I64 returns an int64 constant.
func (b *Builder) I64(v int64) Value { return b.Bits(dtype.Int64, uint64(v)) }

// U32 returns a uint32 constant.
func (b *Builder) U32(v uint32) Value { return b.Bits(dtype.Uint32, uint64(v)) }

// U64 returns a uint64 constant.
func (b *Builder) U64(v uint64) Value { return b.Bits(dtype.Uint64, v) }

// F32 returns a float32 constant.
func (b *Builder) F32(v float32) Value { return b.Bits(dtype.Float32, uint64(math.Float32bits(v))) }

// F64 returns a float64 constant.
func (b *Builder) F64(v float64) Value { return b.Bits(dtype.Float64, math.Float64bits(v)) }

// Bool returns a bool constant.
func (b *Builder) Bool(v bool) Value {
	if v {
		return b.Bits(dtype.Bool, 1)
	}
	return b.Bits(dtype.Bool, 0)
}

// Like returns the constant c of v's type.
func (v Value) Like(c float64) Value { return v.b.Const(v.t, c) }

func (v Value) binary(op kir.Op, w Value) Value {
	return v.b.emit(&kir.Instr{Op: op, Type: v.t, Args: v.b.ids(v, w)}, v.t)
}

func (v Value) unary(op kir.Op) Value {
	return v.b.emit(&kir.Instr{Op: op, Type: v.t, Args: v.b.ids(v)}, v.t)
}

func (v Value) compare(op kir.Op, w Value) Value {
	return v.b.emit(&kir.Instr{Op: op, Type: v.t, Args: v.b.ids(v, w)}, dtype.Bool)
}

// Add returns v + w; integers wrap.
func (v Value) Add(w Value) Value { return v.binary(kir.OpAdd, w) }

// Sub returns v - w; integers wrap.
func (v Value) Sub(w Value) Value { return v.binary(kir.OpSub, w) }

// Mul returns v * w; integers wrap.
func (v Value) Mul(w Value) Value { return v.binary(kir.OpMul, w) }

// Div returns v / w. Floats are rounded to nearest, integers truncated; an integer divided by 0 has all bits set.
func (v Value) Div(w Value) Value { return v.binary(kir.OpDiv, w) }

// Rem returns the integer remainder with the sign of v; v rem 0 is v.
func (v Value) Rem(w Value) Value { return v.binary(kir.OpRem, w) }

// FMA returns v*w + c, rounded once.
func (v Value) FMA(w, c Value) Value {
	return v.b.emit(&kir.Instr{Op: kir.OpFMA, Type: v.t, Args: v.b.ids(v, w, c)}, v.t)
}

// MulHi returns the high half of the full product of two 32- or 64-bit integers.
func (v Value) MulHi(w Value) Value { return v.binary(kir.OpMulHi, w) }

// MulWide returns the full 64-bit product of two 32-bit integers.
func (v Value) MulWide(w Value) Value {
	t := dtype.Int64
	if v.t == dtype.Uint32 {
		t = dtype.Uint64
	}
	return v.b.emit(&kir.Instr{Op: kir.OpMulWide, Type: v.t, Args: v.b.ids(v, w)}, t)
}

// Neg returns -v.
func (v Value) Neg() Value { return v.unary(kir.OpNeg) }

// Abs returns |v|.
func (v Value) Abs() Value { return v.unary(kir.OpAbs) }

// Min returns the lesser of v and w; if one is a NaN, it returns the other.
func (v Value) Min(w Value) Value { return v.binary(kir.OpMin, w) }

// Max returns the greater of v and w; if one is a NaN, it returns the other.
func (v Value) Max(w Value) Value { return v.binary(kir.OpMax, w) }

// Minimum returns the lesser of v and w, Float32, or a NaN, always the same, if one is a NaN; -0 is less than +0.
func (v Value) Minimum(w Value) Value { return v.binary(kir.OpMinimum, w) }

// Maximum returns the greater of v and w, Float32, or a NaN, always the same, if one is a NaN; -0 is less than +0.
func (v Value) Maximum(w Value) Value { return v.binary(kir.OpMaximum, w) }

// Sqrt returns the square root, rounded to nearest.
func (v Value) Sqrt() Value { return v.unary(kir.OpSqrt) }

// Floor rounds down.
func (v Value) Floor() Value { return v.unary(kir.OpFloor) }

// Ceil rounds up.
func (v Value) Ceil() Value { return v.unary(kir.OpCeil) }

// Trunc rounds toward zero.
func (v Value) Trunc() Value { return v.unary(kir.OpTrunc) }

// Rint rounds to the nearest integer, ties to even.
func (v Value) Rint() Value { return v.unary(kir.OpRint) }

// Exp2 returns 2^v of a Float32 with a relative error of at most 2^-22, by one instruction of the device. It cuts v off after 23 bits of
// fraction, a result below 2^-126 is 0, and 2^NaN is NaN. The simulator gives the bits of compute capability 9.0. Package kmath has a
// function that is more accurate and the same on every device.
func (v Value) Exp2() Value { return v.unary(kir.OpExp2) }

// Reciprocal returns 1/v of a Float32 by one instruction of the device. It differs from the correctly rounded result, which Div gives, by
// at most one unit in the last place; a subnormal v counts as 0, and a subnormal result is 0. The simulator gives the bits of compute
// capability 9.0.
func (v Value) Reciprocal() Value { return v.unary(kir.OpRcp) }

// And returns the bitwise or logical AND.
func (v Value) And(w Value) Value { return v.binary(kir.OpAnd, w) }

// Or returns the bitwise or logical OR.
func (v Value) Or(w Value) Value { return v.binary(kir.OpOr, w) }

// Xor returns the bitwise or logical exclusive OR.
func (v Value) Xor(w Value) Value { return v.binary(kir.OpXor, w) }

// Not returns the complement.
func (v Value) Not() Value { return v.unary(kir.OpNot) }

// Shl shifts left by w (Int32 or Uint32, taken as unsigned). Shifting by at least the width gives 0.
func (v Value) Shl(w Value) Value {
	return v.b.emit(&kir.Instr{Op: kir.OpShl, Type: v.t, Args: v.b.ids(v, w)}, v.t)
}

// Shr shifts right by w (Int32 or Uint32, taken as unsigned), arithmetically if v is signed.
func (v Value) Shr(w Value) Value {
	return v.b.emit(&kir.Instr{Op: kir.OpShr, Type: v.t, Args: v.b.ids(v, w)}, v.t)
}

// Clz returns the number of leading zeros, Int32.
func (v Value) Clz() Value {
	return v.b.emit(&kir.Instr{Op: kir.OpClz, Type: v.t, Args: v.b.ids(v)}, dtype.Int32)
}

// Popc returns the number of set bits, Int32.
func (v Value) Popc() Value {
	return v.b.emit(&kir.Instr{Op: kir.OpPopc, Type: v.t, Args: v.b.ids(v)}, dtype.Int32)
}

// BitRev reverses the bits.
func (v Value) BitRev() Value { return v.unary(kir.OpBitRev) }

// Eq reports v == w.
func (v Value) Eq(w Value) Value { return v.compare(kir.OpEq, w) }

// Ne reports v != w; true if either is a NaN.
func (v Value) Ne(w Value) Value { return v.compare(kir.OpNe, w) }

// Lt reports v < w.
func (v Value) Lt(w Value) Value { return v.compare(kir.OpLt, w) }

// Le reports v <= w.
func (v Value) Le(w Value) Value { return v.compare(kir.OpLe, w) }

// Gt reports v > w.
func (v Value) Gt(w Value) Value { return v.compare(kir.OpGt, w) }

// Ge reports v >= w.
func (v Value) Ge(w Value) Value { return v.compare(kir.OpGe, w) }

// IsNaN reports whether v is a NaN.
func (v Value) IsNaN() Value {
	return v.b.emit(&kir.Instr{Op: kir.OpIsNaN, Type: v.t, Args: v.b.ids(v)}, dtype.Bool)
}

// Select returns a where v (Bool) is true, otherwise c.
func (v Value) Select(a, c Value) Value {
	return v.b.emit(&kir.Instr{Op: kir.OpSelect, Type: a.t, Args: v.b.ids(v, a, c)}, a.t)
}

// Convert returns v as type t. Integers keep the low bits, floats round to nearest even, floats to integers truncate and saturate (NaN
// gives 0), and a number to bool is v != 0.
func (v Value) Convert(t dtype.DType) Value {
	if v.t == t {
		return v
	}
	b := v.b
	from, exact := b.bytes[v.id]
	if v.t.IsInt() && v.t.Size() == 1 {
		from, exact = v, true
	}
	if exact = exact && t.IsFloat(); exact {
		v = from
	}
	r := b.emit(&kir.Instr{Op: kir.OpCvt, Type: t, Args: b.ids(v)}, t)
	if exact {
		b.bytes[r.id] = from
	}
	return r
}

// Bitcast returns v's bits as type t, which has the same size.
func (v Value) Bitcast(t dtype.DType) Value {
	if v.t == t {
		return v
	}
	return v.b.emit(&kir.Instr{Op: kir.OpBitcast, Type: t, Args: v.b.ids(v)}, t)
}

func (v Value) shuffle(s kir.Sub, lane Value) Value {
	return v.b.emit(&kir.Instr{Op: kir.OpShuffle, Type: v.t, Sub: s, Args: v.b.ids(v, lane)}, v.t)
}

// Shuffle returns the value of v in thread lane (Int32) of the warp. All threads of the block must call it, as for Barrier; this holds for
// all shuffles and votes.
func (v Value) Shuffle(lane Value) Value { return v.shuffle(kir.ShuffleIdx, lane) }

// ShuffleXor returns the value of the thread whose lane is this thread's lane XOR mask.
func (v Value) ShuffleXor(mask int) Value { return v.shuffle(kir.ShuffleXor, v.b.I32(mask)) }

// ShuffleDown returns the value of the thread delta lanes above, or v if there is none.
func (v Value) ShuffleDown(delta int) Value { return v.shuffle(kir.ShuffleDown, v.b.I32(delta)) }

// ShuffleUp returns the value of the thread delta lanes below, or v if there is none.
func (v Value) ShuffleUp(delta int) Value { return v.shuffle(kir.ShuffleUp, v.b.I32(delta)) }

// Any reports whether v (Bool) is true in any thread of the warp.
func (v Value) Any() Value {
	return v.b.emit(&kir.Instr{Op: kir.OpVote, Type: dtype.Bool, Sub: kir.VoteAny, Args: v.b.ids(v)}, dtype.Bool)
}

// All reports whether v (Bool) is true in every thread of the warp.
func (v Value) All() Value {
	return v.b.emit(&kir.Instr{Op: kir.OpVote, Type: dtype.Bool, Sub: kir.VoteAll, Args: v.b.ids(v)}, dtype.Bool)
}

// Ballot returns one bit per thread of the warp, Uint32.
func (v Value) Ballot() Value {
	return v.b.emit(&kir.Instr{Op: kir.OpVote, Type: dtype.Bool, Sub: kir.VoteBallot, Args: v.b.ids(v)}, dtype.Uint32)
}
