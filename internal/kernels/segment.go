package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Folding by index: the indexes are sorted, so that those that name one element form a run in their first order, and runs are folded in parts:
// a part ends with its run and at every segmentPart-th place of the sorted order. The order of operations depends on the indexes alone.

// segmentPart is the length of a part: a long run takes about segmentPart steps for its parts and then one for each of them.
const segmentPart = 64

// segmentStage is what a kernel of FamilySegment does; it is Spec.Op.
type segmentStage uint16

const (
	// segmentKeys checks the indexes and writes them as keys, with their positions.
	segmentKeys segmentStage = iota
	// segmentAdd and segmentMultiply fold parts: a run of one part goes to the destination, what belongs to a longer one to workspace.
	segmentAdd
	segmentMultiply
	// segmentJoinAdd and segmentJoinMultiply fold the parts of runs that have several.
	segmentJoinAdd
	segmentJoinMultiply
)

var segmentNames = []string{"segment_keys", "segment_add", "segment_multiply", "segment_join_add", "segment_join_multiply"}

// kind returns what is done with the elements.
func (g segmentStage) kind() indexKind {
	if g == segmentMultiply || g == segmentJoinMultiply {
		return indexMultiply
	}
	return indexAdd
}

// segmentPlan is a fold by sorted indexes.
type segmentPlan struct {
	indexPlan
	keySort
	// lines is the space of the lines along the addressed dimension, of length line each, for the written and the other array.
	lines   space
	n, line int
	along   int // the stride of the other array along the line
	alike   bool
	heads   uint64
	tails   uint64
}

// segments folds along dim. The lines share one sort where their indexes are alike.
func (p indexPlan) segments(is Issuer, shape []int, dim int) error {
	g := segmentPlan{indexPlan: p, line: shape[dim], along: p.ops[2].Stride[dim], alike: true}
	g.lines.count = 2
	keys := space{count: 1}
	keys.open(0, shape[dim])
	keys.stride[0][0] = p.ops[1].Stride[dim]
	for d := len(shape) - 1; d >= 0; d-- {
		if d == dim {
			continue
		}
		if !g.lines.open(g.lines.nd, shape[d]) || !keys.open(keys.nd, shape[d]) {
			return tooManyDims(indexNames[p.kind])
		}
		at := g.lines.nd - 1
		g.lines.stride[0][at], g.lines.stride[1][at] = p.ops[0].Stride[d], p.ops[2].Stride[d]
		keys.stride[0][at+1] = p.ops[1].Stride[d]
		g.alike = g.alike && (shape[d] == 1 || p.ops[1].Stride[d] == 0)
	}
	g.lines.merge()
	g.n = g.lines.numel()
	if g.n == 0 || g.line == 0 {
		return nil
	}
	if g.alike {
		keys.nd = 1
	}
	keys.merge()
	g.count, g.keySort.size, g.index = keys.numel(), p.size, 32
	far := max(keys.reach(), p.size, g.n*g.line, g.lines.reach()+max(abs(p.step)*p.size, abs(g.along)*g.line))
	if far > min(is.Index32(), lane32) {
		g.index = 64
	}
	if err := g.prepare(is); err != nil {
		return err
	}
	parts := ceilDiv(g.count, segmentPart)
	if parts > 1 {
		size := parts * g.width() * opmath(p.ops[0].DType).Size()
		size = ceilDiv(size, 512) * 512
		ws, err := is.Workspace(2 * size)
		if err != nil {
			return err
		}
		g.heads, g.tails = ws, ws+uint64(size)
	}
	if err := g.keysOf(is, &keys); err != nil {
		return err
	}
	if err := g.sort(is); err != nil {
		return err
	}
	stage, join := segmentAdd, segmentJoinAdd
	if p.kind == indexMultiply {
		stage, join = segmentMultiply, segmentJoinMultiply
	}
	if err := g.issue(is, stage, g.count); err != nil || parts < 2 {
		return err
	}
	return g.issue(is, join, parts-1)
}

// width is how many lines each key stands for.
func (g *segmentPlan) width() int {
	if g.alike {
		return g.n
	}
	return 1
}

func (g *segmentPlan) keysOf(is Issuer, sp *space) error {
	l := is.NewLaunch()
	s := &l.Spec
	dims := dimsClass(sp.nd)
	*s = Spec{Family: FamilySegment, Op: uint16(segmentKeys), Compute: indexType(g.index), Ins: 1, Class: uint8(dims), Index: uint8(g.index)}
	s.DTypes[0] = g.ops[1].DType
	if g.wrap {
		s.Attr[0] = 1
	}
	l.u64(g.ops[1].Ptr)
	l.u64(g.keys[0])
	l.u64(g.at[0])
	l.i64(g.count)
	l.i64(g.keySort.size)
	sp.pack(l, dims, 1, g.index, 1)
	l.Grid = [3]uint32{uint32(ceilDiv(g.count, indexThreads)), 1, 1}
	l.Block = [3]uint32{indexThreads, 1, 1}
	return is.Issue(l)
}

