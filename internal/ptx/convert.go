package ptx

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// convert emits OpCvt.
func (f *function) convert(in *kir.Instr) {
	from, to, a := f.p.Values[in.Args[0]], in.Type, f.names[in.Args[0]]
	switch {
	case from == to:
		f.op(move(classOf(to)), f.def(in.Res[0]), a)
	case from == dtype.Bool:
		f.fromBool(in, a)
	case to == dtype.Bool:
		f.toBool(in, from, a)
	case from.IsInt() && to.IsInt():
		f.intToInt(in, from, a)
	case from.IsInt():
		f.intToFloat(in, from, a)
	case to.IsInt():
		f.floatToInt(in, from, a)
	default:
		f.floatToFloat(in, from, a)
	}
}

// one holds the bits of 1 for the floating-point types.
var one = map[kir.Type]uint64{dtype.Float16: 0x3c00, dtype.BFloat16: 0x3f80, dtype.Float32: 0x3f800000, dtype.Float64: 0x3ff0000000000000}

func (f *function) fromBool(in *kir.Instr, a string) {
	bits := uint64(1)
	if in.Type.IsFloat() {
		bits = one[in.Type]
	}
	f.op("selp"+classType[classOf(in.Type)], f.def(in.Res[0]), literal(in.Type, bits), literal(in.Type, 0), a)
}

func (f *function) toBool(in *kir.Instr, from kir.Type, a string) {
	switch {
	case classOf(from) == half:
		bits := f.to(half, "and.b16", a, "0x7FFF")
		f.op("setp.ne.u16", f.def(in.Res[0]), bits, "0")
	case from.IsFloat():
		f.op("setp.neu"+suffix(from), f.def(in.Res[0]), a, literal(from, 0))
	default:
		f.op("setp.ne"+suffix(from), f.def(in.Res[0]), a, "0")
	}
}

func (f *function) intToInt(in *kir.Instr, from kir.Type, a string) {
	to, r := in.Type, f.def(in.Res[0])
	switch {
	case to.Size() == 8 && from.Size() == 8:
		f.op("mov.b64", r, a)
	case to.Size() == 8:
		f.op("cvt"+widened(from)+suffix(from), r, a)
	case from.Size() == 8:
		f.op("cvt.u32.u64", r, a)
		f.normalize(to, r)
	default:
		f.op("mov.b32", r, a)
		f.normalize(to, r)
	}
}

// widened returns the 64-bit PTX type with from's signedness.
func widened(from kir.Type) string {
	if from.IsSigned() {
		return ".s64"
	}
	return ".u64"
}

// intToFloat rounds once. Below sm_90 there is no direct conversion to bfloat16, so it goes through a float32 rounded to odd.
func (f *function) intToFloat(in *kir.Instr, from kir.Type, a string) {
	switch in.Type {
	case dtype.BFloat16:
		var x string
		if from.Size() <= 2 {
			x = f.to(single, "cvt.rn.f32"+suffix(from), a)
		} else {
			x = f.oddFromInt(from, a)
		}
		f.toBFloat16(f.def(in.Res[0]), x)
	case dtype.Float16:
		f.op("cvt.rn.f16"+suffix(from), f.def(in.Res[0]), a)
	default:
		f.op("cvt.rn"+suffix(in.Type)+suffix(from), f.def(in.Res[0]), a)
	}
}

// oddFromInt converts an integer to a float32 rounded to odd: truncated, with the last bit set if anything was lost. Rounding that to fewer
// bits gives the same result as rounding the integer (S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums").
func (f *function) oddFromInt(from kir.Type, a string) string {
	x := f.to(single, "cvt.rz.f32"+suffix(from), a)
	back := f.to(classOf(from), "cvt.rzi"+suffix(from)+".f32", x)
	lost := f.to(pred, "setp.ne"+suffix(from), back, a)
	return f.setOdd(x, lost)
}

// oddFromDouble narrows a float64 to a float32 rounded to odd.
func (f *function) oddFromDouble(a string) string {
	x := f.to(single, "cvt.rz.f32.f64", a)
	back := f.to(double, "cvt.f64.f32", x)
	lost := f.to(pred, "setp.neu.f64", back, a)
	return f.setOdd(x, lost)
}

func (f *function) setOdd(x, lost string) string {
	bit := f.to(word, "selp.b32", "1", "0", lost)
	bits := f.to(word, "mov.b32", x)
	f.op("or.b32", bits, bits, bit)
	return f.to(single, "mov.b32", bits)
}

