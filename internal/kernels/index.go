package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// indexKind is what a kernel of FamilyIndex does; it is Spec.Op.
type indexKind uint16

const (
	indexGather indexKind = iota
	indexScatter
	indexAdd
	indexMultiply
)

var indexNames = []string{"gather", "scatter", "scatter_add", "scatter_multiply"}

// indexThreads is the block size of these kernels.
const indexThreads = 256

// Indexed is an array of which one dimension is addressed by indexes: the element for index j at a place of the iteration is Size elements
// deep and lies j*Step elements after the place's own, which follows the operand's strides (0 along the addressed dimension).
type Indexed struct {
	Operand
	Step, Size int
	// Wrap lets indexes from -Size to -1 count from the end.
	Wrap bool
}

// Gather sets each element of out to the element of src that the index (an integer array of out's shape, any strides) names. An index that is
// not in 0 … Size-1 stops the kernel.
func Gather(is Issuer, out, index Operand, src Indexed) error {
	return indexPlan{kind: indexGather, ops: [3]Operand{out, index, src.Operand}, step: src.Step, size: src.Size, wrap: src.Wrap}.run(is, out.Shape, -1)
}

// Scatter sets the elements of dst that index names to those of src; index, src and dst's strides are over one shape, and elements of dst that
// no index names keep their value. Where two indexes name one element, either may win.
func Scatter(is Issuer, dst Indexed, index, src Operand) error {
	return indexPlan{kind: indexScatter, ops: [3]Operand{dst.Operand, index, src}, step: dst.Step, size: dst.Size, wrap: dst.Wrap}.run(is, index.Shape, -1)
}

// ScatterAdd adds the elements of src to the elements of dst that index names. dim is the addressed dimension. The order of the additions
// depends on index alone, so that results repeat; sums of halves are rounded once.
func ScatterAdd(is Issuer, dst Indexed, index, src Operand, dim int) error {
	return indexPlan{kind: indexAdd, ops: [3]Operand{dst.Operand, index, src}, step: dst.Step, size: dst.Size, wrap: dst.Wrap}.fold(is, index.Shape, dim)
}

// ScatterMultiply is ScatterAdd that multiplies.
func ScatterMultiply(is Issuer, dst Indexed, index, src Operand, dim int) error {
	return indexPlan{kind: indexMultiply, ops: [3]Operand{dst.Operand, index, src}, step: dst.Step, size: dst.Size, wrap: dst.Wrap}.fold(is, index.Shape, dim)
}

// foldLine is the longest line that a thread folds alone. An estimate: each step waits for memory, some 0.4 µs, and sorting takes seven launches.
const foldLine = 64

// fold adds or multiplies along dim.
func (p indexPlan) fold(is Issuer, shape []int, dim int) error {
	if t := p.ops[0].DType; shape[dim] <= foldLine && opmath(t) == t {
		return p.run(is, shape, dim)
	}
	return p.segments(is, shape, dim)
}

// indexPlan is one operation: the written array, the index and the third array.
type indexPlan struct {
	kind       indexKind
	ops        [3]Operand
	step, size int
	wrap       bool
}

