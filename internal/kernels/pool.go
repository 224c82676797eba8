package kernels

import (
	"math"
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Pool is two-dimensional pooling of x [Batch, Channels, H, W] to y [Batch, Channels, OH, OW], both with any strides.
type Pool struct {
	KH, KW, StrideH, StrideW, PadH, PadW, DilationH, DilationW int
	// Divisor, if not 0, replaces the number of elements that an average divides by.
	Divisor int
	// CountPad includes padding in that number.
	CountPad bool
}

// poolKind is the operation of a kernel of FamilyPool; it is Spec.Op.
type poolKind uint16

const (
	poolMax poolKind = iota
	poolMaxBack
	poolAvg
	poolAvgBack
	poolAdaptive
	poolAdaptiveBack
)

const poolThreads = 256

var poolNames = []string{"max_pool", "max_pool_back", "avg_pool", "avg_pool_back", "adaptive_avg_pool", "adaptive_avg_pool_back"}

// MaxPool sets y to the greatest element of each window, where a NaN counts as the greatest, and places (Int64) to its position h*W+w in
// the plane.
func MaxPool(is Issuer, p *Pool, y, places, x Operand) error {
	return p.issue(is, poolMax, []Operand{y, places, x}, y, x)
}

// MaxPoolBackward sets each element of dx to the sum of the elements of dy whose place is that element, in row-major order of the windows.
func MaxPoolBackward(is Issuer, p *Pool, dx, dy, places Operand) error {
	return p.issue(is, poolMaxBack, []Operand{dx, dy, places}, dx, dy)
}

// AvgPool sets y to the mean of each window; padding counts as 0.
func AvgPool(is Issuer, p *Pool, y, x Operand) error {
	return p.issue(is, poolAvg, []Operand{y, x}, y, x)
}

// AvgPoolBackward sets dx from the gradient dy of AvgPool's result.
func AvgPoolBackward(is Issuer, p *Pool, dx, dy Operand) error {
	return p.issue(is, poolAvgBack, []Operand{dx, dy}, dx, dy)
}

// AdaptiveAvgPool sets y to the means of windows that cover x evenly: output i of n covers floor(i*size/n) to ceil((i+1)*size/n).
func AdaptiveAvgPool(is Issuer, y, x Operand) error {
	if p := evenWindows(y, x); p != nil {
		return AvgPool(is, p, y, x)
	}
	return (&Pool{}).issue(is, poolAdaptive, []Operand{y, x}, y, x)
}

// AdaptiveAvgPoolBackward sets dx from the gradient dy of AdaptiveAvgPool's result.
func AdaptiveAvgPoolBackward(is Issuer, dx, dy Operand) error {
	if p := evenWindows(dy, dx); p != nil {
		return AvgPoolBackward(is, p, dx, dy)
	}
	return (&Pool{}).issue(is, poolAdaptiveBack, []Operand{dx, dy}, dx, dy)
}

// evenWindows returns the pooling of x to y if all windows are of one size and adjacent, otherwise nil. A thread then finds its window
// without 64-bit divisions.
func evenWindows(y, x Operand) *Pool {
	h, w, oh, ow := x.Shape[2], x.Shape[3], y.Shape[2], y.Shape[3]
	if h*w*oh*ow == 0 || h%oh != 0 || w%ow != 0 {
		return nil
	}
	return &Pool{KH: h / oh, KW: w / ow, StrideH: h / oh, StrideW: w / ow, DilationH: 1, DilationW: 1}
}

// poolArgs are the arguments of these kernels. h and w are the size of the plane that threads go over, fh and fw that of the other plane.
// strides are those of every operand along rows and columns.
type poolArgs struct {
	ops                                                        [3]arrayArg
	n                                                          intArg
	dims                                                       striderArg
	strides                                                    [3][2]intArg
	h, w, fh, fw, kh, kw, sh, sw, ph, pw, dh, dw, divisor, pad intArg
	// baseH and baseW are the quotients of padding and stride, and scale is what means are multiplied by, in kernels for small windows.
	baseH, baseW intArg
	scale        floatArg
}

func (a *poolArgs) layout(p params) {
	count := int(p.s.Outs + p.s.Ins)
	for i := range count {
		p.array(&a.ops[i], p.number("op", i), p.s.DTypes[i])
	}
	p.index(&a.n, "n")
	p.strider(&a.dims, "dim", 4, int(p.s.Vec), int(p.s.Index), operandsFrom(0, count+2))
	for i := range count {
		p.wide(&a.strides[i][0], p.number("row_stride", i))
		p.wide(&a.strides[i][1], p.number("col_stride", i))
	}
	p.i32(&a.h, "h")
	p.i32(&a.w, "w")
	p.i32(&a.fh, "fh")
	p.i32(&a.fw, "fw")
	p.i32(&a.kh, "kh")
	p.i32(&a.kw, "kw")
	p.i32(&a.sh, "sh")
	p.i32(&a.sw, "sw")
	p.i32(&a.ph, "ph")
	p.i32(&a.pw, "pw")
	p.i32(&a.dh, "dh")
	p.i32(&a.dw, "dw")
	p.i32(&a.divisor, "divisor")
	p.i32(&a.pad, "count_pad")
	if p.s.Pool.KH > 0 {
		p.i32s("base_h base_w", &a.baseH, &a.baseW)
	}
	if p.s.Pool.Scaled {
		p.f64(&a.scale, "scale")
	}
}

// issue launches a thread for each element of over, or tile of elements, or for several of these that are adjacent. from is the array from
// which the windows, or the elements whose windows contain the thread's element, are read. Operand 0 is over's array. The strider has a
// slot for every operand, in which those of from's shape have no strides along rows and columns, and two more for the row and the column.
// Its dimensions are ordered like over's.
func (p *Pool) issue(is Issuer, kind poolKind, ops []Operand, over, from Operand) error {
	if over.Numel() == 0 {
		return nil
	}
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Op, s.Compute = FamilyPool, uint16(kind), opmath(ops[0].DType)
	s.Outs, s.Ins = 1, uint8(len(ops)-1)
	s.Pool = p.small(kind, &over, &from)
	const batch, channel, row, col = 0, 1, 2, 3
	size, tile := [4]int(over.Shape), [4]int{1, 1, 1, 1}
	if s.Pool.KH > 0 && kind.back() {
		tile[row], tile[col] = p.StrideH, p.StrideW
		size[row], size[col] = ceilDiv(size[row], tile[row]), ceilDiv(size[col], tile[col])
	}
	n := size[batch] * size[channel] * size[row] * size[col]
	busy := poolBusy(is.Limits())
	order, vec := [4]int{col, row, channel, batch}, 1 // innermost first
	if over.Stride[channel] < over.Stride[col] {
		order, vec = [4]int{channel, col, row, batch}, channelsAtOnce(ops, n, busy, s.Pool.KH > 0)
	} else {
		fine := len(ops) - 1
		if kind.back() {
			fine = 0
		}
		windows := p.rowAtOnce(&s.Pool, kind, ops, fine, size[col], n, busy)
		vec, s.Pool.Row = max(1, windows), windows > 0
	}
	s.Vec = uint8(vec)
	sp := space{nd: 4, count: len(ops) + 2}
	for at, d := range order {
		sp.size[at] = size[d]
		for i, o := range ops {
			windowed := i == len(ops)-1 || kind == poolMaxBack && i > 0
			if !windowed || d < row {
				sp.stride[i][at] = o.Stride[d] * tile[d]
			}
		}
		switch d {
		case row:
			sp.stride[len(ops)][at] = 1
		case col:
			sp.stride[len(ops)+1][at] = 1
		}
	}
	for i, o := range ops {
		s.DTypes[i] = o.DType
	}
	s.Index = 32
	reach := max(sp.reach(), over.Numel(), from.Numel())
	for i := range ops {
		reach = max(reach, reachOf(&ops[i]))
	}
	if reach > min(is.Index32(), lane32) {
		s.Index = 64
	}
	p.pack(l, kind, ops, &over, &from, &sp, n/vec)
	l.Grid = [3]uint32{uint32(ceilDiv(n/vec, poolThreads)), 1, 1}
	l.Block = [3]uint32{poolThreads, 1, 1}
	return is.Issue(l)
}

// pack appends the arguments of a launch of n threads.
func (p *Pool) pack(l *Launch, kind poolKind, ops []Operand, over, from *Operand, sp *space, n int) {
	var a poolArgs
	a.n.host, a.dims.host, a.h.host, a.w.host = n, sp, over.Shape[2], over.Shape[3]
	a.fh.host, a.fw.host, a.kh.host, a.kw.host = from.Shape[2], from.Shape[3], p.KH, p.KW
	a.sh.host, a.sw.host, a.ph.host, a.pw.host = p.StrideH, p.StrideW, p.PadH, p.PadW
	a.dh.host, a.dw.host, a.divisor.host = p.DilationH, p.DilationW, p.Divisor
	if p.CountPad {
		a.pad.host = 1
	}
	if s := &l.Spec.Pool; s.KH > 0 {
		a.baseH.host, a.baseW.host = p.PadH/p.StrideH, p.PadW/p.StrideW
		if fine, coarse := from, over; s.Scaled {
			if kind.back() {
				fine, coarse = over, from
			}
			a.scale.host = p.scale(fine, coarse)
		}
	}
	for i := range ops {
		a.ops[i].host, a.strides[i][0].host, a.strides[i][1].host = ops[i].Ptr, ops[i].Stride[2], ops[i].Stride[3]
	}
	a.layout(packing(l))
}

// poolBusy returns how many threads a launch must have left if each takes several elements: an eighth of those that a device can hold.
func poolBusy(l *Limits) int { return l.Multiprocessors * l.MaxThreadsPerSM / 8 }

// channelsAtOnce returns how many channels each of n threads takes, of which busy must remain: as many as a 16-byte access holds, if they
// are adjacent in all operands. small says that windows are small.
func channelsAtOnce(ops []Operand, n, busy int, small bool) int {
	vec := min(8, 16/ops[0].DType.Size())
	if small && len(ops) > 2 {
		vec = min(vec, placedChannels)
	}
	return sideBySide(1, vec, n, busy, ops...)
}

// sideBySide returns how many of n elements each thread takes along dimension d, of which busy must remain: at most most, if they are
// adjacent in all operands, which have one size there.
func sideBySide(d, most, n, busy int, ops ...Operand) int {
	for most > 1 && n/most < busy {
		most /= 2
	}
	places := uint64(most | ops[0].Shape[d])
	for i := range ops {
		if ops[i].Stride[d] != 1 {
			return 1
		}
		places |= evenPlaces(&ops[i], d)
	}
	return 1 << bits.TrailingZeros64(places)
}

// reachOf returns the largest index of an element of the operand.
func reachOf(o *Operand) int {
	e := 0
	for d, n := range o.Shape {
		e += (n - 1) * abs(o.Stride[d])
	}
	return e
}

// poolKernel builds one of the kernels.
type poolKernel struct {
	poolArgs
	k    *kernel.Builder
	s    *Spec
	kind poolKind
	// at is the index of every operand's plane or element; row and col are the thread's position in its plane.
	at       []kernel.Value
	row, col kernel.Value
}

var _ = register(FamilyPool, buildPool)

func buildPool(s *Spec) *kernel.Kernel {
	kind := poolKind(s.Op)
	return kernel.Build(s.name(poolNames[kind]), func(k *kernel.Builder) {
		k.FixedThreads(poolThreads)
		p := &poolKernel{k: k, s: s, kind: kind}
		ix := indexType(int(s.Index))
		p.layout(declaring(k, s))
		i := k.BlockIdx(kernel.X).Convert(ix).Mul(k.Int(ix, poolThreads)).Add(k.ThreadIdx(kernel.X).Convert(ix))
		k.If(i.Lt(p.n.Value), func() {
			at := p.dims.locate(i)
			count := int(s.Outs + s.Ins)
			p.at = at[:count]
			p.row, p.col = at[count].Convert(dtype.Int32), at[count+1].Convert(dtype.Int32)
			p.body()
		})
	})
}

func (p *poolKernel) body() {
	small := p.s.Pool.KH > 0
	switch {
	case small && p.kind == poolMax:
		p.smallMax()
		return
	case small && p.kind == poolAvg:
		p.smallAvg()
		return
	case small:
		p.smallBack()
		return
	}
	switch p.kind {
	case poolMax:
		p.max()
	case poolMaxBack:
		p.maxBack()
	case poolAvg:
		p.avg()
	case poolAdaptive:
		p.adaptive()
	default:
		p.avgBack()
	}
}

// elements returns element (row, col) of operand i's planes, one value per channel of the thread, in the compute type.
func (p *poolKernel) elements(i int, row, col kernel.Value) []kernel.Value {
	vs := p.load(i, p.place(i, row, col))
	for c := range vs {
		vs[c] = realNum(vs[c]).Convert(p.s.Compute).Re
	}
	return vs
}

// load returns the elements of operand i from index at on, one per channel of the thread.
func (p *poolKernel) load(i int, at kernel.Value) (vs []kernel.Value) {
	for _, c := range p.pieces(i) {
		for _, n := range p.ops[i].load(at.Add(at.Like(float64(c))), p.piece(i)) {
			vs = append(vs, n.Re)
		}
	}
	return vs
}

// store sets the elements of operand i at the thread's position, one per channel.
func (p *poolKernel) store(i int, vs []kernel.Value) {
	at := p.at[i]
	for _, c := range p.pieces(i) {
		ns := make([]Num, p.piece(i))
		for j := range ns {
			ns[j] = realNum(vs[c+j])
		}
		p.ops[i].store(at.Add(at.Like(float64(c))), ns...)
	}
}

// piece returns the number of channels of operand i per access, and pieces the first channel of each access.
func (p *poolKernel) piece(i int) int { return min(int(p.s.Vec), 16/p.s.DTypes[i].Size()) }

func (p *poolKernel) pieces(i int) (from []int) {
	for c := 0; c < int(p.s.Vec); c += p.piece(i) {
		from = append(from, c)
	}
	return from
}

// lanes returns a variable for each channel of the thread.
func (p *poolKernel) lanes(start kernel.Value) []kernel.Var {
	vs := make([]kernel.Var, p.s.Vec)
	for c := range vs {
		vs[c] = p.k.Var(start)
	}
	return vs
}

func (p *poolKernel) place(i int, row, col kernel.Value) kernel.Value {
	ix := p.at[i].Type()
	return p.at[i].Add(row.Convert(ix).Mul(p.strides[i][0].Value)).Add(col.Convert(ix).Mul(p.strides[i][1].Value))
}

// each runs f for rows y0 … y1-1 and columns x0 … x1-1, with the given steps.
func (p *poolKernel) each(y0, y1, stepY, x0, x1, stepX kernel.Value, f func(y, x kernel.Value)) {
	p.k.For(y0, y1, stepY, func(y kernel.Value) {
		p.k.For(x0, x1, stepX, func(x kernel.Value) { f(y, x) })
	})
}

// first returns the first position of a window inside the plane: start plus a multiple of the dilation.
func first(k *kernel.Builder, start, dilation kernel.Value) kernel.Value {
	zero, one := k.I32(0), k.I32(1)
	up := start.Neg().Add(dilation).Sub(one).Div(dilation).Mul(dilation)
	return start.Lt(zero).Select(start.Add(up), start)
}

func (p *poolKernel) max() {
	k := p.k
	top, left := p.row.Mul(p.sh.Value).Sub(p.ph.Value), p.col.Mul(p.sw.Value).Sub(p.pw.Value)
	bottom := top.Add(p.kh.Sub(k.I32(1)).Mul(p.dh.Value)).Add(k.I32(1)).Min(p.fh.Value)
	right := left.Add(p.kw.Sub(k.I32(1)).Mul(p.dw.Value)).Add(k.I32(1)).Min(p.fw.Value)
	top, left = first(k, top, p.dh.Value), first(k, left, p.dw.Value)
	best := p.lanes(k.Const(p.s.Compute, math.Inf(-1)))
	where := p.lanes(top.Mul(p.fw.Value).Add(left))
	p.each(top, bottom, p.dh.Value, left, right, p.dw.Value, func(y, x kernel.Value) {
		here := y.Mul(p.fw.Value).Add(x)
		for c, v := range p.elements(2, y, x) {
			better := v.Gt(best[c].Get()).Or(v.IsNaN())
			best[c].Set(better.Select(v, best[c].Get()))
			where[c].Set(better.Select(here, where[c].Get()))
		}
	})
	p.store(0, get(best))
	wide := get(where)
	for c := range wide {
		wide[c] = wide[c].Convert(dtype.Int64)
	}
	p.store(1, wide)
}

// covering returns the windows, first and one past the last, that contain position v in one dimension; windows have width extent and are
// stride apart.
func (p *poolKernel) covering(v, pad, extent, stride, windows kernel.Value) (from, to kernel.Value) {
	k := p.k
	u := v.Add(pad)
	from = u.Lt(extent).Select(k.I32(0), u.Sub(extent).Div(stride).Add(k.I32(1)))
	return from, u.Div(stride).Add(k.I32(1)).Min(windows)
}

func (p *poolKernel) maxBack() {
	k := p.k
	one := k.I32(1)
	y0, y1 := p.covering(p.row, p.ph.Value, p.kh.Sub(one).Mul(p.dh.Value).Add(one), p.sh.Value, p.fh.Value)
	x0, x1 := p.covering(p.col, p.pw.Value, p.kw.Sub(one).Mul(p.dw.Value).Add(one), p.sw.Value, p.fw.Value)
	me := p.row.Mul(p.w.Value).Add(p.col).Convert(dtype.Int64)
	sum := p.lanes(k.Const(p.s.Compute, 0))
	p.each(y0, y1, one, x0, x1, one, func(y, x kernel.Value) {
		g, place := p.elements(1, y, x), p.load(2, p.place(2, y, x))
		for c := range sum {
			sum[c].Set(place[c].Eq(me).Select(sum[c].Get().Add(g[c]), sum[c].Get()))
		}
	})
	p.store(0, get(sum))
}

// window returns the bounds of window (y, x), clipped to planes of height h and width w, and the divisor of its mean.
func (p *poolKernel) window(y, x, h, w kernel.Value) (top, bottom, left, right, divisor kernel.Value) {
	k := p.k
	zero := k.I32(0)
	top, left = y.Mul(p.sh.Value).Sub(p.ph.Value), x.Mul(p.sw.Value).Sub(p.pw.Value)
	bottom, right = top.Add(p.kh.Value).Min(h.Add(p.ph.Value)), left.Add(p.kw.Value).Min(w.Add(p.pw.Value))
	padded := bottom.Sub(top).Mul(right.Sub(left))
	top, left, bottom, right = top.Max(zero), left.Max(zero), bottom.Min(h), right.Min(w)
	divisor = p.pad.Ne(zero).Select(padded, bottom.Sub(top).Mul(right.Sub(left)))
	return top, bottom, left, right, p.divisor.Ne(zero).Select(p.divisor.Value, divisor)
}

func (p *poolKernel) avg() {
	top, bottom, left, right, divisor := p.window(p.row, p.col, p.fh.Value, p.fw.Value)
	p.mean(top, bottom, left, right, divisor)
}

func (p *poolKernel) mean(top, bottom, left, right, divisor kernel.Value) {
	k := p.k
	sum := p.lanes(k.Const(p.s.Compute, 0))
	p.each(top, bottom, k.I32(1), left, right, k.I32(1), func(y, x kernel.Value) {
		for c, v := range p.elements(1, y, x) {
			sum[c].Set(sum[c].Get().Add(v))
		}
	})
	means := get(sum)
	for c := range means {
		means[c] = means[c].Div(divisor.Convert(p.s.Compute))
	}
	p.store(0, means)
}

// span returns the range that output i of n covers of size elements.
func (p *poolKernel) span(i, n, size kernel.Value) (from, to kernel.Value) {
	k := p.k
	wide := n.Convert(dtype.Int64)
	from = i.MulWide(size).Div(wide)
	to = i.Add(k.I32(1)).MulWide(size).Add(wide).Sub(k.I64(1)).Div(wide)
	return from.Convert(dtype.Int32), to.Convert(dtype.Int32)
}

func (p *poolKernel) adaptive() {
	top, bottom := p.span(p.row, p.h.Value, p.fh.Value)
	left, right := p.span(p.col, p.w.Value, p.fw.Value)
	p.mean(top, bottom, left, right, bottom.Sub(top).Mul(right.Sub(left)))
}

// avgBack sums, over the windows that contain the thread's element, their gradient divided by their divisor.
func (p *poolKernel) avgBack() {
	k := p.k
	one := k.I32(1)
	var y0, y1, x0, x1 kernel.Value
	if p.kind == poolAvgBack {
		y0, y1 = p.covering(p.row, p.ph.Value, p.kh.Value, p.sh.Value, p.fh.Value)
		x0, x1 = p.covering(p.col, p.pw.Value, p.kw.Value, p.sw.Value, p.fw.Value)
	} else {
		y0, y1 = p.span(p.row, p.h.Value, p.fh.Value)
		x0, x1 = p.span(p.col, p.w.Value, p.fw.Value)
	}
	sum := p.lanes(k.Const(p.s.Compute, 0))
	p.each(y0, y1, one, x0, x1, one, func(y, x kernel.Value) {
		var divisor kernel.Value
		if p.kind == poolAvgBack {
			_, _, _, _, divisor = p.window(y, x, p.h.Value, p.w.Value)
		} else {
			top, bottom := p.span(y, p.fh.Value, p.h.Value)
			left, right := p.span(x, p.fw.Value, p.w.Value)
			divisor = bottom.Sub(top).Mul(right.Sub(left))
		}
		for c, v := range p.elements(1, y, x) {
			sum[c].Set(sum[c].Get().Add(v.Div(divisor.Convert(p.s.Compute))))
		}
	})
	p.store(0, get(sum))
}
