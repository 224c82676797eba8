package kernels

import (
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Folding by index: the indexes are sorted, so that equal ones form a run in their original order. The sorted order is divided into parts
// of fixed length. The elements of a run within a part are folded at once. If the run continues beyond the part, the result becomes an
// element of a list, in which each part has two slots, and which is folded like the sorted order itself, until there is a single part. The
// order of operations depends only on the indexes.
const (
	// rowPart is the length of parts if a warp goes along a run with the elements of many lines at a time. It limits how long a thread
	// works alone; each list is another launch.
	rowPart = 64
	// scanPart is the length of parts if a warp folds 32 positions of the sorted order at a time.
	scanPart = 256
	// rowWidth is the minimum number of lines per index for which a warp per run is worthwhile.
	rowWidth = 32
	// rowsAtOnce is the number of elements of a run that a thread has in flight at a time.
	rowsAtOnce = 4
)

// segmentStage is the operation of a kernel of FamilySegment; it is Spec.Op.
type segmentStage uint16

const (
	// segmentKeys checks the indexes and writes them as keys, together with the elements' positions or, unless they are already in place,
	// values.
	segmentKeys segmentStage = iota
	segmentRowsAdd
	segmentRowsMultiply
	segmentScanAdd
	segmentScanMultiply
)

var segmentNames = []string{"segment_keys", "segment_rows_add", "segment_rows_multiply", "segment_scan_add", "segment_scan_multiply"}

// segmentFrom says where the elements to be folded come from.
type segmentFrom uint8

const (
	// fromShared: each key stands for an element of every line; the position along the line is sorted with it.
	fromShared segmentFrom = iota
	// fromPosition: lines have their own keys; the element's number is sorted with each key.
	fromPosition
	// fromValue: the same, but with the element's bits.
	fromValue
	// fromList: the elements are those of a list.
	fromList
)

// segmentSpec is what these kernels are specialised on.
type segmentSpec struct {
	From segmentFrom
	// For segmentKeys. Wrap lets negative indexes count from the end, Lines puts the line above the index, and Given says that the values
	// to be sorted with the keys are already in place.
	Wrap, Lines, Given bool
	// Wide, for the others: a key stands for several lines.
	Wide bool
	// Dims is the class of the number of dimensions, see dimsClass.
	Dims uint8
}

// segmentKeysArgs are the arguments of segmentKeys: n keys for indexes below size, whose low bits are the index; above them is the line, of
// length line.
type segmentKeysArgs struct {
	index, other, keys, with bufferArg
	n, size, line, bits      intArg
	dims                     striderArg
}

func (a *segmentKeysArgs) layout(p params) {
	s := p.s
	ix := indexType(int(s.Index))
	other := ix
	if s.Segment.From == fromValue {
		other = bitsType(s.DTypes[1].Size())
	}
	p.bufferRO(&a.index, "index", s.DTypes[0])
	p.bufferRO(&a.other, "other", other)
	p.buffer(&a.keys, "keys", ix)
	p.buffer(&a.with, "with", ix)
	p.i64(&a.n, "n")
	p.i64(&a.size, "size")
	p.i64(&a.line, "line")
	p.i64(&a.bits, "bits")
	p.strider(&a.dims, "dim", int(s.Segment.Dims), 1, int(s.Index), operandsFrom(0, 2))
}

// segmentArgs are the arguments of the kernels that fold count positions of a list: its keys, each with a number or, in listed, an element,
// and the next list. width is the number of lines, in vectors.
type segmentArgs struct {
	written, other           arrayArg
	keys, with               bufferArg
	listed                   arrayArg
	nextKeys                 bufferArg
	next                     arrayArg
	count, width, line, bits intArg
	step, along              intArg
	dims                     striderArg
}

func (a *segmentArgs) layout(p params) {
	s := p.s
	ix := indexType(int(s.Index))
	p.array(&a.written, "written", s.DTypes[0])
	p.array(&a.other, "other", s.DTypes[1])
	p.bufferRO(&a.keys, "keys", ix)
	if s.Segment.From == fromList {
		p.array(&a.listed, "with", s.DTypes[1])
	} else {
		p.bufferRO(&a.with, "with", ix)
	}
	p.buffer(&a.nextKeys, "next_keys", ix)
	p.array(&a.next, "next", s.Compute)
	p.wide(&a.count, "count")
	p.wide(&a.width, "width")
	p.wide(&a.line, "line")
	p.wide(&a.bits, "bits")
	p.wide(&a.step, "step")
	p.wide(&a.along, "along")
	p.strider(&a.dims, "dim", int(s.Segment.Dims), int(s.Vec), int(s.Index), operandsFrom(0, 2))
}

// segmentPlan is a fold by sorted indexes.
type segmentPlan struct {
	indexPlan
	keySort
	// lines is the space of the lines along the addressed dimension, each of length line, for the written and the other array.
	lines   space
	n, line int
	along   int // the stride of the other array along the line
	from    segmentFrom
	// vec is the number of adjacent lines that a thread takes.
	vec int
}

// segments folds along dim. If the indexes of all lines are equal, the lines share one sort. Otherwise a key has the line above the index,
// and only the index is sorted by: elements are in the order of lines, so equal keys become adjacent.
func (p indexPlan) segments(is Issuer, shape []int, dim int) error {
	g := segmentPlan{indexPlan: p, line: shape[dim], along: p.ops[2].Stride[dim], vec: 1}
	g.lines.count = 2
	keys := space{count: 2}
	keys.open(0, shape[dim])
	keys.stride[0][0], keys.stride[1][0] = p.ops[1].Stride[dim], g.along
	alike := true
	for d := len(shape) - 1; d >= 0; d-- {
		if d == dim {
			continue
		}
		if !g.lines.open(g.lines.nd, shape[d]) || !keys.open(keys.nd, shape[d]) {
			return tooManyDims(indexNames[p.kind])
		}
		at := g.lines.nd - 1
		g.lines.stride[0][at], g.lines.stride[1][at] = p.ops[0].Stride[d], p.ops[2].Stride[d]
		keys.stride[0][at+1], keys.stride[1][at+1] = p.ops[1].Stride[d], p.ops[2].Stride[d]
		alike = alike && (shape[d] == 1 || p.ops[1].Stride[d] == 0)
	}
	g.lines.merge()
	g.n = g.lines.numel()
	if g.n == 0 || g.line == 0 {
		return nil
	}
	if alike = alike && g.n > 1; alike {
		keys.nd = 1
	}
	keys.merge()
	g.count, g.bits, g.index = keys.numel(), bits.Len(uint(max(p.size-1, 0))), 32
	far := max(keys.reach(), g.n*g.line, g.lines.reach()+max(abs(p.step)*p.size, abs(g.along)*g.line))
	if !alike {
		far = max(far, g.n<<g.bits)
	}
	if far > min(is.Index32(), lane32) {
		g.index = 64
	}
	switch t := p.ops[2].DType; {
	case alike:
		g.vec = g.vector()
	case !t.IsComplex() && t.Size() <= g.index/8:
		g.from = fromValue
		if t.Size() == g.index/8 && keys.nd == 1 && keys.stride[1][0] == 1 {
			g.given = p.ops[2].Ptr
		}
	default:
		g.from = fromPosition
	}
	if err := g.prepare(is); err != nil {
		return err
	}
	if err := g.keysOf(is, &keys); err != nil {
		return err
	}
	if err := g.sort(is); err != nil {
		return err
	}
	list := segmentList{keys: g.keys[0], with: g.with[0], from: g.from, count: g.count}
	for list.count > 0 {
		next, err := g.fold(is, list)
		if err != nil {
			return err
		}
		list = next
	}
	return nil
}

// segmentList is a list of elements to be folded: keys, each with the data that from describes.
type segmentList struct {
	keys, with uint64
	from       segmentFrom
	count      int
}

// width is the number of lines that each key stands for.
func (g *segmentPlan) width() int {
	if g.from == fromShared {
		return g.n
	}
	return 1
}

// rows reports whether a warp goes along each run with many lines at a time.
func (g *segmentPlan) rows() bool { return g.width() >= rowWidth }

// segmentPart returns the length of parts.
func segmentPart(rows bool) int {
	if rows {
		return rowPart
	}
	return scanPart
}

// vector returns the number of adjacent lines that are contiguous and aligned in the written and the other array, at most 16 bytes and 8
// lines.
func (g *segmentPlan) vector() int {
	vec := min(16/g.ops[0].DType.Size(), 8)
	for ; vec > 1; vec /= 2 {
		fits := g.lines.size[0]%vec == 0 && g.step%vec == 0 && g.along%vec == 0
		for i, o := range []*Operand{&g.ops[0], &g.ops[2]} {
			fits = fits && g.lines.stride[i][0] == 1 && o.Ptr%uint64(vec*o.DType.Size()) == 0
			for d := 1; d < g.lines.nd; d++ {
				fits = fits && g.lines.stride[i][d]%vec == 0
			}
		}
		if fits {
			break
		}
	}
	return max(vec, 1)
}

func (g *segmentPlan) keysOf(is Issuer, sp *space) error {
	l := is.NewLaunch()
	s := &l.Spec
	*s = Spec{Family: FamilySegment, Op: uint16(segmentKeys), Compute: indexType(g.index), Ins: 2, Index: uint8(g.index)}
	s.DTypes[0], s.DTypes[1] = g.ops[1].DType, g.ops[2].DType
	s.Segment = segmentSpec{From: g.from, Wrap: g.wrap, Lines: g.from != fromShared && g.n > 1, Given: g.given != 0,
		Dims: uint8(dimsClass(sp.nd))}
	if g.from != fromValue {
		s.DTypes[1] = dtype.Invalid
	}
	var a segmentKeysArgs
	a.index.host, a.other.host, a.keys.host, a.with.host = g.ops[1].Ptr, g.ops[2].Ptr, g.keys[0], g.with[0]
	a.n.host, a.size.host, a.line.host, a.bits.host = g.count, g.size, g.line, g.bits
	a.dims.host = sp
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(ceilDiv(g.count, indexThreads)), 1, 1}
	l.Block = [3]uint32{indexThreads, 1, 1}
	return is.Issue(l)
}

