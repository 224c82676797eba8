package math_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// interp runs a program as one thread: it takes scalar parameters and returns the values that the program stores to global memory. It
// shares nothing with vexec, so that each checks the other.
type interp struct {
	p      *kir.Program
	regs   []uint64
	vars   []uint64
	params []uint64
	out    []uint64
}

type signal uint8

const (
	next signal = iota
	stop
	again
)

func newInterp(p *kir.Program) *interp {
	return &interp{p: p, regs: make([]uint64, len(p.Values)), vars: make([]uint64, len(p.Vars))}
}

func (m *interp) run(params ...uint64) []uint64 {
	m.params, m.out = params, m.out[:0]
	m.block(m.p.Body)
	return m.out
}

func (m *interp) block(b *kir.Block) signal {
	for _, in := range b.Instrs {
		switch in.Op {
		case kir.OpIf:
			body := in.Blocks[0]
			if m.regs[in.Args[0]] == 0 {
				body = in.Blocks[1]
			}
			if s := m.block(body); s != next {
				return s
			}
		case kir.OpLoop:
			for m.block(in.Blocks[0]) != stop {
			}
		case kir.OpBreak:
			return stop
		case kir.OpContinue:
			return again
		case kir.OpGet:
			m.regs[in.Res[0]] = m.vars[in.Sym]
		case kir.OpSet:
			m.vars[in.Sym] = m.regs[in.Args[0]]
		case kir.OpParam:
			m.regs[in.Res[0]] = m.params[in.Sym]
		case kir.OpConst:
			m.regs[in.Res[0]] = in.Imm
		case kir.OpStore:
			m.out = append(m.out, m.regs[in.Args[2]])
		case kir.OpLoad:
			m.regs[in.Res[0]] = m.table(in)
		default:
			m.regs[in.Res[0]] = m.compute(in)
		}
	}
	return next
}

func (m *interp) table(in *kir.Instr) uint64 {
	t := &m.p.Tables[in.Sym]
	i := int(int32(m.regs[in.Args[0]])) + int(in.Imm)
	if t.Type.Size() == 4 {
		return uint64(binary.LittleEndian.Uint32(t.Data[4*i:]))
	}
	return binary.LittleEndian.Uint64(t.Data[8*i:])
}

