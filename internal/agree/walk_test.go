package agree

import (
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// walkShapes are convolutions of channels that a copy engine can gather: with one kind of edge each, windows that lie mostly outside, and
// pixels between those of a window.
var walkShapes = []kernels.Conv{
	{Batch: 3, In: 64, H: 9, W: 11, Out: 64, KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1},
	{Batch: 2, In: 32, H: 13, W: 8, Out: 32, KH: 3, KW: 2, StrideH: 1, StrideW: 1, PadH: 0, PadW: 1, DilationH: 1, DilationW: 1},
	{Batch: 2, In: 96, H: 7, W: 10, Out: 32, KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 2, PadW: 1, DilationH: 2, DilationW: 1},
	{Batch: 2, In: 32, H: 7, W: 10, Out: 96, KH: 2, KW: 3, StrideH: 1, StrideW: 1, PadH: 0, PadW: 3, DilationH: 1, DilationW: 3},
	{Batch: 2, In: 128, H: 10, W: 9, Out: 256, KH: 3, KW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1},
	{Batch: 4, In: 64, H: 9, W: 8, Out: 136, KH: 1, KW: 1, StrideH: 2, StrideW: 3, DilationH: 1, DilationW: 1},
	{Batch: 1, In: 256, H: 5, W: 5, Out: 192, KH: 5, KW: 1, StrideH: 1, StrideW: 1, PadH: 4, PadW: 0, DilationH: 1, DilationW: 1},
	{Batch: 40, In: 32, H: 4, W: 3, Out: 48, KH: 1, KW: 3, StrideH: 1, StrideW: 2, PadH: 3, PadW: 2, DilationH: 1, DilationW: 1},
	{Batch: 8, In: 64, H: 16, W: 16, Out: 256, KH: 1, KW: 1, StrideH: 2, StrideW: 2, DilationH: 1, DilationW: 1}, // for blocks that last
	{Batch: 2, In: 64, H: 40, W: 30, Out: 32, KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1},
}

// phaseShapes are convolutions with strides, whose gradient of the input falls into phases: OH and OW may be less than such an input has,
// as those of a transposed convolution with an output padding.
var phaseShapes = []kernels.Conv{
	{Batch: 3, In: 64, H: 14, W: 16, Out: 64, KH: 3, KW: 3, OH: 7, OW: 8, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1},
	{Batch: 2, In: 64, H: 15, W: 13, Out: 128, KH: 3, KW: 3, OH: 8, OW: 7, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1},
	{Batch: 2, In: 96, H: 10, W: 12, Out: 64, KH: 3, KW: 3, OH: 4, OW: 5, StrideH: 2, StrideW: 2}, // the last row and column get nothing
	{Batch: 3, In: 128, H: 13, W: 14, Out: 192, KH: 1, KW: 1, OH: 7, OW: 7, StrideH: 2, StrideW: 2},
	{Batch: 2, In: 72, H: 9, W: 9, Out: 32, KH: 1, KW: 1, OH: 6, OW: 6, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1},
	{Batch: 2, In: 32, H: 18, W: 20, Out: 96, KH: 2, KW: 2, OH: 9, OW: 10, StrideH: 2, StrideW: 2},
	{Batch: 2, In: 48, H: 17, W: 22, Out: 64, KH: 5, KW: 5, OH: 6, OW: 8, StrideH: 3, StrideW: 3, PadH: 2, PadW: 1},
	{Batch: 2, In: 64, H: 20, W: 21, Out: 64, KH: 3, KW: 3, OH: 9, OW: 10, StrideH: 2, StrideW: 2, PadH: 1, PadW: 2, DilationH: 2,
		DilationW: 2}, // half of the phases have no taps
	{Batch: 2, In: 32, H: 21, W: 20, Out: 32, KH: 3, KW: 2, OH: 6, OW: 6, StrideH: 3, StrideW: 3, PadH: 1, PadW: 0, DilationH: 2,
		DilationW: 2},
	{Batch: 40, In: 32, H: 4, W: 5, Out: 64, KH: 1, KW: 3, OH: 4, OW: 3, StrideH: 1, StrideW: 2, PadW: 1},
	{Batch: 1, In: 128, H: 6, W: 6, Out: 512, KH: 3, KW: 3, OH: 3, OW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1}, // for divided depths
	{Batch: 3, In: 256, H: 26, W: 25, Out: 64, KH: 3, KW: 3, OH: 13, OW: 13, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1},
	{Batch: 2, In: 64, H: 9, W: 8, Out: 64, KH: 4, KW: 4, OH: 3, OW: 2, StrideH: 4, StrideW: 4, PadH: 2, PadW: 1}, // an output padding of 1
	{Batch: 3, In: 32, H: 14, W: 13, Out: 96, KH: 3, KW: 3, OH: 6, OW: 6, StrideH: 2, StrideW: 2, PadH: 0, PadW: 0},
}

// unfoldShapes are convolutions of few channels: with windows that overlap the edges of images, leave out some of their pixels, or lie
// outside; and pointwise ones, whose weight has few rows or columns.
var unfoldShapes = []kernels.Conv{
	{Batch: 2, In: 3, H: 20, W: 17, Out: 32, KH: 3, KW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1},
	{Batch: 3, In: 1, H: 11, W: 30, Out: 16, KH: 7, KW: 5, StrideH: 2, StrideW: 3, PadH: 3, PadW: 0, DilationH: 1, DilationW: 1},
	{Batch: 2, In: 4, H: 9, W: 10, Out: 24, KH: 2, KW: 3, StrideH: 1, StrideW: 1, PadH: 0, PadW: 4, DilationH: 3, DilationW: 2},
	{Batch: 2, In: 2, H: 14, W: 15, Out: 8, KH: 2, KW: 2, StrideH: 5, StrideW: 4, DilationH: 1, DilationW: 1},
	{Batch: 8, In: 3, H: 21, W: 18, Out: 64, KH: 7, KW: 7, StrideH: 2, StrideW: 2, PadH: 3, PadW: 3, DilationH: 1, DilationW: 1},
	{Batch: 3, In: 4, H: 19, W: 24, Out: 40, KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 2, DilationW: 1},
	{Batch: 2, In: 3, H: 16, W: 24, Out: 32, KH: 4, KW: 4, StrideH: 4, StrideW: 4, DilationH: 1, DilationW: 1},
	{Batch: 2, In: 1, H: 9, W: 40, Out: 16, KH: 3, KW: 11, StrideH: 1, StrideW: 3, PadW: 6, DilationH: 1, DilationW: 1},
	{Batch: 4, In: 3, H: 32, W: 49, Out: 48, KH: 16, KW: 16, StrideH: 16, StrideW: 16, DilationH: 1, DilationW: 1},
	{Batch: 4, In: 2, H: 14, W: 11, Out: 16, KH: 4, KW: 5, StrideH: 2, StrideW: 1, PadH: 2, PadW: 1, DilationH: 1, DilationW: 1},
	{Batch: 12, In: 32, H: 128, W: 120, Out: 3, KH: 1, KW: 1, StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1},
	{Batch: 3, In: 35, H: 64, W: 80, Out: 48, KH: 1, KW: 1, StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1},
}

// TestUnfolded compares convolutions whose windows are laid out or gathered as runs, and gradients of narrow weights, with sums in float64.
// What is not a number reaches the windows that contain it and no others.
func TestUnfolded(t *testing.T) {
	spread(t, func(p *pair) {
		for i, c := range unfoldShapes {
			c.OH = (c.H+2*c.PadH-c.DilationH*(c.KH-1)-1)/c.StrideH + 1
			c.OW = (c.W+2*c.PadW-c.DilationW*(c.KW-1)-1)/c.StrideW + 1
			c.Groups = 1
			if c.KH*c.KW > 1 {
				c.Turn = kernels.TurnWherePossible
			}
			for last := range 16 {
				c.LastX, c.LastW, c.LastY = last&1 != 0, last&2 != 0, last&4 != 0
				p.limits = hopper
				if last >= 8 { // without the copy engine
					p.limits.Major = 8
				}
				cc := convCase{conv: c, t: []dtype.DType{dtype.BFloat16, dtype.Float16}[last%2], exact: (i+last)%3 == 0,
					bias: (i+last)%2 == 0, holes: (i+last)%3 == 1}
				for product := range 3 {
					p.try(cc.trial(product))
				}
			}
		}
		gathered := map[[2]uint8]bool{}
		for s := range p.lib.programs {
			if s.Product.Mapped > 1 {
				gathered[[2]uint8{s.Product.Left.Width, s.Product.Right.Width}] = true
			}
		}
		for _, widths := range [][2]uint8{{4, 8}, {8, 4}, {8, 8}} {
			if !gathered[widths] {
				t.Errorf("no runs are gathered with accesses of %d and %d elements", widths[0], widths[1])
			}
		}
	})
}

// TestWalks compares convolutions whose operand the copy engine gathers with sums in float64, with every tile that suits them.
func TestWalks(t *testing.T) {
	spread(t, func(p *pair) {
		p.limits = hopper
		tiles := kernels.WalkTiles()
		for i, c := range walkShapes {
			c.OH = (c.H+2*c.PadH-c.DilationH*(c.KH-1)-1)/c.StrideH + 1
			c.OW = (c.W+2*c.PadW-c.DilationW*(c.KW-1)-1)/c.StrideW + 1
			c.Groups, c.LastX, c.LastW, c.LastY, c.Turn = 1, true, true, true, kernels.TurnWherePossible
			for tile := range tiles {
				for j, kind := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
					c.Tile = tile + 1
					cc := convCase{conv: c, t: kind, exact: j == 0, bias: (i+j+tile)%2 == 0}
					p.limits.Multiprocessors = []int{132, 3}[(i+tile)%2]
					for product := range 3 {
						p.try(cc.trial(product))
					}
				}
			}
		}
		type use struct {
			tile     kernels.TileSpec
			gathered int
		}
		seen, lasting, split := map[use]bool{}, 0, 0
		for s := range p.lib.programs {
			if r := &s.Product; r.Mapped > 1 {
				seen[use{tile: r.Tile, gathered: int(r.Mapped)}] = true
				if r.Lasting() {
					lasting++
				}
				if r.Split() {
					split++
				}
			}
		}
		for _, tile := range tiles {
			for gathered := 2; gathered <= 3; gathered++ {
				if !seen[use{tile: tile, gathered: gathered}] {
					t.Errorf("tile %+v never gathers operand %d", tile, gathered-1)
				}
			}
		}
		if lasting < 4 || split < 4 {
			t.Errorf("there are %d kernels whose blocks last and %d that split the depth, want 4 of each at least", lasting, split)
		}
	})
}

