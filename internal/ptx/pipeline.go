package ptx

import (
	"maps"
	"slices"

	"tenon.dev/internal/kir"
)

// A pipeline runs the tile loads of a counting loop some iterations ahead of the rest of its body.
type pipeline struct {
	stages int
	// groups is the number of products by wgmma in the body. They run in the background until those of the next iteration, and so occupy
	// their operands' stage for one more iteration.
	groups int
	// loads are the tile loads, and slice the instructions of the body that they need.
	loads, slice []*kir.Instr
	// guarded says that loads also run beyond the loop's end and write zeros there. This saves a jump around them, so that the assembler
	// can interleave them with products. Their regions must not read memory then. With mma it would need more registers than there are.
	guarded bool
	// rotated is the body's product by mma if it is the only product and no map reads rows: the first fragments of an iteration are then
	// read in the preceding one.
	rotated *kir.Instr
	first   *fragments
	// offset is the offset of the first stage in the tiles' memory, bytes the size of a stage.
	offset, bytes int
	// read and write are registers with the addresses of the stage that products read and of the next stage that loads fill. end holds the
	// address after the last stage.
	read, write, end string
	reuse            *reuse
	// mapped says that loads are copies by tensor maps. barriers is the offset of the stages' barriers in the tiles' memory; full and
	// filling are registers with the addresses of the barriers of read and write, lastBarrier holds the address after the last barrier, and
	// phase the current phase of full. drifts says that the body has several products, between which warps work and fall out of
	// step; free then has the number of the hardware barrier of the stage that loads fill next.
	mapped, drifts                          bool
	barriers                                int
	full, filling, lastBarrier, phase, free string
	// loop is the loop, and ahead the register with the counter of the next iteration to load for.
	loop  *kir.Instr
	ahead string
	// around is a loop whose iterations the loads run ahead of too, or nil. They use results of the instructions before in its body. next
	// are the registers with those results for the iteration of around to load for, whose counter is in nextAround.
	around     *kir.Instr
	before     []*kir.Instr
	next       map[kir.Value]string
	nextAround string
	// late is how the tile of an iteration of around is passed on while the next one runs, or nil.
	late *late
}

// sharedLimit returns how many bytes of shared memory a block may use on capability sm (CUDA C++ Programming Guide, "Compute
// Capabilities").
func sharedLimit(sm int) int {
	switch sm {
	case 75:
		return 64 << 10
	case 80, 87:
		return 163 << 10
	case 90, 100, 101, 103:
		return 227 << 10
	}
	return 99 << 10
}

// planPipeline returns the pipeline of loop l. It returns nil if l does not ask for one or a load cannot run ahead: the body has effects,
// loads a tile twice, exits early, or computes what a load needs in a way that collect rejects.
func planPipeline(p *kir.Program, l *kir.Instr, plan *tilePlan, u *tileUses) *pipeline {
	q := &pipeline{stages: int(l.Imm), loop: l}
	if q.stages < 2 || !plan.async || !repeatable(l.Blocks[0], false, false) {
		return nil
	}
	body := l.Blocks[0]
	made := map[kir.Value]*kir.Instr{}
	inside := map[*kir.Instr]bool{}
	bytes := 0
	for _, in := range body.Instrs {
		inside[in] = true
		for _, v := range in.Res {
			made[v] = in
		}
		if in.Op == kir.OpTileLoad {
			q.loads = append(q.loads, in)
			bytes += plan.tiles[in.Sym].bytes()
		}
	}
	for _, load := range q.loads {
		if !plan.exclusive(load, body, inside, u) {
			return nil
		}
	}
	free := sharedLimit(plan.sm)
	for _, a := range p.Shared {
		free -= max(0, a.Count) * a.Type.Size()
	}
	//tenon:unordered it is a sum of integers
	for _, other := range plan.loops {
		free -= other.stages * other.bytes
	}
	for _, in := range q.loads {
		if len(in.Args) > 0 {
			free -= mapRoom
		}
	}
	if q.bytes = plan.round(bytes); bytes > 0 {
		q.stages = min(q.stages, free/q.bytes)
	}
	if len(q.loads) == 0 || q.stages < 2 || !q.collect(l, made) {
		return nil
	}
	q.products(plan, inside, u)
	if q.mapped {
		if q.drifts {
			q.stages = min(q.stages, hardwareBarriers-1)
		}
		plan.mapped = append(plan.mapped, q)
	}
	return q
}

// readsRows reports whether maps in the loop read rows, which come from the iteration's own stage.
func (plan *tilePlan) readsRows(loop *kir.Instr, u *tileUses) bool {
	return slices.ContainsFunc(within(loop, nil), func(in *kir.Instr) bool {
		if in.Op != kir.OpTileMap {
			return false
		}
		_, rows := u.readByMap(in)
		return len(rows) > 0
	})
}

