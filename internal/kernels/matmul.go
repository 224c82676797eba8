package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// maxBatchDims is the maximum number of batch dimensions of a product after mergeable neighbours are merged.
const maxBatchDims = 4

// MatmulOpt are the options of Matmul.
type MatmulOpt struct {
	// Alpha is a factor of the product. Bias, if present, is added with the factor Beta; its strides may be 0.
	Alpha, Beta float64
	Bias        Operand
	// TF32 allows float32 operands to be reduced to 10 fraction bits: mma rounds them, wgmma truncates.
	TF32 bool
	// Epilogue, if not nil, is run on the result, which is stored only if it is among the epilogue's outputs.
	Epilogue *Epilogue
	// Prologue, if not nil, makes b. Of b's address only the alignment to 16 bytes matters.
	Prologue *Prologue
	// Tile, for tests, is the number, counted from 1, of one of the tiles that suit the product; the right operand is then transposed late
	// if possible. 0 chooses by size.
	Tile int
}

// Matmul sets out [..., M, N] to a [..., M, K] times b [..., K, N]. All have the same batch dimensions, with any strides (0 broadcasts an
// operand). a and b have one type: a half, Float32 or Float64. Sums are computed in Float32 or Float64, in order of depth, or in parts of
// the depth that are added in order. For small products, and for those whose operands tensor maps cannot fetch, the parts depend on the
// size of the device, except for large products in Float32. Otherwise they depend only on the product.
func Matmul(is Issuer, out, a, b Operand, opt MatmulOpt) error {
	var p product
	if err := p.begin(out, a, b, opt); err != nil || out.Numel() == 0 {
		return err
	}
	return p.issue(is)
}

// begin sets p to the product.
func (p *product) begin(out, a, b Operand, opt MatmulOpt) error {
	nd := len(out.Shape)
	if nd < 2 || len(a.Shape) != nd || len(b.Shape) != nd {
		return fmt.Errorf("a matrix product of %d, %d and %d dimensions; want equal numbers of at least 2", nd, len(a.Shape), len(b.Shape))
	}
	*p = product{m: out.Shape[nd-2], n: out.Shape[nd-1], k: a.Shape[nd-1], out: out, a: a, b: b, opt: opt, walk: p.walk}
	p.s[0] = [2]int{out.Stride[nd-2], out.Stride[nd-1]}
	p.s[1] = [2]int{a.Stride[nd-2], a.Stride[nd-1]}
	p.s[2] = [2]int{b.Stride[nd-1], b.Stride[nd-2]}
	if opt.Bias.Ptr != 0 {
		p.s[3] = [2]int{opt.Bias.Stride[nd-2], opt.Bias.Stride[nd-1]}
	}
	if out.Numel() == 0 {
		return nil
	}
	if opt.Epilogue != nil {
		if err := p.checkEpilogue(nd); err != nil {
			return err
		}
	}
	if opt.Prologue != nil {
		if err := p.checkPrologue(); err != nil {
			return err
		}
	}
	if p.s[0][1] != 1 && p.s[0][0] == 1 || p.n == 1 && p.m > 1 {
		p.transpose()
	}
	return p.batches(nd - 2)
}

// product is a planned matrix product. Each operand's strides are {own axis, depth}; those of the result and the bias are {row, column}.
type product struct {
	m, n, k   int
	out, a, b Operand
	opt       MatmulOpt
	s         [4][2]int
	batch     space
	// sizes are the sizes of the batch dimensions; unused ones are 1.
	sizes [maxBatchDims]int32
	// loads says that the epilogue has operands. The parts of the depth are chosen without looking at that: the bits depend on them.
	loads bool
	// swapped says that this is the product of the transposes.
	swapped bool
	// walk, if not nil, says how an operand is gathered from images.
	walk *walk
}

// transpose replaces the product by that of the transposes.
func (p *product) transpose() {
	p.m, p.n, p.swapped = p.n, p.m, true
	p.a, p.b = p.b, p.a
	p.s[1], p.s[2] = p.s[2], p.s[1]
	for _, i := range []int{0, 3} {
		p.s[i][0], p.s[i][1] = p.s[i][1], p.s[i][0]
	}
}

