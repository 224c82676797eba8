package kir

import (
	"strings"

	"tenon.dev/dtype"
)

// opInfo is what the text form and the verifier know about an operation.
type opInfo struct {
	name string
	// args is the number of operands, or -1 if it varies.
	args int8
	// typed says that the text includes Instr.Type; otherwise it follows from the rest.
	typed bool
	// types are the types allowed for Instr.Type.
	types typeSet
	// subs names the variants.
	subs []string
}

// typeSet is a set of types, one bit each.
type typeSet uint32

func setOf(ts ...Type) (s typeSet) {
	for _, t := range ts {
		s |= 1 << t
	}
	return s
}

func (s typeSet) has(t Type) bool { return s>>t&1 != 0 }

// String lists the types, all integers by one word.
func (s typeSet) String() string {
	var words []string
	if s&allInts == allInts {
		words, s = append(words, "integers"), s&^allInts
	} else if s&ints32and64 == ints32and64 {
		words, s = append(words, "32- and 64-bit integers"), s&^ints32and64
	}
	for t := range Type(32) {
		if s.has(t) {
			words = append(words, t.String())
		}
	}
	if n := len(words); n > 1 {
		words = append(words[:n-2], words[n-2]+" and "+words[n-1])
	}
	return strings.Join(words, ", ")
}

var (
	ints32and64 = setOf(dtype.Int32, dtype.Uint32, dtype.Int64, dtype.Uint64)
	allInts     = ints32and64 | setOf(dtype.Int8, dtype.Uint8, dtype.Int16, dtype.Uint16)
	fullFloats  = setOf(dtype.Float32, dtype.Float64)
	halves      = setOf(dtype.Float16, dtype.BFloat16)
	numbers     = allInts | fullFloats
	intsAndBool = allInts | setOf(dtype.Bool)
	allTypes    = numbers | halves | setOf(dtype.Bool)
	intLoop     = setOf(dtype.Int32, dtype.Int64)
)

