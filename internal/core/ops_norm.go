package core

import (
	"fmt"
	"slices"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// norm is the attribute of the normalisations: the shape in which input 0 is viewed, the dimensions of that view over which statistics are
// computed, and the shape with which weight and bias, as vectors, broadcast to it.
type norm struct {
	view, affine *intList
	over         *intList
	eps          floatBits
	// centered says that the mean is subtracted.
	centered bool
}

// Inputs of the normalisations: x, weight or nil, bias or nil. Outputs: y, mean (except for the RMS norm) and reciprocal deviation. The
// batch norm and the group norm compute their statistics in a separate call, so that the rest can join groups of element-wise calls.
// Inputs of the gradients: dy, x, mean or nil, reciprocal deviation, weight or nil; the outputs are those of dx, dweight and dbias that the
// attribute asks for. For layer and RMS norm, dx is a separate call, which works by rows. For the batch norm the sums over the channels, of
// which the gradients of weight and bias are made, are a call, and dx is one that reads them, so that each can join other calls.
var rowLayerNorm, rowRMSNorm, rowGroupNormStats, rowGroupNorm, rowBatchNormStats, rowBatchNorm, rowBatchNormEval, rowBatchNormSums,
	rowBatchNormGrad, rowNormGrad, rowNormInputGrad, rowRunningStats *row

func init() {
	rowLayerNorm = define(row{Name: "LayerNorm", takes: "t weight? bias?;; options -> y mean rstd", Torch: "nn.functional.layer_norm",
		cast: castFloat32, saves: in0 | in1 | out1 | out2, infer: inferNorm, run: runLayerNorm, byRows: true})
	rowRMSNorm = define(row{Name: "RMSNorm", takes: "t weight? bias?;; options -> y rstd", Torch: "nn.functional.rms_norm",
		saves: in0 | in1 | out1, infer: inferNorm, run: runRMSNorm, byRows: true})
	rowGroupNormStats = define(row{Name: "GroupNormStats", takes: "t; eps -> mean rstd", infer: inferGroupNormStats, reduces: true,
		run: func(f *frame) error {
			return kernels.GroupNormStats(f, f.in[0].dt, operand(f.out[0]), operand(f.out[1]), operand(f.in[0]), f.scalar[0].F)
		}})
	rowGroupNorm = define(row{Name: "GroupNorm", takes: "t mean rstd weight? bias?;; options", Torch: "nn.functional.group_norm",
		saves: in0 | in1 | in2 | in3, run: runGroupNorm, points: true, affine: true, infer: inferGroupNorm})
	rowBatchNormStats = define(row{Name: "BatchNormStats", takes: "t; eps -> mean rstd variance", infer: inferBatchNormStats,
		run: func(f *frame) error {
			return kernels.BatchNormStats(f, f.in[0].dt, operand(f.out[0]), operand(f.out[1]), operand(f.out[2]),
				operand(f.in[0]), f.scalar[0].F)
		}})
	rowBatchNorm = define(row{Name: "BatchNorm", takes: "t mean rstd weight? bias?;; options", Torch: "nn.functional.batch_norm",
		saves: in0 | in1 | in2 | in3, run: runBatchNorm, points: true, affine: true, infer: inferBatchNorm})
	rowBatchNormEval = define(row{Name: "BatchNormEval", takes: "t mean variance weight? bias?; eps; options", saves: in0 | in1 | in2 | in3,
		run: runBatchNormEval, points: true, affine: true, infer: inferBatchNorm})
	rowBatchNormSums = define(row{Name: "BatchNormSums", takes: "g t mean rstd -> weighted plain", infer: inferBatchNormSums,
		run: runBatchNormSums, reduces: true})
	rowBatchNormGrad = define(row{Name: "BatchNormBackward", takes: "g t mean rstd weight? weighted plain; share -> dt",
		run: runBatchNormGrad, points: true, affine: true,
		infer: func(f *frame) { f.newOut(0, f.in[1].dt, f.in[1].shape, f.layoutOf(f.in[1])) }})
	rowNormGrad = define(row{Name: "NormBackward", takes: "g t mean? rstd weight?;; options -> dt? dweight? dbias?", infer: inferNormGrad,
		run: runNormGrad, narrows: narrowsNormGrad})
	rowNormInputGrad = define(row{Name: "NormInputBackward", takes: "g t mean? rstd weight?;; options -> dt dweight? dbias?",
		infer: inferNormGrad, run: runNormGrad, byRows: true})
	rowRunningStats = define(row{Name: "RunningStats", flags: flagInto, takes: "runningMean runningVar mean variance; momentum -> " +
		"runningMean runningVar",
		infer: func(f *frame) {
			f.newOut(0, f.in[0].dt, f.in[0].shape, nil)
			f.newOut(1, f.in[1].dt, f.in[1].shape, nil)
		},
		run: func(f *frame) error {
			return kernels.BatchNormUpdate(f, operand(f.out[0]), operand(f.out[1]), operand(f.in[2]), operand(f.in[3]), f.scalar[0].F)
		}})
}

func init() {
	for _, r := range []*row{rowLayerNorm, rowRMSNorm, rowGroupNorm, rowBatchNorm} {
		r.back = backNorm
	}
	rowBatchNormEval.back = backBatchNormEval
}

// layoutOf is layout for an output that follows one tensor.
func (f *frame) layoutOf(t *Tensor) []int {
	if infer.ChannelsLast(t.shape, t.stride) {
		return infer.ChannelsLastStrides(t.shape)
	}
	return nil
}

func inferNorm(f *frame) {
	t, n := f.in[0], f.opt.(norm)
	f.wantFloat(t)
	f.newOut(0, t.dt, t.shape, f.layoutOf(t))
	rows := 1
	for i, s := range n.view.ints() {
		if !n.reduces(i) {
			rows *= s
		}
	}
	stats, acc := []int{rows}, infer.Accumulated(t.dt)
	f.newOut(1, acc, stats, nil)
	if n.centered {
		f.newOut(2, acc, stats, nil)
	}
}

// inferGroupNormStats makes an element for each group of x [N, groups, C / groups, S], of x's type, as PyTorch rounds them.
func inferGroupNormStats(f *frame) {
	t := f.in[0]
	f.wantFloat(t)
	for i := range 2 {
		f.newOut(i, t.dt, []int{t.shape[0], t.shape[1], 1, 1}, nil)
	}
}

// inferGroupNorm keeps the order of x in memory.
func inferGroupNorm(f *frame) {
	t := f.in[0]
	f.wantFloat(t)
	f.newOut(0, t.dt, t.shape, orderOf(t))
}

// orderOf is layout for an output that lies in memory as t does, which has no gaps.
func orderOf(t *Tensor) []int {
	if t.IsContiguous() {
		return nil
	}
	return slices.Clone(t.stride)
}

func inferBatchNormStats(f *frame) {
	t := f.in[0]
	f.wantFloat(t)
	for i := range 3 {
		f.newOut(i, infer.Accumulated(t.dt), t.shape[1:2], nil)
	}
}

func inferBatchNormSums(f *frame) {
	t := f.in[1]
	for i := range 2 {
		f.newOut(i, infer.Accumulated(t.dt), t.shape[1:2], nil)
	}
}

func inferBatchNorm(f *frame) {
	t := f.in[0]
	f.wantFloat(t)
	f.newOut(0, t.dt, t.shape, f.layoutOf(t))
}

func (f *frame) wantFloat(t *Tensor) {
	if !t.dt.IsFloat() {
		f.fail(fault.Unsupported, "%s is not defined for %v; convert to a floating-point type first", f.row.Name, t.dt)
	}
}

func (x *Exec) norm(view, affine, over []int, eps float64, centered bool) norm {
	c := &x.s.made
	return norm{c.list(view), c.list(affine), c.list(over), bitsOf(eps), centered}
}

func (n norm) reduces(dim int) bool {
	for _, d := range n.over.ints() {
		if d == dim {
			return true
		}
	}
	return false
}

// optional describes t, or an absent operand if t is nil.
func optional(t *Tensor) kernels.Operand {
	if t == nil {
		return kernels.Operand{}
	}
	return operand(t)
}

// rows describes o, which has no gaps, in the shape of the attribute's view.
func (n norm) rows(o kernels.Operand) kernels.Operand {
	if o.Ptr == 0 {
		return o
	}
	o.Shape, o.Stride = n.view.ints(), infer.RowMajor(nil, n.view.ints())
	return o
}

func runLayerNorm(f *frame) error {
	if f.in[0].Numel() == 0 {
		return nil
	}
	n := f.opt.(norm)
	return kernels.LayerNorm(f, f.in[0].dt, n.rows(operand(f.out[0])), operand(f.out[1]), operand(f.out[2]), n.rows(operand(f.in[0])),
		optional(f.in[1]), optional(f.in[2]), n.eps.value())
}

func runRMSNorm(f *frame) error {
	if f.in[0].Numel() == 0 {
		return nil
	}
	n := f.opt.(norm)
	return kernels.RMSNorm(f, f.in[0].dt, n.rows(operand(f.out[0])), operand(f.out[1]), n.rows(operand(f.in[0])),
		optional(f.in[1]), n.eps.value())
}

func runGroupNorm(f *frame) error {
	ins := make([]kernels.Operand, 5)
	for i, t := range f.in[:5] {
		if t == nil {
			continue
		}
		stride := make([]int, len(f.in[0].shape))
		infer.BroadcastStrides(stride, t.shape, t.stride, f.in[0].shape)
		ins[i] = operand(t)
		ins[i].Shape, ins[i].Stride = f.in[0].shape, stride
	}
	return f.pointwise(kernels.Normalize, f.in[0].dt, kernels.AffineScalars(nil, ins[3], ins[4]), []kernels.Operand{operand(f.out[0])}, ins)
}

func runBatchNorm(f *frame) error {
	if f.described != nil {
		return f.describeBatchNorm(kernels.Normalize, nil)
	}
	t := operand(f.in[0])
	return kernels.BatchNorm(f, t.DType, operand(f.out[0]), t, operand(f.in[1]), operand(f.in[2]), optional(f.in[3]), optional(f.in[4]))
}

func runBatchNormEval(f *frame) error {
	if f.described != nil {
		return f.describeBatchNorm(kernels.NormalizeVariance, f.scalar[:1])
	}
	t := operand(f.in[0])
	return kernels.BatchNormInference(f, t.DType, operand(f.out[0]), t, operand(f.in[1]), operand(f.in[2]), optional(f.in[3]),
		optional(f.in[4]), f.scalar[0].F)
}

// describeBatchNorm describes the call for a group of element-wise ones, in which its vectors appear with one element for each channel.
func (f *frame) describeBatchNorm(op *kernels.PointOp, scalars []kernels.Scalar) error {
	ins := f.seeChannels(1, 5)
	scalars = kernels.AffineScalars(slices.Clone(scalars), ins[3], ins[4])
	return f.pointwise(op, f.in[0].dt, scalars, []kernels.Operand{operand(f.out[0])}, ins)
}

// seeChannels returns the first n inputs. Those from number first on are vectors, which the description of the call shows with one element
// for each channel; an absent one stays absent.
func (f *frame) seeChannels(first, n int) (ins []kernels.Operand) {
	rank := len(f.in[0].shape)
	for i, p := range f.in[:n] {
		if ins = append(ins, optional(p)); p == nil || i < first {
			continue
		}
		shape, stride := slices.Repeat([]int{1}, rank-1), make([]int, rank-1)
		shape[0], stride[0] = p.shape[0], p.stride[0]
		f.described.seen[i] = f.x.s.made.form(shape, stride)
	}
	return ins
}

func runBatchNormSums(f *frame) error {
	t := f.in[1]
	if f.described != nil {
		f.seeChannels(2, 4)
	}
	return kernels.BatchNormSums(f, t.dt, operand(f.out[0]), operand(f.out[1]), operand(f.in[0]), operand(t), operand(f.in[2]),
		operand(f.in[3]))
}

func runBatchNormGrad(f *frame) error {
	t := f.in[1]
	if f.described == nil {
		return kernels.BatchNormGrad(f, t.dt, operand(f.out[0]), operand(f.in[0]), operand(t), operand(f.in[2]), operand(f.in[3]),
			optional(f.in[4]), operand(f.in[5]), operand(f.in[6]), f.scalar[0].F)
	}
	ins, scalars := f.seeChannels(2, 7), []kernels.Scalar{f.scalar[0]}
	if f.in[4] == nil {
		scalars = append(scalars, kernels.FloatScalar(1))
	}
	return f.pointwise(kernels.NormalizeGrad, t.dt, scalars, []kernels.Operand{operand(f.out[0])}, ins)
}

// normGrad is the attribute of the gradient: the row that it is of, which of dx, dweight and dbias are wanted, and their types and shapes.
type normGrad struct {
	norm
	of   *row
	want [3]bool
	meta [3]meta
}

func inferNormGrad(f *frame) {
	n, next := f.opt.(normGrad), 0
	for i, want := range n.want {
		if want {
			var stride []int
			switch {
			case i > 0:
			case n.of == rowGroupNorm:
				stride = orderOf(f.in[1])
			default:
				stride = f.layoutOf(f.in[1])
			}
			f.newOut(next, n.meta[i].dt, n.meta[i].shape, stride)
			next++
		}
	}
}

func runNormGrad(f *frame) error {
	n, next := f.opt.(normGrad), 0
	var outs [3]kernels.Operand
	for i, want := range n.want {
		if want {
			outs[i] = operand(f.out[next])
			next++
		}
	}
	dx, dw, db, v := outs[0], outs[1], outs[2], n.view.ints()
	dy, in, mean, rstd, w := operand(f.in[0]), operand(f.in[1]), optional(f.in[2]), operand(f.in[3]), optional(f.in[4])
	switch n.of {
	case rowLayerNorm:
		return kernels.LayerNormBackward(f, in.DType, n.rows(dx), flatten(dw), flatten(db), n.rows(dy), n.rows(in), mean, rstd, flatten(w))
	case rowRMSNorm:
		return kernels.RMSNormBackward(f, in.DType, n.rows(dx), flatten(dw), n.rows(dy), n.rows(in), rstd, flatten(w))
	}
	return kernels.GroupNormBackward(f, in.DType, v[0], v[1]*v[2], v[3], v[1], dx, dw, db, dy, in, mean, rstd, w)
}

// narrowsNormGrad returns the gradient if the call sums by columns only, of a float32 input: that input then says how many elements a
// thread loads at once, and so in which order they are added.
func narrowsNormGrad(c *deferred) (s fuse.Span) {
	g := c.opt.(normGrad)
	if (g.of == rowLayerNorm || g.of == rowRMSNorm) && !g.want[0] && g.want[1] && c.in[1].dt == dtype.Float32 {
		s.To = 1
	}
	return s
}

// backNorm computes the gradients by one row of kernels or, if they are recorded for a further derivative or the input is empty, with Exec
// operations.
func backNorm(b *back) {
	n, x := b.n.opt.(norm), b.x
	if x.GradEnabled() || b.in(0).Numel() == 0 {
		b.normOps(n)
		return
	}
	g := normGrad{norm: n, of: b.n.row}
	for i, at := range b.normInputs() {
		g.want[i] = b.need(at)
		if at < len(b.n.edges) {
			g.meta[i] = b.n.edges[at].meta()
		}
	}
	if b.n.row == rowBatchNorm {
		b.batchNormGrad(g)
		return
	}
	var mean, rstd *Tensor
	dy := b.grad(0)
	switch {
	case b.n.row == rowGroupNorm:
		mean, rstd, dy = b.in(1), b.in(2), x.ordered(dy, b.in(0))
	case n.centered:
		mean, rstd, dy = b.out(1), b.out(2), x.Contiguous(dy)
	default:
		rstd, dy = b.out(1), x.Contiguous(dy)
	}
	byRows := (b.n.row == rowLayerNorm || b.n.row == rowRMSNorm) && g.want[0]
	if byRows && !kernels.SumsByRows(x.m.stream.Device().Limits(), n.view.ints()[0], n.view.ints()[1]) {
		g.want[0] = false
		if g.want != [3]bool{} {
			b.normGrad(rowNormGrad, g, dy, mean, rstd)
		}
		g.want = [3]bool{true} // last, so that nothing stands between it and what is done with its result
	}
	if byRows {
		b.normGrad(rowNormInputGrad, g, dy, mean, rstd)
	} else if g.want != [3]bool{} {
		b.normGrad(rowNormGrad, g, dy, mean, rstd)
	}
}

// batchNormGrad sets the gradients of a batch norm that g asks for.
func (b *back) batchNormGrad(g normGrad) {
	if g.want == [3]bool{} {
		return
	}
	x, dy, t, mean, rstd := b.x, b.grad(0), b.in(0), b.in(1), b.in(2)
	f := x.op(rowBatchNormSums, dy, t, mean, rstd)
	f.call()
	sums := [2]*Tensor{f.out[0], f.out[1]}
	x.s.leave(f)
	if g.want[0] {
		f = x.op(rowBatchNormGrad, dy, t, mean, rstd, b.in(3), sums[0], sums[1])
		f.scalar[0] = kernels.FloatScalar(1 / float64(t.Numel()/t.shape[1]))
		b.set(0, f.call1())
	}
	for i, sum := range sums {
		if at := b.normInputs()[1+i]; g.want[1+i] {
			b.set(at, x.ToDType(sum, g.meta[1+i].dt))
		}
	}
}

// ordered returns dy in the memory order of in, the input of a group norm, contiguous or with channels last, so that threads that read
// adjacent elements of one read adjacent elements of the other.
func (x *Exec) ordered(dy, in *Tensor) *Tensor {
	switch v := in.shape; {
	case in.IsContiguous():
		return x.Contiguous(dy)
	case slices.Equal(dy.stride, in.stride):
		return dy
	default:
		return x.View(x.ChannelsLast(x.Reshape(dy, v[0], v[1]*v[2], v[3], 1)), v...)
	}
}

// normInputs returns the indexes of x, weight and bias among a normalisation's inputs.
func (b *back) normInputs() [3]int {
	if b.n.row == rowBatchNorm || b.n.row == rowGroupNorm {
		return [3]int{0, 3, 4}
	}
	return [3]int{0, 1, 2}
}

// normGrad sets the gradients that g asks for.
func (b *back) normGrad(r *row, g normGrad, dy, mean, rstd *Tensor) {
	f := b.x.op(r, dy, b.in(0), mean, rstd, b.in(b.normInputs()[1]))
	f.opt = g
	f.call()
	next := 0
	var res [3]*Tensor
	for i, want := range g.want {
		if want {
			res[i] = f.out[next]
			next++
		}
	}
	b.x.s.leave(f)
	for i, want := range g.want {
		if want {
			b.set(b.normInputs()[i], res[i])
		}
	}
}

// normOps computes the gradients with Exec operations.
func (b *back) normOps(n norm) {
	x, at := b.x, b.normInputs()
	in, w := x.Reshape(b.in(0), n.view.ints()...), b.in(at[1])
	dy := x.Reshape(b.grad(0), n.view.ints()...)
	dt := infer.Accumulated(in.dt)
	in, dy = x.ToDType(in, dt), x.ToDType(dy, dt)
	keep := SumOpt{KeepDim: true}
	h := in
	if n.centered {
		h = x.Sub(h, x.Mean(h, n.over.ints(), keep))
	}
	rstd := x.Rsqrt(x.AddS(x.Mean(x.Mul(h, h), n.over.ints(), keep), n.eps.value()))
	h = x.Mul(h, rstd)
	g := dy
	if w != nil {
		g = x.Mul(g, x.ToDType(x.Reshape(w, n.affine.ints()...), dt))
	}
	if b.need(0) {
		d := x.Sub(g, x.Mul(h, x.Mean(x.Mul(g, h), n.over.ints(), keep)))
		if n.centered {
			d = x.Sub(d, x.Mean(g, n.over.ints(), keep))
		}
		b.set(0, x.Reshape(x.Mul(d, rstd), b.shape(0)...))
	}
	if b.need(at[1]) {
		b.set(at[1], x.Reshape(x.sumTo(x.Mul(dy, h), n.affine.ints()), b.shape(at[1])...))
	}
	if b.need(at[2]) {
		b.set(at[2], x.Reshape(x.sumTo(dy, n.affine.ints()), b.shape(at[2])...))
	}
}

// backBatchNormEval treats the statistics as constants.
func backBatchNormEval(b *back) {
	n, x := b.n.opt.(norm), b.x
	dy := x.Reshape(b.grad(0), n.view.ints()...)
	dt := infer.Accumulated(dy.dt)
	dy = x.ToDType(dy, dt)
	channel := func(t *Tensor) *Tensor { return x.ToDType(x.Reshape(t, n.affine.ints()...), dt) }
	rstd := x.Rsqrt(x.AddS(channel(b.in(2)), b.n.scalar[0].F))
	if b.need(0) {
		d := x.Mul(dy, rstd)
		if w := b.in(3); w != nil {
			d = x.Mul(d, channel(w))
		}
		b.set(0, x.Reshape(d, b.shape(0)...))
	}
	if b.need(3) {
		h := x.Mul(x.Sub(x.ToDType(x.Reshape(b.in(0), n.view.ints()...), dt), channel(b.in(1))), rstd)
		b.set(3, x.Reshape(x.sumTo(x.Mul(dy, h), n.affine.ints()), b.shape(3)...))
	}
	if b.need(4) {
		b.set(4, x.Reshape(x.sumTo(dy, n.affine.ints()), b.shape(4)...))
	}
}

// normOp runs a normalisation and returns its first output.
func (x *Exec) normOp(r *row, n norm, t, weight, bias *Tensor) *Tensor {
	return x.composite(r.Name, func(x *Exec) *Tensor {
		in := x.Contiguous(t)
		if weight != nil {
			weight = x.Contiguous(weight)
		}
		if bias != nil {
			bias = x.Contiguous(bias)
		}
		f := x.op(r, in, weight, bias)
		f.opt = n
		return f.call1()
	})
}

// trailing checks that shape is that of the last dimensions of t, and of weight and bias, and returns the number of rows and of elements in
// a row.
func (x *Exec) trailing(op string, t, weight, bias *Tensor, shape []int) (rows, n int) {
	lead := len(t.shape) - len(shape)
	if lead < 0 || len(shape) == 0 || !infer.Same(t.shape[lead:], shape) {
		x.fail(op, fault.Invalid, []*Tensor{t}, "Given normalized_shape=%v, expected input with shape [*, %s], but got input of size %v",
			shape, strings.ReplaceAll(strings.Trim(fmt.Sprint(shape), "[]"), " ", ", "), t.shape)
	}
	for i, p := range []*Tensor{weight, bias} {
		if p != nil && !infer.Same(p.shape, shape) {
			x.fail(op, fault.Invalid, []*Tensor{t, p}, "Expected %s to be of same shape as normalized_shape, but got %s of shape %v and "+
				"normalized_shape = %v",
				[]string{"weight", "bias"}[i], []string{"weight", "bias"}[i], p.shape, shape)
		}
	}
	return infer.Numel(t.shape[:lead]), infer.Numel(shape)
}

// NormOpt are the options of LayerNorm, GroupNorm and RMSNorm. The zero value is PyTorch's default.
type NormOpt struct {
	// Eps is added to the variance; the default is 1e-5, and for RMSNorm, which adds it to the mean of squares, the distance from 1 to the
	// next number of the input's type.
	Eps Scalar
}

// LayerNorm normalises t over its last dimensions, which have the given shape, to mean 0 and variance 1, with eps added to the variance;
// then it multiplies by weight and adds bias, of that shape; either may be nil. Statistics are computed in float32 at least.
func (x *Exec) LayerNorm(t, weight, bias *Tensor, shape []int, opt NormOpt) *Tensor {
	rows, n := x.trailing("LayerNorm", t, weight, bias, shape)
	eps := OrFinite("LayerNorm", "Eps", opt.Eps, 1e-5)
	return x.normOp(rowLayerNorm, x.norm([]int{rows, n}, []int{1, n}, []int{1}, eps, true), t, weight, bias)
}

// flatten describes o, which has no gaps, as a vector.
func flatten(o kernels.Operand) kernels.Operand {
	if o.Ptr != 0 {
		o.Shape, o.Stride = []int{o.Numel()}, []int{1}
	}
	return o
}

// RMSNorm divides t by the root of the mean of its squares, with eps added, over its last dimensions, which have the given shape, and
// multiplies by weight, of that shape or nil.
func (x *Exec) RMSNorm(t, weight *Tensor, shape []int, opt NormOpt) *Tensor {
	rows, n := x.trailing("RMSNorm", t, weight, nil, shape)
	eps := OrFinite("RMSNorm", "Eps", opt.Eps, epsilon(t.dt))
	if t.dt.IsComplex() {
		return x.composite("RMSNorm", func(x *Exec) *Tensor {
			over := infer.DimsUpTo(len(t.shape))[len(t.shape)-len(shape):]
			y := x.Mul(t, x.Rsqrt(x.AddS(x.Mean(x.Mul(t, t), over, SumOpt{KeepDim: true}), eps)))
			if weight != nil {
				y = x.Mul(y, weight)
			}
			return y
		})
	}
	return x.normOp(rowRMSNorm, x.norm([]int{rows, n}, []int{1, n}, []int{1}, eps, false), t, weight, nil)
}

// epsilon is the distance from 1 to the next number of a type.
func epsilon(dt dtype.DType) float64 {
	switch dt.Real() {
	case dtype.Float16:
		return 0x1p-10
	case dtype.BFloat16:
		return 0x1p-7
	case dtype.Float64:
		return 0x1p-52
	}
	return 0x1p-23
}

// channelsOf checks t [N, C, …] and vectors of its channels, and returns its sizes as [N, C, S].
func (x *Exec) channelsOf(op string, t *Tensor, vectors ...*Tensor) (n, c, s int) {
	if len(t.shape) < 2 {
		x.fail(op, fault.Invalid, []*Tensor{t}, "Expected at least 2 dimensions for input tensor but received %d", len(t.shape))
	}
	for _, v := range vectors {
		if v != nil && !infer.Same(v.shape, []int{t.shape[1]}) {
			x.fail(op, fault.Invalid, []*Tensor{t, v}, "expected weight, bias and statistics to be vectors of size %d (the number of "+
				"channels), but got one of shape %v", t.shape[1], v.shape)
		}
	}
	return t.shape[0], t.shape[1], infer.Numel(t.shape[2:])
}

// GroupNorm normalises t [N, C, …] over each of groups groups of adjacent channels, with eps added to the variances; then it multiplies by
// weight [C] and adds bias [C]; either may be nil. The result is channels last if t is.
func (x *Exec) GroupNorm(t, weight, bias *Tensor, groups int, opt NormOpt) *Tensor {
	n, c, s := x.channelsOf("GroupNorm", t, weight, bias)
	if groups <= 0 || c%groups != 0 {
		x.fail("GroupNorm", fault.Invalid, []*Tensor{t}, "the %d channels of shape %v cannot be divided into %d equal groups; "+
			"give a number of groups that divides them", c, t.shape, groups)
	}
	if n*c/groups*s == 1 {
		x.fail("GroupNorm", fault.Invalid, []*Tensor{t}, "Expected more than 1 value per channel when training, got input size %v", t.shape)
	}
	if !t.dt.IsFloat() {
		x.fail("GroupNorm", fault.Unsupported, []*Tensor{t}, "GroupNorm is not defined for %v; convert to a floating-point type first",
			t.dt)
	}
	eps := OrFinite("GroupNorm", "Eps", opt.Eps, 1e-5)
	view, affine := []int{n, groups, c / groups, s}, []int{1, groups, c / groups, 1}
	return x.composite("GroupNorm", func(x *Exec) *Tensor {
		x = x.casting("GroupNorm", castFloat32, &t, &weight, &bias)
		in := t
		if !t.channelsLast() {
			in = x.Contiguous(t)
		}
		in = x.View(in, view...)
		if weight != nil {
			weight = x.View(x.Contiguous(weight), affine...)
		}
		if bias != nil {
			bias = x.View(x.Contiguous(bias), affine...)
		}
		f := x.noGrad().op(rowGroupNormStats, in)
		f.scalar[0] = kernels.FloatScalar(eps)
		f.call()
		mean, rstd := f.out[0], f.out[1]
		x.s.leave(f)
		f = x.op(rowGroupNorm, in, mean, rstd, weight, bias)
		f.opt = x.norm(view, affine, []int{2, 3}, eps, true)
		return x.View(f.call1(), t.shape...)
	})
}

// BatchNormOpt are the options of BatchNorm. The zero value is PyTorch's default.
type BatchNormOpt struct {
	// Training normalises by the batch's own statistics and updates the running ones, if there are any. Without it the running statistics
	// are used.
	Training bool
	// Momentum is the weight of the batch's statistics in the new running ones; the default is 0.1. Eps is added to variances; the default
	// is 1e-5.
	Momentum, Eps Scalar
}

// BatchNorm normalises t [N, C, …] over all dimensions except the channels, with eps added to the variances; then it multiplies by weight
// [C] and adds bias [C]. runningMean and runningVar [C] may be nil in training; otherwise training sets them to old*(1-momentum) +
// new*momentum, in place, where the new variance is the unbiased one.
func (x *Exec) BatchNorm(t, weight, bias, runningMean, runningVar *Tensor, opt BatchNormOpt) *Tensor {
	return x.batchNorm(t, weight, bias, runningMean, runningVar, opt, (*Exec).moveStats)
}

// BatchNormCounting is BatchNorm in training for the module named op. Together with the running statistics, it increments count, the number
// of batches: all of them change, or none.
func BatchNormCounting(x *Exec, op string, t, weight, bias, runningMean, runningVar, count *Tensor, opt BatchNormOpt) *Tensor {
	Enter(x, op)
	defer Leave(x)
	if count == nil || count.closed.Load() {
		x.fail(op, fault.Closed, nil, "the number of batches, NumBatchesTracked, is nil or was closed")
	}
	if t.Numel() == 0 { // which moves no statistics
		y := x.BatchNorm(t, weight, bias, runningMean, runningVar, opt)
		x.noGrad().AddSInto(count, count, 1)
		return y
	}
	return x.batchNorm(t, weight, bias, runningMean, runningVar, opt, func(x *Exec, _, _, mean, variance *Tensor, momentum float64) {
		x.named(op, func(x *Exec) {
			x.AddSInto(count, count, 1)
			x.moveStats(runningMean, runningVar, mean, variance, momentum)
		})
	})
}

// batchNorm is BatchNorm, which in training calls move to change the running statistics.
func (x *Exec) batchNorm(t, weight, bias, runningMean, runningVar *Tensor, opt BatchNormOpt,
	move func(x *Exec, runningMean, runningVar, mean, variance *Tensor, momentum float64)) *Tensor {
	momentum, eps := OrFinite("BatchNorm", "Momentum", opt.Momentum, 0.1), OrEps("BatchNorm", opt.Eps, 1e-5)
	if t.Numel() == 0 {
		for i, o := range []*Tensor{weight, bias, runningMean, runningVar} {
			if o != nil {
				Given("BatchNorm", i+1, o)
			}
		}
		return x.Clone(t)
	}
	n, c, s := x.channelsOf("BatchNorm", t, weight, bias, runningMean, runningVar)
	x.constant("BatchNorm", "running_mean", runningMean)
	x.constant("BatchNorm", "running_var", runningVar)
	a := x.norm([]int{n, c, s}, []int{1, c, 1}, []int{0, 2}, eps, true)
	if !opt.Training {
		if runningMean == nil || runningVar == nil {
			x.fail("BatchNorm", fault.Invalid, []*Tensor{t}, "the running mean and variance are needed outside of training; give "+
				"both, or set BatchNormOpt.Training")
		}
		a.eps = 0 // the call has eps as one of its values
		f := x.op(rowBatchNormEval, t, runningMean, runningVar, weight, bias)
		f.opt, f.scalar[0] = a, kernels.FloatScalar(eps)
		return f.call1()
	}
	x.bothRunning("BatchNorm", runningMean, runningVar)
	if n*s == 1 {
		x.fail("BatchNorm", fault.Invalid, []*Tensor{t}, "Expected more than 1 value per channel when training, got input size %v", t.shape)
	}
	return x.composite("BatchNorm", func(x *Exec) *Tensor {
		ng := x.noGrad()
		f := ng.op(rowBatchNormStats, t)
		f.scalar[0] = kernels.FloatScalar(eps)
		f.call()
		mean, rstd, variance := f.out[0], f.out[1], f.out[2]
		x.s.leave(f)
		f = x.op(rowBatchNorm, t, mean, rstd, weight, bias)
		f.opt = a
		y := f.call1()
		move(ng, runningMean, runningVar, mean, variance, momentum)
		return y
	})
}

// bothRunning fails if only one of the running statistics is given.
func (x *Exec) bothRunning(op string, runningMean, runningVar *Tensor) {
	if (runningMean == nil) != (runningVar == nil) {
		x.fail(op, fault.Invalid, []*Tensor{runningMean, runningVar}, "running_mean and running_var must both be given, or neither")
	}
}

// moveStats updates the running statistics, if there are any, from those of a batch.
func (x *Exec) moveStats(runningMean, runningVar, mean, variance *Tensor, momentum float64) {
	if runningMean == nil {
		return
	}
	f := x.op(rowRunningStats, runningMean, runningVar, mean, variance)
	f.scalar[0] = kernels.FloatScalar(momentum)
	f.dst[0], f.dst[1], f.outs = runningMean, runningVar, 2
	f.call()
	x.s.leave(f)
}

func (norm) param() {}

func (normGrad) param() {}
