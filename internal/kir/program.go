// Package kir is the kernel IR: SPMD programs over a grid of thread blocks, with structured control flow and typed values.
// It must not depend on how a program is built (package kernel) or run (packages ptx and vexec).
//
// # Shape
//
// A [Program] has parameters, shared arrays, constant tables, variables, tiles and a body. An [Instr] defines values that are never
// redefined (SSA); what changes is a variable, read by [OpGet] and written by [OpSet], so there are no phis. Regions ([Block]) nest:
// if, for and loop hold them. A value may be used in the region that defines it, after its definition, and in regions nested there.
//
// # Numerics
//
// Every operation has one result. Float operations round to nearest even and keep subnormals; [OpFMA] rounds once and is never
// formed from a multiply and an add, nor split. So the back ends agree bit for bit, except on [OpTileDot], [OpTileRows], [OpExp2] and
// float atomics. The bits of a NaN result are not pinned.
//
// # Two levels
//
// Thread level: each thread of the block runs the body. Tile level: the tile operations are collective; all threads of the block
// reach them together, and the layout of a tile over threads is private to the back end.
package kir

import "tenon.dev/dtype"

// Type is the type of a value: Bool is a predicate; Float16 and BFloat16 can only be loaded, stored, converted, moved, selected and
// shuffled; complex types do not exist here.
type Type = dtype.DType

// Value names a result of an instruction, an index into Program.Values.
type Value int32

// NoValue stands for an operand that is not there.
const NoValue Value = -1

// Program is one kernel.
type Program struct {
	// Name is the kernel's symbol: letters, digits and underscores.
	Name string
	// Params are the launch parameters in order.
	Params []Param
	// Threads is the most threads a block may have, and exactly the number it has if tile operations or FixedThreads say so.
	Threads int
	// FixedThreads promises that every launch uses blocks of exactly Threads threads, in x.
	FixedThreads bool
	// Shared and Local are static arrays of the block and of each thread; Tables are constants.
	Shared, Local []Array
	Tables        []Table
	// Values and Vars hold the types of values and variables. Tiles declares the tiles.
	Values []Type
	Vars   []Type
	Tiles  []Tile
	// Body is the program.
	Body *Block
	// Locs are the source places that Instr.Loc indexes; Locs[0] is unknown.
	Locs []Loc
}

// ParamKind says what a parameter is.
type ParamKind uint8

// The kinds of parameter. In the packed arguments each lies at its natural alignment: a scalar as its type (Bool one byte), a buffer as
// an 8-byte address, an array as Count elements. A tensor map lies as said at MapPlace.
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
	// ReadOnly promises that the kernel does not write the buffer, nor does any other work while the kernel runs.
	ReadOnly bool
	// Align promises the buffer's alignment in bytes, and is MapAlign of a tensor map; 0 means the element size.
	Align int
	// Plain says of a tensor map that its tiles' lines are copied as they lie in memory, for plain arithmetic, and not as matrix units read
	// them.
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

// Array is a static array in shared or local memory; its contents start undefined. Count -1 is the dynamic shared memory of the launch.
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

// Tile is a Rows x Cols matrix that the block owns, changed in place by tile operations. An accumulator is the first operand of
// OpTileDot or read by OpTileEach.
type Tile struct {
	Name       string
	Type       Type
	Rows, Cols int
}

// Loc is a place in source code.
type Loc struct {
	File string
	Line int
}

// Block is a region: Params are values defined on entry (loop counters, tile coordinates).
type Block struct {
	Params []Value
	Instrs []*Instr
}

// Space is a memory.
type Space uint8

// The memories. A global access names its base by a value (an address, Uint64); the others name their array by Instr.Sym.
const (
	Global Space = iota
	Shared
	Local
	Const
	// ParamSpace reads an element of a ParamArray.
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

// Instr is one instruction. Which fields count is said at each [Op].
type Instr struct {
	Op Op
	// Type is the type that the operation works in: of the operands for arithmetic, comparison and conversion, of the element for memory.
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
	// Text is an assert's message.
	Text string
	// Loc indexes Program.Locs.
	Loc int
}
