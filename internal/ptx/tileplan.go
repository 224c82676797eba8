package ptx

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kir"
)

// tileSymbol names the tiles' shared memory if it is static.
const tileSymbol = "tiles"

// staticLimit is the maximum static shared memory of a kernel in bytes, on every capability.
const staticLimit = 48 << 10

// tilePlan says where the tiles of a program are stored.
type tilePlan struct {
	tiles   []*tile
	threads int
	sm      int
	loops   map[*kir.Instr]*pipeline
	// around are the loops around pipelined ones that these run ahead of.
	around map[*kir.Instr]*pipeline
	// total is the size of the tiles' shared memory. stageAt and stageBytes are the offset and size of the part through which accumulators
	// pass to TileEach.
	total, stageAt, stageBytes int
	isDynamic                  bool
	// async says that loads can run in the background, arch that instructions of exactly sm_90 may be used, usesArch that they are used.
	// meet is the target's Meet.
	async, arch, usesArch, meet bool

	// These are the state during emission: the thread's number, the address of the shared memory, whether operands were loaded since the
	// last barrier, and what the region of a load yielded.
	tid, memory string
	writing     bool
	yield       []kir.Value
	// rounded are the conversions in regions of TileEach that happened before the elements passed.
	rounded map[*kir.Instr]bool
	// flight lists the products by wgmma that may be running, oldest first. ahead emits loads that are to follow the first instructions of
	// the next product.
	flight flight
	ahead  func()
	// guard is a predicate, or "": where it is false, loads give zeros. turn moves a pipelined loop on to its next stage.
	guard string
	turn  func()
	// reuse is that of the pipelined loop whose loads are being emitted, or nil.
	reuse *reuse
	// mapped are the pipelines that copy by tensor maps. leader is a predicate that is true in the thread that starts the copies.
	mapped []*pipeline
	leader string
}

func (t *tilePlan) static() int {
	if t.isDynamic {
		return 0
	}
	return t.total
}

// dynamic returns how many bytes at the start of the launch's dynamic shared memory the tiles take.
func (t *tilePlan) dynamic() int {
	if t.isDynamic {
		return t.total
	}
	return 0
}

// DynamicShared returns the dynamic shared memory in bytes that launches of p on target need in addition to what the program declares
// itself, for tiles that do not fit into static memory. A launch adds this to its own amount. Errors are those of Compile.
func DynamicShared(p *kir.Program, target Target) (int, error) {
	if len(p.Tiles) == 0 {
		return 0, nil
	}
	sm, _, err := target.capability()
	if err != nil {
		return 0, err
	}
	plan, err := planTiles(p, target, sm)
	if err != nil {
		return 0, err
	}
	return plan.dynamic(), nil
}

// planTiles decides where tiles are stored and which loops are pipelined.
func planTiles(p *kir.Program, target Target, sm int) (*tilePlan, error) {
	plan := &tilePlan{threads: p.Threads, sm: sm, loops: map[*kir.Instr]*pipeline{}, around: map[*kir.Instr]*pipeline{}, async: sm >= 80,
		meet: target.Meet}
	plan.arch = target.Arch && target.Major == 9 && target.Minor == 0
	if len(p.Tiles) == 0 {
		return plan, nil
	}
	uses := collectTiles(p)
	if err := plan.roles(p, uses); err != nil {
		return nil, err
	}
	for _, l := range uses.loops {
		if q := planPipeline(p, l, plan, uses); q != nil {
			plan.loops[l] = q
		}
	}
	for _, l := range uses.loops {
		if l.Imm == 1 {
			plan.planAround(l)
		}
	}
	//tenon:unordered each has its own loop
	for l, q := range plan.around {
		plan.planLate(p, l, q)
	}
	size := plan.allocate(p, uses)
	if size > sharedLimit(sm) && plan.withdrawLate() {
		size = plan.allocate(p, uses)
	}
	if size > sharedLimit(sm) && len(plan.around) > 0 { // the passage has no room of its own
		//tenon:unordered each is changed alike
		for _, q := range plan.around {
			q.around, q.before = nil, nil
		}
		clear(plan.around)
		plan.allocate(p, uses)
	}
	return plan, nil
}