// products examines the products of the body.
func (q *pipeline) products(plan *tilePlan, inside map[*kir.Instr]bool, u *tileUses) {
	count := 0
	for _, in := range u.dots {
		if !inside[in] {
			continue
		}
		count++
		switch a := plan.tiles[in.Sym].arr; {
		case a.unit == wgmma:
			q.groups++
		case a.unit.fragments():
			q.guarded = false
			if a.unit == mma16 && a.down*a.across == plan.threads/32 { // mma8 has no registers left for it
				q.rotated = in
			}
		}
	}
	q.drifts = count > 1
	if count != 1 || plan.readsRows(q.loop, u) {
		q.rotated = nil
	}
	if q.mapped = q.mappable(plan); !q.mapped && q.stages == 2 { // the stage is needed at once
		q.groups = 0
	}
}

// distance is the number of iterations that loads run ahead.
func (q *pipeline) distance() int {
	if q.groups > 0 && !q.mapped {
		return q.stages - 2
	}
	return q.stages - 1
}

// exclusive reports whether a load's tile is loaded only there, and used only later in the same body: by products, or as a row by maps,
// also those in nested regions.
func (plan *tilePlan) exclusive(load *kir.Instr, body *kir.Block, inside map[*kir.Instr]bool, u *tileUses) bool {
	after := map[*kir.Instr]bool{}
	loaded := false
	for _, in := range body.Instrs {
		if loaded = loaded || in == load; loaded {
			for _, x := range within(in, nil) {
				after[x] = true
			}
		}
	}
	for _, in := range u.loads {
		if in != load && in.Sym == load.Sym {
			return false
		}
	}
	for _, in := range u.dots {
		a, b := dotOperands(in)
		if (a == load.Sym || b == load.Sym) && !(inside[in] && after[in]) {
			return false
		}
	}
	for _, in := range u.maps {
		if slices.Contains(in.MapOthers(), load.Sym) && !after[in] {
			return false
		}
	}
	for _, in := range u.others {
		if in.Sym == load.Sym {
			return false
		}
	}
	return true
}

// repeatable reports whether b, the body of a loop or (nested) a region in it, has no effects on memory, no nested tile loads, products or
// zeroing, and no jumps out of the loop. loop says that b is in an inner loop, which it may leave.
func repeatable(b *kir.Block, nested, loop bool) bool {
	for _, in := range b.Instrs {
		switch in.Op {
		case kir.OpStore, kir.OpAtomic, kir.OpFence, kir.OpBarrier, kir.OpAssert, kir.OpReturn, kir.OpTileEach:
			return false
		case kir.OpBreak, kir.OpContinue:
			if !loop {
				return false
			}
		case kir.OpTileLoad, kir.OpTileDot, kir.OpTileZero:
			if nested {
				return false
			}
		}
		for _, sub := range in.Blocks {
			if sub != nil && !repeatable(sub, true, loop || in.Op == kir.OpFor || in.Op == kir.OpLoop) {
				return false
			}
		}
	}
	return true
}

// collect finds the slice: the instructions of the body that the loads' regions use. They must have no regions and no effects, must not
// depend on variables that the loop sets, and must not be shuffles, votes or the clock.
func (q *pipeline) collect(l *kir.Instr, made map[kir.Value]*kir.Instr) bool {
	set := map[int]bool{}
	variables(l.Blocks[0], set)
	wanted := map[*kir.Instr]bool{}
	sound := true
	q.guarded = true
	var need func(in *kir.Instr)
	need = func(in *kir.Instr) {
		switch in.Op {
		case kir.OpGet:
			sound = sound && !set[in.Sym]
		case kir.OpLoad, kir.OpIf, kir.OpLoop, kir.OpFor:
			q.guarded = false
		case kir.OpSet, kir.OpShuffle, kir.OpVote, kir.OpClock:
			sound = false
		}
		for _, v := range in.Args {
			if d := made[v]; d != nil && !wanted[d] {
				wanted[d] = true
				sound = sound && len(d.Blocks) == 0
				need(d)
			}
		}
		for _, b := range in.Blocks {
			for _, sub := range b.Instrs {
				need(sub)
			}
		}
	}
	for _, load := range q.loads {
		need(load)
	}
	q.slice = inOrder(l.Blocks[0], wanted)
	return sound
}

// inOrder returns the instructions of b that are wanted.
func inOrder(b *kir.Block, wanted map[*kir.Instr]bool) (list []*kir.Instr) {
	for _, in := range b.Instrs {
		if wanted[in] {
			list = append(list, in)
		}
	}
	return list
}

// variables collects the variables that b sets.
func variables(b *kir.Block, set map[int]bool) {
	for _, in := range b.Instrs {
		if in.Op == kir.OpSet {
			set[in.Sym] = true
		}
		for _, sub := range in.Blocks {
			if sub != nil {
				variables(sub, set)
			}
		}
	}
}

