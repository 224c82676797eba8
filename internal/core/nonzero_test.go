package core

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/rt"
)

// holed has some nonzero numbers of each element type.
var holed = map[dtype.DType][]complex128{
	dtype.Bool: {1}, dtype.Uint8: {1, 255}, dtype.Int8: {1, -128}, dtype.Int16: {256, -1}, dtype.Int32: {1 << 16, -1},
	dtype.Int64:   {1 << 40, -1},
	dtype.Float16: {0.5, complex(math.NaN(), 0)}, dtype.BFloat16: {0x1p-100, complex(math.NaN(), 0)},
	dtype.Float32: {0x1p-149, complex(math.Inf(-1), 0)},
	dtype.Float64: {0x1p-1074, complex(math.NaN(), 0)}, dtype.Complex64: {1i, 1}, dtype.Complex128: {1i, complex(math.NaN(), 0)},
}

// withHoles returns a tensor about two thirds of whose elements are zero, and says which are not.
func withHoles(x *Exec, r *rand.Rand, dt dtype.DType, shape ...int) (t *Tensor, is []bool) {
	t = x.Zeros(shape, dt)
	flat := x.View(t, -1)
	is = make([]bool, t.Numel())
	for i := range is {
		if is[i] = r.IntN(3) == 0; is[i] {
			x.CopyInto(x.Select(flat, 0, i), x.FullC(nil, holed[dt][r.IntN(len(holed[dt]))], dt))
		}
	}
	return t, is
}

// indexesOf lists the indexes of the true elements, in row-major order of shape.
func indexesOf(is []bool, shape []int) (out []int64) {
	for i, v := range is {
		if !v {
			continue
		}
		at := make([]int64, len(shape))
		for d := len(shape) - 1; d >= 0; d-- {
			at[d] = int64(i % shape[d])
			i /= shape[d]
		}
		out = append(out, at...)
	}
	return out
}

func longs(t *testing.T, x *Exec, a *Tensor) []int64 {
	t.Helper()
	v, err := Read[int64](x, a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestNonzero(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(1, 2))
		for dt := range holed {
			for _, shape := range [][]int{{}, {1}, {40}, {3, 0, 2}, {5, 7}, {2, 3, 1, 4}} {
				a, is := withHoles(x, r, dt, shape...)
				at := x.Nonzero(a)
				if got, w := longs(t, x, at), indexesOf(is, shape); !slices.Equal(got, w) || at.shape[1] != len(shape) ||
					len(shape) == 0 && at.shape[0] != btoi(is[0]) {
					t.Errorf("%v %v: got %v %v, want %v", dt, shape, at.shape, got, w)
				}
				if len(shape) < 2 {
					continue
				}
				turned := x.Transpose(a, 0, 1)
				is = slices.Clone(is)
				for i, v := range bools(t, x, x.NeS(turned, 0)) {
					is[i] = v
				}
				if got, w := longs(t, x, x.Nonzero(turned)), indexesOf(is, turned.shape); !slices.Equal(got, w) {
					t.Errorf("%v %v turned: got %v, want %v", dt, shape, got, w)
				}
			}
		}
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func bools(t *testing.T, x *Exec, a *Tensor) []bool {
	t.Helper()
	v, err := Read[bool](x, a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestMaskedSelect compares MaskedSelect with loops, for operands that are broadcast both ways, and checks the gradients.
func TestMaskedSelect(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(3, 4))
		for _, c := range [][2][]int{{{}, {}}, {{7}, {7}}, {{5, 1, 3}, {4, 1}}, {{3}, {6, 3}}, {{2, 0}, {2, 1}}, {{50, 70}, {50, 70}},
			{{3000}, {3, 3000}}} {
			a := steps(x, c[0])
			mask, _ := withHoles(x, r, dtype.Bool, c[1]...)
			a.SetRequiresGrad(true)
			got := x.MaskedSelect(a, mask)
			shape := x.Mul(x.ToDType(mask, dtype.Float32), a).shape
			wide, on := doubles(t, x, x.Expand(a, shape...)), bools(t, x, x.Expand(mask, shape...))
			w, times := []float64{}, make([]float64, a.Numel())
			for i, v := range wide {
				if on[i] {
					w = append(w, v)
					times[int(v)]++
				}
			}
			if v := doubles(t, x, got); !slices.Equal(v, w) {
				t.Fatalf("%v: got %v, want %v", c, v, w)
			}
			if err := x.Backward(x.Sum(x.Mul(got, got), nil, SumOpt{}), BackwardOpt{}); err != nil {
				t.Fatal(err)
			}
			for i, g := range doubles(t, x, a.Grad()) {
				if g != 2*times[i]*float64(i) {
					t.Fatalf("%v: gradient %d is %v, want %v", c, i, g, 2*times[i]*float64(i))
				}
			}
		}
	})
}

// steps returns a float32 tensor of the numbers from 0 on.
func steps(x *Exec, shape []int) *Tensor {
	return x.Reshape(x.Arange(float64(product(shape)), dtype.Float32, ArangeOpt{}), shape...)
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// TestMaskedScatter uses fewer elements of the source than there are, and checks that the others get no gradient.
func TestMaskedScatter(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := steps(x, []int{2, 3}).SetRequiresGrad(true)
		source := From(x, []float32{10, 20, 30, 40, 50}).SetRequiresGrad(true)
		y := x.MaskedScatter(a, From(x, []bool{false, true, true}), source)
		want(t, x, y, 0, 10, 20, 3, 30, 40)
		if err := x.Backward(x.Sum(x.Mul(y, y), nil, SumOpt{}), BackwardOpt{}); err != nil {
			t.Fatal(err)
		}
		want(t, x, a.Grad(), 0, 0, 0, 6, 0, 0)
		want(t, x, source.Grad(), 20, 40, 60, 80, 0)
	})
}

