package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

const (
	// turnSide is the side of the square tiles in which a turned copy goes through shared memory; a block moves turnRows rows of one at a time.
	turnSide = 32
	turnRows = 8
	// turnLeast is the least size of both dimensions for which that is worth its while.
	turnLeast = 16
)

// turned returns the dimension, not the innermost, along which the input of a copy has its elements side by side while the output has them so
// along the innermost: what a plain copy would read an element from each line of the cache at a time. 0 if there is none.
func (p *pointPlan) turned(op *PointOp, outs, ins []Operand) int {
	if op != Copy || p.ptr[1] == 0 || outs[0].DType != ins[0].DType || p.stride[0][0] != 1 || p.stride[1][0] == 1 || p.stride[1][0] == 0 || p.size[0] < turnLeast {
		return 0
	}
	for d := 1; d < p.nd; d++ {
		if p.stride[1][d] == 1 && p.size[d] >= turnLeast {
			return d
		}
	}
	return 0
}

// turn launches a copy that is turned along dimension d.
func (p *pointPlan) turn(is Issuer, d int) error {
	rest := space{count: 2}
	for e := 1; e < p.nd; e++ {
		if e != d {
			rest.open(rest.nd, p.size[e])
			rest.stride[0][rest.nd-1], rest.stride[1][rest.nd-1] = p.stride[0][e], p.stride[1][e]
		}
	}
	rest.merge()
	dims := dimsClass(rest.nd)
	l := is.NewLaunch()
	l.Spec = Spec{Family: FamilyTurn, Compute: bitsType(p.bytes[0]), Vec: uint8(max(1, p.bytes[0]/8)), Class: uint8(dims), Index: 32}
	l.u64(p.ptr[0])
	l.u64(p.ptr[1])
	across, down := ceilDiv(p.size[0], turnSide), ceilDiv(p.size[d], turnSide)
	for _, v := range []int{p.size[0], p.size[d], across, down, p.stride[0][d], p.stride[1][0]} {
		l.i32(v)
	}
	rest.pack(l, dims, 1, 32, 3)
	l.Grid = [3]uint32{uint32(across * down * rest.numel()), 1, 1}
	l.Block = [3]uint32{turnSide * turnRows, 1, 1}
	return is.Issue(l)
}

// layOut copies o to workspace of size elements, where it has the given strides.
func layOut(is Issuer, o Operand, stride []int, size int) (Operand, error) {
	ws, err := is.Workspace(size * o.DType.Size())
	if err != nil {
		return o, err
	}
	to := Operand{Ptr: ws, DType: o.DType, Shape: o.Shape, Stride: stride}
	return to, Pointwise(is, Copy, o.DType, nil, []Operand{to}, []Operand{o})
}

// bitsType returns the unsigned type of an element's bytes; of 16 it takes two.
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

// buildTurn: a block reads a tile along the input's adjacent elements and writes it along the output's. A column more in shared memory keeps the
// threads that read a column of it in different banks.
func buildTurn(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("turn"), func(k *kernel.Builder) {
		k.FixedThreads(turnSide * turnRows)
		t, parts := s.Compute, int(s.Vec)
		out, in := k.Buffer("out", t), k.BufferRO("in", t)
		i32 := func(name string) kernel.Value { return k.Scalar(name, dtype.Int32) }
		width, height, across, down := i32("width"), i32("height"), i32("across"), i32("down")
		outStep, inStep := i32("out_step"), i32("in_step")
		st := striderParam(k, "dim", int(s.Class), 2, 32)
		tile := make([]kernel.Array, parts)
		for i := range tile {
			tile[i] = k.Shared([]string{"low", "high"}[i], t, turnSide*(turnSide+1))
		}
		tid, id := k.ThreadIdx(kernel.X), k.BlockIdx(kernel.X)
		x, y := tid.And(k.I32(turnSide-1)), tid.Div(k.I32(turnSide))
		row := id.Div(across)
		batch := row.Div(down)
		left := id.Sub(row.Mul(across)).Mul(k.I32(turnSide))
		top := row.Sub(batch.Mul(down)).Mul(k.I32(turnSide))
		base := st.locate(batch)
		at := func(i kernel.Value) kernel.Value { return i.MulWide(k.I32(parts)) }
		for r := 0; r < turnSide; r += turnRows {
			line := y.Add(k.I32(r)) // along the output's innermost dimension
			i, j := left.Add(line), top.Add(x)
			k.If(i.Lt(width).And(j.Lt(height)), func() {
				for n, v := range in.LoadVec(at(base[1].Add(i.Mul(inStep)).Add(j)), parts) {
					tile[n].Store(line.Mul(k.I32(turnSide+1)).Add(x), v)
				}
			})
		}
		k.Barrier()
		for r := 0; r < turnSide; r += turnRows {
			line := y.Add(k.I32(r)) // along the input's
			i, j := left.Add(x), top.Add(line)
			k.If(i.Lt(width).And(j.Lt(height)), func() {
				vs := make([]kernel.Value, parts)
				for n := range vs {
					vs[n] = tile[n].Load(x.Mul(k.I32(turnSide + 1)).Add(line))
				}
				out.StoreVec(at(base[0].Add(i).Add(j.Mul(outStep))), vs...)
			})
		}
	})
}