func (p *product) batches(nd int) error {
	b := &p.batch
	b.nd, b.count = 0, 4
	for d := nd - 1; d >= 0; d-- {
		if !b.open(b.nd, p.out.Shape[d]) {
			return fmt.Errorf("a matrix product with more than %d batch dimensions", maxDims)
		}
		for i, o := range []*Operand{&p.out, &p.a, &p.b, &p.opt.Bias} {
			if o.Ptr != 0 || i < 3 {
				b.stride[i][b.nd-1] = o.Stride[d]
			}
		}
	}
	b.merge()
	if b.nd > maxBatchDims {
		return fmt.Errorf("a matrix product with %d batch dimensions that cannot be merged; make an operand contiguous", b.nd)
	}
	for d := range p.sizes {
		p.sizes[d] = 1
		if d < b.nd {
			p.sizes[d] = int32(b.size[d])
		}
	}
	return nil
}

// layoutOf returns the layout of a side, and the widest access that its strides, sizes, address and batch strides allow.
func (p *product) layoutOf(i int, o *Operand, places int) sideSpec {
	ps, ds := p.s[i][0], p.s[i][1]
	size := o.DType.Size()
	if places == 1 { // there is no next place
		ps = 0
	}
	switch {
	case ds == 1 && p.k > 1 || ds == 1 && ps != 1:
		return sideSpec{layoutDepth, uint8(p.width(i, o, p.k, ps, size))}
	case ps == 1:
		return sideSpec{layoutOwn, uint8(p.width(i, o, places, ds, size))}
	}
	return sideSpec{layoutNone, 1}
}

func (p *product) width(i int, o *Operand, count, other, size int) int {
	w := 16 / size
	for ; w > 1; w /= 2 {
		ok := count%w == 0 && other%w == 0 && o.Ptr%uint64(w*size) == 0
		for d := range p.batch.nd {
			ok = ok && p.batch.stride[i][d]%w == 0
		}
		if ok {
			break
		}
	}
	return w
}

func (p *product) issue(is Issuer) error {
	lim := is.Limits()
	batch := p.matrices()
	var v vecSpec
	ok := false
	if p.walk == nil {
		v, ok = p.planVector(lim)
	}
	if p.opt.Prologue != nil && (!ok || p.swapped) {
		if err := p.makeMatrix(is); err != nil {
			return err
		}
		v, ok = p.planVector(lim)
	}
	if ok {
		return p.issueVector(is, v)
	}
	tf32 := p.opt.TF32 && p.a.DType == dtype.Float32
	if err := p.layOperands(is, lim, tf32); err != nil {
		return err
	}
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Compute, s.Outs, s.Ins = FamilyMatmul, p.a.DType, 1, 1
	s.DTypes[0], s.DTypes[1] = p.out.DType, p.opt.Bias.DType
	r := &s.Product
	r.Batch, r.TF32 = p.batchDims(), tf32
	r.Left, r.Right = p.layoutOf(1, &p.a, p.m), p.layoutOf(2, &p.b, p.n)
	t, splits, depth := p.plan(lim, s, tf32)
	r.Tile, s.Vec = t.spec(), 1
	if p.s[0][1] == 1 {
		s.Vec = uint8(min(8, p.width(0, &p.out, p.n, p.s[0][0], p.out.DType.Size())))
	}
	var partial uint64
	var a productArgs
	if splits == 1 {
		a.epilogue.add(p.opt.Epilogue, s, p.m, p.n)
		p.after(r, s.Vec)
	} else {
		r.Blocks = blocksSplit
		s.Vec = uint8(p.partialWidth())
		var err error
		if partial, err = is.Workspace(splits * batch * p.m * p.n * accumulator(p.a.DType).Size()); err != nil {
			return err
		}
	}
	p.args(&a, partial, depth)
	a.size.host = p.sizes[:]
	for i := range a.stride {
		a.stride[i].host = p.batch.stride[i][:p.batch.nd]
	}
	if r.Mapped != mapNone {
		a.maps[0].host = p.tensorMap(1, &p.a, p.m, t.rows, t.depth)
		a.maps[1].host = p.tensorMap(2, &p.b, p.n, t.cols, t.depth)
	}
	switch r.Mapped {
	case mapLeft, mapPhases:
		r.Left.Width, a.maps[0].host = p.walk.accessWidth(p.a.DType), p.walk.pixelMap(&p.a, t.rows, t.depth)
		a.walk.set(p.walk)
	case mapRight:
		r.Right.Width, a.maps[1].host = p.walk.accessWidth(p.b.DType), p.walk.pixelMap(&p.b, t.cols, t.depth)
		a.walk.set(p.walk)
	}
	a.layout(packing(l))
	if err := p.grid(l, t, batch, splits); err != nil {
		return err
	}
	if r.Mapped != mapNone && p.lasts(&t, splits, lim.Multiprocessors) {
		r.Blocks = blocksLasting
		l.Grid[0] = uint32(lim.Multiprocessors)
	}
	if err := is.Issue(l); err != nil || splits == 1 {
		return err
	}
	return p.finish(is, partial, splits, batch)
}

