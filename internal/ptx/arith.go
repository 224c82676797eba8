package ptx

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// suffix returns the PTX type in which values of type t are computed: narrow integers in 32 bits.
func suffix(t kir.Type) string {
	switch {
	case t == dtype.Float32:
		return ".f32"
	case t == dtype.Float64:
		return ".f64"
	case t.Size() == 8 && t.IsSigned():
		return ".s64"
	case t.Size() == 8:
		return ".u64"
	case t.IsSigned():
		return ".s32"
	}
	return ".u32"
}

// untyped returns the PTX type of the bits of values of type t in a register.
func untyped(t kir.Type) string {
	return [...]string{".pred", ".b16", ".b32", ".b64", ".b32", ".b64"}[classOf(t)]
}

// normalize brings a narrow integer back into its range after an operation in 32 bits.
func (f *function) normalize(t kir.Type, r string) {
	switch t {
	case dtype.Int8:
		f.op("cvt.s32.s8", r, r)
	case dtype.Int16:
		f.op("cvt.s32.s16", r, r)
	case dtype.Uint8:
		f.op("and.b32", r, r, "255")
	case dtype.Uint16:
		f.op("and.b32", r, r, "65535")
	}
}

// binary maps operations with two operands to instructions on floats and on integers.
var binary = map[kir.Op]struct{ float, integer string }{
	kir.OpAdd: {"add.rn", "add"}, kir.OpSub: {"sub.rn", "sub"}, kir.OpMul: {"mul.rn", "mul.lo"}, kir.OpDiv: {"div.rn", "div"},
	kir.OpRem: {"", "rem"}, kir.OpMulHi: {"", "mul.hi"}, kir.OpMin: {"min", "min"}, kir.OpMax: {"max", "max"},
}

// unary maps operations on floats with one operand to instructions: rounding to an integral value is a conversion of a type to itself.
var unary = map[kir.Op]string{kir.OpNeg: "neg", kir.OpAbs: "abs", kir.OpSqrt: "sqrt.rn", kir.OpFloor: "cvt.rmi",
	kir.OpCeil: "cvt.rpi", kir.OpTrunc: "cvt.rzi", kir.OpRint: "cvt.rni", kir.OpExp2: "ex2.approx.ftz"}

// arithmetic writes operations whose operands and result have one type.
func (f *function) arithmetic(in *kir.Instr) {
	t, a := in.Type, f.names[in.Args[0]]
	switch in.Op {
	case kir.OpDiv, kir.OpRem:
		if !t.IsFloat() {
			f.divide(in)
			return
		}
	case kir.OpFMA:
		f.op("fma.rn"+suffix(t), f.def(in.Res[0]), a, f.names[in.Args[1]], f.names[in.Args[2]])
		return
	case kir.OpNeg, kir.OpAbs, kir.OpSqrt, kir.OpFloor, kir.OpCeil, kir.OpTrunc, kir.OpRint, kir.OpExp2:
		f.single(in)
		return
	}
	b := f.names[in.Args[1]]
	r := f.def(in.Res[0])
	if t.IsFloat() {
		f.op(binary[in.Op].float+suffix(t), r, a, b)
		return
	}
	f.op(binary[in.Op].integer+suffix(t), r, a, b)
	if in.Op == kir.OpAdd || in.Op == kir.OpSub || in.Op == kir.OpMul {
		f.normalize(t, r)
	}
}

// pairProducts finds the products of 32-bit integers in a block of which both halves are wanted: one multiplication gives both, at the cost
// that the upper half has alone.
func (f *function) pairProducts(b *kir.Block) {
	type product struct {
		t    kir.Type
		a, b kir.Value
	}
	var seen [2]map[product]*kir.Instr
	for _, in := range b.Instrs {
		if in.Op != kir.OpMul && in.Op != kir.OpMulHi || !in.Type.IsInt() || in.Type.Size() != 4 {
			continue
		}
		mine, its := 0, 1
		if in.Op == kir.OpMulHi {
			mine, its = 1, 0
		}
		p := product{in.Type, in.Args[0], in.Args[1]}
		if other := seen[its][p]; other != nil {
			f.halves[in], f.halves[other] = other, in
			f.names[in.Res[0]], f.names[other.Res[0]] = "", "" // of the last time that the block was written
			delete(seen[its], p)
			continue
		}
		if seen[mine] == nil {
			seen[mine] = map[product]*kir.Instr{}
		}
		seen[mine][p] = in
	}
}

// wholeProduct writes both halves of a product where the first of them is.
func (f *function) wholeProduct(in, other *kir.Instr) {
	if f.names[in.Res[0]] != "" {
		return
	}
	low, high := f.def(in.Res[0]), f.def(other.Res[0])
	if in.Op == kir.OpMulHi {
		low, high = high, low
	}
	whole := f.to(long, "mul.wide"+suffix(in.Type), f.names[in.Args[0]], f.names[in.Args[1]])
	f.op("mov.b64", "{"+low+", "+high+"}", whole)
}

