package core

import (
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// TestSlices checks what IndexCopy, IndexFill and IndexAdd write, in new tensors and in place, along each dimension and for 0-d tensors.
func TestSlices(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		at := func(v ...int64) *Tensor { return From(x, v) }
		grid := func() *Tensor { return From(x, []float32{1, 2, 3, 4, 5, 6}, 2, 3) }
		column, rows := From(x, []float32{7, 8}, 2, 1), From(x, []float32{10, 20, 30, 40, 50, 60}, 2, 3)
		number := x.Full(nil, 9, dtype.Float32)
		for _, c := range []struct {
			name string
			got  *Tensor
			want []float32
		}{
			{"copy", x.IndexCopy(grid(), 1, at(2), column), []float32{1, 2, 7, 4, 5, 8}},
			{"copy by a number", x.IndexCopy(grid(), -1, x.Select(at(2), 0, 0), column), []float32{1, 2, 7, 4, 5, 8}},
			{"copy by int32", x.IndexCopy(grid(), 0, From(x, []int32{1, 0}), rows), []float32{40, 50, 60, 10, 20, 30}},
			{"copy by every second number", x.IndexCopy(grid(), 0, x.Slice(at(1, 9, 0), 0, 0, 3, 2), rows),
				[]float32{40, 50, 60, 10, 20, 30}},
			{"copy of a transposed source", x.IndexCopy(x.Transpose(grid(), 0, 1), 1, at(1, 0), x.Transpose(rows, 0, 1)),
				[]float32{40, 10, 50, 20, 60, 30}},
			{"copy of nothing", x.IndexCopy(grid(), 1, at(), x.Slice(grid(), 1, 0, 0, 1)), []float32{1, 2, 3, 4, 5, 6}},
			{"copy to a number", x.IndexCopy(number, 0, at(0), x.Full(nil, 3, dtype.Float32)), []float32{3}},
			{"copy to a number from a vector", x.IndexCopy(number, -1, at(0), x.Full([]int{1}, 3, dtype.Float32)), []float32{3}},
			{"fill", x.IndexFill(grid(), 1, at(-1, 0, 2), number), []float32{9, 2, 9, 9, 5, 9}},
			{"fill from another type", x.IndexFill(grid(), 0, at(1), x.Full(nil, -3, dtype.Int64)), []float32{1, 2, 3, -3, -3, -3}},
			{"fill with a number", x.IndexFillS(grid(), 1, at(-1, 0, 2), 9), []float32{9, 2, 9, 9, 5, 9}},
			{"fill nothing", x.IndexFillS(grid(), 1, at(), 9), []float32{1, 2, 3, 4, 5, 6}},
			{"fill a number", x.IndexFillS(number, 0, at(0, -1), 3), []float32{3}},
			{"add", x.IndexAdd(grid(), 0, at(1, 1), rows, IndexAddOpt{}), []float32{1, 2, 3, 54, 75, 96}},
			{"add a multiple", x.IndexAdd(grid(), 1, at(0), column, IndexAddOpt{Alpha: -0.5}), []float32{-2.5, 2, 3, 0, 5, 6}},
			{"add none of it", x.IndexAdd(grid(), 1, at(0), column, IndexAddOpt{Alpha: 0}), []float32{1, 2, 3, 4, 5, 6}},
		} {
			t.Run(c.name, func(t *testing.T) { want(t, x, c.got, c.want...) })
		}
		for name, write := range map[string]func(dst, t *Tensor) []float32{
			"copy": func(dst, t *Tensor) []float32 {
				x.IndexCopyInto(dst, t, 1, at(2), column)
				return []float32{1, 2, 7, 4, 5, 8}
			},
			"fill": func(dst, t *Tensor) []float32 {
				x.IndexFillInto(dst, t, 1, at(2, -1), number)
				return []float32{1, 2, 9, 4, 5, 9}
			},
			"fill with a number": func(dst, t *Tensor) []float32 {
				x.IndexFillSInto(dst, t, 1, at(2, -1), 9)
				return []float32{1, 2, 9, 4, 5, 9}
			},
			"add": func(dst, t *Tensor) []float32 {
				x.IndexAddInto(dst, t, 1, at(2), column, IndexAddOpt{Alpha: 2})
				return []float32{1, 2, 17, 4, 5, 22}
			},
		} {
			t.Run(name+" in place", func(t *testing.T) {
				g, other := grid(), x.Zeros([]int{2, 3}, dtype.Float32)
				turned := x.Transpose(x.Zeros([]int{3, 2}, dtype.Float32), 0, 1)
				want(t, x, other, 0, 0, 0, 0, 0, 0)
				w := write(other, g)
				want(t, x, other, w...)
				write(turned, g)
				want(t, x, turned, w...)
				want(t, x, g, 1, 2, 3, 4, 5, 6)
				write(g, g)
				want(t, x, g, w...)
			})
		}
	})
}

