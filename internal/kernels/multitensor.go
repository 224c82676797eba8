package kernels

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

const (
	multiThreads = 256
	// MultiTensors is the number of tensors that one launch of [MultiTensor] takes: their addresses as ten operands, sizes and first blocks
	// fit into the 4 KiB limit on parameters that every device has.
	MultiTensors = 32
)

// Rows are rows of numbers in device memory, each RowLen float64, see [StepOp]. Ptr is the address of the first row, and Which gives the
// row of each tensor of a call. Flag is the address of a float32 that a call of an op with Raise may set to 1. Factor, unless it is 0, is
// the address of a row with a factor for [Scale]; a step multiplies the gradients by it before it uses them.
type Rows struct {
	Ptr    uint64
	Which  []int32
	Flag   uint64
	Factor uint64
}

// maxInTypes is the number of combinations of input types that a list of MultiTensor may have.
const maxInTypes = 4

// MultiTensor applies op to every tensor of a list: outs[i] and ins[i] are the operands for the i-th. All operands of one tensor have the
// same shape and the same dense layout. Over the whole list, each output has one type. As in Pointwise, an output may be the same array as
// an input. The scalars are those in the tensors' rows; tensors whose rows are marked to be skipped are not changed. It launches once for
// every 32 tensors whose inputs have the same types.
func MultiTensor(is Issuer, op *PointOp, compute dtype.DType, rows Rows, outs, ins [][]Operand) error {
	if len(outs) != len(ins) || len(rows.Which) != len(ins) {
		return fmt.Errorf("%s: %d lists of outputs and %d rows for %d of inputs", op.Name, len(outs), len(rows.Which), len(ins))
	}
	if op.BuildAt != nil {
		return fmt.Errorf("%s sees indexes, which have no meaning over several tensors", op.Name)
	}
	for i := range outs {
		if len(outs[i]) != op.Outs || len(ins[i]) != op.Ins {
			return fmt.Errorf("%s takes %d outputs and %d inputs, got %d and %d", op.Name, op.Outs, op.Ins, len(outs[i]), len(ins[i]))
		}
	}
	var types [maxInTypes][maxOperands]dtype.DType
	n := 0
	for i := range ins {
		t := typesOf(ins[i])
		if slices.Contains(types[:n], t) {
			continue
		}
		if n == maxInTypes {
			return fmt.Errorf("%s: the inputs of %d tensors have more than %d combinations of types", op.Name, len(ins), maxInTypes)
		}
		types[n] = t
		n++
	}
	for _, t := range types[:n] {
		if err := multiOf(is, op, compute, &rows, outs, ins, t); err != nil {
			return err
		}
	}
	return nil
}

func typesOf(list []Operand) (types [maxOperands]dtype.DType) {
	for i := range list {
		types[i] = list[i].DType
	}
	return types
}

// multiOf launches for those tensors whose inputs have the given types.
func multiOf(is Issuer, op *PointOp, compute dtype.DType, rows *Rows, outs, ins [][]Operand, types [maxOperands]dtype.DType) error {
	var list [MultiTensors]multiEntry
	n := 0
	for i := range outs {
		if typesOf(ins[i]) != types {
			continue
		}
		size, repeat, ok := contiguous(outs[i], ins[i])
		switch {
		case ok && size == 0:
			continue
		case !ok || repeat != 0:
			return fmt.Errorf("%s: the operands of tensor %d do not lie alike without gaps", op.Name, i)
		}
		list[n] = multiEntry{outs[i], ins[i], size, rows.Which[i]}
		if n++; n == MultiTensors {
			if err := issueMulti(is, op, compute, rows, list[:n]); err != nil {
				return err
			}
			n = 0
		}
	}
	if n == 0 {
		return nil
	}
	return issueMulti(is, op, compute, rows, list[:n])
}

// multiEntry is one tensor of a launch.
type multiEntry struct {
	outs, ins []Operand
	size      int
	row       int32
}

// multiArgs are the arguments of a launch over several tensors: the addresses of each operand, the sizes, the first block after each
// tensor, the rows, the flag and the factor.
type multiArgs struct {
	op                 *PointOp
	addrs              [maxOperands]listArg[uint64]
	sizes              listArg[int]
	ends               listArg[int32]
	rows, flag, factor bufferArg
	which              listArg[int32]
}

func (a *multiArgs) layout(p params) {
	lists(p, a.addrs[:a.op.Outs+a.op.Ins], "addr", MultiTensors)
	list(p, &a.sizes, "size", MultiTensors)
	list(p, &a.ends, "end", MultiTensors)
	if a.op.Scalars > 0 {
		p.bufferRO(&a.rows, "rows", dtype.Float64)
		list(p, &a.which, "row", MultiTensors)
	}
	if a.op.Raise != nil {
		p.buffer(&a.flag, "flag", dtype.Uint32) // as bits: no atomic operation sets a float
	}
	if scaledStep(p.s, a.op) {
		p.bufferRO(&a.factor, "factor", dtype.Float64)
	}
}

