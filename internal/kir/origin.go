package kir

import (
	"maps"
	"slices"
)

// params is a set of parameter numbers. Sets are shared and never modified.
type params map[int]bool

// holder is something that holds values: a shared or local array, or a variable, whose space is Global.
type holder struct {
	space Space
	sym   int
}

// origins finds the buffers from whose addresses each value may be derived.
//
// These are addresses of the same buffers: an address plus or minus a number, an aligned or tagged address, a selection between two
// addresses, and an address that went through a variable or an array of the kernel. Other arithmetic turns an address into a number, as
// does the difference of two addresses. Addresses loaded from global memory have no origin.
type origins struct {
	p       *Program
	values  []params
	held    map[holder]params
	small   map[Value]bool // constants that, as a mask, keep no more of an address than its offset within 4 KiB
	changed bool
}

func findOrigins(p *Program) *origins {
	o := &origins{p: p, values: make([]params, len(p.Values)), held: map[holder]params{}, small: map[Value]bool{}}
	for o.changed = true; o.changed; {
		o.changed = false
		o.block(p.Body)
	}
	return o
}

// Writes reports, for each parameter, whether it is a buffer that the program's stores and atomic operations may write. It does not see
// writes to an address that the program loads from global memory.
func (p *Program) Writes() []bool {
	o := findOrigins(p)
	out := make([]bool, len(p.Params))
	o.stores(p.Body, func(_ *Instr, i int) { out[i] = true })
	return out
}

// stores calls f for every instruction that may write buffer i.
func (o *origins) stores(b *Block, f func(in *Instr, i int)) {
	for _, in := range b.Instrs {
		if (in.Op == OpStore || in.Op == OpAtomic) && in.Space == Global {
			for _, i := range slices.Sorted(maps.Keys(o.values[in.Args[0]])) {
				f(in, i)
			}
		}
		for _, inner := range in.Blocks {
			o.stores(inner, f)
		}
	}
}

func (o *origins) block(b *Block) {
	for _, in := range b.Instrs {
		switch in.Op {
		case OpSet:
			o.hold(holder{Global, in.Sym}, in.Args[0])
		case OpStore, OpAtomic:
			if in.Space == Shared || in.Space == Local {
				for _, v := range in.Args[1:] {
					o.hold(holder{in.Space, in.Sym}, v)
				}
			}
		case OpFor:
			o.give(in.Blocks[0].Params[0], o.values[in.Args[0]])
		}
		if len(in.Res) > 0 && o.p.Values[in.Res[0]].Size() == 8 {
			from := o.of(in)
			for _, v := range in.Res {
				o.give(v, from)
			}
		}
		for _, inner := range in.Blocks {
			o.block(inner)
		}
	}
}

// of returns the origins of in's results.
func (o *origins) of(in *Instr) params {
	arg := func(i int) params { return o.values[in.Args[i]] }
	switch in.Op {
	case OpConst:
		o.small[in.Res[0]] = in.Imm < 4096
	case OpParam:
		if o.p.Params[in.Sym].Kind == ParamBuffer {
			return params{in.Sym: true}
		}
	case OpGet:
		return o.held[holder{Global, in.Sym}]
	case OpLoad, OpAtomic:
		if in.Space == Shared || in.Space == Local {
			return o.held[holder{in.Space, in.Sym}]
		}
	case OpPtrAdd:
		if len(arg(0)) == 0 {
			return arg(1)
		}
		return arg(0)
	case OpSub:
		if len(arg(1)) == 0 {
			return arg(0)
		}
	case OpAnd:
		if !o.small[in.Args[0]] && !o.small[in.Args[1]] {
			return union(arg(0), arg(1))
		}
	case OpAdd, OpOr, OpXor, OpMin, OpMax:
		return union(arg(0), arg(1))
	case OpSelect:
		return union(arg(1), arg(2))
	case OpCvt, OpBitcast, OpShuffle:
		return arg(0)
	}
	return nil
}

func union(a, b params) params {
	if len(a) == 0 {
		return b
	}
	u := maps.Clone(a)
	maps.Copy(u, b)
	return u
}

// give adds origins to those of v.
func (o *origins) give(v Value, from params) {
	if len(from) > 0 && len(union(o.values[v], from)) > len(o.values[v]) {
		o.values[v], o.changed = union(o.values[v], from), true
	}
}

// hold adds v's origins to those of the contents of h.
func (o *origins) hold(h holder, v Value) {
	if from := o.values[v]; len(from) > 0 && len(union(o.held[h], from)) > len(o.held[h]) {
		o.held[h], o.changed = union(o.held[h], from), true
	}
}
