package kernels

import (
	"fmt"
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

const (
	// multiReduceTensors is the number of tensors per launch: their addresses, sizes and first blocks fit into the 4 KiB limit on
	// parameters.
	multiReduceTensors = 128
	// multiReduceTile is the number of elements that a block folds. multiReduceThreads and multiReduceFinish are the numbers of threads per
	// block of the first and the second kernel.
	multiReduceTile, multiReduceThreads, multiReduceFinish = 16 << 10, 512, 128
)

// MultiReduce reduces every tensor of a list as a whole: element i of out, a dense vector, is the result of op for ins[i], which is dense.
// Tensors may have types of which out's has all values; they give the same bits as if they had been converted to it. It launches twice for
// every 128 tensors. The order of additions depends only on a tensor's size, the type of out, and the alignment of the list's addresses.
func MultiReduce(is Issuer, op *ReduceOp, compute dtype.DType, scalars []Scalar, out Operand, ins []Operand) error {
	if op.Ins != 1 || op.Outs != 1 || op.Indexed || len(scalars) != op.Scalars {
		return fmt.Errorf("%s of several tensors: it takes one operand and %d scalars, and must not see indexes", op.Name, op.Scalars)
	}
	for i := 0; i < len(ins); i += multiReduceTensors {
		part := out
		part.Ptr += uint64(i * out.DType.Size())
		if err := issueMultiReduce(is, op, compute, scalars, part, ins[i:min(i+multiReduceTensors, len(ins))]); err != nil {
			return err
		}
	}
	return nil
}

// multiReduceTypes is the number of types that the tensors of a launch may have.
const multiReduceTypes = 3

// multiReduceArgs are the arguments of both kernels: each tensor's address, size and the first block after its own and, if there are
// several types, the index of its own; the states of the blocks; and the results.
type multiReduceArgs struct {
	op      *ReduceOp
	addrs   listArg[uint64]
	sizes   listArg[int]
	ends    listArg[int32]
	types   listArg[int32]
	states  [MaxStates]uint64
	buffers []kernel.Buffer
	out     arrayArg
	scalars scalarArgs
}

func (a *multiReduceArgs) layout(p params) {
	list(p, &a.addrs, "addr", multiReduceTensors)
	list(p, &a.sizes, "size", multiReduceTensors)
	list(p, &a.ends, "end", multiReduceTensors)
	if p.s.Ins > 1 {
		list(p, &a.types, "type", multiReduceTensors)
	}
	for i, t := range a.op.states[p.s.Compute] {
		var state bufferArg
		state.host = a.states[i]
		if p.buffer(&state, p.number("state", i), t); p.k != nil {
			a.buffers[i] = state.Buffer
		}
	}
	p.array(&a.out, "out", p.s.DTypes[0])
	for i := range a.op.Scalars {
		p.scalarAt(&a.scalars, i, p.number("s", i), a.op.scalarType(i, p.s.Compute))
	}
}

func issueMultiReduce(is Issuer, op *ReduceOp, compute dtype.DType, scalars []Scalar, out Operand, ins []Operand) error {
	compute = opmath(compute)
	var addrs [multiReduceTensors]uint64
	var sizes [multiReduceTensors]int
	var ends, which [multiReduceTensors]int32
	var inTypes [multiReduceTypes]dtype.DType
	places, blocks, kinds := uint64(16/out.DType.Size()), 0, 0
	for i := range addrs {
		if i < len(ins) {
			o := &ins[i]
			k := slices.Index(inTypes[:kinds], o.DType)
			if k < 0 {
				if kinds == multiReduceTypes || o.DType != out.DType && !widens(o.DType, out.DType) {
					return fmt.Errorf("%s: tensor %d is %v, the results are %v", op.Name, i, o.DType, out.DType)
				}
				k = kinds
				inTypes[k] = o.DType
				kinds++
			}
			addrs[i], sizes[i], which[i] = o.Ptr, o.Numel(), int32(k)
			places |= o.Ptr / uint64(o.DType.Size())
			blocks += ceilDiv(sizes[i], multiReduceTile)
		}
		ends[i] = int32(blocks)
	}
	var a multiReduceArgs
	a.op, a.addrs.host, a.sizes.host, a.ends.host, a.types.host = op, addrs[:], sizes[:], ends[:], which[:]
	a.out.host, a.scalars.host = out.Ptr, scalars
	room := 0
	types := op.states[compute]
	for _, t := range types {
		room += ceilDiv(max(blocks, 1)*t.Size(), 16) * 16
	}
	ws, err := is.Workspace(room)
	if err != nil {
		return err
	}
	for i, t := range types {
		a.states[i] = ws
		ws += uint64(ceilDiv(max(blocks, 1)*t.Size(), 16) * 16)
	}
	for _, stage := range [...]reduceStage{reducePartial, reduceFinal} {
		grid, threads := blocks, multiReduceThreads
		if stage == reduceFinal {
			grid, threads = len(ins), multiReduceFinish
		}
		if grid == 0 {
			continue
		}
		l := is.NewLaunch()
		s := &l.Spec
		s.Family, s.Op, s.Compute, s.Outs, s.Ins = FamilyMultiReduce, op.id, compute, 1, uint8(kinds)
		s.DTypes[0] = out.DType
		copy(s.DTypes[1:], inTypes[:kinds])
		s.Vec, s.Reduce.Stage = uint8(1<<bits.TrailingZeros64(places)), stage
		a.layout(packing(l))
		l.Grid, l.Block = [3]uint32{uint32(grid), 1, 1}, [3]uint32{uint32(threads), 1, 1}
		if err := is.Issue(l); err != nil {
			return err
		}
	}
	return nil
}

// widens reports whether conversion from a half type to type to keeps every value.
func widens(from, to dtype.DType) bool {
	return from.IsFloat() && from.Size() == 2 && to.IsFloat() && to.Size() > 2
}

var _ = register(FamilyMultiReduce, buildMultiReduce)

// buildMultiReduce: in the first kernel each tensor has its own blocks; the second combines their states, with one block per tensor.
func buildMultiReduce(s *Spec) *kernel.Kernel {
	op := reduceOpOf(s)
	return kernel.Build(s.name("mr_"+op.Name), func(k *kernel.Builder) {
		a := multiReduceArgs{op: op, buffers: make([]kernel.Buffer, MaxStates), scalars: scalarArgs{nums: make([]Num, op.Scalars)}}
		a.layout(declaring(k, s))
		b := &reduceKernel{k: k, op: op, s: s, types: op.State(s.Compute), stage: s.Reduce.Stage, wide: multiReduceThreads,
			ix: dtype.Int32, accs: 1}
		b.foldsOf(op)
		b.r = &Reduction{K: k, T: s.Compute, S: a.scalars.nums}
		if s.Reduce.Stage == reduceFinal {
			b.wide = multiReduceFinish
		}
		k.FixedThreads(b.wide)
		tid, block := k.ThreadIdx(kernel.X), k.BlockIdx(kernel.X)
		acc := b.newStates()[0]
		at := block // the state that the block writes, or the result
		if s.Reduce.Stage == reduceFinal {
			b.r.N = a.sizes.Load(block)
			first := k.Var(k.I32(0))
			k.If(block.Gt(k.I32(0)), func() { first.Set(a.ends.Load(block.Sub(k.I32(1)))) })
			k.For(first.Get().Add(tid), a.ends.Load(block), k.I32(b.wide), func(i kernel.Value) {
				var state []kernel.Value
				for _, u := range a.buffers[:len(b.types)] {
					state = append(state, u.Load(i))
				}
				set(acc, op.Combine(b.r, get(acc), state))
			})
		} else {
			b.foldTile(&a, acc, block, tid)
		}
		state := b.across(b.warp(get(acc), 32), tid)
		k.If(tid.Eq(k.I32(0)), func() {
			if s.Reduce.Stage == reduceFinal {
				a.out.store(at, op.Finish(b.r, state)[0])
				return
			}
			for i, v := range state {
				a.buffers[i].Store(at, v)
			}
		})
	})
}

// foldTile folds the block's tile.
func (b *reduceKernel) foldTile(a *multiReduceArgs, acc []kernel.Var, block, tid kernel.Value) {
	k, s := b.k, b.s
	which, start := k.Var(k.I32(0)), k.Var(k.I32(0))
	for step := multiReduceTensors / 2; step > 0; step /= 2 {
		end := a.ends.Load(which.Get().Add(k.I32(step - 1)))
		k.If(end.Le(block), func() {
			start.Set(end)
			which.Set(which.Get().Add(k.I32(step)))
		})
	}
	i := which.Get()
	size := a.sizes.Load(i)
	b.r.N = size
	first := block.Sub(start.Get()).MulWide(k.I32(multiReduceTile))
	rest := size.Sub(first).Min(k.I64(multiReduceTile)).Convert(dtype.Int32)
	fold := func(t dtype.DType) {
		b.foldRange(acc, array{k.At(a.addrs.Load(i), t.Real()), t}.offset(first), rest, tid)
	}
	if s.Ins == 1 {
		fold(s.DTypes[1])
		return
	}
	kind := a.types.Load(i)
	for j, t := range s.DTypes[1 : 1+s.Ins] {
		k.If(kind.Eq(k.I32(j)), func() { fold(t) })
	}
}

// foldRange folds the first rest elements of in, a tile or less.
func (b *reduceKernel) foldRange(acc []kernel.Var, in array, rest, tid kernel.Value) {
	k, s, vec := b.k, b.s, int(b.s.Vec)
	load := func(at kernel.Value, n int) []Num {
		vs := in.load(at, n)
		for j := range vs {
			vs[j] = vs[j].Convert(b.op.inType(0, s.Compute))
		}
		return vs
	}
	fold := func(vs []Num) {
		for _, v := range vs {
			set(acc, b.op.Step(b.r, get(acc), []Num{v}, kernel.Value{}))
		}
	}
	round := multiReduceThreads * vec
	lane := tid.Mul(k.I32(vec))
	k.IfElse(rest.Eq(k.I32(multiReduceTile)), func() {
		// The loads of a whole tile are in flight together.
		together := min(multiReduceTile/round, 8)
		k.For(lane, k.I32(multiReduceTile), k.I32(together*round), func(at kernel.Value) {
			var all [][]Num
			for u := range together {
				all = append(all, load(at.Add(k.I32(u*round)), vec))
			}
			for _, vs := range all {
				fold(vs)
			}
		})
	}, func() {
		whole := rest.Sub(rest.Rem(k.I32(vec)))
		k.For(lane, whole, k.I32(round), func(at kernel.Value) { fold(load(at, vec)) })
		k.If(tid.Lt(rest.Sub(whole)), func() { fold(load(whole.Add(tid), 1)) })
	})
}
