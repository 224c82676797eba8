package kernels

import (
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// The operations of FamilyDropout (Spec.Op).
const (
	dropoutApply = iota
	dropoutBernoulli
	dropoutBits
)

// dropoutSpec is what these kernels are specialised on.
type dropoutSpec struct {
	// Captured: the kernel reads the generator's state.
	Captured bool
	// Threads is how many of PyTorch's threads one thread stands for if it takes vectors, so that an access has 16 bytes for halves too.
	Threads uint8
	// Dims is the class of the number of dimensions, see dimsClass.
	Dims uint8
	// Whole, for bits: no four elements that share a step of a thread are in two rows.
	Whole bool
}

// dropoutArgs are the arguments of these kernels. If a thread takes vectors, steps is the number of steps; otherwise dims gives the layout
// of the elements.
type dropoutArgs struct {
	n             intArg
	out, mask, in arrayArg
	philox        philoxArg
	keep, scale   scalarArg
	steps         intArg
	dims          striderArg
}

func (a *dropoutArgs) layout(p params) {
	s := p.s
	p.index(&a.n, "n")
	p.array(&a.out, "out", s.DTypes[0])
	if s.Op == dropoutApply {
		p.array(&a.mask, "mask", s.DTypes[1])
	}
	p.array(&a.in, "in", s.DTypes[s.Outs])
	p.philox(&a.philox, s.Dropout.Captured)
	if s.Op == dropoutApply {
		p.scalar(&a.keep, "keep", s.Compute)
		p.scalar(&a.scale, "scale", s.Compute)
	}
	if s.Vec > 1 {
		p.i32(&a.steps, "steps")
	} else {
		p.strider(&a.dims, "dim", int(s.Dropout.Dims), 1, int(s.Index), operandsFrom(0, int(s.Outs+s.Ins)))
	}
}

// mostDropoutSteps is the maximum of dropoutSteps.
const mostDropoutSteps = 4

// dropoutSteps is how many of PyTorch's steps a thread does at a time if it takes vectors, so that it has 32 bytes in flight: 2 or 4.
func dropoutSteps(s *Spec) int {
	return min(mostDropoutSteps, 32/(int(s.Vec)*int(s.Dropout.Threads)*max(s.DTypes[0].Size(), s.DTypes[2].Size())))
}

// bernoulliThreads is the block size of the kernel for Bernoulli numbers of given probabilities.
const bernoulliThreads = 512

// DropoutAdvance returns how far Dropout of n elements advances the generator's offset.
func DropoutAdvance(lim *Limits, n int) uint64 {
	if n == 0 {
		return 0
	}
	return uint64(ceilDiv(n, randomThreads*randomGrid(lim, n)*randomStep) * randomStep)
}

// Dropout sets mask (bool) to true with probability 1-p for every element, and out to in/(1-p) there and to 0 elsewhere (NaN if in is not
// finite). It draws the same numbers as PyTorch: four adjacent elements, or two, share a step of a thread if the number of elements and the
// alignment allow it; otherwise it draws like Random. All three operands have one shape; 0 < p < 1.
func Dropout(is Issuer, compute dtype.DType, p float64, out, mask, in Operand, ph Philox) error {
	var plan pointPlan
	outs, ins := [...]Operand{out, mask}, [...]Operand{in}
	if err := plan.init("dropout", false, outs[:], ins[:]); err != nil {
		return err
	}
	plan.merge()
	n := plan.numel()
	if n == 0 {
		return nil
	}
	t := opmath(compute)
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Op, s.Compute = FamilyDropout, dropoutApply, t
	s.Outs, s.Ins = 2, 1
	s.DTypes = [maxOperands]dtype.DType{out.DType, mask.DType, in.DType}
	s.Index, s.Vec = 32, 1
	s.Dropout = dropoutSpec{Captured: ph.captured(), Dims: uint8(dimsClass(plan.nd))}
	if repeat, ok := plan.oneRun(2); ok && repeat == 0 {
		places := uint64(2*randomStep | n)
		for _, o := range [...]Operand{out, mask, in} {
			places |= o.Ptr / uint64(o.DType.Size())
		}
		vec := min(1<<bits.TrailingZeros64(places), 16/max(out.DType.Size(), in.DType.Size()))
		if s.Vec = uint8(min(vec, randomStep)); vec > 1 {
			s.Dropout.Threads = uint8(vec / int(s.Vec))
		}
	}
	grid := randomGrid(is.Limits(), n)
	if plan.reach()+grid*randomThreads*randomStep*mostDropoutSteps > min(is.Index32(), lane32) {
		s.Index = 64
	}
	keep, scale := 1-p, DropoutScale(compute, p)
	if t == dtype.Float32 {
		keep = float64(float32(keep))
	}
	var a dropoutArgs
	a.n.host, a.out.host, a.mask.host, a.in.host = n, out.Ptr, mask.Ptr, in.Ptr
	a.keep.host.F, a.scale.host.F, a.dims.host = keep, scale, &plan.space
	a.philox.give(&ph)
	l.Grid, l.Block = [3]uint32{uint32(grid), 1, 1}, [3]uint32{randomThreads, 1, 1}
	if s.Vec > 1 {
		steps := ceilDiv(n, grid*randomThreads*int(s.Vec))
		a.steps.host = steps
		l.Grid[1], l.Block[0] = uint32(min(ceilDiv(steps, dropoutSteps(s)), 1<<16-1)), uint32(randomThreads/int(s.Dropout.Threads))
	}
	a.layout(packing(l))
	return is.Issue(l)
}

// DropoutScale returns by what Dropout with those arguments multiplies the elements that it keeps.
func DropoutScale(compute dtype.DType, p float64) float64 {
	if opmath(compute) == dtype.Float32 {
		return float64(1 / float32(1-p))
	}
	return 1 / (1 - p)
}

// BernoulliAdvance is how far Bernoulli advances the generator's offset.
const BernoulliAdvance = 12

// Bernoulli sets out to 1 with the probability given by p (Float32 or Float64, of out's shape), and to 0 otherwise. A value that is not a
// probability stops the kernel. It draws the same numbers as PyTorch: a thread takes one step for four adjacent elements in row-major
// order.
func Bernoulli(is Issuer, out, p Operand, ph Philox) error {
	var plan pointPlan
	outs, ins := [...]Operand{out}, [...]Operand{p}
	if err := plan.init("bernoulli", true, outs[:], ins[:]); err != nil {
		return err
	}
	plan.merge()
	n := plan.numel()
	if n == 0 {
		return nil
	}
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Op, s.Compute = FamilyDropout, dropoutBernoulli, p.DType
	s.Outs, s.Ins = 1, 1
	s.DTypes = [maxOperands]dtype.DType{out.DType, p.DType}
	s.Index = 32
	s.Dropout = dropoutSpec{Captured: ph.captured(), Dims: uint8(dimsClass(plan.nd))}
	if plan.reach() > min(is.Index32(), lane32) {
		s.Index = 64
	}
	var a dropoutArgs
	a.n.host, a.out.host, a.in.host = n, out.Ptr, p.Ptr
	a.philox.give(&ph)
	a.dims.host = &plan.space
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{uint32(ceilDiv(n, bernoulliThreads*randomStep)), 1, 1}, [3]uint32{bernoulliThreads, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilyDropout, buildDropout)

// dropoutKernel is the part that both kernels share.
type dropoutKernel struct {
	dropoutArgs
	k              *kernel.Builder
	s              *Spec
	ix             dtype.DType
	thread         kernel.Value
	state          philoxState
	blockOfThreads int
}

func buildDropout(s *Spec) *kernel.Kernel {
	if s.Op == dropoutBits {
		return buildDropoutBits(s)
	}
	name := "dropout"
	if s.Op == dropoutBernoulli {
		name = "bernoulli_each"
	}
	return kernel.Build(s.name(name), func(k *kernel.Builder) {
		d := &dropoutKernel{k: k, s: s, ix: indexType(int(s.Index)), blockOfThreads: randomThreads}
		if s.Op == dropoutBernoulli {
			d.blockOfThreads = bernoulliThreads
		}
		each := max(1, int(s.Dropout.Threads))
		k.FixedThreads(d.blockOfThreads / each)
		d.layout(declaring(k, s))
		d.thread = k.BlockIdx(kernel.X).Mul(k.I32(d.blockOfThreads / each)).Add(k.ThreadIdx(kernel.X)).Mul(k.I32(each))
		d.state = d.philox.state(s.Dropout.Captured, d.thread)
		if s.Vec > 1 {
			d.vectors()
			return
		}
		if s.Op == dropoutBernoulli {
			d.bernoulli()
		} else {
			d.elements()
		}
	})
}

// apply drops elements xs, using the given words, and stores the results at at.
func (d *dropoutKernel) apply(at []kernel.Value, xs []Num, words []kernel.Value) {
	var ys, ms []Num
	for j, x := range xs {
		keep := uniform32(words[j]).Convert(d.s.Compute).Lt(d.keep.Re)
		v := x.Convert(d.s.Compute).Re
		ms = append(ms, realNum(keep))
		ys = append(ys, realNum(v.Mul(keep.Select(v.Like(1), v.Like(0))).Mul(d.scale.Re)))
	}
	d.out.store(at[0], ys...)
	d.mask.store(at[1], ms...)
}

// vectors: in step s thread t of T takes the vector t + T·s. A block does dropoutSteps of them at a time, with all their loads in flight
// together, and blocks run in the order of memory. Vectors of two elements use the words of a generator step in turn.
func (d *dropoutKernel) vectors() {
	k, vec, each := d.k, int(d.s.Vec), dropoutSteps(d.s)
	threads := k.GridDim(kernel.X).Mul(k.I32(d.blockOfThreads * vec)).Convert(d.ix)
	steps := d.steps.Value
	lane := d.thread.Convert(d.ix).Mul(k.Int(d.ix, int64(vec)))
	keys, share := d.state.keys(), randomStep/vec
	lanes := make([]philoxState, d.s.Dropout.Threads)
	for q := range lanes {
		lanes[q] = d.state.of(d.thread.Add(k.I32(q)))
	}
	wide := vec * len(lanes)
	// words returns the words for the vectors of a generator step, one after the other; there are two such vectors if they have two
	// elements.
	words := func(step kernel.Value) (ws []kernel.Value) {
		for _, p := range lanes {
			w := p.words(p.block.Add(step.Shr(k.I32(share-1)).Convert(dtype.Uint64)), keys)
			ws = append(ws, w[:]...)
		}
		return ws
	}
	k.For(k.BlockIdx(kernel.Y).Mul(k.I32(each)), steps, k.GridDim(kernel.Y).Mul(k.I32(each)), func(first kernel.Value) {
		start := threads.Mul(first.Convert(d.ix)).Add(lane)
		at := func(u int) []kernel.Value {
			i := start.Add(threads.Mul(k.Int(d.ix, int64(u))))
			return []kernel.Value{i, i, i}
		}
		k.IfElse(at(each - 1)[0].Lt(d.n.Value), func() {
			xs := make([][]Num, each)
			for u := range xs {
				xs[u] = d.in.load(at(u)[2], wide)
			}
			var w []kernel.Value
			for u, x := range xs {
				if u%share == 0 {
					w = words(first.Add(k.I32(u)))
				}
				d.apply(at(u), x, w[u%share*vec:][:wide])
			}
		}, func() {
			k.For(first, steps.Min(first.Add(k.I32(each))), k.I32(1), func(step kernel.Value) {
				i := threads.Mul(step.Convert(d.ix)).Add(lane)
				k.If(i.Lt(d.n.Value), func() {
					w := words(step)
					if share == 2 {
						odd := step.And(k.I32(1)).Ne(k.I32(0))
						w = []kernel.Value{odd.Select(w[2], w[0]), odd.Select(w[3], w[1])}
					}
					d.apply([]kernel.Value{i, i, i}, d.in.load(i, wide), w[:wide])
				})
			})
		})
	})
}

// elements draws like Random.
func (d *dropoutKernel) elements() {
	k := d.k
	threads := k.GridDim(kernel.X).Mul(k.I32(d.blockOfThreads)).Convert(d.ix)
	step := k.Var(k.U64(0))
	k.For(d.thread.Convert(d.ix), d.n.Value, threads.Mul(k.Int(d.ix, randomStep)), func(i kernel.Value) {
		now := step.Get()
		for _, w := range d.state.words(d.state.block.Add(now), d.state.keys()) {
			at := i
			k.If(at.Lt(d.n.Value), func() {
				place := d.dims.locate(at)
				d.apply(place, d.in.load(place[2], 1), []kernel.Value{w})
			})
			i = i.Add(threads)
		}
		step.Set(now.Add(k.U64(1)))
	})
}

func (d *dropoutKernel) bernoulli() {
	k := d.k
	i := d.thread.Convert(d.ix).Mul(k.Int(d.ix, randomStep))
	for j, w := range d.state.words(d.state.block, d.state.keys()) {
		place := i.Add(k.Int(d.ix, int64(j)))
		k.If(place.Lt(d.n.Value), func() {
			at := d.dims.locate(place)
			p := d.in.load(at[1], 1)[0].Re
			k.Assert(isProbability(p), "probability %v is not from 0 to 1", p)
			d.out.store(at[0], realNum(uniform32(w).Convert(p.Type()).Le(p)))
		})
	}
}
