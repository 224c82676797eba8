package kernels

import (
	"fmt"
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Epilogue is element-wise work on the result of a product, done before anything is stored.
type Epilogue struct {
	// Op is an operation of [Fuse]. Its first input is the result, rounded to its type.
	Op      *PointOp
	Scalars []Scalar
	// Outs are the outputs of Op, and Ins its other inputs. All have real types. They are contiguous and have as many elements as the
	// result [M, N], or are inputs of N elements, one for each column.
	Outs, Ins []Operand
}

// productOperands is the number of operands in the spec of a product: the result and the bias.
const productOperands = 2

// checkEpilogue returns an error if the product cannot have its epilogue.
func (p *product) checkEpilogue(nd int) error {
	e := p.opt.Epilogue
	switch {
	case nd != 2 || p.n == 1 || p.s[0] != [2]int{p.n, 1}:
		return fmt.Errorf("an epilogue of a product needs one contiguous result of at least 2 columns, not %v with strides %v",
			p.out.Shape, p.out.Stride)
	case !e.Op.fused || len(e.Outs) != e.Op.Outs || len(e.Ins)+1 != e.Op.Ins || len(e.Scalars) != e.Op.Scalars:
		return fmt.Errorf("%s as an epilogue takes %d outputs, %d inputs and %d scalars; got %d, %d and %d", e.Op.Name, e.Op.Outs,
			e.Op.Ins-1, e.Op.Scalars, len(e.Outs), len(e.Ins), len(e.Scalars))
	case productOperands+len(e.Outs)+len(e.Ins) > maxOperands:
		return fmt.Errorf("%s as an epilogue has more than %d operands", e.Op.Name, maxOperands-productOperands)
	}
	for i := range len(e.Outs) + len(e.Ins) {
		o := operandAt(e.Outs, e.Ins, i)
		if n := o.Numel(); n != p.m*p.n && (i < len(e.Outs) || n != p.n) || o.DType.IsComplex() {
			return fmt.Errorf("operand %d of epilogue %s is %v with %d elements, for a result of %v", i, e.Op.Name, o.DType, n, p.out.Shape)
		}
	}
	return nil
}

// addEpilogue adds the epilogue to the spec and the arguments of the kernel that stores the result.
func (p *product) addEpilogue(s *Spec, a *productArgs) {
	e := p.opt.Epilogue
	if e == nil {
		return
	}
	s.Op, s.Product.Results = e.Op.id, uint8(len(e.Outs))
	a.epilogue.host = new([maxOperands]uint64)
	a.scalars.host = e.Scalars
	places := uint64(s.Vec)
	for i := range len(e.Outs) + len(e.Ins) {
		o, at := operandAt(e.Outs, e.Ins, i), productOperands+i
		s.DTypes[at] = o.DType
		a.epilogue.host[at] = o.Ptr
		places |= o.Ptr / uint64(o.DType.Size())
		if i >= len(e.Outs) && o.Numel() == p.n && p.m > 1 {
			s.Product.Columns |= 1 << (i - len(e.Outs))
		}
		s.Ins++
	}
	s.Vec = 1 << bits.TrailingZeros64(places)
}

// layoutEpilogue declares or packs the operands and numbers of the epilogue.
func (a *productArgs) layoutEpilogue(p params) {
	if p.s.Product.Results == 0 {
		return
	}
	op := opOf(p.s)
	if p.k != nil {
		a.epilogue.arrays, a.scalars.nums = new([maxOperands]array), make([]Num, op.Scalars)
	}
	for i := range op.Outs + op.Ins - 1 {
		p.operand(&a.epilogue, productOperands+i, p.number("e", i))
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

// runEpilogue computes and stores what the epilogue makes of adjacent results of row r from column c on.
func (p *productKernel) runEpilogue(s *Spec, r, c kernel.Value, results []kernel.Value) {
	op := opOf(s)
	outs, others := p.epilogue.arrays[productOperands:][:op.Outs], p.epilogue.arrays[productOperands+op.Outs:][:op.Ins-1]
	at := r.Mul(p.om.Value).Add(c)
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
		for o, v := range op.Build(p.m.Builder(), dtype.Float32, args, p.scalars.nums) {
			made[o] = append(made[o], v)
		}
	}
	for o, a := range outs {
		a.storeAll(at, made[o])
	}
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
