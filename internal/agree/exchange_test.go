package agree

import (
	"math/rand/v2"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// atomicCase applies op once to an element per thread and keeps the old value.
func atomicCase(rng *rand.Rand, t kir.Type, op kir.Sub, s kir.Space) kernelCase {
	p := named("atomic_%s_%d_%d", t.Short(), op, s)
	old, mem, a, b := p.buffer("old", t), p.buffer("mem", t), p.buffer("a", t), p.buffer("b", t)
	tid := p.special(kir.TidX)
	args := []kir.Value{tid, p.load(t, b, tid)}
	if op == kir.AtomCAS {
		args = []kir.Value{tid, p.load(t, a, tid), p.load(t, b, tid)}
	}
	if s == kir.Shared {
		p.Shared = []kir.Array{{Name: "s", Type: t, Count: threads}}
		p.do(kir.Instr{Op: kir.OpStore, Type: t, Space: kir.Shared, Width: 1}, tid, p.load(t, mem, tid))
	} else {
		args = append([]kir.Value{mem}, args...)
	}
	was := p.add(t, kir.Instr{Op: kir.OpAtomic, Type: t, Sub: op, Space: s}, args...)
	p.store(t, old, tid, was)
	if s == kir.Shared {
		p.store(t, mem, tid, p.add(t, kir.Instr{Op: kir.OpLoad, Type: t, Space: kir.Shared, Width: 1}, tid))
	}
	in := random(rng, t, threads)
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: []argument{
		zeros(t, threads), buffer(t, in), buffer(t, append(append([]byte{}, in[:len(in)/2]...), random(rng, t, threads/2)...)),
		buffer(t, random(rng, t, threads))}}
}

// contendedCase has all threads of two blocks change a few elements; the result does not depend on the order.
func contendedCase(rng *rand.Rand, t kir.Type, op kir.Sub, s kir.Space) kernelCase {
	p := named("contended_%s_%d_%d", t.Short(), op, s)
	mem, b := p.buffer("mem", t), p.buffer("b", t)
	i := p.thread()
	v := p.load(t, b, i)
	at := p.op(kir.OpAnd, dtype.Int32, dtype.Int32, i, p.i32(3))
	global := kir.Instr{Op: kir.OpAtomic, Type: t, Sub: op, Space: kir.Global}
	if s == kir.Shared {
		p.Shared = []kir.Array{{Name: "s", Type: t, Count: 5}}
		tid := p.special(kir.TidX)
		p.when(p.op(kir.OpLt, dtype.Int32, dtype.Bool, tid, p.i32(5)), func() {
			p.do(kir.Instr{Op: kir.OpStore, Type: t, Space: kir.Shared, Width: 1}, tid, p.load(t, b, tid))
		})
		p.do(kir.Instr{Op: kir.OpBarrier})
		p.do(kir.Instr{Op: kir.OpAtomic, Type: t, Sub: op, Space: kir.Shared}, at, v)
		p.do(kir.Instr{Op: kir.OpBarrier})
		p.when(p.op(kir.OpLt, dtype.Int32, dtype.Bool, tid, p.i32(4)), func() {
			p.do(global, mem, tid, p.add(t, kir.Instr{Op: kir.OpLoad, Type: t, Space: kir.Shared, Width: 1}, tid))
		})
	} else {
		p.do(global, mem, at, v)
	}
	return kernelCase{prog: p.Program, grid: 2, block: threads, args: []argument{buffer(t, random(rng, t, 5)),
		buffer(t, random(rng, t, 2*threads))}}
}