// TestPhases compares gradients of inputs with strides, whose phases the copy engine gathers, with sums in float64, with every tile that
// suits them.
func TestPhases(t *testing.T) {
	spread(t, func(p *pair) {
		p.limits = hopper
		tiles := kernels.WalkTiles()
		for i, c := range phaseShapes {
			c.DilationH, c.DilationW = max(c.DilationH, 1), max(c.DilationW, 1)
			c.Groups, c.LastX, c.LastW, c.LastY, c.Turn = 1, true, true, true, kernels.TurnWherePossible
			for tile := range len(tiles) + 1 {
				for j, kind := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
					c.Tile, c.LastW, c.LastX = tile, (i+tile)%2 == 0, c.In > 32 || tile%3 > 0
					p.limits.Multiprocessors = []int{132, 3}[(i+tile)%2]
					p.try(convCase{conv: c, t: kind, exact: (i+j+tile)%2 == 0}.trial(1))
				}
			}
		}
		seen, split, finished := map[kernels.TileSpec]bool{}, 0, 0
		for s := range p.lib.programs {
			if s.Product.Mapped != 4 {
				continue
			}
			switch {
			case s.Family == kernels.FamilyMatmulFinish:
				finished++
			case s.Product.Split():
				split++
				fallthrough
			default:
				seen[s.Product.Tile] = true
			}
		}
		for _, tile := range tiles {
			if !seen[tile] {
				t.Errorf("tile %+v never computes phases", tile)
			}
		}
		if split < 4 || finished < 2 {
			t.Errorf("%d kernels split the depth of phases and %d add the parts, want 4 and 2 at least", split, finished)
		}
	})
}
