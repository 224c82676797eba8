package kir

import (
	"math"
	"math/bits"
	"slices"

	"tenon.dev/dtype"
)

// FormKind says how a value differs between the threads of a block that reach its definition together.
type FormKind uint8

// The forms. Never is the form of values that no thread computes and of variables that are never set.
const (
	Never FormKind = iota
	// Uniform: the same in all threads.
	Uniform
	// Affine: u + Stride*tidx for threads of equal tidy and tidz, modulo the type's width; u is uniform. The unit of Stride is 1, or a byte
	// for addresses.
	Affine
	// Prefix: a Bool that, among threads of equal tidy and tidz, is true where tidx is below some bound and false elsewhere.
	Prefix
	// Varying: nothing is known.
	Varying
)

// String returns the kind's name.
func (k FormKind) String() string {
	return [...]string{"never", "uniform", "affine", "prefix", "varying"}[k]
}

// Form is what [Analyze] knows about a value.
type Form struct {
	Kind FormKind
	// Wraps says that u + Stride*tidx of an Affine value may overflow the type, so neighbours may not differ by Stride as numbers.
	Wraps bool
	// Stride is the difference between neighbours in x of an Affine value; it is not 0.
	Stride int64
}

// Analysis holds the result of [Analyze].
type Analysis struct {
	p *Program
	// Values and Vars hold the forms, indexed by number.
	Values    []Form
	Vars      []Form
	divergent map[*Block]bool
	ranges    []interval
	changed   bool
}

// interval bounds the values of an integer.
type interval struct{ lo, hi int64 }

// Divergent reports whether some threads of the block may be outside region b while others are in it, and rejoin them later. Threads that
// have returned do not count.
func (a *Analysis) Divergent(b *Block) bool { return a.divergent[b] }

// Range returns bounds of an integer value of at most 32 bits, or of Int64.
func (a *Analysis) Range(v Value) (lo, hi int64) { return a.ranges[v].lo, a.ranges[v].hi }

// Analyze computes the forms of all values and variables of p, and which regions are divergent. p must satisfy the verifier's rules on
// structure and types.
//
// A load from global, shared, constant or parameter memory at a uniform address counts as uniform: if threads of a block see different
// values there, the program has a race. Each variable has one form for the whole program; it is varying if the variable is set in divergent
// code. A loop is divergent if its bounds are not uniform or if only some threads break or continue.
func Analyze(p *Program) *Analysis {
	a := &Analysis{p: p, Values: make([]Form, len(p.Values)), Vars: make([]Form, len(p.Vars)),
		divergent: make(map[*Block]bool), ranges: make([]interval, len(p.Values))}
	// Forms only rise (never, uniform or affine, varying) and code only becomes more divergent, so this terminates.
	for a.changed = true; a.changed; {
		a.changed = false
		a.block(p.Body, false, nil)
	}
	return a
}

// join returns the least form that covers both.
func join(f, g Form) Form {
	switch {
	case f.Kind == Never:
		return g
	case g.Kind == Never:
		return f
	case f.Kind == g.Kind && f.Stride == g.Stride:
		f.Wraps = f.Wraps || g.Wraps
		return f
	}
	return Form{Kind: Varying}
}

func (a *Analysis) setValue(v Value, f Form, r interval) {
	if g := join(a.Values[v], f); g != a.Values[v] {
		a.Values[v], a.changed = g, true
	}
	a.ranges[v] = r
}

// block visits b; loop is the innermost loop's body.
func (a *Analysis) block(b *Block, divergent bool, loop *Block) {
	if divergent {
		a.diverge(b)
	}
	for _, in := range b.Instrs {
		a.instr(in, a.divergent[b], loop)
	}
}

func (a *Analysis) diverge(b *Block) {
	if !a.divergent[b] {
		a.divergent[b], a.changed = true, true
	}
}

func (a *Analysis) instr(in *Instr, divergent bool, loop *Block) {
	switch in.Op {
	case OpIf:
		divergent = divergent || a.Values[in.Args[0]].Kind != Uniform
		for _, b := range in.Blocks {
			a.block(b, divergent, loop)
		}
	case OpFor:
		a.counter(in)
		for _, v := range in.Args {
			divergent = divergent || a.Values[v].Kind != Uniform
		}
		a.block(in.Blocks[0], divergent, in.Blocks[0])
	case OpLoop:
		a.block(in.Blocks[0], divergent, in.Blocks[0])
	case OpBreak, OpContinue:
		if divergent && loop != nil {
			a.diverge(loop)
		}
	case OpTileLoad, OpTileMap, OpTileEach:
		// The back end chooses which thread runs the region for which element.
		b := in.Blocks[0]
		for _, v := range b.Params {
			a.setValue(v, varying, full(a.p.Values[v]))
		}
		a.block(b, true, nil)
	case OpSet:
		f := a.Values[in.Args[0]]
		if divergent {
			f = varying
		}
		if f = join(a.Vars[in.Sym], f); f != a.Vars[in.Sym] {
			a.Vars[in.Sym], a.changed = f, true
		}
	default:
		if len(in.Res) == 0 {
			return
		}
		form, r := a.result(in)
		for _, v := range in.Res {
			a.setValue(v, form, r)
		}
	}
}