// layAlong copies operand i, 1 or 2, to workspace if it does not lie along an axis (0 its own, 1 the depth) and the other operand has at
// least least positions.
func (p *product) layAlong(is Issuer, i, axis, least int) error {
	o, places, other := &p.a, p.m, p.n
	if i == 2 {
		o, places, other = &p.b, p.n, p.m
	}
	if p.s[i][axis] == 1 || other < least {
		return nil
	}
	shape := [2]int{places, p.k}
	row := ceilDiv(shape[axis], 4) * 4
	size := shape[1-axis] * row
	from := Operand{Ptr: o.Ptr, DType: o.DType, Shape: []int{shape[1-axis], shape[axis]}, Stride: []int{p.s[i][1-axis], p.s[i][axis]}}
	stride := []int{row, 1}
	for d := range p.batch.nd {
		if s := &p.batch.stride[i][d]; *s != 0 {
			from.Shape = append([]int{p.batch.size[d]}, from.Shape...)
			from.Stride, stride = append([]int{*s}, from.Stride...), append([]int{size}, stride...)
			*s, size = size, size*p.batch.size[d]
		}
	}
	to, err := layOut(is, from, stride, size)
	if err != nil {
		return err
	}
	o.Ptr, p.s[i][axis], p.s[i][1-axis] = to.Ptr, 1, row
	return nil
}

// after sets in r what follows the sums, width neighbours of which are stored together.
func (p *product) after(r *productSpec, width uint8) {
	bias := &p.opt.Bias
	r.Scale = p.opt.Alpha != 1 || bias.Ptr != 0 && p.opt.Beta != 1
	switch {
	case bias.Ptr == 0:
	case p.s[3][1] == 1:
		r.Bias = min(width, uint8(p.width(3, bias, p.n, p.s[3][0], bias.DType.Size())))
	default:
		r.Bias = 1
	}
}

const (
	// splitWarps is how many warps a multiprocessor should have at least, to hide the latency of loads.
	splitWarps = 8
	// splitWide is the maximum number of parts used for that; beyond it they are not worth the memory. There may be more to fill the device
	// with one block per multiprocessor.
	splitWide = 8
	// mostSplits is the maximum number of parts.
	mostSplits = 64
	// splitGain is the time of the pass that adds up partial sums, in steps of depth. Both were determined on an H200 with an MLP's
	// training step.
	splitGain = 16
)

// splits returns the number of blocks over which the depth is divided. It is more than one only if the result has too few tiles to fill the
// device and the depth is long enough to gain more than the second pass costs.
func (p *product) splits(lim *Limits, t gemmTile, batch int) int {
	blocks := ceilDiv(p.m, t.rows) * ceilDiv(p.n, t.cols) * batch
	steps := ceilDiv(p.k, t.depth)
	splits := lim.Multiprocessors / blocks
	splits = max(splits, min(lim.Multiprocessors*max(1, splitWarps*32/t.threads)/blocks, splitWide))
	splits = max(1, min(splits, steps/4, mostSplits))
	gained, few := steps-steps/splits, blocks*2 <= lim.Multiprocessors
	if t == tileShared && gained < sharedGain || t != tileShared && gained < splitGain && !few || steps < 8 {
		return 1
	}
	return splits
}

