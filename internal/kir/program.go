// Package kir is the kernel IR: SPMD programs over a grid of thread blocks, with structured control flow and typed values. It must not
// depend on how a program is built (package kernel) or run (packages ptx and vexec).
//
// # Structure
//
// A [Program] has parameters, shared arrays, constant tables, variables, tiles and a body. An [Instr] defines values that are never
// redefined (SSA). Mutable state is in variables, read by [OpGet] and written by [OpSet], so there are no phis. Regions ([Block]) nest: if,
// for and loop contain them. A value may be used after its definition, in the region that defines it and in regions nested there.
//
// # Numerics
//
// Every operation has one defined result. Float operations round to nearest even and keep subnormals, except for [OpExp2] and [OpRcp],
// whose results are those of an instruction of compute capability 9.0. [OpFMA] rounds once, and back ends neither form it from a multiply
// and an add nor split it. So back ends agree bit for bit, except on [OpTileDot], [OpTileRows] and float atomics, and perhaps on OpExp2 and
// OpRcp on other capabilities. The bits of a NaN result are unspecified.
//
// # Two levels
//
// Thread level: each thread of the block runs the body. Tile level: tile operations are collective. All threads of the block reach them
// together, and how a tile is distributed over the threads is private to the back end.
package kir

import "tenon.dev/dtype"

// Type is the type of a value. Bool is a predicate. Float16 and BFloat16 can only be loaded, stored, converted, moved, selected and
// shuffled. There are no complex types.
type Type = dtype.DType

// Value names a result of an instruction; it is an index into Program.Values.
type Value int32

// NoValue stands for an absent operand.
const NoValue Value = -1

// Program is one kernel.
type Program struct {
	// Name is the kernel's symbol: letters, digits and underscores.
	Name string
	// Params are the launch parameters, in order.
	Params []Param
	// Threads is the maximum number of threads per block. Every block has exactly this many if there are tile operations or FixedThreads is
	// set.
	Threads int
	// FixedThreads promises that every launch uses blocks of exactly Threads threads, in x.
	FixedThreads bool
	// Shared and Local are static arrays, of the block and of each thread; Tables are constants.
	Shared, Local []Array
	Tables        []Table
	// Values and Vars hold the types of values and variables. Tiles declares the tiles.
	Values []Type
	Vars   []Type
	Tiles  []Tile
	// Body is the program.
	Body *Block
	// Locs are the source locations that Instr.Loc indexes; Locs[0] is unknown.
	Locs []Loc
}

// ParamKind says what a parameter is.
type ParamKind uint8

// The kinds of parameter. In the packed arguments each has its natural alignment: a scalar is stored as its type (Bool as one byte), a
// buffer as an 8-byte address, an array as Count elements. For a tensor map see MapPlace.
const (
	ParamScalar ParamKind = iota
	ParamBuffer
	ParamArray
)

// Param is one launch parameter.
type Param struct {
	Name string
	Kind ParamKind
	// Type is the scalar's or element's type.
	Type Type
	// Count is the length of a ParamArray.
	Count int
	// ReadOnly promises that neither the kernel nor any other work writes the buffer while the kernel runs, from its OpWait on.
	ReadOnly bool
	// Align promises the buffer's alignment in bytes; 0 means the element size. For a tensor map it is MapAlign.
	Align int
	// Plain says that the lines of a tensor map's tiles are copied as they lie in memory, for plain arithmetic, and not in the layout that
	// matrix units read.
	Plain bool
}

// Bytes returns the size of p in the packed arguments, and its alignment.
func (p *Param) Bytes() (size, align int) {
	switch p.Kind {
	case ParamBuffer:
		return 8, 8
	case ParamArray:
		if p.IsMap() {
			return MapWords * 8, MapAlign
		}
		return p.Count * p.Type.Size(), p.Type.Size()
	}
	return p.Type.Size(), p.Type.Size()
}

// ArgLayout returns the offset of every parameter in the packed arguments and their total size.
func (p *Program) ArgLayout() (offsets []int, size int) {
	for i := range p.Params {
		n, a := p.Params[i].Bytes()
		if p.Params[i].IsMap() {
			size += (MapPlace - size) & (MapAlign - 1)
		} else {
			size = (size + a - 1) / a * a
		}
		offsets = append(offsets, size)
		size += n
	}
	return offsets, size
}

// Array is a static array in shared or local memory; its contents start undefined. Count -1 means the launch's dynamic shared memory.
type Array struct {
	Name  string
	Type  Type
	Count int
}

// Table is constant data: Count = len(Data)/Type.Size() elements, little-endian.
type Table struct {
	Name string
	Type Type
	Data []byte
}

// Tile is a Rows x Cols matrix that the block owns and tile operations change in place. An accumulator is the first operand of OpTileDot or
// is read by OpTileEach.
type Tile struct {
	Name       string
	Type       Type
	Rows, Cols int
	// Parts is the number of parts in which an accumulator is summed, each by its own share of the threads; 0 is 1. Part p adds up the p-th
	// of as many equal shares of the inner axis of each product. OpTileEach sees the sum of the parts, added in their order.
	Parts int
}

// InParts returns the number of parts in which t is summed.
func (t *Tile) InParts() int { return max(t.Parts, 1) }

// IsRow reports whether a map of tile of reads t as a row that serves all of its rows.
func (t *Tile) IsRow(of Tile) bool {
	return t.Rows == 1 && of.Rows > 1 && t.Cols > 1 && t.Cols == of.Cols
}

// Loc is a source location.
type Loc struct {
	File string
	Line int
}

// Block is a region: Params are values defined on entry (loop counters, tile coordinates).
type Block struct {
	Params []Value
	Instrs []*Instr
}

// Space is a memory space.
type Space uint8

// The memory spaces. A global access gives its base as a value (an address, Uint64); the others name their array by Instr.Sym.
const (
	Global Space = iota
	Shared
	Local
	Const
	// ParamSpace is for reading an element of a ParamArray.
	ParamSpace
)

// Cache is a hint for global accesses.
type Cache uint8

// The cache hints: the default; data that is read or written once (evict first); data read through the read-only path.
const (
	CacheDefault Cache = iota
	CacheStream
	CacheReadOnly
)

// Instr is one instruction. Each [Op] says which fields it uses.
type Instr struct {
	Op Op
	// Type is the type the operation works in: that of the operands for arithmetic, comparison and conversion, that of the elements for
	// memory.
	Type Type
	// Res are the values defined; Args the operands.
	Res, Args []Value
	// Imm is a constant's bits, or a count.
	Imm uint64
	// Sub selects among variants of the operation.
	Sub Sub
	// Sym indexes Params, Shared, Local, Tables, Vars or Tiles.
	Sym int
	// Space and Cache are for memory accesses, Width the number of adjacent elements (1, 2, 4, 8 or 16).
	Space Space
	Cache Cache
	Width int
	// Blocks are the nested regions.
	Blocks []*Block
	// Text is an assert's message, or what the program called that begins with a barrier; "" for a barrier of its own.
	Text string
	// Loc indexes Program.Locs.
	Loc int
}

// ExactThreads reports whether every block must have exactly Threads threads, in x.
func (p *Program) ExactThreads() bool { return p.FixedThreads || len(p.Tiles) > 0 }
