package agree

import (
	"fmt"
	"math/rand/v2"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

const threads = 128

// threadCases lists kernels of one or two blocks that exercise memory, control flow and exchange between threads.
func threadCases(rng *rand.Rand) []kernelCase {
	var cs []kernelCase
	for _, t := range allTypes {
		for _, w := range []int{1, 2, 4, 8, 16} {
			if w*t.Size() <= 16 {
				cs = append(cs, vectorCase(rng, t, w), sharedCase(rng, t, w))
			}
		}
		cs = append(cs, localCase(rng, t), paramCase(rng, t), tableCase(rng, t, 40), tableCase(rng, t, 4000), variableCase(rng, t))
	}
	for _, t := range join(wideInts, floats, halves) {
		for _, how := range []kir.Sub{kir.ShuffleIdx, kir.ShuffleUp, kir.ShuffleDown, kir.ShuffleXor} {
			cs = append(cs, shuffleCase(rng, t, how, -1))
			for _, c := range []int{0, 1, 16, 31, 32, 33} {
				cs = append(cs, shuffleCase(rng, t, how, c))
			}
		}
	}
	for _, t := range join(wideInts, floats) {
		for op := kir.AtomAdd; op <= kir.AtomCAS; op++ {
			if t.IsFloat() && op != kir.AtomAdd || t == dtype.Float32 {
				continue // PTX flushes subnormals in float32 atomics
			}
			for _, s := range []kir.Space{kir.Global, kir.Shared} {
				cs = append(cs, atomicCase(rng, t, op, s))
				if t.IsInt() && op <= kir.AtomXor {
					cs = append(cs, contendedCase(rng, t, op, s))
				}
			}
		}
	}
	return append(cs, voteCase(rng), loopCase(dtype.Int32), loopCase(dtype.Int64), nestCase(), pointerCase(rng), specialCase(),
		dynamicCase(rng), clockCase(),
		productCase(rng, dtype.Int32), productCase(rng, dtype.Uint32))
}

func random(rng *rand.Rand, t kir.Type, n int) []byte {
	return operands(rng, []kir.Type{t}, n)[0]
}

func named(format string, args ...any) *program {
	p := newProgram(fmt.Sprintf(format, args...))
	p.Threads = threads
	return p
}

func (p *program) many(t kir.Type, in kir.Instr, args ...kir.Value) []kir.Value {
	var vs []kir.Value
	for range in.Width {
		vs = append(vs, p.value(t))
	}
	in.Type, in.Res, in.Args, in.Loc = t, vs, args, 1
	p.block.Instrs = append(p.block.Instrs, &in)
	return vs
}

func (p *program) add32(a, b kir.Value) kir.Value {
	return p.op(kir.OpAdd, dtype.Int32, dtype.Int32, a, b)
}
func (p *program) mul32(a kir.Value, n int) kir.Value {
	return p.op(kir.OpMul, dtype.Int32, dtype.Int32, a, p.i32(n))
}
func (p *program) cvt(to kir.Type, a kir.Value) kir.Value {
	if p.Values[a] == to {
		return a
	}
	return p.op(kir.OpCvt, to, to, a)
}

// vectorCase copies vectors of w elements, through every cache hint and both index types, with displacements.
func vectorCase(rng *rand.Rand, t kir.Type, w int) kernelCase {
	p := named("vector_%s_%d", t.Short(), w)
	out, in := p.buffer("out", t), p.buffer("in", t)
	p.Params = append(p.Params, kir.Param{Name: "ro", Kind: kir.ParamBuffer, Type: t, ReadOnly: true, Align: 16})
	ro := p.add(dtype.Uint64, kir.Instr{Op: kir.OpParam, Type: dtype.Uint64, Sym: 2})
	i := p.mul32(p.thread(), w)
	long := p.cvt(dtype.Int64, i)
	step := threads * w
	load := func(base, index kir.Value, off int, c kir.Cache) []kir.Value {
		return p.many(t, kir.Instr{Op: kir.OpLoad, Space: kir.Global, Cache: c, Width: w, Imm: uint64(int64(off))}, base, index)
	}
	store := func(index kir.Value, off int, c kir.Cache, vs []kir.Value) {
		p.do(kir.Instr{Op: kir.OpStore, Type: t, Space: kir.Global, Cache: c, Width: w, Imm: uint64(int64(off))},
			append([]kir.Value{out, index}, vs...)...)
	}
	store(i, 0, kir.CacheDefault, load(in, i, 0, kir.CacheDefault))
	store(long, step, kir.CacheStream, load(ro, long, step, kir.CacheStream))
	far := p.add32(i, p.i32(2*step+w))
	store(far, -w, kir.CacheDefault, load(in, far, -w, kir.CacheReadOnly))
	first := p.i32(3 * step)
	p.when(p.op(kir.OpEq, dtype.Int32, dtype.Bool, i, p.i32(0)), func() {
		store(first, w, kir.CacheDefault, load(ro, first, w, kir.CacheDefault))
	})
	n := 4 * step
	data := random(rng, t, n)
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: []argument{zeros(t, n), buffer(t, data), buffer(t, data)}}
}

