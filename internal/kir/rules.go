package kir

import (
	"slices"
	"strings"

	"tenon.dev/dtype"
)

// maxAccessBytes is the size in bytes of the widest load or store that every device has.
const maxAccessBytes = 16

// maxAssertArgs is the maximum number of operands of an assertion: the condition and two numbers.
const maxAssertArgs = 3

// shape checks the indexes and the numbers of operands, results and regions, so that later checks can rely on them.
func (v *verifier) shape(in *Instr) bool {
	p, info := v.p, &infos[in.Op]
	if info.subs != nil && int(in.Sub) >= len(info.subs) {
		v.fail(in, "%s has no such variant", in.Op)
		return false
	}
	if in.Loc < 0 || in.Loc >= max(1, len(p.Locs)) {
		v.fail(in, "the source place %d is not declared", in.Loc)
	}
	args, res, blocks := int(info.args), 1, 0
	symbols := -1
	switch in.Op {
	case OpParam:
		symbols = len(p.Params)
	case OpGet, OpSet:
		symbols = len(p.Vars)
	case OpTileZero, OpTileDot, OpTileRows, OpTileCopy:
		symbols = len(p.Tiles)
	case OpTileLoad, OpTileMap, OpTileEach:
		symbols, blocks = len(p.Tiles), 1
		if in.Op == OpTileLoad && len(in.Args) > 0 {
			args = max(mapPlaces-1, min(len(in.Args), mapPlaces))
			if n := ImageParts(len(in.Args)); n > 0 && in.Sym >= 0 && in.Sym < len(p.Tiles) {
				t := &p.Tiles[in.Sym]
				line := t.Cols
				if in.Sub == AlongRows {
					line = t.Rows
				}
				args = ImagePlaces + PartPlaces*MapParts(t.Type, line)
			}
		}
	case OpLoad, OpStore, OpAtomic:
		args, res, symbols = v.accessShape(in)
	case OpIf:
		blocks = 2
	case OpFor, OpLoop:
		blocks = 1
	case OpYield:
		if args = yieldPlace; len(in.Args) == 1 {
			args = 1
		}
	case OpAssert:
		args = min(max(len(in.Args), 1), maxAssertArgs)
	}
	if in.Op != OpLoad && in.Op != OpAtomic && p.resultType(&Instr{Op: in.Op, Type: dtype.Int32}) == dtype.Invalid {
		res = 0
	}
	if in.Op == OpAtomic && len(in.Res) == 0 {
		res = 0
	}
	switch {
	case v.err != nil:
	case len(in.Args) != args:
		v.fail(in, "%s takes %d operands, not %d", in.Op, args, len(in.Args))
	case len(in.Res) != res:
		v.fail(in, "%s has %d results, not %d", in.Op, res, len(in.Res))
	case len(in.Blocks) != blocks || slices.Contains(in.Blocks, nil):
		v.fail(in, "%s has %d regions, not %d", in.Op, blocks, len(in.Blocks))
	case symbols >= 0 && (in.Sym < 0 || in.Sym >= symbols):
		v.fail(in, "%s names something that is not declared", in.Op)
	case in.Op == OpTileDot && (in.Imm>>32 >= uint64(len(p.Tiles)) || in.Imm&0xffffffff >= uint64(len(p.Tiles))),
		(in.Op == OpTileRows || in.Op == OpTileCopy) && in.Imm >= uint64(len(p.Tiles)),
		in.Op == OpTileMap && !p.mapsTiles(in):
		v.fail(in, "%s names something that is not declared", in.Op)
	}
	return v.err == nil
}

// accessShape returns the numbers of operands and results of a memory access, and the number of symbols in its space (-1 for global).
func (v *verifier) accessShape(in *Instr) (args, res, symbols int) {
	p := v.p
	switch in.Space {
	case Global:
		args, symbols = 2, -1
	case Shared:
		args, symbols = 1, len(p.Shared)
	case Local:
		args, symbols = 1, len(p.Local)
	case Const:
		args, symbols = 1, len(p.Tables)
	case ParamSpace:
		args, symbols = 1, len(p.Params)
	default:
		v.fail(in, "there is no such memory")
	}
	switch {
	case in.Op == OpAtomic && in.Sub == AtomCAS:
		return args + 2, 1, symbols
	case in.Op == OpAtomic:
		return args + 1, 1, symbols
	}
	switch in.Width {
	case 1, 2, 4, 8, 16:
	default:
		v.fail(in, "a width of %d elements does not exist; want 1, 2, 4, 8 or 16", in.Width)
	}
	if in.Op == OpStore {
		return args + in.Width, 0, symbols
	}
	return args, in.Width, symbols
}

