package infer

import (
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// shapes calls f with every shape of up to n dimensions of the given sizes.
func shapes(n int, sizes []int, f func(shape []int)) {
	var walk func(s []int)
	walk = func(s []int) {
		f(slices.Clone(s))
		if len(s) == n {
			return
		}
		for _, d := range sizes {
			walk(append(s, d))
		}
	}
	walk(nil)
}

// places returns the positions of the elements, in row-major order.
func places(shape, stride []int) []int {
	at := []int{0}
	for i, d := range shape {
		var next []int
		for _, a := range at {
			for j := range d {
				next = append(next, a+j*stride[i])
			}
		}
		at = next
	}
	return at
}

func wantError(t *testing.T, err error, kind fault.Kind, text string) {
	t.Helper()
	e, ok := err.(*fault.Error)
	if !ok || e.Kind != kind || !strings.Contains(e.Msg, text) {
		t.Errorf("got the error %v, want one of kind %v with %q", err, kind, text)
	}
}

// TestStorage compares the functions of shapes and strides with the positions of the elements.
func TestStorage(t *testing.T) {
	strides := []int{0, 1, 2, 3, 6}
	shapes(3, []int{0, 1, 2, 3}, func(shape []int) {
		shapes(len(shape), strides, func(stride []int) {
			if len(stride) != len(shape) {
				return
			}
			at := places(shape, stride)
			if n := Numel(shape); n != len(at) {
				t.Fatalf("Numel(%v) = %d", shape, n)
			}
			top, in, distinct := 0, true, map[int]bool{}
			for i, a := range at {
				top, in, distinct[a] = max(top, a+1), in && a == i, true
			}
			if n := Extent(shape, stride); n != top {
				t.Errorf("Extent(%v, %v) = %d, want %d", shape, stride, n, top)
			}
			if c := Contiguous(shape, stride); len(at) > 0 && c != in {
				t.Errorf("Contiguous(%v, %v) = %v", shape, stride, c)
			}
			if d := Dense(shape, stride); d != (len(distinct) == len(at) && top == len(at)) {
				t.Errorf("Dense(%v, %v) = %v", shape, stride, d)
			}
		})
		if st := RowMajor(nil, shape); !Contiguous(shape, st) || !Same(RowMajor([]int{7}, shape)[1:], st) {
			t.Errorf("RowMajor(%v) = %v", shape, st)
		}
	})
	if Same([]int{1}, []int{1, 2}) || Same([]int{1, 3}, []int{1, 2}) || !Same(nil, []int{}) {
		t.Error("Same does not compare lists")
	}
}

// TestViews checks that a view keeps every element at its position, whatever the view's shape.
func TestViews(t *testing.T) {
	made := 0
	shapes(3, []int{1, 2, 3, 4}, func(shape []int) {
		for _, stride := range [][]int{RowMajor(nil, shape), {12, 3, 1}, {1, 2, 8}, {2, 4, 0}} {
			if len(stride) != len(shape) {
				continue
			}
			shapes(3, []int{1, 2, 3, 4}, func(to []int) {
				if Numel(to) != Numel(shape) {
					return
				}
				if st, ok := ViewStrides(nil, shape, stride, to); ok {
					made++
					if !slices.Equal(places(shape, stride), places(to, st)) {
						t.Errorf("ViewStrides(%v, %v, %v) = %v", shape, stride, to, st)
					}
				} else if Contiguous(shape, stride) {
					t.Errorf("ViewStrides(%v, %v, %v) refuses a contiguous array", shape, stride, to)
				}
			})
		}
	})
	if made < 100 {
		t.Errorf("only %d views were made", made)
	}
	if got, err := View([]int{9}, []int{2, -1, 3}, 12); err != nil || !slices.Equal(got, []int{9, 2, 2, 3}) {
		t.Error(got, err)
	}
	for text, to := range map[string][]int{"only one dimension can be inferred": {-1, -1}, "invalid shape dimension -2": {-2, 6},
		"shape '[5 -1]' is invalid for input of size 12": {5, -1}, "shape '[0 -1]' is invalid": {0, -1}, "shape '[5]' is invalid": {5}} {
		_, err := View(nil, to, 12)
		wantError(t, err, fault.Invalid, text)
	}
}

// TestBroadcast compares Broadcast with the definition, dimension by dimension, and Expand with BroadcastStrides.
func TestBroadcast(t *testing.T) {
	sizes := []int{0, 1, 2, 3}
	shapes(2, sizes, func(a []int) {
		shapes(3, sizes, func(b []int) {
			n := max(len(a), len(b))
			want, ok := make([]int, n), true
			for i := range n {
				da, db := 1, 1
				if j := i - (n - len(a)); j >= 0 {
					da = a[j]
				}
				if j := i - (n - len(b)); j >= 0 {
					db = b[j]
				}
				want[i] = da
				if da == 1 {
					want[i] = db
				}
				ok = ok && (da == db || da == 1 || db == 1)
			}
			got, err := Broadcast(nil, a, b)
			if (err == nil) != ok || ok && !slices.Equal(got, want) {
				t.Errorf("Broadcast(%v, %v) = %v, %v; want %v", a, b, got, err, want)
			}
			fits := ok && slices.Equal(want, b)
			if (FitsInto("it", a, b) == nil) != fits || (ExpandsTo(a, b) == nil) != fits {
				t.Errorf("%v fits into %v: FitsInto says %v, ExpandsTo %v", a, b, FitsInto("it", a, b), ExpandsTo(a, b))
			}
			if !fits {
				return
			}
			st := make([]int, len(b))
			BroadcastStrides(st, a, RowMajor(nil, a), b)
			ex, err := Expand(slices.Clone(b), a, RowMajor(nil, a))
			if err != nil || !slices.Equal(places(b, st), places(b, ex)) {
				t.Errorf("%v in %v has strides %v, but %v where it is expanded (%v)", a, b, st, ex, err)
			}
		})
	})
	_, err := Broadcast(nil, []int{2, 3}, []int{4})
	wantError(t, err, fault.Invalid, "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1")
	to := []int{2, -1}
	if _, err := Expand(to, []int{3}, []int{1}); err != nil || to[1] != 3 {
		t.Error(to, err)
	}
	_, err = Expand([]int{3}, []int{1, 1}, []int{1, 1})
	wantError(t, err, fault.Invalid, "the number of sizes provided (1) must be greater or equal")
	_, err = Expand([]int{-1, 3}, []int{3}, []int{1})
	wantError(t, err, fault.Invalid, "isn't allowed in a leading, non-existing dimension 0")
	_, err = Expand([]int{4}, []int{3}, []int{1})
	wantError(t, err, fault.Invalid,
		"must match the existing size (3) at non-singleton dimension 0.  Target sizes: [4].  Tensor sizes: [3]")
	wantError(t, ExpandsTo([]int{2, 2}, []int{2}), fault.Invalid, "the input has 2 dimensions and cannot be expanded to [2]")
	wantError(t, FitsInto("the bias", []int{2}, []int{3}), fault.Invalid, "the bias of shape [2] does not broadcast to [3]")
}

func TestDims(t *testing.T) {
	for _, c := range []struct{ d, n, want int }{{0, 0, 0}, {-1, 0, 0}, {-1, 3, 2}, {2, 3, 2}} {
		if got, err := Dim(c.d, c.n); got != c.want || err != nil {
			t.Errorf("Dim(%d, %d) = %d, %v", c.d, c.n, got, err)
		}
	}
	_, err := Dim(3, 3)
	wantError(t, err, fault.Invalid, "Dimension out of range (expected to be in range of [-3, 2], but got 3)")
	if got, err := Dims([]int{-1, 0}, 3); err != nil || !slices.Equal(got, []int{2, 0}) || !slices.Equal(OtherDims(3, got), []int{1}) {
		t.Error(got, err)
	}
	_, err = Dims([]int{2, -1}, 3)
	wantError(t, err, fault.Invalid, "dim 2 appears multiple times in the list of dims")
	_, err = Dims([]int{0}, 0)
	wantError(t, err, fault.Invalid, "Dimension out of range")
	for _, f := range []func([]bool, []int, int) ([]bool, error){Marks, Over} {
		if m, err := f(nil, []int{-1}, 2); err != nil || !slices.Equal(m, []bool{false, true}) {
			t.Error(m, err)
		}
		if m, err := f(nil, []int{-1}, 0); err != nil || len(m) != 0 {
			t.Error(m, err)
		}
		_, err = f(nil, []int{0, -1}, 0)
		wantError(t, err, fault.Invalid, "dim 0 appears multiple times in the list of dims")
		_, err = f(nil, []int{1, 1}, 2)
		wantError(t, err, fault.Invalid, "dim 1 appears multiple times in the list of dims")
		_, err = f(nil, []int{2}, 2)
		wantError(t, err, fault.Invalid, "Dimension out of range")
	}
	none, _ := Marks(nil, nil, 2)
	all, _ := Over(nil, nil, 2)
	if !slices.Equal(none, []bool{false, false}) || !slices.Equal(all, []bool{true, true}) {
		t.Error(none, all)
	}
	marks := []bool{true, false}
	if a, b := Reduced(nil, []int{2, 3}, marks, false), Reduced(nil, []int{2, 3}, marks, true); !slices.Equal(a, []int{3}) ||
		!slices.Equal(b, []int{1, 3}) {
		t.Error(a, b)
	}
	if !slices.Equal(DimsUpTo(3), []int{0, 1, 2}) {
		t.Error(DimsUpTo(3))
	}
}

func TestLayout(t *testing.T) {
	perm := make([]int, 0, 8)
	columns, rows := Strided{[]int{2, 3}, []int{1, 2}}, Strided{[]int{2, 3}, []int{3, 1}}
	for _, c := range []struct {
		name string
		ins  []Strided
		want []int
	}{
		{"none", nil, nil},
		{"rows", []Strided{rows, rows}, nil},
		{"columns", []Strided{columns, columns}, []int{1, 2}},
		{"the first one decides", []Strided{columns, rows}, []int{1, 2}},
		{"the first one decides, rows", []Strided{rows, columns}, nil},
		{"what is broadcast does not tell", []Strided{{[]int{3}, []int{1}}, columns}, []int{1, 2}},
		{"0-d does not tell", []Strided{{nil, nil}, columns}, []int{1, 2}},
		{"gaps", []Strided{{[]int{2, 3}, []int{2, 4}}}, []int{1, 2}},
	} {
		if got := Layout([]int{2, 3}, c.ins, perm); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	shape := []int{2, 3, 4, 5}
	last := Strided{shape, ChannelsLastStrides(shape)}
	if !ChannelsLast(last.Shape, last.Stride) || ChannelsLast(shape, RowMajor(nil, shape)) || !Dense(last.Shape, last.Stride) {
		t.Error("channels last:", last)
	}
	if got := Layout(shape, []Strided{last, {[]int{3, 1, 1}, []int{1, 1, 1}}}, nil); !slices.Equal(got, last.Stride) {
		t.Errorf("channels last and a bias: %v, want %v", got, last.Stride)
	}
}

func TestTypes(t *testing.T) {
	const h, f, d, i, b, c = dtype.Float16, dtype.Float32, dtype.Float64, dtype.Int64, dtype.Bool, dtype.Complex64
	for _, p := range []struct{ dims, zero, number, want dtype.DType }{
		{f, d, 0, f}, {i, d, 0, d}, {i, 0, f, f}, {h, 0, f, h}, {b, i, 0, i}, {0, i, f, f}, {0, 0, i, i},
		{d, 0, c, dtype.Complex128}, {h, 0, c, c}, {f, c, 0, c}, {b, b, i, i}, {0, d, f, d},
	} {
		var got Promotion
		if p.dims != 0 {
			got.Tensor(p.dims, 2)
		}
		if p.zero != 0 {
			got.Tensor(p.zero, 0)
		}
		if p.number != 0 {
			got.Number(p.number)
		}
		if got.Type() != p.want {
			t.Errorf("%v, 0-d %v and the number %v promote to %v, not %v", p.dims, p.zero, p.number, p.want, got.Type())
		}
	}
	for _, p := range []struct{ in, floating, counting, accumulated dtype.DType }{{h, h, h, f},
		{dtype.BFloat16, dtype.BFloat16, dtype.BFloat16, f},
		{d, d, d, d}, {dtype.Int8, f, i, dtype.Int8}, {b, f, i, b}, {c, c, c, c}} {
		if Floating(p.in) != p.floating || Counting(p.in) != p.counting || Accumulated(p.in) != p.accumulated {
			t.Errorf("%v: %v, %v, %v", p.in, Floating(p.in), Counting(p.in), Accumulated(p.in))
		}
	}
	admits := func(f func(string, dtype.DType) error, text string, in, out []dtype.DType) {
		t.Helper()
		for _, dt := range in {
			if err := f("Op", dt); err != nil {
				t.Errorf("%v: %v", dt, err)
			}
		}
		for _, dt := range out {
			wantError(t, f("Op", dt), fault.Unsupported, strings.Replace(text, "%v", dt.String(), 1))
		}
	}
	type list = []dtype.DType
	admits(Numeric, "Op is not defined for bool tensors; convert them first with x.ToDType", list{h, d, i, c}, list{b})
	admits(Real, "Op is not defined for complex tensors; convert them first with x.RealPart or x.ToDType", list{h, d, i, b}, list{c})
	admits(Integral, "Op is defined for integer and bool tensors only, not %v; convert them first with x.ToDType", list{i, b}, list{f, c})
	admits(RealFloat, "Op is defined for floating-point tensors only, not %v; convert them first with x.ToDType", list{h, d}, list{i, b, c})
}

func TestResults(t *testing.T) {
	if got, err := Product([]int{9}, []int{5, 2, 3}, []int{5, 3, 4}); err != nil || !slices.Equal(got, []int{9, 5, 2, 4}) {
		t.Error(got, err)
	}
	for text, ab := range map[string][2][]int{
		"mat1 and mat2 shapes cannot be multiplied ([2 3] and [2 3])":    {{2, 3}, {2, 3}},
		"mat1 and mat2 shapes cannot be multiplied ([3] and [3])":        {{3}, {3}},
		"mat1 and mat2 shapes cannot be multiplied ([1 2 3] and [3 4])":  {{1, 2, 3}, {3, 4}},
		"batch dimensions of mat1 and mat2 differ ([1 2 3] and [5 3 4])": {{1, 2, 3}, {5, 3, 4}},
	} {
		_, err := Product(nil, ab[0], ab[1])
		wantError(t, err, fault.Invalid, text)
	}
	shape := []int{2, 3}
	if err := Lengthen(shape, []int{2, 4}, 1, 1); err != nil || !slices.Equal(shape, []int{2, 7}) {
		t.Error(shape, err)
	}
	wantError(t, Lengthen(shape, []int{2}, 1, 2), fault.Invalid, "Tensors must have same number of dimensions: got 2 and 1")
	wantError(t, Lengthen(shape, []int{3, 1}, 1, 2), fault.Invalid,
		"Sizes of tensors must match except in dimension 1. Expected size 2 but got size 3 for tensor number 2 in the list")
	// Windows are counted one by one. PyTorch's rule for ceil: the last window begins within the elements or the padding before them.
	for n := range 8 {
		for reach := 1; reach < 5; reach++ {
			for step := 1; step < 4; step++ {
				for pad := 0; pad <= reach/2; pad++ {
					plain, ceil := 0, 0
					for at := -pad; at+reach <= n+pad; at += step {
						plain++
					}
					for at := -pad; at < n && at-step+reach < n+pad; at += step {
						ceil++
					}
					if got := Windows(n, reach, step, pad, false); got != plain {
						t.Errorf("Windows(%d, %d, %d, %d, false) = %d, want %d", n, reach, step, pad, got, plain)
					}
					if got := Windows(n, reach, step, pad, true); n > 0 && got != ceil {
						t.Errorf("Windows(%d, %d, %d, %d, true) = %d, want %d", n, reach, step, pad, got, ceil)
					}
				}
			}
		}
	}
}