// voteCase counts the votes of groups.
func voteCase(rng *rand.Rand) kernelCase {
	p := named("vote")
	out, in := p.buffer("out", dtype.Uint32), p.buffer("in", dtype.Bool)
	tid := p.special(kir.TidX)
	for j := range 3 {
		v := p.load(dtype.Bool, in, p.add32(tid, p.i32(j*threads)))
		any := p.add(dtype.Bool, kir.Instr{Op: kir.OpVote, Type: dtype.Bool, Sub: kir.VoteAny}, v)
		all := p.add(dtype.Bool, kir.Instr{Op: kir.OpVote, Type: dtype.Bool, Sub: kir.VoteAll}, v)
		ballot := p.add(dtype.Uint32, kir.Instr{Op: kir.OpVote, Type: dtype.Bool, Sub: kir.VoteBallot}, v)
		for k, x := range []kir.Value{p.cvt(dtype.Uint32, any), p.cvt(dtype.Uint32, all), ballot} {
			p.store(dtype.Uint32, out, p.add32(tid, p.i32((3*j+k)*threads)), x)
		}
	}
	in0 := make([]byte, 3*threads)
	for i := range in0 {
		switch i / 32 % 4 {
		case 1:
			in0[i] = 1
		case 2:
			in0[i] = byte(rng.IntN(2))
		case 3:
			in0[i] = byte(b2i(i%32 == 9))
		}
	}
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: []argument{zeros(dtype.Uint32, 9*threads), buffer(dtype.Bool, in0)}}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// loopCase sums with a counter of type t, leaving the loop early and skipping iterations in different threads.
func loopCase(t kir.Type) kernelCase {
	p := named("loop_%s", t.Short())
	out := p.buffer("out", t)
	p.Vars = []kir.Type{t}
	tid := p.special(kir.TidX)
	own := p.cvt(t, tid)
	set := func(v kir.Value) { p.do(kir.Instr{Op: kir.OpSet, Type: t}, v) }
	get := func() kir.Value { return p.add(t, kir.Instr{Op: kir.OpGet, Type: t}) }
	c := func(n int64) kir.Value { return p.constant(t, uint64(n)) }
	set(c(0))
	i := p.value(t)
	in := kir.Instr{Op: kir.OpFor, Type: t}
	start, end, step := c(-5), own, c(3)
	in.Blocks = []*kir.Block{p.region(func() {
		p.when(p.op(kir.OpEq, t, dtype.Bool, i, c(10)), func() { p.do(kir.Instr{Op: kir.OpContinue}) })
		p.when(p.op(kir.OpGt, t, dtype.Bool, i, c(70)), func() { p.do(kir.Instr{Op: kir.OpBreak}) })
		set(p.op(kir.OpAdd, t, t, get(), p.op(kir.OpMul, t, t, i, c(7))))
	}, i)}
	p.do(in, start, end, step)
	p.when(p.op(kir.OpGt, t, dtype.Bool, own, c(100)), func() { p.do(kir.Instr{Op: kir.OpReturn}) })
	p.store(t, out, tid, get())
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: []argument{zeros(t, threads)}}
}

// nestCase counts the steps of Collatz sequences: nested loops, left at different times.
func nestCase() kernelCase {
	p := named("nest")
	out := p.buffer("out", dtype.Int32)
	p.Vars = []kir.Type{dtype.Int32, dtype.Int32}
	set := func(i int, v kir.Value) { p.do(kir.Instr{Op: kir.OpSet, Type: dtype.Int32, Sym: i}, v) }
	get := func(i int) kir.Value {
		return p.add(dtype.Int32, kir.Instr{Op: kir.OpGet, Type: dtype.Int32, Sym: i})
	}
	tid := p.thread()
	set(1, p.i32(0))
	j := p.value(dtype.Int32)
	outer := kir.Instr{Op: kir.OpFor, Type: dtype.Int32}
	first, last, step := p.i32(0), p.i32(3), p.i32(1)
	outer.Blocks = []*kir.Block{p.region(func() {
		set(0, p.add32(p.add32(tid, j), p.i32(1)))
		l := kir.Instr{Op: kir.OpLoop}
		l.Blocks = []*kir.Block{p.region(func() {
			x := get(0)
			p.when(p.op(kir.OpEq, dtype.Int32, dtype.Bool, x, p.i32(1)), func() { p.do(kir.Instr{Op: kir.OpBreak}) })
			set(1, p.add32(get(1), p.i32(1)))
			even := p.op(kir.OpEq, dtype.Int32, dtype.Bool, p.op(kir.OpAnd, dtype.Int32, dtype.Int32, x, p.i32(1)), p.i32(0))
			p.when(even, func() {
				set(0, p.op(kir.OpShr, dtype.Int32, dtype.Int32, x, p.i32(1)))
				p.do(kir.Instr{Op: kir.OpContinue})
			})
			set(0, p.add32(p.mul32(x, 3), p.i32(1)))
		})}
		p.do(l)
	}, j)}
	p.do(outer, first, last, step)
	p.store(dtype.Int32, out, tid, get(1))
	return kernelCase{prog: p.Program, grid: 2, block: threads, args: []argument{zeros(dtype.Int32, 2*threads)}}
}

