package kir

import (
	"fmt"
	"slices"

	"tenon.dev/fault"
)

// MaxThreads is the maximum number of threads per block, on every device.
const MaxThreads = 1024

// MaxShared is the maximum size in bytes of a program's shared arrays, on every device. What the launch brings does not count.
const MaxShared = 48 << 10

// maxParamBytes is the size of the packed arguments in bytes that every supported driver accepts.
const maxParamBytes = 4096

// Verify checks p against the rules that each [Op] states: operand counts and types, structure, that every value is defined once and used
// in scope, that every variable is set before it is read on every path, that all threads of the block reach collective operations, and what
// tile regions may do. The error is a *fault.Error of kind Invalid with the source line or, if none is known, with the instruction's text
// at its end. It calls operations by the names that programs use. ptx and vexec can rely on all of this for a program that Verify accepts.
func Verify(p *Program) error {
	v := &verifier{p: p, defined: make([]bool, len(p.Values)), live: make([]bool, len(p.Values)), region: make([]*Block, len(p.Vars)),
		outside: make([]bool, len(p.Vars)), maps: map[uint64]MapTile{}}
	v.declarations()
	if v.err != nil {
		return v.err
	}
	if p.Body == nil {
		v.fail(nil, "the kernel has no body")
		return v.err
	}
	if len(p.Body.Params) != 0 {
		v.fail(nil, "the body has region parameters")
		return v.err
	}
	v.block(p.Body, newVarSet(len(p.Vars)), context{})
	if v.err == nil {
		v.tileVariables()
	}
	if v.err == nil {
		f := flowVerifier{v: v, a: Analyze(p)}
		f.block(p.Body)
	}
	if v.err == nil {
		v.readOnly()
	}
	if v.err == nil {
		v.wait()
	}
	return v.err
}

// verifier checks one program. The first error wins.
type verifier struct {
	p   *Program
	err error
	// defined says that a value has a definition, live that it is in scope now.
	defined, live []bool
	// maps holds the shape of the tiles that each tensor map parameter loads.
	maps map[uint64]MapTile
	// region is the tile region that accesses a variable; outside says that code outside that region also accesses it; setIn are the
	// instructions that set a variable in a region.
	region  []*Block
	outside []bool
	setIn   []*Instr
}

// context is the surroundings of an instruction.
type context struct {
	loop *loopState
	// tile is the enclosing OpTileLoad or OpTileEach.
	tile *Instr
}

// loopState collects the variables defined at the breaks of a loop.
type loopState struct{ breaks varSet }

func (v *verifier) fail(in *Instr, format string, args ...any) {
	if v.err != nil {
		return
	}
	e := fault.New(fault.Invalid, "kernel %s: %s", v.p.Name, fmt.Sprintf(format, args...))
	switch {
	case in == nil:
	case in.Loc > 0 && in.Loc < len(v.p.Locs):
		e.File, e.Line = v.p.Locs[in.Loc].File, v.p.Locs[in.Loc].Line
	default:
		e.Msg += ": " + v.p.Format(in)
	}
	v.err = e
}

func (v *verifier) declarations() {
	p := v.p
	if !isIdent(p.Name) {
		v.fail(nil, "the name %q may hold only letters, digits and underscores", p.Name)
	}
	if p.Threads < 1 || p.Threads > MaxThreads {
		v.fail(nil, "blocks of %d threads do not exist; want 1 to %d", p.Threads, MaxThreads)
	}
	for i := range p.Params {
		v.param(i)
	}
	if v.err == nil {
		if _, size := p.ArgLayout(); size > maxParamBytes {
			v.fail(nil, "the parameters take %d bytes; the limit is %d", size, maxParamBytes)
		}
	}
	shared := 0. // of any size
	for _, a := range p.Shared {
		v.declared("shared array", a.Name, a.Type, a.Count >= -1 && a.Count != 0)
		shared += float64(max(a.Count, 0)) * float64(a.Type.Size())
	}
	if shared > MaxShared {
		v.fail(nil, "its shared arrays take %.0f bytes, and a block may have %d; make them smaller, or declare one with -1 elements, "+
			"whose size the launch gives", shared, MaxShared)
	}
	for _, a := range p.Local {
		v.declared("local array", a.Name, a.Type, a.Count > 0)
	}
	for _, t := range p.Tables {
		v.declared("table", t.Name, t.Type, len(t.Data) > 0 && v.sized(t.Type) && len(t.Data)%t.Type.Size() == 0)
	}
	if n := p.Threads; len(p.Tiles) > 0 && (n < 32 || n&(n-1) != 0) {
		v.fail(nil, "blocks of %d threads cannot share tiles; give a power of two from 32 to %d", n, MaxThreads)
	}
	for _, t := range p.Tiles {
		v.declared("tile", t.Name, t.Type, t.Rows > 0 && t.Cols > 0)
		if n := t.InParts(); n > 1 && v.p.Threads%(32*n) != 0 {
			v.fail(nil, "tile %s is summed in %d parts, which do not divide the block's %d threads into groups of a multiple of 32", t.Name,
				t.Parts, v.p.Threads)
		}
	}
	for i, t := range p.Vars {
		v.declared("variable", fmt.Sprint(i), t, true)
	}
	for _, l := range p.Locs {
		if l.Line < 0 {
			v.fail(nil, "%s has the line %d", l.File, l.Line)
		}
	}
}

