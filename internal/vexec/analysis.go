package vexec

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// class says how a value is represented. Classes only rise while the analysis iterates.
type class uint8

const (
	unused  class = iota
	uniform       // one scalar
	affine        // an affinity, and a register once lanes are needed
	span          // a range of lanes, and a register once lanes are needed
	varying       // a register
)

// value is what the compiler knows about an SSA value.
type value struct {
	t dtype.DType
	// wide is the number of elements of t per lane, size their total number of bytes.
	wide, size int
	class      class
	// hoist: depends only on the launch, so it is computed once per launch.
	hoist bool
	def   *kir.Instr
	uses  int
	// pos and last are the positions of the definition and of the last use.
	pos, last int
	// p is the index of the scalar or register in the pointer table; k indexes affinities or spans.
	p, k int32
	// dep says, in the region of a tile load, on which axes of the tile the value depends.
	dep uint8
}

// The axes of a tile load. Elements are adjacent along the inner one, and lanes run along it.
const (
	depInner = 1 << iota
	depOuter
	depBoth = depInner | depOuter
)

// variable is what the compiler knows about a variable.
type variable struct {
	class class
	wide  int
	// home is the innermost region that contains all its uses.
	home *kir.Block
	// p and k are those of value.
	p, k int32
	// sets are the positions of its OpSets.
	sets []int
}

// region is what the compiler knows about a block of instructions.
type region struct {
	parent *kir.Block
	owner  *kir.Instr // the instruction that contains it; nil for the body
	depth  int
}

// analysis classifies the values of a program for passes of one block (fused false) or of several.
type analysis struct {
	p       *kir.Program
	fused   bool
	values  []value
	vars    []variable
	regions map[*kir.Block]*region
	// diverges marks loops that only some lanes leave or continue, and ifs whose condition is not uniform.
	diverges map[*kir.Instr]bool
	changed  bool
	// load is the tile load whose region is being visited; nested says whether the visit is inside control flow in that region.
	load   *kir.Instr
	nested bool
}

// analyze classifies p's values; wide is the result of optimize, or nil.
func analyze(p *kir.Program, fused bool, wide *widths) *analysis {
	a := &analysis{p: p, fused: fused, values: make([]value, len(p.Values)), vars: make([]variable, len(p.Vars)),
		regions: map[*kir.Block]*region{}, diverges: map[*kir.Instr]bool{}}
	for i, t := range p.Values {
		w := 1
		if wide != nil {
			w = max(w, wide.values[i])
		}
		a.values[i].t, a.values[i].wide, a.values[i].size = t, w, w*t.Size()
	}
	for i := range p.Vars {
		if a.vars[i].wide = 1; wide != nil && wide.vars[i] > 1 {
			a.vars[i].wide, a.vars[i].class = wide.vars[i], varying
		}
	}
	a.outline(p.Body, nil, nil, 0)
	for a.changed = true; a.changed; {
		a.changed = false
		a.block(p.Body)
	}
	for i := range a.values {
		a.values[i].class = max(a.values[i].class, uniform) // values that only depend on variables that are never set
	}
	for i := range a.vars {
		a.vars[i].class = max(a.vars[i].class, uniform)
	}
	a.countUses(p.Body)
	return a
}

// outline records the tree of regions and the home of every variable.
func (a *analysis) outline(b, parent *kir.Block, owner *kir.Instr, depth int) {
	a.regions[b] = &region{parent, owner, depth}
	for _, in := range b.Instrs {
		for _, v := range in.Res {
			a.values[v].def = in
		}
		if in.Op == kir.OpGet || in.Op == kir.OpSet || in.Op == opGetElement || in.Op == opSetElement {
			v := &a.vars[in.Sym]
			if v.home == nil {
				v.home = b
			}
			x, y := v.home, b
			for x != y {
				if a.regions[x].depth >= a.regions[y].depth {
					x = a.regions[x].parent
				} else {
					y = a.regions[y].parent
				}
			}
			v.home = x
		}
		for _, c := range in.Blocks {
			a.outline(c, b, in, depth+1)
		}
	}
}

func (a *analysis) raise(v kir.Value, c class) {
	if c > a.values[v].class {
		a.values[v].class = c
		a.changed = true
	}
}

func (a *analysis) diverge(in *kir.Instr) {
	if !a.diverges[in] {
		a.diverges[in] = true
		a.changed = true
	}
}

