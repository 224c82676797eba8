package recorded

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

// tensor makes a contiguous tensor from values; for a complex type, from pairs of values.
func tensor(d dtype.DType, shape []int, values ...float64) *Tensor {
	t := &Tensor{DType: d, TypeName: d.String(), Shape: shape, Strides: rowMajor(shape)}
	for _, v := range values {
		switch d.Real() {
		case dtype.Bool, dtype.Uint8, dtype.Int8:
			t.Data = append(t.Data, byte(int64(v)))
		case dtype.Int16, dtype.Uint16:
			t.Data = binary.LittleEndian.AppendUint16(t.Data, uint16(int64(v)))
		case dtype.Int32, dtype.Uint32:
			t.Data = binary.LittleEndian.AppendUint32(t.Data, uint32(int64(v)))
		case dtype.Int64:
			t.Data = binary.LittleEndian.AppendUint64(t.Data, uint64(int64(v)))
		case dtype.Float16:
			t.Data = binary.LittleEndian.AppendUint16(t.Data, uint16(dtype.F16FromFloat64(v)))
		case dtype.BFloat16:
			t.Data = binary.LittleEndian.AppendUint16(t.Data, uint16(dtype.BF16FromFloat64(v)))
		case dtype.Float32:
			t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(float32(v)))
		case dtype.Float64:
			t.Data = binary.LittleEndian.AppendUint64(t.Data, math.Float64bits(v))
		}
	}
	return t
}

var nan, inf = math.NaN(), math.Inf(1)

func TestElements(t *testing.T) {
	for _, d := range []dtype.DType{dtype.Int8, dtype.Int16, dtype.Int32, dtype.Int64, dtype.Float16, dtype.BFloat16,
		dtype.Float32, dtype.Float64} {
		x := tensor(d, []int{3}, 1, -2, 100)
		for i, want := range []float64{1, -2, 100} {
			if got := x.Real(i); got != want || x.Complex(i) != complex(want, 0) {
				t.Errorf("%v: element %d is %v, want %v", d, i, got, want)
			}
		}
	}
	for _, d := range []dtype.DType{dtype.Bool, dtype.Uint8, dtype.Uint16, dtype.Uint32} {
		if x := tensor(d, []int{2}, 1, 200); x.Int(1) != 200 || x.Real(0) != 1 {
			t.Errorf("%v: %v %v", d, x.Int(1), x.Real(0))
		}
	}
	for _, d := range []dtype.DType{dtype.Complex64, dtype.Complex128} {
		if x := tensor(d, []int{2}, 1, 2, 3, -4); x.Complex(1) != 3-4i {
			t.Errorf("%v: %v", d, x.Complex(1))
		}
	}
}

// TestTolerances checks each type's bound just inside and just outside, at a magnitude where the relative part counts and at zero.
func TestTolerances(t *testing.T) {
	documented := map[dtype.DType]Tolerance{
		dtype.Float16: {1e-3, 1e-5}, dtype.BFloat16: {1.6e-2, 1e-5}, dtype.Float32: {1.3e-6, 1e-5}, dtype.Float64: {1e-7, 1e-7},
		dtype.Complex64: {1.3e-6, 1e-5}, dtype.Complex128: {1e-7, 1e-7},
		dtype.Int64: {}, dtype.Int32: {}, dtype.Uint8: {}, dtype.Bool: {}, dtype.Invalid: {},
	}
	for d, want := range documented {
		got := ToleranceOf(d)
		if got != want {
			t.Errorf("%v: %v, want %v", d, got, want)
		}
		for _, w := range []float64{0, 1, -1000} {
			edge := want.Abs + want.Rel*math.Abs(w)
			if !got.within(complex(w+0.99*edge, 0), complex(w, 0)) || edge > 0 && got.within(complex(w+1.01*edge, 0), complex(w, 0)) {
				t.Errorf("%v: the bound at %v is not %v", d, w, edge)
			}
		}
	}
	tol := ToleranceOf(dtype.Complex64)
	cnan, cinf := complex(nan, 0), complex(inf, 0)
	for _, c := range []struct {
		got, want complex128
		ok        bool
	}{
		{cnan, cnan, true}, {cnan, 1, false}, {1, cnan, false}, {complex(0, nan), complex(nan, 1), true},
		{cinf, cinf, true}, {-cinf, cinf, false}, {1, cinf, false}, {cinf, 1, false}, {complex(inf, 1), complex(inf, 1.0000001), false},
		{1 + 1i, 1 + 1.000001i, true}, {1 + 1i, 1 + 1.1i, false},
	} {
		if got := tol.within(c.got, c.want); got != c.ok {
			t.Errorf("within(%v, %v) = %v", c.got, c.want, got)
		}
	}
}

