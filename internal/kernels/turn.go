package kernels

import (
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// A copy goes through shared memory if the output's innermost dimension has at least turnWidth elements and the two dimensions fill at
// least turnLeast places of a square of 32 by 32. In narrower outputs, neighbouring threads of a plain copy share what they read.
const (
	turnWidth = 16
	turnLeast = 256
)

// turnSides are the sides of the square tiles in shared memory, indexed by the logarithm of an element's bytes; each thread of a block
// moves turnBytes of a tile.
var turnSides = [...]int{128, 64, 64, 32, 32}

const turnBytes = 32

// turned returns the dimension, not the innermost one, along which the input of a copy has adjacent elements while the output has them
// along the innermost dimension, so that a plain copy would use one element of each cache line at a time. It returns 0 if there is none.
func (p *pointPlan) turned(op *PointOp, outs, ins []Operand) int {
	if op != Copy || p.ptr[1] == 0 || outs[0].DType != ins[0].DType || p.stride[0][0] != 1 || p.stride[1][0] == 1 || p.stride[1][0] == 0 ||
		p.size[0] < turnWidth {
		return 0
	}
	for d := 1; d < p.nd; d++ {
		if p.stride[1][d] == 1 && min(32, p.size[0])*min(32, p.size[d]) >= turnLeast {
			return d
		}
	}
	return 0
}

// turn launches a copy that is transposed along dimension d.
func (p *pointPlan) turn(is Issuer, d int) error {
	l := is.NewLaunch()
	l.Spec = Spec{Family: FamilyTurn, Compute: bitsType(p.bytes[0]), Vec: uint8(max(1, p.bytes[0]/8)), Index: 32}
	give := 16 / p.bytes[0]
	take := min(4, give)
	if !p.evenly(1, d, take) {
		take = 1
	}
	if !p.evenly(0, 0, give) {
		give = 1
	}
	side := turnSides[bits.TrailingZeros(uint(p.bytes[0]))]
	if short := side / 2; short >= 32 && min(p.size[0], p.size[d]) <= short {
		side = short
	}
	l.Spec.Turn = turnSpec{Side: uint8(side), Take: uint8(take), Give: uint8(give)}
	t := turnOf(&l.Spec)
	rest := space{count: 2}
	for e := 1; e < p.nd; e++ {
		if e != d {
			rest.open(rest.nd, p.size[e])
			rest.stride[0][rest.nd-1], rest.stride[1][rest.nd-1] = p.stride[0][e]/t.pack, p.stride[1][e]/t.inPack
		}
	}
	rest.merge()
	l.Spec.Turn.Dims = uint8(dimsClass(rest.nd))
	across, down := ceilDiv(p.size[0], t.side), ceilDiv(p.size[d], t.side)
	blocks := rest.numel() * across * down
	var a turnArgs
	a.out.host, a.in.host, a.width.host, a.height.host = p.ptr[0], p.ptr[1], p.size[0], p.size[d]
	a.outStep.host, a.inStep.host, a.across.host = p.stride[0][d]/t.pack, p.stride[1][0]/t.inPack, across
	a.down.host, a.acrossDivider.host, a.downDivider.host, a.dims.host = down, across, down, &rest
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(blocks), 1, 1}
	l.Block = [3]uint32{uint32(t.threads), 1, 1}
	return is.Issue(l)
}

// evenly reports whether the elements of operand i that are adjacent along dimension d can be accessed n at a time.
func (p *pointPlan) evenly(i, d, n int) bool {
	places := p.ptr[i]/uint64(p.bytes[i]) | uint64(p.size[d])
	for e := range p.nd {
		if e != d {
			places |= uint64(p.stride[i][e])
		}
	}
	return places%uint64(n) == 0
}

// layOut copies o to workspace of size elements, with the given strides.
func layOut(is Issuer, o Operand, stride []int, size int) (Operand, error) {
	ws, err := is.Workspace(size * o.DType.Size())
	if err != nil {
		return o, err
	}
	to := Operand{Ptr: ws, DType: o.DType, Shape: o.Shape, Stride: stride}
	return to, Pointwise(is, Copy, o.DType, nil, []Operand{to}, []Operand{o})
}