func (v *verifier) sized(t Type) bool { return t.Valid() && allTypes.has(t) }

func (v *verifier) declared(kind, name string, t Type, sound bool) {
	switch {
	case !v.sized(t):
		v.fail(nil, "%s %q has the type %v, which kernels do not have", kind, name, t)
	case !sound:
		v.fail(nil, "%s %q has no elements or part of one", kind, name)
	}
}

func (v *verifier) param(i int) {
	a := &v.p.Params[i]
	if !isIdent(a.Name) {
		v.fail(nil, "the parameter name %q may hold only letters, digits and underscores", a.Name)
	}
	for _, b := range v.p.Params[:i] {
		if a.Name == b.Name {
			v.fail(nil, "two parameters have the name %q", a.Name)
		}
	}
	v.declared("parameter", a.Name, a.Type, a.Kind != ParamArray || a.Count > 0 && a.Count <= maxParamBytes)
	if a.Kind > ParamArray {
		v.fail(nil, "parameter %q has no kind", a.Name)
	}
	if a.Plain && !a.IsMap() {
		v.fail(nil, "parameter %q is plain, which tensor maps alone can be", a.Name)
	}
	if a.Align < 0 || a.Align&(a.Align-1) != 0 {
		v.fail(nil, "parameter %q has the alignment %d, which is not a power of two", a.Name, a.Align)
	}
}

// varSet is the set of variables that are set on all paths to a point; all stands for every variable, at unreachable points.
type varSet struct {
	words []uint64
	all   bool
}

func newVarSet(n int) varSet { return varSet{words: make([]uint64, (n+63)/64)} }

func (s varSet) has(i int) bool { return s.all || s.words[i/64]>>(i%64)&1 != 0 }
func (s varSet) clone() varSet  { return varSet{append([]uint64(nil), s.words...), s.all} }

func (s varSet) meet(o varSet) varSet {
	switch {
	case s.all:
		return o
	case o.all:
		return s
	}
	r := s.clone()
	for i := range r.words {
		r.words[i] &= o.words[i]
	}
	return r
}

// block checks b and returns the variables that are set at its end. It may change vars.
func (v *verifier) block(b *Block, vars varSet, c context) varSet {
	for _, x := range b.Params {
		v.define(nil, x)
	}
	for i, in := range b.Instrs {
		if v.err != nil {
			return vars
		}
		if in == nil || in.Op <= OpInvalid || in.Op >= opCount {
			v.fail(nil, "an instruction has no operation")
			return vars
		}
		switch in.Op {
		case OpBreak, OpContinue, OpReturn, OpYield:
			if i+1 < len(b.Instrs) {
				v.fail(b.Instrs[i+1], "an operation follows a %s, and is never reached; remove it", in.word())
				return vars
			}
		}
		vars = v.instr(in, vars, c)
	}
	if v.err != nil {
		return vars
	}
	for _, in := range b.Instrs {
		for _, x := range in.Res {
			v.live[x] = false
		}
	}
	for _, x := range b.Params {
		v.live[x] = false
	}
	return vars
}

func (v *verifier) define(in *Instr, x Value) {
	switch {
	case x < 0 || int(x) >= len(v.p.Values):
		v.fail(in, "a result is not a value of the program")
	case v.defined[x]:
		v.fail(in, "a value is defined twice")
	default:
		v.defined[x], v.live[x] = true, true
	}
}

