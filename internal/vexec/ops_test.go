package vexec

import (
	"fmt"
	"math"
	"math/rand"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

var allTypes = []dtype.DType{dtype.Bool, dtype.Uint8, dtype.Int8, dtype.Uint16, dtype.Int16, dtype.Uint32, dtype.Int32,
	dtype.Uint64, dtype.Int64,
	dtype.Float16, dtype.BFloat16, dtype.Float32, dtype.Float64}

// samples returns bit patterns of t: edge cases and n random ones.
func samples(t dtype.DType, r *rand.Rand, n int) []uint64 {
	var out []uint64
	if t == dtype.Bool {
		return []uint64{0, 1}
	}
	if t.IsFloat() {
		for _, f := range []float64{0, math.Copysign(0, -1), 1, -1, 0.5, 1.5, 2.5, -2.5, 3, 127.4, 255.5, -128.7, 256, 32767.5, 65519,
			65520, 1e-7, 6e-8, 3e-8, 1e-40, -1e-45, 1e-310, 2147483647, 2147483648, -2147483649,
			4294967295, 4294967296, 9.3e18, -9.3e18, 1.9e19, 3.4e38, 1e300, math.Inf(1), math.Inf(-1), math.NaN(), math.Pi,
			1 << 24, 1<<24 + 1} {
			out = append(out, fromFloat(t, f))
		}
		for range n {
			out = append(out, fromFloat(t, math.Ldexp(r.Float64()*2-1, r.Intn(80)-40)))
			out = append(out, trunc(t, r.Uint64()))
		}
		return out
	}
	for _, i := range []int64{0, 1, -1, 2, -2, 3, 7, 8, 31, 32, 33, 63, 64, 65, 127, 128, -128, 255, 256, 32767, 32768, -32768, 65535,
		1 << 24, 1<<24 + 1, math.MaxInt32, math.MinInt32, math.MaxInt32 + 1,
		1<<53 + 1, 1<<62 + 1<<54 + 1, 1<<62 + 1<<54, math.MaxInt64, math.MinInt64} {
		out = append(out, trunc(t, uint64(i)))
	}
	for range n {
		out = append(out, trunc(t, r.Uint64()), trunc(t, r.Uint64()>>r.Intn(64)))
	}
	return out
}

// opCase is one operation on one type.
type opCase struct {
	op   kir.Op
	t    dtype.DType // of the instruction
	args []dtype.DType
	res  dtype.DType
}

func opCases() []opCase {
	var cs []opCase
	add := func(op kir.Op, t, res dtype.DType, args ...dtype.DType) {
		cs = append(cs, opCase{op: op, t: t, args: args, res: res})
	}
	B, I32 := dtype.Bool, dtype.Int32
	for _, t := range allTypes {
		half := t == dtype.Float16 || t == dtype.BFloat16
		add(kir.OpSelect, t, t, B, t, t)
		for _, u := range allTypes {
			if u != t {
				add(kir.OpCvt, t, t, u)
			}
			if u != t && u.Size() == t.Size() && u != B && t != B {
				add(kir.OpBitcast, t, t, u)
			}
		}
		if half {
			continue
		}
		if t != B {
			for _, op := range []kir.Op{kir.OpAdd, kir.OpSub, kir.OpMul, kir.OpDiv, kir.OpMin, kir.OpMax} {
				add(op, t, t, t, t)
			}
			for _, op := range []kir.Op{kir.OpEq, kir.OpNe, kir.OpLt, kir.OpLe, kir.OpGt, kir.OpGe} {
				add(op, t, B, t, t)
			}
			add(kir.OpNeg, t, t, t)
			add(kir.OpAbs, t, t, t)
		}
		if t.IsFloat() {
			for _, op := range []kir.Op{kir.OpSqrt, kir.OpFloor, kir.OpCeil, kir.OpTrunc, kir.OpRint} {
				add(op, t, t, t)
			}
			if t == dtype.Float32 {
				add(kir.OpExp2, t, t, t)
				add(kir.OpRcp, t, t, t)
				add(kir.OpMinimum, t, t, t, t)
				add(kir.OpMaximum, t, t, t, t)
			}
			add(kir.OpFMA, t, t, t, t, t)
			add(kir.OpIsNaN, t, B, t)
			continue
		}
		for _, op := range []kir.Op{kir.OpAnd, kir.OpOr, kir.OpXor} {
			add(op, t, t, t, t)
		}
		add(kir.OpNot, t, t, t)
		if t == B {
			continue
		}
		add(kir.OpRem, t, t, t, t)
		add(kir.OpShl, t, t, t, I32)
		add(kir.OpShr, t, t, t, dtype.Uint32)
		if t.Size() >= 4 {
			add(kir.OpMulHi, t, t, t, t)
			add(kir.OpClz, t, I32, t)
			add(kir.OpPopc, t, I32, t)
			add(kir.OpBitRev, t, t, t)
		}
	}
	add(kir.OpMulWide, I32, dtype.Int64, I32, I32)
	add(kir.OpMulWide, dtype.Uint32, dtype.Uint64, dtype.Uint32, dtype.Uint32)
	return cs
}

// program returns a program that computes out[i] = op(in0[i], in1[i], …), where operand j is uniform (in_j[0]) if bit j of forms is set.
func (c *opCase) program(forms int) *kir.Program {
	p := &kir.Program{Name: "op", Threads: 1024, Body: &kir.Block{}}
	value := func(t dtype.DType) kir.Value {
		p.Values = append(p.Values, t)
		return kir.Value(len(p.Values) - 1)
	}
	emit := func(in *kir.Instr, res dtype.DType) kir.Value {
		if res != dtype.Invalid {
			in.Res = []kir.Value{value(res)}
		}
		p.Body.Instrs = append(p.Body.Instrs, in)
		if res == dtype.Invalid {
			return kir.NoValue
		}
		return in.Res[0]
	}
	buffer := func(name string, t dtype.DType) kir.Value {
		p.Params = append(p.Params, kir.Param{Name: name, Kind: kir.ParamBuffer, Type: t})
		return emit(&kir.Instr{Op: kir.OpParam, Type: dtype.Uint64, Sym: len(p.Params) - 1}, dtype.Uint64)
	}
	i := emit(&kir.Instr{Op: kir.OpSpecial, Type: dtype.Int32, Sub: kir.TidX}, dtype.Int32)
	zero := emit(&kir.Instr{Op: kir.OpConst, Type: dtype.Int32}, dtype.Int32)
	op := &kir.Instr{Op: c.op, Type: c.t}
	for j, t := range c.args {
		at := i
		if forms>>j&1 != 0 {
			at = zero
		}
		op.Args = append(op.Args, emit(&kir.Instr{Op: kir.OpLoad, Type: t, Space: kir.Global, Width: 1,
			Args: []kir.Value{buffer(fmt.Sprint("in", j), t), at}}, t))
	}
	r := emit(op, c.res)
	emit(&kir.Instr{Op: kir.OpStore, Type: c.res, Space: kir.Global, Width: 1, Args: []kir.Value{buffer("out", c.res), i, r}},
		dtype.Invalid)
	return p
}

// fillBits allocates n elements of t with the given bits.
func fillBits(m *flat, t dtype.DType, vs []uint64) uint64 {
	addr := m.alloc(max(1, len(vs)*t.Size()))
	b := m.at(addr).bytes
	for i, v := range vs {
		for j := range t.Size() {
			b[i*t.Size()+j] = byte(v >> (8 * j))
		}
	}
	return addr
}

func readBits(m *flat, t dtype.DType, addr uint64, n int) []uint64 {
	b := m.at(addr).bytes
	out := make([]uint64, n)
	for i := range out {
		for j := range t.Size() {
			out[i] |= uint64(b[i*t.Size()+j]) << (8 * j)
		}
	}
	return out
}

// equalBits compares results; any two NaNs are equal.
func equalBits(t dtype.DType, a, b uint64) bool {
	if a == b {
		return true
	}
	if t.IsFloat() {
		x, y := toFloat(t, a), toFloat(t, b)
		return x != x && y != y
	}
	return false
}

// TestOps checks every operation on every type, with all combinations of uniform and varying operands, against the naive interpreter.
func TestOps(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for ci, c := range opCases() {
		for forms := range 1 << len(c.args) {
			p := c.program(forms)
			p.Name = fmt.Sprintf("op%d_%d", ci, forms)
			if err := kir.Verify(p); err != nil {
				t.Fatalf("%v of %v from %v: %v", c.op, c.t, c.args, err)
			}
			k, err := Compile(p)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				const n = 333
				m := newFlat()
				var args []any
				for _, at := range c.args {
					pool := samples(at, r, 60)
					vs := make([]uint64, n)
					for i := range vs {
						vs[i] = pool[r.Intn(len(pool))]
					}
					args = append(args, fillBits(m, at, vs))
				}
				got, want := m.alloc(n*c.res.Size()), m.alloc(n*c.res.Size())
				if err := k.Run(&Env{Mem: m}, x(1), x(n), 0, pack(append(args, got)...)); err != nil {
					t.Fatal(err)
				}
				interpret(p, m, x(1), x(n), pack(append(args, want)...))
				g, w := readBits(m, c.res, got, n), readBits(m, c.res, want, n)
				for i := range g {
					if !equalBits(c.res, g[i], w[i]) {
						s := ""
						for j, at := range c.args {
							at2 := i
							if forms>>j&1 != 0 {
								at2 = 0
							}
							s += fmt.Sprintf(" %#x", readBits(m, at, args[j].(uint64), n)[at2])
						}
						t.Fatalf("%v of %v from %v (forms %b): lane %d of operands%s = %#x, want %#x", c.op, c.t, c.args,
							forms, i, s, g[i], w[i])
					}
				}
			}
		}
	}
}
