package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// RandomOp is a distribution, run by [Random].
type RandomOp struct {
	name    string
	scalars int
	// values returns up to four values, of the compute type t, from four Uint32s; out is the type in which they will be stored.
	values func(k *kernel.Builder, t, out dtype.DType, w [4]kernel.Value, s []kernel.Value) []kernel.Value
	// narrow says that there are four values for any type; otherwise Float64 and integers get two.
	narrow bool
	// integers says that scalars and values are Uint64.
	integers bool
	// setup, if not nil, computes from the scalars, once per thread, what values gets instead of them.
	setup func(k *kernel.Builder, s []kernel.Value) []kernel.Value
	id    uint16
}

var randomOps []*RandomOp

func distribution(op RandomOp) *RandomOp {
	op.id = uint16(len(randomOps))
	randomOps = append(randomOps, &op)
	return &op
}

// after sets op's setup.
func (op *RandomOp) after(setup func(k *kernel.Builder, s []kernel.Value) []kernel.Value) *RandomOp {
	op.setup = setup
	return op
}

// uniforms registers a distribution whose values are computed from uniform numbers in (0, 1].
func uniforms(name string, scalars int, f func(k *kernel.Builder, out dtype.DType, u kernel.Value,
	s []kernel.Value) kernel.Value) *RandomOp {
	return distribution(RandomOp{name: name, scalars: scalars, values: func(k *kernel.Builder, t, out dtype.DType, w [4]kernel.Value,
		s []kernel.Value) []kernel.Value {
		var vs []kernel.Value
		if t == dtype.Float64 {
			for i := 0; i < 4; i += 2 {
				vs = append(vs, f(k, out, uniform64(w[i], w[i+1]), s))
			}
			return vs
		}
		for _, x := range w {
			vs = append(vs, f(k, out, uniform32(x), s))
		}
		return vs
	}})
}