// operands checks that every operand is in scope.
func (v *verifier) operands(in *Instr) bool {
	for _, x := range in.Args {
		switch {
		case x < 0 || int(x) >= len(v.p.Values):
			v.fail(in, "an operand is missing")
		case !v.live[x]:
			v.fail(in, "a value is used outside the If, loop or tile operation in which it was made; carry it out in a variable, k.Var")
		}
	}
	return v.err == nil
}

func (v *verifier) typeOf(x Value) Type { return v.p.Values[x] }

// want checks the type of operand i.
func (v *verifier) want(in *Instr, i int, t Type) {
	if got := v.typeOf(in.Args[i]); got != t {
		v.fail(in, "operand %d of %s is %v; it must be %v: convert it", i+1, in.word(), got, t)
	}
}

// types checks the types of operands.
func (v *verifier) types(in *Instr) {
	info := &infos[in.Op]
	if info.typed && !info.types.has(in.Type) {
		v.fail(in, "%s works on %v, not on %v; convert the value", in.word(), info.types, in.Type)
		return
	}
	if !info.typed && !in.Op.ofTiles() {
		v.implied(in)
	}
	switch in.Op {
	case OpConst:
		if s := in.Type.Size(); s < 8 && in.Imm>>(8*s) != 0 || in.Type == dtype.Bool && in.Imm > 1 {
			v.fail(in, "the constant has bits beyond its width")
		}
	case OpParam:
		if v.p.Params[in.Sym].Kind == ParamArray {
			v.fail(in, "an array parameter has no value; load its elements")
		}
	case OpSet:
		v.want(in, 0, v.p.Vars[in.Sym])
	case OpShl, OpShr:
		v.want(in, 0, in.Type)
		if t := v.typeOf(in.Args[1]); t != dtype.Int32 && t != dtype.Uint32 {
			v.fail(in, "the amount of %s is %v; it must be int32 or uint32: convert it", in.word(), t)
		}
	case OpSelect:
		v.want(in, 0, dtype.Bool)
		v.want(in, 1, in.Type)
		v.want(in, 2, in.Type)
	case OpCvt:
		if t := v.typeOf(in.Args[0]); t == in.Type {
			v.fail(in, "a conversion from %v to itself", t)
		}
	case OpBitcast:
		if t := v.typeOf(in.Args[0]); t.Size() != in.Type.Size() || t == dtype.Bool || t == in.Type {
			v.fail(in, "a bitcast from %v to %v needs another type of the same size", t, in.Type)
		}
	case OpLoad, OpStore, OpAtomic:
		v.memory(in)
	case OpPtrAdd:
		v.want(in, 0, dtype.Uint64)
		if t := v.typeOf(in.Args[1]); t != dtype.Int64 {
			v.fail(in, "an offset is %v; it must be int64: convert it", t)
		}
	case OpShuffle:
		v.want(in, 0, in.Type)
		v.want(in, 1, dtype.Int32)
	case OpIf:
		v.want(in, 0, dtype.Bool)
		if len(in.Blocks[0].Params)+len(in.Blocks[1].Params) != 0 {
			v.fail(in, "the regions of an if have no parameters")
		}
	case OpVote:
		v.want(in, 0, dtype.Bool)
	case OpAssert:
		v.want(in, 0, dtype.Bool)
		if n := len(in.Args) - 1; n > 0 && strings.Count(in.Text, "%v") != n {
			v.fail(in, "the text %q has not %d places for numbers; mark each with %%v", in.Text, n)
		}
	case OpFor:
		v.forLoop(in)
	case OpLoop:
		if len(in.Blocks[0].Params) != 0 {
			v.fail(in, "a loop has no counter")
		}
	case OpTileLoad, OpTileDot, OpTileMap, OpTileRows, OpTileCopy, OpTileEach:
		v.tileTypes(in)
	case OpYield:
		if len(in.Args) == 1 {
			break // tileMap checks the type
		}
		for i, t := range [...]Type{dtype.Uint64, dtype.Int64, dtype.Bool} {
			if got := v.typeOf(in.Args[i]); got != t {
				v.fail(in, "the function of a Tile.Load returns %s of type %v; it must be %v: convert it",
					[...]string{"an address", "an index", "whether it is inside"}[i], got, t)
			}
		}
	default:
		for i := range in.Args {
			v.want(in, i, in.Type)
		}
	}
}