// tileUses lists the tile operations of a program in order.
type tileUses struct {
	loads, dots, eaches, loops []*kir.Instr
	// others are all operations on tiles except loads and products. maps, rows and copies are those that work on registers alone.
	others, maps, rows, copies []*kir.Instr
	// reloaded says that every product's operands, and the rows that every map reads, are loaded before it in its own region, with no
	// TileEach between, so that no operand's memory is needed when a TileEach runs.
	reloaded bool
	// tiles are the program's tiles.
	tiles []kir.Tile
}

func collectTiles(p *kir.Program) *tileUses {
	u := &tileUses{reloaded: true, tiles: p.Tiles}
	u.visit(p.Body)
	return u
}

// readByMap returns the other accumulators that map in reads, and the rows.
func (u *tileUses) readByMap(in *kir.Instr) (others, rows []int) {
	for _, i := range in.MapOthers() {
		if u.tiles[i].IsRow(u.tiles[in.Sym]) {
			rows = append(rows, i)
		} else {
			others = append(others, i)
		}
	}
	return others, rows
}

func (u *tileUses) visit(b *kir.Block) (each bool) {
	fresh := map[int]bool{}
	for _, in := range b.Instrs {
		switch in.Op {
		case kir.OpTileLoad:
			u.loads = append(u.loads, in)
			fresh[in.Sym] = true
			continue
		case kir.OpTileDot:
			u.dots = append(u.dots, in)
			x, y := dotOperands(in)
			u.reloaded = u.reloaded && fresh[x] && fresh[y]
			continue
		case kir.OpTileEach:
			u.eaches = append(u.eaches, in)
			u.others = append(u.others, in)
			clear(fresh)
			each = true
			continue
		case kir.OpTileZero:
			u.others = append(u.others, in)
		case kir.OpTileMap:
			u.others, u.maps = append(u.others, in), append(u.maps, in)
			_, rows := u.readByMap(in)
			for _, i := range rows {
				u.reloaded = u.reloaded && fresh[i]
			}
			continue
		case kir.OpTileRows:
			u.others, u.rows = append(u.others, in), append(u.rows, in)
		case kir.OpTileCopy:
			u.others, u.copies = append(u.others, in), append(u.copies, in)
		case kir.OpFor:
			u.loops = append(u.loops, in)
		}
		for _, sub := range in.Blocks {
			if sub != nil && u.visit(sub) {
				clear(fresh)
				each = true
			}
		}
	}
	return each
}

func dotOperands(in *kir.Instr) (a, b int) { return int(in.Imm >> 32), int(in.Imm & 0xffffffff) }

// roles determines what each tile is, the layout of operands and the arrangement of accumulators.
func (plan *tilePlan) roles(p *kir.Program, u *tileUses) error {
	for _, t := range p.Tiles {
		plan.tiles = append(plan.tiles, &tile{Tile: t, acc: true, along: kir.AlongCols})
	}
	loaded := map[int]bool{}
	for _, in := range u.loads {
		t := plan.tiles[in.Sym]
		if !loaded[in.Sym] {
			t.along = in.Sub
		}
		loaded[in.Sym], t.acc = true, false
		if len(in.Args) > 0 {
			plain := p.Params[in.Imm].Plain
			t.mapped, t.plainly = !plain, plain
		}
	}
	for _, in := range u.dots {
		a, b := dotOperands(in)
		if a == in.Sym || b == in.Sym {
			return fault.New(fault.Invalid, "tile %s is added to itself in a product", p.Tiles[in.Sym].Name)
		}
		plan.tiles[a].acc, plan.tiles[b].acc = false, false
	}
	if err := plan.registers(u); err != nil {
		return err
	}
	for _, in := range u.dots {
		if t := plan.tiles[in.Sym]; !t.acc {
			return fault.New(fault.Unsupported, "tile %s is both a sum of products and loaded or multiplied; use two tiles", t.Name)
		}
	}
	units := plan.units(u)
	plan.layouts(u, units)
	for _, in := range u.dots {
		if t := plan.tiles[in.Sym]; t.arr == nil {
			a, b := dotOperands(in)
			t.arr = arrange(units[in.Sym], t.Rows, t.Cols, plan.threads/t.InParts(), plan.tiles[a], plan.tiles[b], u.linked(in.Sym))
		}
	}
	if err := plan.arrangeLinked(u); err != nil {
		return err
	}
	for _, t := range plan.tiles {
		if t.acc && t.arr == nil { // only ever zeroed or visited
			t.arr = arrangePlain(t.Rows, t.Cols, plan.threads/t.InParts(), t, t)
		}
	}
	return nil
}