func (v *verifier) instr(in *Instr, vars varSet, c context) varSet {
	if !v.shape(in) || !v.operands(in) {
		return vars
	}
	v.types(in)
	if v.err != nil {
		return vars
	}
	if c.tile != nil {
		v.inRegion(in, c)
	}
	switch in.Op {
	case OpGet:
		if !vars.has(in.Sym) {
			v.fail(in, "a variable is read where it may not have been set; begin with a value, k.Var, or set it on every way there")
		}
		v.access(in, c)
	case OpSet:
		v.access(in, c)
		if !vars.all {
			vars.words[in.Sym/64] |= 1 << (in.Sym % 64)
		}
	}
	v.results(in)
	switch in.Op {
	case OpIf:
		then := v.block(in.Blocks[0], vars.clone(), c)
		return then.meet(v.block(in.Blocks[1], vars, c))
	case OpFor:
		c.loop = &loopState{}
		v.block(in.Blocks[0], vars.clone(), c)
	case OpLoop:
		l := &loopState{breaks: varSet{all: true}}
		c.loop = l
		v.block(in.Blocks[0], vars, c)
		return l.breaks
	case OpTileLoad, OpTileMap, OpTileEach:
		v.tileRegion(in, vars.clone(), c)
	case OpBreak, OpContinue:
		if c.loop == nil {
			v.fail(in, "%s stands outside a loop; call it in the function of a For or Loop", in.word())
			return vars
		}
		if in.Op == OpBreak {
			c.loop.breaks = c.loop.breaks.meet(vars)
		}
		return varSet{all: true}
	case OpReturn:
		return varSet{all: true}
	case OpYield:
		switch {
		case c.tile == nil || c.tile.Op == OpTileEach:
			v.fail(in, "a yield stands outside the region of a tile load or a tile map")
		case c.tile.Op == OpTileMap && (len(in.Args) != 1 || v.typeOf(in.Args[0]) != c.tile.Type):
			v.fail(in, "the region of a tile map yields one %v", c.tile.Type)
		case c.tile.Op == OpTileLoad && len(in.Args) != yieldPlace:
			v.fail(in, "the region of a tile load yields a base, an index and whether it is inside")
		}
	}
	return vars
}

// results defines the results after the operands have been checked.
func (v *verifier) results(in *Instr) {
	t := v.p.resultType(in)
	for _, x := range in.Res {
		v.define(in, x)
		if v.err == nil && v.p.Values[x] != t {
			v.fail(in, "a result is declared %v but is %v", v.p.Values[x], t)
		}
	}
}

// readOnly checks that no buffer declared read-only is written.
func (v *verifier) readOnly() {
	if slices.ContainsFunc(v.p.Params, func(p Param) bool { return p.ReadOnly }) {
		findOrigins(v.p).stores(v.p.Body, func(in *Instr, i int) {
			if v.p.Params[i].ReadOnly {
				v.fail(in, "the buffer %q is declared read-only, but written; declare it with Buffer", v.p.Params[i].Name)
			}
		})
	}
}

// access records who uses a variable, for the rule that a variable that a tile region sets is used nowhere else.
func (v *verifier) access(in *Instr, c context) {
	if c.tile == nil {
		v.outside[in.Sym] = true
		return
	}
	b := c.tile.Blocks[0]
	if v.region[in.Sym] != nil && v.region[in.Sym] != b {
		v.outside[in.Sym] = true
	}
	v.region[in.Sym] = b
	if in.Op == OpSet {
		v.setIn = append(v.setIn, in)
	}
}

func (v *verifier) tileVariables() {
	for _, in := range v.setIn {
		if v.outside[in.Sym] {
			v.fail(in, "a variable that the function of a tile operation sets is used outside; carry the value out in a tile or a buffer")
		}
	}
}

// Waits returns the index in p's body of its OpWait, or -1.
func (p *Program) Waits() int {
	return slices.IndexFunc(p.Body.Instrs, func(in *Instr) bool { return in.Op == OpWait })
}

// wait checks that there is at most one OpWait, in the body, and what comes before it.
func (v *verifier) wait() {
	at := v.p.Waits()
	for i, in := range v.p.Body.Instrs {
		if i != at {
			v.besideWait(in, i < at)
		}
	}
}

// besideWait checks an instruction that stands before the OpWait or not.
func (v *verifier) besideWait(in *Instr, before bool) {
	switch in.Op {
	case OpWait:
		v.fail(in, "Wait may be called once, and not in the function of an If or a loop")
	case OpLoad, OpStore, OpAtomic:
		if before && in.Space == Global {
			v.fail(in, "%s comes before Wait, while earlier kernels may still write global memory; move it behind", in.word())
		}
	case OpFence, OpAssert, OpReturn, OpTileLoad, OpTileEach:
		if before {
			v.fail(in, "%s comes before Wait; move it behind", in.word())
		}
	}
	for _, b := range in.Blocks {
		for _, x := range b.Instrs {
			v.besideWait(x, before)
		}
	}
}