// fold folds the parts of a list and returns the next list, which is empty if there was only one part.
func (g *segmentPlan) fold(is Issuer, list segmentList) (next segmentList, err error) {
	stage, vec, rows := segmentScanAdd, 1, g.rows()
	if rows {
		stage, vec = segmentRowsAdd, g.vec
	}
	next.from = fromList
	parts := ceilDiv(list.count, segmentPart(rows))
	if parts > 1 {
		next.count = 2 * parts
		keys := ceilDiv(next.count*g.index/8, 512) * 512
		ws, err := is.Workspace(keys + next.count*g.width()*opmath(g.ops[0].DType).Size())
		if err != nil {
			return next, err
		}
		next.keys, next.with = ws, ws+uint64(keys)
	}
	if g.kind == indexMultiply {
		stage++
	}
	from := g.ops[2].DType
	if list.from == fromList {
		from = opmath(from)
	}
	l := is.NewLaunch()
	s := &l.Spec
	*s = Spec{Family: FamilySegment, Op: uint16(stage), Compute: opmath(g.ops[0].DType), Outs: 1, Ins: 1,
		Index: uint8(g.index), Vec: uint8(vec)}
	s.DTypes[0], s.DTypes[1] = g.ops[0].DType, from
	s.Segment = segmentSpec{From: list.from, Wide: g.width() > 1, Dims: uint8(dimsClass(g.lines.nd))}
	var a segmentArgs
	a.written.host, a.other.host, a.keys.host, a.with.host = g.ops[0].Ptr, g.ops[2].Ptr, list.keys, list.with
	a.listed.host, a.nextKeys.host, a.next.host, a.count.host = list.with, next.keys, next.with, list.count
	a.width.host, a.line.host, a.bits.host, a.step.host = g.width()/vec, g.line, g.bits, g.step
	a.along.host, a.dims.host = g.along, &g.lines
	a.layout(packing(l))
	// A warp takes a position of the order, or a part of it.
	groups, across := parts, g.width()
	if rows {
		groups, across = list.count, min(ceilDiv(g.width(), 32*vec), 1<<15)
	}
	l.Grid = [3]uint32{uint32(ceilDiv(groups, indexThreads/32)), uint32(across), 1}
	l.Block = [3]uint32{indexThreads, 1, 1}
	return next, is.Issue(l)
}