var infos = [opCount]opInfo{
	OpConst: {name: "const", typed: true, types: allTypes},
	OpParam: {name: "param"},
	OpSpecial: {name: "special", subs: []string{"tidx", "tidy", "tidz", "ntidx", "ntidy", "ntidz", "ctaidx", "ctaidy", "ctaidz",
		"nctaidx", "nctaidy", "nctaidz", "laneid"}},
	OpGet:     {name: "get"},
	OpSet:     {name: "set", args: 1},
	OpAdd:     {name: "add", args: 2, typed: true, types: numbers},
	OpSub:     {name: "sub", args: 2, typed: true, types: numbers},
	OpMul:     {name: "mul", args: 2, typed: true, types: numbers},
	OpMulHi:   {name: "mulhi", args: 2, typed: true, types: ints32and64},
	OpMulWide: {name: "mulwide", args: 2, typed: true, types: setOf(dtype.Int32, dtype.Uint32)},
	OpDiv:     {name: "div", args: 2, typed: true, types: numbers},
	OpRem:     {name: "rem", args: 2, typed: true, types: allInts},
	OpFMA:     {name: "fma", args: 3, typed: true, types: fullFloats},
	OpNeg:     {name: "neg", args: 1, typed: true, types: numbers},
	OpAbs:     {name: "abs", args: 1, typed: true, types: numbers},
	OpMin:     {name: "min", args: 2, typed: true, types: numbers},
	OpMax:     {name: "max", args: 2, typed: true, types: numbers},
	OpMinimum: {name: "minimum", args: 2, typed: true, types: setOf(dtype.Float32)},
	OpMaximum: {name: "maximum", args: 2, typed: true, types: setOf(dtype.Float32)},
	OpSqrt:    {name: "sqrt", args: 1, typed: true, types: fullFloats},
	OpFloor:   {name: "floor", args: 1, typed: true, types: fullFloats},
	OpCeil:    {name: "ceil", args: 1, typed: true, types: fullFloats},
	OpTrunc:   {name: "trunc", args: 1, typed: true, types: fullFloats},
	OpRint:    {name: "rint", args: 1, typed: true, types: fullFloats},
	OpExp2:    {name: "exp2", args: 1, typed: true, types: setOf(dtype.Float32)},
	OpRcp:     {name: "rcp", args: 1, typed: true, types: setOf(dtype.Float32)},
	OpAnd:     {name: "and", args: 2, typed: true, types: intsAndBool},
	OpOr:      {name: "or", args: 2, typed: true, types: intsAndBool},
	OpXor:     {name: "xor", args: 2, typed: true, types: intsAndBool},
	OpNot:     {name: "not", args: 1, typed: true, types: intsAndBool},
	OpShl:     {name: "shl", args: 2, typed: true, types: allInts},
	OpShr:     {name: "shr", args: 2, typed: true, types: allInts},
	OpClz:     {name: "clz", args: 1, typed: true, types: ints32and64},
	OpPopc:    {name: "popc", args: 1, typed: true, types: ints32and64},
	OpBitRev:  {name: "bitrev", args: 1, typed: true, types: ints32and64},
	OpEq:      {name: "eq", args: 2, typed: true, types: numbers},
	OpNe:      {name: "ne", args: 2, typed: true, types: numbers},
	OpLt:      {name: "lt", args: 2, typed: true, types: numbers},
	OpLe:      {name: "le", args: 2, typed: true, types: numbers},
	OpGt:      {name: "gt", args: 2, typed: true, types: numbers},
	OpGe:      {name: "ge", args: 2, typed: true, types: numbers},
	OpIsNaN:   {name: "isnan", args: 1, typed: true, types: fullFloats},
	OpSelect:  {name: "select", args: 3, typed: true, types: allTypes},
	OpCvt:     {name: "cvt", args: 1, typed: true, types: allTypes},
	OpBitcast: {name: "bitcast", args: 1, typed: true, types: allTypes &^ setOf(dtype.Bool)},
	OpLoad:    {name: "load", args: -1, typed: true, types: allTypes},
	OpStore:   {name: "store", args: -1, typed: true, types: allTypes},
	OpAtomic: {name: "atomic", args: -1, typed: true, types: ints32and64 | fullFloats, subs: []string{"add", "min", "max", "and", "or",
		"xor", "exch", "cas"}},
	OpPtrAdd:   {name: "ptradd", args: 2},
	OpBarrier:  {name: "barrier"},
	OpFence:    {name: "fence"},
	OpPrefetch: {name: "prefetch", args: 1},
	OpWait:     {name: "wait"},
	OpShuffle: {name: "shuffle", args: 2, typed: true, types: ints32and64 | fullFloats | halves,
		subs: []string{"idx", "up", "down", "xor"}},
	OpVote:     {name: "vote", args: 1, subs: []string{"any", "all", "ballot"}},
	OpAssert:   {name: "assert", args: -1},
	OpClock:    {name: "clock"},
	OpIf:       {name: "if", args: 1},
	OpFor:      {name: "for", args: 3, typed: true, types: intLoop},
	OpLoop:     {name: "loop"},
	OpBreak:    {name: "break"},
	OpContinue: {name: "continue"},
	OpReturn:   {name: "return"},
	OpTileZero: {name: "tile_zero"},
	OpTileLoad: {name: "tile_load", subs: []string{"rows", "cols"}},
	OpTileDot:  {name: "tile_dot", subs: []string{"exact", "tf32", "transposed"}},
	OpTileMap:  {name: "tile_map"},
	OpTileRows: {name: "tile_rows", subs: []string{"sum", "max"}},
	OpTileCopy: {name: "tile_copy"},
	OpTileEach: {name: "tile_each"},
	OpYield:    {name: "yield", args: -1},
}

// words are what programs call operations, where that is not the name in the text form with a capital letter.
var words = map[Op]string{OpMulHi: "MulHi", OpMulWide: "MulWide", OpFMA: "FMA", OpBitRev: "BitRev", OpIsNaN: "IsNaN", OpCvt: "Convert",
	OpPtrAdd: "Offset", OpTileZero: "Tile.Zero", OpTileLoad: "Tile.Load", OpTileDot: "Tile.Dot", OpTileMap: "Tile.Map",
	OpTileCopy: "Tile.Round", OpTileEach: "Tile.Each"}

