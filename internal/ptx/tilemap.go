package ptx

import "tenon.dev/internal/kir"

// With tensor maps the device's copy engine fetches the tiles of a pipelined loop. One thread starts the copies. The engine writes chunks
// swizzled as wgmma reads them, and zeros for elements outside the array. Each stage has a barrier in shared memory (PTX ISA, "mbarrier")
// that changes its phase when all bytes of the stage have arrived.

// mapLine is the maximum line length in bytes that the copy engine swizzles; longer lines are fetched in parts, as wgmma requires.
const mapLine = 128

// maxBox is the maximum number of elements of one copy along each axis.
const maxBox = 256

// barrierBytes is the size of a barrier. mapRoom is the space that each mapped load reserves for the barriers of its loop.
const (
	barrierBytes = 8
	mapRoom      = 128
	// hardwareBarriers is the number of barriers that a block has without shared memory; number 0 is for all threads to meet at.
	hardwareBarriers = 16
)

// mappable reports whether all loads of the pipeline can be copies by tensor maps: either wgmma reads the tiles or they are bare, and the
// maps' lines are those of the tiles.
func (q *pipeline) mappable(plan *tilePlan) bool {
	if !plan.arch {
		return false
	}
	for _, in := range q.loads {
		t := plan.tiles[in.Sym]
		if len(in.Args) == 0 || !(t.arch && t.mapped && q.groups > 0 || t.bare) || in.Sub != t.along || t.lines > maxBox {
			return false
		}
	}
	return true
}

// mapPrologue initializes the barriers of all pipelines that copy by tensor maps. Their phases continue through all runs of a loop, so the
// registers that track them are initialized here, once.
func (f *function) mapPrologue() {
	plan := f.tiles
	past := ""
	for _, q := range plan.mapped {
		f.m.need(80)
		if past == "" {
			plan.leader = f.to(pred, "setp.eq.s32", plan.tid, "0")
			past = f.label()
			f.unless(plan.leader, "bra", past)
		}
		for s := range q.stages {
			f.op("mbarrier.init.shared::cta.b64", location(plan.memory, int64(q.barriers+s*barrierBytes)), "1")
		}
		for _, in := range q.loads {
			f.op("prefetch.tensormap", "["+f.mapAddress(int(in.Imm))+"]")
		}
	}
	if past == "" {
		return
	}
	f.op("fence.mbarrier_init.release.cluster")
	f.place(past)
	for _, q := range plan.mapped {
		q.read = f.to(word, "add.s32", plan.memory, itoa(q.offset))
		q.end = f.to(word, "add.s32", q.read, itoa(q.stages*q.bytes))
		q.write = f.reg(word)
		q.full, q.filling = f.to(word, "add.s32", plan.memory, itoa(q.barriers)), f.reg(word)
		q.lastBarrier = f.to(word, "add.s32", q.full, itoa(q.stages*barrierBytes))
		q.phase = f.to(word, "mov.b32", "0")
		if q.drifts {
			q.free = f.to(word, "mov.b32", "1")
		}
	}
	f.barrier()
}

// mapAddress returns a register with the address of tensor map parameter i.
func (f *function) mapAddress(i int) string {
	return f.to(long, "cvta.param.u64", f.to(long, "mov.b64", f.param(i)))
}

// release says that the warp is done with the stage of the preceding iteration, which loads fill next. The warp that starts the copies
// waits for all others; these do not wait. Each stage has its own barrier, since a warp can be ahead by almost as many iterations as there
// are stages. Where warps hardly drift apart, meeting is faster: its barrier has a constant number.
func (f *function) release(q *pipeline) {
	if f.tiles.meet || !q.drifts {
		f.barrier()
		return
	}
	threads := itoa(f.tiles.threads)
	waits := f.to(pred, "setp.lt.u32", f.tiles.tid, "32")
	f.when(waits, "bar.sync", q.free, threads)
	f.unless(waits, "bar.arrive", q.free, threads)
	f.op("add.s32", q.free, q.free, "1")
	f.when(f.to(pred, "setp.gt.u32", q.free, itoa(q.stages)), "mov.b32", q.free, "1")
}

// copyStage starts the copies for the iteration with counter ahead if predicate within says that it exists.
func (f *function) copyStage(q *pipeline, within string) {
	past := f.label()
	f.unless(f.to(pred, "and.pred", within, f.tiles.leader), "bra", past)
	bytes := 0
	for _, in := range q.loads {
		t := f.tiles.tiles[in.Sym]
		bytes += t.Rows * t.Cols * t.Type.Size()
	}
	for _, x := range q.slice {
		f.at(x)
		f.instr(x)
	}
	f.op("mbarrier.arrive.expect_tx.shared::cta.b64", "_", "["+q.filling+"]", itoa(bytes))
	for _, in := range q.loads {
		f.at(in)
		t, m := f.tiles.tiles[in.Sym], f.mapAddress(int(in.Imm))
		per := t.per
		if t.arch {
			per = min(per, mapLine/t.Type.Size())
		}
		for i := 0; i*per < t.per; i++ {
			if kir.ImageParts(len(in.Args)) > 0 {
				f.copyPixels(q, in, m, int64(t.offset+i*t.cut), i)
				continue
			}
			at := f.addImm(f.names[in.Args[0]], i*per)
			for _, v := range in.Args[1:] {
				at += ", " + f.names[v]
			}
			f.op("cp.async.bulk.tensor."+itoa(len(in.Args))+"d.shared::cluster.global.mbarrier::complete_tx::bytes",
				location(q.write, int64(t.offset+i*t.cut)), "["+m+", {"+at+"}]", "["+q.filling+"]")
		}
	}
	f.place(past)
}

// copyPixels starts the copy of part i of a tile of pixels to an offset in the stage.
func (f *function) copyPixels(q *pipeline, in *kir.Instr, m string, offset int64, i int) {
	part := in.Args[kir.ImagePlaces+i*kir.PartPlaces:]
	at := f.names[part[0]]
	for _, v := range in.Args[:kir.ImagePlaces] {
		at += ", " + f.names[v]
	}
	var far []string
	for _, v := range part[1:kir.PartPlaces] {
		far = append(far, f.to(half, "cvt.u16.u32", f.names[v]))
	}
	f.op("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes", location(q.write, offset),
		"["+m+", {"+at+"}]", "["+q.filling+"]", "{"+far[0]+", "+far[1]+"}")
}

// awaitStage waits until the stage that products read next has arrived.
func (f *function) awaitStage(q *pipeline) {
	again := f.label()
	f.place(again)
	f.unless(f.to(pred, "mbarrier.try_wait.parity.shared::cta.b64", "["+q.full+"]", q.phase), "bra", again)
}

// advanceBarrier moves r on to the barrier of the next stage. It returns a predicate that is true if that is the first one again.
func (f *function) advanceBarrier(r string, q *pipeline) (wrapped string) {
	f.op("add.s32", r, r, itoa(barrierBytes))
	wrapped = f.to(pred, "setp.eq.u32", r, q.lastBarrier)
	f.when(wrapped, "sub.s32", r, r, itoa(q.stages*barrierBytes))
	return wrapped
}
