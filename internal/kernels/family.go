package kernels

import (
	"fmt"

	"tenon.dev/kernel"
)

// The engines. Each gives the meaning of Spec.Op.
const (
	// FamilyPointwise: Op is a PointOp's id.
	FamilyPointwise Family = iota + 1
	// FamilyTurn: copies whose operands have their dimensions in different orders.
	FamilyTurn
	// FamilyReduce: Op is a ReduceOp's id.
	FamilyReduce
	// FamilyMatvec: products of few rows.
	FamilyMatvec
	// FamilyMatmul, FamilyMatmulFinish, FamilyConv and FamilySumPartials are the tile engines.
	FamilyMatmul
	FamilyMatmulFinish
	FamilyConv
	FamilySumPartials
	// FamilyDepthwise: Op is a convKind.
	FamilyDepthwise
	// FamilyRows: Op is a rowOp's id.
	FamilyRows
	// FamilyPool: Op is a poolKind.
	FamilyPool
	// FamilyResample: Op is a resampleKind.
	FamilyResample
	// FamilyIndex: Op is an indexKind; FamilySort: Op is a sortStage; FamilySegment: Op is a segmentStage.
	FamilyIndex
	FamilySort
	FamilySegment
	// FamilyNLL: Op is a stage of NLL.
	FamilyNLL
	// FamilyMultiTensor: Op is a PointOp's id; FamilyMultiReduce: Op is a ReduceOp's; FamilyAdvance: Op is a StepOp's.
	FamilyMultiTensor
	FamilyMultiReduce
	FamilyAdvance
	// FamilyScale updates the scale of losses.
	FamilyScale
	// FamilyRandom: Op is a RandomOp's id; FamilyDropout: dropout, and Bernoulli numbers of given probabilities.
	FamilyRandom
	FamilyDropout
	// FamilyMultinomial: Op is a stage of Multinomial.
	FamilyMultinomial
	// FamilyAssert: assertions about single numbers.
	FamilyAssert
	// FamilyCompact: Op is a compactStage; FamilyUnique: Op is a uniqueStage.
	FamilyCompact
	FamilyUnique
	// FamilyFlat flattens indexes of several numbers.
	FamilyFlat
	// FamilyAttention: Op is an attentionStage.
	FamilyAttention
	// FamilyFused: Op is the id of a group that Fuse made.
	FamilyFused
	familyCount
)

// families holds every engine's builder; register fills it during package initialization.
var families [familyCount]Builder

// register makes build the builder of family f. It returns a value so that it can be called in a variable declaration beside the engine.
func register(f Family, build Builder) bool {
	if families[f] != nil {
		panic(fmt.Sprintf("kernels: family %d is registered twice", f))
	}
	families[f] = build
	return true
}

// Build makes the kernel of s.
func Build(s *Spec) *kernel.Kernel {
	if s.Family >= familyCount || families[s.Family] == nil {
		// The kernel reports the empty name as its mistake.
		return kernel.Build("", func(*kernel.Builder) {})
	}
	return families[s.Family](s)
}
