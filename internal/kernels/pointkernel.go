package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// pointKernel builds the kernel of one pointwise spec.
type pointKernel struct {
	k    *kernel.Builder
	op   *PointOp
	s    *Spec
	vec  int
	outs []array
	// ins has a zero array for an input that is a scalar, whose value is in held.
	ins     []array
	held    []Num
	scalars []Num
	// raise sets the flag of ops that have one; it is nil in engines without flags.
	raise func()
	// base is the linear index of the launch's first element, for ops that see indexes.
	base kernel.Value
	// dims locates the operands' vectors, unless they are one run.
	dims *strider
}

var _, _ = register(FamilyPointwise, buildPointwise), register(FamilyFused, buildPointwise)

func buildPointwise(s *Spec) *kernel.Kernel {
	op := opOf(s)
	return kernel.Build(s.name("pw_"+op.Name), func(k *kernel.Builder) {
		k.FixedThreads(pointThreads)
		p := &pointKernel{k: k, op: op, s: s, vec: int(s.Vec)}
		a := pointArgs{op: op, operands: operandArgs{arrays: new([maxOperands]array)},
			scalars: scalarArgs{nums: make([]Num, op.Scalars+s.Point.Scalar.count())}}
		a.layout(declaring(k, s))
		p.take(&a)
		if s.Point.Dims == 0 {
			p.contiguous(a.n.Value)
		} else {
			p.strided(a.n.Value)
		}
	})
}

// take sets the kernel's values from its arguments.
func (p *pointKernel) take(a *pointArgs) {
	outs, ins := int(p.s.Outs), int(p.s.Ins)
	p.base, p.dims = a.base.Value, a.dims.strider
	p.outs, p.ins = a.operands.arrays[:outs], a.operands.arrays[outs:outs+ins]
	p.held = make([]Num, ins)
	var held []Num
	p.scalars, held = a.scalars.nums[:p.op.Scalars], a.scalars.nums[p.op.Scalars:]
	for i := range p.held {
		if p.s.Point.Scalar.has(i) {
			p.held[i], held = held[0], held[1:]
		}
	}
}

func (p *pointKernel) repeats(operand int) bool { return p.s.Point.Repeat.has(operand) }

// via rounds v, which is loaded from or stored to an operand, to the half type if the operand goes through one.
func (p *pointKernel) via(operand int, v Num) Num {
	if p.s.Point.Via.has(operand) {
		return v.Convert(p.s.Point.Half)
	}
	return v
}

// load loads vec elements of every input at its index.
func (p *pointKernel) load(at []kernel.Value, vec int) [][]Num {
	all := make([][]Num, len(p.ins))
	for i, a := range p.ins {
		t := p.op.inType(i, opmath(p.s.Compute))
		vs := make([]Num, vec)
		switch {
		case a.t == dtype.Invalid:
			for j := range vs {
				vs[j] = p.held[i]
			}
		case p.repeats(len(p.outs) + i):
			v := p.via(len(p.outs)+i, a.load(at[len(p.outs)+i], 1)[0]).Convert(t)
			for j := range vs {
				vs[j] = v
			}
		default:
			for j, v := range a.load(at[len(p.outs)+i], vec) {
				vs[j] = p.via(len(p.outs)+i, v).Convert(t)
			}
		}
		all[i] = vs
	}
	return all
}

// pointVector is one vector of a thread's work: the operands' indexes, the loaded inputs, and the linear index of its first element for ops
// that see it.
type pointVector struct {
	at    []kernel.Value
	in    [][]Num
	place kernel.Value
	vec   int
}

// vector loads the inputs at the operands' indexes.
func (p *pointKernel) vector(at []kernel.Value, place kernel.Value, vec int) pointVector {
	return pointVector{at: at, in: p.load(at, vec), place: place, vec: vec}
}

// apply runs the op on the elements of vectors and stores the results.
func (p *pointKernel) apply(vectors ...pointVector) {
	results := guessed(p.k, func() []Num {
		var all []Num
		for _, v := range vectors {
			for j := range v.vec {
				all = append(all, p.element(v, j)...)
			}
		}
		return all
	})
	for _, v := range vectors {
		for o, a := range p.outs {
			vs := make([]Num, v.vec)
			for j := range vs {
				vs[j] = p.via(o, results[j*len(p.outs)+o])
			}
			a.store(v.at[o], vs...)
		}
		results = results[v.vec*len(p.outs):]
		p.check(v)
	}
}

// element returns the op's results for element j of the vector.
func (p *pointKernel) element(v pointVector, j int) []Num {
	args := make([]Num, len(v.in))
	for i := range args {
		args[i] = v.in[i][j]
	}
	if p.op.BuildAt != nil {
		return p.op.BuildAt(p.k, p.s.Compute, v.place.Add(v.place.Like(float64(j))), args, p.scalars)
	}
	return p.op.Build(p.k, p.s.Compute, args, p.scalars)
}

// check raises the flag of an op that has one.
func (p *pointKernel) check(v pointVector) {
	if p.raise == nil {
		return
	}
	var raised kernel.Value
	args := make([]Num, len(v.in))
	for j := range v.vec {
		for i := range args {
			args[i] = v.in[i][j]
		}
		r := p.op.Raise(args)
		if j > 0 {
			r = r.Or(raised)
		}
		raised = r
	}
	p.k.If(raised, p.raise)
}