// TestUnique compares Unique with sorting in Go.
func TestUnique(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(5, 6))
		for _, dt := range []dtype.DType{dtype.Bool, dtype.Uint8, dtype.Int8, dtype.Int16, dtype.Int32, dtype.Int64, dtype.Float16,
			dtype.BFloat16, dtype.Float32, dtype.Float64} {
			for _, shape := range [][]int{{}, {0}, {2, 0}, {50, 3}, {9, 1000}} {
				n := product(shape)
				given := make([]float32, n)
				for i := range given {
					given[i] = float32(r.IntN(40))
					if dt.IsFloat() || dt.IsSigned() {
						given[i] -= 20
					}
				}
				a := x.Reshape(x.ToDType(From(x, given, n), dt), shape...)
				if len(shape) == 2 {
					a = x.Transpose(a, 0, 1)
				}
				elements := doubles(t, x, a)
				values, inverse, counts := x.UniqueWithInverse(a)
				w := slices.Compact(slices.Sorted(slices.Values(elements)))
				if got := doubles(t, x, values); !slices.Equal(got, w) || values.dt != dt {
					t.Fatalf("%v %v: got %v, want %v", dt, shape, got, w)
				}
				times := make([]int64, len(w))
				for i, at := range longs(t, x, inverse) {
					if w[at] != elements[i] {
						t.Fatalf("%v %v: element %d is %v, and its number that of %v", dt, shape, i, elements[i], w[at])
					}
					times[at]++
				}
				if got := longs(t, x, counts); !slices.Equal(got, times) || !slices.Equal(inverse.shape, a.shape) {
					t.Fatalf("%v %v: counts are %v, want %v", dt, shape, got, times)
				}
				x.Unique(a)
			}
		}
		nan := float32(math.NaN())
		odd := x.Unique(From(x, []float32{nan, 1, float32(math.Copysign(0, -1)), nan, 0, float32(math.Inf(1)), float32(math.Inf(-1))}))
		if got := fmt.Sprint(floats(t, x, odd)); got != "[-Inf -0 1 +Inf NaN NaN]" {
			t.Errorf("odd numbers are %v", got)
		}
	})
}

// TestLengthsAreRefused checks that a capture refuses operations that read a length, and that operands that do not fit are refused.
func TestLengthsAreRefused(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, mask := ones(x, 4), From(x, []bool{true, false, true, true})
		for _, c := range []struct {
			op, want string
			f        func(x *Exec)
		}{
			{"Nonzero", "", func(x *Exec) { x.Nonzero(a) }},
			{"MaskedSelect", "", func(x *Exec) { x.MaskedSelect(a, mask) }},
			{"Unique", "", func(x *Exec) { x.Unique(a) }},
			{"MaskedSelect", "must be bool", func(x *Exec) { x.MaskedSelect(a, a) }},
			{"MaskedSelect", "must match the size", func(x *Exec) { x.MaskedSelect(ones(x, 3), mask) }},
			{"MaskedScatter", "must be bool", func(x *Exec) { x.MaskedScatter(a, a, a) }},
			{"MaskedScatter", "same dtypes", func(x *Exec) { x.MaskedScatter(a, mask, mask) }},
			{"RepeatInterleave", "", func(x *Exec) { x.RepeatInterleave(a, x.Full(nil, 3, dtype.Int64), RepeatInterleaveOpt{}) }},
			{"RepeatInterleave", "int32 or int64", func(x *Exec) { x.RepeatInterleave(a, a, RepeatInterleaveOpt{}) }},
			{"RepeatInterleave", "1D vector", func(x *Exec) {
				x.RepeatInterleave(a, x.Zeros([]int{2, 2}, dtype.Int64), RepeatInterleaveOpt{})
			}},
			{"RepeatInterleave", "same size", func(x *Exec) {
				x.RepeatInterleave(a, x.Zeros([]int{3}, dtype.Int64), RepeatInterleaveOpt{})
			}},
			{"RepeatInterleave", "is negative", func(x *Exec) {
				x.RepeatInterleave(a, x.Zeros(nil, dtype.Int64), RepeatInterleaveOpt{OutputSize: -1})
			}},
			{"RepeatInterleave", "nothing to be repeated", func(x *Exec) {
				x.RepeatInterleave(ones(x, 0), x.Zeros([]int{0}, dtype.Int64), RepeatInterleaveOpt{OutputSize: 1})
			}},
			{"RepeatInterleave", "out of range", func(x *Exec) { x.RepeatInterleaveS(a, 2, RepeatInterleaveOpt{Dim: new(int(1))}) }},
			{"RepeatInterleave", "output size is 7", func(x *Exec) { x.RepeatInterleaveS(a, 2, RepeatInterleaveOpt{OutputSize: 7}) }},
			{"RepeatInterleave", "non-negative", func(x *Exec) { x.RepeatInterleaveS(a, -2, RepeatInterleaveOpt{}) }},
			{"Unique", "no order", func(x *Exec) { x.Unique(x.Zeros([]int{2}, dtype.Complex64)) }},
		} {
			var err error
			if c.want == "" {
				if x.Device().Host {
					continue
				}
				if _, err = x.Capture(c.f, CaptureOpt{}); fault.KindOf(err) != fault.Capture || !strings.Contains(err.Error(), c.op) {
					t.Errorf("%s in a capture: %v", c.op, err)
				}
				continue
			}
			if err = Try(func() { c.f(x) }); fault.KindOf(err) == 0 || !strings.Contains(err.Error(), c.op) ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", c.op, err, c.want)
			}
		}
	})
}

