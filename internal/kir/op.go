package kir

// Op is an operation. Unless stated otherwise it has one result of type Instr.Type, and operands of the same type.
type Op uint8

// The operations.
const (
	OpInvalid Op = iota

	// OpConst: the constant whose bits are Imm, zero-extended.
	OpConst
	// OpParam: the scalar Params[Sym], or the address (Uint64) of a buffer.
	OpParam
	// OpSpecial: the special register Sub, Int32.
	OpSpecial
	// OpGet and OpSet read and write variable Sym. A variable starts undefined. OpSet has no result.
	OpGet
	OpSet

	// OpAdd, OpSub, OpMul wrap for integers. OpMulHi is the high half of the full product of two 32- or 64-bit integers. OpMulWide
	// multiplies two 32-bit integers; its result has twice the width and the same signedness.
	OpAdd
	OpSub
	OpMul
	OpMulHi
	OpMulWide
	// OpDiv: floats round to nearest; integers truncate, x/0 has all bits set, and the least value divided by -1 is itself.
	OpDiv
	// OpRem: integers only; the result has the sign of the dividend. x%0 is x, and the least value modulo -1 is 0.
	OpRem
	// OpFMA: a*b+c rounded once.
	OpFMA
	// OpNeg and OpAbs: floats change only their sign bit; integers wrap.
	OpNeg
	OpAbs
	// OpMin and OpMax: if one operand is a NaN, the result is the other one; -0 is less than +0.
	OpMin
	OpMax
	// OpMinimum and OpMaximum, Float32: if an operand is a NaN, so is the result, always with the same bits; -0 is less than +0.
	OpMinimum
	OpMaximum
	// OpSqrt rounds to nearest. OpFloor, OpCeil, OpTrunc and OpRint (to nearest even) keep the type.
	OpSqrt
	OpFloor
	OpCeil
	OpTrunc
	OpRint
	// OpExp2 is about 2^x and OpRcp about 1/x, Float32: the results are those of [tenon.dev/internal/approx]. Subnormals are 0.
	OpExp2
	OpRcp
	// OpAnd, OpOr, OpXor, OpNot: integers and Bool.
	OpAnd
	OpOr
	OpXor
	OpNot
	// OpShl and OpShr: Args[1] is Int32 or Uint32, taken as unsigned. An amount of at least the width gives 0, or the sign for OpShr of a
	// signed type.
	OpShl
	OpShr
	// OpClz, OpPopc: the number of leading zeros and of set bits of a 32- or 64-bit integer; Int32. OpBitRev reverses the bits.
	OpClz
	OpPopc
	OpBitRev

	// OpEq … OpGe: the result is Bool. Float comparisons are ordered, except OpNe, which is true if either operand is a NaN. OpIsNaN has
	// one operand.
	OpEq
	OpNe
	OpLt
	OpLe
	OpGt
	OpGe
	OpIsNaN
	// OpSelect: Args[0] Bool ? Args[1] : Args[2].
	OpSelect
	// OpCvt converts Args[0] from its own type to Type. A conversion to a narrower integer keeps the low bits; integers to floats and
	// floats to narrower ones round to nearest even; floats to integers truncate, saturate, and give 0 for NaN; Bool gives 0 or 1; a number
	// to Bool is x != 0.
	OpCvt
	// OpBitcast reinterprets the bits as Type, which has the same size.
	OpBitcast

	// OpLoad: Res are Width adjacent elements. Args = base, index for Global; otherwise Args = index into array Sym. The index is Int32 or
	// Int64 and counts elements of Type; Imm (signed) is added to it. The address of the first element must be aligned to Width*size. Bool
	// is a byte, nonzero = true.
	OpLoad
	// OpStore: Args as for OpLoad, followed by the Width values. No result.
	OpStore
	// OpAtomic: Sub on Global or Shared; Args = base (Global only), index, operand (compare, operand for AtomCAS). Res is the old value, or
	// empty. Relaxed ordering, device scope.
	OpAtomic
	// OpPtrAdd: Args = address (Uint64), byte offset (Int64). Res Uint64.
	OpPtrAdd

	// OpBarrier waits for all threads of the block and orders their shared and global accesses. Not in divergent flow.
	OpBarrier
	// OpFence orders this thread's earlier global accesses before its later ones, at device scope.
	OpFence
	// OpPrefetch asks for the cache line at address Args[0] (Uint64), and changes nothing.
	OpPrefetch
	// OpWait waits for the kernels that precede this one in its stream; they may still be running, and writing global memory, before it.
	// Without one, a kernel waits at its start. It stands in the program's body, once, after no access to global memory but OpPrefetch. A
	// kernel with it lets the next one start too once all of its blocks run.
	OpWait
	// OpShuffle exchanges values of any 16-bit float, 32-bit or 64-bit type within warps of 32 threads: Args = value, lane (Int32); Sub
	// says how. All 32 threads take part. If the source is outside the warp, a thread gets its own value.
	OpShuffle
	// OpVote: Args = Bool; VoteAny and VoteAll give Bool, VoteBallot gives Uint32. All 32 threads of the warp take part.
	OpVote
	// OpAssert stops the kernel with Text if Args[0] (Bool) is false. Each %v in Text stands for the next of the remaining Args, at most
	// two numbers.
	OpAssert
	// OpClock: the device clock in cycles, Int64.
	OpClock

	// OpIf: Args = Bool, Blocks = then, else (which may be empty). No result.
	OpIf
	// OpFor: Args = start, end, step of Type (Int32 or Int64), step > 0; Blocks[0].Params = the counter. Imm > 1 asks for a software
	// pipeline of that many stages over the tile loads of the body, and Imm = 1 allows that such loops in the body load for its next
	// iteration before this one ends.
	OpFor
	// OpLoop repeats Blocks[0] until OpBreak. OpBreak and OpContinue leave the innermost OpFor or OpLoop or start its next iteration.
	// OpReturn ends the thread. Each of these, and OpYield, is the last instruction of its block.
	OpLoop
	OpBreak
	OpContinue
	OpReturn

	// OpTileZero sets tile Sym to zeros.
	OpTileZero
	// OpTileLoad fills tile Sym (Rows x Cols). Blocks[0] has Params row, col (Int32) and ends in OpYield base (Uint64), index (Int64),
	// inside (Bool): the element is base[index], or 0 if not inside. Sub says along which axis Width elements form a group. Groups are
	// aligned to Width in that coordinate; the addresses of their elements are consecutive and aligned to Width*size, and inside is the
	// same for all of them. The region runs once per group, with the first element's coordinates. It has no effects and uses only values
	// that are uniform over the block.
	//
	// Args are empty, or the position (Int32) of the tile's first element in the array that parameter Imm, a tensor map, describes: along
	// the groups, across them, the index of the matrix and, if the array has groups of matrices, the index of the group; or, for a tile of
	// pixels, what ImagePlaces says. A device that supports tensor maps may then copy the tile from there instead of running the region.
	OpTileLoad
	// OpTileDot: tile Sym += tile a x tile b, where Imm = a<<32|b: [M,N] += [M,K] x [K,N]. Accumulator types: Float32 for
	// Float16, BFloat16 and Float32 operands, Float64 for Float64, Int32 for Int8. Sub DotTF32 allows rounding Float32 operands to tf32.
	// Sub DotTransposed, of halves, takes tile b as [N,K]: [M,N] += [M,K] x [N,K]ᵀ.
	OpTileDot
	// OpTileMap gives every element of accumulator Sym a new value. Blocks[0] has Params row, col (Int32), the element, and the elements at
	// the same position of up to MapTilesMost other tiles: accumulators with as many rows, and either as many columns or one, which serves
	// the whole row, or loaded tiles of Float32 with one row, which serves all rows. The region ends in OpYield with the value and has no
	// effects. Imm names the other tiles; MapOthers decodes it.
	OpTileMap
	// OpTileRows combines element r of accumulator Sym, which has one column, with all of row r of accumulator Imm. Sub is RowsSum or
	// RowsMax; the back end chooses the order. Both accumulators are Float32.
	OpTileRows
	// OpTileCopy sets tile Sym, of halves, to accumulator Imm, rounded. From then on the tile may only be the left operand of products.
	OpTileCopy
	// OpTileEach runs Blocks[0] once for every group of Width adjacent columns of tile Sym: Params row, col (Int32), then Width values.
	// Effects are allowed. A tile region uses only those outside values that are uniform over the block, and a variable that it sets is
	// used nowhere else. Barriers, shuffles, votes, tile operations, thread indexes, local memory and returns are not allowed in it.
	OpTileEach
	// OpYield ends a region with the results Args.
	OpYield

	opCount
)

