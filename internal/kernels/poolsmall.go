package kernels

import (
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Pooling with small windows. The loops of the other kernels wait for one element after the other, and find out for each element of a
// gradient which windows contain it. Here the window's size and stride are part of the kernel, so all loads are issued before the first
// is used. A thread of a gradient has a tile of StrideH × StrideW elements: it loads the gradient of each window once for all of them, and
// which window contains which element of a tile is known when the kernel is built.

// poolSpec is what these kernels are specialised on; it is zero in the kernels with loops.
type poolSpec struct {
	// KH, KW, SH and SW are the size of the window and its stride.
	KH, KW, SH, SW uint8
	// PhaseH and PhaseW, for gradients, are the remainders of the padding by the stride.
	PhaseH, PhaseW uint8
	// Full says that no window hangs over the plane's edge or, for gradients, that all windows of all tiles exist.
	Full bool
	// Whole, for gradients, says that no tile hangs over the plane's edge.
	Whole bool
	// Row says that the elements of a thread are adjacent in a row and are accessed at once, with Vec windows. Otherwise a thread has Vec
	// adjacent channels.
	Row bool
	// Scaled says that means are products with a number: all windows have the same divisor, a power of two.
	Scaled bool
}

const (
	// mostTaps2d, mostTile and mostWindows are the maximum numbers of elements in a window, of elements in a tile, and of the windows that
	// contain elements of one tile.
	mostTaps2d, mostTile, mostWindows = 9, 9, 4
	// placedChannels is the maximum number of channels of a thread that accesses places, which are four times as wide as halves: with more
	// of them, the threads of a warp access memory with gaps.
	placedChannels = 4
)

func (k poolKind) back() bool { return k == poolMaxBack || k == poolAvgBack }

// poolAxis is one dimension of a gradient's tiles.
type poolAxis struct{ size, stride, phase int }

// windows returns the numbers of the first and the last window that contain elements of tile t, as differences from t plus the quotient
// of padding and stride.
func (a poolAxis) windows() (first, last int) {
	first = (a.phase + a.stride - 1) / a.stride
	last = first
	for a.contains(first-1, 0) {
		first--
	}
	return first, last
}

// contains reports whether a window contains element i of a tile.
func (a poolAxis) contains(window, i int) bool {
	at := a.phase + i - window*a.stride
	return at >= 0 && at < a.size
}

func (s *poolSpec) rows() poolAxis    { return poolAxis{int(s.KH), int(s.SH), int(s.PhaseH)} }
func (s *poolSpec) columns() poolAxis { return poolAxis{int(s.KW), int(s.SW), int(s.PhaseW)} }

// small returns the specialisation for the pooling of or to over, which is zero if the window is too large.
func (p *Pool) small(kind poolKind, over, from *Operand) (s poolSpec) {
	if kind >= poolAdaptive || p.DilationH != 1 || p.DilationW != 1 || from.Numel() == 0 {
		return s
	}
	fits := func(most, a, b int) bool { return a <= most && b <= most && a*b <= most }
	fine, coarse := from, over
	if kind.back() {
		fine, coarse = over, from
		if !fits(mostTile, p.StrideH, p.StrideW) || !fits(2*mostTile, p.KH, 1) || !fits(2*mostTile, p.KW, 1) {
			return s
		}
		s.PhaseH, s.PhaseW = uint8(p.PadH%p.StrideH), uint8(p.PadW%p.StrideW)
	} else if !fits(mostTaps2d, p.KH, p.KW) || p.StrideH > 255 || p.StrideW > 255 {
		return s
	}
	s.KH, s.KW, s.SH, s.SW = uint8(p.KH), uint8(p.KW), uint8(p.StrideH), uint8(p.StrideW)
	if kind.back() {
		top, bottom := s.rows().windows()
		left, right := s.columns().windows()
		if !fits(mostWindows, bottom-top+1, right-left+1) {
			return poolSpec{}
		}
		full := func(first, last, pad, stride, size, windows int) bool {
			return pad/stride+first >= 0 && (size-1)/stride+pad/stride+last < windows
		}
		s.Full = full(top, bottom, p.PadH, p.StrideH, fine.Shape[2], coarse.Shape[2]) &&
			full(left, right, p.PadW, p.StrideW, fine.Shape[3], coarse.Shape[3])
		s.Whole = fine.Shape[2]%p.StrideH == 0 && fine.Shape[3]%p.StrideW == 0
	} else {
		s.Full = p.PadH == 0 && p.PadW == 0 && p.within(fine, coarse)
	}
	s.Scaled = (kind == poolAvg || kind == poolAvgBack) && over.DType.IsFloat() && p.scale(fine, coarse) != 0
	return s
}

// within reports whether the last window hangs over neither the last row of the padding nor its last column.
func (p *Pool) within(fine, coarse *Operand) bool {
	return (coarse.Shape[2]-1)*p.StrideH+p.KH <= fine.Shape[2]+2*p.PadH && (coarse.Shape[3]-1)*p.StrideW+p.KW <= fine.Shape[3]+2*p.PadW
}

// scale returns the number by which the product is the exact quotient with the divisor of every window, or 0 if there is none.
func (p *Pool) scale(fine, coarse *Operand) float64 {
	d := p.Divisor
	if d == 0 && (p.CountPad || p.PadH == 0 && p.PadW == 0) && p.within(fine, coarse) {
		d = p.KH * p.KW
	}
	if d <= 0 || d&(d-1) != 0 {
		return 0
	}
	return 1 / float64(d)
}

// evenPlaces returns a number of as many trailing zeros as the index in memory of every element with index 0 along dimension d.
func evenPlaces(o *Operand, d int) uint64 {
	places := o.Ptr / uint64(o.DType.Size())
	for i, n := range o.Shape {
		if i != d && n > 1 {
			places |= uint64(o.Stride[i])
		}
	}
	return places
}

// rowAtOnce returns how many windows along a row each of n threads takes, of which busy must remain, and whose elements in array i of ops
// it accesses at once; 0 means that it cannot. tiles is the number of tiles or windows in a row.
func (p *Pool) rowAtOnce(s *poolSpec, kind poolKind, ops []Operand, i, tiles, n, busy int) int {
	fine := &ops[i]
	if s.KH == 0 || fine.Stride[3] != 1 || p.StrideW&(p.StrideW-1) != 0 || tiles*p.StrideW > fine.Shape[3] {
		return 0
	}
	several := s.Full && p.KW <= p.StrideW && p.PadW == 0
	if !several && !kind.back() {
		return 0
	}
	most := max(1, 16/fine.DType.Size()/p.StrideW)
	places := uint64(tiles)
	for j := range ops {
		if j != i {
			several = several && (ops[j].Stride[3] == 1 || tiles == 1)
			places |= evenPlaces(&ops[j], 3)
		}
	}
	if !several {
		most = 1
	}
	most = min(most, 1<<bits.TrailingZeros64(places))
	for most > 1 && n/most < busy {
		most /= 2
	}
	even := evenPlaces(fine, 3)
	for most > 1 && even%uint64(most*p.StrideW) != 0 {
		most /= 2
	}
	if most*p.StrideW == 1 || even%uint64(most*p.StrideW) != 0 {
		return 0
	}
	return most
}

// reals returns numbers as values of the compute type.
func (p *poolKernel) reals(ns []Num) []kernel.Value {
	vs := make([]kernel.Value, len(ns))
	for i, n := range ns {
		vs[i] = n.Convert(p.s.Compute).Re
	}
	return vs
}

// poolPlace is a row or column: its number, clamped to those that exist, and whether it exists itself.
type poolPlace struct{ at, exists kernel.Value }

// places returns count places from start on, in a plane of the given size.
func (p *poolKernel) places(start kernel.Value, count int, size kernel.Value) []poolPlace {
	k := p.k
	out := make([]poolPlace, count)
	for i := range out {
		at := start.Add(k.I32(i))
		out[i] = poolPlace{at: at}
		if !p.s.Pool.Full {
			out[i] = poolPlace{at.Max(k.I32(0)).Min(size.Sub(k.I32(1))), at.Ge(k.I32(0)).And(at.Lt(size))}
		}
	}
	return out
}

// poolTap is an element of the windows of a thread, one value for each of its channels or windows. here is its position in the plane of
// the first window.
type poolTap struct {
	values       []kernel.Value
	here, exists kernel.Value
}

// taps loads all elements of the thread's windows from operand i, in row-major order. Outside the plane it loads the nearest element.
func (p *poolKernel) taps(i int) (taps []poolTap) {
	k, s := p.k, &p.s.Pool
	rows := p.places(p.row.Mul(k.I32(int(s.SH))).Sub(p.ph.Value), int(s.KH), p.fh.Value)
	columns := p.places(p.col.Mul(k.I32(int(s.SW))).Sub(p.pw.Value), int(s.KW), p.fw.Value)
	for _, y := range rows {
		var row []Num
		if s.Row {
			row = p.ops[i].loadAll(p.place(i, y.at, columns[0].at), int(p.s.Vec)*int(s.SW))
		}
		for j, x := range columns {
			t := poolTap{here: y.at.Mul(p.fw.Value).Add(x.at)}
			if !s.Full {
				t.exists = y.exists.And(x.exists)
			}
			if s.Row {
				for c := range int(p.s.Vec) {
					t.values = append(t.values, p.reals(row[c*int(s.SW)+j:][:1])...)
				}
			} else {
				t.values = p.elements(i, y.at, x.at)
			}
			taps = append(taps, t)
		}
	}
	return taps
}

// beside returns the distance in a row between the windows of adjacent values, which is 0 if these are channels.
func (p *poolKernel) beside() int {
	if p.s.Pool.Row {
		return int(p.s.Pool.SW)
	}
	return 0
}

// smallMax is max for a small window. The elements that it takes for those outside are in the window too, and beside each other in the
// same order, so they change neither the greatest element nor its place.
func (p *poolKernel) smallMax() {
	taps := p.taps(2)
	best, where := make([]kernel.Value, p.s.Vec), make([]kernel.Value, p.s.Vec)
	for c := range best {
		best[c], where[c] = taps[0].values[c], taps[0].here
		for _, t := range taps[1:] {
			v := t.values[c]
			better := v.Gt(best[c]).Or(v.IsNaN())
			best[c], where[c] = better.Select(v, best[c]), better.Select(t.here, where[c])
		}
		where[c] = where[c].Add(p.k.I32(c * p.beside())).Convert(dtype.Int64)
	}
	p.store(0, best)
	p.store(1, where)
}

func (p *poolKernel) smallAvg() {
	taps := p.taps(1)
	sums := make([]kernel.Value, p.s.Vec)
	for c := range sums {
		sums[c] = p.k.Const(p.s.Compute, 0)
		for _, t := range taps {
			sum := sums[c].Add(t.values[c])
			if t.exists.Builder() != nil {
				sum = t.exists.Select(sum, sums[c])
			}
			sums[c] = sum
		}
	}
	p.store(0, p.means(sums, p.row, p.col, p.fh.Value, p.fw.Value))
}

// means returns sums divided by the divisor of window (y, x) in planes of height h and width w.
func (p *poolKernel) means(sums []kernel.Value, y, x, h, w kernel.Value) []kernel.Value {
	out := make([]kernel.Value, len(sums))
	if p.s.Pool.Scaled {
		scale := p.scale.Convert(p.s.Compute)
		for c, v := range sums {
			out[c] = v.Mul(scale)
		}
		return out
	}
	_, _, _, _, divisor := p.window(y, x, h, w)
	divisor = divisor.Convert(p.s.Compute)
	for c, v := range sums {
		out[c] = v.Div(divisor)
	}
	return out
}

// poolSource is a window that contains elements of the thread's tile: what it adds to them and, of a maximum, to which.
type poolSource struct {
	values, where []kernel.Value
	exists        kernel.Value
	// row and column are the window's numbers in its axes.
	row, column int
}

// sources loads all windows of the thread's tile, in row-major order.
func (p *poolKernel) sources() (all []poolSource) {
	k, s := p.k, &p.s.Pool
	top, bottom := s.rows().windows()
	left, right := s.columns().windows()
	rows := p.places(p.row.Add(p.baseH.Value).Add(k.I32(top)), bottom-top+1, p.fh.Value)
	columns := p.places(p.col.Add(p.baseW.Value).Add(k.I32(left)), right-left+1, p.fw.Value)
	for i, y := range rows {
		for j, x := range columns {
			o := poolSource{values: p.elements(1, y.at, x.at), row: top + i, column: left + j}
			if p.kind == poolMaxBack {
				o.where = p.load(2, p.place(2, y.at, x.at))
			} else {
				o.values = p.means(o.values, y.at, x.at, p.h.Value, p.w.Value)
			}
			if !s.Full {
				o.exists = y.exists.And(x.exists)
			}
			all = append(all, o)
		}
	}
	return all
}

// gradient returns, for value c of the thread, the sum of what the windows add to element (i, j) of its tile, whose position is me.
func (p *poolKernel) gradient(sources []poolSource, c, i, j int, me kernel.Value) kernel.Value {
	s := &p.s.Pool
	sum := p.k.Const(p.s.Compute, 0)
	for _, o := range sources {
		if !s.rows().contains(o.row, i) || !s.columns().contains(o.column, j) {
			continue
		}
		next, adds := sum.Add(o.values[c]), o.exists
		if p.kind == poolMaxBack {
			adds = o.where[c].Convert(dtype.Int32).Eq(me)
			if !s.Full {
				adds = o.exists.And(adds)
			}
		}
		if adds.Builder() != nil {
			next = adds.Select(next, sum)
		}
		sum = next
	}
	return sum
}

// smallBack computes a tile of the gradient.
func (p *poolKernel) smallBack() {
	k, s, vec := p.k, &p.s.Pool, int(p.s.Vec)
	height, width := int(s.SH), int(s.SW)
	sources := p.sources()
	top, left := p.row.Mul(k.I32(height)), p.col.Mul(k.I32(width))
	when := func(exists bool, start kernel.Value, i int, size kernel.Value, f func()) {
		if exists {
			f()
		} else { // the sum of start and i may be 2^31
			k.If(size.Sub(start).Gt(k.I32(i)), f)
		}
	}
	for i := range height {
		y := top.Add(k.I32(i))
		at := p.at[0].Add(p.strides[0][0].Mul(p.strides[0][0].Like(float64(i))))
		when(s.Whole || i == 0, top, i, p.h.Value, func() {
			first := y.Mul(p.w.Value).Add(left)
			if s.Row {
				ns := make([]Num, vec*width)
				for e := range ns {
					ns[e] = realNum(p.gradient(sources, e/width, i, e%width, first.Add(k.I32(e))))
				}
				p.ops[0].storeAll(at, ns)
				return
			}
			for j := range width {
				me := first.Add(k.I32(j))
				when(s.Whole || j == 0, left, j, p.w.Value, func() {
					ns := make([]Num, vec)
					for c := range ns {
						ns[c] = realNum(p.gradient(sources, c, i, j, me))
					}
					p.ops[0].storeAll(at.Add(p.strides[0][1].Mul(p.strides[0][1].Like(float64(j)))), ns)
				})
			}
		})
	}
}