// issueMulti launches for a list whose inputs have the same types.
func issueMulti(is Issuer, op *PointOp, compute dtype.DType, rows *Rows, list []multiEntry) error {
	outs, ins := list[0].outs, list[0].ins
	var addrs [maxOperands][MultiTensors]uint64
	var sizes [MultiTensors]int
	var which [MultiTensors]int32
	m := multiLaunch{sizes: sizes[:len(list)], which: which[:len(list)]}
	for o := range len(outs) + len(ins) {
		t := operandAt(outs, ins, o).DType
		for i := range list {
			a := operandAt(list[i].outs, list[i].ins, o)
			if a.DType != t {
				return fmt.Errorf("%s: operand %d of tensor %d is %v, that of the first is %v", op.Name, o, i, a.DType, t)
			}
			addrs[o][i] = a.Ptr
		}
		m.addrs[o] = addrs[o][:len(list)]
	}
	for i := range list {
		sizes[i], which[i] = list[i].size, list[i].row
	}
	return m.issue(is, op, compute, rows, outs, ins)
}

// multiLaunch is one launch: the addresses of each operand, and the sizes and rows of the tensors.
type multiLaunch struct {
	addrs [maxOperands][]uint64
	sizes []int
	which []int32
}

// issue launches for tensors whose operands have the types of outs and ins, those of the first tensor.
func (m *multiLaunch) issue(is Issuer, op *PointOp, compute dtype.DType, rows *Rows, outs, ins []Operand) error {
	l := is.NewLaunch()
	s := &l.Spec
	setPoint(s, op, compute, outs, ins)
	s.Family = FamilyMultiTensor
	if rows.Factor != 0 {
		s.DTypes[s.Outs+s.Ins] = dtype.Float64
		s.Ins++
	}
	count := len(outs) + len(ins)
	places := uint64(widest(outs, ins))
	for o := range count {
		t := operandAt(outs, ins, o).DType
		var all uint64
		for _, a := range m.addrs[o] {
			all |= a
		}
		size := uint64(t.Size()) // a power of 2
		if all&(size-1) != 0 {
			at := slices.IndexFunc(m.addrs[o], func(a uint64) bool { return a&(size-1) != 0 })
			return misaligned(op.Name, &Operand{DType: t, Ptr: m.addrs[o][at]})
		}
		places |= all / size
	}
	vec := 1 << bits.TrailingZeros64(places)
	s.Vec = uint8(vec)
	var ends [MultiTensors]int32
	blocks := 0
	for i := range ends {
		if i < len(m.sizes) {
			blocks += ceilDiv(m.sizes[i], multiThreads*vec*op.items())
		}
		ends[i] = int32(blocks)
	}
	var a multiArgs
	a.op, a.rows.host, a.flag.host, a.factor.host = op, rows.Ptr, rows.Flag, rows.Factor
	for o := range count {
		a.addrs[o].host = m.addrs[o]
	}
	a.sizes.host, a.ends.host, a.which.host = m.sizes, ends[:], m.which
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(blocks), 1, 1}
	l.Block = [3]uint32{multiThreads, 1, 1}
	return is.Issue(l)
}

// Column is one operand of every tensor of a call of [MultiTensorRun]: their addresses, and their types, or one type if they have the same.
type Column struct {
	Ptrs  []uint64
	Types []dtype.DType
}

// at returns the operand of tensor i, without its shape.
func (c *Column) at(i int) Operand {
	return Operand{Ptr: c.Ptrs[i], DType: c.Types[min(i, len(c.Types)-1)]}
}

// MultiTensorRun is MultiTensor for tensors that are known to be dense and alike; sizes are their numbers of elements.
func MultiTensorRun(is Issuer, op *PointOp, compute dtype.DType, rows Rows, sizes []int, outs, ins []Column) error {
	if len(outs) != op.Outs || len(ins) != op.Ins || len(rows.Which) != len(sizes) {
		return fmt.Errorf("%s takes %d outputs and %d inputs, got %d and %d, with %d rows for %d tensors", op.Name, op.Outs, op.Ins,
			len(outs), len(ins), len(rows.Which), len(sizes))
	}
	if op.BuildAt != nil || slices.Contains(sizes, 0) || slices.ContainsFunc(outs, mixed) || slices.ContainsFunc(ins, mixed) {
		return multiByTensor(is, op, compute, rows, sizes, outs, ins)
	}
	var m multiLaunch
	var first [maxOperands]Operand
	for from := 0; from < len(sizes); from += MultiTensors {
		to := min(from+MultiTensors, len(sizes))
		m.sizes, m.which = sizes[from:to], rows.Which[from:to]
		for o := range len(outs) + len(ins) {
			c := columnAt(outs, ins, o)
			first[o], m.addrs[o] = c.at(from), c.Ptrs[from:to]
		}
		if err := m.issue(is, op, compute, &rows, first[:len(outs)], first[len(outs):len(outs)+len(ins)]); err != nil {
			return err
		}
	}
	return nil
}