// run launches a thread for every element of shape, or, where dim is not negative, for every line along dim.
func (p indexPlan) run(is Issuer, shape []int, dim int) error {
	sp := space{count: len(p.ops)}
	line := 1
	var along [3]int
	for d := len(shape) - 1; d >= 0; d-- {
		if d == dim {
			line = shape[d]
			for i := range p.ops {
				along[i] = p.ops[i].Stride[d]
			}
			continue
		}
		if !sp.open(sp.nd, shape[d]) {
			return tooManyDims(indexNames[p.kind])
		}
		for i := range p.ops {
			sp.stride[i][sp.nd-1] = p.ops[i].Stride[d]
		}
	}
	sp.merge()
	n := sp.numel()
	if n == 0 || line == 0 {
		return nil
	}
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Op, s.Compute = FamilyIndex, uint16(p.kind), opmath(p.ops[0].DType)
	s.Outs, s.Ins = 1, 2
	if p.wrap {
		s.Attr[0] = 1
	}
	for i := range p.ops {
		s.DTypes[i] = p.ops[i].DType
	}
	dims := dimsClass(sp.nd)
	s.Class, s.Index = uint8(dims), 32
	far := sp.reach() + p.step*p.size
	for i := range p.ops {
		far = max(far, sp.reach()+line*abs(along[i]))
	}
	if far > min(is.Index32(), lane32) {
		s.Index = 64
	}
	for i := range p.ops {
		l.u64(p.ops[i].Ptr)
	}
	l.i64(n)
	l.i64(p.step)
	l.i64(p.size)
	if p.kind >= indexAdd {
		l.i64(line)
		for _, v := range along {
			l.i64(v)
		}
	}
	sp.pack(l, dims, 1, int(s.Index), 1<<len(p.ops)-1)
	l.Grid = [3]uint32{uint32(ceilDiv(n, indexThreads)), 1, 1}
	l.Block = [3]uint32{indexThreads, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilyIndex, buildIndex)

func buildIndex(s *Spec) *kernel.Kernel {
	kind := indexKind(s.Op)
	return kernel.Build(s.name(indexNames[kind]), func(k *kernel.Builder) {
		k.FixedThreads(indexThreads)
		p := &indexKernel{k: k, s: s, ix: indexType(int(s.Index))}
		for i, name := range []string{"written", "index", "other"} {
			p.ops[i] = arrayParam(k, name, s.DTypes[i])
		}
		wide := func(name string) kernel.Value { return k.Scalar(name, dtype.Int64) }
		n := wide("n")
		p.step, p.size = wide("step").Convert(p.ix), wide("size")
		if kind >= indexAdd {
			p.line = wide("line").Convert(p.ix)
			for i, name := range []string{"along_written", "along_index", "along_other"} {
				p.along[i] = wide(name).Convert(p.ix)
			}
		}
		st := striderParam(k, "dim", int(s.Class), len(p.ops), int(s.Index))
		i := k.BlockIdx(kernel.X).MulWide(k.I32(indexThreads)).Add(k.ThreadIdx(kernel.X).Convert(dtype.Int64))
		k.If(i.Lt(n), func() {
			at := st.locate(i.Convert(p.ix))
			switch kind {
			case indexGather:
				p.ops[0].store(at[0], p.ops[2].load(at[2].Add(p.indexAt(at[1]).Convert(p.ix).Mul(p.step)), 1)...)
			case indexScatter:
				p.ops[0].store(at[0].Add(p.indexAt(at[1]).Convert(p.ix).Mul(p.step)), p.ops[2].load(at[2], 1)...)
			default:
				p.fold(at, kind)
			}
		})
	})
}

type indexKernel struct {
	k          *kernel.Builder
	s          *Spec
	ix         dtype.DType
	ops        [3]array
	step, size kernel.Value
	line       kernel.Value
	along      [3]kernel.Value
}

// indexAt returns the index at a place, Int64, checked.
func (p *indexKernel) indexAt(at kernel.Value) kernel.Value {
	given := p.ops[1].load(at, 1)[0].Re.Convert(dtype.Int64)
	j := given
	if p.s.Attr[0] != 0 {
		j = j.Lt(p.k.I64(0)).Select(j.Add(p.size), j)
	}
	p.k.Assert(j.Ge(p.k.I64(0)).And(j.Lt(p.size)), "index %v is out of range for size %v", given, p.size)
	return j
}

// fold goes along the thread's line and adds or multiplies.
func (p *indexKernel) fold(at []kernel.Value, kind indexKind) {
	k := p.k
	k.For(k.Int(p.ix, 0), p.line, k.Int(p.ix, 1), func(i kernel.Value) {
		to := at[0].Add(p.indexAt(at[1].Add(i.Mul(p.along[1]))).Convert(p.ix).Mul(p.step))
		v := p.ops[2].load(at[2].Add(i.Mul(p.along[2])), 1)[0].Convert(p.s.Compute)
		p.ops[0].store(to, kind.join(p.ops[0].load(to, 1)[0].Convert(p.s.Compute), v))
	})
}

// join adds or multiplies.
func (kind indexKind) join(a, b Num) Num {
	if kind == indexMultiply {
		return a.Mul(b)
	}
	return a.Add(b)
}

func tooManyDims(op string) error {
	return fmt.Errorf("%s: the operands need more than %d dimensions; make them contiguous first", op, maxDims)
}
