package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// indexKind is the operation of a kernel of FamilyIndex; it is Spec.Op.
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

// Indexed is an array with one dimension that is addressed by indexes. At each position of the iteration, which follows the operand's
// strides (0 along the addressed dimension), the element for index j is j*Step elements further. The addressed dimension has Size elements.
type Indexed struct {
	Operand
	Step, Size int
	// Wrap lets indexes from -Size to -1 count from the end.
	Wrap bool
}

// Gather sets each element of out to the element of src given by index, an integer array of out's shape with any strides. An index that is
// not in 0 … Size-1 stops the kernel.
func Gather(is Issuer, out, index Operand, src Indexed) error {
	return indexPlan{kind: indexGather, ops: [3]Operand{out, index, src.Operand}, step: src.Step, size: src.Size, wrap: src.Wrap}.run(
		is, out.Shape, -1)
}

// Scatter sets the elements of dst given by index to those of src. index, src and dst's strides are over one shape. Elements of dst without
// an index keep their value. If several indexes give the same element, any of them may win.
func Scatter(is Issuer, dst Indexed, index, src Operand) error {
	return indexPlan{kind: indexScatter, ops: [3]Operand{dst.Operand, index, src}, step: dst.Step, size: dst.Size, wrap: dst.Wrap}.run(
		is, index.Shape, -1)
}

// ScatterAdd adds the elements of src to the elements of dst given by index. dim is the addressed dimension. The order of the additions
// depends only on index, so results are reproducible; sums of halves are rounded once.
func ScatterAdd(is Issuer, dst Indexed, index, src Operand, dim int) error {
	return indexPlan{kind: indexAdd, ops: [3]Operand{dst.Operand, index, src}, step: dst.Step, size: dst.Size, wrap: dst.Wrap}.fold(
		is, index.Shape, dim)
}

// ScatterMultiply is ScatterAdd, but it multiplies.
func ScatterMultiply(is Issuer, dst Indexed, index, src Operand, dim int) error {
	return indexPlan{kind: indexMultiply, ops: [3]Operand{dst.Operand, index, src}, step: dst.Step, size: dst.Size, wrap: dst.Wrap}.fold(
		is, index.Shape, dim)
}

// foldLine is the length of the longest line that a single thread folds, an estimate: each step waits for memory, for some 0.4 µs, and
// sorting takes seven launches.
const foldLine = 64

// fold adds or multiplies along dim.
func (p indexPlan) fold(is Issuer, shape []int, dim int) error {
	if t := p.ops[0].DType; shape[dim] <= foldLine && opmath(t) == t {
		return p.run(is, shape, dim)
	}
	return p.segments(is, shape, dim)
}

// indexSpec is what these kernels are specialised on.
type indexSpec struct {
	// Wrap lets negative indexes count from the end.
	Wrap bool
	// Dims is the class of the number of dimensions, see dimsClass.
	Dims uint8
	// Early is 1 if the kernel lets the next one start early, since it leaves most of the device idle. It has two bytes so that there is no
	// gap.
	Early uint16
}

// indexEarly is the maximum number of blocks of an early kernel.
const indexEarly = 32

// indexArgs are the arguments of these kernels: n threads, the addressed dimension's step and size, and for kernels that fold a line its
// length and strides.
type indexArgs struct {
	ops           [3]arrayArg
	n, step, size intArg
	line          intArg
	along         [3]intArg
	dims          striderArg
}

func (a *indexArgs) layout(p params) {
	s := p.s
	p.array(&a.ops[0], "written", s.DTypes[0])
	p.array(&a.ops[1], "index", s.DTypes[1])
	p.array(&a.ops[2], "other", s.DTypes[2])
	p.i64(&a.n, "n")
	p.wide(&a.step, "step")
	p.i64(&a.size, "size")
	if indexKind(s.Op) >= indexAdd {
		p.wide(&a.line, "line")
		p.wide(&a.along[0], "along_written")
		p.wide(&a.along[1], "along_index")
		p.wide(&a.along[2], "along_other")
	}
	p.strider(&a.dims, "dim", int(s.Indexed.Dims), 1, int(s.Index), operandsFrom(0, 3))
}

