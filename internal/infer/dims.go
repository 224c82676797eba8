package infer

import (
	"slices"

	"tenon.dev/fault"
)

// Dim converts the number d of one of n dimensions to 0 … n-1. An array without dimensions counts as having one.
func Dim(d, n int) (int, error) {
	m := max(n, 1)
	if d < -m || d >= m {
		return 0, OutOfRange(d, m)
	}
	if d < 0 {
		d += m
	}
	return d, nil
}

// OutOfRange returns the error for a number d that is not one of n dimensions.
func OutOfRange(d, n int) error {
	return Refusal(fault.Invalid, "Dimension out of range (expected to be in range of [%d, %d], but got %d)", -n, n-1, d)
}

// Dims converts numbers of n dimensions to 0 … n-1. A dimension must not occur twice, and an array without dimensions has none.
func Dims(dims []int, n int) ([]int, error) {
	out := make([]int, len(dims))
	for i, d := range dims {
		if d < -n || d >= n {
			return nil, OutOfRange(d, n)
		}
		if d < 0 {
			d += n
		}
		if slices.Contains(out[:i], d) {
			return nil, twice(d)
		}
		out[i] = d
	}
	return out, nil
}

func twice(d int) error {
	return Refusal(fault.Invalid, "dim %d appears multiple times in the list of dims", d)
}

// Marks appends to buf, for each of n dimensions, whether dims contain it. A dimension must not occur twice.
func Marks(buf []bool, dims []int, n int) ([]bool, error) {
	for range n {
		buf = append(buf, false)
	}
	for i, d := range dims {
		d, err := Dim(d, n)
		switch {
		case err != nil:
			return nil, err
		case n == 0 && i > 0, n > 0 && buf[d]:
			return nil, twice(d)
		case n > 0:
			buf[d] = true
		}
	}
	return buf, nil
}

// Over is Marks for reductions, where no dims mean all.
func Over(buf []bool, dims []int, n int) ([]bool, error) {
	if len(dims) > 0 {
		return Marks(buf, dims, n)
	}
	for range n {
		buf = append(buf, true)
	}
	return buf, nil
}

// Reduced appends to buf the shape of an array after the marked dimensions are reduced: they are removed or, with keep, have size 1.
func Reduced(buf, shape []int, marks []bool, keep bool) []int {
	for i, d := range shape {
		switch {
		case !marks[i]:
			buf = append(buf, d)
		case keep:
			buf = append(buf, 1)
		}
	}
	return buf
}

// OtherDims returns the numbers below n that are not among dims.
func OtherDims(n int, dims []int) []int {
	var out []int
	for i := range n {
		if !slices.Contains(dims, i) {
			out = append(out, i)
		}
	}
	return out
}

// DimsUpTo returns the numbers below n.
func DimsUpTo(n int) []int {
	d := make([]int, n)
	for i := range d {
		d[i] = i
	}
	return d
}
