package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// NLL is the negative log-likelihood loss of rows of classes: X [N, C, S] and Target [N, S], which holds classes, are contiguous. Rows with
// the target Ignore do not count. If LSE [N, S], the LogNormalizer of each row, is present, X holds logits, otherwise logarithms of
// probabilities. Weight [C] may be absent (Ptr 0).
type NLL struct {
	N, C, S int
	Ignore  int
	X       Operand
	LSE     Operand
	Target  Operand
	Weight  Operand
	// losses says that X holds the weighted losses of the rows, which need only be summed.
	losses bool
}

// The stages of FamilyNLL (Spec.Op).
const (
	// nllEach computes the loss of each row. nllParts writes sums of losses and weights to workspace, and nllTotal sums these; nllWhole
	// does both in one block.
	nllEach uint16 = iota
	nllParts
	nllTotal
	nllWhole
)

const (
	nllThreads = 512
	// nllBlock is the number of rows that one block sums; more blocks are worth another launch only beyond it.
	nllBlock = 32 * nllThreads
)

// nllSpec is what these kernels are specialised on.
type nllSpec struct {
	// Of is the content of x. Weighted: classes have weights. Mean: the sum is divided by the sum of the weights.
	Of             nllOf
	Weighted, Mean bool
}

type nllOf uint8

const (
	nllLogarithms nllOf = iota // of probabilities
	nllLogits
	nllLosses // of the rows
)

// nllArgs are the arguments of these kernels.
type nllArgs struct {
	loss, total, x, lse, target, weight arrayArg
	rows, classes, inner, ignore        intArg
}

func (a *nllArgs) layout(p params) {
	t := &p.s.DTypes
	p.array(&a.loss, "loss", t[0])
	p.array(&a.total, "total", t[1])
	p.array(&a.x, "x", t[2])
	p.array(&a.lse, "lse", t[3])
	p.array(&a.target, "target", t[4])
	p.array(&a.weight, "weight", t[5])
	p.i64(&a.rows, "rows")
	p.i64(&a.classes, "classes")
	p.i64(&a.inner, "inner")
	p.i64(&a.ignore, "ignore")
}

// CrossEntropyEach is Each for logits X [N, C] of any strides (S = 1), in one pass over each row, which also sets LSE.
func (p *NLL) CrossEntropyEach(is Issuer, loss Operand) error {
	var m [4]matrix
	x := p.X
	outs := [...]Operand{m[0].column(p.LSE, p.N, 1), m[1].column(loss, p.N, 1)}
	ins := [...]Operand{x, m[2].column(p.Target, p.N, 1), m[3].same(p.Weight, p.N)}
	s := [...]Scalar{IntScalar(int64(p.Ignore))}
	return runRows(is, crossEntropyOp, x.DType, s[:], outs[:], ins[:], 1)
}

// CrossEntropySum is Sum for logits as in CrossEntropyEach.
func (p *NLL) CrossEntropySum(is Issuer, mean bool, loss, total Operand) error {
	t := opmath(p.X.DType)
	ws, err := is.Workspace(p.N * t.Size())
	if err != nil {
		return err
	}
	sum := *p
	sum.X, sum.LSE, sum.losses = Operand{Ptr: ws, DType: t}, Operand{}, true
	if err := p.CrossEntropyEach(is, sum.X); err != nil {
		return err
	}
	return sum.Sum(is, mean, loss, total)
}

// CrossEntropyGrad stores the gradient of CrossEntropyEach's X. grad, the gradient of the loss, has one element or, if each is set, one per
// row. weight has the weights of the rows, not of the classes, and total their sum; both may be absent (Ptr 0).
func (p *NLL) CrossEntropyGrad(is Issuer, dx, grad Operand, each bool, weight, total Operand) error {
	var m [5]matrix
	g := m[0].same(grad, p.N)
	if each {
		g = m[0].column(grad, p.N, 1)
	}
	outs := [...]Operand{dx}
	ins := [...]Operand{p.X, m[1].column(p.LSE, p.N, 1), m[2].column(p.Target, p.N, 1), m[3].column(weight, p.N, 1),
		m[4].same(total, p.N), g}
	s := [...]Scalar{IntScalar(int64(p.Ignore))}
	return runRows(is, crossEntropyBackwardOp, p.X.DType, s[:], outs[:], ins[:], 1)
}

