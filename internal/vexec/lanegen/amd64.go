package main

import (
	"fmt"
	"strings"
)

// asmOp is an operation as AVX2 instructions on one vector: {a}, {b} and {c} are the operands, {d} is the result, {t0} and {t1} are free,
// {k0} … are constants. Go's assembler takes operands last to first.
type asmOp struct {
	op    string
	types string
	bytes int    // per lane
	args  int    // operands
	forms string // which forms exist: "VV VS SV", in the table's order; "-" omits one
	body  string
	// consts are loaded once: 32- or 64-bit patterns, depending on bytes.
	consts []uint64
	// compare: {d} is a mask of lanes, stored as bytes; invert: negated.
	compare, invert bool
	// count: the second operand has 4-byte lanes even if bytes is 8.
	count bool
}

const (
	both = "VV VS SV"
	all3 = "VVV VSV VVS VSS"
)

func floatOps() (ops []asmOp) {
	for _, t := range []struct {
		name, s string
		n       int
		sign    uint64
	}{{"Float32", "PS", 4, 1 << 31}, {"Float64", "PD", 8, 1 << 63}} {
		r := strings.NewReplacer("PX", t.s)
		add := func(op string, args int, forms, body string, consts ...uint64) {
			ops = append(ops, asmOp{op: op, types: t.name, bytes: t.n, args: args, forms: forms, body: r.Replace(body), consts: consts})
		}
		add("OpAdd", 2, both, "VADDPX {b}, {a}, {d}")
		add("OpSub", 2, both, "VSUBPX {b}, {a}, {d}")
		add("OpMul", 2, both, "VMULPX {b}, {a}, {d}")
		add("OpDiv", 2, both, "VDIVPX {b}, {a}, {d}")
		// The hardware returns its second source for NaNs and for zeros of either sign.
		pick := "VBLENDVPX {t0}, {b}, {d}, {d}; VCMPPX $3, {b}, {b}, {t0}; VBLENDVPX {t0}, {a}, {d}, {d}"
		add("OpMin", 2, both, "VMINPX {b}, {a}, {d}; VMINPX {a}, {b}, {t0}; VORPX {t0}, {d}, {d}; VCMPPX $3, {a}, {a}, {t0}; "+pick)
		add("OpMax", 2, both, "VMAXPX {b}, {a}, {d}; VMAXPX {a}, {b}, {t0}; VANDPX {t0}, {d}, {d}; VCMPPX $3, {a}, {a}, {t0}; "+pick)
		if t.n == 4 {
			nan := "VCMPPX $3, {b}, {a}, {t0}; VBLENDVPX {t0}, {k0}, {d}, {d}"
			add("OpMinimum", 2, both, "VMINPX {b}, {a}, {d}; VMINPX {a}, {b}, {t0}; VORPX {t0}, {d}, {d}; "+nan, t.sign-1)
			add("OpMaximum", 2, both, "VMAXPX {b}, {a}, {d}; VMAXPX {a}, {b}, {t0}; VANDPX {t0}, {d}, {d}; "+nan, t.sign-1)
		}
		add("OpSqrt", 1, "V", "VSQRTPX {a}, {d}")
		add("OpFloor", 1, "V", "VROUNDPX $9, {a}, {d}")
		add("OpCeil", 1, "V", "VROUNDPX $10, {a}, {d}")
		add("OpTrunc", 1, "V", "VROUNDPX $11, {a}, {d}")
		add("OpRint", 1, "V", "VROUNDPX $8, {a}, {d}")
		add("OpNeg", 1, "V", "VXORPX {k0}, {a}, {d}", t.sign)
		add("OpAbs", 1, "V", "VANDNPX {a}, {k0}, {d}", t.sign)
		add("OpFMA", 3, all3, "VMOVUPX {c}, {d}; VFMADD231PX {b}, {a}, {d}")
		cmp := func(op string, imm int, args int, forms string) {
			b := "{b}"
			if args == 1 {
				b = "{a}"
			}
			ops = append(ops, asmOp{op: op, types: t.name, bytes: t.n, args: args, forms: forms, compare: true,
				body: fmt.Sprintf("VCMP%s $%d, %s, {a}, {d}", t.s, imm, b)})
		}
		cmp("OpEq", 0, 2, both)
		cmp("OpNe", 4, 2, both)
		cmp("OpLt", 0x11, 2, both)
		cmp("OpLe", 0x12, 2, both)
		cmp("OpGt", 0x1e, 2, both)
		cmp("OpGe", 0x1d, 2, both)
		cmp("OpIsNaN", 3, 1, "V")
	}
	return ops
}