// guessed is Guess for Nums.
func guessed(k *kernel.Builder, f func() []Num) []Num {
	var nums []Num
	values := k.Guess(func() []kernel.Value {
		nums = f()
		var vs []kernel.Value
		for _, n := range nums {
			if vs = append(vs, n.Re); n.IsComplex() {
				vs = append(vs, n.Im)
			}
		}
		return vs
	})
	for i := range nums {
		nums[i].Re, values = values[0], values[1:]
		if nums[i].IsComplex() {
			nums[i].Im, values = values[0], values[1:]
		}
	}
	return nums
}

// place turns an offset from base (Int32) into the linear index that the op sees.
func (p *pointKernel) place(base, i kernel.Value) kernel.Value {
	if p.op.BuildAt == nil {
		return kernel.Value{}
	}
	sum := base.Add(i.Convert(dtype.Int64))
	if p.s.Index == 32 {
		return sum.Convert(dtype.Int32)
	}
	return sum
}

// block returns the number of the block in the order of what blocks process.
func (s *Spec) block(k *kernel.Builder) kernel.Value {
	b := k.BlockIdx(kernel.X)
	if s.Back == 0 {
		return b
	}
	return k.GridDim(kernel.X).Sub(k.I32(1)).Sub(b)
}

// contiguous: a block processes a tile of adjacent elements. 64-bit arithmetic is done once, for the tile's first element. Full tiles need
// no tests; the last tile is processed as vectors and, if the end cuts a vector, as elements.
func (p *pointKernel) contiguous(n kernel.Value) {
	k, vec, items := p.k, p.vec, p.op.items()
	tile := pointThreads * vec * items
	first := p.s.block(k).MulWide(k.I32(tile))
	for i := range p.outs {
		p.outs[i] = p.outs[i].offset(first)
	}
	for i := range p.ins {
		if p.ins[i].t != dtype.Invalid && !p.repeats(len(p.outs)+i) {
			p.ins[i] = p.ins[i].offset(first)
		}
	}
	base := first
	if p.op.BuildAt != nil {
		base = p.base.Add(first)
	}
	rest := n.Sub(first).Min(k.I64(int64(tile))).Convert(dtype.Int32)
	start := k.ThreadIdx(kernel.X).Mul(k.I32(vec))
	at := func(i kernel.Value) []kernel.Value {
		vs := make([]kernel.Value, len(p.outs)+len(p.ins))
		for o := range vs {
			if vs[o] = i; p.repeats(o) {
				vs[o] = k.I32(0)
			}
		}
		return vs
	}
	one := func(i kernel.Value, vec int) {
		p.apply(p.vector(at(i), p.place(base, i), vec))
	}
	k.IfElse(rest.Eq(k.I32(tile)), func() {
		vectors := make([]pointVector, items)
		for u := range vectors {
			i := start.Add(k.I32(u * pointThreads * vec))
			vectors[u] = p.vector(at(i), p.place(base, i), vec)
		}
		p.apply(vectors...)
	}, func() {
		k.For(start, rest, k.I32(pointThreads*vec), func(i kernel.Value) {
			if vec == 1 {
				one(i, 1)
				return
			}
			k.IfElse(i.Add(k.I32(vec)).Le(rest), func() { one(i, vec) }, func() {
				k.For(i, rest, k.I32(1), func(i kernel.Value) { one(i, 1) })
			})
		})
	})
}

// strided: a thread processes items vectors, and a block's threads work side by side. The location in each operand is computed by dividing
// by the sizes.
func (p *pointKernel) strided(n kernel.Value) {
	k, items := p.k, p.op.items()
	locate := p.locate
	tile := pointThreads * items
	first := p.s.block(k).Mul(k.I32(tile))
	start := first.Add(k.ThreadIdx(kernel.X))
	base := kernel.Value{}
	if p.op.BuildAt != nil {
		base = p.base
	}
	vec := k.I32(p.vec)
	k.IfElse(first.Add(k.I32(tile)).Le(n), func() {
		vectors := make([]pointVector, items)
		for u := range vectors {
			i := start.Add(k.I32(u * pointThreads))
			vectors[u] = p.vector(locate(i), p.place(base, i.Mul(vec)), p.vec)
		}
		p.apply(vectors...)
	}, func() {
		k.For(start, n, k.I32(pointThreads), func(i kernel.Value) {
			p.apply(p.vector(locate(i), p.place(base, i.Mul(vec)), p.vec))
		})
	})
}

// locate returns every operand's index for an item (Int32), except for scalars.
func (p *pointKernel) locate(item kernel.Value) []kernel.Value {
	at := p.dims.locate(item)
	out := append(make([]kernel.Value, 0, len(p.outs)+len(p.ins)), at[:len(p.outs)]...)
	next := len(p.outs)
	for _, a := range p.ins {
		if a.t == dtype.Invalid {
			out = append(out, kernel.Value{})
			continue
		}
		out = append(out, at[next])
		next++
	}
	return out
}