// bitsType returns the unsigned type with the size of an element; 16-byte elements take two of them.
func bitsType(bytes int) dtype.DType {
	switch bytes {
	case 1:
		return dtype.Uint8
	case 2:
		return dtype.Uint16
	case 4:
		return dtype.Uint32
	}
	return dtype.Uint64
}

var _ = register(FamilyTurn, buildTurn)

// turnSpec is what transposing copies are specialised on: the side of the tiles, the number of elements per read and per write, and the
// class of the number of remaining dimensions, see dimsClass.
type turnSpec struct{ Side, Take, Give, Dims uint8 }

// turnArgs are the arguments of a transposing copy. across and down are the numbers of tiles.
type turnArgs struct {
	out, in                        bufferArg
	width, height, outStep, inStep intArg
	across, down                   intArg
	acrossDivider, downDivider     dividerArg
	dims                           striderArg
}

func (a *turnArgs) layout(p params) {
	t := turnOf(p.s)
	p.buffer(&a.out, "out", t.cell)
	p.bufferRO(&a.in, "in", t.unit)
	p.i32(&a.width, "width")
	p.i32(&a.height, "height")
	p.i32(&a.outStep, "out_step")
	p.i32(&a.inStep, "in_step")
	p.i32(&a.across, "across")
	p.divider(&a.acrossDivider, "across_magic", "across_shift")
	p.i32(&a.down, "down")
	p.divider(&a.downDivider, "down_magic", "down_shift")
	p.strider(&a.dims, "dim", int(p.s.Turn.Dims), 1, 32, operandsFrom(0, 2))
}

// turn describes how a transposing copy goes through shared memory.
type turn struct {
	// take and give are the numbers of elements per read and per write, parts the number of values per element.
	side, take, give, parts, threads int
	// A cell of shared memory holds pack elements that are adjacent in the output; a unit of the input has inPack elements.
	cell, unit   dtype.DType
	pack, inPack int
}

func turnOf(s *Spec) turn {
	t := turn{side: int(s.Turn.Side), take: int(s.Turn.Take), give: int(s.Turn.Give), parts: int(s.Vec), cell: s.Compute, unit: s.Compute,
		pack: 1, inPack: 1}
	bytes := s.Compute.Size()
	t.threads = t.side * t.side * bytes * t.parts / turnBytes
	if bytes < 4 && t.give > 1 {
		t.cell, t.pack = dtype.Uint32, 4/bytes
		if t.take > 1 {
			t.unit, t.inPack = t.cell, t.pack
		}
	}
	return t
}

// spread assigns every thread n positions from (x, y) on in lines of the given size, and the same positions in every step-th line after
// that. A warp takes n lines of 32 positions: with 32-bit cells, there are no bank conflicts in such a patch or in its transpose.
func (t *turn) spread(k *kernel.Builder, size, n int) (x, y kernel.Value, step int) {
	lanes := min(32, size) / n
	across := size / (lanes * n)
	lane, group := k.ThreadIdx(kernel.X).And(k.I32(31)), k.ThreadIdx(kernel.X).Shr(k.I32(5))
	x = group.And(k.I32(across - 1)).Mul(k.I32(lanes)).Add(lane.And(k.I32(lanes - 1))).Mul(k.I32(n))
	y = group.Shr(log2(k, across)).Mul(k.I32(32 / lanes)).Add(lane.Shr(log2(k, lanes)))
	return x, y, t.threads * n / size
}

// log2 returns the base-2 logarithm of n, a power of two.
func log2(k *kernel.Builder, n int) kernel.Value { return k.I32(bits.TrailingZeros(uint(n))) }

