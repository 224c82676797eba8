package kernel

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// BlockSum returns, to every thread of the block, the sum of the v of all of them. v is Float32, Float64 or an integer of 32 or 64 bits;
// integers wrap. All threads of the block must call it, as in Barrier. Blocks may have any size.
//
// The additions have a fixed order, so a sum of floats has the same bits in every run and on every device. Threads are numbered along X
// first, then Y, then Z, and each 32 in a row are a warp; the last warp may have fewer. In a warp, each thread i < 16 adds to its v that of
// thread i+16, if there is one; then each i < 8 adds that of i+8, and so on with 4, 2 and 1. Thread 0 then has the sum of the warp. These
// sums are added one after another, from the first warp to the last.
//
// BlockSum, BlockMax and BlockMin together take 32 elements of shared memory for each type that a kernel uses them with. A kernel that has
// called FixedThreads before needs fewer instructions for them.
func (b *Builder) BlockSum(v Value) Value { return b.reduce("BlockSum", v, Value.Add) }

// BlockMax is BlockSum for the greatest v. As in Max, -0 is less than +0, and NaNs do not count: the result is NaN only if all v are NaN.
func (b *Builder) BlockMax(v Value) Value { return b.reduce("BlockMax", v, Value.Max) }

// BlockMin is BlockSum for the least v. As in Min, -0 is less than +0, and NaNs do not count: the result is NaN only if all v are NaN.
func (b *Builder) BlockMin(v Value) Value { return b.reduce("BlockMin", v, Value.Min) }

// warp is the number of threads of a warp.
const warp = 32

// reduce combines the v of all threads of the block in the order that BlockSum describes. The name is for errors.
func (b *Builder) reduce(name string, v Value, combine func(v, w Value) Value) Value {
	b.mine("value", v.b)
	switch v.t {
	case dtype.Float32, dtype.Float64, dtype.Int32, dtype.Uint32, dtype.Int64, dtype.Uint64:
	default:
		b.fail("%s works on 32- and 64-bit integers, float32 and float64, not on %v; convert the value", name, v.t)
		return v
	}
	b.add(&kir.Instr{Op: kir.OpBarrier, Text: name}) // until here, threads may still read the parts of an earlier reduction
	parts := b.reduced(v.t)
	fixed := b.staticThreads()
	thread, threads := b.ThreadIdx(X), b.I32(fixed)
	if fixed == 0 {
		thread = b.ThreadIdx(Z).Mul(b.BlockDim(Y)).Add(b.ThreadIdx(Y)).Mul(b.BlockDim(X)).Add(thread)
		threads = b.BlockDim(X).Mul(b.BlockDim(Y)).Mul(b.BlockDim(Z))
	}
	for step := warp / 2; step > 0; step /= 2 {
		both := combine(v, v.ShuffleDown(step))
		if fixed == 0 || fixed%warp != 0 { // the last warp is not whole: what comes from a thread that does not exist is undefined
			both = thread.Add(b.I32(step)).Lt(threads).Select(both, v)
		}
		v = both
	}
	b.If(thread.And(b.I32(warp-1)).Eq(b.I32(0)), func() { parts.Store(thread.Shr(b.I32(5)), v) })
	b.Barrier()
	first := parts.Get(0)
	if fixed > 0 {
		for i := 1; i*warp < fixed; i++ {
			first = combine(first, parts.Get(i))
		}
		return first
	}
	all := b.Var(first)
	b.For(b.I32(1), threads.Add(b.I32(warp-1)).Shr(b.I32(5)), b.I32(1), func(i Value) { all.Set(combine(all.Get(), parts.Load(i))) })
	return all.Get()
}

// staticThreads returns the number of threads that every block has, or 0 if launches choose it. It may not change afterwards.
func (b *Builder) staticThreads() int {
	if n := b.prog.Threads; b.prog.FixedThreads && n >= 1 && n <= kir.MaxThreads {
		b.counted = n
		return n
	}
	return 0
}

// reduced returns the array for the results of the warps of a block, which all reductions of a type share.
func (b *Builder) reduced(t dtype.DType) Array {
	a, ok := b.parts[t]
	if !ok {
		a = b.Shared("parts", t, kir.MaxThreads/warp)
		b.parts[t] = a
	}
	return a
}
