package sparse

import (
	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/internal/kernels"
)

const (
	// maxRank is how many numbers an index may have, mostPlaces how many positions the sparse dimensions may have.
	maxRank    = 32
	mostPlaces = 1 << 62
)

// rowCheck fails if an index is outside the sizes in its list; rowFlat also returns the row-major position of each index.
var (
	rowCheck = core.Define(core.Op{Name: "CheckIndices", Package: "sparse", Takes: "indices;; sizes* ->", Asserts: true,
		Infer: func(*core.Frame) {},
		Run: func(f *core.Frame) error {
			return kernels.FlatIndex(f, kernels.Operand{}, core.ElementsOf(f.In(0)), f.List())
		}})
	rowFlat = core.Define(core.Op{Name: "FlatIndices", Package: "sparse", Takes: "indices;; sizes*", Asserts: true,
		Infer: func(f *core.Frame) { f.NewOut(0, tenon.Int64, []int{f.In(0).Size(1)}, nil) },
		Run: func(f *core.Frame) error {
			return kernels.FlatIndex(f, core.ElementsOf(f.Out(0)), core.ElementsOf(f.In(0)), f.List())
		}})
)