// pointerCase reaches elements by byte offsets, with an assertion that holds and a fence.
func pointerCase(rng *rand.Rand) kernelCase {
	p := named("pointer")
	out, in := p.buffer("out", dtype.Float64), p.buffer("in", dtype.Float64)
	tid := p.special(kir.TidX)
	bytes := p.op(kir.OpMul, dtype.Int64, dtype.Int64, p.cvt(dtype.Int64, tid), p.constant(dtype.Int64, 8))
	at := p.add(dtype.Uint64, kir.Instr{Op: kir.OpPtrAdd, Type: dtype.Uint64}, in, bytes)
	p.do(kir.Instr{Op: kir.OpAssert, Type: dtype.Bool, Text: "thread \"out\" of range"},
		p.op(kir.OpLt, dtype.Int32, dtype.Bool, tid, p.i32(threads)))
	v := p.load(dtype.Float64, at, p.i32(0))
	p.do(kir.Instr{Op: kir.OpFence})
	p.store(dtype.Float64, out, tid, v)
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: []argument{zeros(dtype.Float64, threads),
		buffer(dtype.Float64, random(rng, dtype.Float64, threads))}}
}

// specialCase stores every special register.
func specialCase() kernelCase {
	p := named("special")
	out := p.buffer("out", dtype.Int32)
	i := p.thread()
	for s := kir.TidX; s <= kir.LaneID; s++ {
		p.store(dtype.Int32, out, p.add32(i, p.i32(int(s)*3*threads)), p.special(s))
	}
	return kernelCase{prog: p.Program, grid: 3, block: threads, args: []argument{zeros(dtype.Int32, 13*3*threads)}}
}

// productCase computes both halves of products of 32-bit integers, with the operands in either order.
func productCase(rng *rand.Rand, t kir.Type) kernelCase {
	p := named("product_%v", t)
	out, in := p.buffer("out", t), p.buffer("in", t)
	i := p.thread()
	a, b := p.load(t, in, i), p.load(t, in, p.add32(i, p.i32(threads)))
	for j, op := range []kir.Op{kir.OpMul, kir.OpMulHi, kir.OpMulHi, kir.OpMul} {
		if j == 2 {
			a, b = b, p.op(kir.OpXor, t, t, a, b)
		}
		p.store(t, out, p.add32(i, p.i32(j*threads)), p.op(op, t, t, a, b))
	}
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: []argument{zeros(t, 4*threads), buffer(t, random(rng, t, 2*threads))}}
}

// dynamicCase reverses a block through the launch's dynamic shared memory.
func dynamicCase(rng *rand.Rand) kernelCase {
	p := named("dynamic")
	t := dtype.Int64
	out, in := p.buffer("out", t), p.buffer("in", t)
	p.Shared = []kir.Array{{Name: "s", Type: t, Count: -1}}
	tid := p.special(kir.TidX)
	p.do(kir.Instr{Op: kir.OpStore, Type: t, Space: kir.Shared, Width: 1}, tid, p.load(t, in, tid))
	p.do(kir.Instr{Op: kir.OpBarrier})
	at := p.op(kir.OpSub, dtype.Int32, dtype.Int32, p.i32(threads-1), tid)
	p.store(t, out, tid, p.add(t, kir.Instr{Op: kir.OpLoad, Type: t, Space: kir.Shared, Width: 1}, at))
	return kernelCase{prog: p.Program, grid: 1, block: threads, shared: 8 * threads,
		args: []argument{zeros(t, threads), buffer(t, random(rng, t, threads))}}
}

// clockCase checks that the clock does not run backwards.
func clockCase() kernelCase {
	p := named("clock")
	out := p.buffer("out", dtype.Bool)
	a := p.add(dtype.Int64, kir.Instr{Op: kir.OpClock, Type: dtype.Int64})
	p.do(kir.Instr{Op: kir.OpBarrier})
	b := p.add(dtype.Int64, kir.Instr{Op: kir.OpClock, Type: dtype.Int64})
	p.store(dtype.Bool, out, p.special(kir.TidX), p.op(kir.OpGe, dtype.Int64, dtype.Bool, b, a))
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: []argument{zeros(dtype.Bool, threads)}}
}