var _ = register(FamilySegment, buildSegment)

func buildSegment(s *Spec) *kernel.Kernel {
	stage := segmentStage(s.Op)
	return kernel.Build(s.name(segmentNames[stage]), func(k *kernel.Builder) {
		k.FixedThreads(indexThreads)
		ix := indexType(int(s.Index))
		if stage == segmentKeys {
			buildSegmentKeys(k, s, ix)
			return
		}
		g := &segmentKernel{k: k, s: s, ix: ix, from: s.Segment.From, kind: indexAdd}
		if stage == segmentRowsMultiply || stage == segmentScanMultiply {
			g.kind = indexMultiply
		}
		g.layout(declaring(k, s))
		g.lane = k.LaneID()
		group := k.BlockIdx(kernel.X).MulWide(k.I32(indexThreads / 32)).Add(k.ThreadIdx(kernel.X).Shr(k.I32(5)).Convert(dtype.Int64))
		rows := stage == segmentRowsAdd || stage == segmentRowsMultiply
		g.part = segmentPart(rows)
		if rows {
			k.If(group.Lt(g.count.Convert(dtype.Int64)), func() { g.rows(group.Convert(ix), int(s.Vec)) })
			return
		}
		g.scan(group.Convert(ix))
	})
}

// ofBits returns the element whose bits are v.
func (g *segmentKernel) ofBits(v kernel.Value) Num {
	t := g.s.DTypes[1]
	v = v.Convert(bitsType(t.Size()))
	switch {
	case t == dtype.Bool:
		return Num{Re: v.Convert(t)}
	case v.Type() == t:
		return Num{Re: v}
	}
	return Num{Re: v.Bitcast(t)}
}

