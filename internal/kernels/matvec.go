package kernels

import (
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// A product of a few rows reads the matrix once and computes little, so threads read it straight into registers and keep several loads in
// flight: tiles of 64 rows would pass it through shared memory, and leave most of a GPU idle if there are few columns.

// vecSpec is what products of few rows are specialised on in addition to productSpec.
type vecSpec struct {
	// Rows is the number of rows, rounded up to a power of two.
	Rows uint8
	// Lanes is the number of threads of a warp that share a column if the matrix lies along the depth, and otherwise the number of threads
	// that read a row of the block's columns together.
	Lanes uint8
	// Cols is the number of columns of a thread, and Parts the number of warps among which the depth of a column is divided, both if the
	// matrix lies along the depth.
	Cols, Parts uint8
	// Loads is the number of accesses to a column that a thread has in flight.
	Loads uint8
	// Early is 1 if the kernel prefetches a part of the matrix before those before it are complete, and lets the next one start early. A
	// large one would only take room from others.
	Early uint8
}

const (
	// vecRows is the maximum number of rows. With eight, tiles are as fast on an H200.
	vecRows = 4
	// vecEarly is the maximum number of bytes of the matrices of an early kernel. On an H200, matrices of 1.2 MiB take 1.6 instead of 2.3
	// µs, one after the other in a graph, those of 8 MiB as long, and those of 32 MiB were slower, though in another run.
	vecEarly = 8 << 20
	// lineBytes is the size of a cache line, and lineAccesses the number of wide accesses to it.
	lineBytes, lineAccesses = 128, 8
	// vecThreads is the number of threads of a block, and vecWarps that of its warps.
	vecThreads, vecWarps = 256, 8
)

// planVector describes the kernel of a product of few rows, or reports that tiles are better: such kernels need wide accesses to the
// matrix. The numbers are those that were fastest on an H200 with matrices of 64 to 8192 by 64 to 50304 bf16. The order of sums depends on
// the product and on how its operands lie, and is the same on all devices with so many multiprocessors.
func (p *product) planVector(lim *Limits) (v vecSpec, ok bool) {
	if lim.Multiprocessors < fewMultiprocessors || p.m > vecRows || p.k == 0 || p.opt.Tile > 0 || p.a.DType == dtype.Float64 {
		return v, false
	}
	width := 16 / p.a.DType.Size()
	left, right := p.layoutOf(1, &p.a, p.m), p.layoutOf(2, &p.b, p.n)
	if int(right.Width) != width {
		return v, false
	}
	v = vecSpec{Rows: 1 << bits.Len(uint(p.m-1)), Cols: 1, Parts: 1}
	if p.opt.Prologue == nil && p.k*p.n*p.batch.numel()*p.a.DType.Size() <= vecEarly {
		v.Early = 1
	}
	if right.Layout == layoutOwn {
		return v, v.acrossColumns(p.n, p.k, p.batch.numel(), width)
	}
	ok = v.alongDepth(p.n*p.batch.numel(), p.k/width) && left.Layout == layoutDepth && int(left.Width) == width
	if p.opt.Prologue != nil {
		v.making(p.n, p.k/width)
	}
	return v, ok
}

// making adapts the plan for a matrix of n columns along the depth to a prologue: it computes more and reads less for each element. The
// order of sums stays the same. On an H200, one row times 4096 x 14336 whole numbers with factors then takes 21.2 instead of 24.0 µs, and
// two rows times 4096 x 4096 take 8.7 instead of 9.4.
func (v *vecSpec) making(n, accesses int) {
	switch each := ceilDiv(accesses, 32*int(v.Parts)); {
	case v.Lanes < 32:
	case v.Rows == 1 && v.Cols == 1 && n >= 2048:
		v.Cols, v.Loads = 2, uint8(min(each, 2))
	case v.Rows == 2 && each >= 4:
		v.Cols, v.Loads = 2, 4
	}
}

// alongDepth plans for a matrix of n columns that lie along the depth, each read in that many accesses. It reports whether tiles are not
// better: they divide a long depth among blocks.
func (v *vecSpec) alongDepth(n, accesses int) bool {
	const few, short = 64, 16 // columns, and accesses of a thread
	if accesses < 32 {        // a warp has several columns at a time
		v.Lanes, v.Cols, v.Loads = 1<<bits.Len(uint(accesses-1)), 4, 1
		return true
	}
	least := 3 // accesses of a thread
	switch v.Lanes = 32; {
	case v.Rows > 1: // what a thread loads of the rows serves several columns
		if least, v.Cols = 6, 2; n >= 4096 {
			v.Cols = 4
		}
	case n >= 16384:
		v.Cols = 2
	}
	for int(v.Parts) < vecWarps && accesses >= 2*int(v.Parts)*least*32 {
		v.Parts *= 2
	}
	each := ceilDiv(accesses, 32*int(v.Parts))
	if v.Loads = uint8(min(each, 2)); each == 3 && v.Cols == 1 {
		v.Loads = 3
	}
	return n >= few || each <= short
}

// acrossColumns plans for a matrix of n columns that lie beside each other, with depth k, in each of batch products. It reports whether
// tiles are not better: they divide a long depth among blocks.
func (v *vecSpec) acrossColumns(n, k, batch, width int) bool {
	const few, enough, short = 64, 100, 32 // blocks, and accesses of a thread
	v.Lanes = 8
	blocks := func() int { return ceilDiv(n, int(v.Lanes)*width) * batch }
	for v.Lanes > 2 && (blocks() < few || int(v.Lanes)*width >= 2*n) {
		v.Lanes /= 2
	}
	each := ceilDiv(k, vecThreads/int(v.Lanes))
	v.Loads = 1 << (bits.Len(uint(min(each, 16))) - 1)
	return blocks() >= enough || each <= short
}

// columns returns the number of columns of a block.
func (v *vecSpec) columns(layout sideLayout, width int) int {
	if layout == layoutOwn {
		return int(v.Lanes) * width
	}
	return vecWarps / int(v.Parts) * (32 / int(v.Lanes)) * int(v.Cols)
}

// issueVector launches the product of few rows that v describes.
func (p *product) issueVector(is Issuer, v vecSpec) error {
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Compute, s.Outs, s.Ins, s.Vec = FamilyMatvec, p.a.DType, 1, 1, 1
	s.DTypes[0], s.DTypes[1] = p.out.DType, p.opt.Bias.DType
	r := &s.Product
	r.Batch, r.Vector = p.batchDims(), v
	r.Left, r.Right = p.layoutOf(1, &p.a, p.m), p.layoutOf(2, &p.b, p.n)
	if r.Right.Layout == layoutOwn { // its elements are loaded one by one
		r.Left = sideSpec{}
	}
	var a productArgs
	a.epilogue.add(p.opt.Epilogue, s, p.m, p.n)
	if err := p.addPrologue(&a.prologue, s, r.Right.Width); err != nil {
		return err
	}
	p.after(r, s.Vec)
	p.args(&a, 0, 0)
	a.size.host = p.sizes[:]
	for i := range a.stride {
		a.stride[i].host = p.batch.stride[i][:p.batch.nd]
	}
	a.layout(packing(l))
	if err := p.grid(l, gemmTile{rows: vecRows, cols: v.columns(r.Right.Layout, int(r.Right.Width)), threads: vecThreads},
		p.batch.numel(), 1); err != nil {
		return err
	}
	return is.Issue(l)
}

// vecKernel builds the kernel of a product of few rows.
type vecKernel struct {
	*productKernel
	s    *Spec
	k    *kernel.Builder
	v    *vecSpec
	rows int
	// cols is the number of columns of the block, parts the number of sums that are added up for a result, and sums has them: those of a
	// part for each row, and for each column.
	cols, parts int
	sums        kernel.Array
	// first (Int32) is the block's first column.
	first kernel.Value
}

func buildMatvec(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("matvec"+prologueName(s)+epilogueName(s)), func(k *kernel.Builder) {
		k.FixedThreads(vecThreads)
		r := &s.Product
		c := &vecKernel{productKernel: newProductKernel(k, s), s: s, k: k, v: &r.Vector, rows: int(r.Vector.Rows), parts: vecWarps}
		if r.Right.Layout == layoutDepth {
			c.parts = int(r.Vector.Parts)
		}
		c.cols = r.Vector.columns(r.Right.Layout, int(r.Right.Width))
		c.sums = k.Shared("sums", dtype.Float32, c.parts*c.rows*c.cols)
		c.first = k.BlockIdx(kernel.X).Mul(k.I32(c.cols))
		if c.v.Early == 1 {
			c.prefetch()
			k.Wait()
		}
		if r.Batch == 0 {
			c.one(k.I32(0))
			return
		}
		k.For(k.BlockIdx(kernel.Y), c.batch.Value, k.GridDim(kernel.Y), func(b kernel.Value) {
			c.one(b)
			k.Barrier() // the sums have been read
		})
	})
}