func intOps() (ops []asmOp) {
	add := func(op, types string, bytes, args int, forms, body string, consts ...uint64) {
		ops = append(ops, asmOp{op: op, types: types, bytes: bytes, args: args, forms: forms, body: body, consts: consts})
	}
	for _, t := range []struct {
		types, s string
		n        int
	}{{"Int32 Uint32", "D", 4}, {"Int64 Uint64", "Q", 8}} {
		add("OpAdd", t.types, t.n, 2, both, "VPADD"+t.s+" {b}, {a}, {d}")
		add("OpSub", t.types, t.n, 2, both, "VPSUB"+t.s+" {b}, {a}, {d}")
		add("OpNeg", t.types, t.n, 1, "V", "VPSUB"+t.s+" {a}, {k0}, {d}", 0)
		cmp := func(op, types, body string, invert bool, consts ...uint64) {
			ops = append(ops, asmOp{op: op, types: types, bytes: t.n, args: 2, forms: both, body: body, compare: true,
				invert: invert, consts: consts})
		}
		cmp("OpEq", t.types, "VPCMPEQ"+t.s+" {b}, {a}, {d}", false)
		cmp("OpNe", t.types, "VPCMPEQ"+t.s+" {b}, {a}, {d}", true)
		for i, signed := range strings.Fields(t.types) {
			flip, x, y := "", "{a}", "{b}"
			var consts []uint64
			if i == 1 {
				flip, x, y = "VPXOR {k0}, {a}, {t0}; VPXOR {k0}, {b}, {t1}; ", "{t0}", "{t1}"
				consts = []uint64{1 << (8*t.n - 1)}
			}
			gt := flip + "VPCMPGT" + t.s + " " + y + ", " + x + ", {d}"
			lt := flip + "VPCMPGT" + t.s + " " + x + ", " + y + ", {d}"
			cmp("OpGt", signed, gt, false, consts...)
			cmp("OpLe", signed, gt, true, consts...)
			cmp("OpLt", signed, lt, false, consts...)
			cmp("OpGe", signed, lt, true, consts...)
		}
	}
	for _, t := range []struct {
		types string
		n     int
	}{{"Bool", 1}, {"Int32 Uint32", 4}, {"Int64 Uint64", 8}} {
		add("OpAnd", t.types, t.n, 2, both, "VPAND {b}, {a}, {d}")
		add("OpOr", t.types, t.n, 2, both, "VPOR {b}, {a}, {d}")
		add("OpXor", t.types, t.n, 2, both, "VPXOR {b}, {a}, {d}")
		ones := ^uint64(0)
		if t.n == 1 {
			ones = 0x0101010101010101
		}
		add("OpNot", t.types, t.n, 1, "V", "VPXOR {k0}, {a}, {d}", ones)
	}
	add("OpMul", "Int32 Uint32", 4, 2, both, "VPMULLD {b}, {a}, {d}")
	add("OpMul", "Int64 Uint64", 8, 2, both, "VPSRLQ $32, {a}, {t0}; VPMULUDQ {b}, {t0}, {t0}; VPSRLQ $32, {b}, {t1}; VPMULUDQ {a}, "+
		"{t1}, {t1}; VPADDQ {t1}, {t0}, {t0}; VPSLLQ $32, {t0}, {t0}; VPMULUDQ {b}, {a}, {d}; VPADDQ {t0}, {d}, {d}")
	hi := func(mul string) string {
		return "VPSRLQ $32, {a}, {t0}; VPSRLQ $32, {b}, {t1}; " + mul + " {t1}, {t0}, {t0}; " + mul +
			" {b}, {a}, {d}; VPSRLQ $32, {d}, {d}; VPBLENDD $0xaa, {t0}, {d}, {d}"
	}
	add("OpMulHi", "Uint32", 4, 2, both, hi("VPMULUDQ"))
	add("OpMulHi", "Int32", 4, 2, both, hi("VPMULDQ"))
	add("OpMin", "Int32", 4, 2, both, "VPMINSD {b}, {a}, {d}")
	add("OpMin", "Uint32", 4, 2, both, "VPMINUD {b}, {a}, {d}")
	add("OpMax", "Int32", 4, 2, both, "VPMAXSD {b}, {a}, {d}")
	add("OpMax", "Uint32", 4, 2, both, "VPMAXUD {b}, {a}, {d}")
	add("OpMin", "Int64", 8, 2, both, "VPCMPGTQ {b}, {a}, {t0}; VBLENDVPD {t0}, {b}, {a}, {d}")
	add("OpMax", "Int64", 8, 2, both, "VPCMPGTQ {b}, {a}, {t0}; VBLENDVPD {t0}, {a}, {b}, {d}")
	add("OpAbs", "Int32", 4, 1, "V", "VPABSD {a}, {d}")
	add("OpShl", "Int32 Uint32", 4, 2, both, "VPSLLVD {b}, {a}, {d}")
	add("OpShr", "Uint32", 4, 2, both, "VPSRLVD {b}, {a}, {d}")
	add("OpShr", "Int32", 4, 2, both, "VPSRAVD {b}, {a}, {d}")
	count := func(op, types, body string, consts ...uint64) {
		ops = append(ops, asmOp{op: op, types: types, bytes: 8, args: 2, forms: both, body: body, consts: consts, count: true})
	}
	count("OpShl", "Int64 Uint64", "VPSLLVQ {b}, {a}, {d}")
	count("OpShr", "Uint64", "VPSRLVQ {b}, {a}, {d}")
	// An arithmetic shift: also shift the sign bit, and subtract it.
	count("OpShr", "Int64", "VPMINUD {k1}, {b}, {t1}; VPSRLVQ {t1}, {k0}, {t0}; VPSRLVQ {t1}, {a}, {d}; VPXOR {t0}, {d}, {d}; VPSUBQ "+
		"{t0}, {d}, {d}", 1<<63, 63)
	return ops
}

