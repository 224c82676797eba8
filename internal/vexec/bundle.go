package vexec

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// bundler merges operations on the elements of vector accesses. If each of the W elements that a lane loads goes through the same
// operations, W operations on a lane's elements become one operation on W times the lanes. Variables that hold one element each, such as
// the partial sums of a reduction, become one wide variable.
type bundler struct {
	p *kir.Program
	a *analysis
	w widths
	// of maps every bundled value to its bundle and element. member maps an instruction to the bundle that it is a member of.
	of      map[kir.Value]element
	member  map[*kir.Instr]*bundle
	bundles []*bundle
	joined  map[bundleKey]*bundle
	// tuple maps every variable that may be an element of a wide one.
	tuple  map[int]*tuple
	tuples []*tuple
	// turn counts the reads and writes of a variable in a block so far.
	turn map[turnKey]int
}

type element struct {
	b *bundle
	j int
}

// bundle is W values that become one wide value, or W writes of variables that become one write.
type bundle struct {
	// vals are the values; writes have none. members define them one by one; a vector load or a tile's visit has no members, as it defines
	// all of the values.
	vals    []kir.Value
	members []*kir.Instr
	block   *kir.Block
	// args are the operands: bundles, or values common to all members. vars is set for reads and writes of variables.
	args []bundleArg
	vars *tuple
	ok   bool
	// at are the positions of the members in their block. pos is the last one, where the bundle runs.
	at  []int
	pos int
	v   kir.Value // the wide value
}

type bundleArg struct {
	b *bundle
	v kir.Value
}

// tuple is a set of variables that may become one wide variable.
type tuple struct {
	vars []int
	wide int // the number of the wide variable
	used bool
}

type bundleKey struct {
	block *kir.Block
	width int
	op    kir.Op
	t     kir.Type
	sub   kir.Sub
	imm   uint64
	vars  *tuple
	turn  int
	args  [3]bundleArg
}

type turnKey struct {
	block *kir.Block
	sym   int
	op    kir.Op
}

// bundleElements rewrites p.
func bundleElements(p *kir.Program) *widths {
	b := &bundler{p: p, a: analyze(p, false, nil), w: widths{make([]int, len(p.Values)), make([]int, len(p.Vars))},
		of:     map[kir.Value]element{},
		member: map[*kir.Instr]*bundle{}, joined: map[bundleKey]*bundle{}, tuple: map[int]*tuple{}, turn: map[turnKey]int{}}
	b.seeds(p.Body)
	if len(b.bundles) == 0 {
		return &b.w
	}
	b.findTuples()
	b.joinBlock(p.Body)
	b.settle()
	b.rewrite()
	return &b.w
}

// seeds finds the bundles made by vector loads and tile visits whose values differ between lanes.
func (b *bundler) seeds(c *kir.Block) {
	for pos, in := range c.Instrs {
		switch {
		case in.Op == kir.OpLoad && in.Space == kir.Global && in.Width > 1:
			b.seed(c, in.Res, pos)
		case in.Op == kir.OpTileEach && in.Width > 1:
			b.seed(in.Blocks[0], in.Blocks[0].Params[2:], -1)
		}
		for _, r := range in.Blocks {
			b.seeds(r)
		}
	}
}

func (b *bundler) seed(block *kir.Block, vals []kir.Value, pos int) {
	if b.a.values[vals[0]].class == uniform {
		return
	}
	x := &bundle{vals: vals, block: block, ok: true, pos: pos}
	b.bundles = append(b.bundles, x)
	for j, v := range vals {
		b.of[v] = element{x, j}
	}
}

// label says that a value or variable depends on element j of W and on no other. The zero label means that nothing is known.
type label struct{ width, j int }

var mixed = label{-1, -1}

func meet(a, b label) label {
	switch {
	case a == b || b == label{}:
		return a
	case a == label{}:
		return b
	}
	return mixed
}

// labels are what is known about values and variables.
type labels struct{ values, vars []label }