// divergent reports whether lanes that are together in region home may be apart in region b inside it. If home is a loop's body, that loop
// counts too, because variables live on across iterations.
func (a *analysis) divergent(b, home *kir.Block) bool {
	for ; ; b = a.regions[b].parent {
		o := a.regions[b].owner
		if b == home {
			return o != nil && o.Op != kir.OpIf && a.diverges[o]
		}
		if a.diverges[o] {
			return true
		}
	}
}

func isLoop(in *kir.Instr) bool { return in.Op == kir.OpFor || in.Op == kir.OpLoop }

func (a *analysis) block(b *kir.Block) {
	for _, in := range b.Instrs {
		switch in.Op {
		case kir.OpIf:
			if a.values[in.Args[0]].class > uniform {
				a.diverge(in)
			}
		case kir.OpFor:
			a.counter(in)
		case kir.OpBreak, kir.OpContinue:
			for r := b; ; r = a.regions[r].parent {
				if o := a.regions[r].owner; isLoop(o) {
					if a.divergent(b, r) {
						a.diverge(o)
					}
					break
				}
			}
		case kir.OpTileLoad, kir.OpTileMap, kir.OpTileEach:
			a.tile(in)
			continue
		case kir.OpSet:
			// An integer that is set to formulas may be kept as a formula if all lanes set it; a variable that lanes set separately may
			// not.
			c := a.values[in.Args[0]].class
			switch {
			case c > affine:
				c = varying
			case c == affine || a.divergent(b, a.vars[in.Sym].home):
				c = varying
				if hasAffine(a.p.Vars[in.Sym]) {
					c = affine
				}
			}
			if v := &a.vars[in.Sym]; c > v.class {
				v.class = c
				a.changed = true
			}
		default:
			c := a.result(in)
			for _, v := range in.Res {
				a.raise(v, c)
			}
		}
		outer := a.nested
		a.nested = a.load != nil
		for _, c := range in.Blocks {
			a.block(c)
		}
		a.nested = outer
	}
}

// tile visits the region of a tile operation.
func (a *analysis) tile(in *kir.Instr) {
	a.diverge(in)
	params := in.Blocks[0].Params
	a.raise(params[0], affine)
	a.raise(params[1], affine)
	if in.Op == kir.OpTileLoad {
		inner, outer := loadAxes(in)
		a.values[inner].dep, a.values[outer].dep = depInner, depOuter
		a.load = in
	} else {
		for _, v := range params[2:] {
			a.raise(v, varying)
		}
	}
	a.block(in.Blocks[0])
	a.load = nil
}

// loadAxes returns a tile load's parameters: the coordinate along which elements are adjacent, and the other.
func loadAxes(in *kir.Instr) (inner, outer kir.Value) {
	p := in.Blocks[0].Params
	if in.Sub == kir.AlongRows {
		return p[0], p[1]
	}
	return p[1], p[0]
}

// dependence returns the axes of the tile that in's results depend on. They decide when in runs; control flow and variables count as both.
func (a *analysis) dependence(in *kir.Instr) uint8 {
	if a.load == nil {
		return 0
	}
	if a.nested || in.Op == kir.OpGet || in.Op == opGetElement {
		return depBoth
	}
	d := uint8(0)
	for _, v := range in.Args {
		d |= a.values[v].dep
	}
	return d
}

// counter classifies the counter of a for loop.
func (a *analysis) counter(in *kir.Instr) {
	start, end, step := a.values[in.Args[0]].class, a.values[in.Args[1]].class, a.values[in.Args[2]].class
	c := in.Blocks[0].Params[0]
	switch {
	case start <= uniform && step <= uniform:
		a.raise(c, uniform)
	case start <= affine && end <= affine && step <= uniform:
		a.raise(c, affine)
	default:
		a.raise(c, varying)
	}
	if start > uniform || end > uniform || step > uniform {
		a.diverge(in)
	}
}

// hasAffine reports whether values of type t may be affine.
func hasAffine(t dtype.DType) bool {
	return t == dtype.Int32 || t == dtype.Uint32 || t == dtype.Int64 || t == dtype.Uint64
}