// asmWriter writes assembly and the code that fills the table with it.
type asmWriter struct {
	writer
	table, stubs writer
	n            int
}

func (w *asmWriter) lines(code string) {
	for _, l := range strings.Split(code, "; ") {
		w.f("\t%s", l)
	}
}

// begin starts a kernel and loads its pointers: d DI, a SI, b DX, c R8, n CX.
func (w *asmWriter) begin(prefix string) string {
	w.n++
	name := fmt.Sprintf("avx%s%d", prefix, w.n)
	w.f("TEXT ·%s(SB), NOSPLIT, $0-40", name)
	w.f("\tMOVQ d+0(FP), DI\n\tMOVQ a+8(FP), SI\n\tMOVQ b+16(FP), DX\n\tMOVQ c+24(FP), R8\n\tMOVQ n+32(FP), CX")
	w.stubs.f("//go:noescape\nfunc %s(d, a, b, c unsafe.Pointer, n int)\n", name)
	return name
}

// end closes the loop. step is how many bytes each of the pointers DI, SI, DX and R8 advances in 32 lanes.
func (w *asmWriter) end(label string, step [4]int) {
	for i, r := range []string{"DI", "SI", "DX", "R8"} {
		if step[i] > 0 {
			w.f("\tADDQ $%d, %s", step[i], r)
		}
	}
	w.f("\tSUBQ $32, CX\n\tJGT %s\n\tVZEROUPPER\n\tRET\n", label)
}

var pointers = [3]string{"SI", "DX", "R8"}

// broadcast loads a scalar of n bytes.
func (w *asmWriter) broadcast(n int, ptr, reg string) {
	w.f("\tVPBROADCAST%s (%s), %s", map[int]string{1: "B", 2: "W", 4: "D", 8: "Q"}[n], ptr, reg)
}

func (w *asmWriter) constant(n int, v uint64, i int) {
	reg := fmt.Sprintf("Y%d", 10+i)
	if n == 4 {
		w.f("\tMOVL $%#x, AX\n\tVMOVQ AX, X%d\n\tVPBROADCASTD X%d, %s", uint32(v), 10+i, 10+i, reg)
		return
	}
	w.f("\tMOVQ $%#x, AX\n\tVMOVQ AX, X%d\n\tVPBROADCASTQ X%d, %s", v, 10+i, 10+i, reg)
}

// lanewise writes one form of an operation.
func (w *asmWriter) lanewise(o *asmOp, form int, kinds string) {
	name := w.begin(o.op)
	var regs [3]string
	var step [4]int
	step[0] = 32 * o.bytes
	if o.compare {
		step[0] = 32
	}
	for i := range o.args {
		size := o.bytes
		if o.count && i == 1 {
			size = 4
		}
		if kinds[i] == 'S' {
			regs[i] = fmt.Sprintf("Y%d", 13+i)
			if o.count && i == 1 {
				w.f("\tMOVL (DX), AX\n\tVMOVQ AX, X14\n\tVPBROADCASTQ X14, Y14")
			} else {
				w.broadcast(size, pointers[i], regs[i])
			}
			continue
		}
		regs[i] = fmt.Sprintf("Y%d", i)
		step[i+1] = 32 * size
	}
	for i, v := range o.consts {
		w.constant(o.bytes, v, i)
	}
	if o.compare {
		w.f("\tMOVQ $0x0101010101010101, AX\n\tVMOVQ AX, X12\n\tVPBROADCASTQ X12, Y12")
		w.packOrder()
	}
	label := "l" + name
	w.f("%s:", label)
	one := func(v int, d string) {
		for i := range o.args {
			switch {
			case kinds[i] == 'S':
			case o.count && i == 1:
				w.f("\tVPMOVZXDQ %d(DX), Y1", 16*v)
			default:
				w.f("\tVMOVDQU %d(%s), Y%d", 32*v, pointers[i], i)
			}
		}
		t0, t1 := "Y4", "Y5"
		if o.compare {
			t0, t1 = "Y2", "Y3"
		}
		w.lines(strings.NewReplacer("{a}", regs[0], "{b}", regs[1], "{c}", regs[2], "{d}", d, "{t0}", t0, "{t1}", t1, "{k0}", "Y10",
			"{k1}", "Y11").Replace(o.body))
	}
	if o.compare {
		w.packMasks(o.bytes, one, o.invert)
	} else {
		for v := range o.bytes {
			one(v, "Y3")
			w.f("\tVMOVDQU Y3, %d(DI)", 32*v)
		}
	}
	w.end(label, step)
	for _, t := range strings.Fields(o.types) {
		w.table.f("t[kir.%s][dtype.%s][%d] = %s", o.op, t, form, name)
	}
}