// buildTurn: a block reads a tile along the input's adjacent elements and writes it along the output's. Reads beyond the edge repeat the
// last elements inside, so that all reads are in flight at once and none waits for a comparison. Lines in shared memory are padded by a
// word, which puts the columns in different banks.
func buildTurn(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("turn"), func(k *kernel.Builder) {
		t := turnOf(s)
		k.FixedThreads(t.threads)
		var a turnArgs
		a.layout(declaring(k, s))
		width, height, outStep, inStep := a.width.Value, a.height.Value, a.outStep.Value, a.inStep.Value
		row, left := a.acrossDivider.divide(k.BlockIdx(kernel.X), a.across.Value)
		batch, top := a.downDivider.divide(row, a.down.Value)
		left, top = left.Mul(k.I32(t.side)), top.Mul(k.I32(t.side))
		base := a.dims.locate(batch)
		at := func(i kernel.Value) kernel.Value {
			if t.parts == 1 {
				return i
			}
			return i.MulWide(k.I32(t.parts))
		}
		pitch := t.side + max(1, 4/t.cell.Size())
		tile := make([]kernel.Array, t.parts)
		for i := range tile {
			tile[i] = k.Shared([]string{"low", "high"}[i], t.cell, t.side/t.pack*pitch)
		}

		x, y, step := t.spread(k, t.side, t.take)
		from := base[1].Add(top.Add(x).Min(height.Sub(k.I32(t.take))).Shr(log2(k, t.inPack)))
		var lines [][]kernel.Value
		for i := 0; i < t.side/t.pack; i += step {
			first := left.Add(y.Add(k.I32(i)).Mul(k.I32(t.pack))).Min(width.Sub(k.I32(t.pack)))
			index := from.Add(first.Mul(inStep))
			for range t.pack {
				lines = append(lines, a.in.LoadVec(at(index), t.take/t.inPack*t.parts))
				index = index.Add(inStep)
			}
		}
		place := y.Mul(k.I32(pitch)).Add(x)
		for i := range len(lines) / t.pack {
			for n, v := range cells(lines[i*t.pack : (i+1)*t.pack]) {
				tile[n%t.parts].Store(place.Add(k.I32(i*step*pitch+n/t.parts)), v)
			}
		}
		k.Barrier()

		x, y, step = t.spread(k, t.side/t.pack, t.give/t.pack)
		column := left.Shr(log2(k, t.pack)).Add(x)
		index := base[0].Add(column).Add(top.Add(y).Mul(outStep))
		// The number of lines from the thread's first one on; none to the right of the last column.
		inside := column.Mul(k.I32(t.pack)).Lt(width).Select(height.Sub(top).Sub(y), k.I32(0))
		place = x.Mul(k.I32(pitch)).Add(y)
		for j := 0; j < t.side; j += step {
			var vs []kernel.Value
			for n := range t.give / t.pack * t.parts {
				vs = append(vs, tile[n%t.parts].Load(place.Add(k.I32(n/t.parts*pitch+j))))
			}
			k.If(inside.Gt(k.I32(j)), func() { a.out.StoreVec(at(index), vs...) })
			index = index.Add(outStep.Mul(k.I32(step)))
		}
	})
}

// cells returns the columns of lines: the elements if there is one line, otherwise words with an element of each line.
func cells(lines [][]kernel.Value) []kernel.Value {
	if len(lines) == 1 {
		return lines[0]
	}
	k := lines[0][0].Builder()
	width := 32 / len(lines)
	if lines[0][0].Type() != dtype.Uint32 {
		word := lines[0][0].Convert(dtype.Uint32)
		for i, line := range lines[1:] {
			word = word.Or(line[0].Convert(dtype.Uint32).Shl(k.I32((i + 1) * width)))
		}
		return []kernel.Value{word}
	}
	var out []kernel.Value
	for n := range lines[0] {
		words := make([]kernel.Value, len(lines))
		for i := range words {
			words[i] = lines[i][n]
		}
		// Swap squares of half the side, a quarter and so on across the diagonal.
		for far := len(words) / 2; far > 0; far /= 2 {
			shift, low := k.I32(far*width), k.U32(^uint32(0)/(1<<(far*width)+1))
			for i := range words {
				if i&far == 0 {
					a, b := words[i], words[i+far]
					words[i], words[i+far] = a.And(low).Or(b.And(low).Shl(shift)), a.Shr(shift).And(low).Or(b.And(low.Not()))
				}
			}
		}
		out = append(out, words...)
	}
	return out
}