func (f *function) single(in *kir.Instr) {
	t, a := in.Type, f.names[in.Args[0]]
	r := f.def(in.Res[0])
	name := unary[in.Op]
	switch {
	case t.IsFloat() && name[:3] == "cvt":
		f.op(name+suffix(t)+suffix(t), r, a)
	case t.IsFloat():
		f.op(name+suffix(t), r, a)
	case in.Op == kir.OpAbs && !t.IsSigned():
		f.op(move(classOf(t)), r, a)
	default:
		// PTX has neg and abs of signed integers only; both wrap.
		s := ".s32"
		if t.Size() == 8 {
			s = ".s64"
		}
		f.op(name+s, r, a)
		f.normalize(t, r)
	}
}

// divide writes integer division and remainder. PTX leaves division by zero open, so it is selected. The least value by -1 comes out
// right: the quotient is found from magnitudes, 2^(n-1) / 1.
func (f *function) divide(in *kir.Instr) {
	t, a, b := in.Type, f.names[in.Args[0]], f.names[in.Args[1]]
	r := f.def(in.Res[0])
	byZero := literal(t, ^uint64(0))
	if in.Op == kir.OpRem {
		byZero = a
	}
	c, known := f.constant(in.Args[1])
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
	// The divisor is replaced too, so that nothing can be concluded from a division by zero.
	safe := f.to(classOf(t), "selp"+untyped(t), "1", b, zero)
	q := f.to(classOf(t), name, a, safe)
	f.normalize(t, q)
	f.op("selp"+untyped(t), r, byZero, q, zero)
}

// bitwise writes and, or, xor and not. Narrow operands are extended, so only the complement of an unsigned one leaves its range.
func (f *function) bitwise(in *kir.Instr) {
	name := map[kir.Op]string{kir.OpAnd: "and", kir.OpOr: "or", kir.OpXor: "xor", kir.OpNot: "not"}[in.Op] + untyped(in.Type)
	r := f.reg(classOf(in.Type))
	if in.Op == kir.OpNot {
		f.op(name, r, f.names[in.Args[0]])
		if !in.Type.IsSigned() {
			f.normalize(in.Type, r)
		}
	} else {
		f.op(name, r, f.names[in.Args[0]], f.names[in.Args[1]])
	}
	f.names[in.Res[0]] = r
}

// shift writes shl and shr. PTX clamps amounts to the register's width, which gives what the IR asks for; so do narrow values, which are
// extended to 32 bits.
func (f *function) shift(in *kir.Instr) {
	t := in.Type
	name := "shl" + untyped(t)
	if in.Op == kir.OpShr {
		name = "shr" + suffix(t)
	}
	r := f.def(in.Res[0])
	f.op(name, r, f.names[in.Args[0]], f.names[in.Args[1]])
	if in.Op == kir.OpShl {
		f.normalize(t, r)
	}
}

// bits writes clz, popc and bitrev.
func (f *function) bits(in *kir.Instr) {
	name := map[kir.Op]string{kir.OpClz: "clz", kir.OpPopc: "popc", kir.OpBitRev: "brev"}[in.Op]
	f.op(name+untyped(in.Type), f.def(in.Res[0]), f.names[in.Args[0]])
}

var comparisons = map[kir.Op]string{kir.OpEq: "eq", kir.OpNe: "ne", kir.OpLt: "lt", kir.OpLe: "le", kir.OpGt: "gt", kir.OpGe: "ge"}

// unordered are the comparisons of two floats that hold, of a NaN too, where the one named by the key does not.
var unordered = map[kir.Op]string{kir.OpLt: "geu", kir.OpLe: "gtu", kir.OpGt: "leu", kir.OpGe: "ltu"}

// compare writes comparisons. PTX's "ne" of floats is false on a NaN; "neu" is true. Orders of float32 are written as what does not hold:
// ptxas 13.0 takes |x| >= 0, x·x > -1 and the like, of a constant, for always true, though a NaN is not, and does not so with the unordered
// forms. The negation costs nothing.
func (f *function) compare(in *kir.Instr) {
	a, r := f.names[in.Args[0]], f.def(in.Res[0])
	if in.Op == kir.OpIsNaN {
		f.op("setp.nan"+suffix(in.Type), r, a, a)
		return
	}
	if name, ok := unordered[in.Op]; ok && in.Type == dtype.Float32 {
		f.op("not.pred", r, f.to(pred, "setp."+name+".f32", a, f.names[in.Args[1]]))
		return
	}
	name := "setp." + comparisons[in.Op]
	if in.Op == kir.OpNe && in.Type.IsFloat() {
		name += "u"
	}
	f.op(name+suffix(in.Type), r, a, f.names[in.Args[1]])
}

func (f *function) selection(in *kir.Instr) {
	c, a, b := f.names[in.Args[0]], f.names[in.Args[1]], f.names[in.Args[2]]
	if in.Type == dtype.Bool { // selp has no predicates
		x := f.to(pred, "and.pred", c, a)
		n := f.to(pred, "not.pred", c)
		f.op("and.pred", n, n, b)
		f.op("or.pred", f.def(in.Res[0]), x, n)
		return
	}
	f.op("selp"+classType[classOf(in.Type)], f.def(in.Res[0]), a, b, c)
}
