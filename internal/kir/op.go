package kir

// Op is an operation. Unless said otherwise it has one result of Instr.Type and operands of Instr.Type.
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

	// OpAdd, OpSub, OpMul wrap for integers. OpMulHi is the high half of the full product of two 32- or 64-bit integers.
	// OpMulWide multiplies two 32-bit integers; its result has twice the width and the same signedness.
	OpAdd
	OpSub
	OpMul
	OpMulHi
	OpMulWide
	// OpDiv: floats round to nearest; integers truncate, x/0 is all ones, the least value divided by -1 is itself.
	OpDiv
	// OpRem: integers only, the sign of the dividend; x%0 is x, and the least value modulo -1 is 0.
	OpRem
	// OpFMA: a*b+c rounded once.
	OpFMA
	// OpNeg and OpAbs: on floats they change the sign bit only; integers wrap.
	OpNeg
	OpAbs
	// OpMin and OpMax: of a float and a NaN the float; -0 is less than +0.
	OpMin
	OpMax
	// OpSqrt rounds to nearest. OpFloor, OpCeil, OpTrunc and OpRint (to nearest even) keep the type.
	OpSqrt
	OpFloor
	OpCeil
	OpTrunc
	OpRint
	// OpExp2 is 2^x with a relative error of 8e-6 at most, Float32; the back ends differ in its last bits. Of NaN it is NaN, and where 2^x
	// is below 2^-126 it is from 0 to 2^-126.
	OpExp2
	// OpAnd, OpOr, OpXor, OpNot: integers and Bool.
	OpAnd
	OpOr
	OpXor
	OpNot
	// OpShl and OpShr: Args[1] is Int32 or Uint32, taken as unsigned; amounts of the width or more give 0, or the sign for OpShr of a
	// signed type.
	OpShl
	OpShr
	// OpClz, OpPopc: leading zeros and set bits of a 32- or 64-bit integer; Int32. OpBitRev reverses the bits.
	OpClz
	OpPopc
	OpBitRev

	// OpEq … OpGe: result Bool. Floats compare ordered, except OpNe, which is true if either is a NaN. OpIsNaN has one operand.
	OpEq
	OpNe
	OpLt
	OpLe
	OpGt
	OpGe
	OpIsNaN
	// OpSelect: Args[0] Bool ? Args[1] : Args[2].
	OpSelect
	// OpCvt converts Args[0] from its own type to Type. Integers to narrower ones keep the low bits; integers to floats and floats to
	// narrower ones round to nearest even; floats to integers truncate, saturate, and give 0 for NaN; Bool gives 0 or 1; a number to Bool
	// is x != 0.
	OpCvt
	// OpBitcast reinterprets the bits as Type, of equal size.
	OpBitcast

	// OpLoad: Res are Width adjacent elements. Global: Args = base, index; else Args = index into array Sym. The index is Int32 or Int64,
	// counts elements of Type, and Imm (signed) is added to it. The first element's address must be aligned to Width*size. Bool is a byte,
	// nonzero = true.
	OpLoad
	// OpStore: Args as OpLoad's, followed by the Width values. No result.
	OpStore
	// OpAtomic: Sub on Global or Shared; Args = base (Global only), index, operand (and compare, operand for AtomCAS). Res is the old
	// value, or empty. Relaxed, device scope.
	OpAtomic
	// OpPtrAdd: Args = address (Uint64), byte offset (Int64). Res Uint64.
	OpPtrAdd

	// OpBarrier waits for all threads of the block and orders their shared and global accesses. Not in divergent flow.
	OpBarrier
	// OpFence orders this thread's global accesses before later ones, device scope.
	OpFence
	// OpShuffle exchanges values of any 32- or 64-bit type, or half, within groups of 32 threads: Args = value, lane (Int32), Sub how. All
	// 32 threads take part. A source outside the group gives the thread's own value.
	OpShuffle
	// OpVote: Args = Bool; Sub VoteAny or VoteAll give Bool, VoteBallot Uint32. All 32 threads take part.
	OpVote
	// OpAssert: a false Args[0] (Bool) stops the kernel with Text, in which each %v stands for the next of the numbers after it, at most
	// two.
	OpAssert
	// OpClock: the device clock in cycles, Int64.
	OpClock

	// OpIf: Args = Bool, Blocks = then, else (which may be empty). No result.
	OpIf
	// OpFor: Args = start, end, step of Type (Int32 or Int64), step > 0; Blocks[0].Params = the counter. Imm > 1 asks for a software
	// pipeline of that many stages over the tile loads of the body.
	OpFor
	// OpLoop repeats Blocks[0] until OpBreak. OpBreak and OpContinue leave or restart the innermost OpFor or OpLoop. OpReturn ends the
	// thread. Each, and OpYield, is the last instruction of its block.
	OpLoop
	OpBreak
	OpContinue
	OpReturn

	// OpTileZero sets tile Sym to zeros.
	OpTileZero
	// OpTileLoad fills tile Sym (Rows x Cols). Blocks[0] has Params row, col (Int32) and ends in OpYield base (Uint64), index (Int64),
	// inside (Bool): the element is base[index], or 0 where not inside. Sub says along which axis Width elements form a group: groups are
	// aligned to Width in that coordinate, their addresses are consecutive and aligned to Width*size, inside is the same for all; the
	// region runs once a group, with the first element's coordinates. The region has no effects and uses only values that are uniform over
	// the block.
	//
	// Args are none, or the place (Int32) of the tile's first element in the array that parameter Imm, a tensor map, describes: along the
	// groups, across them, among the array's matrices and, where it has them, among groups of those. A device that copies by tensor maps
	// may then copy the tile from there instead of running the region.
	OpTileLoad
	// OpTileDot: tile Sym += tile a x tile b, where Imm = a<<32|b: [M,N] += [M,K] x [K,N]. Accumulator types: Float32 for
	// Float16, BFloat16 and Float32 operands, Float64 for Float64, Int32 for Int8. Sub DotTF32 allows rounding Float32 operands to tf32.
	// Sub DotTransposed, of halves, takes tile b as [N,K]: [M,N] += [M,K] x [N,K]ᵀ.
	OpTileDot
	// OpTileMap gives every element of accumulator Sym a new value: Blocks[0] has Params row, col (Int32), the element, and the elements at
	// its place of up to MapTilesMost other accumulators of as many rows, which have as many columns or one, that of the row; it ends in
	// OpYield with the value. Imm names the others, MapOthers reads it. The region has no effects.
	OpTileMap
	// OpTileRows combines element r of accumulator Sym, of one column, with all of row r of accumulator Imm, by Sub RowsSum or RowsMax, in
	// an order that the back end chooses. Both are Float32.
	OpTileRows
	// OpTileCopy sets tile Sym, of halves, to accumulator Imm, rounded. The tile is then only the left operand of products.
	OpTileCopy
	// OpTileEach runs Blocks[0] once for every group of Width adjacent columns of tile Sym: Params row, col (Int32), then Width values.
	// Effects are allowed. A tile region uses only values from outside that are uniform over the block, and a variable that it sets is used
	// nowhere else. Barriers, shuffles, votes, tile operations, thread indexes, local memory and returns may not stand in it.
	OpTileEach
	// OpYield ends a region with results. Args.
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
	// LaneID is the thread's place in its group of 32.
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

// Shuffles (OpShuffle): the source lane is the operand, own-operand, own+operand, own^operand.
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

// MapTilesMost is the most other tiles that an OpTileMap reads.
const MapTilesMost = 3

// MapImm is the Imm of an OpTileMap that reads the tiles.
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