// units chooses how each tile's products are computed. Tiles that are used in one product must agree, so the plainer unit wins.
func (plan *tilePlan) units(u *tileUses) map[int]unit {
	units := map[int]unit{}
	for changed := true; changed; {
		changed = false
		for _, in := range u.dots {
			a, b := dotOperands(in)
			k := plan.unitFor(in, plan.tiles[a], plan.tiles[b])
			meet := append([]int{in.Sym, a, b}, u.links(in.Sym)...)
			meet = append(meet, u.links(a)...)
			for _, i := range meet {
				if old, ok := units[i]; ok {
					k = min(k, old)
				}
			}
			for _, i := range meet {
				if old, ok := units[i]; !ok || old != k {
					units[i], changed = k, true
				}
			}
		}
	}
	return units
}

// fewSums is the size in bytes of a thread's sums up to which the operands of plain arithmetic are not transposed. On an H200 a product of
// 128 x 4096 x 4096 with operands along the depth took 109 microseconds like this instead of 149.
const fewSums = 256

// turnPlain stores the operands of plain arithmetic along the product's own axes, however they are loaded. A thread then reads four
// neighbours at a time for each step, which needs the fewest registers. Elements of 4 or 8 bytes can be transposed while they are loaded,
// but only one by one, so operands of sums of which each thread has few elements stay as they are loaded: their registers suffice. Lines
// that tensor maps copy have no padding, and would be read with bank conflicts.
func (plan *tilePlan) turnPlain(u *tileUses, units map[int]unit) {
	left, right, kept := map[int]bool{}, map[int]bool{}, map[int]bool{}
	for _, in := range u.dots {
		a, b := dotOperands(in)
		left[a], right[b] = true, true
		if acc := plan.tiles[in.Sym]; acc.Rows*acc.Cols*acc.InParts()*acc.Type.Size() <= fewSums*plan.threads {
			kept[a], kept[b] = true, true
		}
	}
	for i, t := range plan.tiles {
		if units[i] != plain || t.Type.Size() < 4 || left[i] == right[i] || kept[i] && !t.plainly {
			continue
		}
		t.along = kir.AlongCols
		if left[i] {
			t.along = kir.AlongRows
		}
	}
}

// layouts determines how operands are stored in shared memory.
func (plan *tilePlan) layouts(u *tileUses, units map[int]unit) {
	plan.turnPlain(u, units)
	for i, t := range plan.tiles {
		t.per, t.lines = t.Cols, t.Rows
		if t.along == kir.AlongRows {
			t.per, t.lines = t.Rows, t.Cols
		}
		t.stride = (t.per*t.Type.Size()+15)&^15 + 16
		t.chunks, t.turn = 1, 1
		if t.bare = units[i] == plain && plan.arch && t.plainly && t.per <= maxBox && t.Type == dtype.Float32; t.bare {
			t.stride -= 16
		}
		if units[i] != plain {
			t.stride = t.per * t.Type.Size()
			t.chunks = min(8, t.stride/16)
		}
		if units[i] == wgmma {
			plan.usesArch, t.arch = true, true
			if t.stride > 128 {
				t.stride, t.cut = 128, 128*t.lines
			}
		}
	}
	for _, in := range u.dots {
		a, b := dotOperands(in)
		if units[in.Sym] != mma8 {
			continue
		}
		// Words that lie across the inner axis are read one by one, four lines at a time.
		if plan.tiles[a].along == kir.AlongRows {
			plan.tiles[a].turn = 2
		}
		if plan.tiles[b].along == kir.AlongCols {
			plan.tiles[b].turn = 2
		}
	}
}

// round rounds an offset up to the alignment of operands.
func (plan *tilePlan) round(n int) int {
	if plan.usesArch {
		return (n + tileAlign - 1) &^ (tileAlign - 1)
	}
	return (n + 127) &^ 127
}