// TestDifferent numbers the distinct values among integers below a bound.
func TestDifferent(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, below := range []int{1, 2, 300, 1 << 40} {
			r := rand.New(rand.NewPCG(7, 8))
			vs := make([]int64, 3000)
			for i := range vs {
				vs[i] = int64(r.IntN(below))
			}
			w := slices.Compact(slices.Sorted(slices.Values(vs)))
			inverse, n := Different(x, "Test", From(x, vs), below)
			if n != len(w) {
				t.Fatalf("below %d: %d different ones, want %d", below, n, len(w))
			}
			for i, at := range longs(t, x, inverse) {
				if w[at] != vs[i] {
					t.Fatalf("below %d: number %d is %d", below, i, at)
				}
			}
		}
	})
}

// TestRepeatInterleave compares RepeatInterleave with loops, along each dimension and flat, with the length read or given.
func TestRepeatInterleave(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(9, 10))
		for _, shape := range [][]int{{}, {5}, {4, 3}, {3, 0}, {2, 5, 3}, {3000, 2}} {
			a := steps(x, shape)
			for dim := -1; dim < len(shape); dim++ {
				opt, n, inner := RepeatInterleaveOpt{Dim: &dim}, 1, 1
				switch {
				case dim < 0:
					opt.Dim, n = nil, product(shape)
				default:
					n, inner = shape[dim], product(shape[dim+1:])
				}
				times, sum := make([]int64, n), 0
				for i := range times {
					times[i] = int64(r.IntN(4))
					sum += int(times[i])
				}
				var w []float64
				outer := product(shape) / max(n*inner, 1)
				for o := range outer {
					for i, c := range times {
						for range c {
							for j := range inner {
								w = append(w, float64((o*n+i)*inner+j))
							}
						}
					}
				}
				for _, given := range []int{0, sum} {
					opt.OutputSize = given
					repeats := From(x, times, n)
					if dim == 0 {
						repeats = x.ToDType(repeats, dtype.Int32)
					}
					got := x.RepeatInterleave(a, repeats, opt)
					if v := doubles(t, x, got); !slices.Equal(v, w) || len(got.shape) != max(len(shape), 1) && dim >= 0 {
						t.Fatalf("%v along %d by %v: got %v %v, want %v", shape, dim, times, got.shape, v, w)
					}
				}
				opt.OutputSize = 0
				three := x.RepeatInterleave(a, From(x, []int64{3}), opt)
				if same, err := x.Equal(three, x.RepeatInterleaveS(a, 3, opt)); !same || err != nil {
					t.Errorf("%v along %d: three times are not three times, %v", shape, dim, err)
				}
			}
		}
	})
}

// TestRepeatInterleaveFails checks that a failed assertion on the device is an error of the call.
func TestRepeatInterleaveFails(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	x := New(dev, host)
	for want, f := range map[string]func(x *Exec){
		"the number -1 is negative": func(x *Exec) {
			x.RepeatInterleave(ones(x, 2), From(x, []int64{3, -1}), RepeatInterleaveOpt{OutputSize: 2})
		},
		"the repeats sum to 4, and the output size is 5": func(x *Exec) {
			x.RepeatInterleave(ones(x, 2), From(x, []int64{3, 1}), RepeatInterleaveOpt{OutputSize: 5})
		},
		"the mask has more true elements than the 1 that the source has; give a longer source": func(x *Exec) {
			x.MaskedScatter(ones(x, 2), From(x, []bool{true, true}), ones(x, 1))
		},
	} {
		err := Try(func() {
			x.Scope(func(x *Exec) {
				f(x)
				x.check("Synchronize", x.Synchronize())
			})
		})
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
