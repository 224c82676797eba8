package vexec

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// opExtract, which only this package's copy of a program has, is element Imm of every lane's bundle.
const opExtract kir.Op = 200

// optimize returns a copy of p in which equal operations are done once, and which wide values it has: value v holds wide[v] elements of
// every lane side by side, if that is more than 1. Both changes are exact.
func optimize(p *kir.Program) (q *kir.Program, wide []int) {
	c := *p
	c.Values = append([]kir.Type(nil), p.Values...)
	same := make([]kir.Value, len(p.Values))
	for i := range same {
		same[i] = kir.Value(i)
	}
	c.Body = shareBlock(p.Body, same, &scope{})
	b := newBundler(&c)
	b.block(c.Body)
	return &c, b.wide
}

// operation identifies what an instruction without effects computes.
type operation struct {
	op   kir.Op
	t    kir.Type
	sub  kir.Sub
	imm  uint64
	sym  int
	args [3]kir.Value
}

// scope knows the operations done in a region and those around it.
type scope struct {
	outer *scope
	done  map[operation]kir.Value
}

func (s *scope) find(o operation) (kir.Value, bool) {
	for ; s != nil; s = s.outer {
		if v, ok := s.done[o]; ok {
			return v, true
		}
	}
	return 0, false
}

// pure reports whether equal operands always give an equal result.
func pure(op kir.Op) bool {
	switch op {
	case kir.OpGet, kir.OpLoad, kir.OpClock, kir.OpShuffle, kir.OpVote:
		return false
	}
	return !hasEffect(op)
}

// shareBlock copies b without operations that same already has a value for, or an outer region does.
func shareBlock(b *kir.Block, same []kir.Value, outer *scope) *kir.Block {
	s := &scope{outer: outer, done: map[operation]kir.Value{}}
	c := &kir.Block{Params: append([]kir.Value(nil), b.Params...)}
	for _, in := range b.Instrs {
		n := *in
		n.Args = make([]kir.Value, len(in.Args))
		for i, v := range in.Args {
			n.Args[i] = v
			if v != kir.NoValue {
				n.Args[i] = same[v]
			}
		}
		n.Res = append([]kir.Value(nil), in.Res...)
		n.Blocks = make([]*kir.Block, len(in.Blocks))
		for i, r := range in.Blocks {
			n.Blocks[i] = shareBlock(r, same, s)
		}
		if pure(n.Op) && len(n.Res) == 1 && len(n.Args) <= 3 {
			o := operation{op: n.Op, t: n.Type, sub: n.Sub, imm: n.Imm, sym: n.Sym, args: [3]kir.Value{-1, -1, -1}}
			copy(o.args[:], n.Args)
			if v, ok := s.find(o); ok {
				same[n.Res[0]] = v
				continue
			}
			s.done[o] = n.Res[0]
		}
		c.Instrs = append(c.Instrs, &n)
	}
	return c
}

// bundler joins operations on the elements of vector accesses: where each of the W elements that a lane loads takes the same path, W
// operations on a lane's elements become one on W times the lanes.
type bundler struct {
	p    *kir.Program
	a    *analysis
	wide []int
	// of places every bundled value: its bundle and its element.
	of      map[kir.Value]element
	bundles []*bundle
	joined  map[bundleKey]*bundle
}

type element struct {
	b *bundle
	j int
}

// bundle is W values that become one wide value.
type bundle struct {
	vals []kir.Value
	// members define the values, one by one; nil for a vector load or a tile's visit, which define all.
	members []*kir.Instr
	// load is that vector load.
	load  *kir.Instr
	block *kir.Block
	// args are the operands: of bundles, or values common to all.
	args []bundleArg
	ok   bool
	// pos is the place of the last member in its block.
	pos int
	v   kir.Value // the wide value
	// needed: an operation or store takes the bundle as one.
	needed bool
}

type bundleArg struct {
	b *bundle
	v kir.Value
}

type bundleKey struct {
	block *kir.Block
	width int
	op    kir.Op
	t     kir.Type
	sub   kir.Sub
	imm   uint64
	args  [3]bundleArg
}

func newBundler(p *kir.Program) *bundler {
	b := &bundler{p: p, a: analyze(p, false, nil), wide: make([]int, len(p.Values)), of: map[kir.Value]element{}, joined: map[bundleKey]*bundle{}}
	return b
}