// implied checks Instr.Type for operations where it follows from the rest.
func (v *verifier) implied(in *Instr) {
	if t := v.p.impliedType(in); t != in.Type {
		v.fail(in, "%s works on %v, not on %v", in.word(), t, in.Type)
	}
}

func (v *verifier) forLoop(in *Instr) {
	for i := range in.Args {
		v.want(in, i, in.Type)
	}
	if b := in.Blocks[0]; len(b.Params) != 1 || b.Params[0] < 0 || int(b.Params[0]) >= len(v.p.Values) || v.typeOf(b.Params[0]) != in.Type {
		v.fail(in, "the loop's counter is not one %v", in.Type)
	}
	if in.Imm > 16 {
		v.fail(in, "a pipeline of %d stages is too long; the limit is 16", in.Imm)
	}
}

// memory checks a load, store or atomic.
func (v *verifier) memory(in *Instr) {
	p := v.p
	args := in.Args
	element := in.Type
	switch in.Space {
	case Global:
		v.want(in, 0, dtype.Uint64)
		args = args[1:]
	case Shared:
		element = p.Shared[in.Sym].Type
	case Local:
		element = p.Local[in.Sym].Type
	case Const:
		element = p.Tables[in.Sym].Type
	case ParamSpace:
		element = p.Params[in.Sym].Type
		if p.Params[in.Sym].Kind != ParamArray {
			v.fail(in, "parameter %q is not an array", p.Params[in.Sym].Name)
		}
	}
	switch {
	case element != in.Type:
		v.fail(in, "elements of the array are %v, not %v", element, in.Type)
	case (in.Space == Const || in.Space == ParamSpace) && in.Op != OpLoad:
		v.fail(in, "%s memory cannot be written", in.Space)
	case in.Op != OpAtomic && in.Width > 1 && in.Width*in.Type.Size() > maxAccessBytes:
		v.fail(in, "one access of %d bytes is too wide; the limit is %d", in.Width*in.Type.Size(), maxAccessBytes)
	case in.Cache > CacheReadOnly || in.Cache != CacheDefault && (in.Space != Global || in.Op == OpAtomic):
		v.fail(in, "the cache hint does not belong here")
	case in.Cache == CacheReadOnly && in.Op == OpStore:
		v.fail(in, "the cache hint does not belong here")
	}
	if t := v.typeOf(args[0]); t != dtype.Int32 && t != dtype.Int64 {
		v.fail(in, "the index is %v; it must be int32 or int64: convert it", t)
	}
	for _, x := range args[1:] {
		if t := v.typeOf(x); t != in.Type {
			v.fail(in, "a value is %v; it must be %v: convert it", t, in.Type)
		}
	}
	if in.Op == OpAtomic {
		v.atomic(in)
	}
}

func (v *verifier) atomic(in *Instr) {
	if in.Space != Global && in.Space != Shared {
		v.fail(in, "atomics work on global and shared memory")
	}
	if in.Imm != 0 {
		v.fail(in, "atomics have no constant offset")
	}
	switch in.Sub {
	case AtomMin, AtomMax, AtomAnd, AtomOr, AtomXor:
		if in.Type.IsFloat() {
			v.fail(in, "an atomic %s works on 32- and 64-bit integers, not on %v; convert the value", infos[OpAtomic].subs[in.Sub], in.Type)
		}
	}
}