// packOrder loads the permutation that undoes the packing within 128-bit halves: dwords 0 4 1 5 2 6 3 7.
func (w *asmWriter) packOrder() {
	w.f("\tMOVQ $0x0000000400000000, AX\n\tVMOVQ AX, X9\n\tMOVQ $0x0000000500000001, AX\n\tVPINSRQ $1, AX, X9, X9")
	w.f("\tMOVQ $0x0000000200000002, AX\n\tVMOVQ AX, X8\n\tVPBROADCASTQ X8, X8\n\tVPADDD X8, X9, X8\n\tVINSERTI128 $1, X8, Y9, Y9")
}

// packMasks turns the masks of 32 lanes into bytes 0 and 1. Y4 … Y7 are the masks of 8 lanes each, Y9 is the permutation, Y12 holds ones.
func (w *asmWriter) packMasks(bytes int, one func(v int, d string), invert bool) {
	for q := range 4 {
		d := fmt.Sprintf("Y%d", 4+q)
		if bytes == 4 {
			one(q, d)
			continue
		}
		one(2*q, d)
		one(2*q+1, "Y8")
		w.f("\tVSHUFPS $0x88, Y8, %s, %s\n\tVPERMQ $0xd8, %s, %s", d, d, d, d)
	}
	w.f("\tVPACKSSDW Y5, Y4, Y4\n\tVPACKSSDW Y7, Y6, Y6\n\tVPACKSSWB Y6, Y4, Y4\n\tVPERMD Y4, Y9, Y4")
	if invert {
		w.f("\tVPANDN Y12, Y4, Y4")
	} else {
		w.f("\tVPAND Y12, Y4, Y4")
	}
	w.f("\tVMOVDQU Y4, (DI)")
}

// selects writes OpSelect and fills for every lane size.
func (w *asmWriter) selects() {
	sizes := map[int]string{1: "Bool Uint8 Int8", 2: "Float16 BFloat16 Uint16 Int16", 4: "Int32 Uint32 Float32", 8: "Int64 Uint64 Float64"}
	for _, n := range []int{1, 2, 4, 8} {
		for form, kinds := range strings.Fields(all3) {
			name := w.begin("OpSelect")
			step := [4]int{32 * n, 32, 0, 0}
			for i := 1; i < 3; i++ {
				if kinds[i] == 'S' {
					w.broadcast(n, pointers[i], fmt.Sprintf("Y%d", 13+i))
				} else {
					step[i+1] = 32 * n
				}
			}
			label := "l" + name
			w.f("%s:", label)
			for v := range n {
				at := 32 / n * v
				switch n {
				case 1:
					w.f("\tVMOVDQU (SI), Y0\n\tVPSLLW $7, Y0, Y0")
				case 2:
					w.f("\tVPMOVZXBW %d(SI), Y0\n\tVPSLLW $15, Y0, Y0\n\tVPSRAW $15, Y0, Y0", at)
				case 4:
					w.f("\tVPMOVZXBD %d(SI), Y0\n\tVPSLLD $31, Y0, Y0", at)
				default:
					w.f("\tVPMOVZXBQ %d(SI), Y0\n\tVPSLLQ $63, Y0, Y0", at)
				}
				for i := 1; i < 3; i++ {
					if kinds[i] == 'V' {
						w.f("\tVMOVDQU %d(%s), Y%d", 32*v, pointers[i], 13+i)
					}
				}
				blend := map[int]string{1: "VPBLENDVB", 2: "VPBLENDVB", 4: "VBLENDVPS", 8: "VBLENDVPD"}[n]
				w.f("\t%s Y0, Y14, Y15, Y3\n\tVMOVDQU Y3, %d(DI)", blend, 32*v)
			}
			w.end(label, step)
			for _, t := range strings.Fields(sizes[n]) {
				w.table.f("t[kir.OpSelect][dtype.%s][%d] = %s", t, form, name)
			}
		}
		name := w.begin("Fill")
		w.broadcast(n, "SI", "Y0")
		w.f("l%s:", name)
		for v := range n {
			w.f("\tVMOVDQU Y0, %d(DI)", 32*v)
		}
		w.end("l"+name, [4]int{32 * n})
		for _, t := range strings.Fields(sizes[n]) {
			w.table.f("t[kir.OpGet][dtype.%s][1] = %s", t, name)
		}
	}
}

