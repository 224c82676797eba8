package kernels

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// fusible are operations and the types in which they compute.
var fusible = func() (out []struct {
	op *PointOp
	t  dtype.DType
}) {
	f16, bf16, f32, f64, i8, i32, i64, u8, b, c := dtype.Float16, dtype.BFloat16, dtype.Float32, dtype.Float64, dtype.Int8, dtype.Int32,
		dtype.Int64, dtype.Uint8, dtype.Bool, dtype.Complex64
	floats, ints := []dtype.DType{f16, bf16, f32, f32, f64}, []dtype.DType{i8, i32, i64, u8}
	numbers := slices.Concat(floats, ints)
	for _, l := range []struct {
		ops []*PointOp
		ts  []dtype.DType
	}{
		{[]*PointOp{Add, Sub, Mul}, append(numbers, b, c)}, {[]*PointOp{Neg, Maximum, Lt, Eq, Clamp, AddScaled, AddCMul}, numbers},
		{[]*PointOp{Copy, Where, Fill}, append(numbers, b, c)},
		{[]*PointOp{Div, Exp, Tanh, GELU, NanToNum, Lerp, SiLUBackward, LeakyReLU, Sqrt, IsNaN, MaskedScale}, floats},
		{[]*PointOp{BitwiseAnd, LeftShift}, ints}, {[]*PointOp{LogicalNot, LogicalXor}, numbers},
		{[]*PointOp{CubeBF16, DivTruncF16}, []dtype.DType{f32}},
	} {
		for _, op := range l.ops {
			for _, t := range l.ts {
				out = append(out, struct {
					op *PointOp
					t  dtype.DType
				}{op, t})
			}
		}
	}
	return out
}()

// chain is a random group: its steps and the types of its values. The first values are its inputs.
type chain struct {
	ins    int
	types  []dtype.DType
	steps  []FusedStep
	outs   []int
	number []Scalar
}

func randomChain(rng *rand.Rand) *chain {
	all := []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32, dtype.Float32, dtype.Float64, dtype.Int8, dtype.Int32, dtype.Int64,
		dtype.Uint8, dtype.Bool, dtype.Complex64}
	c := &chain{ins: 1 + rng.IntN(4)}
	for range c.ins {
		c.types = append(c.types, all[rng.IntN(len(all))])
	}
	for range 1 + rng.IntN(8) {
		f := fusible[rng.IntN(len(fusible))]
		s := FusedStep{Op: f.op, Compute: f.t}
		half := opmath(f.t) != f.t
		for i := range f.op.Ins {
			in := FusedIn{Value: len(c.types) - 1 - rng.IntN(min(len(c.types), 4))}
			if rng.IntN(5) == 0 && f.op != Copy {
				in.Value = ScalarIn
			} else if half && c.types[in.Value] != f.t && (i >= len(f.op.InTypes) || f.op.InTypes[i] == dtype.Invalid) {
				in.Via = f.t
			}
			s.Ins = append(s.Ins, in)
		}
		out := FusedOut{DType: f.t}
		switch {
		case f.op == Lt || f.op == Eq || f.op == IsNaN || f.op == LogicalNot || f.op == LogicalXor:
			out.DType = dtype.Bool
		case rng.IntN(4) == 0:
			if out.DType = all[rng.IntN(len(all))]; half && out.DType != f.t && out.DType != dtype.Bool {
				out.Via = f.t
			}
		}
		s.Outs = []FusedOut{out}
		c.steps = append(c.steps, s)
		c.types = append(c.types, out.DType)
		for range f.op.Scalars {
			c.number = append(c.number, FloatScalar(float64(rng.IntN(64)-32)/8))
		}
		for _, in := range s.Ins {
			if in.Value == ScalarIn {
				c.number = append(c.number, FloatScalar(float64(rng.IntN(64)-32)/8))
			}
		}
	}
	for v := c.ins; v < len(c.types); v++ {
		if v == len(c.types)-1 || rng.IntN(4) == 0 && len(c.outs) < 3 {
			c.outs = append(c.outs, v)
		}
	}
	return c
}

// anything fills an array with every kind of element of its type.
func (h *host) anything(rng *rand.Rand, o Operand, n int) {
	b := h.view(o.Ptr)[:n*o.DType.Size()]
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	if o.DType == dtype.Bool {
		for i := range b {
			b[i] &= 1
		}
	} else if rng.IntN(2) == 0 {
		h.write(at(o.Ptr, o.DType, n), func(int) complex128 { return complex(sample(rng, o.DType), sample(rng, o.DType)) })
	}
	h.written(o.Ptr, len(b))
}