// allocate lays out the tiles' shared memory: stages of pipelined loops, other operands, and the passage of accumulators to TileEach. The
// passage shares memory with what is dead by then: the stages or, if all operands are, everything. So do operands that are needed only
// before the first pipelined loop. It returns the size of the block's shared memory.
func (plan *tilePlan) allocate(p *kir.Program, u *tileUses) int {
	plan.total, plan.stageAt, plan.stageBytes = 0, 0, 0
	static := staticShared(p)
	shares := len(plan.around) == 0 // else the next operands arrive meanwhile
	for _, l := range u.loops {
		q := plan.loops[l]
		if q == nil {
			continue
		}
		at := 0
		for _, arch := range []bool{true, false} { // aligned tiles first
			for _, in := range q.loads {
				if t := plan.tiles[in.Sym]; t.arch == arch {
					t.loop, t.offset = q, at
					at += t.bytes()
				}
			}
		}
		q.offset = plan.round(plan.total)
		plan.total = q.offset + q.stages*q.bytes
	}
	early := 0
	place := func(only func(i int) bool, total *int) {
		for i, t := range plan.tiles {
			if !t.acc && !t.held && t.loop == nil && only(i) {
				t.offset = plan.round(*total)
				*total = t.offset + t.bytes()
			}
		}
	}
	before := plan.before(p)
	if shares {
		place(func(i int) bool { return before[i] }, &early)
	}
	stages := max(plan.total, early)
	plan.total = stages
	place(func(i int) bool { return !shares || !before[i] }, &plan.total)
	for _, in := range u.eaches {
		t := plan.tiles[in.Sym]
		if !t.acc || t.Cols == 1 && t.arr.unit != plain {
			continue
		}
		room := 16 << 10
		switch d := plan.lateOf(in); {
		case d != nil:
			room = d.p.bytes()
		case shares && u.reloaded:
			room = max(room, plan.total)
		case shares:
			room = max(room, stages)
		default:
			room = max(room, sharedLimit(plan.sm)-plan.round(plan.total)-static-len(plan.mapped)*mapRoom)
		}
		plan.stageBytes = max(plan.stageBytes, plan.passage(in, room/t.InParts()).bytes()*t.InParts())
	}
	if shares && (u.reloaded || plan.stageBytes <= stages) {
		plan.total = max(plan.total, plan.stageBytes)
	} else {
		plan.stageAt = plan.round(plan.total)
		plan.total = plan.stageAt + plan.stageBytes
	}
	for _, q := range plan.mapped {
		q.barriers = (plan.total + 15) &^ 15
		plan.total = q.barriers + q.stages*barrierBytes
	}
	plan.isDynamic = static+plan.total > staticLimit
	return static + plan.total
}

// staticShared returns the size of the arrays in shared memory that p declares.
func staticShared(p *kir.Program) (bytes int) {
	for _, a := range p.Shared {
		if a.Count > 0 {
			bytes += (a.Count*a.Type.Size() + 15) &^ 15
		}
	}
	return bytes
}

// lateOf returns the late passage of in, an OpTileEach, or nil.
func (plan *tilePlan) lateOf(in *kir.Instr) *late {
	//tenon:unordered at most one has it
	for _, q := range plan.around {
		if q.late != nil && q.late.each == in {
			return q.late
		}
	}
	return nil
}

// before returns true for the tiles that are used only before the first pipelined loop, or for none if accumulators pass before it.
func (plan *tilePlan) before(p *kir.Program) map[int]bool {
	early := map[int]bool{}
	started := false
	for _, in := range p.Body.Instrs {
		all := within(in, nil)
		started = started || slices.ContainsFunc(all, func(x *kir.Instr) bool { return plan.loops[x] != nil })
		for _, x := range all {
			var used []int
			switch x.Op {
			case kir.OpTileLoad, kir.OpTileZero:
				used = []int{x.Sym}
			case kir.OpTileDot:
				a, b := dotOperands(x)
				used = []int{a, b}
			case kir.OpTileMap:
				used = x.MapOthers()
			case kir.OpTileEach:
				if used = []int{x.Sym}; !started {
					return nil
				}
			}
			for _, i := range used {
				early[i] = !started
			}
		}
	}
	if !started {
		return nil
	}
	return early
}

// within appends in and the instructions in its regions to all.
func within(in *kir.Instr, all []*kir.Instr) []*kir.Instr {
	all = append(all, in)
	for _, b := range in.Blocks {
		if b == nil {
			continue
		}
		for _, x := range b.Instrs {
			all = within(x, all)
		}
	}
	return all
}