// conversion is a conversion of several lanes at a time: body reads {a} (an address) and writes {d} (an address).
type conversion struct {
	from, to string // dtypes, separated by spaces
	in, out  int    // bytes per lane
	lanes    int    // lanes that body converts
	body     string
	pre      string
}

func constants(n int, vs ...uint64) string {
	w := &asmWriter{}
	for i, v := range vs {
		w.constant(n, v, i)
	}
	return strings.TrimRight(strings.ReplaceAll(w.String(), "\t", ""), "\n")
}

func conversionList() []conversion {
	const i32, i64 = "Int32 Uint32", "Int64 Uint64"
	// A saturating conversion of 8 lanes: out of range gives the least integer, which becomes the greatest where a >= 2^31; NaN gives 0.
	toI32 := "VMOVUPS {a}, Y0; VCVTTPS2DQ Y0, Y1; VCMPPS $0x1d, Y10, Y0, Y2; VPXOR Y2, Y1, Y1; VCMPPS $7, Y0, Y0, Y2; VPAND Y2, Y1, Y1; " +
		"VMOVDQU Y1, {d}"
	round := func(k int) string { // 8 lanes of bfloat16 in the low words of the dwords of Yk
		return fmt.Sprintf("VPSRLD $16, Y%[1]d, Y4; VPAND Y11, Y4, Y4; VPADDD Y10, Y4, Y4; VPADDD Y4, Y%[1]d, Y4; VPSRLD $16, Y4, Y4; "+
			"VCMPPS $3, Y%[1]d, Y%[1]d, Y5; VBLENDVPS Y5, Y10, Y4, Y%[1]d", k)
	}
	return []conversion{
		{"Int32", "Float32", 4, 4, 8, "VCVTDQ2PS {a}, Y0; VMOVUPS Y0, {d}", ""},
		// Two 16-bit halves, combined with one rounding.
		{"Uint32", "Float32", 4, 4, 8, "VMOVDQU {a}, Y0; VPSRLD $16, Y0, Y1; VPAND Y10, Y0, Y0; VCVTDQ2PS Y0, Y0; VCVTDQ2PS Y1, Y1; " +
			"VFMADD231PS Y11, Y1, Y0; VMOVUPS Y0, {d}", constants(4, 0xffff, 0x47800000)},
		{"Float32", "Int32", 4, 4, 8, toI32, constants(4, 0x4f000000)},
		{"Float32", "Float64", 4, 8, 4, "VCVTPS2PD {a}, Y0; VMOVUPD Y0, {d}", ""},
		{"Int32", "Float64", 4, 8, 4, "VCVTDQ2PD {a}, Y0; VMOVUPD Y0, {d}", ""},
		{"Float64", "Float32", 8, 4, 4, "VCVTPD2PSY {a}, X0; VMOVUPS X0, {d}", ""},
		{"Int32", i64, 4, 8, 4, "VPMOVSXDQ {a}, Y0; VMOVDQU Y0, {d}", ""},
		{"Uint32", i64, 4, 8, 4, "VPMOVZXDQ {a}, Y0; VMOVDQU Y0, {d}", ""},
		{i64, i32, 8, 4, 8, "VMOVDQU {a}, Y0; VMOVDQU 32{a}, Y1; VSHUFPS $0x88, Y1, Y0, Y0; VPERMQ $0xd8, Y0, Y0; VMOVDQU Y0, {d}", ""},
		{"BFloat16", "Float32", 2, 4, 8, "VPMOVZXWD {a}, Y0; VPSLLD $16, Y0, Y0; VMOVDQU Y0, {d}", ""},
		{"Float32", "BFloat16", 4, 2, 16, "VMOVUPS {a}, Y0; VMOVUPS 32{a}, Y1; " + round(0) + "; " + round(1) +
			"; VPACKUSDW Y1, Y0, Y0; VPERMQ $0xd8, Y0, Y0; VMOVDQU Y0, {d}", constants(4, 0x7fff, 1)},
		{"Float16", "Float32", 2, 4, 8, "VCVTPH2PS {a}, Y0; VMOVUPS Y0, {d}", ""},
		{"Float32", "Float16", 4, 2, 8, "VMOVUPS {a}, Y0; VCMPPS $3, Y0, Y0, Y1; VBLENDVPS Y1, Y10, Y0, Y0; VCVTPS2PH $0, Y0, X0; " +
			"VMOVDQU X0, {d}", constants(4, 0x7fffffff)},
		{"Bool Uint8", i32, 1, 4, 8, "VPMOVZXBD {a}, Y0; VMOVDQU Y0, {d}", ""},
		{"Bool Uint8", i64, 1, 8, 4, "VPMOVZXBQ {a}, Y0; VMOVDQU Y0, {d}", ""},
		{"Bool Uint8", "Float32", 1, 4, 8, "VPMOVZXBD {a}, Y0; VCVTDQ2PS Y0, Y0; VMOVUPS Y0, {d}", ""},
		{"Int8", "Int32", 1, 4, 8, "VPMOVSXBD {a}, Y0; VMOVDQU Y0, {d}", ""},
		{"Int8", "Float32", 1, 4, 8, "VPMOVSXBD {a}, Y0; VCVTDQ2PS Y0, Y0; VMOVUPS Y0, {d}", ""},
	}
}

