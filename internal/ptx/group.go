package ptx

import (
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// specials are the special registers, in the order of the IR's constants.
var specials = [...]string{"%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z",
	"%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid"}

const allLanes = "0xFFFFFFFF"

// shuffle emits OpShuffle. For constant amounts below 32, PTX has the rules of the IR. PTX would take other amounts modulo 32, so the
// source lane is computed first and replaced by the thread's own lane if it is outside the warp.
func (f *function) shuffle(in *kir.Instr) {
	mode, lane, clamp := "", f.names[in.Args[1]], "0x1F"
	if c, ok := f.constant(in.Args[1]); ok && c < 32 {
		mode = [...]string{"idx", "up", "down", "bfly"}[in.Sub]
		if in.Sub == kir.ShuffleUp {
			clamp = "0"
		}
	} else {
		mode = "idx"
		lane = f.sourceLane(in.Sub, lane)
	}
	a := f.names[in.Args[0]]
	exchange := func(c class, x string) string {
		return f.to(c, "shfl.sync."+mode+".b32", x, lane, clamp, allLanes)
	}
	r := f.def(in.Res[0])
	switch classOf(in.Type) {
	case half:
		f.op("cvt.u16.u32", r, exchange(word, f.to(word, "cvt.u32.u16", a)))
	case long, double:
		lo, hi := f.reg(word), f.reg(word)
		f.op("mov.b64", "{"+lo+", "+hi+"}", a)
		lo, hi = exchange(word, lo), exchange(word, hi)
		f.op("mov.b64", r, "{"+lo+", "+hi+"}")
	default:
		f.op("shfl.sync."+mode+".b32", r, a, lane, clamp, allLanes)
	}
}

// sourceLane returns the lane that a thread reads from.
func (f *function) sourceLane(how kir.Sub, amount string) string {
	own := f.to(word, "mov.u32", "%laneid")
	source := amount
	switch how {
	case kir.ShuffleUp:
		source = f.to(word, "sub.s32", own, amount)
	case kir.ShuffleDown:
		source = f.to(word, "add.s32", own, amount)
	case kir.ShuffleXor:
		source = f.to(word, "xor.b32", own, amount)
	}
	inside := f.to(pred, "setp.lt.u32", source, "32")
	return f.to(word, "selp.b32", source, own, inside)
}

func (f *function) vote(in *kir.Instr) {
	a, r := f.names[in.Args[0]], f.def(in.Res[0])
	switch in.Sub {
	case kir.VoteAny:
		f.op("vote.sync.any.pred", r, a, allLanes)
	case kir.VoteAll:
		f.op("vote.sync.all.pred", r, a, allLanes)
	default:
		f.op("vote.sync.ballot.b32", r, a, allLanes)
	}
}

// atomic emits OpAtomic, as a reduction if nothing uses the old value. PTX has only an unsigned addition of 64-bit integers.
func (f *function) atomic(in *kir.Instr) {
	operands := in.Args[1:]
	if in.Space == kir.Global {
		operands = in.Args[2:]
	}
	base, offset := f.address(in)
	size := in.Type.Size()
	kind := suffix(in.Type)
	switch in.Sub {
	case kir.AtomAdd:
		if in.Type == dtype.Int64 {
			kind = ".u64"
		}
	case kir.AtomAnd, kir.AtomOr, kir.AtomXor, kir.AtomExch, kir.AtomCAS:
		kind = map[int]string{4: ".b32", 8: ".b64"}[size]
	}
	space := ".global"
	if in.Space == kir.Shared {
		space = ".shared"
	}
	name := [...]string{"add", "min", "max", "and", "or", "xor", "exch", "cas"}[in.Sub]
	args := []string{location(base, offset)}
	for _, v := range operands {
		args = append(args, f.names[v])
	}
	if len(in.Res) == 0 && in.Sub < kir.AtomExch {
		f.op("red.relaxed.gpu"+space+"."+name+kind, args...)
		return
	}
	r := f.reg(classOf(in.Type))
	if len(in.Res) > 0 {
		f.names[in.Res[0]] = r
	}
	f.op("atom.relaxed.gpu"+space+"."+name+kind, append([]string{r}, args...)...)
}

// assert emits a call of the driver's assertion function if the condition is false.
func (f *function) assert(in *kir.Instr) {
	f.m.assertFunction()
	var l kir.Loc
	if in.Loc > 0 && in.Loc < len(f.p.Locs) {
		l = f.p.Locs[in.Loc]
	}
	past := f.label()
	f.when(f.names[in.Args[0]], "bra", past)
	generic := func(s string) string {
		return f.to(long, "cvta.global.u64", f.to(long, "mov.u64", f.m.cstring(s)))
	}
	text := in.Text
	if len(in.Args) > 1 { // the driver's function takes no numbers
		text = strings.ReplaceAll(text, "%v", "…")
	}
	message, file, kernel := generic(text), generic(l.File), generic(f.p.Name)
	line := f.to(word, "mov.b32", itoa(l.Line))
	size := f.to(long, "mov.b64", "1")
	f.b = append(f.b, "\t{\n"...)
	for i, a := range []struct{ kind, value string }{{".b64", message}, {".b64", file}, {".b32", line}, {".b64", kernel}, {".b64", size}} {
		f.op(".param " + a.kind + " argument" + itoa(i))
		f.op("st.param"+a.kind, "[argument"+itoa(i)+"]", a.value)
	}
	f.op("call", assertSymbol, "(argument0, argument1, argument2, argument3, argument4)")
	f.b = append(f.b, "\t}\n"...)
	f.place(past)
}