// result returns the class of in's results.
func (a *analysis) result(in *kir.Instr) class {
	dep := a.dependence(in)
	for _, v := range in.Res {
		a.values[v].dep = dep
	}
	cls := func(i int) class { return a.values[in.Args[i]].class }
	top := unused
	for i := range in.Args {
		top = max(top, cls(i))
	}
	if len(in.Res) > 0 && a.values[in.Res[0]].wide > 1 {
		return varying
	}
	switch in.Op {
	case kir.OpSpecial:
		switch in.Sub {
		case kir.TidX, kir.TidY, kir.TidZ:
			return affine
		case kir.LaneID:
			return varying
		case kir.CtaIDX:
			if a.fused {
				return affine
			}
		}
		return uniform
	case kir.OpGet:
		return a.vars[in.Sym].class
	case kir.OpAtomic, opGetElement:
		return varying
	case kir.OpLoad:
		if in.Space == kir.Local {
			return varying
		}
	case kir.OpVote:
		if in.Sub == kir.VoteBallot {
			return varying
		}
	case kir.OpShuffle:
		top = cls(0)
	}
	if top <= uniform {
		return uniform
	}
	if top == affine {
		if c := a.affineResult(in, cls); c != varying {
			return c
		}
	}
	if in.Op == kir.OpAnd && in.Type == dtype.Bool && top == span {
		return span
	}
	return varying
}

// affineResult classifies an operation on uniform and affine operands, at least one of them affine.
func (a *analysis) affineResult(in *kir.Instr, cls func(int) class) class {
	switch in.Op {
	case kir.OpAdd, kir.OpSub, kir.OpNeg:
		if hasAffine(in.Type) {
			return affine
		}
	case kir.OpPtrAdd:
		return affine
	case kir.OpMul, kir.OpMulWide:
		if hasAffine(in.Type) && (cls(0) <= uniform || cls(1) <= uniform) {
			return affine
		}
	case kir.OpShl:
		if hasAffine(in.Type) && cls(1) <= uniform {
			return affine
		}
	case kir.OpCvt:
		if hasAffine(in.Type) && hasAffine(a.values[in.Args[0]].t) {
			return affine
		}
	case kir.OpLt, kir.OpLe, kir.OpGt, kir.OpGe, kir.OpEq:
		return span
	}
	return varying
}

// hasEffect reports whether in must run even if its results are not used. Unused loads are removed.
func hasEffect(op kir.Op) bool {
	switch op {
	case kir.OpSet, opSetElement, kir.OpStore, kir.OpAtomic, kir.OpBarrier, kir.OpFence, kir.OpAssert, kir.OpIf, kir.OpFor, kir.OpLoop,
		kir.OpBreak, kir.OpContinue, kir.OpReturn, kir.OpTileZero, kir.OpTileLoad, kir.OpTileDot,
		kir.OpTileMap, kir.OpTileRows, kir.OpTileCopy, kir.OpTileEach, kir.OpYield:
		return true
	}
	return false
}

// live reports whether in is needed.
func (a *analysis) live(in *kir.Instr) bool {
	if hasEffect(in.Op) {
		return true
	}
	for _, v := range in.Res {
		if a.values[v].uses > 0 {
			return true
		}
	}
	return false
}

// countUses counts uses, from the last instruction to the first, so that values used only by dead instructions have none.
func (a *analysis) countUses(b *kir.Block) {
	for i := len(b.Instrs) - 1; i >= 0; i-- {
		in := b.Instrs[i]
		for _, c := range in.Blocks {
			a.countUses(c)
		}
		if a.live(in) {
			for _, v := range in.Args {
				a.values[v].uses++
			}
		}
	}
}

// hoistable reports whether in is uniform or affine and gives the same result in every pass of a launch.
func (a *analysis) hoistable(in *kir.Instr) bool {
	if len(in.Res) != 1 || a.values[in.Res[0]].class > affine {
		return false
	}
	switch in.Op {
	case kir.OpConst, kir.OpParam:
		return true
	case kir.OpSpecial:
		return in.Sub <= kir.TidZ || in.Sub >= kir.NTidX && in.Sub <= kir.NTidZ || in.Sub >= kir.NCtaIDX && in.Sub <= kir.NCtaIDZ
	case kir.OpGet, opGetElement, kir.OpLoad, kir.OpClock, kir.OpAtomic, kir.OpShuffle, kir.OpVote:
		return false
	}
	for _, v := range in.Args {
		if !a.values[v].hoist {
			return false
		}
	}
	return !hasEffect(in.Op)
}

// fusable reports whether several blocks of p can share a pass: the threads of a block must not communicate.
func fusable(p *kir.Program) bool {
	return len(p.Shared) == 0 && len(p.Tiles) == 0 && !contains(p.Body, kir.OpBarrier, kir.OpShuffle, kir.OpVote)
}

// contains reports whether b or a region in it contains one of the operations.
func contains(b *kir.Block, ops ...kir.Op) bool {
	for _, in := range b.Instrs {
		for _, op := range ops {
			if in.Op == op {
				return true
			}
		}
		for _, c := range in.Blocks {
			if contains(c, ops...) {
				return true
			}
		}
	}
	return false
}
