package ptx

import (
	"maps"
	"slices"

	"tenon.dev/internal/kir"
)

// A late passage leaves a tile in shared memory when its products are done, and the threads run the region of its TileEach on it step by
// step, while the products of the next tile run. The matrix units then wait only until the sums have left the registers.
type late struct {
	each *kir.Instr
	p    passage
	// used are the values of the body around the region that the region uses, and kept registers with their values for the tile that was
	// left.
	used []kir.Value
	kept map[kir.Value]string
	// steps is the number of steps for a tile, and left a register with the number of those left to do.
	steps int
	left  string
	// stages is the number of stages that the loop would have without a late passage.
	stages int
}

const (
	// groupsPerStep is the number of groups of a thread in a step. With 1 or 3, GPT-2's products of depth 768 were 3 % slower on an H200
	// than with 2, in a form in which the first warp had none.
	groupsPerStep = 2
	// leastStages is the minimum number of stages that a late passage leaves to the loop.
	leastStages = 3
)

// planLate lets the tile with which the body of l ends be passed late: if it leaves the registers as halves, so that the whole of it fits
// in shared memory beside the stages of q, and if it makes no difference that the region runs after the next iteration has begun.
func (plan *tilePlan) planLate(p *kir.Program, l *kir.Instr, q *pipeline) {
	body := l.Blocks[0].Instrs
	in := body[len(body)-1]
	if in.Op != kir.OpTileEach || !startsAlone(body[:len(body)-1], q.loop) || !movable(in, l.Blocks[0]) {
		return
	}
	t := plan.tiles[in.Sym]
	if !t.acc || t.arr.unit != wgmma || t.arr.turned || t.InParts() > 1 || t.Cols == 1 || q.drifts {
		return
	}
	d := &late{each: in, p: plan.passage(in, sharedLimit(plan.sm)), used: usedFrom(in, l.Blocks[0], q.loop), stages: q.stages}
	step := groupsPerStep * plan.threads * in.Width
	if d.p.rounds == nil || d.p.passes > 1 || d.p.cols < t.Cols || t.Rows*t.Cols%step != 0 {
		return
	}
	d.steps = t.Rows * t.Cols / step
	free := sharedLimit(plan.sm) - staticShared(p) - plan.round(d.p.bytes()) - mapRoom*len(q.loads)
	if stages := min(q.stages, free/q.bytes); stages >= leastStages {
		q.stages, q.late = stages, d
	}
}

// withdrawLate withdraws all late passages, and reports whether there were any.
func (plan *tilePlan) withdrawLate() (found bool) {
	//tenon:unordered each is changed alike
	for _, q := range plan.around {
		if d := q.late; d != nil {
			q.late, q.stages, found = nil, d.stages, true
		}
	}
	return found
}

// startsAlone reports whether the instructions up to loop, which is one of body, neither load from memory nor have effects, so that work
// that is left from the iteration before may run after them. No tile may pass through shared memory in body.
func startsAlone(body []*kir.Instr, loop *kir.Instr) bool {
	started := false
	for _, x := range body {
		started = started || x == loop
		for _, y := range within(x, nil) {
			switch y.Op {
			case kir.OpTileEach:
				return false
			case kir.OpLoad:
				if !started && changes(y.Space) {
					return false
				}
			case kir.OpStore, kir.OpAtomic, kir.OpFence, kir.OpBarrier, kir.OpAssert, kir.OpTileLoad, kir.OpTileDot:
				if !started {
					return false
				}
			}
		}
	}
	return true
}

// movable reports whether the region of in, a part of body, may run step by step between the products of the next tile: it only stores to
// global memory, and reads no variable that body sets.
func movable(in *kir.Instr, body *kir.Block) bool {
	set := map[int]bool{}
	variables(body, set)
	for _, x := range within(in, nil)[1:] {
		switch x.Op {
		case kir.OpBarrier, kir.OpReturn, kir.OpSet:
			return false
		case kir.OpGet:
			if set[x.Sym] {
				return false
			}
		case kir.OpLoad:
			if changes(x.Space) { // the products would wait for it too
				return false
			}
		case kir.OpStore, kir.OpAtomic:
			if x.Space != kir.Global {
				return false
			}
		}
	}
	return true
}

