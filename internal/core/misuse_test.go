package core

import (
	"errors"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// TestMisuse checks that misuse is an error with the operation, its operands and the caller's line, and that the session goes on as if
// nothing had been called.
func TestMisuse(t *testing.T) {
	settled(t)
	opened(t, func(t *testing.T, x *Exec) {
		a := x.Zeros([]int{2}, dtype.Float32)
		wide := x.Zeros([]int{1}, dtype.Float32)
		for _, c := range []struct {
			name string
			f    func() error
			op   string
			want string
		}{
			{"nil", func() error { return Try(func() { x.Add(nil, a) }) }, "Add", "operand 0 is nil"},
			{"second nil", func() error { return Try(func() { x.Add(a, nil) }) }, "Add", "operand 1 is nil"},
			{"nil of a sum", func() error { return Try(func() { x.Sum(nil, nil, SumOpt{}) }) }, "Sum", "operand 0 is nil"},
			{"nil in a list", func() error { return Try(func() { x.Cat([]*Tensor{a, nil}, 0) }) }, "Cat", "operand 1 is nil"},
			{"overflow to zero", func() error { return Try(func() { x.Zeros([]int{1 << 40, 1 << 40}, dtype.Float32) }) }, "Full",
				"more elements than can be counted"},
			{"overflow to one", func() error { return Try(func() { x.Empty([]int{1<<32 + 1, 1<<32 - 1, 1 << 32}, dtype.Uint8) }) },
				"Empty", "more elements than can be counted"},
			{"overflow of an int", func() error { return Try(func() { x.Empty([]int{1 << 62, 2}, dtype.Uint8) }) }, "Empty",
				"more elements than can be counted"},
			{"overflow of bytes", func() error { return Try(func() { x.Empty([]int{1 << 61}, dtype.Float32) }) }, "Empty",
				"more bytes than"},
			{"view", func() error { return Try(func() { x.Expand(wide, 1<<40, 1<<40) }) }, "Expand", "more elements than can be counted"},
			{"a size to be found out", func() error { return Try(func() { From(x, []float32{1, 2}, -1) }) }, "FromBytes",
				"the shape [-1] has a negative dimension; give every size, since only View and Reshape find one out"},
			{"item", func() error { _, err := x.Item(a); return err }, "Item",
				"a tensor with 2 elements cannot be converted to a scalar; read all of them with tenon.Read"},
			{"read", func() error {
				_, err := Read[int64](x, a)
				return err
			}, "Read", "the tensor has type float32 and cannot be read as int64; read it as float32, or convert it with x.ToDType"},
		} {
			t.Run(c.name, func(t *testing.T) {
				before := LiveStorages()
				err := c.f()
				var e *fault.Error
				if !errors.As(err, &e) {
					t.Fatalf("got %v", err)
				}
				if e.Kind != fault.Invalid || e.Op != c.op || !strings.Contains(e.Error(), c.want) ||
					!strings.HasSuffix(e.File, "misuse_test.go") || e.Line == 0 {
					t.Errorf("got %v (kind %v)", e, e.Kind)
				}
				if n := LiveStorages(); n != before {
					t.Errorf("%d storages live, %d before", n, before)
				}
				if v := doubles(t, x, x.AddS(a, 1)); v[0] != 1 {
					t.Errorf("afterwards 0+1 = %v", v[0])
				}
			})
		}
		if n := x.Zeros([]int{1 << 40, 1 << 40, 0}, dtype.Float32).Numel(); n != 0 {
			t.Errorf("a dimension of 0 leaves %d elements", n)
		}
	})
}