// counter gives a for loop's counter the form of the start value if the step is uniform.
func (a *Analysis) counter(in *Instr) {
	v := in.Blocks[0].Params[0]
	form := a.Values[in.Args[0]]
	if a.Values[in.Args[2]].Kind == Varying || a.Values[in.Args[2]].Kind == Affine {
		form = Form{Kind: Varying}
	}
	r := interval{a.ranges[in.Args[0]].lo, a.ranges[in.Args[1]].hi}
	if r.hi > math.MinInt64 {
		r.hi--
	}
	if r.hi < r.lo {
		r.hi = r.lo
	}
	a.setValue(v, form, r)
}

// full returns the range of an integer type. The range of Uint64 stops below 2^63, because interval holds int64; arith therefore treats a
// Uint64 operand of full range as one that may wrap.
func full(t Type) interval {
	switch t {
	case dtype.Bool:
		return interval{0, 1}
	case dtype.Int8:
		return interval{math.MinInt8, math.MaxInt8}
	case dtype.Uint8:
		return interval{0, math.MaxUint8}
	case dtype.Int16:
		return interval{math.MinInt16, math.MaxInt16}
	case dtype.Uint16:
		return interval{0, math.MaxUint16}
	case dtype.Int32:
		return interval{math.MinInt32, math.MaxInt32}
	case dtype.Uint32:
		return interval{0, math.MaxUint32}
	case dtype.Uint64:
		return interval{0, math.MaxInt64}
	}
	return interval{math.MinInt64, math.MaxInt64}
}

var uniform, varying = Form{Kind: Uniform}, Form{Kind: Varying}

// stride returns the stride of a uniform or affine value.
func (a *Analysis) stride(v Value) (int64, bool) {
	f := a.Values[v]
	return f.Stride, f.Kind == Uniform || f.Kind == Affine
}

// merge returns the form of an operation whose result depends on its operands alone.
func (a *Analysis) merge(args []Value) Form {
	f := Form{Kind: Uniform}
	for _, v := range args {
		switch a.Values[v].Kind {
		case Never:
			if f.Kind == Uniform {
				f.Kind = Never
			}
		case Uniform:
		default:
			return varying
		}
	}
	return f
}

// result returns the form and range of in's results.
func (a *Analysis) result(in *Instr) (Form, interval) {
	t := a.p.resultType(in)
	all := full(t)
	switch in.Op {
	case OpConst:
		return uniform, constRange(t, in.Imm)
	case OpParam:
		return uniform, all
	case OpSpecial:
		return a.special(in.Sub)
	case OpGet:
		return a.Vars[in.Sym], all
	case OpLoad:
		if in.Space == Local {
			return varying, all
		}
		return a.merge(in.Args), all
	case OpAtomic, OpClock:
		return varying, all
	case OpShuffle:
		if a.oneGroup() && in.Sub == ShuffleIdx && a.Values[in.Args[1]].Kind == Uniform {
			return uniform, all
		}
		return a.merge(in.Args[:1]), all
	case OpVote:
		if a.oneGroup() {
			return uniform, all
		}
		if in.Sub == VoteBallot { // the last warp may have fewer threads
			return varying, all
		}
		return a.merge(in.Args), all
	case OpLt, OpLe, OpGt, OpGe:
		return a.compare(in), all
	case OpSelect:
		return a.selection(in)
	case OpAnd:
		return a.and(in, all)
	}
	if t.IsInt() {
		return a.arith(in, t)
	}
	return a.merge(in.Args), all
}

// oneGroup reports whether every block has at most one warp.
func (a *Analysis) oneGroup() bool { return a.p.FixedThreads && a.p.Threads <= 32 }

func constRange(t Type, imm uint64) interval {
	v := int64(imm)
	switch t {
	case dtype.Int8:
		v = int64(int8(imm))
	case dtype.Int16:
		v = int64(int16(imm))
	case dtype.Int32:
		v = int64(int32(imm))
	case dtype.Uint64:
		if v < 0 {
			return full(t)
		}
	}
	return interval{v, v}
}

