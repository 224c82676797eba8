package vexec

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/internal/approx"
	"tenon.dev/internal/kir"
)

// interp is an independent, naive interpreter: it runs one thread after another, one scalar at a time, and was written from the comments in
// package kir. It does not support shared memory, barriers, shuffles, votes, atomics or tiles.
type interp struct {
	p     *kir.Program
	mem   *flat
	args  []byte
	offs  []int
	block [3]uint32
	grid  [3]uint32
	tid   [3]uint32
	cta   [3]uint32
	vals  []uint64
	vars  []uint64
	local [][]uint64
	steps int
}

type flow int

const (
	flowNext flow = iota
	flowBreak
	flowContinue
	flowReturn
)

func interpret(p *kir.Program, mem *flat, grid, block [3]uint32, args []byte) {
	it := &interp{p: p, mem: mem, args: args, grid: grid, block: block}
	it.offs, _ = p.ArgLayout()
	each := func(n [3]uint32, f func(c [3]uint32)) {
		for z := range n[2] {
			for y := range n[1] {
				for x := range n[0] {
					f([3]uint32{x, y, z})
				}
			}
		}
	}
	each(grid, func(c [3]uint32) {
		each(block, func(t [3]uint32) {
			it.cta, it.tid = c, t
			it.vals = make([]uint64, len(p.Values))
			it.vars = make([]uint64, len(p.Vars))
			it.local = nil
			for _, l := range p.Local {
				it.local = append(it.local, make([]uint64, l.Count))
			}
			it.run(p.Body)
		})
	})
}

func trunc(t dtype.DType, v uint64) uint64 {
	if n := t.Size(); n < 8 {
		v &= 1<<(8*n) - 1
	}
	return v
}

// sint sign- or zero-extends the bits of an integer.
func sint(t dtype.DType, v uint64) int64 {
	v = trunc(t, v)
	if t.IsSigned() && t.IsInt() {
		s := 64 - 8*t.Size()
		return int64(v<<s) >> s
	}
	return int64(v)
}

func toFloat(t dtype.DType, v uint64) float64 {
	switch t {
	case dtype.Float16:
		return float64(dtype.F16(v).Float32())
	case dtype.BFloat16:
		return float64(dtype.BF16(v).Float32())
	case dtype.Float32:
		return float64(math.Float32frombits(uint32(v)))
	}
	return math.Float64frombits(v)
}

func fromFloat(t dtype.DType, f float64) uint64 {
	switch t {
	case dtype.Float16:
		return uint64(dtype.F16FromFloat64(f))
	case dtype.BFloat16:
		return uint64(dtype.BF16FromFloat64(f))
	case dtype.Float32:
		return uint64(math.Float32bits(float32(f)))
	}
	return math.Float64bits(f)
}