// batchDims returns the number of batch dimensions that kernels are specialised on. Without any, kernels need not compute the operands'
// offsets.
func (p *product) batchDims() uint8 {
	if p.batch.numel() == 1 {
		return 0
	}
	return uint8(p.batch.nd)
}

func (p *product) grid(l *Launch, t gemmTile, batch, splits int) error {
	l.Grid = [3]uint32{uint32(ceilDiv(p.m, t.rows) * ceilDiv(p.n, t.cols)), uint32(batch), uint32(splits)}
	l.Block = [3]uint32{uint32(t.threads), 1, 1}
	const most = 65535
	if batch > most {
		l.Grid[1] = most
	}
	if p.m >= 1<<31 || p.n >= 1<<31 || p.k >= 1<<31-1<<16 {
		return fmt.Errorf("a matrix product of [%d, %d] and [%d, %d]: each size must be below 2^31", p.m, p.k, p.k, p.n)
	}
	return nil
}

// args sets the arguments of both kernels, except lists; the result is partial if that is not 0.
func (p *product) args(a *productArgs, partial uint64, depth int) {
	out := p.out.Ptr
	if partial != 0 {
		out = partial
	}
	a.out.host, a.a.host, a.b.host, a.bias.host = out, p.a.Ptr, p.b.Ptr, p.opt.Bias.Ptr
	a.om.host, a.on.host, a.am.host, a.ak.host = p.s[0][0], p.s[0][1], p.s[1][0], p.s[1][1]
	a.bn.host, a.bk.host, a.cm.host, a.cn.host = p.s[2][0], p.s[2][1], p.s[3][0], p.s[3][1]
	a.alpha.host, a.beta.host = p.opt.Alpha, p.opt.Beta
	a.m.host, a.n.host, a.k.host, a.depth.host, a.batch.host = p.m, p.n, p.k, depth, p.matrices()
}

// partialWidth returns how many adjacent partial sums are stored and loaded together.
func (p *product) partialWidth() int { return min(16/accumulator(p.a.DType).Size(), p.n&-p.n) }

// finish adds up the partial sums of a split product and applies alpha and the bias.
func (p *product) finish(is Issuer, partial uint64, splits, batch int) error {
	l := is.NewLaunch()
	s := &l.Spec
	s.Vec = 1
	if p.s[0][1] == 1 {
		s.Vec = uint8(min(p.partialWidth(), p.width(0, &p.out, p.n, p.s[0][0], p.out.DType.Size())))
	}
	s.Family, s.Compute, s.Outs, s.Ins = FamilyMatmulFinish, accumulator(p.a.DType), 1, 1
	s.DTypes[0], s.DTypes[1] = p.out.DType, p.opt.Bias.DType
	s.Product.Batch = p.batchDims()
	var a productArgs
	a.epilogue.add(p.opt.Epilogue, s, p.m, p.n)
	p.after(&s.Product, s.Vec)
	p.args(&a, partial, splits)
	a.size.host, a.result.host = p.sizes[:], p.out.Ptr
	if p.phases() != nil {
		s.Product.Mapped = mapPhases
		a.walk.set(p.walk)
	}
	for i := range a.stride {
		a.stride[i].host = p.batch.stride[i][:p.batch.nd]
	}
	a.layout(packing(l))
	n := batch * p.m * p.n / int(s.Vec)
	l.Grid = [3]uint32{uint32(ceilDiv(n, 256)), 1, 1}
	l.Block = [3]uint32{256, 1, 1}
	return is.Issue(l)
}

// productArgs are the arguments of a product and of the sum of its parts. Strides are named by operand (o for the result, c for the bias)
// and axis. depth is the depth of a part; for the sum it is the number of parts, and result is the result.
type productArgs struct {
	out, a, b, bias                bufferArg
	om, on, am, ak, bn, bk, cm, cn intArg
	alpha, beta                    floatArg
	stride                         [4]listArg[int]
	size                           listArg[int32]
	m, n, k, depth, batch          intArg
	maps                           [2]mapArg
	result                         bufferArg
	walk                           walkArgs
	epilogue                       epilogueArgs
	prologue                       prologueArgs
}