// special gives the forms of the special registers; the limits of the grid are CUDA's.
func (a *Analysis) special(s Sub) (Form, interval) {
	threads := int64(a.p.Threads)
	switch s {
	case TidX:
		return Form{Kind: Affine, Stride: 1}, interval{0, threads - 1}
	case TidY, TidZ:
		if a.p.FixedThreads {
			return uniform, interval{0, 0}
		}
		return varying, interval{0, threads - 1}
	case NTidX:
		if a.p.FixedThreads {
			return uniform, interval{threads, threads}
		}
		return uniform, interval{1, threads}
	case NTidY, NTidZ:
		if a.p.FixedThreads {
			return uniform, interval{1, 1}
		}
		return uniform, interval{1, threads}
	case CtaIDX:
		return uniform, interval{0, math.MaxInt32 - 1}
	case CtaIDY, CtaIDZ:
		return uniform, interval{0, 65534}
	case NCtaIDX:
		return uniform, interval{1, math.MaxInt32}
	case NCtaIDY, NCtaIDZ:
		return uniform, interval{1, 65535}
	}
	if a.oneGroup() {
		return Form{Kind: Affine, Stride: 1}, interval{0, threads - 1}
	}
	return varying, interval{0, 31}
}

// compare recognizes prefixes: a rising affine value below a uniform one.
func (a *Analysis) compare(in *Instr) Form {
	x, y := a.Values[in.Args[0]], a.Values[in.Args[1]]
	if in.Op == OpGt || in.Op == OpGe {
		x, y = y, x
	}
	switch {
	case x.Kind == Affine && !x.Wraps && x.Stride > 0 && y.Kind == Uniform,
		x.Kind == Uniform && y.Kind == Affine && !y.Wraps && y.Stride < 0:
		return Form{Kind: Prefix}
	}
	return a.merge(in.Args)
}

// and preserves prefixes; a nonnegative operand bounds the result.
func (a *Analysis) and(in *Instr, all interval) (Form, interval) {
	x, y := a.Values[in.Args[0]], a.Values[in.Args[1]]
	if in.Type == dtype.Bool {
		if (x.Kind == Prefix || x.Kind == Uniform) && (y.Kind == Prefix || y.Kind == Uniform) && (x.Kind == Prefix || y.Kind == Prefix) {
			return Form{Kind: Prefix}, all
		}
		return a.merge(in.Args), all
	}
	r := all
	for _, v := range in.Args {
		if b := a.ranges[v]; b.lo >= 0 && in.Type != dtype.Uint64 {
			r = interval{0, min(r.hi, b.hi)}
		}
	}
	return a.merge(in.Args), r
}

func (a *Analysis) selection(in *Instr) (Form, interval) {
	c, f := a.Values[in.Args[0]], join(a.Values[in.Args[1]], a.Values[in.Args[2]])
	x, y := a.ranges[in.Args[1]], a.ranges[in.Args[2]]
	r := interval{min(x.lo, y.lo), max(x.hi, y.hi)}
	if c.Kind == Uniform || c.Kind == Never {
		return f, r
	}
	return varying, r
}

// arith gives forms and ranges of integer operations.
func (a *Analysis) arith(in *Instr, t Type) (Form, interval) {
	all := full(t)
	x := in.Args[0]
	xr := a.ranges[x]
	var yr interval
	if len(in.Args) > 1 {
		yr = a.ranges[in.Args[1]]
	}
	var r interval
	fits := true
	var stride int64
	linear := false
	xs, xok := a.stride(x)
	ys, yok := int64(0), true
	if len(in.Args) > 1 {
		ys, yok = a.stride(in.Args[1])
	}
	switch in.Op {
	case OpPtrAdd: // addresses do not wrap
		return a.linear(in, xs+ys, xok && yok, true), all
	case OpAdd:
		r, fits = addRange(xr, yr)
		stride, linear = xs+ys, xok && yok
	case OpSub:
		r, fits = addRange(xr, interval{-yr.hi, -yr.lo})
		fits = fits && yr.lo != math.MinInt64
		stride, linear = xs-ys, xok && yok
	case OpNeg:
		r, fits = interval{-xr.hi, -xr.lo}, xr.lo != math.MinInt64
		stride, linear = -xs, xok
	case OpMul, OpMulWide:
		r, fits = mulRange(xr, yr)
		stride, linear = a.product(in, xs, ys, xok && yok)
	case OpShl:
		if yr.lo == yr.hi && yr.lo >= 0 && yr.lo < 63 {
			k := int64(1) << yr.lo
			r, fits = mulRange(xr, interval{k, k})
			stride, linear = xs*k, xok && ys == 0 && yok && yr.lo < int64(8*t.Size())
		} else {
			fits = false
		}
	case OpCvt, OpBitcast:
		r, fits = xr, a.p.Values[x].IsInt() && a.p.Values[x] != dtype.Uint64
		stride = xs
		// A wrapped value of a narrow type is not affine in a wider one.
		linear = xok && a.p.Values[x].IsInt() && (!a.Values[x].Wraps || t.Size() <= a.p.Values[x].Size())
	default:
		return a.merge(in.Args), a.plainRange(in, all, xr, yr)
	}
	if !fits || r.lo < all.lo || r.hi > all.hi || t == dtype.Uint64 && xr == full(dtype.Uint64) {
		r, fits = all, false
	}
	return a.linear(in, stride, linear, fits), r
}

