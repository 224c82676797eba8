package ptx

import (
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kir"
)

// The operands and results of OpTileMap, OpTileRows and OpTileCopy stay in registers. All their tiles have whole rows in one warp and the
// same rows in the same lanes; each four lanes share a row.

// links lists the other tiles that instructions combine with tile i in registers.
func (u *tileUses) links(i int) []int {
	seen := []int{i}
	add := func(ts ...int) {
		if !slices.ContainsFunc(ts, func(t int) bool { return slices.Contains(seen, t) }) {
			return
		}
		for _, t := range ts {
			if !slices.Contains(seen, t) {
				seen = append(seen, t)
			}
		}
	}
	for n := 0; n < len(seen); {
		n = len(seen)
		for _, in := range u.maps {
			others, _ := u.readByMap(in)
			add(append(others, in.Sym)...)
		}
		for _, list := range [][]*kir.Instr{u.rows, u.copies} {
			for _, in := range list {
				add(in.Sym, int(in.Imm))
			}
		}
		for _, in := range u.dots { // the sums of products that a copy is an operand of
			if a, _ := dotOperands(in); slices.ContainsFunc(u.copies, func(c *kir.Instr) bool { return c.Sym == a }) {
				add(in.Sym, a)
			}
		}
	}
	return seen[1:]
}

// linked reports whether tile i needs whole rows.
func (u *tileUses) linked(i int) bool { return len(u.links(i)) > 0 }

// registers finds the operands in registers and checks the tiles that maps, rows and copies use.
func (plan *tilePlan) registers(u *tileUses) error {
	for _, in := range u.copies {
		t := plan.tiles[in.Sym]
		t.held, t.acc = true, false
	}
	for _, in := range u.loads {
		if plan.tiles[in.Sym].held {
			return fault.New(fault.Unsupported, "tile %s is both loaded and copied; use two tiles", plan.tiles[in.Sym].Name)
		}
	}
	for _, in := range u.dots {
		if _, b := dotOperands(in); plan.tiles[b].held {
			return fault.New(fault.Unsupported, "tile %s is a copy and a right operand; it can only be a left one", plan.tiles[b].Name)
		}
	}
	for _, list := range [][]*kir.Instr{u.maps, u.rows, u.copies} {
		for _, in := range list {
			touched := []int{in.Sym, int(in.Imm)}
			switch in.Op {
			case kir.OpTileMap:
				var rows []int
				touched, rows = u.readByMap(in)
				touched = append(touched, in.Sym)
				if err := plan.rowsFit(u, rows); err != nil {
					return err
				}
			case kir.OpTileCopy:
				touched = touched[1:]
			}
			for _, i := range touched {
				if t := plan.tiles[i]; !t.acc {
					return fault.New(fault.Unsupported,
						"tile %s is mapped or its rows combined, but it is an operand; that works on sums of products", t.Name)
				}
			}
		}
	}
	for _, in := range u.eaches {
		if plan.tiles[in.Sym].held {
			return fault.New(fault.Unsupported, "tile %s is a copy and cannot be visited; visit what it copies", plan.tiles[in.Sym].Name)
		}
	}
	return nil
}

// rowsFit checks the tiles that a map reads as rows.
func (plan *tilePlan) rowsFit(u *tileUses, rows []int) error {
	for _, i := range rows {
		t := plan.tiles[i]
		switch multiplied := slices.ContainsFunc(u.dots, func(in *kir.Instr) bool {
			a, b := dotOperands(in)
			return a == i || b == i
		}); {
		case multiplied:
			return fault.New(fault.Unsupported, "tile %s is an operand of a product and a row that a map reads; use two tiles", t.Name)
		case t.acc:
			return fault.New(fault.Unsupported, "a map reads tile %s as a row, but nothing loads it; only loaded tiles can be rows", t.Name)
		case t.along != kir.AlongCols:
			return fault.New(fault.Unsupported, "a map reads tile %s as a row, but it is loaded along its rows; load it AlongCols", t.Name)
		}
	}
	return nil
}

// arrangeLinked gives tiles that are linked to products the arrangement of these products.
func (plan *tilePlan) arrangeLinked(u *tileUses) error {
	for _, list := range [][]*kir.Instr{u.maps, u.rows, u.copies} {
		for _, in := range list {
			links := append(u.links(in.Sym), in.Sym)
			var model *arrangement
			for _, i := range links {
				if a := plan.tiles[i].arr; a != nil {
					model = a
				}
			}
			if model == nil || model.unit == plain || model.turned {
				return fault.New(fault.Unsupported,
					"tile %s is mapped, but is not a sum of products on matrix units, which halves have from capability 8.0 on",
					plan.tiles[in.Sym].Name)
			}
			for _, i := range links {
				t := plan.tiles[i]
				if t.arr == nil {
					c := *model
					c.cols = t.Cols
					t.arr = &c
				}
				if a := t.arr; a.unit != model.unit || a.down != model.down || a.across != 1 || a.rows != model.rows {
					return fault.New(fault.Unsupported,
						"the rows of tiles %s and %s lie in different threads; give their products equal numbers of rows",
						plan.tiles[in.Sym].Name, t.Name)
				}
			}
		}
	}
	return nil
}