// TestSlicesOneLaunch checks that keys go into a cache in one launch, and that nothing holds an expanded index.
func TestSlicesOneLaunch(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		cache, key := x.Zeros([]int{2, 4, 16, 8}, dtype.BFloat16), x.Ones([]int{2, 4, 1, 8}, dtype.BFloat16)
		position := From(x, []int64{5})
		launches, storages := x.s.launches, live.Load()
		x.IndexCopyInto(cache, cache, 2, position, key)
		if n, held := x.s.launches-launches, live.Load()-storages; n != 1 || held != 0 {
			t.Errorf("%d launches, %d storages", n, held)
		}
		want(t, x, x.ToDType(x.Sum(x.Select(cache, 2, 5), nil, SumOpt{}), dtype.Float32), 64)
		want(t, x, x.ToDType(x.Sum(cache, nil, SumOpt{}), dtype.Float32), 64)
	})
}

// TestSlicesGradient checks the gradients of changes in place and of equal indexes.
func TestSlicesGradient(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		back := func(y *Tensor) {
			t.Helper()
			if err := x.Backward(x.Sum(x.Mul(y, From(x, []float32{1, 2, 3})), nil, SumOpt{}), BackwardOpt{}); err != nil {
				t.Fatal(err)
			}
		}
		a, b, v := leafOf(x, 1, 2, 3), leafOf(x, 4, 5), x.Full(nil, 6, dtype.Float32).SetRequiresGrad(true)
		y := x.MulS(a, 2)
		x.IndexCopyInto(y, y, 0, From(x, []int64{2, 0}), b)
		back(y)
		want(t, x, a.Grad(), 0, 4, 0)
		want(t, x, b.Grad(), 3, 1)

		a = leafOf(x, 1, 2, 3)
		y = x.MulS(a, 2)
		x.IndexFillInto(y, y, 0, From(x, []int64{2, -1, 0}), v)
		back(y)
		want(t, x, a.Grad(), 0, 4, 0)
		want(t, x, v.Grad(), 4) // the last element once

		a, b = leafOf(x, 1, 2, 3), leafOf(x, 4, 5)
		y = x.MulS(a, 2)
		x.IndexAddInto(y, y, 0, From(x, []int64{1, 1}), b, IndexAddOpt{Alpha: 3})
		back(y)
		want(t, x, a.Grad(), 2, 4, 6)
		want(t, x, b.Grad(), 6, 6)

		a, b = leafOf(x, 1, 2, 3), leafOf(x, 4)
		y = x.MulS(a, 2)
		x.IndexPutInto(y, b, []Place{PlaceTensor(From(x, []int64{-1}))}, false)
		back(y)
		want(t, x, a.Grad(), 2, 4, 0)
		want(t, x, b.Grad(), 3)
	})
}