func (w *asmWriter) conversions() {
	for _, c := range conversionList() {
		name := w.begin("Cvt")
		if c.pre != "" {
			for _, l := range strings.Split(c.pre, "\n") {
				w.f("\t%s", l)
			}
		}
		w.f("l%s:", name)
		for v := range 32 / c.lanes {
			body := strings.ReplaceAll(c.body, "32{a}", fmt.Sprintf("%d(SI)", v*c.lanes*c.in+32))
			w.lines(strings.NewReplacer("{a}", fmt.Sprintf("%d(SI)", v*c.lanes*c.in), "{d}", fmt.Sprintf("%d(DI)", v*c.lanes*c.out)).
				Replace(body))
		}
		w.end("l"+name, [4]int{32 * c.out, 32 * c.in})
		for _, f := range strings.Fields(c.from) {
			for _, t := range strings.Fields(c.to) {
				w.table.f("c[dtype.%s][dtype.%s] = %s", f, t, name)
			}
		}
	}
	// To Bool: not equal to 0.
	for _, t := range []struct{ types, body string }{{"Int32 Uint32", "VPCMPEQD Y10, Y0, {d}"}, {"Float32", "VCMPPS $0, Y10, Y0, {d}"}} {
		name := w.begin("CvtBool")
		w.constant(4, 0, 0)
		w.f("\tMOVQ $0x0101010101010101, AX\n\tVMOVQ AX, X12\n\tVPBROADCASTQ X12, Y12")
		w.packOrder()
		w.f("l%s:", name)
		w.packMasks(4, func(v int, d string) {
			w.f("\tVMOVDQU %d(SI), Y0", 32*v)
			w.lines(strings.ReplaceAll(t.body, "{d}", d))
		}, true)
		w.end("l"+name, [4]int{32, 128})
		for _, f := range strings.Fields(t.types) {
			w.table.f("c[dtype.%s][dtype.Bool] = %s", f, name)
		}
	}
}

// scalars emits loads, before the loop, of those of two 32-bit operands that are scalars, and makes the others' pointers advance in the
// loop.
func (w *asmWriter) scalars(kinds string, step *[4]int) {
	for i := range 2 {
		if kinds[i] == 'S' {
			w.f("\tVPBROADCASTD (%s), Y%d", pointers[i], i)
		} else {
			step[i+1] = 128
		}
	}
}

// wide writes the products of 32 by 32 to 64 bits.
func (w *asmWriter) wide() {
	for _, t := range []struct{ dt, extend, mul string }{{"Int32", "VPMOVSXDQ", "VPMULDQ"}, {"Uint32", "VPMOVZXDQ", "VPMULUDQ"}} {
		for form, kinds := range strings.Fields(both) {
			name := w.begin("OpMulWide")
			step := [4]int{256, 0, 0, 0}
			w.scalars(kinds, &step)
			w.f("l%s:", name)
			for v := range 8 {
				for i := range 2 {
					if kinds[i] == 'V' {
						w.f("\t%s %d(%s), Y%d", t.extend, 16*v, pointers[i], i)
					}
				}
				w.f("\t%s Y1, Y0, Y3\n\tVMOVDQU Y3, %d(DI)", t.mul, 32*v)
			}
			w.end("l"+name, step)
			w.table.f("t[kir.OpMulWide][dtype.%s][%d] = %s", t.dt, form, name)
		}
	}
}