func buildSegmentKeys(k *kernel.Builder, s *Spec, ix dtype.DType) {
	var a segmentKeysArgs
	a.layout(declaring(k, s))
	low := a.bits.Convert(dtype.Int32)
	i := k.BlockIdx(kernel.X).MulWide(k.I32(indexThreads)).Add(k.ThreadIdx(kernel.X).Convert(dtype.Int64))
	k.If(i.Lt(a.n.Value), func() {
		item := i.Convert(ix)
		off := a.dims.locate(item)
		key := checkedIndex(a.index.Load(off[0]), a.size.Value, s.Segment.Wrap).Convert(ix)
		if s.Segment.Lines {
			key = key.Or(item.Div(a.line.Convert(ix)).Shl(low))
		}
		a.keys.Store(i, key)
		if s.Segment.Given {
			return
		}
		if s.Segment.From == fromValue {
			item = a.other.Load(off[1]).Convert(ix)
		}
		a.with.Store(i, item)
	})
}

// segmentKernel builds the kernels that fold. Positions in the sorted order are of type ix.
type segmentKernel struct {
	segmentArgs
	k    *kernel.Builder
	s    *Spec
	ix   dtype.DType
	from segmentFrom
	kind indexKind
	part int
	lane kernel.Value
}

func (g *segmentKernel) lit(v int) kernel.Value { return g.k.Int(g.ix, int64(v)) }

