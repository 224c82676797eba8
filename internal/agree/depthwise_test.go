package agree

import (
	"testing"

	"tenon.dev/internal/kernels"
)

// depthwiseShapes are convolutions with one channel in each group, or a few: numbers of channels that fill accesses and blocks or do not,
// strips that end at a row's end or beyond it, kernels of one row, one column and the most taps, strides, dilations and paddings of all
// kinds.
var depthwiseShapes = []kernels.Conv{
	{Batch: 2, In: 64, H: 9, W: 14, KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1},
	{Batch: 1, In: 96, H: 10, W: 9, KH: 7, KW: 7, StrideH: 1, StrideW: 1, PadH: 3, PadW: 3, DilationH: 1, DilationW: 1},
	{Batch: 3, In: 24, H: 13, W: 17, KH: 3, KW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1},
	{Batch: 2, In: 6, H: 8, W: 23, KH: 3, KW: 5, StrideH: 1, StrideW: 3, PadH: 0, PadW: 2, DilationH: 2, DilationW: 1},
	{Batch: 2, In: 5, H: 12, W: 11, KH: 4, KW: 3, StrideH: 2, StrideW: 4, PadH: 3, PadW: 6, DilationH: 1, DilationW: 3},
	{Batch: 4, In: 40, H: 1, W: 33, KH: 1, KW: 4, StrideH: 1, StrideW: 1, PadH: 0, PadW: 3, DilationH: 1, DilationW: 1},
	{Batch: 2, In: 2, H: 31, W: 3, KH: 5, KW: 1, StrideH: 3, StrideW: 1, PadH: 2, PadW: 0, DilationH: 1, DilationW: 1},
	{Batch: 70, In: 80, H: 7, W: 7, KH: 1, KW: 1, StrideH: 1, StrideW: 2, PadH: 0, PadW: 1, DilationH: 1, DilationW: 1},
	{Batch: 1, In: 9, H: 6, W: 7, KH: 3, KW: 3, StrideH: 2, StrideW: 2, PadH: 4, PadW: 5, DilationH: 2, DilationW: 2},
	{Batch: 2, In: 20, H: 1, W: 60, KH: 1, KW: 31, StrideH: 1, StrideW: 1, PadH: 0, PadW: 15, DilationH: 1, DilationW: 1},
	{Batch: 1, In: 4, H: 2, W: 50, KH: 1, KW: 49, StrideH: 1, StrideW: 1, PadH: 0, PadW: 24, DilationH: 1, DilationW: 1},
	{Batch: 1, In: 4, H: 3, W: 260, KH: 2, KW: 2, StrideH: 1, StrideW: 1, PadH: 0, PadW: 0, DilationH: 1, DilationW: 257},
	{Batch: 2, In: 64, Out: 64, Groups: 8, H: 7, W: 14, KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1},
	{Batch: 1, In: 64, Out: 128, Groups: 4, H: 6, W: 9, KH: 3, KW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1},
	{Batch: 2, In: 12, Out: 24, Groups: 12, H: 8, W: 9, KH: 3, KW: 2, StrideH: 1, StrideW: 1, PadH: 1, PadW: 0, DilationH: 1, DilationW: 2},
	{Batch: 2, In: 24, Out: 12, Groups: 12, H: 9, W: 8, KH: 2, KW: 3, StrideH: 2, StrideW: 1, PadH: 0, PadW: 1, DilationH: 1, DilationW: 1},
	{Batch: 3, In: 30, Out: 20, Groups: 5, H: 5, W: 16, KH: 3, KW: 3, StrideH: 1, StrideW: 2, PadH: 1, PadW: 2, DilationH: 1, DilationW: 1},
}

// TestDepthwise compares the three products of convolutions with few channels in each group, of every type, with and without channels last,
// with sums in float64.
func TestDepthwise(t *testing.T) {
	spread(t, func(p *pair) {
		for i, c := range depthwiseShapes {
			if c.Groups == 0 {
				c.Groups, c.Out = c.In, c.In
			}
			c.OH = (c.H+2*c.PadH-c.DilationH*(c.KH-1)-1)/c.StrideH + 1
			c.OW = (c.W+2*c.PadW-c.DilationW*(c.KW-1)-1)/c.StrideW + 1
			for j, kind := range operandKinds {
				if kind.tf32 {
					continue
				}
				for _, exact := range []bool{false, true} {
					for _, last := range []int{0, 7, 1 << ((i + j) % 3)} {
						c.LastX, c.LastW, c.LastY = last&1 != 0, last&2 != 0, last&4 != 0
						cc := convCase{conv: c, t: kind.t, exact: exact, bias: (i+j)%2 == 0}
						for product := range 3 {
							p.try(cc.trial(product))
						}
					}
				}
			}
		}
		seen := map[any]int{}
		for s := range p.lib.programs {
			if s.Family == kernels.FamilyDepthwise {
				seen[[2]any{s.Op, s.Compute}]++
			}
		}
		kinds := 0
		for _, kind := range operandKinds {
			if !kind.tf32 {
				kinds++
			}
		}
		if len(seen) != 3*kinds {
			t.Errorf("the kernels %v ran; want all three of %d types", seen, kinds)
		}
	})
}