// heldAt returns the registers of a held operand's fragment, for the i-th 16 rows of a warp from column k on.
func (t *tile) heldAt(i, k int) []string {
	n := (i*(t.Cols/16) + k/16) * 4
	return t.regs[n : n+4]
}

// hold emits OpTileCopy: the fragments of a sum of products are laid out like those of a left operand (PTX ISA, "Matrix Fragments for
// mma.m16n8k16").
func (f *function) hold(t, from *tile) {
	f.m.need(70)
	name := "cvt.rn." + t.Type.Short() + "x2.f32"
	for i := range t.arr.rows / 16 {
		for k := 0; k < t.Cols; k += 16 {
			for r, to := range t.heldAt(i, k) {
				n := (i*(t.Cols/8)+k/8+r/2)*4 + r%2*2
				f.op(name, to, from.regs[n+1], from.regs[n])
			}
		}
	}
}

// mapTile emits OpTileMap. What the region loads independently of the tile's elements is loaded while products are running, once for all
// elements that need the same data.
func (f *function) mapTile(in *kir.Instr, t *tile) {
	b := in.Blocks[0]
	used := map[kir.Value]bool{}
	usedIn(b, used)
	early, known := loadsBefore(b), f.knownPlaces(b, t)
	at := &positions{rows: map[int]string{}, cols: map[int]string{}, known: known, shared: map[[3]int]string{}}
	rows := f.rowElements(in, t)
	memory := map[reuseKey][]string{}
	if len(early) > 0 {
		f.eachElement(in, t, used, at, rows, func(string) {
			for _, x := range b.Instrs {
				if early[x] && known[x] == nothing {
					f.once(x, memory)
				}
			}
		})
	}
	f.await(f.tiles.touched(in)...)
	f.eachElement(in, t, used, at, rows, func(reg string) {
		f.pairProducts(b, nil)
		for _, x := range b.Instrs {
			switch {
			case known[x] != nothing:
			case early[x]:
				f.once(x, memory)
			default:
				f.at(x)
				f.instr(x)
			}
		}
		f.op(move(classOf(t.Type)), reg, f.names[f.tiles.yield[0]])
	})
}

// loadsBefore finds the loads of a map's region that do not depend on the tiles' elements, with the instructions that they need.
func loadsBefore(b *kir.Block) map[*kir.Instr]bool {
	late, made, early := map[kir.Value]bool{}, map[kir.Value]*kir.Instr{}, map[*kir.Instr]bool{}
	for _, v := range b.Params[2:] {
		late[v] = true
	}
	var need func(in *kir.Instr)
	need = func(in *kir.Instr) {
		if in == nil || early[in] {
			return
		}
		early[in] = true
		for _, v := range in.Args {
			need(made[v])
		}
	}
	for _, in := range b.Instrs {
		after := len(in.Blocks) > 0 || in.Op == kir.OpGet || in.Op == kir.OpSet
		for _, v := range in.Args {
			after = after || late[v]
		}
		for _, v := range in.Res {
			made[v] = in
			late[v] = late[v] || after
		}
		if in.Op == kir.OpLoad && !after {
			need(in)
		}
	}
	return early
}

// rowElements reads the rows of map in over t. It returns, for each of the map's other tiles that is a row, the registers of its elements
// in the columns that the thread has, by their distance from the thread's first column.
func (f *function) rowElements(in *kir.Instr, t *tile) map[int]map[int][]string {
	all := map[int]map[int][]string{}
	for j, i := range in.MapOthers() {
		row := f.tiles.tiles[i]
		if !row.IsRow(t.Tile) {
			continue
		}
		start := f.madImm(t.arr.col, row.Type.Size(), f.operand(row))
		all[j] = map[int][]string{}
		for _, it := range t.items() {
			if all[j][it.col] != nil {
				continue
			}
			var regs []string
			for range it.regs {
				regs = append(regs, f.reg(classOf(row.Type)))
			}
			operand, v := vector(regs)
			f.op("ld.shared"+v+classType[classOf(row.Type)], operand, location(start, int64(row.offset+it.col*row.Type.Size())))
			all[j][it.col] = regs
		}
	}
	return all
}