// linear returns the form of a result: affine with the given stride if ok.
func (a *Analysis) linear(in *Instr, stride int64, ok, fits bool) Form {
	f := a.merge(in.Args)
	if f.Kind != Varying || !ok {
		return f
	}
	if stride == 0 {
		return uniform
	}
	wraps := !fits
	for _, v := range in.Args {
		wraps = wraps || a.Values[v].Wraps
	}
	return Form{Kind: Affine, Stride: stride, Wraps: wraps}
}

// product returns the stride of a product. It is known if one factor is a constant or both are uniform.
func (a *Analysis) product(in *Instr, xs, ys int64, ok bool) (int64, bool) {
	if !ok || xs == 0 && ys == 0 {
		return 0, ok
	}
	x, y := a.ranges[in.Args[0]], a.ranges[in.Args[1]]
	var k, s int64
	switch {
	case ys == 0 && y.lo == y.hi:
		k, s = y.lo, xs
		ok = !a.Values[in.Args[0]].Wraps || in.Op == OpMul
	case xs == 0 && x.lo == x.hi:
		k, s = x.lo, ys
		ok = !a.Values[in.Args[1]].Wraps || in.Op == OpMul
	default:
		return 0, false
	}
	r, fits := mulRange(interval{k, k}, interval{s, s})
	return r.lo, ok && fits
}

// plainRange bounds the results of the other integer operations.
func (a *Analysis) plainRange(in *Instr, all, x, y interval) interval {
	switch in.Op {
	case OpMin:
		return interval{min(x.lo, y.lo), min(x.hi, y.hi)}
	case OpMax:
		return interval{max(x.lo, y.lo), max(x.hi, y.hi)}
	case OpDiv:
		if x.lo >= 0 && y.lo > 0 && in.Type != dtype.Uint64 {
			return interval{x.lo / y.hi, x.hi / y.lo}
		}
	case OpRem:
		if x.lo >= 0 && y.lo > 0 && in.Type != dtype.Uint64 {
			return interval{0, min(x.hi, y.hi-1)}
		}
	case OpShr:
		if x.lo >= 0 && y.lo == y.hi && y.lo >= 0 && y.lo < 63 && in.Type != dtype.Uint64 {
			return interval{x.lo >> y.lo, x.hi >> y.lo}
		}
	case OpClz, OpPopc:
		return interval{0, 64}
	}
	return all
}

func addRange(x, y interval) (interval, bool) {
	r := interval{x.lo + y.lo, x.hi + y.hi}
	over := func(a, b, s int64) bool { return (a^s)&(b^s) < 0 }
	return r, !over(x.lo, y.lo, r.lo) && !over(x.hi, y.hi, r.hi)
}

func mulRange(x, y interval) (interval, bool) {
	r := interval{math.MaxInt64, math.MinInt64}
	for _, a := range [2]int64{x.lo, x.hi} {
		for _, b := range [2]int64{y.lo, y.hi} {
			p := a * b
			hi, lo := bits.Mul64(magnitude(a), magnitude(b))
			if hi != 0 || lo > math.MaxInt64 {
				return r, false
			}
			r.lo, r.hi = min(r.lo, p), max(r.hi, p)
		}
	}
	return r, true
}

func magnitude(a int64) uint64 {
	if a < 0 {
		return -uint64(a)
	}
	return uint64(a)
}

// Asserts reports whether the program has assertions.
func (p *Program) Asserts() bool { return asserts(p.Body) }

func asserts(b *Block) bool {
	if b == nil {
		return false
	}
	for _, in := range b.Instrs {
		if in.Op == OpAssert || slices.ContainsFunc(in.Blocks, asserts) {
			return true
		}
	}
	return false
}