// divisions writes quotients and remainders of 32-bit integers through float64. This is exact: a quotient that is not an integer differs
// from the next integer by more than float64's precision.
func (w *asmWriter) divisions() {
	for _, t := range []struct{ dt, quotient string }{
		{"Int32",
			"VEXTRACTI128 $1, Y0, X2; VEXTRACTI128 $1, Y1, X3; VCVTDQ2PD X0, Y4; VCVTDQ2PD X2, Y5; VCVTDQ2PD X1, Y6; VCVTDQ2PD X3, Y7; " +
				"VDIVPD Y6, Y4, Y4; VDIVPD Y7, Y5, Y5; VCVTTPD2DQY Y4, X4; VCVTTPD2DQY Y5, X5; VINSERTI128 $1, X5, Y4, Y4"},
		// 2^52 with an unsigned integer in its low bits is 2^52 plus that integer.
		{"Uint32",
			"VEXTRACTI128 $1, Y0, X2; VEXTRACTI128 $1, Y1, X3; VPMOVZXDQ X0, Y4; VPMOVZXDQ X2, Y5; VPMOVZXDQ X1, Y6; VPMOVZXDQ X3, Y7; " +
				"VPOR Y10, Y4, Y4; VPOR Y10, Y5, Y5; VPOR Y10, Y6, Y6; VPOR Y10, Y7, Y7; VSUBPD Y10, Y4, Y4; VSUBPD Y10, Y5, Y5; VSUBPD " +
				"Y10, Y6, Y6; VSUBPD Y10, Y7, Y7; " +
				"VDIVPD Y6, Y4, Y4; VDIVPD Y7, Y5, Y5; VROUNDPD $11, Y4, Y4; VROUNDPD $11, Y5, Y5; VADDPD Y10, Y4, Y4; VADDPD Y10, Y5, " +
				"Y5; VSHUFPS $0x88, Y5, Y4, Y4; VPERMQ $0xd8, Y4, Y4"},
	} {
		for _, op := range []string{"OpDiv", "OpRem"} {
			for form, kinds := range strings.Fields(both) {
				name := w.begin(op)
				step := [4]int{128, 0, 0, 0}
				w.constant(8, 0x4330000000000000, 0)
				w.scalars(kinds, &step)
				w.f("l%s:", name)
				for v := range 4 {
					for i := range 2 {
						if kinds[i] == 'V' {
							w.f("\tVMOVDQU %d(%s), Y%d", 32*v, pointers[i], i)
						}
					}
					// Division by 0 gives all ones.
					w.lines(t.quotient + "; VPXOR Y8, Y8, Y8; VPCMPEQD Y8, Y1, Y8; VPOR Y8, Y4, Y4")
					if op == "OpRem" {
						w.lines("VPMULLD Y1, Y4, Y4; VPSUBD Y4, Y0, Y4")
					}
					w.f("\tVMOVDQU Y4, %d(DI)", 32*v)
				}
				w.end("l"+name, step)
				w.table.f("t[kir.%s][dtype.%s][%d] = %s", op, t.dt, form, name)
			}
		}
	}
}

// counts writes the kernels that count: d = a, a + b, a + 2b and so on.
func (w *asmWriter) counts() {
	for _, t := range []struct {
		types, s string
		n        int
	}{{"Int32 Uint32", "D", 4}, {"Int64 Uint64", "Q", 8}} {
		name := w.begin("Count")
		per := 32 / t.n
		w.f("\tVPBROADCAST%[1]s (SI), Y0\n\tVPBROADCAST%[1]s (DX), Y1\n\tVPXOR Y2, Y2, Y2\n\tVPXOR Y3, Y3, Y3", t.s)
		// Y3 becomes 0, b, 2b, …, one bit of the multiples at a time. Y2 becomes per*b.
		for bit := 1; bit < per; bit *= 2 {
			blend := 0
			for i := range per {
				if i&bit != 0 {
					for d := range t.n / 4 {
						blend |= 1 << (i*t.n/4 + d)
					}
				}
			}
			w.f("\tVPBLENDD $%#x, Y1, Y2, Y4\n\tVPADD%[2]s Y4, Y3, Y3\n\tVPADD%[2]s Y1, Y1, Y1", blend, t.s)
		}
		w.f("\tVPADD%s Y3, Y0, Y0", t.s)
		w.f("l%s:", name)
		for v := range t.n {
			w.f("\tVMOVDQU Y0, %d(DI)\n\tVPADD%s Y1, Y0, Y0", 32*v, t.s)
		}
		w.end("l"+name, [4]int{32 * t.n})
		for _, dt := range strings.Fields(t.types) {
			w.table.f("t[kir.OpSpecial][dtype.%s][0] = %s", dt, name)
		}
	}
}

