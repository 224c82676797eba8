package vexec

import "tenon.dev/internal/kir"

// Operations that only this package's copy of a program has.
const (
	// opExtract is element Imm of the wide value in every lane.
	opExtract kir.Op = 200 + iota
	// opGetElement and opSetElement read and write element Imm of wide variable Sym.
	opGetElement
	opSetElement
)

// widths says which values and variables of a program are wide: if values[v] is more than 1, value v holds values[v] elements per lane,
// side by side.
type widths struct{ values, vars []int }

// optimize returns a copy of p in which equal operations are done once, and operations on the elements of vector accesses are merged.
// Neither changes results.
func optimize(p *kir.Program) (*kir.Program, *widths) {
	c := *p
	c.Values = append([]kir.Type(nil), p.Values...)
	c.Vars = append([]kir.Type(nil), p.Vars...)
	same := make([]kir.Value, len(c.Values))
	for i := range same {
		same[i] = kir.Value(i)
	}
	c.Body = shareBlock(p.Body, same, &scope{})
	return &c, bundleElements(&c)
}

// operation identifies what an instruction without effects computes.
type operation struct {
	op  kir.Op
	t   kir.Type
	sub kir.Sub
	imm uint64
	sym int
	// space distinguishes loads.
	space kir.Space
	args  [3]kir.Value
}

// scope records the operations done in a region and those around it.
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

// pure reports whether equal operands always give equal results.
func pure(op kir.Op) bool {
	switch op {
	case kir.OpGet, opGetElement, kir.OpLoad, kir.OpClock, kir.OpShuffle, kir.OpVote:
		return false
	}
	return !hasEffect(op)
}

// constant reports whether in loads data that nothing writes while the kernel runs.
func constant(in *kir.Instr) bool {
	return in.Op == kir.OpLoad && (in.Space == kir.Const || in.Space == kir.ParamSpace || in.Space == kir.Global &&
		in.Cache == kir.CacheReadOnly)
}

// shareBlock copies b without operations that the region or an outer one already has; same maps their values to the existing ones.
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
		if (pure(n.Op) || constant(&n)) && len(n.Res) == 1 && len(n.Args) <= 3 {
			o := operation{op: n.Op, t: n.Type, sub: n.Sub, imm: n.Imm, sym: n.Sym, space: n.Space, args: [3]kir.Value{-1, -1, -1}}
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