// toBFloat16 rounds the float32 x into r. Below sm_80 this works on the bits: x + 0x7fff + (bit 16), and a NaN becomes 0x7fff.
func (f *function) toBFloat16(r, x string) {
	if f.m.sm >= 80 {
		f.m.need(70)
		f.op("cvt.rn.bf16.f32", r, x)
		return
	}
	bits := f.to(word, "mov.b32", x)
	even := f.to(word, "bfe.u32", bits, "16", "1")
	sum := f.to(word, "add.u32", bits, "32767")
	f.op("add.u32", sum, sum, even)
	nan := f.to(pred, "setp.nan.f32", x, x)
	f.op("selp.b32", sum, "0x7FFF0000", sum, nan)
	f.op("mov.b32", "{"+f.reg(half)+", "+r+"}", sum)
}

// toSingle returns a value of a half type as a float32, exactly.
func (f *function) toSingle(from kir.Type, a string) string {
	if from == dtype.Float16 {
		return f.to(single, "cvt.f32.f16", a)
	}
	zero := f.to(half, "mov.b16", "0")
	return f.to(single, "mov.b32", "{"+zero+", "+a+"}")
}

// floatToInt truncates and saturates. Devices differ in the 64-bit integer that they give for a NaN, so 0 is selected.
func (f *function) floatToInt(in *kir.Instr, from kir.Type, a string) {
	to := in.Type
	if classOf(from) == half {
		a, from = f.toSingle(from, a), dtype.Float32
	}
	r := f.def(in.Res[0])
	x := f.to(classOf(to), "cvt.rzi"+suffix(to)+suffix(from), a)
	switch to {
	case dtype.Int8:
		f.op("min.s32", x, x, "127")
		f.op("max.s32", x, x, "-128")
	case dtype.Int16:
		f.op("min.s32", x, x, "32767")
		f.op("max.s32", x, x, "-32768")
	case dtype.Uint8:
		f.op("min.u32", x, x, "255")
	case dtype.Uint16:
		f.op("min.u32", x, x, "65535")
	}
	nan := f.to(pred, "setp.nan"+suffix(from), a, a)
	f.op("selp"+untyped(to), r, "0", x, nan)
}

func (f *function) floatToFloat(in *kir.Instr, from kir.Type, a string) {
	to := in.Type
	if classOf(from) == half {
		if x := f.rounded[in.Args[0]]; x != "" && to == dtype.Float32 {
			// Rounding into the upper half of a word gives the float32 in one instruction.
			f.op("mov.b32", f.def(in.Res[0]), f.to(word, "cvt.rn.bf16x2.f32", x, literal(dtype.Float32, 0)))
			return
		}
		x := f.toSingle(from, a)
		switch to {
		case dtype.Float32:
			f.names[in.Res[0]] = x
		case dtype.Float64:
			f.op("cvt.f64.f32", f.def(in.Res[0]), x)
		default:
			f.toHalf(to, f.def(in.Res[0]), x)
		}
		return
	}
	if to == dtype.BFloat16 && from == dtype.Float32 && f.m.sm >= 80 {
		f.rounded[in.Res[0]] = a
	}
	r := f.def(in.Res[0])
	switch {
	case to == dtype.Float32:
		f.op("cvt.rn.f32.f64", r, a)
	case to == dtype.Float64:
		f.op("cvt.f64.f32", r, a)
	case from == dtype.Float64:
		f.toHalf(to, r, f.oddFromDouble(a))
	default:
		f.toHalf(to, r, a)
	}
}

// toHalf rounds the float32 x into r, a half of type to.
func (f *function) toHalf(to kir.Type, r, x string) {
	if to == dtype.Float16 {
		f.op("cvt.rn.f16.f32", r, x)
	} else {
		f.toBFloat16(r, x)
	}
}

// bitcast emits OpBitcast. Halves have 16-bit registers, but 16-bit integers have 32-bit ones.
func (f *function) bitcast(in *kir.Instr) {
	from, to, a := f.p.Values[in.Args[0]], in.Type, f.names[in.Args[0]]
	r := f.def(in.Res[0])
	switch {
	case classOf(to) == half && classOf(from) == word:
		f.op("cvt.u16.u32", r, a)
	case classOf(from) == half && classOf(to) == word:
		f.op("cvt"+suffix(to)+[...]string{".u16", ".s16"}[b2i(to.IsSigned())], r, a)
	default:
		f.op("mov"+untyped(to), r, a)
		if from != to {
			f.normalize(to, r)
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