func columnAt(outs, ins []Column, o int) *Column {
	if o < len(outs) {
		return &outs[o]
	}
	return &ins[o-len(outs)]
}

// mixed reports whether c may have several types.
func mixed(c Column) bool { return len(c.Types) > 1 }

// multiByTensor is MultiTensorRun where launches may have to leave tensors out.
func multiByTensor(is Issuer, op *PointOp, compute dtype.DType, rows Rows, sizes []int, outs, ins []Column) error {
	list := func(cs []Column) [][]Operand {
		all := make([][]Operand, len(sizes))
		for i := range all {
			for j := range cs {
				o := cs[j].at(i)
				o.Shape, o.Stride = sizes[i:i+1], adjacent
				all[i] = append(all[i], o)
			}
		}
		return all
	}
	return MultiTensor(is, op, compute, rows, list(outs), list(ins))
}

// adjacent is the stride of a list of elements.
var adjacent = []int{1}

var _ = register(FamilyMultiTensor, buildMulti)

// buildMulti: each tensor has its own blocks, which take a tile of adjacent elements each; a block looks up its tensor.
func buildMulti(s *Spec) *kernel.Kernel {
	op := pointOps[s.Op]
	return kernel.Build(s.name("mt_"+op.Name), func(k *kernel.Builder) {
		k.FixedThreads(multiThreads)
		vec, count := int(s.Vec), op.Outs+op.Ins
		tile := multiThreads * vec * op.items()
		a := multiArgs{op: op}
		a.layout(declaring(k, s))
		p := &pointKernel{k: k, op: op, s: s, vec: vec}
		if op.Raise != nil {
			p.raise = func() { a.flag.Atomic(kernel.AtomicOr, k.I32(0), k.U32(math.Float32bits(1))) }
		}
		block := k.BlockIdx(kernel.X)
		tensor, start := k.Var(k.I32(0)), k.Var(k.I32(0))
		k.Loop(func() {
			end := a.ends.Load(tensor.Get())
			k.If(block.Lt(end), k.Break)
			start.Set(end)
			tensor.Set(tensor.Get().Add(k.I32(1)))
		})
		i := tensor.Get()
		first := block.Sub(start.Get()).MulWide(k.I32(tile))
		for o := range count {
			operand := array{k.At(a.addrs[o].Load(i), s.DTypes[o].Real()), s.DTypes[o]}.offset(first)
			if o < int(s.Outs) {
				p.outs = append(p.outs, operand)
			} else {
				p.ins = append(p.ins, operand)
			}
		}
		rest := a.sizes.Load(i).Sub(first).Min(k.I64(int64(tile))).Convert(dtype.Int32)
		if op.Scalars == 0 {
			p.tile(rest)
			return
		}
		at := a.which.Load(i).Mul(k.I32(RowLen))
		k.If(a.rows.LoadAt(at, rowSkip).Eq(k.F64(0)), func() {
			for j := range op.Scalars {
				p.scalars = append(p.scalars, realNum(a.rows.LoadAt(at, rowScalars+j)).Convert(op.scalarType(j, opmath(s.Compute))))
			}
			if scaledStep(s, op) {
				p.op = op.scaled(realNum(a.factor.LoadAt(k.I32(0), RowFactor)).Convert(opmath(s.Compute)))
			}
			p.tile(rest)
		})
	})
}

// scaledStep reports whether the kernel has a factor, which is its last input.
func scaledStep(s *Spec, op *PointOp) bool { return int(s.Ins) > op.Ins }

// scaled returns the step op for gradients that are multiplied by factor first. The product is rounded, as if it were stored.
func (op *PointOp) scaled(factor Num) *PointOp {
	s := *op
	s.Build = func(k *kernel.Builder, t dtype.DType, in, scalars []Num) []Num {
		in = slices.Clone(in)
		in[1] = in[1].Mul(factor)
		return op.Build(k, t, in, scalars)
	}
	return &s
}

// tile processes the first rest elements from the operands' starts on, as vectors and, if the end cuts a vector, as elements.
func (p *pointKernel) tile(rest kernel.Value) {
	k, vec := p.k, p.vec
	one := func(i kernel.Value, vec int) {
		at := make([]kernel.Value, len(p.outs)+len(p.ins))
		for o := range at {
			at[o] = i
		}
		p.apply(p.vector(at, kernel.Value{}, vec))
	}
	k.For(k.ThreadIdx(kernel.X).Mul(k.I32(vec)), rest, k.I32(multiThreads*vec), func(i kernel.Value) {
		if vec == 1 {
			one(i, 1)
			return
		}
		k.IfElse(i.Add(k.I32(vec)).Le(rest), func() { one(i, vec) }, func() {
			k.For(i, rest, k.I32(1), func(i kernel.Value) { one(i, 1) })
		})
	})
}