// seed makes a bundle of values that one instruction defines, if they differ between lanes.
func (b *bundler) seed(block *kir.Block, vals []kir.Value, load *kir.Instr, pos int) {
	if len(vals) < 2 || b.a.values[vals[0]].class == uniform {
		return
	}
	x := &bundle{vals: vals, load: load, block: block, ok: true, pos: pos}
	b.bundles = append(b.bundles, x)
	for j, v := range vals {
		b.of[v] = element{x, j}
	}
}

// block finds the bundles of a region and those nested in it, and rewrites it.
func (b *bundler) block(c *kir.Block) {
	for pos, in := range c.Instrs {
		switch {
		case in.Op == kir.OpLoad && in.Space == kir.Global && in.Width > 1:
			b.seed(c, in.Res, in, pos)
		case in.Op == kir.OpTileEach && in.Width > 1:
			b.seed(in.Blocks[0], in.Blocks[0].Params[2:], in, -1)
		case pure(in.Op) && len(in.Res) == 1 && len(in.Args) > 0:
			b.join(c, in, pos)
		}
		for _, r := range in.Blocks {
			b.block(r)
		}
	}
	if b.a.regions[c].parent == nil {
		b.settle()
		b.rewrite(c)
	}
}

// join adds in to the bundle of its like, if its operands are elements of one place of bundles and values common to all.
func (b *bundler) join(c *kir.Block, in *kir.Instr, pos int) {
	j, width := -1, 0
	k := bundleKey{block: c, op: in.Op, t: in.Type, sub: in.Sub, imm: in.Imm}
	for i, v := range in.Args {
		e, ok := b.of[v]
		if !ok {
			k.args[i] = bundleArg{v: v}
			continue
		}
		if j >= 0 && (e.j != j || len(e.b.vals) != width) {
			return
		}
		j, width = e.j, len(e.b.vals)
		k.args[i] = bundleArg{b: e.b}
	}
	if j < 0 {
		return
	}
	k.width = width
	x := b.joined[k]
	if x == nil {
		x = &bundle{vals: make([]kir.Value, width), members: make([]*kir.Instr, width), block: c, ok: true}
		for i := range x.vals {
			x.vals[i] = kir.NoValue
		}
		x.args = append(x.args, k.args[:len(in.Args)]...)
		b.joined[k] = x
		b.bundles = append(b.bundles, x)
	}
	if x.vals[j] != kir.NoValue {
		return
	}
	x.vals[j], x.members[j] = in.Res[0], in
	x.pos = max(x.pos, pos)
	b.of[in.Res[0]] = element{x, j}
}

// use is one use of a value: at place pos of the block, in the instruction.
type use struct {
	block *kir.Block
	pos   int
	in    *kir.Instr
}

// settle decides which bundles are made: those whose members are all there, whose operands' bundles are made, whose values are not needed
// before they are complete, and which something takes as a whole.
func (b *bundler) settle() {
	uses := map[kir.Value][]use{}
	b.eachInstr(b.p.Body, func(c *kir.Block, pos int, in *kir.Instr) {
		for _, v := range in.Args {
			if _, ok := b.of[v]; ok {
				uses[v] = append(uses[v], use{c, pos, in})
			}
		}
	})
	for changed := true; changed; {
		changed = false
		for _, x := range b.bundles {
			if x.ok && !b.sound(x, uses) {
				x.ok, changed = false, true
			}
		}
		if changed {
			continue
		}
		// Backwards, since only later bundles need earlier ones. What is dropped here runs one by one again, maybe too early for bundles
		// that were sound as long as it did not.
		for i := len(b.bundles) - 1; i >= 0; i-- {
			x := b.bundles[i]
			x.needed = x.ok && b.takenWhole(x, uses)
			if !x.needed && x.ok {
				x.ok, changed = false, true
			}
		}
	}
}

func (b *bundler) eachInstr(c *kir.Block, f func(c *kir.Block, pos int, in *kir.Instr)) {
	for pos, in := range c.Instrs {
		f(c, pos, in)
		for _, r := range in.Blocks {
			b.eachInstr(r, f)
		}
	}
}

// sound reports whether x can be made.
func (b *bundler) sound(x *bundle, uses map[kir.Value][]use) bool {
	for _, v := range x.vals {
		if v == kir.NoValue {
			return false
		}
	}
	for _, a := range x.args {
		if a.b != nil && !a.b.ok {
			return false
		}
	}
	for _, v := range x.vals {
		for _, u := range uses[v] {
			if u.block == x.block && u.pos <= x.pos && !b.isMember(u.in) {
				return false
			}
			if u.block != x.block && b.positionIn(x.block, u.block) <= x.pos {
				return false
			}
		}
	}
	return true
}

