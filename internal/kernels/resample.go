package kernels

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Resample is linear interpolation between the elements of x [batch, channels, …] in the one to three dimensions after the first two. y has
// other sizes there; both have any strides.
type Resample struct {
	// Step is the distance of y's elements in x, for each of these dimensions.
	Step [3]float64
	// Corners says that y's element i lies at i·Step in x, and not at (i+½)·Step-½. In both cases places outside of x move to its edge.
	Corners bool
}

// Forward sets y to the mixtures of the 2, 4 or 8 elements of x around its places. The last dimension is mixed first, and each product and
// sum is rounded.
func (p *Resample) Forward(is Issuer, y, x Operand) error { return p.issue(is, resampleForward, y, x) }

// Backward sets dx from the gradient dy of Forward's result. Each element is one sum, in an order that depends on the sizes only.
func (p *Resample) Backward(is Issuer, dx, dy Operand) error {
	return p.issue(is, resampleBack, dx, dy)
}

// resampleKind is the operation of a kernel of FamilyResample; it is Spec.Op.
type resampleKind uint16

const (
	resampleForward resampleKind = iota
	resampleBack
)

const resampleThreads = 256

// resampleSpec is what these kernels are specialised on.
type resampleSpec struct {
	// Dims is the number of dimensions that change.
	Dims uint8
	// Along says that a thread's elements are adjacent in the last dimension; otherwise they are channels.
	Along bool
}

// resampleArgs are the arguments of these kernels. Threads go over out; in is the other array.
type resampleArgs struct {
	out, in bufferArg
	n       intArg
	dims    striderArg
	shift   scalarArg
	along   [3]resampleDim
}

// resampleDim is a dimension that changes: the sizes of x and y, the stride of in, and the distance of y's elements in x, with its
// reciprocal.
type resampleDim struct {
	from, to, stride intArg
	step, inverse    scalarArg
}

func (a *resampleArgs) layout(p params) {
	s, dims := p.s, int(p.s.Resample.Dims)
	p.buffer(&a.out, "out", s.DTypes[0])
	p.bufferRO(&a.in, "in", s.DTypes[1])
	p.index(&a.n, "n")
	p.strider(&a.dims, "dim", dims+2, int(s.Vec), int(s.Index), operandsFrom(0, dims+2))
	p.scalar(&a.shift, "shift", s.Compute)
	for i := range dims {
		d := &a.along[i]
		p.i32(&d.from, p.number("from", i))
		p.i32(&d.to, p.number("to", i))
		p.wide(&d.stride, p.number("stride", i))
		p.scalar(&d.step, p.number("step", i), s.Compute)
		if resampleKind(s.Op) == resampleBack {
			p.scalar(&d.inverse, p.number("inverse", i), s.Compute)
		}
	}
}

// issue launches a thread for each element of out, or for several adjacent ones. The strider has a slot for each array, in which that of in
// has only the strides of batch and channels, and one for the place in each dimension that changes.
func (p *Resample) issue(is Issuer, kind resampleKind, out, in Operand) error {
	n := out.Numel()
	if n == 0 {
		return nil
	}
	const batch, channel, first = 0, 1, 2
	nd := len(out.Shape)
	dims, last := nd-first, nd-1
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Op, s.Compute, s.Outs, s.Ins = FamilyResample, uint16(kind), opmath(out.DType), 1, 1
	s.DTypes[0], s.DTypes[1] = out.DType, in.DType
	s.Resample.Dims = uint8(dims)
	var order [5]int // innermost first
	for i := range nd {
		order[i] = last - i
	}
	vec, busy := 1, poolBusy(is.Limits())
	switch wide := min(8, 16/out.DType.Size()); {
	case out.Stride[channel] < out.Stride[last]:
		copy(order[1:], order[:dims])
		order[0] = channel
		vec = sideBySide(channel, wide, n, busy, out, in)
	case kind == resampleForward:
		// More than four would wait for too many elements, each of which is loaded by itself.
		vec = sideBySide(last, min(4, wide), n, busy, out)
		s.Resample.Along = vec > 1
	}
	s.Vec = uint8(vec)
	sp := space{nd: nd, count: dims + 2}
	for at, d := range order[:nd] {
		sp.size[at], sp.stride[0][at] = out.Shape[d], out.Stride[d]
		if d < first {
			sp.stride[1][at] = in.Stride[d]
		} else {
			sp.stride[d][at] = 1 // d-first slots follow the two arrays
		}
	}
	s.Index = 32
	if limit := min(is.Index32(), lane32); max(sp.reach(), in.Numel(), reachOf(&in)) > limit {
		s.Index = 64
	}
	x, y := in, out
	if kind == resampleBack {
		x, y = out, in
	}
	var a resampleArgs
	a.out.host, a.in.host, a.n.host, a.dims.host = out.Ptr, in.Ptr, n/vec, &sp
	if !p.Corners {
		a.shift.host = FloatScalar(0.5)
	}
	for i := range dims {
		d, inverse := &a.along[i], math.MaxFloat32
		if p.Step[i] > 0 {
			inverse = 1 / p.Step[i]
		}
		d.from.host, d.to.host, d.stride.host = x.Shape[first+i], y.Shape[first+i], in.Stride[first+i]
		d.step.host, d.inverse.host = FloatScalar(p.Step[i]), FloatScalar(inverse)
	}
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(ceilDiv(n/vec, resampleThreads)), 1, 1}
	l.Block = [3]uint32{resampleThreads, 1, 1}
	return is.Issue(l)
}

