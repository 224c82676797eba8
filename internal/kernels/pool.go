package kernels

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Pool is two-dimensional pooling of x [Batch, Channels, H, W] to y [Batch, Channels, OH, OW], both of any strides.
type Pool struct {
	KH, KW, StrideH, StrideW, PadH, PadW, DilationH, DilationW int
	// Divisor replaces the number of elements that an average divides by, if it is not 0.
	Divisor int
	// CountPad counts padding among those elements.
	CountPad bool
}

// poolKind is what a kernel of FamilyPool does; it is Spec.Op.
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

// MaxPool sets y to the greatest element of each window, a NaN counting as the greatest, and places (Int64) to its place h*W+w in the plane.
func MaxPool(is Issuer, p *Pool, y, places, x Operand) error {
	return p.issue(is, poolMax, []Operand{y, places, x}, y, x)
}

// MaxPoolBackward sets dx to the sums of those elements of dy whose place is the element's. Each sum goes through the windows in row-major order.
func MaxPoolBackward(is Issuer, p *Pool, dx, dy, places Operand) error {
	return p.issue(is, poolMaxBack, []Operand{dx, dy, places}, dx, dy)
}

// AvgPool sets y to the mean of each window, padding counting as 0.
func AvgPool(is Issuer, p *Pool, y, x Operand) error {
	return p.issue(is, poolAvg, []Operand{y, x}, y, x)
}

// AvgPoolBackward sets dx from the gradient dy of AvgPool's result.
func AvgPoolBackward(is Issuer, p *Pool, dx, dy Operand) error {
	return p.issue(is, poolAvgBack, []Operand{dx, dy}, dx, dy)
}

// AdaptiveAvgPool sets y to the means of windows that cover x evenly: output i of n covers floor(i*size/n) to ceil((i+1)*size/n).
func AdaptiveAvgPool(is Issuer, y, x Operand) error {
	return (&Pool{}).issue(is, poolAdaptive, []Operand{y, x}, y, x)
}

// AdaptiveAvgPoolBackward sets dx from the gradient dy of AdaptiveAvgPool's result.
func AdaptiveAvgPoolBackward(is Issuer, dx, dy Operand) error {
	return (&Pool{}).issue(is, poolAdaptiveBack, []Operand{dx, dy}, dx, dy)
}

// issue launches one thread for each element of over; from is the array that windows, or the elements whose window holds one, are read from.
// Operand 0 is over's array. The strider has a slot for every operand, of which those of from's shape get no strides along rows and
// columns, and two more that yield row and column.
func (p *Pool) issue(is Issuer, kind poolKind, ops []Operand, over, from Operand) error {
	n := over.Numel()
	if n == 0 {
		return nil
	}
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Op, s.Compute = FamilyPool, uint16(kind), opmath(ops[0].DType)
	s.Outs, s.Ins = 1, uint8(len(ops)-1)
	sp := space{nd: 4, count: len(ops) + 2}
	for d := range 4 {
		sp.size[d] = over.Shape[3-d]
	}
	for i, o := range ops {
		s.DTypes[i] = o.DType
		windowed := i == len(ops)-1 || kind == poolMaxBack && i > 0
		for d := range 4 {
			if !windowed || d >= 2 {
				sp.stride[i][d] = o.Stride[3-d]
			}
		}
	}
	sp.stride[len(ops)][1], sp.stride[len(ops)+1][0] = 1, 1
	s.Index = 32
	if limit := min(is.Index32(), lane32); max(sp.reach(), from.Numel(), reachOf(&from)) > limit {
		s.Index = 64
	}
	for i := range ops {
		l.u64(ops[i].Ptr)
	}
	l.index(int(s.Index), n)
	sp.pack(l, 4, 1, int(s.Index), 1<<sp.count-1)
	for i := range ops {
		l.i64(ops[i].Stride[2])
		l.i64(ops[i].Stride[3])
	}
	include := 0
	if p.CountPad {
		include = 1
	}
	for _, v := range []int{over.Shape[2], over.Shape[3], from.Shape[2], from.Shape[3], p.KH, p.KW, p.StrideH, p.StrideW, p.PadH, p.PadW,
		p.DilationH, p.DilationW, p.Divisor, include} {
		l.i32(v)
	}
	l.Grid = [3]uint32{uint32(ceilDiv(n, poolThreads)), 1, 1}
	l.Block = [3]uint32{poolThreads, 1, 1}
	return is.Issue(l)
}

// reachOf returns the index of the operand's farthest element.
func reachOf(o *Operand) int {
	e := 0
	for d, n := range o.Shape {
		e += (n - 1) * abs(o.Stride[d])
	}
	return e
}