func (a *productArgs) layout(p params) {
	s := p.s
	out, bias := s.DTypes[0], s.DTypes[1]
	if s.Product.Split() || s.Family == FamilyMatmulFinish {
		out = accumulator(s.Compute)
	}
	if bias == dtype.Invalid {
		bias = s.Compute
	}
	p.buffer(&a.out, "out", out)
	p.bufferRO(&a.a, "a", s.Compute)
	p.bufferRO(&a.b, "b", s.Compute)
	p.bufferRO(&a.bias, "bias", bias)
	p.i64s("om on am ak bn bk cm cn", &a.om, &a.on, &a.am, &a.ak, &a.bn, &a.bk, &a.cm, &a.cn)
	p.f64(&a.alpha, "alpha")
	p.f64(&a.beta, "beta")
	lists(p, a.stride[:], "stride", maxBatchDims)
	list(p, &a.size, "size", maxBatchDims)
	p.i32s("m n k depth batch", &a.m, &a.n, &a.k, &a.depth, &a.batch)
	if s.Product.Mapped != mapNone && s.Family != FamilyMatmulFinish {
		plain := mapPlain(s.Compute, s.Product.TF32)
		p.tensorMap(&a.maps[0], "amap", plain)
		p.tensorMap(&a.maps[1], "bmap", plain)
	}
	if s.Product.Mapped > mapMatrices {
		a.walk.layout(p)
	}
	if s.Family == FamilyMatmulFinish {
		p.buffer(&a.result, "result", s.DTypes[0])
	}
	a.epilogue.layout(p)
	a.prologue.layout(p)
}

// productKernel is the part that both kernels share.
type productKernel struct {
	productArgs
	alpha, beta kernel.Value // in the type of sums
}

func newProductKernel(k *kernel.Builder, s *Spec) *productKernel {
	p := &productKernel{}
	p.layout(declaring(k, s))
	acc := accumulator(s.Compute)
	p.alpha, p.beta = p.productArgs.alpha.Convert(acc), p.productArgs.beta.Convert(acc)
	return p
}

// at returns the offsets of the result, a, b and the bias in batch b (Int32) of dims dimensions.
func (p *productArgs) at(k *kernel.Builder, b kernel.Value, dims int) (off [4]kernel.Value) {
	for i := range off {
		off[i] = k.I64(0)
	}
	for d := range dims {
		n := p.size.Get(d)
		r := b.Rem(n).Convert(dtype.Int64)
		b = b.Div(n)
		for i := range off {
			off[i] = off[i].Add(r.Mul(p.stride[i].Get(d)))
		}
	}
	return off
}

