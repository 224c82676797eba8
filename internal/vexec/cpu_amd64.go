package vexec

import "tenon.dev/dtype"

// cpuid returns what the instruction of that name does for a leaf and sub-leaf.
func cpuid(leaf, sub uint32) (a, b, c, d uint32)

// xgetbv returns which register states the operating system saves.
func xgetbv() uint32

// features are the instruction sets that kernels use.
type features struct {
	avx2   bool // with FMA and F16C
	avx512 bool // F, DQ and VL
}

// detect asks the processor (Intel, Software Developer's Manual, volume 2, CPUID; volume 1, 14.3 and 15.2).
func detect() (f features) {
	most, _, _, _ := cpuid(0, 0)
	if most < 7 {
		return f
	}
	const fma, xsave, avx, f16c = 1 << 12, 1 << 27, 1 << 28, 1 << 29
	_, _, c, _ := cpuid(1, 0)
	if c&(fma|xsave|avx|f16c) != fma|xsave|avx|f16c {
		return f
	}
	saved := xgetbv()
	_, b, _, _ := cpuid(7, 0)
	const avx2, avx512f, avx512dq, avx512vl = 1 << 5, 1 << 16, 1 << 17, 1 << 31
	f.avx2 = saved&6 == 6 && b&avx2 != 0
	f.avx512 = f.avx2 && saved&0xe6 == 0xe6 && b&(avx512f|avx512dq|avx512vl) == avx512f|avx512dq|avx512vl
	return f
}

// accelerate enters the kernels that this processor can run.
func accelerate() {
	f := detect()
	if f.avx2 {
		fillAVX2(&laneOps, &laneCvts)
		gathers[4] = [2]gatherFunc{gather4[int32](avxGather32), gather4[int64](avxGather64)}
		dots[dtype.Float32], dots[dtype.Float64] = dotF32AVX2, dotF64AVX2
	}
	if f.avx512 {
		dots[dtype.Float32], dots[dtype.Float64] = dotF32AVX512, dotF64AVX512
	}
}
