package ptx

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/internal/approx"
	"tenon.dev/internal/kir"
)

// suffix returns the PTX type in which values of type t are computed; narrow integers are computed in 32 bits.
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

// untyped returns the PTX bit type of the registers that hold values of type t.
func untyped(t kir.Type) string {
	return [...]string{".pred", ".b16", ".b32", ".b64", ".b32", ".b64"}[classOf(t)]
}

// normalize brings a narrow integer back into its range after a 32-bit operation.
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

// binary maps operations with two operands to their instructions for floats and for integers.
var binary = map[kir.Op]struct{ float, integer string }{
	kir.OpAdd: {"add.rn", "add"}, kir.OpSub: {"sub.rn", "sub"}, kir.OpMul: {"mul.rn", "mul.lo"}, kir.OpDiv: {"div.rn", "div"},
	kir.OpRem: {"", "rem"}, kir.OpMulHi: {"", "mul.hi"}, kir.OpMin: {"min", "min"}, kir.OpMax: {"max", "max"},
}

// unary maps float operations with one operand to instructions. Rounding to an integral value is a conversion of a type to itself.
var unary = map[kir.Op]string{kir.OpNeg: "neg", kir.OpAbs: "abs", kir.OpSqrt: "sqrt.rn", kir.OpFloor: "cvt.rmi",
	kir.OpCeil: "cvt.rpi", kir.OpTrunc: "cvt.rzi", kir.OpRint: "cvt.rni", kir.OpExp2: "ex2.approx.ftz",
	kir.OpRcp: "rcp.approx.ftz"}

// arithmetic emits operations whose operands and result have the same type.
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
	case kir.OpExp2, kir.OpRcp:
		if c, ok := f.constant(in.Args[0]); ok { // the assembler would put the correctly rounded result there
			x := math.Float32frombits(uint32(c))
			y := approx.Exp2(x)
			if in.Op == kir.OpRcp {
				y = approx.Reciprocal(x)
			}
			f.op(move(single), f.def(in.Res[0]), literal(t, uint64(math.Float32bits(y))))
			return
		}
		f.single(in)
		return
	case kir.OpNeg, kir.OpAbs, kir.OpSqrt, kir.OpFloor, kir.OpCeil, kir.OpTrunc, kir.OpRint:
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
	if in.Op == kir.OpAdd && (t == dtype.Int32 || t == dtype.Int64) && len(f.tiles.tiles) == 0 {
		f.noteSum(in, r)
	}
}

// extreme emits OpMinimum or OpMaximum. They have instructions from sm_80 on, whose NaN has all bits set but the sign.
func (f *function) extreme(in *kir.Instr) {
	name, a, b := "min", f.names[in.Args[0]], f.names[in.Args[1]]
	if in.Op == kir.OpMaximum {
		name = "max"
	}
	r := f.def(in.Res[0])
	if f.m.sm >= 80 {
		f.m.need(70)
		f.op(name+".NaN.f32", r, a, b)
		return
	}
	f.op(name+".f32", r, a, b)
	f.op("selp.f32", r, literal(in.Type, 1<<31-1), r, f.to(pred, "setp.nan.f32", a, b))
}

// noteSum notes the sum r of a register and a constant, so that accesses at several such sums share one address. In programs with tiles,
// whose loops are emitted in parts, a register may have changed by the time the sum is used.
func (f *function) noteSum(in *kir.Instr, r string) {
	a, c := f.names[in.Args[0]], in.Args[1]
	n, ok := f.constant(c)
	if !ok {
		a = f.names[c]
		if n, ok = f.constant(in.Args[0]); !ok {
			return
		}
	}
	s := sum{a, int64(n)}
	if of, ok := f.sums[a]; ok {
		s = sum{of.register, of.constant + s.constant}
	}
	if int64(int32(s.constant)) == s.constant {
		f.sums[r] = s
	}
}

// pairProducts finds the products of 32-bit integers in a block of which both halves are used, and that are not done: one multiplication
// gives both at the cost of the upper half alone.
func (f *function) pairProducts(b *kir.Block, done map[*kir.Instr]bool) {
	type product struct {
		t    kir.Type
		a, b kir.Value
	}
	var seen [2]map[product]*kir.Instr
	for _, in := range b.Instrs {
		if in.Op != kir.OpMul && in.Op != kir.OpMulHi || !in.Type.IsInt() || in.Type.Size() != 4 || done[in] {
			continue
		}
		mine, its := 0, 1
		if in.Op == kir.OpMulHi {
			mine, its = 1, 0
		}
		p := product{in.Type, in.Args[0], in.Args[1]}
		if other := seen[its][p]; other != nil {
			f.halves[in], f.halves[other] = other, in
			f.names[in.Res[0]], f.names[other.Res[0]] = "", "" // set when the block was last emitted
			delete(seen[its], p)
			continue
		}
		if seen[mine] == nil {
			seen[mine] = map[product]*kir.Instr{}
		}
		seen[mine][p] = in
	}
}

// wholeProduct emits both halves of a product at the position of the first.
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
		// PTX has neg and abs for signed integers only; both wrap.
		s := ".s32"
		if t.Size() == 8 {
			s = ".s64"
		}
		f.op(name+s, r, a)
		f.normalize(t, r)
	}
}

// bitwise emits and, or, xor and not. Narrow operands are extended, so only the complement of an unsigned one leaves its range.
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

// shift emits shl and shr. PTX clamps amounts to the register's width, as the IR requires, also for narrow values, which are extended to 32
// bits.
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

// bits emits clz, popc and bitrev.
func (f *function) bits(in *kir.Instr) {
	name := map[kir.Op]string{kir.OpClz: "clz", kir.OpPopc: "popc", kir.OpBitRev: "brev"}[in.Op]
	f.op(name+untyped(in.Type), f.def(in.Res[0]), f.names[in.Args[0]])
}

var comparisons = map[kir.Op]string{kir.OpEq: "eq", kir.OpNe: "ne", kir.OpLt: "lt", kir.OpLe: "le", kir.OpGt: "gt", kir.OpGe: "ge"}

// unordered maps each comparison of floats to its negation, which also holds if an operand is a NaN.
var unordered = map[kir.Op]string{kir.OpLt: "geu", kir.OpLe: "gtu", kir.OpGt: "leu", kir.OpGe: "ltu"}

// compare emits comparisons. PTX's "ne" of floats is false for a NaN; "neu" is true. Order comparisons of float32 are emitted as negated
// unordered ones: ptxas 13.0 takes comparisons with constants such as |x| >= 0 and x·x > -1 to be always true, although they are false for
// a NaN, but does not do so with the unordered forms. The negation costs nothing.
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
	if in.Type == dtype.Bool { // selp does not work on predicates
		x := f.to(pred, "and.pred", c, a)
		n := f.to(pred, "not.pred", c)
		f.op("and.pred", n, n, b)
		f.op("or.pred", f.def(in.Res[0]), x, n)
		return
	}
	f.op("selp"+classType[classOf(in.Type)], f.def(in.Res[0]), a, b, c)
}