func buildMatmul(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("matmul"+epilogueName(s)), func(k *kernel.Builder) {
		g, r := newGemm(k, s), &s.Product
		p := newProductKernel(k, s)
		tiles := func(n kernel.Value, t int) kernel.Value { return n.Add(k.I32(t - 1)).Div(k.I32(t)) }
		m, n, depth := p.m.Value, p.n.Value, p.depth.Value
		rowTiles, colTiles := tiles(m, g.tile.rows), tiles(n, g.tile.cols)
		if !r.Lasting() {
			g.blocks(k.BlockIdx(kernel.X), rowTiles, colTiles)
		}
		begin, end, phase := k.I32(0), p.k.Value, r.Mapped == mapPhases
		if phase {
			p.walk.enter(k.BlockIdx(kernel.Y))
			end = p.walk.phase.depth
		}
		if r.Split() {
			begin = k.BlockIdx(kernel.Z).Mul(depth)
			end = begin.Add(depth).Min(end)
		}
		one := func(b kernel.Value) {
			off, all := p.at(k, b, int(r.Batch)), end
			if phase { // the weight has all taps
				all = p.k.Value
			}
			a := g.strided(r.Left, true, p.a.Offset(off[1]), g.m0, p.am.Value, p.ak.Value, m, end)
			bb := g.strided(r.Right, false, p.b.Offset(off[2]), g.n0, p.bn.Value, p.bk.Value, n, all)
			if r.Mapped != mapNone {
				am, bm, matrix := p.maps[0].TensorMap, p.maps[1].TensorMap, b
				if phase {
					matrix = k.I32(0)
				}
				if r.Batch == 2 {
					group := b.Div(p.size.Get(0))
					matrix = b.Sub(group.Mul(p.size.Get(0)))
					am, bm = am.Group(group), bm.Group(group)
				}
				a.mapped(r.Left.Layout, am, g.m0, matrix)
				bb.mapped(r.Right.Layout, bm, g.n0, matrix)
			}
			switch r.Mapped {
			case mapPhases:
				bb = p.walk.ofPhase(bb, end)
				fallthrough
			case mapLeft:
				a = p.walk.gathered(g, mapLeft, r.Left.Width, p.maps[0].TensorMap, p.a.Buffer, g.m0, m, end)
			case mapRight:
				bb = p.walk.gathered(g, mapRight, r.Right.Width, p.maps[1].TensorMap, p.b.Buffer, g.n0, n, end)
			}
			if r.Split() {
				part := k.BlockIdx(kernel.Z).MulWide(p.batch.Value).Add(b.Convert(dtype.Int64)).Mul(m.MulWide(n))
				g.run(begin, end, a, bb, nil, int(s.Vec), func(row, col kernel.Value, vs []kernel.Value) {
					row, col = g.m0.Add(row), g.n0.Add(col)
					k.If(row.Lt(m).And(col.Lt(n)), func() { p.out.StoreVec(part.Add(row.MulWide(n)).Add(col.Convert(dtype.Int64)), vs...) })
				})
				return
			}
			out, bias := p.out.Offset(off[0]), p.bias.Offset(off[3])
			var after func(row, col, v kernel.Value) kernel.Value
			if r.Lasting() && (r.Bias > 0 || r.Scale) { // so that only rounding is left when the sums leave the registers
				after = func(_, col, v kernel.Value) kernel.Value { return p.scaled(s, bias, g.n0, col, v) }
			}
			g.run(begin, end, a, bb, after, int(s.Vec), func(row, col kernel.Value, vs []kernel.Value) {
				p.store(s, out, bias, g.m0.Add(row), g.n0.Add(col), vs, after != nil)
			})
		}
		switch {
		case r.Lasting():
			k.ForAhead(k.BlockIdx(kernel.X), rowTiles.Mul(colTiles), k.GridDim(kernel.X), func(id kernel.Value) {
				g.blocks(id, rowTiles, colTiles)
				one(k.I32(0))
			})
			return
		case phase:
			one(k.BlockIdx(kernel.Y))
			return
		case r.Batch == 0:
			one(k.I32(0))
			return
		}
		k.For(k.BlockIdx(kernel.Y), p.batch.Value, k.GridDim(kernel.Y), one)
	})
}

// store writes adjacent results of row r from column c on, unless they are outside. scaled says that they need only be rounded.
func (p *productKernel) store(s *Spec, out, bias kernel.Buffer, r, c kernel.Value, vs []kernel.Value, scaled bool) {
	k := p.m.Builder()
	inside, row, col := within(r, c, p.m.Value, p.n.Value, len(vs))
	if s.Product.Results > 0 {
		p.epilogue.run(k, s, inside, row, col, p.n.Value, p.rounded(s, out, bias, row, col, vs, scaled))
		return
	}
	if s.Product.Mapped == mapPhases {
		var is kernel.Value
		r, is = p.walk.pixel(r)
		inside = inside.And(is)
	}
	k.If(inside, func() {
		res := p.rounded(s, out, bias, r, c, vs, scaled)
		at, c64 := r.Convert(dtype.Int64).Mul(p.om.Value), c.Convert(dtype.Int64)
		if len(vs) == 1 {
			c64 = c64.Mul(p.on.Value)
		}
		out.StoreVec(at.Add(c64), res...)
	})
}

// rounded returns the results whose sums are vs, in the type of out.
func (p *productKernel) rounded(s *Spec, out, bias kernel.Buffer, r, c kernel.Value, vs []kernel.Value, scaled bool) []kernel.Value {
	var add []kernel.Value
	if s.Product.Bias > 0 && !scaled {
		add = p.biasAt(s, bias, r.Convert(dtype.Int64), c.Convert(dtype.Int64), len(vs))
	}
	res := make([]kernel.Value, len(vs))
	for j, v := range vs {
		switch {
		case scaled:
		case add != nil:
			v = p.sum(s, v, add[j])
		case s.Product.Scale:
			v = v.Mul(p.alpha)
		}
		res[j] = v.Convert(out.Type())
	}
	return res
}