// prefetch asks for what the block reads first of the matrix, which kernels before it need not have written.
func (c *vecKernel) prefetch() {
	k, width := c.k, int(c.s.Product.Right.Width)
	b := k.I32(0)
	if c.s.Product.Batch > 0 {
		b = k.BlockIdx(kernel.Y)
	}
	m := c.b.Offset(c.at(k, b, int(c.s.Product.Batch))[2])
	lanes, parts := int(c.v.Lanes), int(c.v.Parts)
	tid := k.ThreadIdx(kernel.X)
	if c.s.Product.Right.Layout == layoutDepth {
		first, columns := c.ofDepth()
		last := c.productArgs.k.Div(k.I32(width)).Sub(k.I32(1))
		k.If(tid.Rem(k.I32(lineAccesses)).Eq(k.I32(0)), func() {
			for j := range int(c.v.Loads) {
				d := first.Add(k.I32(j * parts * lanes)).Min(last).Convert(dtype.Int64).Mul(k.I64(int64(width)))
				for _, col := range columns {
					m.Prefetch(col.Mul(c.bn.Value).Add(d))
				}
			}
		})
		return
	}
	group, from := c.ofColumns()
	last := c.productArgs.k.Sub(k.I32(1))
	k.If(tid.Rem(k.I32(min(lanes, lineAccesses))).Eq(k.I32(0)), func() {
		for j := range int(c.v.Loads) {
			d := group.Add(k.I32(j * vecThreads / lanes)).Min(last).Convert(dtype.Int64)
			m.Prefetch(d.Mul(c.bk.Value).Add(from))
		}
	})
}