// isMember reports whether an instruction's own result is in a bundle that is made, so that it runs where the bundle does.
func (b *bundler) isMember(in *kir.Instr) bool {
	if len(in.Res) != 1 {
		return false
	}
	e, ok := b.of[in.Res[0]]
	return ok && e.b.ok && e.b.members != nil
}

// positionIn returns the place in block c of the instruction that holds the nested block r.
func (b *bundler) positionIn(c, r *kir.Block) int {
	for b.a.regions[r].parent != c {
		if r = b.a.regions[r].parent; r == nil {
			return -1
		}
	}
	for i, in := range c.Instrs {
		if in == b.a.regions[r].owner {
			return i
		}
	}
	return -1
}

// takenWhole reports whether a store of all of x's values in order, or a bundle that is needed, takes x.
func (b *bundler) takenWhole(x *bundle, uses map[kir.Value][]use) bool {
	for _, u := range uses[x.vals[0]] {
		if b.storesWhole(u.in, x) {
			return true
		}
		if len(u.in.Res) == 1 {
			if e, ok := b.of[u.in.Res[0]]; ok && e.b.needed {
				return true
			}
		}
	}
	return false
}

// storesWhole reports whether in is a store of x's values in order.
func (b *bundler) storesWhole(in *kir.Instr, x *bundle) bool {
	if in.Op != kir.OpStore || in.Space != kir.Global || in.Width != len(x.vals) {
		return false
	}
	for j, v := range in.Args[2:] {
		if v != x.vals[j] {
			return false
		}
	}
	return true
}

// rewrite puts the bundles that are made into the program.
func (b *bundler) rewrite(c *kir.Block) {
	extracted := map[kir.Value]bool{}
	b.eachInstr(b.p.Body, func(_ *kir.Block, _ int, in *kir.Instr) {
		for _, v := range in.Args {
			if e, ok := b.of[v]; ok && e.b.ok && !b.isMember(in) && !b.storesWhole(in, e.b) {
				extracted[v] = true
			}
		}
	})
	for _, x := range b.bundles {
		if x.ok {
			x.v = b.value(b.p.Values[x.vals[0]], len(x.vals))
		}
	}
	b.rewriteBlock(c, extracted)
}

func (b *bundler) value(t dtype.DType, width int) kir.Value {
	b.p.Values = append(b.p.Values, t)
	b.wide = append(b.wide, width)
	return kir.Value(len(b.p.Values) - 1)
}

func (b *bundler) rewriteBlock(c *kir.Block, extracted map[kir.Value]bool) {
	var out []*kir.Instr
	extract := func(x *bundle) {
		for j, v := range x.vals {
			if extracted[v] {
				out = append(out, &kir.Instr{Op: opExtract, Type: b.p.Values[v], Res: []kir.Value{v}, Args: []kir.Value{x.v}, Imm: uint64(j)})
			}
		}
	}
	if len(c.Params) > 2 {
		if e, ok := b.of[c.Params[2]]; ok && e.b.ok && e.j == 0 {
			c.Params = append(c.Params[:2:2], e.b.v)
			extract(e.b)
		}
	}
	for pos, in := range c.Instrs {
		for _, r := range in.Blocks {
			b.rewriteBlock(r, extracted)
		}
		switch {
		case in.Op == kir.OpStore && in.Width > 1:
			if e, ok := b.of[in.Args[len(in.Args)-1]]; ok && e.b.ok && b.storesWhole(in, e.b) {
				in.Args = append(in.Args[:2:2], e.b.v)
			}
		case in.Op == kir.OpLoad && in.Width > 1:
			if e, ok := b.of[in.Res[0]]; ok && e.b.ok {
				in.Res = []kir.Value{e.b.v}
				out = append(out, in)
				extract(e.b)
				continue
			}
		case b.isMember(in):
			if x := b.of[in.Res[0]].b; pos == x.pos {
				out = append(out, wideInstr(x))
				extract(x)
			}
			continue
		}
		out = append(out, in)
	}
	c.Instrs = out
}

// wideInstr returns the one operation that makes x.
func wideInstr(x *bundle) *kir.Instr {
	in := *x.members[0]
	in.Res = []kir.Value{x.v}
	in.Args = make([]kir.Value, len(x.args))
	for i, a := range x.args {
		in.Args[i] = a.v
		if a.b != nil {
			in.Args[i] = a.b.v
		}
	}
	return &in
}
