package conformance

import (
	"bytes"
	le "encoding/binary"
	"encoding/json"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/internal/recorded"
)

// mixedCase is one operation on operands of different types, recorded from PyTorch 2.11 on an H200. Kind says what the odd operand is: a
// tensor without dimensions of the GPU (cuda0) or of the processor (cpu0), a tensor of integers with dimensions (full), a number (num);
// or that the result went to a tensor of another type (into).
type mixedCase struct {
	Op, Kind string
	In       []recordedBits
	Out      recordedBits
}

// recordedBits is a tensor as the bits of its elements, or the number N.
type recordedBits struct {
	D string
	S []int
	V []int64
	N *float64
}

var shortTypes = map[string]dtype.DType{"f16": tenon.Float16, "bf16": tenon.BFloat16, "f32": tenon.Float32, "f64": tenon.Float64,
	"i16": tenon.Int16, "i32": tenon.Int32,
	"i64": tenon.Int64, "b": tenon.Bool}

func (r *recordedBits) tensor(x *tenon.Exec) *tenon.Tensor {
	dt := shortTypes[r.D]
	var b []byte
	for _, v := range r.V {
		b = append(b, le.LittleEndian.AppendUint64(nil, uint64(v))[:dt.Size()]...)
	}
	return x.FromBytes(b, dt, r.S...)
}