// changes reports whether a kernel can store in memory of space s.
func changes(s kir.Space) bool { return s != kir.Const && s != kir.ParamSpace }

// usedFrom returns the values of body, except the constants before loop, that the region of in uses.
func usedFrom(in *kir.Instr, body *kir.Block, loop *kir.Instr) (used []kir.Value) {
	made, started := map[kir.Value]bool{body.Params[0]: true}, false
	for _, x := range body.Instrs {
		started = started || x == loop
		for _, v := range x.Res {
			made[v] = started || x.Op != kir.OpConst
		}
	}
	for _, x := range within(in, nil) {
		for _, v := range x.Args {
			if made[v] && !slices.Contains(used, v) {
				used = append(used, v)
			}
		}
	}
	return used
}

// beginLate prepares the registers of d: there is no tile yet.
func (f *function) beginLate(d *late) {
	d.left, d.kept = f.to(word, "mov.b32", "0"), map[kir.Value]string{}
	for _, v := range d.used {
		d.kept[v] = f.reg(classOf(f.p.Values[v]))
	}
	f.tiles.roundEarly(d.p)
}

// leave emits the TileEach of d. Nothing is left to do of the tile before: that ended with the loop of the products.
func (f *function) leave(d *late) {
	t := f.tiles.tiles[d.each.Sym]
	f.barrier() // all threads have read the tile before
	f.leaveRegisters(t, d.p, f.passageAt(t, d.p), 0, 0)
	for _, v := range d.used {
		f.op(move(classOf(f.p.Values[v])), d.kept[v], f.names[v])
	}
	f.op("mov.b32", d.left, itoa(d.steps))
}

// lateStep runs the region on some of the tile that was left, if there is anything left to do. The threads have met since it was left.
func (f *function) lateStep(d *late) {
	past := f.label()
	f.when(f.to(pred, "setp.eq.b32", d.left, "0"), "bra", past)
	f.lateGroups(d)
	f.place(past)
}

// lateRest runs the region on the rest of the tile that was left.
func (f *function) lateRest(d *late) {
	head, past := f.label(), f.label()
	f.when(f.to(pred, "setp.eq.b32", d.left, "0"), "bra", past)
	f.barrier()
	f.place(head)
	f.lateGroups(d)
	f.when(f.to(pred, "setp.ne.b32", d.left, "0"), "bra", head)
	f.place(past)
}

// lateGroups runs the region on the groups of one step. Their registers are filled together, so that a thread waits for them once.
func (f *function) lateGroups(d *late) {
	f.op("sub.s32", d.left, d.left, "1")
	names, rounded := slices.Clone(f.names), maps.Clone(f.rounded)
	//tenon:unordered each has its own name
	for v, r := range d.kept {
		f.names[v] = r
		delete(f.rounded, v) // the register holds the next tile's
	}
	plan, in := f.tiles, d.each
	t, b := plan.tiles[in.Sym], in.Blocks[0]
	per, into := t.Cols/in.Width, d.p.into()
	first := f.madImm(d.left, groupsPerStep*plan.threads, plan.tid)
	var at [groupsPerStep][2]string
	var regs [groupsPerStep][]string
	for i := range groupsPerStep {
		g := f.addImm(first, i*plan.threads)
		at[i] = [2]string{f.divImm(g, per), f.mulImm(f.remImm(g, per), in.Width)}
		regs[i] = f.passed(in, t, d.p, into, at[i][0], at[i][1])
	}
	for i := range groupsPerStep {
		for j, v := range into {
			f.names[v] = regs[i][j]
		}
		f.names[b.Params[0]], f.names[b.Params[1]] = at[i][0], at[i][1]
		f.blockBut(b, nil)
	}
	f.names, f.rounded = names, rounded
}