// Sub selects among variants of an operation.
type Sub uint8

// Special registers (OpSpecial).
const (
	TidX Sub = iota
	TidY
	TidZ
	NTidX
	NTidY
	NTidZ
	CtaIDX
	CtaIDY
	CtaIDZ
	NCtaIDX
	NCtaIDY
	NCtaIDZ
	// LaneID is the thread's index in its warp of 32.
	LaneID
)

// Atomic operations (OpAtomic): Add on Int32, Uint32, Int64, Uint64, Float32, Float64; Min, Max on 32- and 64-bit integers; And, Or, Xor,
// Exch, CAS on 32 and 64 bits.
const (
	AtomAdd Sub = iota
	AtomMin
	AtomMax
	AtomAnd
	AtomOr
	AtomXor
	AtomExch
	AtomCAS
)

// Shuffles (OpShuffle): the source lane is the operand, own-operand, own+operand or own^operand.
const (
	ShuffleIdx Sub = iota
	ShuffleUp
	ShuffleDown
	ShuffleXor
)

// Votes (OpVote).
const (
	VoteAny Sub = iota
	VoteAll
	VoteBallot
)

// Axes (OpTileLoad): groups lie along a column (rows adjacent) or along a row (columns adjacent).
const (
	AlongRows Sub = iota // consecutive row coordinates
	AlongCols            // consecutive column coordinates
)

// Variants of OpTileDot.
const (
	DotExact Sub = iota
	DotTF32
	DotTransposed
)

// Combinations (OpTileRows).
const (
	RowsSum Sub = iota
	RowsMax
)

// MapTilesMost is the maximum number of other tiles that an OpTileMap reads.
const MapTilesMost = 3

// MapImm returns the Imm of an OpTileMap that reads the given tiles.
func MapImm(tiles ...int) (imm uint64) {
	for i, t := range tiles {
		imm |= uint64(t+1) << (16 * i)
	}
	return imm
}

// MapOthers returns the other tiles that an OpTileMap reads.
func (in *Instr) MapOthers() (tiles []int) {
	for imm := in.Imm; imm != 0; imm >>= 16 {
		tiles = append(tiles, int(imm&0xffff)-1)
	}
	return tiles
}