// resampleKernel builds one of the kernels.
type resampleKernel struct {
	resampleArgs
	k *kernel.Builder
	s *Spec
	// count is the number of dimensions that change, vec that of the thread's elements.
	count, vec int
	// place is the thread's element in each dimension that changes.
	place []kernel.Value
}

var _ = register(FamilyResample, buildResample)

func buildResample(s *Spec) *kernel.Kernel {
	kind := resampleKind(s.Op)
	return kernel.Build(s.name([]string{"resample", "resample_back"}[kind]), func(k *kernel.Builder) {
		k.FixedThreads(resampleThreads)
		r := &resampleKernel{k: k, s: s, count: int(s.Resample.Dims), vec: int(s.Vec)}
		ix := indexType(int(s.Index))
		r.layout(declaring(k, s))
		i := k.BlockIdx(kernel.X).Convert(ix).Mul(k.Int(ix, resampleThreads)).Add(k.ThreadIdx(kernel.X).Convert(ix))
		k.If(i.Lt(r.n.Value), func() {
			at := r.dims.locate(i)
			for _, v := range at[2:] {
				r.place = append(r.place, v.Convert(dtype.Int32))
			}
			elements := r.forward
			if kind == resampleBack {
				elements = r.backward
			}
			vs := elements(at[1])
			for c := range vs {
				vs[c] = vs[c].Convert(s.DTypes[0])
			}
			r.out.StoreVec(at[0], vs...)
		})
	})
}

// between is a place of y in one dimension: the numbers of its neighbours in x, and its distances from the first and the second.
type between struct{ below, above, part, rest kernel.Value }

// find returns the place of element i of y in dimension d.
func (r *resampleKernel) find(d int, i kernel.Value) (b between) {
	a, k := &r.along[d], r.k
	last := a.from.Sub(k.I32(1))
	at := i.Convert(r.s.Compute).Add(r.shift.Re).Mul(a.step.Re).Sub(r.shift.Re)
	at = at.Max(at.Like(0)).Min(last.Convert(at.Type()))
	floor := at.Floor()
	b.part = at.Sub(floor)
	b.rest = at.Like(1).Sub(b.part)
	b.below = floor.Convert(dtype.Int32).Min(last) // the conversion of last may have rounded up
	b.above = b.below.Add(k.I32(1)).Min(last)
	return b
}

// load returns the thread's channels at a place of in, or one element.
func (r *resampleKernel) load(at kernel.Value) []kernel.Value {
	n := r.vec
	if r.s.Resample.Along {
		n = 1
	}
	vs := r.in.LoadVec(at, n)
	for c := range vs {
		vs[c] = vs[c].Convert(r.s.Compute)
	}
	return vs
}