// gathers writes the gathers of 4-byte elements: d[i] = mem[idx[i] + off] for whole groups of 32 lanes, where the byte in b (if not nil) is
// not 0. They stop at the first group that has an index of limit or more, and return how many lanes they did.
func (w *asmWriter) gathers() {
	for _, t := range []struct {
		name string
		n    int
	}{{"avxGather32", 4}, {"avxGather64", 8}} {
		w.stubs.f("//go:noescape\nfunc %s(d, idx, mem, b unsafe.Pointer, n, off, limit int) int\n", t.name)
		w.f("TEXT ·%s(SB), NOSPLIT, $0-64", t.name)
		w.f("\tMOVQ d+0(FP), DI\n\tMOVQ idx+8(FP), SI\n\tMOVQ mem+16(FP), DX\n\tMOVQ b+24(FP), R8\n\tMOVQ n+32(FP), CX\n\tXORQ AX, AX")
		w.f("\tMOVQ limit+48(FP), R9\n\tVPCMPEQD Y15, Y15, Y15")
		if t.n == 4 {
			w.f("\tDECQ R9\n\tVPBROADCASTD off+40(FP), Y14\n\tVMOVQ R9, X13\n\tVPBROADCASTD X13, Y13")
		} else {
			w.f("\tVPBROADCASTQ off+40(FP), Y14\n\tVMOVQ R9, X13\n\tVPBROADCASTQ X13, Y13")
		}
		w.f("loop:\n\tSUBQ $32, CX\n\tJLT done")
		for v := range t.n {
			per := 32 / t.n
			// Y0: the positions; Y1: the mask of lanes.
			w.f("\tVMOVDQU %d(SI), Y0\n\tVMOVDQA Y15, Y1\n\tTESTQ R8, R8\n\tJZ all%d", 32*v, v)
			if t.n == 4 {
				w.f("\tVPMOVZXBD %d(R8), Y1\n\tVPXOR Y2, Y2, Y2\n\tVPCMPGTD Y2, Y1, Y1", per*v)
			} else {
				w.f("\tVPMOVZXBQ %d(R8), Y1\n\tVPXOR Y2, Y2, Y2\n\tVPCMPGTQ Y2, Y1, Y1", per*v)
			}
			w.f("all%d:", v)
			if t.n == 4 {
				w.f("\tVPADDD Y14, Y0, Y0\n\tVPAND Y1, Y0, Y0\n\tVPMINUD Y13, Y0, Y2\n\tVPCMPEQD Y2, Y0, Y2\n\tVPMOVMSKB Y2, " +
					"R10\n\tCMPL R10, $-1\n\tJNE done")
				w.f("\tVMOVDQU %d(DI), Y3\n\tVPGATHERDD Y1, (DX)(Y0*4), Y3\n\tVMOVDQU Y3, %d(DI)", 32*v, 32*v)
			} else {
				w.f("\tVPADDQ Y14, Y0, Y0\n\tVPAND Y1, Y0, Y0\n\tVPCMPGTQ Y0, Y13, Y2\n\tVPCMPGTQ Y15, Y0, Y4\n\tVPAND Y4, Y2, " +
					"Y2\n\tVPMOVMSKB Y2, R10\n\tCMPL R10, $-1\n\tJNE done")
				w.f("\tVEXTRACTI128 $1, Y1, X4\n\tVSHUFPS $0x88, X4, X1, X1\n\tVMOVDQU %d(DI), X3\n\tVPGATHERQD X1, (DX)(Y0*4), "+
					"X3\n\tVMOVDQU X3, %d(DI)", 16*v, 16*v)
			}
		}
		w.f("\tADDQ $32, AX\n\tADDQ $128, DI\n\tADDQ $%d, SI\n\tTESTQ R8, R8\n\tJZ loop\n\tADDQ $32, R8\n\tJMP loop", 32*t.n)
		w.f("done:\n\tMOVQ AX, ret+56(FP)\n\tVZEROUPPER\n\tRET\n")
	}
}

func generateAsm() (asm, stubs *writer) {
	w := &asmWriter{}
	w.f("// Code generated by lanegen; DO NOT EDIT.\n\n#include \"textflag.h\"\n")
	for _, o := range append(floatOps(), intOps()...) {
		for form, kinds := range strings.Fields(o.forms) {
			w.lanewise(&o, form, kinds)
		}
	}
	w.selects()
	w.conversions()
	w.wide()
	w.divisions()
	w.counts()
	w.gathers()
	s := &writer{}
	s.f("// Code generated by lanegen; DO NOT EDIT.\n\npackage vexec\n\nimport " +
		"(\n\"unsafe\"\n\n\"tenon.dev/dtype\"\n\"tenon.dev/internal/kir\"\n)\n")
	s.Write(w.stubs.Bytes())
	s.f("// fillAVX2 adds the kernels that use AVX2, FMA and F16C to the tables.\nfunc fillAVX2(t *opTable, c *cvtTable) {")
	s.Write(w.table.Bytes())
	s.f("}")
	return &w.writer, s
}