func TestCompare(t *testing.T) {
	f32 := func(shape []int, v ...float64) *Tensor { return tensor(dtype.Float32, shape, v...) }
	strided := func(x *Tensor, strides ...int) *Tensor { x.Strides = strides; return x }
	two := []int{2}
	cases := []struct {
		name      string
		got, want Value
		rule      Rule
		says      string // empty: equal
	}{
		{"same", f32(two, 1, 2), f32(two, 1, 2), Rule{}, ""},
		{"close", f32(two, 1, nan), f32(two, 1.000005, nan), Rule{}, ""},
		{"signed zero", f32(two, math.Copysign(0, -1), 0), f32(two, 0, 0), Rule{}, ""},
		{"far", f32([]int{2, 2}, 1, 2, 3, 5), f32([]int{2, 2}, 1, 2.1, 3, 4), Rule{},
			"out: 2 of 4 elements differ; the worst at [1 1]: got 5, want 4 (difference 1, relative 0.25; allowed 1e-05 + " +
				"1.3e-06 relative)"},
		{"worst of infinite", f32(two, 5, inf), f32(two, 4, 1), Rule{}, "the worst at [1]: got +Inf, want 1"},
		{"nan", f32(two, 1, nan), f32(two, 1, 2), Rule{}, "1 of 2 elements differ; the worst at [1]: got NaN, want 2"},
		{"skip values", f32(two, 1, 2), f32(two, 3, 4), Rule{SkipValues: true}, ""},
		{"dtype", f32(two, 1, 2), tensor(dtype.Float64, two, 1, 2), Rule{SkipValues: true}, "out: dtype is float32, want float64"},
		{"shape", f32([]int{1, 2}, 1, 2), f32(two, 1, 2), Rule{SkipValues: true}, "out: shape is [1 2], want [2]"},
		{"dtype and shape", f32([]int{1, 2}, 1, 2), tensor(dtype.Int8, two, 1, 2), Rule{}, "want int8\nout: shape"},
		{"strides", strided(f32([]int{1, 2}, 1, 2), 1, 1), f32([]int{1, 2}, 1, 2), Rule{},
			"out: strides is [1 1] for shape [1 2], want [2 1]"},
		{"strides that matter", strided(f32([]int{1, 2}, 1, 2), 1, 1), f32([]int{1, 2}, 1, 2), Rule{Strides: SignificantStrides}, ""},
		{"strides that matter differ", strided(f32([]int{1, 2}, 1, 2), 2, 2), f32([]int{1, 2}, 1, 2), Rule{Strides: SignificantStrides},
			"strides"},
		{"strides of nothing", strided(f32([]int{0, 2}), 7, 7), f32([]int{0, 2}), Rule{Strides: SignificantStrides}, ""},
		{"strides missing", strided(f32(two, 1, 2)), f32(two, 1, 2), Rule{Strides: SignificantStrides}, "strides"},
		{"any strides", strided(f32(two, 1, 2), 9), f32(two, 1, 2), Rule{Strides: AnyStrides}, ""},
		{"strides and values", strided(f32(two, 1, 2), 9), f32(two, 1, 3), Rule{}, "want [1]\nout: 1 of 2"},
		{"data length", f32(two, 1), f32(two, 1, 2), Rule{}, "length of the data is 4, want 8"},
		{"int", tensor(dtype.Int64, two, 1, 1<<53), tensor(dtype.Int64, two, 1, 1<<53), Rule{}, ""},
		{"int differs", tensor(dtype.Int32, two, 1, 7), tensor(dtype.Int32, two, 1, 8), Rule{},
			"1 of 2 elements differ; the worst at [1]: got 7, want 8"},
		{"bool", tensor(dtype.Bool, two, 1, 0), tensor(dtype.Bool, two, 1, 1), Rule{}, "got false, want true"},
		{"complex", tensor(dtype.Complex64, two, 1, 2, 3, 4), tensor(dtype.Complex64, two, 1, 2, 3, 5), Rule{},
			"at [1]: got (3+4i), want (3+5i)"},
		{"f64 text", tensor(dtype.Float64, nil, 0.1), tensor(dtype.Float64, nil, 0.2), Rule{},
			"1 of 1 elements differ; the worst at []: got 0.1, want 0.2"},
		{"unknown type", &Tensor{TypeName: "complex32", Data: []byte{1}}, &Tensor{TypeName: "complex32", Data: []byte{2}}, Rule{},
			"got bytes 01, want 02"},
		{"list", List{int64(1), f32(two, 1, 2)}, List{int64(1), f32(two, 1, 3)}, Rule{}, "out[1]: 1 of 2"},
		{"list length", List{}, List{int64(1)}, Rule{}, "out: length is 0, want 1"},
		{"dict", Dict{"a": int64(1)}, Dict{"a": int64(2)}, Rule{}, "out.a: got 1, want 2"},
		{"dict keys", Dict{"a": int64(1)}, Dict{"b": int64(1)}, Rule{}, "out: keys is [a], want [b]"},
		{"float", 1.0, 1.00000001, Rule{}, ""},
		{"float differs", 1.0, 1.1, Rule{}, "out: got 1, want 1.1 (difference 0.1"},
		{"float nan", nan, nan, Rule{}, ""},
		{"float skipped", 1.0, 2.0, Rule{SkipValues: true}, ""},
		{"complex scalar", 1i, 2i, Rule{}, "got (0+1i), want (0+2i)"},
		{"bools", true, true, Rule{}, ""},
		{"int scalar skipped", int64(1), int64(2), Rule{SkipValues: true}, ""},
		{"dtype value", dtype.Int8, dtype.Int16, Rule{}, "got int8, want int16"},
		{"nil", nil, nil, Rule{}, ""},
		{"nil tensor", (*Tensor)(nil), nil, Rule{}, ""},
		{"no tensor", nil, f32(two, 1, 2), Rule{}, "out: kind is nothing, want a tensor float32[2] strides [1]"},
		{"kinds", int64(1), 1.0, Rule{}, "out: kind is int64 1, want float64 1"},
		{"kinds of list", List{}, Dict{}, Rule{}, "kind is a list of 0, want Dict map[]"},
		{"tensor for list", f32(two, 1, 2), List{}, Rule{}, "kind is a tensor"},
		{"int for complex", int64(1), 1i, Rule{}, "want complex128"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := Compare("out", c.got, c.want, c.rule)
			if c.says == "" {
				if err != nil {
					t.Errorf("error %v", err)
				}
				return
			}
			var m *Mismatch
			if err == nil || !strings.Contains(err.Error(), c.says) || !errors.As(err, &m) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
}
