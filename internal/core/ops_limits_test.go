package core

import (
	"math"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// TestNoRoom checks that operations that would need more of the program's memory than there is fail: otherwise Go would end the program.
func TestNoRoom(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		vast := x.Expand(x.Ones([]int{1}, dtype.Float32), 1<<40)
		_, err := x.Bytes(vast)
		wantError(t, err, fault.OutOfMemory, "1099511627776 elements of 4 bytes do not fit into the machine's memory")
		_, err = Read[float32](x, vast)
		wantError(t, err, fault.OutOfMemory, "read a part of the tensor")
		nothing := x.Empty([]int{0}, dtype.Float32)
		for what, f := range map[string]func(){
			"1099511627776 pieces are too many; ask for at most": func() { x.Unbind(vast, 0) },
			"549755813888 pieces are too many":                   func() { x.Split(vast, 2, 0) },
			"1073741824 pieces are too many":                     func() { x.Chunk(vast, 1<<30, 0) },
			"9223372036854775807 pieces are too many":            func() { x.Chunk(nothing, math.MaxInt, 0) },
		} {
			wantError(t, Try(f), fault.Invalid, what)
		}
	})
}

// TestSplitOfLargeSizes checks that adding and counting the sizes of pieces does not overflow.
func TestSplitOfLargeSizes(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		nothing := x.Empty([]int{0}, dtype.Float32)
		wantError(t, Try(func() { x.SplitSizes(nothing, []int{math.MaxInt, math.MaxInt, 2}, 0) }), fault.Invalid, "to sum exactly to 0")
		wantError(t, Try(func() { x.SplitSizes(nothing, []int{math.MaxInt, math.MinInt, 1}, 0) }), fault.Invalid, "non-negative")
		largest := x.Expand(x.Ones([]int{1}, dtype.Uint8), math.MaxInt)
		for size, want := range map[int][]int{
			1 << 62:               {1 << 62, 1<<62 - 1},
			math.MaxInt:           {math.MaxInt},
			math.MaxInt - 1:       {math.MaxInt - 1, 1},
			(math.MaxInt - 1) / 2: {1<<62 - 1, 1<<62 - 1, 1},
			math.MaxInt/3 + 1<<40: {math.MaxInt/3 + 1<<40, math.MaxInt/3 + 1<<40, math.MaxInt - 2*(math.MaxInt/3+1<<40)},
		} {
			var got []int
			for _, p := range x.Split(largest, size, 0) {
				got = append(got, p.Numel())
			}
			if !slices.Equal(got, want) {
				t.Errorf("pieces of %d have %v elements, want %v", size, got, want)
			}
		}
	})
}