// Each sets loss [N, S], contiguous, to the weighted losses of the rows.
func (p *NLL) Each(is Issuer, loss Operand) error {
	return p.issue(is, nllEach, false, loss, loss, p.N*p.S, ceilDiv(p.N*p.S, nllThreads))
}

// Sum sets loss, one element, to the sum of the rows' losses and total to that of their weights; with mean, loss is divided by total. The
// order of additions depends only on the number of rows.
func (p *NLL) Sum(is Issuer, mean bool, loss, total Operand) error {
	rows := p.N * p.S
	blocks := min(ceilDiv(rows, nllBlock), nllThreads)
	if blocks <= 1 {
		return p.issue(is, nllWhole, mean, loss, total, rows, 1)
	}
	t := opmath(p.X.DType)
	ws, err := is.Workspace(2 * blocks * t.Size())
	if err != nil {
		return err
	}
	a := Operand{Ptr: ws, DType: t}
	b := Operand{Ptr: ws + uint64(blocks*t.Size()), DType: t}
	if err := p.issue(is, nllParts, false, a, b, rows, blocks); err != nil {
		return err
	}
	last := *p
	last.X, last.LSE, last.Target, last.Weight = a, Operand{}, b, Operand{}
	return last.issue(is, nllTotal, mean, loss, total, blocks, 1)
}

func (p *NLL) issue(is Issuer, stage uint16, mean bool, loss, total Operand, rows, blocks int) error {
	if rows == 0 && stage == nllEach {
		return nil
	}
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Op, s.Compute = FamilyNLL, stage, opmath(p.X.DType)
	s.Outs, s.Ins = 2, 4
	s.NLL = nllSpec{Weighted: p.Weight.Ptr != 0, Mean: mean}
	switch {
	case p.LSE.Ptr != 0:
		s.NLL.Of = nllLogits
	case p.losses && stage != nllTotal:
		s.NLL.Of = nllLosses
	}
	for i, o := range [...]*Operand{&loss, &total, &p.X, &p.LSE, &p.Target, &p.Weight} {
		s.DTypes[i] = o.DType
		if o.DType == dtype.Invalid {
			s.DTypes[i] = s.Compute
		}
	}
	var a nllArgs
	a.loss.host, a.total.host, a.x.host, a.lse.host = loss.Ptr, total.Ptr, p.X.Ptr, p.LSE.Ptr
	a.target.host, a.weight.host, a.rows.host, a.classes.host = p.Target.Ptr, p.Weight.Ptr, rows, p.C
	a.inner.host, a.ignore.host = p.S, p.Ignore
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(blocks), 1, 1}
	l.Block = [3]uint32{nllThreads, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilyNLL, buildNLL)

type nllKernel struct {
	k *kernel.Builder
	s *Spec
	nllArgs
}

func buildNLL(s *Spec) *kernel.Kernel {
	names := []string{"nll", "nll_parts", "nll_total", "nll_sum"}
	return kernel.Build(s.name(names[s.Op]), func(k *kernel.Builder) {
		k.FixedThreads(nllThreads)
		p := &nllKernel{k: k, s: s}
		p.layout(declaring(k, s))
		first := k.BlockIdx(kernel.X).MulWide(k.I32(nllThreads)).Add(k.ThreadIdx(kernel.X).Convert(dtype.Int64))
		if s.Op == nllEach {
			k.If(first.Lt(p.rows.Value), func() {
				v, _ := p.row(first)
				p.loss.store(first, realNum(v))
			})
			return
		}
		p.sum(first)
	})
}

// row returns the loss of row i and its weight, both 0 if the row is ignored.
func (p *nllKernel) row(i kernel.Value) (loss, weight kernel.Value) {
	k, t := p.k, p.s.Compute
	if p.s.Op == nllTotal {
		return p.x.load(i, 1)[0].Re, p.target.load(i, 1)[0].Re
	}
	c := p.target.load(i, 1)[0].Re.Convert(dtype.Int64)
	sum, w := k.Var(k.Const(t, 0)), k.Var(k.Const(t, 0))
	k.If(c.Ne(p.ignore.Value), func() {
		assertClass(k, c, p.classes.Value)
		w.Set(k.Const(t, 1))
		if p.s.NLL.Weighted {
			w.Set(p.weight.load(c, 1)[0].Convert(t).Re)
		}
		if p.s.NLL.Of == nllLosses {
			sum.Set(p.x.load(i, 1)[0].Convert(t).Re)
			return
		}
		n := i.Div(p.inner.Value)
		at := n.Mul(p.classes.Value).Add(c).Mul(p.inner.Value).Add(i.Sub(n.Mul(p.inner.Value)))
		v := p.x.load(at, 1)[0].Convert(t).Re.Neg()
		if p.s.NLL.Of == nllLogits {
			v = p.lse.load(i, 1)[0].Convert(t).Re.Add(v)
		}
		if p.s.NLL.Weighted {
			v = v.Mul(w.Get())
		}
		sum.Set(v)
	})
	return sum.Get(), w.Get()
}