// forward labels the values computed from labelled ones. It returns the variables in the order of their reads and writes.
func (b *bundler) forward(known *labels) (order []int) {
	values, vars := known.values, known.vars
	for changed := true; changed; {
		changed = false
		order = order[:0]
		b.eachInstr(b.p.Body, func(_ *kir.Block, _ int, in *kir.Instr) {
			var l label
			for _, v := range in.Args {
				l = meet(l, values[v])
			}
			switch in.Op {
			case kir.OpSet:
				if n := meet(vars[in.Sym], l); n != vars[in.Sym] {
					vars[in.Sym], changed = n, true
				}
			case kir.OpGet:
				l = vars[in.Sym]
			}
			if in.Op == kir.OpSet || in.Op == kir.OpGet {
				order = append(order, in.Sym)
			}
			for _, v := range in.Res {
				if v < 0 || in.Op == kir.OpLoad && in.Width > 1 {
					continue
				}
				if n := meet(values[v], l); n != values[v] {
					values[v], changed = n, true
				}
			}
		})
	}
	return order
}

// backward labels variables that serve only one element, such as the count of a running mean, based on the operations that use them. It
// reports whether it labelled any.
func (b *bundler) backward(known *labels) (found bool) {
	back := labels{make([]label, len(known.values)), make([]label, len(known.vars))}
	var instrs []*kir.Instr
	b.eachInstr(b.p.Body, func(_ *kir.Block, _ int, in *kir.Instr) { instrs = append(instrs, in) })
	pick := func(known, back label) label {
		if known != (label{}) {
			return known
		}
		return back
	}
	for changed := true; changed; {
		changed = false
		for _, in := range slices.Backward(instrs) {
			var l label
			switch {
			case in.Op == kir.OpSet:
				l = pick(known.vars[in.Sym], back.vars[in.Sym])
			case len(in.Res) == 1:
				l = pick(known.values[in.Res[0]], back.values[in.Res[0]])
			}
			if l == (label{}) {
				continue
			}
			for _, v := range in.Args {
				if n := meet(back.values[v], l); n != back.values[v] {
					back.values[v], changed = n, true
				}
			}
			if in.Op == kir.OpGet {
				if n := meet(back.vars[in.Sym], l); n != back.vars[in.Sym] {
					back.vars[in.Sym], changed = n, true
				}
			}
		}
	}
	for s, l := range back.vars {
		if known.vars[s] == (label{}) && l.width > 0 {
			known.vars[s], found = l, true
		}
	}
	return found
}

// findTuples guesses which variables belong together: those that depend on one element each, in the order in which they are used. A wrong
// guess only costs time.
func (b *bundler) findTuples() {
	known := &labels{make([]label, len(b.p.Values)), make([]label, len(b.p.Vars))}
	vars := known.vars
	//tenon:unordered each value has its own label
	for v, e := range b.of {
		known.values[v] = label{len(e.b.vals), e.j}
	}
	order := b.forward(known)
	for b.backward(known) {
		order = b.forward(known)
	}
	lists := map[label][]int{}
	seen := map[int]bool{}
	for _, s := range order {
		if l := vars[s]; l.width > 0 && !seen[s] {
			seen[s] = true
			lists[l] = append(lists[l], s)
		}
	}
	for width := 2; width <= 16; width *= 2 {
		for k, first := range lists[label{width, 0}] {
			t := &tuple{vars: []int{first}}
			for j := 1; j < width; j++ {
				if l := lists[label{width, j}]; k < len(l) && b.p.Vars[l[k]] == b.p.Vars[first] {
					t.vars = append(t.vars, l[k])
				}
			}
			if len(t.vars) == width {
				b.tuples = append(b.tuples, t)
				for _, s := range t.vars {
					b.tuple[s] = t
				}
			}
		}
	}
}

// joinBlock puts every instruction in a bundle with similar ones.
func (b *bundler) joinBlock(c *kir.Block) {
	for pos, in := range c.Instrs {
		switch {
		case in.Op == kir.OpGet || in.Op == kir.OpSet:
			if b.tuple[in.Sym] != nil {
				b.join(c, in, pos)
			}
		case pure(in.Op) && len(in.Res) == 1 && len(in.Args) > 0:
			b.join(c, in, pos)
		}
		for _, r := range in.Blocks {
			b.joinBlock(r)
		}
	}
}