// The distributions, with their scalars. They compute in Float64 for Float64 outputs and otherwise in Float32, except the integers.
var (
	// RandomUniform is uniform in [from, to): scalars from, to - from, to.
	RandomUniform = uniforms("uniform", 3, func(_ *kernel.Builder, out dtype.DType, u kernel.Value, s []kernel.Value) kernel.Value {
		v := convertValue(convertValue(u.FMA(s[1], s[0]), out), u.Type())
		return v.Eq(convertValue(convertValue(s[2], out), u.Type())).Select(s[0], v)
	})
	// RandomNormal has the mean and the standard deviation as scalars (G. Box, M. Muller, 1958).
	RandomNormal = distribution(RandomOp{name: "normal", scalars: 2, values: func(k *kernel.Builder, t, _ dtype.DType, w [4]kernel.Value,
		s []kernel.Value) []kernel.Value {
		vs := normals(k, t, w)
		for i := range vs {
			vs[i] = vs[i].FMA(s[1], s[0])
		}
		return vs
	}})
	// RandomLogNormal is e to the power of a normal number, whose mean and standard deviation are the scalars.
	RandomLogNormal = distribution(RandomOp{name: "log_normal", scalars: 2, values: func(k *kernel.Builder, t, _ dtype.DType,
		w [4]kernel.Value, s []kernel.Value) []kernel.Value {
		vs := normals(k, t, w)
		for i := range vs {
			vs[i] = math.ExpNumber(k, vs[i].FMA(s[1], s[0]))
		}
		return vs
	}})
	// RandomBernoulli is 1 with probability scalar 0, otherwise 0.
	RandomBernoulli = uniforms("bernoulli", 1, func(_ *kernel.Builder, _ dtype.DType, u kernel.Value, s []kernel.Value) kernel.Value {
		return u.Lt(s[0]).Select(u.Like(1), u.Like(0))
	})
	// RandomExponential has rate scalar 0; the logarithm is clamped below 0 so that no value is 0.
	RandomExponential = uniforms("exponential", 1, func(k *kernel.Builder, _ dtype.DType, u kernel.Value, s []kernel.Value) kernel.Value {
		half := 0x1p-24
		if u.Type() == dtype.Float64 {
			half = 0x1p-53
		}
		l := u.Ge(u.Like(1-half)).Select(u.Like(-half), math.LogPositive(k, u, 1))
		return s[0].Mul(l)
	}).after(func(_ *kernel.Builder, s []kernel.Value) []kernel.Value {
		return []kernel.Value{s[0].Like(-1).Div(s[0])}
	})
	// RandomCauchy has the median and the scale as scalars. In float32 the uniform number keeps PyTorch's distance from the ends, where the
	// argument of the tangent would round to ±π/2 and beyond.
	RandomCauchy = uniforms("cauchy", 2, func(k *kernel.Builder, _ dtype.DType, u kernel.Value, s []kernel.Value) kernel.Value {
		if u.Type() == dtype.Float32 {
			u = u.Min(u.Like(1 - 0x1p-23)).Max(u.Like(0x1p-23))
		}
		return math.TanHalfTurn(k, u.Sub(u.Like(0.5)).Mul(u.Like(pi))).FMA(s[1], s[0])
	})
	// RandomGeometric is the number of trials up to the first success, which has probability scalar 0.
	RandomGeometric = uniforms("geometric", 1, func(k *kernel.Builder, _ dtype.DType, u kernel.Value, s []kernel.Value) kernel.Value {
		l := math.LogPositive(k, u, 1)
		if u.Type() == dtype.Float64 {
			return l.Div(s[0]).Ceil()
		}
		// The quotient is rounded correctly, using the divisor's reciprocal (P. Markstein, "Computation of elementary functions on the IBM
		// RISC System/6000 processor", IBM Journal of Research and Development 34, 1990).
		q := l.Mul(s[1])
		q = q.Neg().FMA(s[0], l).FMA(s[1], q)
		return q.Mul(q.Like(geometricScale)).Ceil()
	}).after(func(k *kernel.Builder, s []kernel.Value) []kernel.Value {
		d := math.Log1p(k, s[0].Neg())
		if d.Type() == dtype.Float64 {
			return []kernel.Value{d}
		}
		// An infinite divisor, for 1, has the reciprocal -0 and is handled separately.
		d = d.Mul(d.Like(geometricScale))
		return []kernel.Value{isInf(d).Select(d.Like(-1), d), d.Like(1).Div(d)}
	})
	// RandomInt32 is scalar 1 + a 32-bit word modulo scalar 0, RandomInt64 the same with a 64-bit word; both are Uint64 and stored as any
	// type.
	RandomInt32 = distribution(RandomOp{name: "int32", scalars: 2, integers: true, narrow: true,
		values: func(_ *kernel.Builder, _, _ dtype.DType, w [4]kernel.Value, s []kernel.Value) []kernel.Value {
			var vs []kernel.Value
			for _, x := range w {
				vs = append(vs, x.Rem(s[0].Convert(dtype.Uint32)).Convert(dtype.Uint64).Add(s[1]))
			}
			return vs
		}})
	RandomInt64 = distribution(RandomOp{name: "int64", scalars: 2, integers: true, values: func(k *kernel.Builder, _, _ dtype.DType,
		w [4]kernel.Value, s []kernel.Value) []kernel.Value {
		var vs []kernel.Value
		for i := 0; i < 4; i += 2 {
			x := w[i].Convert(dtype.Uint64).Shl(k.I32(32)).Or(w[i+1].Convert(dtype.Uint64))
			vs = append(vs, x.Rem(s[0]).Add(s[1]))
		}
		return vs
	}})
)

// normals returns four or two standard normal numbers in cuRAND's order: sine before cosine.
func normals(k *kernel.Builder, t dtype.DType, w [4]kernel.Value) []kernel.Value {
	radius := func(u kernel.Value) kernel.Value { return math.SqrtPositive(k, math.LogPositive(k, u, -2)) }
	if t == dtype.Float64 {
		s, angle := radius(uniform64(w[0], w[1])), uniform64(w[2], w[3]).Mul(k.F64(2*pi))
		return []kernel.Value{s.Mul(math.Sin(k, angle)), s.Mul(math.Cos(k, angle))}
	}
	var vs []kernel.Value
	for i := 0; i < 4; i += 2 {
		sin, cos, half := turn32(w[i+1])
		s := radius(uniform32(w[i])).Bitcast(dtype.Uint32).Xor(half).Bitcast(dtype.Float32)
		vs = append(vs, s.Mul(sin), s.Mul(cos))
	}
	return vs
}