// poolKernel builds one of the kernels.
type poolKernel struct {
	k    *kernel.Builder
	s    *Spec
	kind poolKind
	ops  []array
	// at is where every operand's plane, or its element, begins; row and col are the thread's place in its plane.
	at       []kernel.Value
	row, col kernel.Value
	strides  [][2]kernel.Value
	// Sizes of the thread's plane and of the other one.
	h, w, fh, fw                   kernel.Value
	kh, kw, sh, sw, ph, pw, dh, dw kernel.Value
	divisor, countPad              kernel.Value
}

var _ = register(FamilyPool, buildPool)

func buildPool(s *Spec) *kernel.Kernel {
	kind := poolKind(s.Op)
	return kernel.Build(s.name(poolNames[kind]), func(k *kernel.Builder) {
		k.FixedThreads(poolThreads)
		p := &poolKernel{k: k, s: s, kind: kind}
		ix := indexType(int(s.Index))
		for i := range s.Outs + s.Ins {
			p.ops = append(p.ops, arrayParam(k, "op"+string(rune('0'+i)), s.DTypes[i]))
		}
		n := k.Scalar("n", ix)
		st := striderParam(k, "dim", 4, len(p.ops)+2, int(s.Index))
		for i := range p.ops {
			name := string(rune('0' + i))
			a, b := k.Scalar("row_stride"+name, dtype.Int64), k.Scalar("col_stride"+name, dtype.Int64)
			p.strides = append(p.strides, [2]kernel.Value{a.Convert(ix), b.Convert(ix)})
		}
		for _, v := range []struct {
			name string
			to   *kernel.Value
		}{{"h", &p.h}, {"w", &p.w}, {"fh", &p.fh}, {"fw", &p.fw}, {"kh", &p.kh}, {"kw", &p.kw}, {"sh", &p.sh}, {"sw", &p.sw}, {"ph", &p.ph}, {"pw", &p.pw},
			{"dh", &p.dh}, {"dw", &p.dw}, {"divisor", &p.divisor}, {"count_pad", &p.countPad}} {
			*v.to = k.Scalar(v.name, dtype.Int32)
		}
		i := k.BlockIdx(kernel.X).Convert(ix).Mul(k.Int(ix, poolThreads)).Add(k.ThreadIdx(kernel.X).Convert(ix))
		k.If(i.Lt(n), func() {
			at := st.locate(i)
			p.at = at[:len(p.ops)]
			p.row, p.col = at[len(p.ops)].Convert(dtype.Int32), at[len(p.ops)+1].Convert(dtype.Int32)
			p.body()
		})
	})
}