// forward returns the thread's elements of y. at is the place of batch and channel in x.
func (r *resampleKernel) forward(at kernel.Value) (vs []kernel.Value) {
	near := make([]between, r.count)
	for d := range near {
		near[d] = r.find(d, r.place[d])
	}
	if !r.s.Resample.Along {
		return r.mix(near, 0, at)
	}
	last := r.count - 1
	for c := range r.vec {
		near[last] = r.find(last, r.place[last].Add(r.k.I32(c)))
		vs = append(vs, r.mix(near, 0, at)...)
	}
	return vs
}

// mix mixes the neighbours in dimension d, which are mixtures in the dimensions after it.
func (r *resampleKernel) mix(near []between, d int, at kernel.Value) []kernel.Value {
	if d == r.count {
		return r.load(at)
	}
	b := &near[d]
	below, above := r.mix(near, d+1, r.beyond(at, d, b.below)), r.mix(near, d+1, r.beyond(at, d, b.above))
	for c := range below {
		below[c] = below[c].Mul(b.rest).Add(above[c].Mul(b.part))
	}
	return below
}

// beyond returns the place in in that is i elements beyond at in dimension d.
func (r *resampleKernel) beyond(at kernel.Value, d int, i kernel.Value) kernel.Value {
	return at.Add(i.Convert(at.Type()).Mul(r.along[d].stride.Value))
}

// backward returns the thread's elements of x's gradient. at is the place of batch and channel in y's.
func (r *resampleKernel) backward(at kernel.Value) []kernel.Value {
	k := r.k
	ends := make([][2]kernel.Value, r.count)
	for d := range ends {
		// Places do not descend, so those with this element as a neighbour are adjacent.
		ends[d] = [2]kernel.Value{r.start(d, r.place[d].Sub(k.I32(1))), r.start(d, r.place[d].Add(k.I32(1)))}
	}
	return r.collect(ends, 0, at)
}

// start returns the first element of y whose first neighbour in dimension d is element j of x or a later one, or y's size if there is
// none. It searches from an estimate, so that the result is exact whatever is rounded.
func (r *resampleKernel) start(d int, j kernel.Value) kernel.Value {
	k, a := r.k, &r.along[d]
	one, shift := k.I32(1), r.shift.Re
	guess := j.Convert(r.s.Compute).Add(shift).Mul(a.inverse.Re).Sub(shift).Ceil()
	guess = guess.Max(guess.Like(0)).Min(a.to.Convert(guess.Type()))
	at := k.Var(guess.Convert(dtype.Int32).Min(a.to.Value))
	k.Loop(func() {
		before := at.Get().Sub(one)
		k.If(before.Lt(k.I32(0)).Or(r.find(d, before).below.Lt(j)), k.Break)
		at.Set(before)
	})
	k.Loop(func() {
		k.If(at.Get().Ge(a.to.Value).Or(r.find(d, at.Get()).below.Ge(j)), k.Break)
		at.Set(at.Get().Add(one))
	})
	return at.Get()
}

// collect adds up the gradients of the elements between ends in dimension d and those after it.
func (r *resampleKernel) collect(ends [][2]kernel.Value, d int, at kernel.Value) []kernel.Value {
	if d == r.count {
		return r.load(at)
	}
	k := r.k
	sums := make([]kernel.Var, r.vec)
	for c := range sums {
		sums[c] = k.Var(k.Const(r.s.Compute, 0))
	}
	start, end := ends[d][0], ends[d][1]
	widths := []int{1}
	if d == r.count-1 {
		widths = []int{4, 2, 1} // several loads are under way at once; twice the size takes four elements
	}
	for _, n := range widths {
		k.For(start, end.Sub(k.I32(n-1)), k.I32(n), func(first kernel.Value) {
			weights, vs := make([]kernel.Value, n), make([][]kernel.Value, n)
			for j := range n {
				i := first.Add(k.I32(j))
				b := r.find(d, i)
				// At the far edge both neighbours are this element, and the part is 0.
				weights[j] = b.below.Eq(r.place[d]).Select(b.rest, b.part)
				vs[j] = r.collect(ends, d+1, r.beyond(at, d, i))
			}
			for j, w := range weights {
				for c := range sums {
					sums[c].Set(vs[j][c].FMA(w, sums[c].Get()))
				}
			}
		})
		start = start.Add(end.Sub(start).And(k.I32(-n)))
	}
	return get(sums)
}