// one computes the block's columns in batch b.
func (c *vecKernel) one(b kernel.Value) {
	k := c.k
	off := c.at(k, b, int(c.s.Product.Batch))
	if c.s.Product.Right.Layout == layoutDepth {
		c.alongDepth(c.a.Offset(off[1]), c.b.Offset(off[2]))
	} else {
		c.alongColumns(c.a.Offset(off[1]), c.b.Offset(off[2]))
	}
	k.Barrier()
	out, bias := c.out.Offset(off[0]), c.bias.Offset(off[3])
	k.For(k.ThreadIdx(kernel.X), k.I32(c.rows*c.cols), k.I32(vecThreads), func(i kernel.Value) {
		sum := c.sums.Load(i)
		for q := 1; q < c.parts; q++ {
			sum = sum.Add(c.sums.Load(i.Add(k.I32(q * c.rows * c.cols))))
		}
		row := i.Div(k.I32(c.cols))
		col := i.Sub(row.Mul(k.I32(c.cols)))
		c.store(c.s, out, bias, row, c.first.Add(col), []kernel.Value{sum}, false)
	})
}

// row returns where row i of the left operand begins. Rows beyond the last repeat it.
func (c *vecKernel) row(i int) kernel.Value {
	k := c.k
	return k.I32(i).Min(c.m.Sub(k.I32(1))).Convert(dtype.Int64).Mul(c.am.Value)
}