// tileTypes checks the declared shapes and types of a tile operation.
func (v *verifier) tileTypes(in *Instr) {
	t := v.p.Tiles[in.Sym]
	if t.InParts() > 1 && in.Op != OpTileDot && in.Op != OpTileEach && in.Op != OpTileZero {
		v.fail(in, "tile %s is summed in parts, and can only be zeroed, added to by products, and visited", t.Name)
		return
	}
	switch in.Op {
	case OpTileDot:
		v.dot(in, t)
		return
	case OpTileRows, OpTileCopy:
		v.tilePair(in, t)
		return
	case OpTileMap:
		v.tileMap(in, t)
		return
	}
	if in.Type != t.Type {
		v.fail(in, "%s works on %v, not on %v", in.word(), t.Type, in.Type)
	}
	params := in.Blocks[0].Params
	want, axis := 2, t.Cols
	if in.Op == OpTileEach {
		want += in.Width
	} else if in.Sub == AlongRows {
		axis = t.Rows
	}
	switch in.Width {
	case 1, 2, 4, 8, 16:
	default:
		v.fail(in, "a width of %d elements does not exist; want 1, 2, 4, 8 or 16", in.Width)
		return
	}
	if axis%in.Width != 0 {
		v.fail(in, "groups of %d do not divide the tile's %d", in.Width, axis)
	}
	if in.Op == OpTileLoad && in.Width > 1 && in.Width*t.Type.Size() > maxAccessBytes {
		v.fail(in, "one access of %d bytes is too wide; the limit is %d", in.Width*t.Type.Size(), maxAccessBytes)
	}
	if len(params) != want {
		v.fail(in, "the region has %d parameters, not %d", len(params), want)
		return
	}
	for i, x := range params {
		pt := t.Type
		if i < 2 {
			pt = dtype.Int32
		}
		if x < 0 || int(x) >= len(v.p.Values) || v.typeOf(x) != pt {
			v.fail(in, "parameter %d of the region is not %v", i+1, pt)
			return
		}
	}
	if len(in.Args) > 0 {
		if in.Imm >= uint64(len(v.p.Params)) || !v.p.Params[in.Imm].IsMap() {
			v.fail(in, "parameter %d is not a tensor map", in.Imm)
			return
		}
		t := v.p.mapTile(in)
		old, ok := v.maps[in.Imm]
		switch {
		case t.Pixels && t.Plain:
			v.fail(in, "plain tensor map %s loads pixels; declare it without plain", v.p.Params[in.Imm].Name)
		case ok && old.Pixels != t.Pixels:
			v.fail(in, "tensor map %s loads matrices and pixels; declare one for each", v.p.Params[in.Imm].Name)
		case ok && old.Groups != t.Groups:
			v.fail(in, "tensor map %s loads tiles with a group and without; declare one for each", v.p.Params[in.Imm].Name)
		case ok && old != t:
			v.fail(in, "tensor map %s loads tiles of %d lines of %d %v and of %d lines of %d %v; declare one for each",
				v.p.Params[in.Imm].Name, old.Lines, old.Line, old.Type, t.Lines, t.Line, t.Type)
		}
		v.maps[in.Imm] = t
		for i := range in.Args {
			v.want(in, i, dtype.Int32)
		}
	}
	ins := in.Blocks[0].Instrs
	if in.Op == OpTileLoad && (len(ins) == 0 || ins[len(ins)-1] == nil || ins[len(ins)-1].Op != OpYield) {
		v.fail(in, "the region does not end in a yield")
	}
}

func (v *verifier) dot(in *Instr, acc Tile) {
	a, b := v.p.Tiles[in.Imm>>32], v.p.Tiles[in.Imm&0xffffffff]
	want := dtype.Invalid
	switch a.Type {
	case dtype.Float16, dtype.BFloat16, dtype.Float32:
		want = dtype.Float32
	case dtype.Float64:
		want = dtype.Float64
	case dtype.Int8:
		want = dtype.Int32
	}
	switch {
	case a.Type != b.Type || want == dtype.Invalid:
		v.fail(in, "tiles of %v and %v cannot be multiplied; want two of float16, bfloat16, float32, float64 or int8", a.Type, b.Type)
	case in.Type != a.Type:
		v.fail(in, "tile_dot works on %v, not on %v", a.Type, in.Type)
	case acc.Type != want:
		v.fail(in, "products of %v are summed in %v, not in %v; declare the sum so", a.Type, want, acc.Type)
	case in.Sub == DotTransposed && a.Type.Size() != 2:
		v.fail(in, "a product with a transposed operand is of halves, not of %v", a.Type)
	case in.Sub == DotTransposed && (acc.Rows != a.Rows || acc.Cols != b.Rows || a.Cols != b.Cols):
		v.fail(in, "a %dx%d tile is not the product of %dx%d and the transpose of %dx%d; want MxN of MxK and NxK", acc.Rows,
			acc.Cols, a.Rows, a.Cols, b.Rows, b.Cols)
	case in.Sub != DotTransposed && (acc.Rows != a.Rows || acc.Cols != b.Cols || a.Cols != b.Rows):
		v.fail(in, "a %dx%d tile is not the product of %dx%d and %dx%d; want MxN of MxK and KxN", acc.Rows, acc.Cols, a.Rows, a.Cols,
			b.Rows, b.Cols)
	case in.Sub == DotTF32 && a.Type != dtype.Float32:
		v.fail(in, "tf32 is for float32 operands")
	case in.Imm>>32 == uint64(in.Sym) || in.Imm&0xffffffff == uint64(in.Sym):
		v.fail(in, "the accumulator is an operand too")
	case a.InParts() > 1 || b.InParts() > 1:
		v.fail(in, "an operand is summed in parts")
	case a.Cols%acc.InParts() != 0:
		v.fail(in, "%d parts of the sum do not divide the inner axis of %d", acc.Parts, a.Cols)
	}
}