// join adds in to the bundle of similar instructions if each operand is either an element of a bundle, with one index for all of them, or a
// value common to all members.
func (b *bundler) join(c *kir.Block, in *kir.Instr, pos int) {
	j, width := -1, 0
	k := bundleKey{block: c, op: in.Op, t: in.Type, sub: in.Sub, imm: in.Imm}
	if in.Op == kir.OpGet || in.Op == kir.OpSet {
		k.vars = b.tuple[in.Sym]
		j, width = slices.Index(k.vars.vars, in.Sym), len(k.vars.vars)
		tk := turnKey{c, in.Sym, in.Op}
		k.turn = b.turn[tk]
		b.turn[tk]++
	}
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
		x = &bundle{members: make([]*kir.Instr, width), at: make([]int, width), block: c, vars: k.vars, ok: true}
		if len(in.Res) > 0 {
			x.vals = make([]kir.Value, width)
		}
		x.args = append(x.args, k.args[:len(in.Args)]...)
		b.joined[k] = x
		b.bundles = append(b.bundles, x)
	}
	if x.members[j] != nil {
		return
	}
	x.members[j], x.at[j] = in, pos
	x.pos = max(x.pos, pos)
	b.member[in] = x
	if len(in.Res) > 0 {
		x.vals[j] = in.Res[0]
		b.of[in.Res[0]] = element{x, j}
	}
}

// use is one use of a value, or one read or write of a variable, at position pos of the block.
type use struct {
	block *kir.Block
	pos   int
	in    *kir.Instr
}

// settle decides which bundles are formed: those whose members all exist, whose operands' bundles are formed, that can run at the position
// of their last member, and whose result is used as a whole.
func (b *bundler) settle() {
	uses, touches := map[kir.Value][]use{}, map[int][]use{}
	b.eachInstr(b.p.Body, func(c *kir.Block, pos int, in *kir.Instr) {
		for _, v := range in.Args {
			if _, ok := b.of[v]; ok {
				uses[v] = append(uses[v], use{c, pos, in})
			}
		}
		if in.Op == kir.OpGet || in.Op == kir.OpSet {
			touches[in.Sym] = append(touches[in.Sym], use{c, pos, in})
		}
	})
	b.soundness(uses, touches)
	b.profit(uses)
	b.soundness(uses, touches)
}

func (b *bundler) soundness(uses map[kir.Value][]use, touches map[int][]use) {
	for changed := true; changed; {
		changed = false
		for _, x := range b.bundles {
			if x.ok && !(b.sound(x, uses) && b.ordered(x, touches)) {
				x.ok, changed = false, true
			}
		}
	}
}