// accumulators returns n sums for each row, all 0.
func (c *vecKernel) accumulators(n int) [][]kernel.Var {
	all := make([][]kernel.Var, c.rows)
	for i := range all {
		for range n {
			all[i] = append(all[i], c.k.Var(c.k.Const(dtype.Float32, 0)))
		}
	}
	return all
}

// steps calls load for positions from first on, step apart, before end. load gets the position times width, in Int64. The loads of several
// positions begin before the first is used, and all but the first are a constant away from it, so that they share an address. What load
// returns for a position is run once its values are needed.
func (c *vecKernel) steps(first, end kernel.Value, step, width int, load func(at kernel.Value) (use func())) {
	k, n := c.k, int(c.v.Loads)
	whole := end.Div(k.I32(n * step)).Mul(k.I32(n * step))
	k.For(k.I32(0), whole, k.I32(n*step), func(begin kernel.Value) {
		var uses []func()
		at := begin.Add(first).MulWide(k.I32(width))
		for j := range n {
			uses = append(uses, load(at.Add(k.I64(int64(j*step*width)))))
		}
		for _, use := range uses {
			use()
		}
	})
	k.If(whole.Lt(end), func() {
		var uses []func()
		var inside []kernel.Value
		for j := range n {
			at := whole.Add(first).Add(k.I32(j * step))
			inside = append(inside, at.Lt(end))
			uses = append(uses, load(at.Min(end.Sub(k.I32(1))).MulWide(k.I32(width))))
		}
		for j, use := range uses {
			k.If(inside[j], use)
		}
	})
}

// place returns the thread's lane among those that share a column, its part of the depth, and the first of its columns within the block, if
// columns lie along the depth. The next ones are apart from it.
func (c *vecKernel) place() (lane, part, col kernel.Value) {
	k, lanes, parts := c.k, int(c.v.Lanes), int(c.v.Parts)
	tid := k.ThreadIdx(kernel.X)
	group, warp := tid.Rem(k.I32(32)).Div(k.I32(lanes)), tid.Div(k.I32(32))
	return tid.Rem(k.I32(lanes)), warp.Rem(k.I32(parts)), warp.Div(k.I32(parts)).Mul(k.I32(32 / lanes)).Add(group)
}

func (c *vecKernel) apart() int { return vecWarps / int(c.v.Parts) * (32 / int(c.v.Lanes)) }

// ofDepth returns the thread's first access to each of its columns, and the columns (Int64), if columns lie along the depth. Columns beyond
// the last repeat it.
func (c *vecKernel) ofDepth() (first kernel.Value, columns []kernel.Value) {
	k := c.k
	lane, part, col := c.place()
	for j := range int(c.v.Cols) {
		at := c.first.Add(col).Add(k.I32(j * c.apart())).Min(c.n.Sub(k.I32(1)))
		columns = append(columns, at.Convert(dtype.Int64))
	}
	return part.Mul(k.I32(int(c.v.Lanes))).Add(lane), columns
}

// ofColumns returns the first row of the matrix that the thread reads, and where its columns begin in a row, if columns lie beside each
// other. Columns beyond the last repeat it.
func (c *vecKernel) ofColumns() (group, from kernel.Value) {
	k, width, lanes := c.k, int(c.s.Product.Right.Width), int(c.v.Lanes)
	tid := k.ThreadIdx(kernel.X)
	col := tid.Rem(k.I32(lanes)).Mul(k.I32(width))
	return tid.Div(k.I32(lanes)), c.first.Add(col).Min(c.n.Sub(k.I32(width))).Convert(dtype.Int64)
}