func (p *poolKernel) body() {
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

// element returns element (row, col) of operand i's plane, in the compute type.
func (p *poolKernel) element(i int, row, col kernel.Value) kernel.Value {
	at := p.place(i, row, col)
	return p.ops[i].load(at, 1)[0].Convert(p.s.Compute).Re
}

func (p *poolKernel) place(i int, row, col kernel.Value) kernel.Value {
	ix := p.at[i].Type()
	return p.at[i].Add(row.Convert(ix).Mul(p.strides[i][0])).Add(col.Convert(ix).Mul(p.strides[i][1]))
}

// each runs f for rows y0 … y1-1 and columns x0 … x1-1, by the given steps.
func (p *poolKernel) each(y0, y1, stepY, x0, x1, stepX kernel.Value, f func(y, x kernel.Value)) {
	p.k.For(y0, y1, stepY, func(y kernel.Value) {
		p.k.For(x0, x1, stepX, func(x kernel.Value) { f(y, x) })
	})
}

// first returns where the window that would begin at start first lies within the plane: start plus a multiple of the dilation.
func first(k *kernel.Builder, start, dilation kernel.Value) kernel.Value {
	zero, one := k.I32(0), k.I32(1)
	up := start.Neg().Add(dilation).Sub(one).Div(dilation).Mul(dilation)
	return start.Lt(zero).Select(start.Add(up), start)
}

func (p *poolKernel) max() {
	k := p.k
	top, left := p.row.Mul(p.sh).Sub(p.ph), p.col.Mul(p.sw).Sub(p.pw)
	bottom := top.Add(p.kh.Sub(k.I32(1)).Mul(p.dh)).Add(k.I32(1)).Min(p.fh)
	right := left.Add(p.kw.Sub(k.I32(1)).Mul(p.dw)).Add(k.I32(1)).Min(p.fw)
	top, left = first(k, top, p.dh), first(k, left, p.dw)
	best := k.Var(k.Const(p.s.Compute, math.Inf(-1)))
	where := k.Var(top.Mul(p.fw).Add(left))
	p.each(top, bottom, p.dh, left, right, p.dw, func(y, x kernel.Value) {
		v := p.element(2, y, x)
		k.If(v.Gt(best.Get()).Or(v.IsNaN()), func() {
			best.Set(v)
			where.Set(y.Mul(p.fw).Add(x))
		})
	})
	p.ops[0].store(p.at[0], realNum(best.Get()))
	p.ops[1].store(p.at[1], realNum(where.Get().Convert(dtype.Int64)))
}

// covering returns the windows, first and one past the last, that hold place v of one dimension: of width extent, stride apart.
func (p *poolKernel) covering(v, pad, extent, stride, windows kernel.Value) (from, to kernel.Value) {
	k := p.k
	u := v.Add(pad)
	from = u.Lt(extent).Select(k.I32(0), u.Sub(extent).Div(stride).Add(k.I32(1)))
	return from, u.Div(stride).Add(k.I32(1)).Min(windows)
}

func (p *poolKernel) maxBack() {
	k := p.k
	one := k.I32(1)
	y0, y1 := p.covering(p.row, p.ph, p.kh.Sub(one).Mul(p.dh).Add(one), p.sh, p.fh)
	x0, x1 := p.covering(p.col, p.pw, p.kw.Sub(one).Mul(p.dw).Add(one), p.sw, p.fw)
	me := p.row.Mul(p.w).Add(p.col).Convert(dtype.Int64)
	sum := k.Var(k.Const(p.s.Compute, 0))
	p.each(y0, y1, one, x0, x1, one, func(y, x kernel.Value) {
		k.If(p.ops[2].load(p.place(2, y, x), 1)[0].Re.Eq(me), func() {
			sum.Set(sum.Get().Add(p.element(1, y, x)))
		})
	})
	p.ops[0].store(p.at[0], realNum(sum.Get()))
}

// window returns the bounds of window (y, x) of planes h high and w wide, clipped to them, and the divisor of its mean.
func (p *poolKernel) window(y, x, h, w kernel.Value) (top, bottom, left, right, divisor kernel.Value) {
	k := p.k
	zero := k.I32(0)
	top, left = y.Mul(p.sh).Sub(p.ph), x.Mul(p.sw).Sub(p.pw)
	bottom, right = top.Add(p.kh).Min(h.Add(p.ph)), left.Add(p.kw).Min(w.Add(p.pw))
	padded := bottom.Sub(top).Mul(right.Sub(left))
	top, left, bottom, right = top.Max(zero), left.Max(zero), bottom.Min(h), right.Min(w)
	divisor = p.countPad.Ne(zero).Select(padded, bottom.Sub(top).Mul(right.Sub(left)))
	return top, bottom, left, right, p.divisor.Ne(zero).Select(p.divisor, divisor)
}

func (p *poolKernel) avg() {
	top, bottom, left, right, divisor := p.window(p.row, p.col, p.fh, p.fw)
	p.mean(top, bottom, left, right, divisor)
}

func (p *poolKernel) mean(top, bottom, left, right, divisor kernel.Value) {
	k := p.k
	sum := k.Var(k.Const(p.s.Compute, 0))
	p.each(top, bottom, k.I32(1), left, right, k.I32(1), func(y, x kernel.Value) { sum.Set(sum.Get().Add(p.element(1, y, x))) })
	p.ops[0].store(p.at[0], realNum(sum.Get().Div(divisor.Convert(p.s.Compute))))
}

// span returns what output i of n covers of size elements.
func (p *poolKernel) span(i, n, size kernel.Value) (from, to kernel.Value) {
	k := p.k
	wide := n.Convert(dtype.Int64)
	from = i.MulWide(size).Div(wide)
	to = i.Add(k.I32(1)).MulWide(size).Add(wide).Sub(k.I64(1)).Div(wide)
	return from.Convert(dtype.Int32), to.Convert(dtype.Int32)
}

func (p *poolKernel) adaptive() {
	top, bottom := p.span(p.row, p.h, p.fh)
	left, right := p.span(p.col, p.w, p.fw)
	p.mean(top, bottom, left, right, bottom.Sub(top).Mul(right.Sub(left)))
}

// avgBack sums, over the windows that hold the thread's element, their gradient over their divisor.
func (p *poolKernel) avgBack() {
	k := p.k
	one := k.I32(1)
	var y0, y1, x0, x1 kernel.Value
	if p.kind == poolAvgBack {
		y0, y1 = p.covering(p.row, p.ph, p.kh, p.sh, p.fh)
		x0, x1 = p.covering(p.col, p.pw, p.kw, p.sw, p.fw)
	} else {
		y0, y1 = p.span(p.row, p.h, p.fh)
		x0, x1 = p.span(p.col, p.w, p.fw)
	}
	sum := k.Var(k.Const(p.s.Compute, 0))
	p.each(y0, y1, one, x0, x1, one, func(y, x kernel.Value) {
		var divisor kernel.Value
		if p.kind == poolAvgBack {
			_, _, _, _, divisor = p.window(y, x, p.h, p.w)
		} else {
			top, bottom := p.span(y, p.fh, p.h)
			left, right := p.span(x, p.fw, p.w)
			divisor = bottom.Sub(top).Mul(right.Sub(left))
		}
		sum.Set(sum.Get().Add(p.element(1, y, x).Div(divisor.Convert(p.s.Compute))))
	})
	p.ops[0].store(p.at[0], realNum(sum.Get()))
}