// sum returns the result whose sum is v and whose element of the bias is bias.
func (p *productKernel) sum(s *Spec, v, bias kernel.Value) kernel.Value {
	bias = bias.Convert(v.Type())
	if !s.Product.Scale {
		return v.Add(bias)
	}
	return bias.FMA(p.beta, v.Mul(p.alpha))
}

// scaled returns the result in column col of the tile that begins at column n0, whose sum is v. The bias is the same for all rows. Elements
// of two columns are loaded together if that is possible; a GPU's threads have them both.
func (p *productKernel) scaled(s *Spec, bias kernel.Buffer, n0, col, v kernel.Value) kernel.Value {
	k, n := v.Builder(), p.n.Value
	switch {
	case s.Product.Bias == 0:
		return v.Mul(p.alpha)
	case s.Product.Bias == 1:
		at := n0.Add(col).Min(n.Sub(k.I32(1))).Convert(dtype.Int64)
		return p.sum(s, v, bias.Load(at.Mul(p.cn.Value)))
	}
	at := n0.Add(col.And(k.I32(^1))).Min(n.Sub(k.I32(2))).Convert(dtype.Int64)
	two := bias.LoadVec(at, 2)
	return p.sum(s, v, col.And(k.I32(1)).Eq(k.I32(0)).Select(two[0], two[1]))
}

// biasAt loads count adjacent elements of the bias from row r and column c on.
func (p *productKernel) biasAt(s *Spec, bias kernel.Buffer, r, c kernel.Value, count int) (vs []kernel.Value) {
	row := r.Mul(p.cm.Value)
	if w := min(int(s.Product.Bias), count); w > 1 {
		for j := 0; j < count; j += w {
			vs = append(vs, bias.LoadVec(row.Add(c.Add(c.Like(float64(j)))), w)...)
		}
		return vs
	}
	for j := range count {
		vs = append(vs, bias.Load(row.Add(c.Add(c.Like(float64(j))).Mul(p.cn.Value))))
	}
	return vs
}

func buildMatmulFinish(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("matmul_finish"+epilogueName(s)), func(k *kernel.Builder) {
		k.FixedThreads(256)
		p := newProductKernel(k, s)
		width := int(s.Vec)
		size := p.m.MulWide(p.n.Value)
		total := size.Mul(p.batch.Convert(dtype.Int64))
		k.ForEach(total.Div(total.Like(float64(width))), func(i kernel.Value) {
			i = i.Mul(i.Like(float64(width)))
			sums := make([]kernel.Var, width)
			for e := range sums {
				sums[e] = k.Var(k.Const(s.Compute, 0))
			}
			// Parts are added in order, but several loads are in flight together.
			add := func(j kernel.Value, parts int) {
				var vs [][]kernel.Value
				for q := range parts {
					vs = append(vs, p.out.LoadVec(i.Add(total.Mul(j.Add(k.I32(q)).Convert(dtype.Int64))), width))
				}
				for _, v := range vs {
					for e := range sums {
						sums[e].Set(sums[e].Get().Add(v[e]))
					}
				}
			}
			whole := p.depth.And(k.I32(^3))
			k.For(k.I32(0), whole, k.I32(4), func(j kernel.Value) { add(j, 4) })
			k.For(whole, p.depth.Value, k.I32(1), func(j kernel.Value) { add(j, 1) })
			b := i.Div(size)
			in := i.Sub(b.Mul(size)).Convert(dtype.Int32)
			r := in.Div(p.n.Value)
			off := p.at(k, b.Convert(dtype.Int32), int(s.Product.Batch))
			if s.Product.Mapped == mapPhases {
				p.walk.enter(b.Convert(dtype.Int32))
			}
			var vs []kernel.Value
			for _, v := range sums {
				vs = append(vs, v.Get())
			}
			p.store(s, p.result.Offset(off[0]), p.bias.Offset(off[3]), r, in.Sub(r.Mul(p.n.Value)), vs, false)
		})
	})
}