// pipeline emits a pipelined loop. Iteration i waits for the loads of its own stage, then all threads meet at a barrier. After it, the
// stage of iteration i-1 is free (i-2 if products continue in the background), which is the one that the loads of iteration i+distance
// fill. With copies by tensor maps, threads wait only for their stage to be filled, and meet once the products of iteration i-1 are done.
// Warps that drift apart do not meet: each says when it is done with the stage of iteration i-1, and the one that starts the copies waits
// for that.
func (f *function) pipeline(in *kir.Instr, q *pipeline) {
	if q.around == nil {
		f.firstLoads(q)
	} else {
		f.settle()
	}
	if q.rotated != nil {
		f.op("cp.async.wait_group", itoa(q.distance()-1))
		f.barrier()
		f.firstFragments(q.rotated)
	}
	f.counted(in, func() {
		switch {
		case q.mapped:
			f.awaitStage(q)
		case q.rotated == nil:
			f.op("cp.async.wait_group", itoa(q.distance()-1))
			f.publish()
			f.barrier()
		}
		f.tiles.flight = f.tiles.carried(q)
		f.tiles.ahead = func() {
			if q.mapped { // all but this iteration's first products are done, so the stage of the preceding iteration is free
				f.awaitAllBut(1)
				f.release(q)
			}
			names, rounded := slices.Clone(f.names), maps.Clone(f.rounded) // those of this iteration
			f.loadStage(q)
			f.names, f.rounded = names, rounded
		}
		// A rotated product moves on to the next stage itself.
		f.tiles.turn = func() {
			f.op("cp.async.wait_group", itoa(q.distance()-1))
			f.barrier()
			f.advance(q.read, q)
		}
		for _, x := range in.Blocks[0].Instrs {
			if x.Op != kir.OpTileLoad {
				f.at(x)
				f.instr(x)
			}
		}
		f.loadAhead()
		if q.late != nil {
			f.lateStep(q.late)
		}
		if !q.mapped {
			f.awaitAllBut(q.groups)
		}
		if q.rotated == nil {
			f.advance(q.read, q)
		}
		if q.mapped {
			f.when(f.advanceBarrier(q.full, q), "xor.b32", q.phase, q.phase, "1")
		}
	})
	if q.late != nil {
		f.lateRest(q.late)
	}
	f.drain()
	if !q.mapped {
		f.op("cp.async.wait_all")
	}
}

// firstLoads begins the loads of a pipeline.
func (f *function) firstLoads(q *pipeline) {
	if q.mapped { // loads from before the loop may still be running when the loop's first loads begin
		f.publish()
	} else {
		f.settle()
	}
	f.barrier()
	c := classOf(q.loop.Type)
	q.ahead = f.to(c, move(c), f.names[q.loop.Args[0]])
	if q.mapped {
		f.op("mov.b32", q.filling, q.full)
	} else {
		q.read, q.write = f.to(word, "mov.b32", f.tiles.memory), f.reg(word)
		if q.offset > 0 {
			f.op("add.s32", q.read, q.read, itoa(q.offset))
		}
		q.end = f.reg(word)
	}
	f.op("mov.b32", q.write, q.read)
	if !q.mapped {
		f.op("add.s32", q.end, q.read, itoa(q.stages*q.bytes))
		q.reuse = f.newReuse(q.loop, q)
	}
	for range q.distance() {
		f.loadStage(q)
	}
	f.settle()
}

// loadStage emits the loads of the iteration with counter q.ahead, if that is within the loop, and advances to the next iteration.
func (f *function) loadStage(q *pipeline) {
	in, ahead, signed := q.loop, q.ahead, signedOf(q.loop)
	f.names[in.Blocks[0].Params[0]] = ahead
	if q.around != nil {
		f.copyAround(q)
		return
	}
	within := f.to(pred, "setp.lt"+signed, ahead, f.names[in.Args[1]])
	if q.mapped {
		f.copyStage(q, within)
		f.when(within, "add"+signed, ahead, ahead, f.names[in.Args[2]])
		f.advance(q.write, q)
		f.advanceBarrier(q.filling, q)
		return
	}
	past := ""
	if q.guarded {
		f.tiles.guard = within
	} else {
		past = f.label()
		f.unless(within, "bra", past)
	}
	for _, x := range q.slice {
		f.at(x)
		f.instr(x)
	}
	if f.tiles.reuse = q.reuse; q.reuse != nil {
		q.reuse.fresh = map[reuseKey][]string{}
	}
	for _, x := range q.loads {
		f.at(x)
		f.fill(x, q.write)
	}
	f.tiles.reuse = nil
	f.tiles.guard = ""
	f.placeIf(past)
	f.when(within, "add"+signed, ahead, ahead, f.names[in.Args[2]])
	f.op("cp.async.commit_group")
	f.advance(q.write, q)
}

// advance moves a register on to the next stage.
func (f *function) advance(r string, q *pipeline) {
	f.op("add.s32", r, r, itoa(q.bytes))
	f.when(f.to(pred, "setp.eq.u32", r, q.end), "sub.s32", r, r, itoa(q.stages*q.bytes))
}