// eachElement runs do for every element that the thread has, with the element's register. The names of the map's parameters are set, and
// those of the results of at.known. rows are those of rowElements.
func (f *function) eachElement(in *kir.Instr, t *tile, used map[kir.Value]bool, at *positions, rows map[int]map[int][]string,
	do func(reg string)) {
	b := in.Blocks[0]
	var others [][]item
	for j, i := range in.MapOthers() {
		others = append(others, nil)
		if rows[j] == nil {
			others[j] = f.tiles.tiles[i].items()
		}
	}
	items := t.items()
	perRow := len(items) / len(t.rowsOf())
	column := t.arr.col
	if t.Cols == 1 && used[b.Params[1]] { // each of four lanes has it
		column = f.to(word, "mov.b32", "0")
	}
	place := func(at map[int]string, first string, n int) string {
		if at[n] == "" {
			at[n] = f.addImm(first, n)
			f.places[at[n]] = elementPlace{first, n}
		}
		return at[n]
	}
	for n, it := range items {
		for e, reg := range it.regs {
			if used[b.Params[0]] {
				f.names[b.Params[0]] = place(at.rows, t.arr.row, it.row)
			}
			if used[b.Params[1]] {
				f.names[b.Params[1]] = place(at.cols, column, it.col+e)
			}
			for _, x := range b.Instrs {
				switch p := at.known[x]; p.what {
				case constColumn:
					f.names[x.Res[0]] = at.constant(f, (it.col+e)&p.by)
				case constRow:
					f.names[x.Res[0]] = at.constant(f, it.row&p.by)
				case evenColumn:
					f.names[x.Res[0]] = place(at.cols, column, it.col)
				case firstColumn:
					f.names[x.Res[0]] = at.and(f, column, p, 0)
				case firstRow:
					f.names[x.Res[0]] = at.and(f, place(at.rows, t.arr.row, it.row&^15), p, it.row&^15)
				case shiftedColumn:
					f.names[x.Res[0]] = at.shift(f, column, p, (it.col+e)>>p.by)
				case shiftedRow:
					f.names[x.Res[0]] = at.shift(f, place(at.rows, t.arr.row, it.row&^15), p, it.row&^15)
				}
			}
			f.names[b.Params[2]] = reg
			for j, i := range in.MapOthers() {
				switch o := others[j]; {
				case rows[j] != nil:
					f.names[b.Params[3+j]] = rows[j][it.col][e]
				case f.tiles.tiles[i].Cols == 1:
					f.names[b.Params[3+j]] = o[n/perRow].regs[0]
				default:
					f.names[b.Params[3+j]] = o[n].regs[e]
				}
			}
			do(reg)
		}
	}
}

// positions are what is known about the elements of a map. There is one register for each, so that equal computations are recognized as
// equal.
type positions struct {
	// rows and cols are registers with rows and columns, by their distance from the thread's first one.
	rows, cols map[int]string
	// known are the instructions that knownPlaces returns, and shared the registers with their results.
	known  map[*kir.Instr]knownPlace
	shared map[[3]int]string
}

// constant returns a register with n.
func (at *positions) constant(f *function, n int) string {
	key := [3]int{int(constColumn), 0, n}
	if at.shared[key] == "" {
		at.shared[key] = f.to(word, "mov.b32", itoa(n))
	}
	return at.shared[key]
}

// and returns a register with the bits of first that p says. It is the same for all elements with equal n.
func (at *positions) and(f *function, first string, p knownPlace, n int) string {
	key := [3]int{int(p.what), p.by, n}
	if at.shared[key] == "" {
		at.shared[key] = f.to(word, "and.b32", first, itoa(p.by))
	}
	return at.shared[key]
}

// shift returns a register with row or column first shifted as p says, plus n for columns. Elements with equal n have the same register.
func (at *positions) shift(f *function, first string, p knownPlace, n int) string {
	key := [3]int{int(p.what), p.by, n}
	if at.shared[key] == "" {
		reg := f.to(word, "shr.s32", first, itoa(p.by))
		if p.what == shiftedColumn {
			reg = f.addImm(reg, n)
		}
		at.shared[key] = reg
	}
	return at.shared[key]
}

// elementPlace says that a register holds the sum of another one and a constant.
type elementPlace struct {
	first    string
	distance int
}

// knownPlace is what is known about the result of an instruction of a map's region, without computing it for each element.
type knownPlace struct {
	what placeKind
	by   int
}

type placeKind uint8

const (
	_ placeKind = iota
	// constColumn and constRow are bits of a column or row that are known when the kernel is built. firstColumn are bits that are the same
	// in all columns of a thread, firstRow bits that are the same in all its rows of 16. evenColumn is the column rounded down to an even
	// one.
	constColumn
	constRow
	firstColumn
	firstRow
	evenColumn
	// shiftedColumn and shiftedRow are a column or row shifted right.
	shiftedColumn
	shiftedRow
)

var nothing knownPlace

