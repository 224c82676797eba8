package vexec

import (
	"golang.org/x/sys/cpu"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// features are the instruction sets that kernels use.
type features struct {
	avx2   bool // with FMA and F16C
	avx512 bool // F, DQ and VL
}

// detect queries the processor.
func detect() (f features) {
	f.avx2 = cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C
	f.avx512 = f.avx2 && cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL
	return f
}

// accelerate adds the kernels that this processor can run to the tables.
func accelerate() {
	f := detect()
	if f.avx2 {
		fillAVX2(&laneOps, &laneCvts)
		gathers[4] = [2]gatherFunc{gather4[int32](avxGather32), gather4[int64](avxGather64)}
		dots[dtype.Float32], dots[dtype.Float64] = dotF32AVX2, dotF64AVX2
		turns[4], turns[8] = turn32AVX2, turn64AVX2
		laneOps[kir.OpExp2][dtype.Float32][0], laneOps[kir.OpRcp][dtype.Float32][0] = exp2AVX2, reciprocalAVX2
	}
	if f.avx512 {
		dots[dtype.Float32], dots[dtype.Float64] = dotF32AVX512, dotF64AVX512
	}
}