func boolBits(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func (it *interp) run(b *kir.Block) flow {
	for _, in := range b.Instrs {
		it.steps++
		if f := it.step(in); f != flowNext {
			return f
		}
	}
	return flowNext
}

func (it *interp) arg(in *kir.Instr, i int) uint64 { return it.vals[in.Args[i]] }

func (it *interp) step(in *kir.Instr) flow {
	switch in.Op {
	case kir.OpIf:
		if it.arg(in, 0) != 0 {
			return it.run(in.Blocks[0])
		}
		return it.run(in.Blocks[1])
	case kir.OpFor:
		i, end, step := big.NewInt(sint(in.Type, it.arg(in, 0))), big.NewInt(sint(in.Type, it.arg(in, 1))),
			big.NewInt(sint(in.Type, it.arg(in, 2)))
		for ; i.Cmp(end) < 0; i.Add(i, step) {
			it.vals[in.Blocks[0].Params[0]] = trunc(in.Type, uint64(i.Int64()))
			if f := it.run(in.Blocks[0]); f == flowBreak {
				break
			} else if f == flowReturn {
				return f
			}
		}
	case kir.OpLoop:
		for {
			if f := it.run(in.Blocks[0]); f == flowBreak {
				break
			} else if f == flowReturn {
				return f
			}
		}
	case kir.OpBreak:
		return flowBreak
	case kir.OpContinue:
		return flowContinue
	case kir.OpReturn:
		return flowReturn
	case kir.OpSet:
		it.vars[in.Sym] = it.arg(in, 0)
	case kir.OpLoad, kir.OpStore:
		it.access(in)
	case kir.OpFence:
	default:
		it.vals[in.Res[0]] = it.value(in)
	}
	return flowNext
}

func (it *interp) access(in *kir.Instr) {
	size := in.Type.Size()
	args := in.Args
	var bytes []byte
	var words []uint64
	at := 0
	idxOf := func(v kir.Value) int { return int(sint(it.p.Values[v], it.vals[v]) + int64(in.Imm)) }
	switch in.Space {
	case kir.Global:
		addr := it.vals[args[0]]
		bytes0, base, ok := it.mem.Resolve(addr)
		if !ok {
			panic("interp: bad address")
		}
		bytes, at = bytes0, int(addr-base)+idxOf(args[1])*size
		args = args[2:]
	case kir.Const:
		bytes, at = it.p.Tables[in.Sym].Data, idxOf(args[0])*size
		args = args[1:]
	case kir.ParamSpace:
		bytes, at = it.args, it.offs[in.Sym]+idxOf(args[0])*size
		args = args[1:]
	case kir.Local:
		words, at = it.local[in.Sym], idxOf(args[0])
		args = args[1:]
	}
	for j := range max(in.Width, 1) {
		if words != nil {
			if in.Op == kir.OpStore {
				words[at+j] = it.vals[args[j]]
			} else {
				it.vals[in.Res[j]] = words[at+j]
			}
			continue
		}
		var buf [8]byte
		b := bytes[at+j*size:][:size]
		if in.Op == kir.OpStore {
			binary.LittleEndian.PutUint64(buf[:], it.vals[args[j]])
			copy(b, buf[:])
		} else {
			copy(buf[:], b)
			v := binary.LittleEndian.Uint64(buf[:])
			if in.Type == dtype.Bool {
				v = boolBits(v != 0)
			}
			it.vals[in.Res[j]] = v
		}
	}
}

func (it *interp) special(s kir.Sub) uint64 {
	switch {
	case s <= kir.TidZ:
		return uint64(it.tid[s])
	case s <= kir.NTidZ:
		return uint64(it.block[s-kir.NTidX])
	case s <= kir.CtaIDZ:
		return uint64(it.cta[s-kir.CtaIDX])
	case s <= kir.NCtaIDZ:
		return uint64(it.grid[s-kir.NCtaIDX])
	}
	return uint64((it.tid[0] + it.block[0]*(it.tid[1]+it.block[1]*it.tid[2])) % 32)
}

func (it *interp) value(in *kir.Instr) uint64 {
	switch in.Op {
	case kir.OpConst:
		return trunc(in.Type, in.Imm)
	case kir.OpParam:
		var buf [8]byte
		p := &it.p.Params[in.Sym]
		n, _ := p.Bytes()
		copy(buf[:], it.args[it.offs[in.Sym]:][:n])
		return binary.LittleEndian.Uint64(buf[:])
	case kir.OpSpecial:
		return it.special(in.Sub)
	case kir.OpGet:
		return it.vars[in.Sym]
	case kir.OpSelect:
		if it.arg(in, 0) != 0 {
			return it.arg(in, 1)
		}
		return it.arg(in, 2)
	case kir.OpBitcast:
		return it.arg(in, 0)
	case kir.OpCvt:
		return convert(it.p.Values[in.Args[0]], in.Type, it.arg(in, 0))
	case kir.OpPtrAdd:
		return it.arg(in, 0) + it.arg(in, 1)
	}
	var v [3]uint64
	for i := range in.Args {
		v[i] = it.arg(in, i)
	}
	if in.Type.IsFloat() {
		return floatOp(in.Op, in.Type, v[0], v[1], v[2])
	}
	return intOp(in.Op, in.Type, v[0], v[1])
}

func convert(from, to dtype.DType, v uint64) uint64 {
	switch {
	case from == to:
		return v
	case from.IsFloat():
		f := toFloat(from, v)
		switch {
		case to == dtype.Bool:
			return boolBits(f != 0)
		case to.IsFloat():
			return fromFloat(to, f)
		case f != f:
			return 0
		}
		lo, hi := new(big.Float).SetInt64(0), new(big.Float).SetInt64(1)
		w := 8 * to.Size()
		if to.IsSigned() {
			hi.SetMantExp(hi, w-1)
			lo.Neg(hi)
		} else {
			hi.SetMantExp(hi, w)
		}
		if math.IsInf(f, 0) {
			f = math.Copysign(math.MaxFloat64, f)
		}
		z, _ := new(big.Float).SetFloat64(f).Int(nil)
		l, _ := lo.Int(nil)
		h, _ := hi.Int(nil)
		h.Sub(h, big.NewInt(1))
		if z.Cmp(l) < 0 {
			z = l
		}
		if z.Cmp(h) > 0 {
			z = h
		}
		if z.Sign() < 0 {
			return trunc(to, uint64(z.Int64()))
		}
		return trunc(to, z.Uint64())
	}
	i := sint(from, v)
	switch {
	case to == dtype.Bool:
		return boolBits(trunc(from, v) != 0)
	case to.IsFloat():
		x := new(big.Float).SetPrec(100).SetInt64(i)
		if from == dtype.Uint64 {
			x.SetUint64(v)
		}
		if to == dtype.Float64 {
			f, _ := x.Float64()
			return math.Float64bits(f)
		}
		if to == dtype.Float32 {
			f, _ := x.Float32()
			return uint64(math.Float32bits(f))
		}
		// To the precision of the half type; no integer is subnormal there.
		prec := uint(11)
		if to == dtype.BFloat16 {
			prec = 8
		}
		f, _ := x.SetPrec(prec).Float64()
		return fromFloat(to, f)
	}
	return trunc(to, uint64(i))
}

func floatOp(op kir.Op, t dtype.DType, av, bv, cv uint64) uint64 {
	a, b, c := toFloat(t, av), toFloat(t, bv), toFloat(t, cv)
	sign := uint64(1) << (8*t.Size() - 1)
	r := func(f float64) uint64 { return fromFloat(t, f) }
	switch op {
	case kir.OpAdd:
		return r(a + b) // float64 has more than twice the precision of float32, so rounding twice gives the exact result
	case kir.OpSub:
		return r(a - b)
	case kir.OpMul:
		return r(a * b)
	case kir.OpDiv:
		return r(a / b)
	case kir.OpFMA:
		return fmaBits(t, a, b, c)
	case kir.OpNeg:
		return av ^ sign
	case kir.OpAbs:
		return av &^ sign
	case kir.OpMin, kir.OpMax:
		switch {
		case a != a:
			return bv
		case b != b:
			return av
		case op == kir.OpMin:
			return r(math.Min(a, b))
		}
		return r(math.Max(a, b))
	case kir.OpMinimum, kir.OpMaximum:
		switch {
		case a != a || b != b:
			return sign - 1
		case op == kir.OpMinimum:
			return r(math.Min(a, b))
		}
		return r(math.Max(a, b))
	case kir.OpSqrt:
		return r(math.Sqrt(a))
	case kir.OpExp2:
		return uint64(math.Float32bits(approx.Exp2(float32(a))))
	case kir.OpRcp:
		return uint64(math.Float32bits(approx.Reciprocal(float32(a))))
	case kir.OpFloor:
		return r(math.Floor(a))
	case kir.OpCeil:
		return r(math.Ceil(a))
	case kir.OpTrunc:
		return r(math.Trunc(a))
	case kir.OpRint:
		return r(math.RoundToEven(a))
	case kir.OpEq:
		return boolBits(a == b)
	case kir.OpNe:
		return boolBits(a != b)
	case kir.OpLt:
		return boolBits(a < b)
	case kir.OpLe:
		return boolBits(a <= b)
	case kir.OpGt:
		return boolBits(a > b)
	case kir.OpGe:
		return boolBits(a >= b)
	case kir.OpIsNaN:
		return boolBits(a != a)
	}
	panic("interp: float op " + op.String())
}

func fmaBits(t dtype.DType, a, b, c float64) uint64 {
	finite := func(v float64) bool { return v-v == 0 }
	if math.IsInf(c, 0) && finite(a) && finite(b) { // even if their product is out of range
		return fromFloat(t, c)
	}
	if s := a*b + c; math.IsNaN(s) || math.IsInf(a, 0) || math.IsInf(b, 0) || math.IsInf(c, 0) {
		return fromFloat(t, s)
	}
	x, y, z := new(big.Float).SetPrec(5000).SetFloat64(a), new(big.Float).SetPrec(5000).SetFloat64(b),
		new(big.Float).SetPrec(5000).SetFloat64(c)
	x.Mul(x, y)
	x.Add(x, z)
	if x.Sign() == 0 {
		return fromFloat(t, a*b+c) // for the sign of zero
	}
	if t == dtype.Float32 {
		f, _ := x.Float32()
		return uint64(math.Float32bits(f))
	}
	f, _ := x.Float64()
	return math.Float64bits(f)
}

func intOp(op kir.Op, t dtype.DType, av, bv uint64) uint64 {
	a, b := sint(t, av), sint(t, bv)
	ua, ub := trunc(t, av), trunc(t, bv)
	w := 8 * t.Size()
	signed := t.IsSigned()
	r := func(v int64) uint64 { return trunc(t, uint64(v)) }
	less := ua < ub
	if signed {
		less = a < b
	}
	switch op {
	case kir.OpAdd:
		return r(a + b)
	case kir.OpSub:
		return r(a - b)
	case kir.OpMul:
		return r(a * b)
	case kir.OpMulHi, kir.OpMulWide:
		x, y := big.NewInt(a), big.NewInt(b)
		if !signed {
			x, y = new(big.Int).SetUint64(ua), new(big.Int).SetUint64(ub)
		}
		x.Mul(x, y)
		if op == kir.OpMulHi {
			x.Rsh(x, uint(w))
		}
		if x.Sign() < 0 {
			v := uint64(x.Int64())
			if op == kir.OpMulWide {
				return v
			}
			return trunc(t, v)
		}
		if op == kir.OpMulWide {
			return x.Uint64()
		}
		return trunc(t, x.Uint64())
	case kir.OpDiv, kir.OpRem:
		if ub == 0 {
			if op == kir.OpDiv {
				return trunc(t, math.MaxUint64)
			}
			return ua
		}
		if signed {
			if op == kir.OpDiv {
				return r(a / b)
			}
			return r(a % b)
		}
		if op == kir.OpDiv {
			return ua / ub
		}
		return ua % ub
	case kir.OpNeg:
		return r(-a)
	case kir.OpAbs:
		if signed && a < 0 {
			return r(-a)
		}
		return ua
	case kir.OpMin:
		if less {
			return ua
		}
		return ub
	case kir.OpMax:
		if less {
			return ub
		}
		return ua
	case kir.OpAnd:
		return ua & ub
	case kir.OpOr:
		return ua | ub
	case kir.OpXor:
		return ua ^ ub
	case kir.OpNot:
		if t == dtype.Bool {
			return ua ^ 1
		}
		return trunc(t, ^ua)
	case kir.OpShl, kir.OpShr:
		n := uint32(bv)
		switch {
		case op == kir.OpShl && n >= uint32(w):
			return 0
		case op == kir.OpShl:
			return trunc(t, ua<<n)
		case signed:
			return r(a >> min(n, 63))
		case n >= uint32(w):
			return 0
		}
		return ua >> n
	case kir.OpClz:
		return uint64(bits.LeadingZeros64(ua) - (64 - w))
	case kir.OpPopc:
		return uint64(bits.OnesCount64(ua))
	case kir.OpBitRev:
		return bits.Reverse64(ua) >> (64 - w)
	case kir.OpEq:
		return boolBits(ua == ub)
	case kir.OpNe:
		return boolBits(ua != ub)
	case kir.OpLt:
		return boolBits(less)
	case kir.OpLe:
		return boolBits(less || ua == ub)
	case kir.OpGt:
		return boolBits(!less && ua != ub)
	case kir.OpGe:
		return boolBits(!less)
	}
	panic("interp: int op " + op.String())
}
