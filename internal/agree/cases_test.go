package agree

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// A pointCase is one operation on one combination of types, applied to every element of its inputs.
type pointCase struct {
	prog *kir.Program
	out  kir.Type
	ins  []kir.Type
}

var (
	ints     = []kir.Type{dtype.Int8, dtype.Uint8, dtype.Int16, dtype.Uint16, dtype.Int32, dtype.Uint32, dtype.Int64, dtype.Uint64}
	wideInts = []kir.Type{dtype.Int32, dtype.Uint32, dtype.Int64, dtype.Uint64}
	floats   = []kir.Type{dtype.Float32, dtype.Float64}
	halves   = []kir.Type{dtype.Float16, dtype.BFloat16}
	allTypes = join([]kir.Type{dtype.Bool}, ints, halves, floats)
	numbers  = join(ints, floats)
)

func join(sets ...[]kir.Type) (out []kir.Type) {
	for _, s := range sets {
		out = append(out, s...)
	}
	return out
}

// pointCases lists every elementwise operation on every type that it allows.
func pointCases() []pointCase {
	var cs []pointCase
	add := func(op kir.Op, t, out kir.Type, ins ...kir.Type) {
		name := fmt.Sprintf("%v_%s", op, t.Short())
		if op == kir.OpCvt || op == kir.OpBitcast {
			name = fmt.Sprintf("%v_%s_%s", op, ins[0].Short(), t.Short())
		}
		p := pointwise(name, out, ins, func(p *program, xs []kir.Value) kir.Value { return p.op(op, t, out, xs...) })
		cs = append(cs, pointCase{p, out, ins})
	}
	each := func(types []kir.Type, operands int, ops ...kir.Op) {
		for _, op := range ops {
			for _, t := range types {
				ins := make([]kir.Type, operands)
				for i := range ins {
					ins[i] = t
				}
				add(op, t, t, ins...)
			}
		}
	}
	each(numbers, 2, kir.OpAdd, kir.OpSub, kir.OpMul, kir.OpDiv, kir.OpMin, kir.OpMax)
	each(ints, 2, kir.OpRem)
	each(wideInts, 2, kir.OpMulHi)
	each([]kir.Type{dtype.Float32}, 2, kir.OpMinimum, kir.OpMaximum)
	each(floats, 3, kir.OpFMA)
	each(numbers, 1, kir.OpNeg, kir.OpAbs)
	each([]kir.Type{dtype.Float32}, 1, kir.OpExp2, kir.OpRcp)
	each(floats, 1, kir.OpSqrt, kir.OpFloor, kir.OpCeil, kir.OpTrunc, kir.OpRint)
	each(join(ints, []kir.Type{dtype.Bool}), 2, kir.OpAnd, kir.OpOr, kir.OpXor)
	each(join(ints, []kir.Type{dtype.Bool}), 1, kir.OpNot)
	each(wideInts, 1, kir.OpBitRev)
	for _, t := range wideInts {
		add(kir.OpClz, t, dtype.Int32, t)
		add(kir.OpPopc, t, dtype.Int32, t)
	}
	for _, t := range ints {
		add(kir.OpShl, t, t, t, dtype.Int32)
		add(kir.OpShr, t, t, t, dtype.Uint32)
	}
	add(kir.OpMulWide, dtype.Int32, dtype.Int64, dtype.Int32, dtype.Int32)
	add(kir.OpMulWide, dtype.Uint32, dtype.Uint64, dtype.Uint32, dtype.Uint32)
	for _, op := range []kir.Op{kir.OpEq, kir.OpNe, kir.OpLt, kir.OpLe, kir.OpGt, kir.OpGe} {
		for _, t := range numbers {
			add(op, t, dtype.Bool, t, t)
		}
	}
	for _, t := range floats {
		add(kir.OpIsNaN, t, dtype.Bool, t)
	}
	for _, t := range allTypes {
		add(kir.OpSelect, t, t, dtype.Bool, t, t)
		for _, from := range allTypes {
			if from != t {
				add(kir.OpCvt, t, t, from)
			}
			if from != t && from.Size() == t.Size() && from != dtype.Bool && t != dtype.Bool {
				add(kir.OpBitcast, t, t, from)
			}
		}
	}
	return append(cs, unfusedCases()...)
}

// unfusedCases are chains that a compiler might be tempted to change: a product that is added, a division by a constant.
func unfusedCases() []pointCase {
	var cs []pointCase
	for _, t := range floats {
		p := pointwise("mul_add_"+t.Short(), t, []kir.Type{t, t, t}, func(p *program, xs []kir.Value) kir.Value {
			return p.op(kir.OpAdd, t, t, p.op(kir.OpMul, t, t, xs[0], xs[1]), xs[2])
		})
		cs = append(cs, pointCase{p, t, []kir.Type{t, t, t}})
		p = pointwise("mul_sub_"+t.Short(), t, []kir.Type{t, t, t}, func(p *program, xs []kir.Value) kir.Value {
			return p.op(kir.OpSub, t, t, xs[2], p.op(kir.OpMul, t, t, xs[0], xs[1]))
		})
		cs = append(cs, pointCase{p, t, []kir.Type{t, t, t}})
	}
	for _, t := range ints {
		for _, d := range []int64{0, 1, -1, 2, 3, 7, 10, -128} {
			for _, op := range []kir.Op{kir.OpDiv, kir.OpRem} {
				name := fmt.Sprintf("%v_%s_by_%d", op, t.Short(), uint8(d))
				p := pointwise(name, t, []kir.Type{t}, func(p *program, xs []kir.Value) kir.Value {
					return p.op(op, t, t, xs[0], p.constant(t, uint64(d)))
				})
				cs = append(cs, pointCase{p, t, []kir.Type{t}})
			}
		}
	}
	return cs
}