// keyIf returns the key at position p if cond holds, otherwise -1, which is no key.
func (g *segmentKernel) keyIf(cond, p kernel.Value) kernel.Value {
	key := g.k.Var(g.lit(-1))
	g.k.If(cond, func() { key.Set(g.keys.Load(p)) })
	return key.Get()
}

// nums are variables of the compute type.
type nums []kernel.Var

func (g *segmentKernel) nums(n int) nums {
	t := g.s.Compute
	if t.IsComplex() {
		n *= 2
	}
	v := make(nums, n)
	for i := range v {
		v[i] = g.k.Var(g.k.Const(t.Real(), 0))
	}
	return v
}

func (v nums) get(t dtype.DType) []Num {
	var ns []Num
	for i := 0; i < len(v); i++ {
		n := Num{Re: v[i].Get()}
		if t.IsComplex() {
			i++
			n.Im = v[i].Get()
		}
		ns = append(ns, n)
	}
	return ns
}

func (v nums) set(ns ...Num) {
	for i, n := range ns {
		if n.IsComplex() {
			v[2*i].Set(n.Re)
			v[2*i+1].Set(n.Im)
			continue
		}
		v[i].Set(n.Re)
	}
}

// moved returns the result of a shuffle of v. Bools and small integers are widened for it.
func moved(v Num, shuffle func(part kernel.Value) kernel.Value) Num {
	switch {
	case v.IsComplex():
		return Num{shuffle(v.Re), shuffle(v.Im)}
	case v.Re.Type().Size() < 4:
		return Num{Re: shuffle(v.Re.Convert(dtype.Int32)).Convert(v.Re.Type())}
	}
	return Num{Re: shuffle(v.Re)}
}

func (g *segmentKernel) join(a, b []Num) []Num {
	ns := make([]Num, len(a))
	for i := range ns {
		ns[i] = g.kind.join(a[i], b[i])
	}
	return ns
}

func (g *segmentKernel) convert(ns []Num) []Num {
	for i := range ns {
		ns[i] = ns[i].Convert(g.s.Compute)
	}
	return ns
}

// bounds says how the runs at a part's first and last position continue in the parts before and after: it returns the keys of the runs that
// do, or -1, and whether they are the same run.
func (g *segmentKernel) bounds(start, end kernel.Value) (before, after, whole kernel.Value) {
	k, one := g.k, g.lit(1)
	beyond := func(cond, p, next kernel.Value) kernel.Value {
		key := k.Var(g.lit(-1))
		k.If(cond, func() {
			own := g.keys.Load(p)
			k.If(own.Eq(g.keys.Load(next)), func() { key.Set(own) })
		})
		return key.Get()
	}
	before = beyond(start.Gt(g.lit(0)).And(start.Lt(end)), start, start.Sub(one))
	after = beyond(end.Lt(g.count.Value), end.Sub(one), end)
	return before, after, before.Eq(after).And(before.Ge(g.lit(0)))
}

// passKeys writes a part's two keys to the next list, if there is one.
func (g *segmentKernel) passKeys(slot, before, after kernel.Value) {
	g.k.If(g.count.Gt(g.lit(g.part)), func() {
		g.nextKeys.Store(slot, before)
		g.nextKeys.Store(slot.Add(g.lit(1)), after)
	})
}

