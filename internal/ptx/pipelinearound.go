package ptx

import (
	"maps"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// A loop around a pipelined one may allow that its next iteration's first loads run while the rest of its body does: while a block of a
// product passes on and stores one tile, the copy engine fetches the operands of the next.

// planAround lets the pipelined loop in the body of l, if there is just one and tensor maps describe its loads, run ahead of l's iterations
// too. Its bounds must not change between them, the places of its loads must follow from l's counter, and every iteration must run it.
func (plan *tilePlan) planAround(l *kir.Instr) {
	body := l.Blocks[0]
	made := map[kir.Value]*kir.Instr{}
	var q *pipeline
	for _, in := range body.Instrs {
		for _, v := range in.Res {
			made[v] = in
		}
		if p := plan.loops[in]; p != nil {
			if q != nil {
				return
			}
			q = p
		}
	}
	counter := body.Params[0]
	changes := func(v kir.Value) bool { return v == counter || made[v] != nil && made[v].Op != kir.OpConst }
	if q == nil || !q.mapped || leaves(body, false) || slices.ContainsFunc(q.loop.Args, changes) {
		return
	}
	set, wanted, sound := map[int]bool{}, map[*kir.Instr]bool{}, true
	variables(body, set)
	var need func(args []kir.Value)
	need = func(args []kir.Value) {
		for _, v := range args {
			in := made[v]
			if in == nil || wanted[in] {
				continue
			}
			wanted[in] = true
			switch in.Op {
			case kir.OpLoad, kir.OpAtomic, kir.OpShuffle, kir.OpVote, kir.OpClock:
				sound = false
			case kir.OpGet:
				sound = sound && !set[in.Sym]
			}
			sound = sound && len(in.Blocks) == 0
			need(in.Args)
		}
	}
	for _, in := range slices.Concat(q.slice, q.loads, []*kir.Instr{q.loop}) {
		need(in.Args)
	}
	for _, in := range q.slice { // planPipeline looked at what the inner loop's own body changes only
		sound = sound && !(in.Op == kir.OpGet && set[in.Sym]) && !(in.Op == kir.OpLoad && in.Space == kir.Shared)
	}
	if !sound {
		return
	}
	q.around, q.before = l, inOrder(body, wanted)
	plan.around[l] = q
}

// leaves reports whether b, the body of a loop or a region in it, may end an iteration of the loop early. within says that b is in an inner
// loop.
func leaves(b *kir.Block, within bool) bool {
	for _, in := range b.Instrs {
		switch in.Op {
		case kir.OpReturn:
			return true
		case kir.OpBreak, kir.OpContinue:
			if !within {
				return true
			}
		case kir.OpIf, kir.OpFor, kir.OpLoop:
			inner := within || in.Op != kir.OpIf
			if slices.ContainsFunc(in.Blocks, func(sub *kir.Block) bool { return sub != nil && leaves(sub, inner) }) {
				return true
			}
		}
	}
	return false
}

// around emits a loop around a pipelined one that runs ahead of it.
func (f *function) around(in *kir.Instr, q *pipeline) {
	c := classOf(in.Type)
	q.nextAround, q.next = f.to(c, move(c), f.names[in.Args[0]]), map[kir.Value]string{}
	names, rounded := slices.Clone(f.names), maps.Clone(f.rounded)
	f.nextBefore(q)
	inner := q.loop.Args
	empty := f.to(pred, "setp.ge"+signedOf(q.loop), f.names[inner[0]], f.names[inner[1]])
	f.when(empty, move(c), q.nextAround, f.names[in.Args[1]]) // nobody waits for loads then
	f.firstLoads(q)
	f.names, f.rounded = names, rounded
	if q.late != nil {
		f.beginLate(q.late)
	}
	f.counted(in, func() { f.block(in.Blocks[0]) })
	if q.late != nil {
		f.lateRest(q.late)
	}
}

// nextBefore computes what the loads for the iteration with counter nextAround need of the body around their loop.
func (f *function) nextBefore(q *pipeline) {
	f.names[q.around.Blocks[0].Params[0]] = q.nextAround
	for _, x := range q.before { // wholeProduct takes a name to mean that the product is there
		for _, v := range x.Res {
			f.names[v] = ""
		}
	}
	for _, x := range q.before {
		f.at(x)
		f.instr(x)
	}
	for _, x := range q.before {
		for _, v := range x.Res {
			c := classOf(f.p.Values[v])
			if q.next[v] == "" {
				q.next[v] = f.reg(c)
			}
			f.op(move(c), q.next[v], f.names[v])
		}
	}
}

// copyAround starts the copies for the iteration with counters nextAround and ahead, if that is within the loops, and advances.
func (f *function) copyAround(q *pipeline) {
	//tenon:unordered each has its own name
	for v, r := range q.next {
		f.names[v] = r
	}
	f.names[q.around.Blocks[0].Params[0]] = q.nextAround
	outer, inner := signedOf(q.around), signedOf(q.loop)
	within, end := f.to(pred, "setp.lt"+outer, q.nextAround, f.names[q.around.Args[1]]), f.label()
	f.unless(within, "bra", end) // nothing waits for what would follow
	f.copyStage(q, within)
	f.advance(q.write, q)
	f.advanceBarrier(q.filling, q)
	f.op("add"+inner, q.ahead, q.ahead, f.names[q.loop.Args[2]])
	f.when(f.to(pred, "setp.lt"+inner, q.ahead, f.names[q.loop.Args[1]]), "bra", end)
	f.op(move(classOf(q.loop.Type)), q.ahead, f.names[q.loop.Args[0]])
	f.op("add"+outer, q.nextAround, q.nextAround, f.names[q.around.Args[2]])
	f.nextBefore(q)
	f.place(end)
}

// signedOf returns the suffix of a loop's counter.
func signedOf(loop *kir.Instr) string {
	if loop.Type == dtype.Int64 {
		return ".s64"
	}
	return ".s32"
}
