package kernels

import (
	"fmt"
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Epilogue is element-wise work on the result of a product or of a convolution, done before anything is stored.
type Epilogue struct {
	// Op is an operation of [Fuse]. Its first input is the result, rounded to its type.
	Op      *PointOp
	Scalars []Scalar
	// Outs are the outputs of Op, and Ins its other inputs. All have real types. They are contiguous and have as many elements as the
	// result [M, N], or are inputs of N elements, one for each column. The columns of a convolution are its channels, which lie last.
	Outs, Ins []Operand
}

// productOperands is the number of operands in the spec of a product: the result and the bias.
const productOperands = 2

// check returns an error if e does not fit a result of m rows and n columns.
func (e *Epilogue) check(m, n int) error {
	switch {
	case !e.Op.fused || len(e.Outs) != e.Op.Outs || len(e.Ins)+1 != e.Op.Ins || len(e.Scalars) != e.Op.Scalars:
		return fmt.Errorf("%s as an epilogue takes %d outputs, %d inputs and %d scalars; got %d, %d and %d", e.Op.Name, e.Op.Outs,
			e.Op.Ins-1, e.Op.Scalars, len(e.Outs), len(e.Ins), len(e.Scalars))
	case productOperands+len(e.Outs)+len(e.Ins) > maxOperands:
		return fmt.Errorf("%s as an epilogue has more than %d operands", e.Op.Name, maxOperands-productOperands)
	}
	for i := range len(e.Outs) + len(e.Ins) {
		o := operandAt(e.Outs, e.Ins, i)
		if count := o.Numel(); count != m*n && (i < len(e.Outs) || count != n) || o.DType.IsComplex() {
			return fmt.Errorf("operand %d of epilogue %s is %v with %d elements, for a result of %d x %d", i, e.Op.Name, o.DType, count, m,
				n)
		}
	}
	return nil
}

// checkEpilogue returns an error if the product cannot have its epilogue.
func (p *product) checkEpilogue(nd int) error {
	if nd != 2 || p.n == 1 || p.s[0] != [2]int{p.n, 1} {
		return fmt.Errorf("an epilogue of a product needs one contiguous result of at least 2 columns, not %v with strides %v",
			p.out.Shape, p.out.Stride)
	}
	return p.opt.Epilogue.check(p.m, p.n)
}

// epilogueArgs are the operands and numbers of an epilogue.
type epilogueArgs struct {
	operands operandArgs
	scalars  scalarArgs
}

// add adds e, unless it is nil, to the spec and the arguments of the kernel that stores a result of m rows and n columns.
func (a *epilogueArgs) add(e *Epilogue, s *Spec, m, n int) {
	if e == nil {
		return
	}
	s.Op, s.Product.Results = e.Op.id, uint8(len(e.Outs))
	a.operands.host = new([maxOperands]uint64)
	a.scalars.host = e.Scalars
	places := uint64(s.Vec)
	for i := range len(e.Outs) + len(e.Ins) {
		o, at := operandAt(e.Outs, e.Ins, i), productOperands+i
		s.DTypes[at] = o.DType
		a.operands.host[at] = o.Ptr
		places |= o.Ptr / uint64(o.DType.Size())
		if i >= len(e.Outs) && o.Numel() == n && m > 1 {
			s.Product.Columns |= 1 << (i - len(e.Outs))
		}
		s.Ins++
	}
	s.Vec = 1 << bits.TrailingZeros64(places)
}

// layout declares or packs the arguments.
func (a *epilogueArgs) layout(p params) {
	if p.s.Product.Results == 0 {
		return
	}
	op := opOf(p.s)
	if p.k != nil {
		a.operands.arrays, a.scalars.nums = new([maxOperands]array), make([]Num, op.Scalars)
	}
	for i := range op.Outs + op.Ins - 1 {
		if name := p.number("e", i); i < op.Outs {
			p.operand(&a.operands, productOperands+i, name)
		} else {
			p.operandRO(&a.operands, productOperands+i, name)
		}
	}
	for i := range op.Scalars {
		p.scalarAt(&a.scalars, i, p.number("s", i), op.scalarType(i, dtype.Float32))
	}
}

// epilogueName returns what the epilogue adds to the name of a product's kernel.
func epilogueName(s *Spec) string {
	if s.Product.Results == 0 {
		return ""
	}
	return "_" + opOf(s).Name
}

// within returns whether count adjacent results of row r from column c on are in a result of m rows and n columns, all Int32, and the row
// and column of the nearest ones that are.
func within(r, c, m, n kernel.Value, count int) (inside, row, col kernel.Value) {
	return r.Lt(m).And(c.Lt(n)), r.Min(m.Sub(m.Like(1))), c.Min(n.Sub(n.Like(float64(count))))
}

// run computes what the epilogue makes of adjacent results of row r from column c on, and stores it where inside is true. Only the stores
// depend on that: a branch around loads would make them wait for each other.
func (a *epilogueArgs) run(k *kernel.Builder, s *Spec, inside, r, c, n kernel.Value, results []kernel.Value) {
	at := r.MulWide(n).Add(c.Convert(dtype.Int64))
	c = c.Convert(dtype.Int64)
	op := opOf(s)
	outs, others := a.operands.arrays[productOperands:][:op.Outs], a.operands.arrays[productOperands+op.Outs:][:op.Ins-1]
	ins := [][]Num{nil}
	for _, v := range results {
		ins[0] = append(ins[0], realNum(v))
	}
	for i, a := range others {
		from := at
		if s.Product.Columns>>i&1 != 0 {
			from = c
		}
		ins = append(ins, a.loadAll(from, len(results)))
	}
	made := make([][]Num, op.Outs)
	for j := range results {
		args := make([]Num, len(ins))
		for i := range ins {
			args[i] = ins[i][j].Convert(op.inType(i, dtype.Float32))
		}
		for o, v := range op.Build(k, dtype.Float32, args, a.scalars.nums) {
			made[o] = append(made[o], v)
		}
	}
	k.If(inside, func() {
		for o, a := range outs {
			a.storeAll(at, made[o])
		}
	})
}

// loadAll loads n adjacent elements at i in as few accesses as there can be.
func (a array) loadAll(i kernel.Value, n int) (vs []Num) {
	w := min(n, 16/a.t.Size())
	for j := 0; j < n; j += w {
		vs = append(vs, a.load(i.Add(i.Like(float64(j))), w)...)
	}
	return vs
}

func (a array) storeAll(i kernel.Value, vs []Num) {
	w := min(len(vs), 16/a.t.Size())
	for j := 0; j < len(vs); j += w {
		a.store(i.Add(i.Like(float64(j))), vs[j:j+w]...)
	}
}