// word returns what programs call the operation, such as "MulWide".
func (in *Instr) word() string {
	switch in.Op {
	case OpBarrier:
		if in.Text != "" {
			return in.Text
		}
	case OpShuffle:
		return [...]string{ShuffleIdx: "Shuffle", ShuffleUp: "ShuffleUp", ShuffleDown: "ShuffleDown", ShuffleXor: "ShuffleXor"}[in.Sub]
	case OpVote:
		return [...]string{VoteAny: "Any", VoteAll: "All", VoteBallot: "Ballot"}[in.Sub]
	case OpTileRows:
		return [...]string{RowsSum: "Tile.AddRows", RowsMax: "Tile.MaxRows"}[in.Sub]
	}
	if w, ok := words[in.Op]; ok {
		return w
	}
	name := in.Op.String()
	return strings.ToUpper(name[:1]) + name[1:]
}

// String returns the operation's name in the text form, such as "mulwide".
func (op Op) String() string {
	if op > OpInvalid && op < opCount {
		return infos[op].name
	}
	return "invalid"
}

var opsByName = func() map[string]Op {
	m := make(map[string]Op, opCount)
	for op := OpInvalid + 1; op < opCount; op++ {
		m[infos[op].name] = op
	}
	return m
}()

var spaceNames = [...]string{Global: "global", Shared: "shared", Local: "local", Const: "table", ParamSpace: "param"}

var cacheNames = [...]string{CacheDefault: "", CacheStream: "stream", CacheReadOnly: "readonly"}

// String returns the memory space's name in the text form.
func (s Space) String() string {
	if int(s) < len(spaceNames) {
		return spaceNames[s]
	}
	return "invalid"
}

// typeByName returns the type with the given short name.
func typeByName(s string) (Type, bool) {
	switch s {
	case "b":
		return dtype.Bool, true
	case "i8":
		return dtype.Int8, true
	case "u8":
		return dtype.Uint8, true
	case "i16":
		return dtype.Int16, true
	case "u16":
		return dtype.Uint16, true
	case "i32":
		return dtype.Int32, true
	case "u32":
		return dtype.Uint32, true
	case "i64":
		return dtype.Int64, true
	case "u64":
		return dtype.Uint64, true
	case "f16":
		return dtype.Float16, true
	case "bf16":
		return dtype.BFloat16, true
	case "f32":
		return dtype.Float32, true
	case "f64":
		return dtype.Float64, true
	}
	return dtype.Invalid, false
}

// wide returns the type with twice the width of a 32-bit integer and the same signedness.
func wide(t Type) Type {
	if t == dtype.Uint32 {
		return dtype.Uint64
	}
	return dtype.Int64
}

// resultType returns the type of each result of in, which must be valid; Invalid if it has no result.
func (p *Program) resultType(in *Instr) Type {
	switch in.Op {
	case OpEq, OpNe, OpLt, OpLe, OpGt, OpGe, OpIsNaN:
		return dtype.Bool
	case OpMulWide:
		return wide(in.Type)
	case OpClz, OpPopc:
		return dtype.Int32
	case OpVote:
		if in.Sub == VoteBallot {
			return dtype.Uint32
		}
		return dtype.Bool
	case OpSet, OpStore, OpBarrier, OpFence, OpPrefetch, OpWait, OpAssert, OpIf, OpFor, OpLoop, OpBreak, OpContinue, OpReturn,
		OpTileZero, OpTileLoad, OpTileDot, OpTileMap, OpTileRows, OpTileCopy, OpTileEach, OpYield:
		return dtype.Invalid
	}
	return in.Type
}

// impliedType returns Instr.Type for operations whose text does not include it.
func (p *Program) impliedType(in *Instr) Type {
	switch in.Op {
	case OpParam:
		if p.Params[in.Sym].Kind == ParamBuffer {
			return dtype.Uint64
		}
		return p.Params[in.Sym].Type
	case OpSpecial:
		return dtype.Int32
	case OpGet, OpSet:
		return p.Vars[in.Sym]
	case OpPtrAdd, OpPrefetch:
		return dtype.Uint64
	case OpClock:
		return dtype.Int64
	case OpVote, OpAssert, OpIf:
		return dtype.Bool
	case OpTileZero, OpTileLoad, OpTileMap, OpTileRows, OpTileCopy, OpTileEach:
		return p.Tiles[in.Sym].Type
	case OpTileDot:
		return p.Tiles[int(in.Imm>>32)].Type
	}
	return in.Type
}
