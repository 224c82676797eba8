package ptx

import (
	"tenon.dev/internal/kir"
)

// block emits the instructions of a region.
func (f *function) block(b *kir.Block) { f.blockBut(b, nil) }

// blockBut emits b without the instructions that are done.
func (f *function) blockBut(b *kir.Block, done map[*kir.Instr]bool) {
	f.pairProducts(b, done)
	for _, in := range b.Instrs {
		if done[in] {
			continue
		}
		f.at(in)
		switch in.Op {
		case kir.OpIf, kir.OpFor, kir.OpLoop, kir.OpBreak, kir.OpContinue, kir.OpReturn:
			if f.tiles.loops[in] == nil { // a pipeline settles once its own loads have started
				f.settle()
			}
		}
		f.instr(in)
	}
	if len(b.Instrs) > 0 && b.Instrs[len(b.Instrs)-1].Op != kir.OpYield {
		f.settle()
	}
}

// instr emits one instruction.
//
//tenon:table the operations and what writes them
func (f *function) instr(in *kir.Instr) {
	switch in.Op {
	case kir.OpConst:
		f.consts[in.Res[0]] = extend(in.Type, in.Imm)
		f.op(move(classOf(in.Type)), f.def(in.Res[0]), literal(in.Type, in.Imm))
	case kir.OpParam:
		f.loadParam(in)
	case kir.OpSpecial:
		f.op("mov.u32", f.def(in.Res[0]), specials[in.Sub])
	case kir.OpGet:
		f.op(move(classOf(f.p.Vars[in.Sym])), f.def(in.Res[0]), f.vars[in.Sym])
	case kir.OpSet:
		f.op(move(classOf(f.p.Vars[in.Sym])), f.vars[in.Sym], f.names[in.Args[0]])
	case kir.OpMul, kir.OpMulHi:
		if other := f.halves[in]; other != nil {
			f.wholeProduct(in, other)
			return
		}
		f.arithmetic(in)
	case kir.OpAdd, kir.OpSub, kir.OpDiv, kir.OpRem, kir.OpFMA, kir.OpNeg, kir.OpAbs, kir.OpMin, kir.OpMax,
		kir.OpSqrt, kir.OpFloor, kir.OpCeil, kir.OpTrunc, kir.OpRint, kir.OpExp2, kir.OpRcp:
		f.arithmetic(in)
	case kir.OpMinimum, kir.OpMaximum:
		f.extreme(in)
	case kir.OpMulWide:
		f.op("mul.wide"+suffix(in.Type), f.def(in.Res[0]), f.names[in.Args[0]], f.names[in.Args[1]])
	case kir.OpAnd, kir.OpOr, kir.OpXor, kir.OpNot:
		f.bitwise(in)
	case kir.OpShl, kir.OpShr:
		f.shift(in)
	case kir.OpClz, kir.OpPopc, kir.OpBitRev:
		f.bits(in)
	case kir.OpEq, kir.OpNe, kir.OpLt, kir.OpLe, kir.OpGt, kir.OpGe, kir.OpIsNaN:
		f.compare(in)
	case kir.OpSelect:
		f.selection(in)
	case kir.OpCvt:
		if !f.tiles.rounded[in] {
			f.convert(in)
		}
	case kir.OpBitcast:
		f.bitcast(in)
	case kir.OpLoad:
		f.load(in)
	case kir.OpStore:
		f.store(in)
	case kir.OpAtomic:
		f.atomic(in)
	case kir.OpPtrAdd:
		f.pointerAdd(in)
	case kir.OpBarrier:
		f.barrier()
	case kir.OpFence:
		f.op("fence.acq_rel.gpu")
	case kir.OpPrefetch:
		if f.m.sm >= waitsFrom {
			f.op("prefetch.global.L2", "["+f.names[in.Args[0]]+"]")
		}
	case kir.OpWait:
		if f.m.sm >= waitsFrom {
			f.op("griddepcontrol.wait")
		}
	case kir.OpShuffle:
		f.shuffle(in)
	case kir.OpVote:
		f.vote(in)
	case kir.OpAssert:
		f.assert(in)
	case kir.OpClock:
		f.op("mov.u64", f.def(in.Res[0]), "%clock64")
	case kir.OpIf:
		f.branch(in)
	case kir.OpFor:
		f.count(in)
	case kir.OpLoop:
		f.repeat(in)
	case kir.OpBreak:
		f.op("bra", f.loops[len(f.loops)-1].exit)
	case kir.OpContinue:
		f.op("bra", f.loops[len(f.loops)-1].next)
	case kir.OpReturn:
		f.op("ret")
	default:
		f.tileInstr(in)
	}
}

func (f *function) barrier() { f.op("bar.sync", "0") }

// branch emits OpIf.
func (f *function) branch(in *kir.Instr) {
	f.await(f.tiles.touched(in)...) // for both branches
	cond := f.names[in.Args[0]]
	end := f.label()
	hasElse := len(in.Blocks) > 1 && in.Blocks[1] != nil && len(in.Blocks[1].Instrs) > 0
	if !hasElse {
		f.unless(cond, "bra", end)
		f.block(in.Blocks[0])
		f.place(end)
		return
	}
	other := f.label()
	f.unless(cond, "bra", other)
	f.block(in.Blocks[0])
	f.op("bra", end)
	f.place(other)
	f.block(in.Blocks[1])
	f.place(end)
}

// count emits OpFor.
func (f *function) count(in *kir.Instr) {
	if q := f.tiles.loops[in]; q != nil {
		f.pipeline(in, q)
		return
	}
	if q := f.tiles.around[in]; q != nil {
		f.around(in, q)
		return
	}
	f.await(f.tiles.touched(in)...) // even if it has no iterations
	f.counted(in, func() { f.block(in.Blocks[0]) })
}

// counted emits a counting loop around body. In the body, the counter's register holds the counter.
func (f *function) counted(in *kir.Instr, body func()) {
	s := signedOf(in)
	head := f.label()
	l := loop{next: f.label(), exit: f.label()}
	i := f.def(in.Blocks[0].Params[0])
	f.op(move(classOf(in.Type)), i, f.names[in.Args[0]])
	f.place(head)
	f.when(f.to(pred, "setp.ge"+s, i, f.names[in.Args[1]]), "bra", l.exit)
	f.loops = append(f.loops, l)
	body()
	f.loops = f.loops[:len(f.loops)-1]
	f.place(l.next)
	f.op("add"+s, i, i, f.names[in.Args[2]])
	f.op("bra", head)
	f.place(l.exit)
}

// repeat emits OpLoop.
func (f *function) repeat(in *kir.Instr) {
	f.await(f.tiles.touched(in)...)
	l := loop{next: f.label(), exit: f.label()}
	f.place(l.next)
	f.loops = append(f.loops, l)
	f.block(in.Blocks[0])
	f.loops = f.loops[:len(f.loops)-1]
	f.op("bra", l.next)
	f.place(l.exit)
}