// profit drops bundles that nothing uses as a whole. It goes backwards, because only later bundles need earlier ones. Reads of variables
// are the exception: they are kept if the bundles that use them are.
func (b *bundler) profit(uses map[kir.Value][]use) {
	needed := map[*bundle]bool{}
	for changed := true; changed; {
		changed = false
		for i := len(b.bundles) - 1; i >= 0; i-- {
			x := b.bundles[i]
			if !x.ok || needed[x] || !b.takenWhole(x, uses, needed) {
				continue
			}
			needed[x], changed = true, true
			if x.vars != nil {
				x.vars.used = true
			}
		}
	}
	for _, x := range b.bundles {
		x.ok = needed[x] || x.ok && x.vars != nil && x.vars.used
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

// sound reports whether x is complete and its values are not used before it runs.
func (b *bundler) sound(x *bundle, uses map[kir.Value][]use) bool {
	if slices.Contains(x.members, nil) {
		return false
	}
	for _, a := range x.args {
		if a.b != nil && !a.b.ok {
			return false
		}
	}
	for _, v := range x.vals {
		for _, u := range uses[v] {
			if u.block == x.block && u.pos <= x.pos && !b.runsLater(u.in) {
				return false
			}
			if u.block != x.block && b.positionIn(x.block, u.block) <= x.pos {
				return false
			}
		}
	}
	return true
}

// runsLater reports whether an instruction belongs to a bundle that is formed, so that it runs after those of its operands.
func (b *bundler) runsLater(in *kir.Instr) bool {
	x := b.member[in]
	return x != nil && x.ok
}

// ordered reports whether reads and writes of variables stay in order if all members of x run at the position of the last one.
func (b *bundler) ordered(x *bundle, touches map[int][]use) bool {
	if x.vars == nil {
		return true
	}
	for j, in := range x.members {
		for _, u := range touches[in.Sym] {
			if u.in == in || u.in.Op == kir.OpGet && in.Op == kir.OpGet {
				continue
			}
			pos, final := u.pos, u.pos
			switch {
			case u.block != x.block:
				if pos = b.positionIn(x.block, u.block); pos < 0 {
					continue // not inside x's block
				}
				final = pos
			case b.runsLater(u.in):
				final = b.member[u.in].pos
			}
			if (pos < x.at[j]) != (final < x.pos) {
				return false
			}
		}
	}
	return true
}

// positionIn returns the position in block c of the instruction that contains the nested block r, or -1.
func (b *bundler) positionIn(c, r *kir.Block) int {
	for b.a.regions[r].parent != c {
		if r = b.a.regions[r].parent; r == nil {
			return -1
		}
	}
	return slices.Index(c.Instrs, b.a.regions[r].owner)
}

// takenWhole reports whether x is a write of a bundle, or all of its values are stored in order or used by a needed bundle.
func (b *bundler) takenWhole(x *bundle, uses map[kir.Value][]use, needed map[*bundle]bool) bool {
	if len(x.vals) == 0 {
		return x.args[0].b != nil
	}
	for _, u := range uses[x.vals[0]] {
		if y := b.member[u.in]; b.storesWhole(u.in, x) || y != nil && needed[y] {
			return true
		}
	}
	return false
}

// storesWhole reports whether in is a store of x's values in order.
func (b *bundler) storesWhole(in *kir.Instr, x *bundle) bool {
	return in.Op == kir.OpStore && in.Space == kir.Global && in.Width > 1 && slices.Equal(in.Args[2:], x.vals)
}

// rewrite puts the bundles that are formed into the program.
func (b *bundler) rewrite() {
	extracted := map[kir.Value]bool{}
	b.eachInstr(b.p.Body, func(_ *kir.Block, _ int, in *kir.Instr) {
		for _, v := range in.Args {
			if e, ok := b.of[v]; ok && e.b.ok && !b.runsLater(in) && !b.storesWhole(in, e.b) {
				extracted[v] = true
			}
		}
	})
	for _, x := range b.bundles {
		if x.ok && len(x.vals) > 0 {
			x.v = b.value(b.p.Values[x.vals[0]], len(x.vals))
		}
	}
	for _, t := range b.tuples {
		if t.used {
			t.wide = len(b.p.Vars)
			b.p.Vars = append(b.p.Vars, b.p.Vars[t.vars[0]])
			b.w.vars = append(b.w.vars, len(t.vars))
		}
	}
	b.rewriteBlock(b.p.Body, extracted)
}

func (b *bundler) value(t dtype.DType, width int) kir.Value {
	b.p.Values = append(b.p.Values, t)
	b.w.values = append(b.w.values, width)
	return kir.Value(len(b.p.Values) - 1)
}

func (b *bundler) rewriteBlock(c *kir.Block, extracted map[kir.Value]bool) {
	var out []*kir.Instr
	extract := func(x *bundle) {
		for j, v := range x.vals {
			if extracted[v] {
				out = append(out, &kir.Instr{Op: opExtract, Type: b.p.Values[v], Res: []kir.Value{v},
					Args: []kir.Value{x.v}, Imm: uint64(j)})
			}
		}
	}
	if len(c.Params) > 2 {
		if e, ok := b.of[c.Params[2]]; ok && e.b.ok {
			c.Params = append(c.Params[:2:2], e.b.v)
			extract(e.b)
		}
	}
	for pos, in := range c.Instrs {
		for _, r := range in.Blocks {
			b.rewriteBlock(r, extracted)
		}
		switch {
		case b.runsLater(in):
			if x := b.member[in]; pos == x.pos {
				out = append(out, b.wideInstr(x))
				extract(x)
			}
			continue
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
		case in.Op == kir.OpGet || in.Op == kir.OpSet:
			if t := b.tuple[in.Sym]; t != nil && t.used {
				in.Imm, in.Sym = uint64(slices.Index(t.vars, in.Sym)), t.wide
				in.Op = map[kir.Op]kir.Op{kir.OpGet: opGetElement, kir.OpSet: opSetElement}[in.Op]
			}
		}
		out = append(out, in)
	}
	c.Instrs = out
}

// wideInstr returns the single operation that computes x.
func (b *bundler) wideInstr(x *bundle) *kir.Instr {
	in := *x.members[0]
	if len(x.vals) > 0 {
		in.Res = []kir.Value{x.v}
	}
	if x.vars != nil {
		in.Sym = x.vars.wide
	}
	in.Args = make([]kir.Value, len(x.args))
	for i, a := range x.args {
		in.Args[i] = a.v
		if a.b != nil {
			in.Args[i] = a.b.v
		}
	}
	return &in
}
