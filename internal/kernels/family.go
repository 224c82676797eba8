package kernels

import (
	"fmt"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// The engines.
const (
	// FamilyPointwise: Op is a PointOp's id.
	FamilyPointwise Family = iota + 1
)

// The engines over tiles.
const (
	// FamilyMatmul and FamilyMatmulFinish: matrix products.
	FamilyMatmul Family = iota + 32
	FamilyMatmulFinish
	// FamilyConv: Op is the convKind.
	FamilyConv
	// FamilySumPartials adds up partial results of split depths.
	FamilySumPartials
)

var families = [...]struct {
	name  string
	build func(s *Spec) *kernel.Kernel
}{
	FamilyPointwise: {"pointwise", buildPointwise},

	FamilyMatmul:       {"matmul", buildMatmul},
	FamilyMatmulFinish: {"matmul_finish", buildMatmulFinish},
	FamilyConv:         {"conv", buildConv},
	FamilySumPartials:  {"sum_partials", buildSumPartials},
}

// Build makes the kernel of s.
func Build(s *Spec) *kernel.Kernel {
	if int(s.Family) >= len(families) || families[s.Family].build == nil {
		return kernel.Build(fmt.Sprintf("unknown family %d", s.Family), func(*kernel.Builder) {})
	}
	return families[s.Family].build(s)
}

// name returns the kernel name of s: equal specs have equal names, different ones different names.
func (s *Spec) name(prefix string) string {
	var b strings.Builder
	b.WriteString(prefix)
	for _, d := range s.DTypes[:s.Outs+s.Ins] {
		if d == dtype.Invalid {
			b.WriteString("_s")
			continue
		}
		b.WriteString("_" + d.Short())
	}
	fmt.Fprintf(&b, "_%s_c%d_i%d_v%d", s.Compute.Short(), s.Class, s.Index, s.Vec)
	last := len(s.Attr)
	for last > 0 && s.Attr[last-1] == 0 {
		last--
	}
	for _, a := range s.Attr[:last] {
		fmt.Fprintf(&b, "_%d", a)
	}
	return b.String()
}