// sum adds the rows of this block: each thread its own in order, then the threads as a halving tree.
func (p *nllKernel) sum(first kernel.Value) {
	k, t := p.k, p.s.Compute
	a, b := k.Var(k.Const(t, 0)), k.Var(k.Const(t, 0))
	step := k.GridDim(kernel.X).MulWide(k.I32(nllThreads))
	k.For(first, p.rows.Value, step, func(i kernel.Value) {
		v, w := p.row(i)
		a.Set(a.Get().Add(v))
		b.Set(b.Get().Add(w))
	})
	tid := k.ThreadIdx(kernel.X)
	sa, sb := k.Shared("losses", t, nllThreads), k.Shared("weights", t, nllThreads)
	sa.Store(tid, a.Get())
	sb.Store(tid, b.Get())
	for h := nllThreads / 2; h > 0; h /= 2 {
		k.Barrier()
		k.If(tid.Lt(k.I32(h)), func() {
			other := tid.Add(k.I32(h))
			sa.Store(tid, sa.Load(tid).Add(sa.Load(other)))
			sb.Store(tid, sb.Load(tid).Add(sb.Load(other)))
		})
	}
	k.If(tid.Eq(k.I32(0)), func() {
		loss, weight := sa.Get(0), sb.Get(0)
		if p.s.NLL.Mean {
			loss = loss.Div(weight)
		}
		at := k.BlockIdx(kernel.X)
		p.loss.store(at, realNum(loss))
		p.total.store(at, realNum(weight))
	})
}

// class returns the class of the element with linear index i of a contiguous [N, classes, inner] array.
func class(i kernel.Value, classes, inner Num) kernel.Value {
	t := i.Type()
	return i.Div(inner.Re.Convert(t)).Rem(classes.Re.Convert(t)).Convert(dtype.Int64)
}

var nllScalars = []dtype.DType{dtype.Int64, dtype.Int64, dtype.Int64}

// Gradients of the losses, over [N, C, S]; the scalars are C, S and the ignored target.
var (
	// NLLBackward takes the gradient, the target, the weight of the class and the sum of weights.
	NLLBackward = point(PointOp{Name: "nll_backward", Ins: 4, Scalars: 3, InTypes: []dtype.DType{dtype.Invalid, dtype.Int64},
		ScalarTypes: nllScalars,
		BuildAt: func(_ *kernel.Builder, _ dtype.DType, i kernel.Value, in, s []Num) []Num {
			t := in[1].Re
			hit := class(i, s[0], s[1]).Eq(t).And(t.Ne(s[2].Re))
			return []Num{choose(hit, in[0].Mul(in[2]).Neg().Div(in[3]), in[0].like(0))}
		}})
	// CrossEntropyBackward takes the gradient, the target, the weight of the target's class, the sum of weights, the logits and the
	// LogNormalizer. An ignored row has gradient 0, or NaN if the normalizer is NaN.
	CrossEntropyBackward = point(PointOp{Name: "cross_entropy_backward", Ins: 6, Scalars: 3, Heavy: true,
		InTypes: []dtype.DType{dtype.Invalid, dtype.Int64}, ScalarTypes: nllScalars,
		BuildAt: func(k *kernel.Builder, _ dtype.DType, i kernel.Value, in, s []Num) []Num {
			t := in[1].Re
			p := math.ExpDifference(k, in[4].Re.Sub(in[5].Re))
			used := t.Ne(s[2].Re)
			p = class(i, s[0], s[1]).Eq(t).And(used).Select(p.Sub(p.Like(1)), p)
			g := in[0].Mul(in[2]).Div(in[3])
			return []Num{realNum(p).Mul(choose(used, g, g.like(0)))}
		}})
)
