package linalg

import (
	"math/bits"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

func multiDot(x *core.Exec, ts []*core.Tensor) *core.Tensor {
	refuse := func(format string, args ...any) {
		core.Refuse(x, "MultiDot", fault.New(fault.Invalid, format, args...), ts...)
	}
	n := len(ts)
	if n < 2 {
		refuse("expected at least 2 tensors but got %d", n)
	}
	for i, t := range ts {
		if ends := i == 0 || i == n-1; t.Dim() != 2 && (!ends || t.Dim() != 1) {
			refuse("tensor %d must be 2D, or 1D where it is the first or last, but got %dD", i, t.Dim())
		}
	}
	return core.Composite(x, "MultiDot", func(x *core.Exec) *core.Tensor {
		m := slices.Clone(ts)
		at := make([]**core.Tensor, n)
		for i := range m {
			at[i] = &m[i]
		}
		x = core.Casting(x, "MultiDot", core.CastLow, at...)
		row, column := m[0].Dim() == 1, m[n-1].Dim() == 1
		if row {
			m[0] = x.Unsqueeze(m[0], 0)
		}
		if column {
			m[n-1] = x.Unsqueeze(m[n-1], 1)
		}
		sizes := []int{m[0].Size(0)} // the number of rows, then of the columns of each
		for i, t := range m {
			if i > 0 && t.Size(0) != sizes[i] {
				refuse("tensors %d and %d with shapes %v and %v cannot be multiplied", i-1, i, m[i-1].Shape(), t.Shape())
			}
			sizes = append(sizes, t.Size(1))
		}
		split := chainOrder(sizes)
		var multiply func(i, j int) *core.Tensor
		multiply = func(i, j int) *core.Tensor {
			if i == j {
				return m[i]
			}
			k := split[i][j]
			return x.MM(multiply(i, k), multiply(k+1, j))
		}
		y := multiply(0, n-1)
		if column {
			y = x.Select(y, 1, 0)
		}
		if row {
			y = x.Select(y, 0, 0)
		}
		return y
	})
}

// chainOrder returns after which matrix to split the product of matrices i to j, for the fewest multiplications overall. Matrix i is
// sizes[i] x sizes[i+1].
func chainOrder(sizes []int) (split [][]int) {
	n := len(sizes) - 1
	cost := make([][]uint64, n)
	for i := range n {
		cost[i], split = make([]uint64, n), append(split, make([]int, n))
	}
	for length := 1; length < n; length++ {
		for i := 0; i+length < n; i++ {
			j := i + length
			cost[i][j] = 1<<64 - 1
			for k := i; k < j; k++ {
				c := cost[i][k] + cost[k+1][j] + triple(sizes[i], sizes[k+1], sizes[j+1])
				if c < cost[i][j] {
					cost[i][j], split[i][j] = c, k
				}
			}
		}
	}
	return split
}

// triple returns a·b·c, limited so that sums of many do not overflow.
func triple(a, b, c int) uint64 {
	const most = 1 << 56
	hi, ab := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || ab > most {
		return most
	}
	hi, abc := bits.Mul64(ab, uint64(c))
	if hi != 0 || abc > most {
		return most
	}
	return abc
}