// indexPlan is one operation on the written array, the index and the third array.
type indexPlan struct {
	kind       indexKind
	ops        [3]Operand
	step, size int
	wrap       bool
}

// run launches a thread for every element of shape or, if dim is not negative, for every line along dim.
func (p indexPlan) run(is Issuer, shape []int, dim int) error {
	sp := space{count: len(p.ops)}
	line := 1
	var a indexArgs
	a.step.host, a.size.host, a.dims.host = p.step, p.size, &sp
	for d := len(shape) - 1; d >= 0; d-- {
		if d == dim {
			line = shape[d]
			for i := range p.ops {
				a.along[i].host = p.ops[i].Stride[d]
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
	for i := range p.ops {
		s.DTypes[i] = p.ops[i].DType
		a.ops[i].host = p.ops[i].Ptr
	}
	s.Indexed = indexSpec{Wrap: p.wrap, Dims: uint8(dimsClass(sp.nd))}
	s.Index = 32
	far := sp.reach() + p.step*p.size
	for i := range p.ops {
		far = max(far, sp.reach()+line*abs(a.along[i].host))
	}
	if far > min(is.Index32(), lane32) {
		s.Index = 64
	}
	a.n.host, a.line.host = n, line
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(ceilDiv(n, indexThreads)), 1, 1}
	l.Block = [3]uint32{indexThreads, 1, 1}
	if dim < 0 && l.Grid[0] <= indexEarly {
		s.Indexed.Early = 1
	}
	return is.Issue(l)
}

var _ = register(FamilyIndex, buildIndex)

func buildIndex(s *Spec) *kernel.Kernel {
	kind := indexKind(s.Op)
	return kernel.Build(s.name(indexNames[kind]), func(k *kernel.Builder) {
		k.FixedThreads(indexThreads)
		p := &indexKernel{k: k, s: s, ix: indexType(int(s.Index))}
		p.layout(declaring(k, s))
		if s.Indexed.Early == 1 {
			k.Wait()
		}
		i := k.BlockIdx(kernel.X).MulWide(k.I32(indexThreads)).Add(k.ThreadIdx(kernel.X).Convert(dtype.Int64))
		k.If(i.Lt(p.n.Value), func() {
			at := p.dims.locate(i.Convert(p.ix))
			switch kind {
			case indexGather:
				p.ops[0].store(at[0], p.ops[2].load(at[2].Add(p.indexAt(at[1]).Convert(p.ix).Mul(p.step.Value)), 1)...)
			case indexScatter:
				p.ops[0].store(at[0].Add(p.indexAt(at[1]).Convert(p.ix).Mul(p.step.Value)), p.ops[2].load(at[2], 1)...)
			default:
				p.fold(at, kind)
			}
		})
	})
}

type indexKernel struct {
	indexArgs
	k  *kernel.Builder
	s  *Spec
	ix dtype.DType
}

// indexAt returns the index at a position, checked, as an Int64.
func (p *indexKernel) indexAt(at kernel.Value) kernel.Value {
	return checkedIndex(p.ops[1].load(at, 1)[0].Re, p.size.Value, p.s.Indexed.Wrap)
}

// checkedIndex returns j as an Int64 below size; with wrap, j may be negative.
func checkedIndex(j, size kernel.Value, wrap bool) kernel.Value {
	k := j.Builder()
	given := j.Convert(dtype.Int64)
	j = given
	if wrap {
		j = j.Lt(k.I64(0)).Select(j.Add(size), j)
	}
	k.Assert(j.Ge(k.I64(0)).And(j.Lt(size)), "index %v is out of range for size %v", given, size)
	return j
}

// fold adds or multiplies along the thread's line.
func (p *indexKernel) fold(at []kernel.Value, kind indexKind) {
	k := p.k
	k.For(k.Int(p.ix, 0), p.line.Value, k.Int(p.ix, 1), func(i kernel.Value) {
		to := at[0].Add(p.indexAt(at[1].Add(i.Mul(p.along[1].Value))).Convert(p.ix).Mul(p.step.Value))
		v := p.ops[2].load(at[2].Add(i.Mul(p.along[2].Value)), 1)[0].Convert(p.s.Compute)
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