// readRecorded decodes a compressed file.
func readRecorded(t *testing.T, path string, into any) {
	b, err := recorded.File(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

// mixedOps are the operations; an operand is a tensor, or nil if it is the number v.
var mixedOps = map[string]func(x *tenon.Exec, a, b *tenon.Tensor, v float64) *tenon.Tensor{
	"add": func(x *tenon.Exec, a, b *tenon.Tensor, v float64) *tenon.Tensor {
		if b == nil {
			return x.AddS(a, v)
		}
		return x.Add(a, b)
	},
	"sub": func(x *tenon.Exec, a, b *tenon.Tensor, v float64) *tenon.Tensor {
		switch {
		case a == nil:
			return x.RSubS(b, v)
		case b == nil:
			return x.SubS(a, v)
		}
		return x.Sub(a, b)
	},
	"mul": func(x *tenon.Exec, a, b *tenon.Tensor, v float64) *tenon.Tensor {
		if b == nil {
			return x.MulS(a, v)
		}
		return x.Mul(a, b)
	},
	"div": func(x *tenon.Exec, a, b *tenon.Tensor, v float64) *tenon.Tensor {
		switch {
		case a == nil:
			return x.RDivS(b, v)
		case b == nil:
			return x.DivS(a, v)
		}
		return x.Div(a, b)
	},
	"pow": func(x *tenon.Exec, a, b *tenon.Tensor, v float64) *tenon.Tensor {
		switch {
		case a == nil:
			return nil
		case b == nil:
			return x.PowS(a, v)
		}
		return x.Pow(a, b)
	},
	"maximum": tensors((*tenon.Exec).Maximum), "minimum": tensors((*tenon.Exec).Minimum), "fmax": tensors((*tenon.Exec).FMax),
	"fmin":  tensors((*tenon.Exec).FMin),
	"atan2": tensors((*tenon.Exec).Atan2), "hypot": tensors((*tenon.Exec).Hypot), "logaddexp": tensors((*tenon.Exec).LogAddExp),
	"logaddexp2": tensors((*tenon.Exec).LogAddExp2),
	"div_trunc":  tensors((*tenon.Exec).DivTrunc),
	"eq":         either((*tenon.Exec).Eq, (*tenon.Exec).EqS), "ne": either((*tenon.Exec).Ne, (*tenon.Exec).NeS),
	"lt": either((*tenon.Exec).Lt, (*tenon.Exec).LtS),
	"le": either((*tenon.Exec).Le, (*tenon.Exec).LeS), "gt": either((*tenon.Exec).Gt, (*tenon.Exec).GtS),
	"ge":   either((*tenon.Exec).Ge, (*tenon.Exec).GeS),
	"fmod": either((*tenon.Exec).FMod, (*tenon.Exec).FModS), "remainder": either((*tenon.Exec).Remainder, (*tenon.Exec).RemainderS),
	"floor_divide": either((*tenon.Exec).FloorDivide, (*tenon.Exec).FloorDivideS),
	"clamp_min":    either((*tenon.Exec).ClampMin, (*tenon.Exec).ClampMinS),
	"clamp_max":    either((*tenon.Exec).ClampMax, (*tenon.Exec).ClampMaxS),
	"add_scaled":   tensors(func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor { return x.AddScaled(a, b, 1.3) }),
	"where": tensors(func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor {
		return x.Where(evens(x, max(a.Numel(), b.Numel())), a, b)
	}),
	"masked_fill": func(x *tenon.Exec, a, b *tenon.Tensor, v float64) *tenon.Tensor {
		if b == nil {
			return x.MaskedFillS(a, evens(x, a.Numel()), v)
		}
		return x.MaskedFill(a, evens(x, a.Numel()), b)
	},
}

func evens(x *tenon.Exec, n int) *tenon.Tensor {
	b := make([]bool, n)
	for i := range b {
		b[i] = i%2 == 0
	}
	return tenon.From(x, b)
}

type binaryOp = func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor

func tensors(f binaryOp) func(x *tenon.Exec, a, b *tenon.Tensor, v float64) *tenon.Tensor {
	return either(f, nil)
}

func either(f binaryOp, s func(x *tenon.Exec, a *tenon.Tensor, v float64) *tenon.Tensor) func(x *tenon.Exec, a, b *tenon.Tensor,
	v float64) *tenon.Tensor {
	return func(x *tenon.Exec, a, b *tenon.Tensor, v float64) *tenon.Tensor {
		switch {
		case b != nil && a != nil:
			return f(x, a, b)
		case s != nil && a != nil:
			return s(x, a, v)
		}
		return nil
	}
}

// run does c on x, with the processor's tensors from cpu.
func (c *mixedCase) run(t *testing.T, x, cpu *tenon.Exec) *tenon.Tensor {
	var in [3]*tenon.Tensor
	v := 0.0
	for i := range c.In {
		switch r := &c.In[i]; {
		case r.N != nil:
			v = *r.N
		case len(r.S) == 0 && c.Kind == "cpu0":
			in[i] = r.tensor(cpu)
		default:
			in[i] = r.tensor(x)
		}
	}
	if c.Kind == "into" {
		into := map[string]func(x *tenon.Exec, dst, a, b *tenon.Tensor){
			"add": (*tenon.Exec).AddInto, "sub": (*tenon.Exec).SubInto, "mul": (*tenon.Exec).MulInto, "div": (*tenon.Exec).DivInto}
		dst := x.Empty(c.Out.S, shortTypes[c.Out.D])
		into[c.Op](x, dst, in[0], in[1])
		return dst
	}
	switch c.Op {
	case "lerp":
		if in[2] == nil {
			return x.LerpS(in[0], in[1], v)
		}
		return x.Lerp(in[0], in[1], in[2])
	case "addcmul":
		return x.AddCMul(in[0], in[1], in[2], tenon.AddCMulOpt{Value: 0.7})
	case "addcdiv":
		return x.AddCDiv(in[0], in[1], in[2], tenon.AddCMulOpt{Value: 0.7})
	case "clamp":
		return x.Clamp(in[0], in[1], in[2])
	}
	f := mixedOps[c.Op]
	if f == nil {
		t.Fatalf("no operation for %s", c.Op)
	}
	return f(x, in[0], in[1], v)
}

// TestMixedOperands runs PyTorch's recorded operations on halves and operands of other types, and compares the bits.
func TestMixedOperands(t *testing.T) {
	var recorded struct{ Mixed []mixedCase }
	readRecorded(t, "testdata/mixed.json.gz", &recorded)
	cpu, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	defer cpu.Close()
	x := openSimulator(t)
	if *deviceFlag == "cuda" { // the processor's tensors are another device's
		x = open(t)
	}
	for i := range recorded.Mixed {
		c := &recorded.Mixed[i]
		err := try(func() {
			x.Scope(func(x *tenon.Exec) {
				got, want := c.run(t, x, cpu), c.Out.tensor(x)
				a, err := x.Bytes(got)
				if err != nil {
					t.Fatal(err)
				}
				b, err := x.Bytes(want)
				if err != nil {
					t.Fatal(err)
				}
				if got.DType() != want.DType() || !bytes.Equal(a, b) {
					t.Errorf("case %d, %s %s of %v: %v %x, want %v %x", i, c.Op, c.Kind, c.In, got.DType(), a, want.DType(), b)
				}
			})
		})
		if err != nil {
			t.Errorf("case %d, %s %s of %v: %v", i, c.Op, c.Kind, c.In, err)
		}
	}
	t.Logf("mixed operands: %d cases", len(recorded.Mixed))
}
