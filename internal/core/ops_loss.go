package core

import (
	"fmt"
	"reflect"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// Reduction says how element-wise losses are reduced to the result of a loss.
type Reduction uint8

// The reductions: the mean of the losses, their sum, the losses themselves, and their sum divided by the size of dimension 0, which only
// KLDiv has.
const (
	ReduceMean Reduction = iota
	ReduceSum
	ReduceNone
	ReduceBatchMean
)

// String returns PyTorch's name, such as "mean".
func (r Reduction) String() string { return nameOf(r, "mean", "sum", "none", "batchmean") }

// nameOf returns the name of an enumerated value, and of one that has none the name of its type, which users know by another package.
func nameOf[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", reflect.TypeFor[T]().Name(), uint8(v))
}

// reductionOf returns r, and refuses one that op does not have.
func (x *Exec) reductionOf(op string, r Reduction) Reduction {
	if r > ReduceNone {
		x.fail(op, fault.Invalid, nil, "%v is not a valid value for reduction; it is ReduceMean, ReduceSum or ReduceNone", r)
	}
	return r
}

// reduceLoss applies a reduction to element-wise losses.
func (x *Exec) reduceLoss(t *Tensor, r Reduction) *Tensor {
	switch r {
	case ReduceMean:
		return x.Mean(t, nil, SumOpt{})
	case ReduceSum:
		return x.Sum(t, nil, SumOpt{})
	}
	return t
}

// likelihood is the attribute of the rows below: the sizes of input 0 as [N, C, S] and the options. The losses have target's shape.
type likelihood struct {
	n, c, s int
	reduce  Reduction
	ignore  int
}

// Inputs of both: logits or logarithms of probabilities, contiguous; target, contiguous; weight or nil. Outputs: the loss; the sum of
// weights, without elements unless the reduction is a mean or sum; and, for the cross-entropy, the normalizers of the rows.
var rowNLL, rowCrossEntropy, rowNLLGrad, rowCrossEntropyGrad *row

func init() {
	rowNLL = define(row{Name: "NLLLoss", takes: "t target weight?;; options -> loss weights", Torch: "nn.functional.nll_loss",
		flags: flagAsserts, cast: castFloat32, saves: in0 | in1 | in2 | out1, infer: inferNLL, run: runNLL,
		moves: movesOfSome(func(f *frame) int { return f.in[1].Numel() })})
	rowCrossEntropy = define(row{Name: "CrossEntropy", narrows: narrowsLogits, flags: flagAsserts,
		takes: "t target weight?;; options -> loss weights normalizers",
		Torch: "nn.functional.cross_entropy", cast: castFloat32, saves: in0 | in1 | in2 | out1 | out2, infer: inferNLL, run: runNLL})
	rowNLLGrad = define(row{Name: "NLLLossBackward", takes: "g target weight? weights?;; options", infer: inferNLLGrad,
		run: runNLLGrad(kernels.NLLBackward)})
	rowCrossEntropyGrad = define(row{Name: "CrossEntropyBackward", takes: "t target weight? weights? g normalizers;; options",
		infer: inferNLLGrad, run: runNLLGrad(kernels.CrossEntropyBackward), byRows: true})
}

func init() {
	rowNLL.back = func(b *back) { b.set(0, b.likelihoodGrad(rowNLLGrad)) }
	rowCrossEntropy.back = func(b *back) { b.set(0, b.likelihoodGrad(rowCrossEntropyGrad)) }
}

func inferNLL(f *frame) {
	t, p := f.in[0], f.opt.(likelihood)
	if !t.dt.IsFloat() {
		f.fail(fault.Unsupported, "%s is not defined for %v; convert to a floating-point type first", f.row.Name, t.dt)
	}
	if w := f.in[2]; w != nil && w.dt != t.dt && !f.again {
		f.fail(fault.Invalid, "the input is %v, but the weight is %v; convert the weight with x.ToDType", t.dt, w.dt)
	}
	if p.reduce == ReduceNone {
		f.newOut(0, t.dt, f.in[1].shape, nil)
		f.newOut(1, t.dt, []int{0}, nil)
	} else {
		f.newOut(0, t.dt, nil, nil)
		f.newOut(1, t.dt, nil, nil)
	}
	if f.row == rowCrossEntropy {
		f.newOut(2, infer.Accumulated(t.dt), []int{p.n, p.s}, nil)
	}
}

func runNLL(f *frame) error {
	p, x := f.opt.(likelihood), operand(f.in[0])
	k := kernels.NLL{N: p.n, C: p.c, S: p.s, Ignore: p.ignore, X: x, Target: operand(f.in[1])}
	if w := f.in[2]; w != nil {
		k.Weight = operand(w)
	}
	if f.row == rowCrossEntropy {
		k.LSE = operand(f.out[2])
		if p.inRows() {
			k.X.Shape, k.X.Stride, k.LSE.Stride, k.Target.Stride = []int{p.n, p.c}, []int{p.c, 1}, nil, nil
			if p.reduce == ReduceNone {
				loss := operand(f.out[0])
				loss.Stride = nil
				return k.CrossEntropyEach(f, loss)
			}
			return k.CrossEntropySum(f, p.reduce == ReduceMean, operand(f.out[0]), operand(f.out[1]))
		}
		x.Shape, x.Stride = []int{p.n, p.c, p.s}, []int{p.c * p.s, p.s, 1}
		if p.n*p.s > 0 {
			if err := kernels.Reduce(f, kernels.LogNormalizer, x.DType, nil, []kernels.Operand{k.LSE}, []kernels.Operand{x},
				[]bool{false, true, false}); err != nil {
				return err
			}
		}
	}
	if p.reduce == ReduceNone {
		return k.Each(f, operand(f.out[0]))
	}
	return k.Sum(f, p.reduce == ReduceMean, operand(f.out[0]), operand(f.out[1]))
}

// inRows reports whether the classes of an element are adjacent, so that row-wise kernels can process them.
func (p *likelihood) inRows() bool { return p.s == 1 && p.n > 0 && p.c > 0 }

// narrowsLogits returns the logits if the row-wise kernel runs: it gives the same bits for halves as for the same numbers in float32.
func narrowsLogits(c *deferred) (s fuse.Span) {
	if p := c.opt.(likelihood); p.inRows() {
		s.To = 1
	}
	return s
}

// Inputs of the gradients: gradient of the loss, target, weight (of the classes for the likelihood, of each row for the cross-entropy) or
// nil, sum of weights or nil. For the cross-entropy the logits come first, and the gradient and the normalizers last.
func inferNLLGrad(f *frame) {
	p := f.opt.(likelihoodGrad)
	f.newOut(0, p.dt, p.shape, nil)
}

// likelihoodGrad is the attribute of the gradients: the sizes, and the type and shape of the result.
type likelihoodGrad struct {
	likelihood
	meta
}

func runNLLGrad(op *kernels.PointOp) func(f *frame) error {
	return func(f *frame) error {
		p, out := f.opt.(likelihoodGrad), operand(f.out[0])
		if out.Numel() == 0 {
			return nil
		}
		if op == kernels.CrossEntropyBackward && p.inRows() {
			return f.crossEntropyGrad(&p, out)
		}
		shape, plain := []int{p.n, p.c, p.s}, []int{p.c * p.s, p.s, 1}
		rows, one, class := []int{p.s, 0, 1}, []int{0, 0, 0}, []int{0, 1, 0}
		out.Shape, out.Stride = shape, plain
		g := rows
		if p.reduce != ReduceNone {
			g = one
		}
		strides, from := [][]int{g, rows, class, one}, []int{0, 1, 2, 3}
		if op == kernels.CrossEntropyBackward {
			strides, from = [][]int{g, rows, rows, one, plain, rows}, []int{4, 1, 2, 3, 0, 5}
		}
		var ins []kernels.Operand
		sc := []kernels.Scalar{kernels.IntScalar(int64(p.c)), kernels.IntScalar(int64(p.s)), kernels.IntScalar(int64(p.ignore))}
		for i := range op.Ins {
			if f.in[from[i]] == nil {
				ins, sc = append(ins, kernels.Operand{}), append(sc, kernels.FloatScalar(1))
				continue
			}
			o := operand(f.in[from[i]])
			o.Shape, o.Stride = shape, strides[i]
			ins = append(ins, o)
		}
		return f.pointwise(op, out.DType, sc, []kernels.Operand{out}, ins)
	}
}

// crossEntropyGrad computes the gradient of logits whose classes are adjacent.
func (f *frame) crossEntropyGrad(p *likelihoodGrad, out kernels.Operand) error {
	in := func(i int) (o kernels.Operand) {
		if f.in[i] != nil {
			o = operand(f.in[i])
			o.Shape, o.Stride = nil, nil
		}
		return o
	}
	k := kernels.NLL{N: p.n, C: p.c, S: 1, Ignore: p.ignore, X: in(0), LSE: in(5), Target: in(1)}
	k.X.Shape, k.X.Stride = []int{p.n, p.c}, []int{p.c, 1}
	out.Shape, out.Stride = k.X.Shape, k.X.Stride
	return k.CrossEntropyGrad(f, out, in(4), p.reduce == ReduceNone, in(2), in(3))
}

// likelihoodGrad returns the gradient of input 0: by one kernel or, if gradients are recorded for a further derivative, by operations that
// have derivatives.
func (b *back) likelihoodGrad(r *row) *Tensor {
	x, p, g := b.x, b.n.opt.(likelihood), b.grad(0)
	target, w := b.in(1), b.in(2)
	var total *Tensor
	if p.reduce == ReduceMean {
		total = b.out(1)
	}
	if r == rowCrossEntropyGrad && w != nil {
		w = x.NoGrad().weightOf(w, target, p.ignore)
	}
	if x.GradEnabled() {
		return b.likelihoodOps(r, target, w, total)
	}
	ins := []*Tensor{x.Contiguous(g), target, w, total}
	if r == rowCrossEntropyGrad {
		ins = []*Tensor{b.in(0), target, w, total, ins[0], b.out(2)}
	}
	f := x.op(r, ins...)
	f.opt = likelihoodGrad{p, b.n.edges[0].meta()}
	return f.call1()
}

// likelihoodOps computes the gradient with Exec operations.
func (b *back) likelihoodOps(r *row, target, w, total *Tensor) *Tensor {
	x, p, g := b.x, b.n.opt.(likelihood), b.grad(0)
	flat := x.Reshape(target, p.n, 1, p.s)
	ng := x.NoGrad()
	used := ng.Ne(flat, ng.Full(nil, float64(p.ignore), flat.dt))
	classes := ng.View(ng.Arange(float64(p.c), dtype.Int64, ArangeOpt{}), 1, p.c, 1)
	hit := ng.LogicalAnd(ng.Eq(flat, classes), used)
	dt := b.n.edges[0].dt
	var d *Tensor
	if r == rowCrossEntropyGrad {
		soft := x.Softmax(x.Reshape(b.in(0), p.n, p.c, p.s), 1, SoftmaxOpt{})
		d = x.Mul(x.Sub(soft, ng.ToDType(hit, dt)), ng.ToDType(used, dt))
		if w != nil {
			d = x.Mul(d, x.View(w, p.n, 1, p.s))
		}
	} else {
		d = ng.Neg(ng.ToDType(hit, dt))
		if w != nil {
			d = x.Mul(d, x.View(w, 1, p.c, 1))
		}
	}
	if p.reduce == ReduceNone {
		g = x.Reshape(g, p.n, 1, p.s)
	}
	d = x.Mul(d, g)
	if total != nil {
		d = x.Div(d, x.Detach(total))
	}
	return x.Reshape(d, b.shape(0)...)
}

// weightOf returns the weight of each target's class, 0 for ignored ones.
func (x *Exec) weightOf(w, target *Tensor, ignore int) *Tensor {
	used := x.Ne(target, x.Full(nil, float64(ignore), target.dt))
	safe := x.Mul(target, x.ToDType(used, target.dt))
	each := x.View(x.IndexSelect(w, 0, x.Reshape(safe, -1)), target.shape...)
	return x.Mul(each, x.ToDType(used, w.dt))
}

// NLLLossOpt are the options of losses over classes.
type NLLLossOpt struct {
	// Weight [C] weights the classes; nil weights all the same.
	Weight *Tensor
	// Ignore says that elements with target IgnoreIndex do not count; without it, elements with target -100 do not.
	Ignore      bool
	IgnoreIndex int
	// Reduction is ReduceMean (of the weighted elements; the zero value), ReduceSum or ReduceNone.
	Reduction Reduction
}

// CrossEntropyOpt are the options of CrossEntropy.
type CrossEntropyOpt struct {
	// Weight [C] weights the classes; nil weights all the same.
	Weight *Tensor
	// Ignore says that elements with target IgnoreIndex do not count; without it, elements with target -100 do not.
	Ignore      bool
	IgnoreIndex int
	// Reduction is ReduceMean (of the weighted elements; the zero value), ReduceSum or ReduceNone.
	Reduction Reduction
	// LabelSmoothing, from 0 to 1, is the part of the target that is spread evenly over the classes.
	LabelSmoothing float64
}

// planLikelihood checks the shapes of t [C], [N, C] or [N, C, d1, …] and of target, which has t's shape without C.
func (x *Exec) planLikelihood(op string, t, target, weight *Tensor, ignore bool, index int, r Reduction) likelihood {
	all := []*Tensor{t, target, weight}
	p := likelihood{n: 1, s: 1, reduce: x.reductionOf(op, r), ignore: -100}
	if ignore {
		p.ignore = index
	}
	d := min(1, len(t.shape)-1)
	if d < 0 {
		x.fail(op, fault.Invalid, all, "input tensor should be 1D or more, but it has no dimensions")
	}
	p.c = t.shape[d]
	if d == 1 {
		p.n, p.s = t.shape[0], infer.Numel(t.shape[2:])
	}
	if want := append(append([]int(nil), t.shape[:d]...), t.shape[d+1:]...); !infer.Same(want, target.shape) {
		if len(want) > 0 && len(target.shape) > 0 && want[0] != target.shape[0] {
			x.fail(op, fault.Invalid, all, "Expected input batch_size (%d) to match target batch_size (%d)", want[0], target.shape[0])
		}
		remedy := ""
		if n := len(target.shape); n == len(want)+1 && target.shape[n-1] == 1 && infer.Same(want, target.shape[:n-1]) {
			remedy = "; remove its last dimension with x.Squeeze(target, -1)"
		} else if last := len(t.shape) - 1; last > 1 && infer.Same(t.shape[:last], target.shape) {
			remedy = fmt.Sprintf("; the classes are dimension 1: for classes in the last one, give x.View(t, -1, %d) and "+
				"x.View(target, -1)", t.shape[last])
		}
		x.fail(op, fault.Invalid, all, "Expected target size %v, got %v%s", want, target.shape, remedy)
	}
	if !target.dt.IsInt() {
		x.fail(op, fault.Invalid, all, "the target must be numbers of classes, of an integer type, but is %v; convert it with x.ToDType",
			target.dt)
	}
	if weight != nil && !infer.Same(weight.shape, []int{p.c}) {
		x.fail(op, fault.Invalid, all,
			"weight tensor should be defined either for all %d classes or no classes but got weight tensor of shape: %v", p.c, weight.shape)
	}
	x.constant(op, "weight", weight)
	return p
}

// constant fails if a gradient is wanted for t, an operand without a derivative; t may be nil.
func (x *Exec) constant(op, name string, t *Tensor) {
	if t != nil && x.GradEnabled() && t.RequiresGrad() {
		x.fail(op, fault.Unsupported, []*Tensor{t}, "the derivative for '%s' is not implemented; detach it", name)
	}
}

// likelihoodLoss runs one of the two rows.
func (x *Exec) likelihoodLoss(r *row, p likelihood, t, target, weight *Tensor) *Tensor {
	return x.composite(r.Name, func(x *Exec) *Tensor {
		if weight != nil {
			weight = x.Contiguous(weight)
		}
		f := x.op(r, x.Contiguous(t), x.Contiguous(target), weight)
		f.opt = p
		return f.call1()
	})
}

// NLLLoss returns the negative log-likelihood of target (numbers of any integer type, in 0 … C-1) under t, logarithms of probabilities, of
// shape [C], [N, C] or [N, C, d1, …]; target is [], [N] or [N, d1, …]. The result is the mean unless opt.Reduction asks for another. A
// target out of range fails as in AssertAsync.
func (x *Exec) NLLLoss(t, target *Tensor, opt NLLLossOpt) *Tensor {
	weight := opt.Weight
	p := x.planLikelihood("NLLLoss", t, target, weight, opt.Ignore, opt.IgnoreIndex, opt.Reduction)
	return x.likelihoodLoss(rowNLL, p, t, target, weight)
}

// CrossEntropy returns NLLLoss of LogSoftmax of the logits over the classes, which are dimension 1, or the only one. The target holds
// numbers of classes, of any integer type and of the logits' shape without the classes; a floating-point target of the logits' shape holds
// class probabilities instead. The result is the mean over the targets unless opt.Reduction asks for another.
func (x *Exec) CrossEntropy(logits, target *Tensor, opt CrossEntropyOpt) *Tensor {
	weight := opt.Weight
	if !(opt.LabelSmoothing >= 0 && opt.LabelSmoothing <= 1) {
		x.fail("CrossEntropy", fault.Invalid, []*Tensor{logits, target}, "label_smoothing must be between 0.0 and 1.0. Got: %v",
			opt.LabelSmoothing)
	}
	if target.dt.IsFloat() {
		return x.probabilityLoss(logits, target, weight, opt)
	}
	p := x.planLikelihood("CrossEntropy", logits, target, weight, opt.Ignore, opt.IgnoreIndex, opt.Reduction)
	if opt.LabelSmoothing > 0 {
		return x.smoothedLoss(p, logits, target, weight, opt)
	}
	return x.likelihoodLoss(rowCrossEntropy, p, logits, target, weight)
}

// classes reshapes weight to multiply a tensor of n dimensions whose classes are in dimension d.
func (x *Exec) classes(weight *Tensor, n, d int) *Tensor {
	shape := make([]int, n)
	for i := range shape {
		shape[i] = 1
	}
	shape[d] = -1
	return x.Reshape(weight, shape...)
}

// probabilityLoss is the cross-entropy with class probabilities.
func (x *Exec) probabilityLoss(t, target, weight *Tensor, opt CrossEntropyOpt) *Tensor {
	r := x.reductionOf("CrossEntropy", opt.Reduction)
	if !infer.Same(t.shape, target.shape) || len(t.shape) == 0 {
		x.fail("CrossEntropy", fault.Invalid, []*Tensor{t, target}, "Expected floating point type for target with class probabilities, "+
			"of the input's shape, got %v; class numbers must be integers (convert them with x.ToDType), and probabilities need shape %v",
			describe(target), t.shape)
	}
	if opt.Ignore && opt.IgnoreIndex >= 0 {
		x.fail("CrossEntropy", fault.Invalid, []*Tensor{t, target}, "ignore_index is not supported for floating point target")
	}
	return x.composite("CrossEntropy", func(x *Exec) *Tensor {
		d := min(1, len(t.shape)-1)
		c := t.shape[d]
		y := x.LogSoftmax(t, d, SoftmaxOpt{})
		if s := opt.LabelSmoothing; s > 0 {
			target = x.AddS(x.MulS(target, 1-s), s/float64(c))
		}
		y = x.Mul(y, target)
		if weight != nil {
			y = x.Mul(y, x.classes(weight, len(t.shape), d))
		}
		if r == ReduceNone {
			return x.Neg(x.Sum(y, []int{d}, SumOpt{}))
		}
		y = x.Neg(x.Sum(y, nil, SumOpt{}))
		if r == ReduceMean {
			y = x.DivS(y, float64(t.Numel())/float64(c)) // NaN for no classes, like any mean of nothing
		}
		return y
	})
}

// smoothedLoss is the cross-entropy with label smoothing.
func (x *Exec) smoothedLoss(p likelihood, t, target, weight *Tensor, opt CrossEntropyOpt) *Tensor {
	return x.composite("CrossEntropy", func(x *Exec) *Tensor {
		d := min(1, len(t.shape)-1)
		y := x.LogSoftmax(t, d, SoftmaxOpt{})
		nll := x.likelihoodLoss(rowNLL, p, y, target, weight)
		weighted := y
		if weight != nil {
			weighted = x.Mul(y, x.classes(weight, len(t.shape), d))
		}
		smooth := x.Neg(x.Sum(weighted, []int{d}, SumOpt{}))
		used := x.ToDType(x.Ne(target, x.Full(nil, float64(p.ignore), target.dt)), y.dt)
		smooth = x.pick(x.EqS(used, 0), nil, 0, smooth, 0) // a product would keep NaN
		switch p.reduce {
		case ReduceSum:
			smooth = x.Sum(smooth, nil, SumOpt{})
		case ReduceMean:
			if weight != nil {
				used = x.weightOf(weight, target, p.ignore)
			}
			smooth = x.Div(x.Sum(smooth, nil, SumOpt{}), x.Sum(used, nil, SumOpt{}))
		}
		return x.Add(x.MulS(nll, 1-opt.LabelSmoothing), x.MulS(smooth, opt.LabelSmoothing/float64(p.c)))
	})
}

func (likelihood) param() {}

func (likelihoodGrad) param() {}