// geometricScale is a power of two that scales any float32 divisor of geometric numbers to where it has a reciprocal.
const geometricScale = 1 << 48

// randomThreads and randomStep are the block size and the number of words per step on which PyTorch's mapping from the generator to
// elements is based.
const (
	randomThreads = 256
	randomStep    = 4
)

// randomVec is how many of PyTorch's threads a thread stands for if the elements are adjacent, so that it stores vectors. randomSteps is
// how many of their steps it takes, if there are enough. Blocks that end, and start in the order of memory, keep the whole device busy; if
// every thread ran to the end, the scheduler would let some run far ahead.
const (
	randomVec   = 4
	randomSteps = 8
)

// compute returns the type in which op computes for outputs of type t.
func (op *RandomOp) compute(t dtype.DType) dtype.DType {
	switch {
	case op.integers:
		return dtype.Uint64
	case t == dtype.Float64:
		return dtype.Float64
	}
	return dtype.Float32
}

// unroll is the number of values per step.
func (op *RandomOp) unroll(t dtype.DType) int {
	if op.narrow || op.compute(t) == dtype.Float32 {
		return 4
	}
	return 2
}

// randomGrid is the number of blocks for n elements: as many as the device holds at once, or fewer.
func randomGrid(lim *Limits, n int) int {
	return max(1, min(lim.Multiprocessors*(lim.MaxThreadsPerSM/randomThreads), ceilDiv(n, randomThreads)))
}

// Advance returns how far filling n elements of type t advances the generator's offset.
func (op *RandomOp) Advance(lim *Limits, t dtype.DType, n int) uint64 {
	if n == 0 {
		return 0
	}
	return uint64(ceilDiv(n, randomThreads*randomGrid(lim, n)*op.unroll(t)) * randomStep)
}

// randomSpec is what these kernels are specialised on.
type randomSpec struct {
	// Captured: the kernel reads the generator's state.
	Captured bool
	// Dims is the class of the number of dimensions, see dimsClass.
	Dims uint8
}

// randomArgs are the arguments of these kernels. If the elements are adjacent, Spec.Vec at a time, steps is the number of steps and each
// the number of steps per block; otherwise dims gives their layout.
type randomArgs struct {
	op          *RandomOp
	n           intArg
	out         arrayArg
	philox      philoxArg
	scalars     scalarArgs
	dims        striderArg
	steps, each intArg
}

func (a *randomArgs) layout(p params) {
	s := p.s
	p.index(&a.n, "n")
	p.array(&a.out, "out", s.DTypes[0])
	p.philox(&a.philox, s.Random.Captured)
	for i := range a.op.scalars {
		p.scalarAt(&a.scalars, i, p.number("s", i), s.Compute)
	}
	if s.Vec == 0 {
		p.strider(&a.dims, "dim", int(s.Random.Dims), 1, int(s.Index), operandsFrom(0, 1))
		return
	}
	p.i32(&a.steps, "steps")
	p.i32(&a.each, "each")
}