// issue launches a thread for each of items and each line that they stand for.
func (g *segmentPlan) issue(is Issuer, stage segmentStage, items int) error {
	l := is.NewLaunch()
	s := &l.Spec
	dims := dimsClass(g.lines.nd)
	*s = Spec{Family: FamilySegment, Op: uint16(stage), Compute: opmath(g.ops[0].DType), Outs: 1, Ins: 1, Class: uint8(dims), Index: uint8(g.index)}
	s.DTypes[0], s.DTypes[1] = g.ops[0].DType, g.ops[2].DType
	if g.alike {
		s.Attr[0] = 1
	}
	for _, p := range []uint64{g.ops[0].Ptr, g.ops[2].Ptr, g.keys[0], g.at[0], g.heads, g.tails} {
		l.u64(p)
	}
	for _, v := range []int{items * g.width(), g.count, g.width(), g.line, g.step, g.along} {
		l.i64(v)
	}
	g.lines.pack(l, dims, 1, g.index, 3)
	l.Grid = [3]uint32{uint32(ceilDiv(items*g.width(), indexThreads)), 1, 1}
	l.Block = [3]uint32{indexThreads, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilySegment, buildSegment)

func buildSegment(s *Spec) *kernel.Kernel {
	stage := segmentStage(s.Op)
	return kernel.Build(s.name(segmentNames[stage]), func(k *kernel.Builder) {
		k.FixedThreads(indexThreads)
		ix := indexType(int(s.Index))
		i := k.BlockIdx(kernel.X).MulWide(k.I32(indexThreads)).Add(k.ThreadIdx(kernel.X).Convert(dtype.Int64))
		if stage == segmentKeys {
			p := &indexKernel{k: k, s: s, ix: ix}
			p.ops[1] = array{k.BufferRO("index", s.DTypes[0]), s.DTypes[0]}
			keys, at, n := k.Buffer("keys", ix), k.Buffer("at", ix), k.Scalar("n", dtype.Int64)
			p.size = k.Scalar("size", dtype.Int64)
			st := striderParam(k, "dim", int(s.Class), 1, int(s.Index))
			k.If(i.Lt(n), func() {
				keys.Store(i, p.indexAt(st.locate(i.Convert(ix))[0]).Convert(ix))
				at.Store(i, i.Convert(ix))
			})
			return
		}
		g := &segmentKernel{k: k, s: s, ix: ix, kind: stage.kind()}
		g.written, g.other = arrayParam(k, "written", s.DTypes[0]), arrayParam(k, "other", s.DTypes[1])
		g.keys, g.at = k.BufferRO("keys", ix), k.BufferRO("at", ix)
		g.heads, g.tails = arrayParam(k, "heads", s.Compute), arrayParam(k, "tails", s.Compute)
		n := k.Scalar("n", dtype.Int64)
		for _, v := range []struct {
			to   *kernel.Value
			name string
		}{{&g.count, "count"}, {&g.width, "width"}, {&g.line, "line"}, {&g.step, "step"}, {&g.along, "along"}} {
			*v.to = k.Scalar(v.name, dtype.Int64).Convert(ix)
		}
		g.st = striderParam(k, "dim", int(s.Class), 2, int(s.Index))
		k.If(i.Lt(n), func() {
			item, line := i.Convert(ix), k.Int(ix, 0)
			if s.Attr[0] != 0 {
				q := item.Div(g.width)
				item, line = q, item.Sub(q.Mul(g.width))
			}
			if stage >= segmentJoinAdd {
				g.join(item.Add(g.lit(1)), line)
				return
			}
			g.fold(item, line)
		})
	})
}

// segmentKernel builds the kernels that fold. Places in the sorted order are of type ix.
type segmentKernel struct {
	k              *kernel.Builder
	s              *Spec
	ix             dtype.DType
	kind           indexKind
	written, other array
	keys, at       kernel.Buffer
	heads, tails   array
	count, width   kernel.Value
	line           kernel.Value
	step, along    kernel.Value
	st             *strider
}

func (g *segmentKernel) lit(v int) kernel.Value { return g.k.Int(g.ix, int64(v)) }

// lineAt returns the line of the element at place p where lines have indexes of their own.
func (g *segmentKernel) lineAt(p kernel.Value) kernel.Value { return g.at.Load(p).Div(g.line) }

// same reports whether the element at place p belongs to the run of a key and line.
func (g *segmentKernel) same(p, key, line kernel.Value) kernel.Value {
	is := g.keys.Load(p).Eq(key)
	if g.s.Attr[0] != 0 {
		return is
	}
	both := g.k.Var(is)
	g.k.If(is, func() { both.Set(g.lineAt(p).Eq(line)) })
	return both.Get()
}

// sameIf is same where cond holds, else false.
func (g *segmentKernel) sameIf(cond, p, key, line kernel.Value) kernel.Value {
	is := g.k.Var(g.k.Bool(false))
	g.k.If(cond, func() { is.Set(g.same(p, key, line)) })
	return is.Get()
}

// numVar declares a variable of the type that is computed in.
func (g *segmentKernel) numVar() (get func() Num, set func(Num)) {
	re := g.k.VarOf(g.s.Compute.Real())
	if !g.s.Compute.IsComplex() {
		return func() Num { return Num{Re: re.Get()} }, func(v Num) { re.Set(v.Re) }
	}
	im := g.k.VarOf(g.s.Compute.Real())
	return func() Num { return Num{re.Get(), im.Get()} }, func(v Num) {
		re.Set(v.Re)
		im.Set(v.Im)
	}
}

// fold folds the part that begins at place p, if one does.
func (g *segmentKernel) fold(p, line kernel.Value) {
	k := g.k
	key := g.keys.Load(p)
	own := g.lit(0) // the position of the line's first element
	if g.s.Attr[0] == 0 {
		line = g.lineAt(p)
		own = line.Mul(g.line)
	}
	zero, one := g.lit(0), g.lit(1)
	first := g.sameIf(p.Gt(zero), p.Sub(one), key, line).Not()
	cut := p.And(g.lit(segmentPart - 1)).Eq(zero)
	k.If(first.Or(cut), func() {
		off := g.st.locate(line)
		to := off[0].Add(key.Mul(g.step))
		get, set := g.numVar()
		item := func(q kernel.Value) Num {
			return g.other.load(off[1].Add(g.at.Load(q).Sub(own).Mul(g.along)), 1)[0].Convert(g.s.Compute)
		}
		k.IfElse(first, func() {
			set(g.kind.join(g.written.load(to, 1)[0].Convert(g.s.Compute), item(p)))
		}, func() { set(item(p)) })
		q, on := k.Var(p.Add(one)), k.Var(k.Bool(false))
		k.Loop(func() {
			on.Set(g.sameIf(q.Get().Lt(g.count), q.Get(), key, line))
			k.If(on.Get().Not().Or(q.Get().And(g.lit(segmentPart-1)).Eq(zero)), k.Break)
			set(g.kind.join(get(), item(q.Get())))
			q.Set(q.Get().Add(one))
		})
		slot := p.Div(g.lit(segmentPart)).Mul(g.width)
		if g.s.Attr[0] != 0 {
			slot = slot.Add(line)
		}
		k.IfElse(first.And(on.Get().Not()), func() { g.written.store(to, get()) }, func() {
			k.IfElse(cut, func() { g.heads.store(slot, get()) }, func() { g.tails.store(slot, get()) })
		})
	})
}

// join folds the parts of the run whose second part begins with block b of the sorted order, if there is one.
func (g *segmentKernel) join(b, line kernel.Value) {
	k := g.k
	part, zero, one := g.lit(segmentPart), g.lit(0), g.lit(1)
	p := b.Mul(part)
	key := g.keys.Load(p)
	column := line
	if g.s.Attr[0] == 0 {
		line = g.lineAt(p)
		column = zero
	}
	slot := func(b kernel.Value) kernel.Value { return b.Mul(g.width).Add(column) }
	k.If(g.same(p.Sub(one), key, line), func() {
		prev := p.Sub(part)
		whole := g.same(prev, key, line) // the block before belongs to the run as well
		earlier := g.sameIf(whole.And(prev.Gt(zero)), prev.Sub(one), key, line)
		k.If(earlier.Not(), func() {
			get, set := g.numVar()
			k.IfElse(whole, func() { set(g.heads.load(slot(b.Sub(one)), 1)[0]) }, func() { set(g.tails.load(slot(b.Sub(one)), 1)[0]) })
			c := k.Var(b)
			k.Loop(func() {
				set(g.kind.join(get(), g.heads.load(slot(c.Get()), 1)[0]))
				c.Set(c.Get().Add(one))
				next := c.Get().Mul(part)
				k.If(g.sameIf(next.Lt(g.count), next, key, line).Not(), k.Break)
			})
			off := g.st.locate(line)
			g.written.store(off[0].Add(key.Mul(g.step)), get())
		})
	})
}