// rows folds the run of position p from there to the end of the part, if the run or the part begins at p. If the whole part belongs to a
// longer run, each half of it is folded separately and gives an element to the next list.
func (g *segmentKernel) rows(p kernel.Value, vec int) {
	k, zero, one := g.k, g.lit(0), g.lit(1)
	most := min(vec, 16/g.s.Compute.Size()) // elements per access to the lists
	key := g.keys.Load(p)
	first := g.keyIf(p.Gt(zero), p.Sub(one)).Ne(key)
	within := p.And(g.lit(g.part - 1))
	start, slot := p.Sub(within), p.Sub(within).Div(g.lit(g.part/2))
	stop := start.Add(g.lit(g.part)).Min(g.count.Value)
	begins, end, head := k.Var(first), k.Var(stop), within.Eq(zero)
	k.If(p.And(g.lit(g.part/2-1)).Eq(zero), func() {
		before, after, whole := g.bounds(start, stop)
		begins.Set(head.Or(first).Or(whole))
		k.If(head, func() {
			k.If(whole, func() { end.Set(p.Add(g.lit(g.part / 2))) })
			k.If(g.lane.Eq(k.I32(0)).And(k.BlockIdx(kernel.Y).Eq(k.I32(0))), func() { g.passKeys(slot, before, after) })
		})
	})
	k.If(begins.Get().And(key.Ge(zero)), func() {
		end, groups := end.Get(), k.GridDim(kernel.Y).Convert(g.ix).Mul(g.lit(32))
		column := k.BlockIdx(kernel.Y).Convert(g.ix).Mul(g.lit(32)).Add(g.lane.Convert(g.ix))
		k.For(column, g.width.Value, groups, func(column kernel.Value) {
			off := g.dims.locate(column)
			item := func(q kernel.Value) []Num {
				if g.from == fromList {
					at := q.Mul(g.width.Value).Add(column).Mul(g.lit(vec))
					var ns []Num
					for len(ns) < vec {
						ns = append(ns, g.listed.load(at.Add(g.lit(len(ns))), most)...)
					}
					return ns
				}
				return g.convert(g.other.load(off[1].Add(g.with.Load(q).Mul(g.along.Value)), vec))
			}
			to := off[0].Add(key.Mul(g.step.Value))
			old, sum := g.nums(vec), g.nums(vec)
			k.If(first, func() { old.set(g.convert(g.written.load(to, vec))...) })
			sum.set(item(p)...)
			q := k.Var(p.Add(one))
			// Equal keys are adjacent, so if the last of several belongs to the run, all do.
			along := func(n int) {
				k.Loop(func() {
					last := q.Get().Add(g.lit(n - 1))
					k.If(g.keyIf(last.Lt(end), last).Ne(key), k.Break)
					vs := make([][]Num, n)
					for i := range vs {
						vs[i] = item(q.Get().Add(g.lit(i)))
					}
					for _, v := range vs {
						sum.set(g.join(sum.get(g.s.Compute), v)...)
					}
					q.Set(q.Get().Add(g.lit(n)))
				})
			}
			along(rowsAtOnce)
			along(1)
			ends := g.keyIf(q.Get().Lt(g.count.Value), q.Get()).Ne(key)
			k.IfElse(first.And(ends), func() { g.written.store(to, g.join(old.get(g.s.Compute), sum.get(g.s.Compute))...) }, func() {
				slot := slot.Add(head.And(first.Not()).Select(zero, one))
				at, ns := slot.Mul(g.width.Value).Add(column).Mul(g.lit(vec)), sum.get(g.s.Compute)
				for i := 0; i < vec; i += most {
					g.next.store(at.Add(g.lit(i)), ns[i:i+most]...)
				}
			})
		})
	})
}