func (m *interp) compute(in *kir.Instr) uint64 {
	var a [3]uint64
	for i, x := range in.Args {
		a[i] = m.regs[x]
	}
	from := m.p.Values[in.Args[0]]
	switch {
	case in.Op == kir.OpCvt:
		return convert(a[0], from, in.Type)
	case in.Op == kir.OpBitcast:
		return a[0]
	case in.Op == kir.OpSelect:
		if a[0] != 0 {
			return a[1]
		}
		return a[2]
	case in.Type == dtype.Float32:
		return f32(in.Op, a)
	case in.Type == dtype.Float64:
		return f64(in.Op, a)
	case in.Type == dtype.Bool:
		return integer(in.Op, a, 1, false)
	}
	return integer(in.Op, a, 8*in.Type.Size(), in.Type.IsSigned())
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func f32(op kir.Op, a [3]uint64) uint64 {
	x, y, z := math.Float32frombits(uint32(a[0])), math.Float32frombits(uint32(a[1])), math.Float32frombits(uint32(a[2]))
	var r float32
	switch op {
	case kir.OpAdd:
		r = x + y
	case kir.OpSub:
		r = x - y
	case kir.OpMul:
		r = x * y
	case kir.OpDiv:
		r = x / y
	case kir.OpFMA:
		r = fma32(x, y, z)
	case kir.OpSqrt:
		r = float32(math.Sqrt(float64(x)))
	case kir.OpNeg:
		return a[0] ^ 1<<31
	case kir.OpAbs:
		return a[0] &^ (1 << 31)
	case kir.OpEq, kir.OpNe, kir.OpLt, kir.OpLe, kir.OpGt, kir.OpGe, kir.OpIsNaN:
		return compare(op, float64(x), float64(y))
	default:
		r = float32(round(op, float64(x), float64(y)))
	}
	return uint64(math.Float32bits(r))
}

// fma32 rounds x*y+z once: the product is exact in float64, and the sum is rounded to odd before it is rounded to float32.
func fma32(x, y, z float32) float32 {
	p, c := float64(x)*float64(y), float64(z)
	s := p + c
	t := s - p
	lo := (p - (s - t)) + (c - t)
	if b := math.Float64bits(s); lo != 0 && b&1 == 0 && !math.IsInf(s, 0) && lo == lo {
		if (lo > 0) == (s > 0) {
			b++
		} else {
			b--
		}
		s = math.Float64frombits(b)
	}
	return float32(s)
}

func f64(op kir.Op, a [3]uint64) uint64 {
	x, y, z := math.Float64frombits(a[0]), math.Float64frombits(a[1]), math.Float64frombits(a[2])
	var r float64
	switch op {
	case kir.OpAdd:
		r = x + y
	case kir.OpSub:
		r = x - y
	case kir.OpMul:
		r = x * y
	case kir.OpDiv:
		r = x / y
	case kir.OpFMA:
		r = math.FMA(x, y, z)
	case kir.OpSqrt:
		r = math.Sqrt(x)
	case kir.OpNeg:
		return a[0] ^ 1<<63
	case kir.OpAbs:
		return a[0] &^ (1 << 63)
	case kir.OpEq, kir.OpNe, kir.OpLt, kir.OpLe, kir.OpGt, kir.OpGe, kir.OpIsNaN:
		return compare(op, x, y)
	default:
		r = round(op, x, y)
	}
	return math.Float64bits(r)
}

// round does the operations whose results need no rounding.
func round(op kir.Op, x, y float64) float64 {
	switch op {
	case kir.OpFloor:
		return math.Floor(x)
	case kir.OpCeil:
		return math.Ceil(x)
	case kir.OpTrunc:
		return math.Trunc(x)
	case kir.OpRint:
		return math.RoundToEven(x)
	case kir.OpMin, kir.OpMax:
		switch {
		case x != x:
			return y
		case y != y:
			return x
		case op == kir.OpMin:
			return math.Min(x, y)
		}
		return math.Max(x, y)
	case kir.OpMinimum:
		return math.Min(x, y)
	case kir.OpMaximum:
		return math.Max(x, y)
	}
	panic(fmt.Sprint("no float operation ", op))
}

func compare(op kir.Op, x, y float64) uint64 {
	switch op {
	case kir.OpEq:
		return truth(x == y)
	case kir.OpNe:
		return truth(x != y)
	case kir.OpLt:
		return truth(x < y)
	case kir.OpLe:
		return truth(x <= y)
	case kir.OpGt:
		return truth(x > y)
	case kir.OpGe:
		return truth(x >= y)
	}
	return truth(x != x)
}

// integer computes on the low width bits.
func integer(op kir.Op, a [3]uint64, width int, signed bool) uint64 {
	mask := uint64(1<<(width-1)<<1 - 1)
	x, y := a[0]&mask, a[1]&mask
	shift := 64 - width
	sx, sy := int64(x<<shift)>>shift, int64(y<<shift)>>shift
	amount := uint32(a[1])
	var r uint64
	switch op {
	case kir.OpAdd:
		r = x + y
	case kir.OpSub:
		r = x - y
	case kir.OpMul:
		r = x * y
	case kir.OpMulHi:
		if width != 64 || signed {
			panic("mulhi")
		}
		r, _ = bits.Mul64(x, y)
	case kir.OpNeg:
		r = -x
	case kir.OpAbs:
		if r = x; signed && sx < 0 {
			r = -x
		}
	case kir.OpMin, kir.OpMax:
		less := x < y
		if signed {
			less = sx < sy
		}
		if r = y; less == (op == kir.OpMin) {
			r = x
		}
	case kir.OpAnd:
		r = x & y
	case kir.OpOr:
		r = x | y
	case kir.OpXor:
		r = x ^ y
	case kir.OpNot:
		r = ^x
	case kir.OpShl:
		if amount < uint32(width) {
			r = x << amount
		}
	case kir.OpShr:
		switch {
		case signed:
			r = uint64(sx >> min(amount, uint32(width)-1))
		case amount < uint32(width):
			r = x >> amount
		}
	case kir.OpClz:
		return uint64(bits.LeadingZeros64(x) - shift)
	case kir.OpEq:
		return truth(x == y)
	case kir.OpNe:
		return truth(x != y)
	case kir.OpLt:
		if signed {
			return truth(sx < sy)
		}
		return truth(x < y)
	default:
		panic(fmt.Sprint("no integer operation ", op))
	}
	return r & mask
}

func convert(v uint64, from, to dtype.DType) uint64 {
	var x float64
	switch {
	case from == dtype.Float32:
		x = float64(math.Float32frombits(uint32(v)))
	case from == dtype.Float64:
		x = math.Float64frombits(v)
	case to.IsFloat():
		return intToFloat(v, from, to)
	default:
		return resize(v, from, to)
	}
	switch {
	case to == dtype.Float64:
		return math.Float64bits(x)
	case to == dtype.Float32:
		return uint64(math.Float32bits(float32(x)))
	case x != x:
		return 0
	case to.IsSigned():
		limit := math.Ldexp(1, 8*to.Size()-1)
		switch {
		case x >= limit:
			return 1<<(8*to.Size()-1) - 1
		case x < -limit:
			x = -limit
		}
		return resize(uint64(int64(x)), dtype.Int64, to)
	}
	switch {
	case x <= 0:
		return 0
	case x >= math.Ldexp(1, 8*to.Size()):
		return 1<<(8*to.Size()-1)<<1 - 1
	case x >= 1<<63:
		return uint64(x-1<<63) + 1<<63
	}
	return uint64(x)
}

func resize(v uint64, from, to dtype.DType) uint64 {
	if from.IsSigned() {
		shift := 64 - 8*from.Size()
		v = uint64(int64(v<<shift) >> shift)
	}
	return v & (1<<(8*to.Size()-1)<<1 - 1)
}

// intToFloat uses Go's conversions, which round to nearest even.
func intToFloat(v uint64, from, to dtype.DType) uint64 {
	if from.IsSigned() {
		s := int64(resize(v, from, dtype.Int64))
		if to == dtype.Float64 {
			return math.Float64bits(float64(s))
		}
		return uint64(math.Float32bits(float32(s)))
	}
	if to == dtype.Float64 {
		return math.Float64bits(float64(v))
	}
	return uint64(math.Float32bits(float32(v)))
}
