package ptx

import (
	"math/bits"

	"tenon.dev/internal/kir"
)

// divide emits integer division and remainder. PTX leaves division by zero unspecified, so its result is selected. Dividing the least value
// by -1 gives the right result: the quotient is computed from magnitudes, 2^(n-1) / 1.
func (f *function) divide(in *kir.Instr) {
	t, a, b := in.Type, f.names[in.Args[0]], f.names[in.Args[1]]
	byZero := literal(t, ^uint64(0))
	if in.Op == kir.OpRem {
		byZero = a
	}
	c, known := f.constant(in.Args[1])
	if known && c != 0 && f.divideBy(in, c) {
		return
	}
	r := f.def(in.Res[0])
	if known && c == 0 {
		f.op(move(classOf(t)), r, byZero)
		return
	}
	name := binary[in.Op].integer + suffix(t)
	if known {
		f.op(name, r, a, b)
		f.normalize(t, r)
		return
	}
	zero := f.to(pred, "setp.eq"+suffix(t), b, "0")
	// The divisor is replaced too, so that the assembler cannot infer anything from a division by zero.
	safe := f.to(classOf(t), "selp"+untyped(t), "1", b, zero)
	q := f.to(classOf(t), name, a, safe)
	f.normalize(t, q)
	f.op("selp"+untyped(t), r, byZero, q, zero)
}

// divideBy emits a division by the constant c, or its remainder, without a division: ptxas 13.0 makes about twenty instructions of one,
// with a reciprocal, even if the divisor is a power of two. It reports whether it could.
func (f *function) divideBy(in *kir.Instr, c uint64) bool {
	t := in.Type
	size := 8 * t.Size()
	if size < 32 {
		return false
	}
	natural := !t.IsSigned()
	if t.IsSigned() {
		if int64(c) < 0 {
			return false
		}
		if f.analysis == nil {
			f.analysis = kir.Analyze(f.p)
		}
		lo, _ := f.analysis.Range(in.Args[0])
		natural = lo >= 0
	}
	switch {
	case c&(c-1) == 0:
		f.divideByPower(in, bits.TrailingZeros64(c), natural)
	case size == 32 && t.IsSigned() && natural:
		f.divideBySmall(in, uint32(c))
	default:
		return false
	}
	return true
}

// divideByPower divides by 2^n. natural says that the dividend is not negative.
func (f *function) divideByPower(in *kir.Instr, n int, natural bool) {
	t, a := in.Type, f.names[in.Args[0]]
	reg, size := classOf(t), 8*t.Size()
	shift := map[int]string{32: ".u32", 64: ".u64"}[size]
	signed := map[int]string{32: ".s32", 64: ".s64"}[size]
	mask := literal(t, 1<<n-1)
	switch {
	case natural && in.Op == kir.OpDiv:
		f.op("shr"+suffix(t), f.def(in.Res[0]), a, itoa(n))
	case natural:
		f.op("and"+untyped(t), f.def(in.Res[0]), a, mask)
	case n == 0 && in.Op == kir.OpDiv:
		f.op(move(reg), f.def(in.Res[0]), a)
	case n == 0:
		f.op(move(reg), f.def(in.Res[0]), "0")
	default: // a quotient rounds to zero, so 2^n-1 is added to a negative dividend first
		more := f.to(reg, "shr"+shift, f.to(reg, "shr"+signed, a, itoa(size-1)), itoa(size-n))
		sum := f.to(reg, "add"+signed, a, more)
		if in.Op == kir.OpDiv {
			f.op("shr"+signed, f.def(in.Res[0]), sum, itoa(n))
			return
		}
		low := f.to(reg, "and"+untyped(t), sum, mask)
		f.op("sub"+signed, f.def(in.Res[0]), low, more)
	}
}

// divideBySmall divides a number that is not negative by d, which is not a power of two, in 32 bits. The quotient is (hi(a*m) + a) >> s for
// numbers below 2^31 (T. Granlund, P. Montgomery, "Division by invariant integers using multiplication", PLDI 1994, figure 4.1).
func (f *function) divideBySmall(in *kir.Instr, d uint32) {
	a := f.names[in.Args[0]]
	m, s := multiplier(d)
	high := f.to(word, "mul.hi.u32", a, itoa(int(m)))
	q := f.to(word, "shr.u32", f.to(word, "add.u32", high, a), itoa(s))
	if in.Op == kir.OpDiv {
		f.names[in.Res[0]] = q
		return
	}
	f.op("sub.s32", f.def(in.Res[0]), a, f.to(word, "mul.lo.s32", q, itoa(int(d))))
}

// multiplier returns m and s of divideBySmall.
func multiplier(d uint32) (m uint32, s int) {
	s = bits.Len32(d - 1)
	return uint32((1<<32)*(1<<s-uint64(d))/uint64(d) + 1), s
}