// scan folds the given part, 32 positions at a time, in a tree that ends at the runs' bounds. If the whole part belongs to a longer run,
// each half gives an element to the next list.
func (g *segmentKernel) scan(part kernel.Value) {
	k, zero, one, t := g.k, g.lit(0), g.lit(1), g.s.Compute
	shared := g.s.Segment.Wide
	start := part.Mul(g.lit(g.part))
	end := start.Add(g.lit(g.part)).Min(g.count.Value)
	before, after, whole := g.bounds(start, end)
	column := zero
	writesKeys := g.lane.Eq(k.I32(0)).And(start.Lt(end))
	if shared {
		column = k.BlockIdx(kernel.Y).Convert(g.ix)
		writesKeys = writesKeys.And(k.BlockIdx(kernel.Y).Eq(k.I32(0)))
	}
	head := part.Add(part)
	k.If(writesKeys, func() { g.passKeys(head, before, after) })
	pass := func(slot kernel.Value, v []Num) {
		if shared {
			slot = slot.Mul(g.width.Value).Add(column)
		}
		g.next.store(slot, v...)
	}
	// place returns the line and the index that a key stands for.
	place := func(key kernel.Value) (line, index kernel.Value) {
		if shared {
			return column, key
		}
		low := g.bits.Convert(dtype.Int32)
		line = key.Shr(low)
		return line, key.Sub(line.Shl(low))
	}
	item := func(q, key kernel.Value) []Num {
		switch g.from {
		case fromList:
			if shared {
				q = q.Mul(g.width.Value).Add(column)
			}
			return g.listed.load(q, 1)
		case fromValue:
			return []Num{g.ofBits(g.with.Load(q)).Convert(t)}
		}
		line, _ := place(key)
		at := g.with.Load(q)
		if !shared {
			at = at.Sub(line.Mul(g.line.Value))
		}
		return g.convert(g.other.load(g.dims.locate(line)[1].Add(at.Mul(g.along.Value)), 1))
	}
	carry, carried := g.nums(1), k.Var(g.lit(-1))
	// The next positions are loaded while the current ones are folded. Beyond the part, the first position is checked.
	nextKey, nextItem := k.Var(g.lit(-1)), g.nums(1)
	last := end.Min(g.count.Sub(one))
	load := func(q kernel.Value) {
		key := g.keyIf(q.Le(last), q)
		nextKey.Set(key)
		fetch := q.Lt(end)
		if g.from == fromList {
			fetch = fetch.And(key.Ge(zero)) // other elements are not written
		}
		k.If(fetch, func() { nextItem.set(item(q, key)...) })
	}
	lane := g.lane.Convert(g.ix)
	load(start.Add(lane))
	k.For(zero, g.lit(g.part), g.lit(32), func(done kernel.Value) {
		q := start.Add(done).Add(lane)
		fetched := nextKey.Get()
		key := q.Lt(end).Select(fetched, g.lit(-1))
		sum := g.nums(1)
		sum.set(nextItem.get(t)...)
		load(q.Add(g.lit(32)))
		beyond := nextKey.Get().Shuffle(k.I32(0))
		follows := g.lane.Eq(k.I32(31)).Select(beyond, fetched.ShuffleDown(1))
		for h := 1; h < 32; h *= 2 {
			same := key.ShuffleUp(h).Eq(key).And(g.lane.Ge(k.I32(h)))
			v := sum.get(t)[0]
			below := moved(v, func(part kernel.Value) kernel.Value { return part.ShuffleUp(h) })
			sum.set(choose(same, g.kind.join(below, v), v))
		}
		k.If(key.Eq(carried.Get()), func() { sum.set(g.join(carry.get(t), sum.get(t))...) })
		k.If(key.Ge(zero).And(key.Ne(follows)), func() {
			k.IfElse(key.Eq(before), func() { pass(head, sum.get(t)) }, func() {
				line, index := place(key)
				to := g.dims.locate(line)[0].Add(index.Mul(g.step.Value))
				g.written.store(to, g.join(g.convert(g.written.load(to, 1)), sum.get(t))...)
			})
		})
		middle := whole.And(done.Eq(g.lit(g.part/2 - 32)))
		k.If(middle.And(g.lane.Eq(k.I32(31))), func() { pass(head, sum.get(t)) })
		carried.Set(middle.Select(g.lit(-1), key.Shuffle(k.I32(31))))
		carry.set(moved(sum.get(t)[0], func(part kernel.Value) kernel.Value { return part.Shuffle(k.I32(31)) }))
	})
	k.If(after.Ge(zero).And(g.lane.Eq(k.I32(0))), func() { pass(head.Add(one), carry.get(t)) })
}