// TestFusedHasTheBitsOfItsSteps runs random groups as one kernel and as one kernel per step.
func TestFusedHasTheBitsOfItsSteps(t *testing.T) {
	h := newHost(t)
	for seed := range uint64(250) {
		rng := rand.New(rand.NewPCG(seed, 11))
		c := randomChain(rng)
		shape, name := []int{3 + rng.IntN(5), 1 + rng.IntN(40)}, ""
		n := shape[0] * shape[1]
		h.memory = h.memory[:0]
		values := make([]Operand, len(c.types))
		for i, dt := range c.types {
			values[i] = h.empty(dt, shape...)
			h.anything(rng, values[i], n)
			if i >= c.ins {
				continue
			}
			switch rng.IntN(8) {
			case 0:
				values[i] = expanded(at(values[i].Ptr, dt, shape[1]), shape...)
			case 1:
				values[i] = expanded(at(values[i].Ptr, dt, shape[0], 1), shape...)
			case 2:
				values[i] = permuted(at(values[i].Ptr, dt, shape[1], shape[0]), 1, 0)
			case 3:
				values[i] = expanded(at(values[i].Ptr, dt), shape...)
			}
		}
		next := c.number
		for i, s := range c.steps {
			out := values[c.ins+i]
			out.Via = s.Outs[0].Via
			ins := make([]Operand, len(s.Ins))
			k := s.Op.Scalars
			for j, in := range s.Ins {
				if in.Value == ScalarIn {
					k++
					continue
				}
				ins[j] = values[in.Value]
				ins[j].Via = in.Via
			}
			check(t, Pointwise(h, s.Op, s.Compute, next[:k], []Operand{out}, ins))
			next = next[k:]
			name += fmt.Sprintf(" %s:%v→%v", s.Op.Name, s.Compute, s.Outs[0].DType)
		}
		op := Fuse(c.types[:c.ins], c.steps, c.outs)
		if op != Fuse(slices.Clone(c.types[:c.ins]), slices.Clone(c.steps), slices.Clone(c.outs)) {
			t.Fatal("the same group gives another operation")
		}
		var outs []Operand
		for _, v := range c.outs {
			outs = append(outs, h.empty(c.types[v], shape...))
		}
		check(t, Pointwise(h, op, dtype.Float32, c.number, outs, values[:c.ins]))
		for i, v := range c.outs {
			size := n * c.types[v].Size()
			if got, want := h.view(outs[i].Ptr)[:size], h.view(values[v].Ptr)[:size]; !bytes.Equal(got, want) {
				t.Fatalf("seed %d:%s: value %d of shape %v is\n%x, want\n%x", seed, name, v, shape, got, want)
			}
		}
	}
	t.Logf("%d kernels", len(h.kernels))
}

// TestFuseRefuses gives Fuse steps that cannot be one kernel.
func TestFuseRefuses(t *testing.T) {
	f := dtype.Float32
	one := func(op *PointOp) []FusedStep {
		return []FusedStep{{Op: op, Compute: f, Ins: make([]FusedIn, op.Ins), Outs: []FusedOut{{DType: f}}}}
	}
	if Fuse([]dtype.DType{f}, one(Exp), []int{1}) == nil {
		t.Error("a plain operation is refused")
	}
	if Fuse([]dtype.DType{f}, one(Tril), []int{1}) != nil {
		t.Error("an operation that sees indexes is fused")
	}
	if Fuse([]dtype.DType{f}, one(BCE), []int{1}) != nil {
		t.Error("an operation with assertions is fused")
	}
	if Fuse(slices.Repeat([]dtype.DType{f}, maxOperands), one(Exp), []int{maxOperands}) != nil {
		t.Error("there are more operands than a kernel has")
	}
}

// TestFusedCopyKeepsBits copies every half; a NaN that went through float32 would lose bits.
func TestFusedCopyKeepsBits(t *testing.T) {
	h := newHost(t)
	for _, dt := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
		const n = 1 << 16
		src, dst := h.empty(dt, n), h.empty(dt, n)
		b := h.view(src.Ptr)
		for i := range n {
			b[2*i], b[2*i+1] = byte(i), byte(i>>8)
		}
		h.written(src.Ptr, 2*n)
		copied := FusedStep{Op: Copy, Compute: dt, Ins: []FusedIn{{Value: 0}}, Outs: []FusedOut{{DType: dt}}}
		op := Fuse([]dtype.DType{dt}, []FusedStep{copied}, []int{1})
		check(t, Pointwise(h, op, dtype.Float32, nil, []Operand{dst}, []Operand{src}))
		if !bytes.Equal(h.view(src.Ptr)[:2*n], h.view(dst.Ptr)[:2*n]) {
			t.Errorf("%v: the copy differs", dt)
		}
	}
}