// alongDepth sums columns that lie along the depth: each is shared by groups of lanes, in one warp for each part.
func (c *vecKernel) alongDepth(a, b kernel.Buffer) {
	k, width := c.k, int(c.s.Product.Right.Width)
	lanes, cols, parts := int(c.v.Lanes), int(c.v.Cols), int(c.v.Parts)
	lane, part, col := c.place()
	first, columns := c.ofDepth()
	var lines []*matrixLine
	for _, col := range columns {
		l := c.line(b, col, c.bn.Value)
		l.share(c.s.Product.Made.Adjacent, k.I64(0))
		lines = append(lines, l)
	}
	sums := c.accumulators(cols)
	rows := make([]kernel.Buffer, c.rows)
	for i := range rows {
		rows[i] = a.Offset(c.row(i))
	}
	c.steps(first, c.productArgs.k.Div(k.I32(width)), parts*lanes, width, func(d kernel.Value) func() {
		var of []func() []kernel.Value
		for _, l := range lines {
			of = append(of, l.load(d))
		}
		return func() {
			var right [][]kernel.Value
			for _, elements := range of {
				right = append(right, elements())
			}
			for i, row := range rows {
				left := wide(row.LoadVec(d, width))
				for j := range lines {
					sum := sums[i][j].Get()
					for e, v := range right[j] {
						sum = left[e].FMA(v, sum)
					}
					sums[i][j].Set(sum)
				}
			}
		}
	})
	for i := range rows {
		for j := range cols {
			sum := sums[i][j].Get()
			for d := lanes / 2; d > 0; d /= 2 {
				sum = sum.Add(sum.ShuffleXor(d))
			}
			k.If(lane.Eq(k.I32(0)), func() {
				c.sums.Store(part.Mul(k.I32(c.rows*c.cols)).Add(col).Add(k.I32(i*c.cols+j*c.apart())), sum)
			})
		}
	}
}

// alongColumns sums columns that lie beside each other: lanes of a warp read some rows of the matrix, and the depth is divided among all
// groups of lanes.
func (c *vecKernel) alongColumns(a, b kernel.Buffer) {
	k, width, lanes := c.k, int(c.s.Product.Right.Width), int(c.v.Lanes)
	tid := k.ThreadIdx(kernel.X)
	group, from := c.ofColumns()
	still := c.line(b, k.I64(0), c.bk.Value)
	still.share(c.s.Product.Made.Across, from)
	sums := c.accumulators(width)
	rows := make([]kernel.Value, c.rows)
	for i := range rows {
		rows[i] = c.row(i)
	}
	c.steps(group, c.productArgs.k.Value, vecThreads/lanes, 1, func(d kernel.Value) func() {
		line := c.line(b, d, c.bk.Value)
		line.shared = still.shared
		of := line.load(from)
		var left []kernel.Value
		for _, row := range rows {
			left = append(left, a.Load(row.Add(d.Mul(c.ak.Value))).Convert(dtype.Float32))
		}
		return func() {
			right := of()
			for i := range rows {
				for e, v := range right {
					sums[i][e].Set(left[i].FMA(v, sums[i][e].Get()))
				}
			}
		}
	})
	for i := range rows {
		for e := range width {
			sum := sums[i][e].Get()
			for d := lanes; d < 32; d *= 2 {
				sum = sum.Add(sum.ShuffleXor(d))
			}
			k.If(tid.Rem(k.I32(32)).Lt(k.I32(lanes)), func() {
				col := tid.Rem(k.I32(lanes)).Mul(k.I32(width))
				c.sums.Store(tid.Div(k.I32(32)).Mul(k.I32(c.rows*c.cols)).Add(col).Add(k.I32(i*c.cols+e)), sum)
			})
		}
	}
}

// wide returns values in Float32.
func wide(vs []kernel.Value) []kernel.Value {
	out := make([]kernel.Value, len(vs))
	for i, v := range vs {
		out[i] = v.Convert(dtype.Float32)
	}
	return out
}