// Random fills out with numbers of a distribution, the same for each element that PyTorch draws on a device with the same limits. Thread t
// of T takes steps of four words, and value j of step i goes to element t + T·(j + unroll·i), in the order of out's memory. The caller
// advances the generator by op.Advance.
func Random(is Issuer, op *RandomOp, scalars []Scalar, out Operand, ph Philox) error {
	if len(scalars) != op.scalars {
		return fmt.Errorf("%s takes %d scalars; got %d", op.name, op.scalars, len(scalars))
	}
	var p pointPlan
	outs := [...]Operand{out}
	if err := p.init(op.name, false, outs[:], nil); err != nil {
		return err
	}
	p.merge()
	n := p.numel()
	if n == 0 {
		return nil
	}
	t := op.compute(out.DType)
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Op, s.Compute, s.Outs = FamilyRandom, op.id, t, 1
	s.DTypes[0] = out.DType
	s.Index = 32
	s.Random = randomSpec{Captured: ph.captured(), Dims: uint8(dimsClass(p.nd))}
	grid := randomGrid(is.Limits(), n)
	unroll := op.unroll(out.DType)
	overshoot := grid * randomThreads * unroll
	if p.reach()+overshoot > min(is.Index32(), lane32) {
		s.Index = 64
	}
	if t == dtype.Float32 && out.DType.Size() <= 4 && p.nd == 1 && p.stride[0][0] == 1 && out.Ptr%uint64(randomVec*out.DType.Size()) == 0 {
		s.Vec = randomVec
	}
	var a randomArgs
	a.op, a.n.host, a.out.host = op, n, out.Ptr
	a.philox.give(&ph)
	a.scalars.host, a.dims.host = scalars, &p.space
	if s.Vec == 0 {
		a.layout(packing(l))
		l.Grid, l.Block = [3]uint32{uint32(grid), 1, 1}, [3]uint32{randomThreads, 1, 1}
		return is.Issue(l)
	}
	steps := ceilDiv(n, overshoot)
	// Four rows of blocks fill the device, and a grid has at most 65535 rows.
	each := max(min(randomSteps, ceilDiv(steps, 4)), ceilDiv(steps, 1<<16-1))
	a.steps.host, a.each.host = steps, each
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{uint32(grid), uint32(ceilDiv(steps, each)), 1}, [3]uint32{randomThreads / randomVec, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilyRandom, buildRandom)

func buildRandom(s *Spec) *kernel.Kernel {
	op := randomOps[s.Op]
	return kernel.Build(s.name("rand_"+op.name), func(k *kernel.Builder) {
		vec := max(1, int(s.Vec))
		k.FixedThreads(randomThreads / vec)
		ix := indexType(int(s.Index))
		a := randomArgs{op: op, scalars: scalarArgs{nums: make([]Num, op.scalars)}}
		a.layout(declaring(k, s))
		n := a.n.Value
		thread := k.BlockIdx(kernel.X).Mul(k.I32(randomThreads / vec)).Add(k.ThreadIdx(kernel.X)).Mul(k.I32(vec))
		state := a.philox.state(s.Random.Captured, thread)
		var scalars []kernel.Value
		for _, v := range a.scalars.nums {
			scalars = append(scalars, v.Re)
		}
		if op.setup != nil {
			scalars = op.setup(k, scalars)
		}
		threads := k.GridDim(kernel.X).Mul(k.I32(randomThreads)).Convert(ix)
		apart := threads.Mul(k.Int(ix, int64(op.unroll(s.DTypes[0]))))
		keys := state.keys()
		draw := func(p *philoxState, step kernel.Value) []kernel.Value {
			return op.values(k, s.Compute, s.DTypes[0], p.words(p.block.Add(step), keys), scalars)
		}
		if vec == 1 {
			step := k.Var(k.U64(0))
			k.For(thread.Convert(ix), n, apart, func(i kernel.Value) {
				now := step.Get()
				for _, v := range draw(&state, now) {
					at := i
					k.If(at.Lt(n), func() { a.out.store(a.dims.locate(at)[0], realNum(v)) })
					i = i.Add(threads)
				}
				step.Set(now.Add(k.U64(1)))
			})
			return
		}
		lanes := make([]philoxState, vec)
		for q := range lanes {
			lanes[q] = state.of(thread.Add(k.I32(q)))
		}
		first := k.BlockIdx(kernel.Y).Mul(a.each.Value)
		k.For(first, a.steps.Min(first.Add(a.each.Value)), k.I32(1), func(step kernel.Value) {
			rows := make([][]Num, op.unroll(s.DTypes[0]))
			for q := range lanes {
				for j, v := range draw(&lanes[q], step.Convert(dtype.Uint64)) {
					rows[j] = append(rows[j], realNum(v))
				}
			}
			i := apart.Mul(step.Convert(ix)).Add(thread.Convert(ix))
			at := func(j, q int) kernel.Value { return i.Add(threads.Mul(k.Int(ix, int64(j)))).Add(k.Int(ix, int64(q))) }
			k.IfElse(at(len(rows)-1, vec-1).Lt(n), func() {
				for j, row := range rows {
					a.out.store(at(j, 0), row...)
				}
			}, func() {
				for j, row := range rows {
					for q, v := range row {
						k.If(at(j, q).Lt(n), func() { a.out.store(at(j, q), v) })
					}
				}
			})
		})
	})
}

// Scalars returns the number of scalars of the distribution.
func (op *RandomOp) Scalars() int { return op.scalars }