// knownPlaces returns the instructions of b, the region of a map over t, whose results several elements of a thread share. The threads of
// the matrix units have both columns of a pair, so whether a column is odd is known, and the even one is the same for the two. A thread's
// first column is even and below 8 in its warp's share, so only its bits 1 and 2 differ from thread to thread, and the other distances are
// multiples of 8 and 1; its first row has bit 3 clear, and the others are 8 further in every 16.
func (f *function) knownPlaces(b *kir.Block, t *tile) map[*kir.Instr]knownPlace {
	known, consts := map[*kir.Instr]knownPlace{}, map[kir.Value]uint64{}
	if t.arr.unit == plain || t.arr.turned || t.Cols == 1 {
		return known
	}
	for _, x := range b.Instrs {
		if x.Op == kir.OpConst {
			consts[x.Res[0]] = x.Imm
			continue
		}
		if x.Type != dtype.Int32 || len(x.Args) != 2 {
			continue
		}
		imm, ok := consts[x.Args[1]]
		if !ok {
			imm, ok = f.constant(x.Args[1])
		}
		if !ok {
			continue
		}
		column, row, c := x.Args[0] == b.Params[1], x.Args[0] == b.Params[0], uint32(imm)
		switch {
		case x.Op == kir.OpAnd && column && c == ^uint32(1):
			known[x] = knownPlace{what: evenColumn}
		case x.Op == kir.OpAnd && column && c&6 == 0 && c < 1<<16 && (t.arr.across == 1 || t.arr.cols%(1<<bits.Len32(c)) == 0):
			known[x] = knownPlace{constColumn, int(c)}
		case x.Op == kir.OpAnd && column && c&^6 == 0:
			known[x] = knownPlace{firstColumn, int(c)}
		case x.Op == kir.OpAnd && row && c == 8:
			known[x] = knownPlace{constRow, int(c)}
		case x.Op == kir.OpAnd && row && c&8 == 0 && c < 1<<16:
			known[x] = knownPlace{firstRow, int(c)}
		case x.Op == kir.OpShr && column && c >= 3 && c < 31 && (t.arr.across == 1 || t.arr.cols%(1<<c) == 0):
			known[x] = knownPlace{shiftedColumn, int(c)}
		case x.Op == kir.OpShr && row && c >= 4 && c < 31:
			known[x] = knownPlace{shiftedRow, int(c)}
		}
	}
	return known
}

// rowsOf lists the rows of a thread as distances from its first row.
func (t *tile) rowsOf() (rows []int) {
	for _, it := range t.items() {
		if len(rows) == 0 || rows[len(rows)-1] != it.row {
			rows = append(rows, it.row)
		}
	}
	return rows
}

// usedIn collects the values that b uses.
func usedIn(b *kir.Block, used map[kir.Value]bool) {
	for _, in := range b.Instrs {
		for _, v := range in.Args {
			used[v] = true
		}
		for _, sub := range in.Blocks {
			usedIn(sub, used)
		}
	}
}

// combineRows emits OpTileRows: each thread combines its own elements of a row, then the four lanes of the row combine their results.
func (f *function) combineRows(in *kir.Instr, t *tile) {
	name := "add.f32"
	if in.Sub == kir.RowsMax {
		f.m.need(70)
		name = "max.NaN.f32"
	}
	from := f.tiles.tiles[in.Imm].items()
	to := t.items()
	per := len(from) / len(to)
	for i, it := range to {
		var parts []string
		for _, x := range from[i*per : (i+1)*per] {
			parts = append(parts, x.regs...)
		}
		for len(parts) > 1 { // as a tree, which shortens the chain of dependent instructions
			var next []string
			for j := 0; j < len(parts); j += 2 {
				if j+1 == len(parts) {
					next = append(next, parts[j])
					continue
				}
				next = append(next, f.to(single, name, parts[j], parts[j+1]))
			}
			parts = next
		}
		v := parts[0]
		for _, lane := range []string{"1", "2"} {
			v = f.to(single, name, v, f.to(single, "shfl.sync.bfly.b32", v, lane, "0x1F", allLanes))
		}
		f.op(name, it.regs[0], it.regs[0], v)
	}
}

// eachRow emits OpTileEach on a column: the first of each row's four lanes runs the region.
func (f *function) eachRow(in *kir.Instr, t *tile) {
	b := in.Blocks[0]
	past := f.label()
	f.when(f.to(pred, "setp.ne.u32", f.remImm(f.lane(), 4), "0"), "bra", past)
	if t.arr.idle != "" {
		f.when(t.arr.idle, "bra", past)
	}
	for _, it := range t.items() {
		f.names[b.Params[0]], f.names[b.Params[1]] = f.addImm(t.arr.row, it.row), f.to(word, "mov.b32", "0")
		f.names[b.Params[2]] = it.regs[0]
		f.block(b)
	}
	f.place(past)
}