// sharedCase reverses vectors of w elements through shared memory.
func sharedCase(rng *rand.Rand, t kir.Type, w int) kernelCase {
	p := named("shared_%s_%d", t.Short(), w)
	out, in := p.buffer("out", t), p.buffer("in", t)
	p.Shared = []kir.Array{{Name: "s", Type: t, Count: (threads + 1) * w}}
	tid := p.special(kir.TidX)
	i := p.mul32(tid, w)
	vs := p.many(t, kir.Instr{Op: kir.OpLoad, Space: kir.Global, Width: w}, in, i)
	p.do(kir.Instr{Op: kir.OpStore, Type: t, Space: kir.Shared, Width: w, Imm: uint64(w)}, append([]kir.Value{i}, vs...)...)
	p.do(kir.Instr{Op: kir.OpBarrier})
	j := p.mul32(p.op(kir.OpSub, dtype.Int32, dtype.Int32, p.i32(threads), tid), w)
	vs = p.many(t, kir.Instr{Op: kir.OpLoad, Space: kir.Shared, Width: w}, p.cvt(dtype.Int64, j))
	p.do(kir.Instr{Op: kir.OpStore, Type: t, Space: kir.Global, Width: w}, append([]kir.Value{out, i}, vs...)...)
	n := threads * w
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: []argument{zeros(t, n), buffer(t, random(rng, t, n))}}
}

// localCase writes a local array at varying positions and reads it back.
func localCase(rng *rand.Rand, t kir.Type) kernelCase {
	p := named("local_%s", t.Short())
	out, in := p.buffer("out", t), p.buffer("in", t)
	p.Local = []kir.Array{{Name: "l", Type: t, Count: 8}}
	tid := p.special(kir.TidX)
	for j := range 8 {
		at := p.op(kir.OpAnd, dtype.Int32, dtype.Int32, p.add32(tid, p.i32(j)), p.i32(7))
		v := p.load(t, in, p.add32(tid, p.i32(j*threads)))
		p.do(kir.Instr{Op: kir.OpStore, Type: t, Space: kir.Local, Width: 1}, at, v)
	}
	for j := range 8 {
		v := p.add(t, kir.Instr{Op: kir.OpLoad, Type: t, Space: kir.Local, Width: 1}, p.i32(j))
		p.store(t, out, p.add32(tid, p.i32(j*threads)), v)
	}
	n := 8 * threads
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: []argument{zeros(t, n), buffer(t, random(rng, t, n))}}
}

// paramCase reads scalars and an array passed by value at constant and varying positions.
func paramCase(rng *rand.Rand, t kir.Type) kernelCase {
	p := named("param_%s", t.Short())
	odd := p.scalar("odd", dtype.Uint8)
	s := p.scalar("s", t)
	p.Params = append(p.Params, kir.Param{Name: "a", Kind: kir.ParamArray, Type: t, Count: 16})
	out := p.buffer("out", t)
	tid := p.special(kir.TidX)
	read := func(index kir.Value, off int) kir.Value {
		return p.add(t, kir.Instr{Op: kir.OpLoad, Type: t, Space: kir.ParamSpace, Sym: 2, Width: 1, Imm: uint64(off)}, index)
	}
	at := p.op(kir.OpAnd, dtype.Int32, dtype.Int32, tid, p.i32(7))
	p.store(t, out, tid, read(at, 8))
	p.store(t, out, p.add32(tid, p.i32(threads)), read(p.i32(3), 1))
	p.store(t, out, p.add32(tid, p.i32(2*threads)), s)
	p.store(t, out, p.add32(tid, p.i32(3*threads)), read(p.cvt(dtype.Int32, odd), 0))
	data := random(rng, t, 16)
	arr := argument{data: data, t: t, scalar: true}
	args := []argument{scalar(dtype.Uint8, 5), {data: data[:t.Size()], t: t, scalar: true}, arr, zeros(t, 4*threads)}
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: args}
}