// TestSlicesRefused checks the errors of operands that do not fit.
func TestSlicesRefused(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		f, one := x.Ones([]int{2, 3}, dtype.Float32), From(x, []int64{1})
		n, column := x.Ones([]int{2, 3}, dtype.Int64), x.Ones([]int{2, 1}, dtype.Float32)
		for said, run := range map[string]func(){
			"Expected dtype int32 or int64 for index, but got float32; convert it with x.ToDType": func() {
				x.IndexCopy(f, 1, x.Ones([]int{1}, dtype.Float32), column)
			},
			"Index is supposed to be a vector, but got dim: 2; give a vector or one number": func() {
				x.IndexCopyInto(f, f, 1, n, column)
			},
			"src has shape [2 1], but index selects slices of shape [1 3]; give src that shape": func() {
				x.IndexCopy(f, 0, one, column)
			},
			"src has shape [2 3], but index selects slices of shape [2 1]; give src that shape": func() {
				x.IndexAdd(f, 1, one, f, IndexAddOpt{})
			},
			"src has shape [], but index selects slices of shape [2 1]": func() {
				x.IndexAdd(f, 1, one, x.Ones(nil, dtype.Float32), IndexAddOpt{})
			},
			"the tensor is float32, but src is int64; convert src with x.ToDType": func() {
				x.IndexCopy(f, 1, one, x.Narrow(n, 1, 0, 1))
			},
			"argument alpha must not be a floating point number, but Alpha is 0.5; give a whole number": func() {
				x.IndexAdd(n, 1, one, x.Narrow(n, 1, 0, 1), IndexAddOpt{Alpha: 0.5})
			},
			"v has shape [2 1], but must be 0-d; give one number, or use x.IndexCopy": func() {
				x.IndexFill(f, 1, one, column)
			},
			"Expected dtype int32 or int64 for index, but got bool": func() {
				x.IndexFillS(f, 1, x.Ones([]int{3}, dtype.Bool), 1)
			},
			"the number 1e+30 is out of range for int64; give one from -9223372036854775808": func() { x.IndexFillS(n, 1, one, 1e30) },
			"Dimension out of range (expected to be in range of [-2, 1], but got 2":          func() { x.IndexFillS(f, 2, one, 1) },
			"dimension 1 of the tensor [2 0] has no elements, so every index is out of range; give an empty index": func() {
				x.IndexCopy(x.Zeros([]int{2, 0}, dtype.Float32), 1, one, column)
			},
			"the destination overlaps the operand src, which is read while it changes; Clone one of them first": func() {
				x.IndexCopyInto(f, f, 0, From(x, []int64{1, 0}), f)
			},
			"the destination overlaps the operand index, which is read while it changes; Clone one of them first": func() {
				v := From(x, []int64{1, 0})
				x.IndexCopyInto(v, v, 0, v, From(x, []int64{5, 6}))
			},
			"the destination has shape [2 1], but the result has shape [2 3]": func() { x.IndexFillSInto(column, f, 1, one, 1) },
		} {
			wantError(t, Try(run), fault.Invalid, said, "ops_slices_test.go:")
		}
	})
}

// TestSharingExpanded checks that expanded tensors, whose strides may be 0, are compared with destinations in the same memory.
func TestSharingExpanded(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		all := x.Zeros([]int{12}, dtype.Float32)
		dst, apart := x.View(x.Slice(all, 0, 0, 6, 1), 2, 3), x.Expand(x.Slice(all, 0, 6, 7, 1), 2, 3)
		x.IndexCopyInto(dst, dst, 0, From(x, []int64{1, 0}), apart)
		within := x.Expand(x.Slice(all, 0, 3, 4, 1), 2, 3)
		for _, c := range [][2]*Tensor{{dst, within}, {within, dst}} {
			err := Try(func() { x.IndexCopyInto(c[0], dst, 0, From(x, []int64{1, 0}), c[1]) })
			wantError(t, err, fault.Invalid, "overlaps the operand src")
		}
	})
}
