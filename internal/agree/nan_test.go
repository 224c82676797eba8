package agree

import (
	"encoding/binary"
	"math"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// A back end's compiler knows that |x|, x·x and the like are not negative, and may ignore that they can be NaN when it compares them.

// knownForms are floats whose range a compiler knows, apart from NaN.
var knownForms = []struct {
	name  string
	build func(k *kernel.Builder, x kernel.Value) kernel.Value
	value func(x float64) float64
}{
	{"x", func(_ *kernel.Builder, x kernel.Value) kernel.Value { return x }, func(x float64) float64 { return x }},
	{"|x|", func(_ *kernel.Builder, x kernel.Value) kernel.Value { return x.Abs() }, math.Abs},
	{"-|x|", func(_ *kernel.Builder, x kernel.Value) kernel.Value {
		return x.Abs().Neg()
	}, func(x float64) float64 { return -math.Abs(x) }},
	{"x·x", func(_ *kernel.Builder, x kernel.Value) kernel.Value { return x.Mul(x) }, func(x float64) float64 { return x * x }},
	{"|x|+|x|", func(_ *kernel.Builder, x kernel.Value) kernel.Value {
		return x.Abs().Add(x.Abs())
	}, func(x float64) float64 { return 2 * math.Abs(x) }},
	{"sqrt", func(_ *kernel.Builder, x kernel.Value) kernel.Value { return x.Sqrt() }, math.Sqrt},
	{"max", func(_ *kernel.Builder, x kernel.Value) kernel.Value {
		return x.IsNaN().Select(x, x.Max(x.Like(0)))
	}, func(x float64) float64 { return math.Max(x, 0) }},
}

var knownBounds = []float64{-1, math.Copysign(0, -1), 0, 1, math.Inf(1), math.Inf(-1)}

// comparedAs are the comparisons, each giving one bit of what the kernel stores: of a value with a constant, in either order, with a value
// whose range is also known, and as a selection.
var comparedAs = []struct {
	name  string
	build func(a, b kernel.Value) kernel.Value
	value func(a, b float64) bool
}{
	{"==", kernel.Value.Eq, func(a, b float64) bool { return a == b }},
	{"!=", kernel.Value.Ne, func(a, b float64) bool { return a != b }},
	{"<", kernel.Value.Lt, func(a, b float64) bool { return a < b }},
	{"<=", kernel.Value.Le, func(a, b float64) bool { return a <= b }},
	{">", kernel.Value.Gt, func(a, b float64) bool { return a > b }},
	{">=", kernel.Value.Ge, func(a, b float64) bool { return a >= b }},
	{"constant <", func(a, b kernel.Value) kernel.Value { return b.Lt(a) }, func(a, b float64) bool { return b < a }},
	{"constant <=", func(a, b kernel.Value) kernel.Value { return b.Le(a) }, func(a, b float64) bool { return b <= a }},
	{"not <", func(a, b kernel.Value) kernel.Value { return a.Lt(b).Not() }, func(a, b float64) bool { return !(a < b) }},
	{"not >=", func(a, b kernel.Value) kernel.Value { return a.Ge(b).Not() }, func(a, b float64) bool { return !(a >= b) }},
	{">= -|a|", func(a, _ kernel.Value) kernel.Value { return a.Abs().Ge(a.Abs().Neg()) }, func(a, _ float64) bool { return a == a }},
	{"max is a number", func(a, b kernel.Value) kernel.Value { return a.Max(b).IsNaN().Not() }, func(a, b float64) bool { return true }},
}

func TestComparisonsOfNaN(t *testing.T) {
	p := newPair(t)
	inputs := []float32{float32(math.NaN()), 0, float32(math.Copysign(0, -1)), 1, -1, 0.25, -3, float32(math.Inf(1)), float32(math.Inf(-1))}
	image := make([]byte, 4*len(inputs))
	for i, v := range inputs {
		binary.LittleEndian.PutUint32(image[4*i:], math.Float32bits(v))
	}
	per := len(knownForms) * len(knownBounds)
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64} {
		prog, err := kernel.Build("nan_compare_"+dt.String(), func(k *kernel.Builder) {
			in, out, n := k.BufferRO("in", dtype.Float32), k.Buffer("out", dtype.Uint32), k.Scalar("n", dtype.Int64)
			k.ForEach(n, func(i kernel.Value) {
				x := in.Load(i).Convert(dt)
				for f, form := range knownForms {
					for b, bound := range knownBounds {
						bits := k.U32(0)
						for j, c := range comparedAs {
							bits = bits.Or(c.build(form.build(k, x), k.Const(dt, bound)).Select(k.U32(1<<j), k.U32(0)))
						}
						out.Store(i.Mul(k.I64(int64(per))).Add(k.I64(int64(f*len(knownBounds)+b))), bits)
					}
				}
			})
		}).Program()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range p.sides {
			s.prepare([]*kir.Program{prog}, 1)
			if err := s.failed[prog.Name]; err != nil {
				t.Fatal(err)
			}
			got, err := s.compareNaN(prog, image, per)
			if err != nil {
				t.Fatalf("%v on the %s: %v", dt, s.name, err)
			}
			for i, v := range inputs {
				for f, form := range knownForms {
					for b, bound := range knownBounds {
						bits := binary.LittleEndian.Uint32(got[4*(i*per+f*len(knownBounds)+b):])
						for j, c := range comparedAs {
							if is, want := bits>>j&1 == 1, c.value(form.value(float64(v)), bound); is != want {
								t.Errorf("%v on the %s: %s of %v, %s %v: %v, want %v", dt, s.name, form.name, v, c.name, bound, is, want)
							}
						}
					}
				}
			}
		}
	}
}

// compareNaN runs the kernel over the float32 numbers in image, with per words of result for each.
func (s *side) compareNaN(p *kir.Program, image []byte, per int) ([]byte, error) {
	th := s.Enter()
	defer th.Leave()
	n := len(image) / 4
	args := binary.LittleEndian.AppendUint64(nil, uint64(s.arena))
	args = binary.LittleEndian.AppendUint64(args, uint64(s.arena)+uint64(len(image)))
	args = binary.LittleEndian.AppendUint64(args, uint64(n))
	if err := s.CopyHtoD(s.arena, image, s.stream); err != nil {
		return nil, err
	}
	if err := s.Launch(&driver.Launch{Func: s.funcs[p.Name], Stream: s.stream, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1},
		Args: args}); err != nil {
		return nil, err
	}
	got := make([]byte, 4*n*per)
	if err := s.CopyDtoH(got, s.arena+driver.Ptr(len(image)), s.stream); err != nil {
		return nil, err
	}
	return got, s.StreamSynchronize(th, s.stream)
}