// yieldPlace is the number of values that the region of a tile load yields.
const yieldPlace = 3

// ofTiles reports whether the operation works on tiles.
func (op Op) ofTiles() bool { return op >= OpTileZero && op <= OpTileEach }

// mapsTiles reports whether a tile map names only declared tiles, without a gap.
func (p *Program) mapsTiles(in *Instr) bool {
	others := in.MapOthers()
	for _, t := range others {
		if t < 0 || t >= len(p.Tiles) {
			return false
		}
	}
	return len(others) <= MapTilesMost
}

// tilePair checks an operation of two tiles.
func (v *verifier) tilePair(in *Instr, t Tile) {
	from := v.p.Tiles[in.Imm]
	switch {
	case in.Type != t.Type:
		v.fail(in, "%s works on %v, not on %v", in.word(), t.Type, in.Type)
	case in.Imm == uint64(in.Sym):
		v.fail(in, "%s reads and writes one tile; use two", in.word())
	case from.InParts() > 1:
		v.fail(in, "%s reads a tile that is summed in parts", in.word())
	case from.Type != dtype.Float32:
		v.fail(in, "%s reads a tile of %v; it must be float32", in.word(), from.Type)
	case in.Op == OpTileRows && (t.Type != dtype.Float32 || t.Cols != 1 || t.Rows != from.Rows):
		v.fail(in, "the rows of a %dx%d tile of float32 do not fit into a %dx%d tile of %v", from.Rows, from.Cols, t.Rows, t.Cols, t.Type)
	case in.Op == OpTileCopy && (!halves.has(t.Type) || t.Cols != from.Cols || t.Rows != from.Rows):
		v.fail(in, "a %dx%d tile of float32 cannot be copied to a %dx%d tile of %v; it must be of halves and as large",
			from.Rows, from.Cols, t.Rows, t.Cols, t.Type)
	}
}

// tileMap checks a tile map.
func (v *verifier) tileMap(in *Instr, t Tile) {
	if in.Type != t.Type {
		v.fail(in, "%s works on %v, not on %v", in.word(), t.Type, in.Type)
	}
	types := []Type{dtype.Int32, dtype.Int32, t.Type}
	for _, i := range in.MapOthers() {
		o := v.p.Tiles[i]
		switch {
		case o.IsRow(t) && o.Type != dtype.Float32:
			v.fail(in, "a map reads a row of %v; it must be float32", o.Type)
		case o.IsRow(t):
		case o.Rows != t.Rows || o.Cols != 1 && o.Cols != t.Cols:
			v.fail(in, "a map of a %dx%d tile cannot read a %dx%d tile; give it %d columns and %d rows or one, or one column and %d rows",
				t.Rows, t.Cols, o.Rows, o.Cols, t.Cols, t.Rows, t.Rows)
		}
		if o.InParts() > 1 {
			v.fail(in, "a map reads a tile that is summed in parts")
		}
		types = append(types, o.Type)
	}
	b := in.Blocks[0]
	if len(b.Params) != len(types) {
		v.fail(in, "the region has %d parameters, not %d", len(b.Params), len(types))
		return
	}
	for i, x := range b.Params {
		if x < 0 || int(x) >= len(v.p.Values) || v.typeOf(x) != types[i] {
			v.fail(in, "parameter %d of the region is not %v", i+1, types[i])
			return
		}
	}
	if n := len(b.Instrs); n == 0 || b.Instrs[n-1] == nil || b.Instrs[n-1].Op != OpYield {
		v.fail(in, "the region does not end in a yield")
	}
}
