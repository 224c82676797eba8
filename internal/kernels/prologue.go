package kernels

import (
	"fmt"
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Prologue is element-wise work that makes the right operand of a product, such as a weight from its quantized form. A product of few rows
// reads each element of that matrix once, so its kernel makes them as it loads what they are made of. Other products get the matrix from
// a kernel before theirs.
type Prologue struct {
	// Op is an operation of [Fuse] with one output, the matrix.
	Op      *PointOp
	Scalars []Scalar
	// Ins are its inputs in the shape of the matrix; strides may be 0. Along the axis along which the matrix is contiguous, their elements
	// must be adjacent or the same one. All have real types.
	Ins []Operand
}

// adjacent and across report whether input i's elements differ along the axis along which matrix b is contiguous, and along the other.
func (r *Prologue) adjacent(i int, b *Operand) bool { return r.Ins[i].Stride[lineAxis(b)] != 0 }
func (r *Prologue) across(i int, b *Operand) bool   { return r.Ins[i].Stride[1-lineAxis(b)] != 0 }

// lineAxis returns the axis along which matrix b is contiguous.
func lineAxis(b *Operand) int {
	if b.Stride[1] == 1 {
		return 1
	}
	return 0
}

// checkPrologue returns an error if the product cannot have its prologue.
func (p *product) checkPrologue() error {
	r, b := p.opt.Prologue, &p.b
	switch {
	case !r.Op.fused:
		return fmt.Errorf("%s as a prologue is not of the kind that Fuse makes", r.Op.Name)
	case r.Op.Ins == 0:
		return fmt.Errorf("%s as a prologue has no inputs; make the matrix before", r.Op.Name)
	case r.Op.Outs != 1 || len(r.Ins) != r.Op.Ins || len(r.Scalars) != r.Op.Scalars:
		return fmt.Errorf("%s as a prologue makes %d outputs of %d inputs and %d scalars; got 1, %d and %d", r.Op.Name, r.Op.Outs,
			r.Op.Ins, r.Op.Scalars, len(r.Ins), len(r.Scalars))
	case len(b.Shape) != 2 || min(b.Shape[0], b.Shape[1]) < 2 || b.Stride[lineAxis(b)] != 1 ||
		b.Stride[1-lineAxis(b)] != b.Shape[lineAxis(b)]:
		return fmt.Errorf("a prologue makes one matrix of at least 2 x 2 without gaps, not %v with strides %v", b.Shape, b.Stride)
	}
	for i := range r.Ins {
		o := &r.Ins[i]
		if len(o.Shape) != 2 || o.Shape[0] != b.Shape[0] || o.Shape[1] != b.Shape[1] || o.Stride[lineAxis(b)] > 1 || o.DType.IsComplex() {
			return fmt.Errorf("input %d of prologue %s is %v %v with strides %v, for a matrix %v with strides %v", i, r.Op.Name, o.DType,
				o.Shape, o.Stride, b.Shape, b.Stride)
		}
	}
	return nil
}

// MakesMatrix reports whether the product's kernel can have a prologue: it reads each element of b once. Of addresses only the alignment to
// 16 bytes matters.
func MakesMatrix(lim *Limits, out, a, b Operand, opt MatmulOpt) bool {
	var p product
	if err := p.begin(out, a, b, opt); err != nil || len(b.Shape) != 2 {
		return false
	}
	_, ok := p.planVector(lim)
	return ok && !p.swapped
}

// makeMatrix lets a launch before the product's make the matrix.
func (p *product) makeMatrix(is Issuer) error {
	r, b := p.opt.Prologue, &p.b
	if p.swapped {
		b = &p.a
	}
	at, err := is.Workspace(b.Numel() * b.DType.Size())
	if err != nil {
		return err
	}
	b.Ptr, p.opt.Prologue = at, nil
	return Pointwise(is, r.Op, dtype.Float32, r.Scalars, []Operand{*b}, r.Ins)
}

// madeSpec describes a prologue.
type madeSpec struct {
	// Op is the operation's id. Ins is the number of its inputs, 0 without a prologue.
	Op uint16
	// Adjacent and Across have a bit for each input whose elements differ along a line of the matrix and from line to line.
	Adjacent, Across operandSet
	// Ins is the number of inputs and Width that of elements that are loaded together.
	Ins, Width uint8
}

// op returns the operation of the prologue.
func (m *madeSpec) op() *PointOp {
	fusedOps.RLock()
	defer fusedOps.RUnlock()
	return fusedOps.all[m.Op]
}

// prologueArgs are the operands and numbers of a prologue. apart are how far lines of each input are from each other.
type prologueArgs struct {
	operands operandArgs
	scalars  scalarArgs
	apart    listArg[int]
}

// first returns the number of a prologue's first operand in the spec.
func (m *madeSpec) first(s *Spec) int { return int(s.Outs + s.Ins - m.Ins) }

// addPrologue adds the product's prologue, unless there is none, to the spec and the arguments of the kernel, whose accesses to the matrix
// are width elements wide. It comes after the epilogue.
func (p *product) addPrologue(a *prologueArgs, s *Spec, width uint8) error {
	r, m := p.opt.Prologue, &s.Product.Made
	if r == nil {
		return nil
	}
	m.Op, m.Ins = r.Op.id, uint8(len(r.Ins))
	s.Ins += m.Ins
	if int(s.Outs+s.Ins) > maxOperands {
		return fmt.Errorf("%s as a prologue has more than %d operands with the product and its epilogue", r.Op.Name, maxOperands)
	}
	a.operands.host = new([maxOperands]uint64)
	apart := make([]int, m.Ins)
	a.scalars.host, a.apart.host = r.Scalars, apart
	places := uint64(width)
	for i := range r.Ins {
		o, at := &r.Ins[i], m.first(s)+i
		s.DTypes[at] = o.DType
		a.operands.host[at] = o.Ptr
		apart[i] = o.Stride[1-lineAxis(&p.b)]
		if r.across(i, &p.b) {
			m.Across.add(i)
		}
		if r.adjacent(i, &p.b) {
			m.Adjacent.add(i)
			places |= o.Ptr/uint64(o.DType.Size()) | uint64(apart[i])
		}
	}
	m.Width = 1 << bits.TrailingZeros64(places)
	return nil
}

// layout declares or packs the arguments.
func (a *prologueArgs) layout(p params) {
	m := &p.s.Product.Made
	if m.Ins == 0 {
		return
	}
	op := m.op()
	if p.k != nil {
		a.operands.arrays, a.scalars.nums = new([maxOperands]array), make([]Num, op.Scalars)
	}
	for i := range int(m.Ins) {
		p.operandRO(&a.operands, m.first(p.s)+i, p.number("p", i))
	}
	for i := range op.Scalars {
		p.scalarAt(&a.scalars, i, p.number("ps", i), op.scalarType(i, dtype.Float32))
	}
	list(p, &a.apart, "apart", int(m.Ins))
}

// prologueName returns what the prologue adds to the name of a product's kernel.
func prologueName(s *Spec) string {
	if s.Product.Made.Ins == 0 {
		return ""
	}
	return "_of_" + s.Product.Made.op().Name
}

// matrixLine is a line of the matrix of a product of few rows: a column, if columns lie along the depth, or else a row.
type matrixLine struct {
	c *vecKernel
	// matrix is the line of the matrix, unless a prologue makes it, and ins are those of the prologue's inputs.
	matrix kernel.Buffer
	ins    []array
	// shared are the elements of inputs that were loaded before, since they are the same for all accesses.
	shared [][]Num
}

// line returns line number (Int64) of matrix b, whose lines are so far apart.
func (c *vecKernel) line(b kernel.Buffer, number, apart kernel.Value) *matrixLine {
	m := &c.s.Product.Made
	l := &matrixLine{c: c, shared: make([][]Num, m.Ins)}
	if m.Ins == 0 {
		l.matrix = b.Offset(number.Mul(apart))
	}
	for i := range int(m.Ins) {
		a := c.prologue.operands.arrays[m.first(c.s)+i]
		if m.Across.has(i) {
			a = a.offset(number.Mul(c.prologue.apart.Get(i)))
		}
		l.ins = append(l.ins, a)
	}
	return l
}

// share loads the elements at from (Int64) of the inputs outside set, which all accesses to the line, or to all lines at from, share.
func (l *matrixLine) share(set operandSet, from kernel.Value) {
	for i := range l.shared {
		if !set.has(i) {
			l.shared[i] = l.read(i, from)
		}
	}
}

// load loads what an access to the line at element from (Int64) needs. The result is called once the elements are needed, in Float32.
func (l *matrixLine) load(from kernel.Value) (elements func() []kernel.Value) {
	r, m := &l.c.s.Product, &l.c.s.Product.Made
	width := int(r.Right.Width)
	if m.Ins == 0 {
		vs := l.matrix.LoadVec(from, width)
		return func() []kernel.Value { return wide(vs) }
	}
	ins := slices.Clone(l.shared)
	for i := range ins {
		if ins[i] == nil {
			ins[i] = l.read(i, from)
		}
	}
	return func() (made []kernel.Value) {
		op := m.op()
		for j := range width {
			args := make([]Num, len(ins))
			for i, vs := range ins {
				args[i] = vs[min(j, len(vs)-1)].Convert(op.inType(i, dtype.Float32))
			}
			v := op.Build(l.c.k, dtype.Float32, args, l.c.prologue.scalars.nums)[0]
			made = append(made, v.Convert(l.c.s.Compute).Re)
		}
		return wide(made)
	}
}

// read loads the elements of input i at from: one, if all of the line's are the same, or as many as an access to the matrix has.
func (l *matrixLine) read(i int, from kernel.Value) (vs []Num) {
	m := &l.c.s.Product.Made
	a, n := l.ins[i], int(l.c.s.Product.Right.Width)
	if !m.Adjacent.has(i) {
		return a.load(l.c.k.I64(0), 1)
	}
	w := min(int(m.Width), 16/a.t.Size())
	for j := 0; j < n; j += w {
		vs = append(vs, a.load(from.Add(from.Like(float64(j))), w)...)
	}
	return vs
}