// tableCase reads a table at one position for all threads and at a different position per thread.
func tableCase(rng *rand.Rand, t kir.Type, n int) kernelCase {
	p := named("table_%s_%d", t.Short(), n)
	out := p.buffer("out", t)
	p.Tables = []kir.Table{{Name: "same", Type: t, Data: random(rng, t, n)}, {Name: "own", Type: t, Data: random(rng, t, n)}}
	tid := p.special(kir.TidX)
	read := func(sym int, index kir.Value, off int) kir.Value {
		return p.add(t, kir.Instr{Op: kir.OpLoad, Type: t, Space: kir.Const, Sym: sym, Width: 1, Imm: uint64(off)}, index)
	}
	p.store(t, out, tid, read(0, p.special(kir.CtaIDX), 7))
	p.store(t, out, p.add32(tid, p.i32(threads)), read(1, p.op(kir.OpRem, dtype.Int32, dtype.Int32, tid, p.i32(n)), 0))
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: []argument{zeros(t, 2*threads)}}
}

// variableCase changes a variable in divergent control flow.
func variableCase(rng *rand.Rand, t kir.Type) kernelCase {
	p := named("variable_%s", t.Short())
	out, in := p.buffer("out", t), p.buffer("in", t)
	p.Vars = []kir.Type{t}
	tid := p.special(kir.TidX)
	set := func(v kir.Value) { p.do(kir.Instr{Op: kir.OpSet, Type: t}, v) }
	get := func() kir.Value { return p.add(t, kir.Instr{Op: kir.OpGet, Type: t}) }
	set(p.load(t, in, tid))
	old := get()
	odd := p.op(kir.OpEq, dtype.Int32, dtype.Bool, p.op(kir.OpAnd, dtype.Int32, dtype.Int32, tid, p.i32(3)), p.i32(1))
	in2 := kir.Instr{Op: kir.OpIf, Type: dtype.Bool}
	in2.Blocks = []*kir.Block{
		p.region(func() { set(p.load(t, in, p.add32(tid, p.i32(threads)))) }),
		p.region(func() {
			p.when(p.op(kir.OpLt, dtype.Int32, dtype.Bool, tid, p.i32(50)), func() { set(p.load(t, in, p.i32(7))) })
		}),
	}
	p.do(in2, odd)
	p.store(t, out, tid, old)
	p.store(t, out, p.add32(tid, p.i32(threads)), get())
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: []argument{zeros(t, 2*threads), buffer(t, random(rng, t, 2*threads))}}
}

// shuffleCase exchanges values by an amount that varies per thread (c < 0) or is constant.
func shuffleCase(rng *rand.Rand, t kir.Type, how kir.Sub, c int) kernelCase {
	p := named("shuffle_%s_%d_%d", t.Short(), how, c+1)
	out, in, lanes := p.buffer("out", t), p.buffer("in", t), p.buffer("lanes", dtype.Int32)
	tid := p.special(kir.TidX)
	v := p.load(t, in, tid)
	var lane kir.Value
	if c < 0 {
		lane = p.load(dtype.Int32, lanes, tid)
	} else {
		lane = p.i32(c)
	}
	p.store(t, out, tid, p.add(t, kir.Instr{Op: kir.OpShuffle, Type: t, Sub: how}, v, lane))
	var ls []byte
	for i := range threads {
		ls = put(ls, dtype.Int32, uint64(rng.IntN(70)-20))
		if i%16 == 0 {
			ls = append(ls[:len(ls)-4], put(nil, dtype.Int32, 0x7fffffff+uint64(i/16))...)
		}
	}
	return kernelCase{prog: p.Program, grid: 1, block: threads, args: []argument{zeros(t, threads), buffer(t, random(rng, t, threads)),
		buffer(dtype.Int32, ls)}}
}
