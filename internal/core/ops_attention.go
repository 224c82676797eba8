package core

import (
	"math"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// rowAttention is attention without stored weights; lse is the base-2 logarithm of each row's sum of exponentials. causal is 1 or 0. The
// mask broadcasts to the scores. kept says which weights a dropout keeps, in the bits of rowDropoutBits, and keptScale multiplies those.
var rowAttention, rowAttentionGrad *row

func init() {
	rowAttention = define(row{Name: "ScaledDotProductAttention", takes: "q k v mask? kept?; scale keptScale; causal -> y lse",
		Torch: "nn.functional.scaled_dot_product_attention", saves: in0 | in1 | in2 | in3 | in4 | out0 | out1, flops: attentionFLOPs(2, 0),
		infer: func(f *frame) {
			q := f.in[0]
			f.newOut(0, q.dt, q.shape, headsLayout(q))
			f.newOut(1, dtype.Float32, q.shape[:3], nil)
		},
		run: func(f *frame) error {
			return kernels.Attention(f, operand(f.out[0]), operand(f.out[1]),
				operand(f.in[0]), operand(f.in[1]), operand(f.in[2]), attentionOpt(f, 0))
		}})
	rowAttentionGrad = define(row{Name: "ScaledDotProductAttentionBackward",
		takes: "g y lse q k v mask? kept?; scale keptScale; causal -> dq dk dv", flops: attentionFLOPs(5, 3),
		infer: inferAttentionGrad,
		run: func(f *frame) error {
			return attentionBackward(f, operand(f.out[0]), operand(f.out[1]), operand(f.out[2]), kernels.Operand{})
		}})
	rowAttentionGradMask = define(row{Name: "ScaledDotProductAttentionBackwardMask",
		takes: "g y lse q k v mask kept?; scale keptScale; causal -> dq dk dv dmask", flops: attentionFLOPs(7, 3),
		infer: func(f *frame) {
			inferAttentionGrad(f)
			q, keys := f.in[3], f.in[4].shape[2]
			f.newOut(3, q.dt, []int{q.shape[0], q.shape[1], q.shape[2], kernels.MaskGradLine(keys)}, nil)
		},
		run: func(f *frame) error {
			return attentionBackward(f, operand(f.out[0]), operand(f.out[1]), operand(f.out[2]), operand(f.out[3]))
		}})
}

// inferAttentionGrad makes the gradients of queries, keys and values, which lie as these do.
func inferAttentionGrad(f *frame) {
	for i, t := range f.in[3:6] {
		f.newOut(i, t.dt, t.shape, headsLayout(t))
	}
}

// rowAttentionGradMask also returns the gradients of what a mask adds to the scores, in lines of kernels.MaskGradLine.
var rowAttentionGradMask *row

// rowAttentionGradPacked returns the gradients of queries, keys and values that are pieces of one tensor as one tensor [B, T, 3, H, D].
var rowAttentionGradPacked *row

func init() {
	rowAttentionGradPacked = define(row{Name: "ScaledDotProductAttentionBackwardPacked",
		takes: "g y lse q k v mask? kept?; scale keptScale; causal -> dqkv", flops: attentionFLOPs(5, 3),
		infer: func(f *frame) {
			q := f.in[3]
			f.newOut(0, q.dt, []int{q.shape[0], q.shape[2], 3, q.shape[1], q.shape[3]}, nil)
		},
		run: func(f *frame) error {
			var d [3]kernels.Operand
			s := f.out[0].stride
			for i := range d {
				d[i] = operand(f.out[0])
				d[i].Ptr += uint64(i * s[2] * d[i].DType.Size())
				d[i].Shape, d[i].Stride = f.in[3].shape, []int{s[0], s[3], s[1], s[4]}
			}
			return attentionBackward(f, d[0], d[1], d[2], kernels.Operand{})
		}})
}

func init() { rowAttention.back = backAttention }

// packedHeads reports whether q, k and v are pieces of one tensor [B, T, 3, H, D], transposed to [B, H, T, D].
func packedHeads(q, k, v *Tensor) bool {
	h, n, d := q.shape[1], q.shape[2], q.shape[3]
	if k.form != q.form || v.form != q.form || k.st != q.st || v.st != q.st || k.offset != q.offset+h*d || v.offset != q.offset+2*h*d {
		return false
	}
	return slices.Equal(q.stride, []int{n * 3 * h * d, d, 3 * h * d, 1})
}

// headsLayout returns strides of [B, H, T, D] without gaps that follow t's: if t's heads are inside its rows, as after the transposition of
// [B, T, H, D], so are the result's.
func headsLayout(t *Tensor) []int {
	h, n, d := t.shape[1], t.shape[2], t.shape[3]
	if t.stride[1] >= t.stride[2] {
		return nil
	}
	return []int{n * h * d, d, h * d, 1}
}

// attentionBackward computes the gradients of queries, keys and values to dq, dk and dv, and those of a mask to dmask if that is present.
func attentionBackward(f *frame, dq, dk, dv, dmask kernels.Operand) error {
	opt := attentionOpt(f, 3)
	opt.MaskGrad = dmask
	return kernels.AttentionBackward(f, dq, dk, dv, operand(f.in[0]), operand(f.in[1]), operand(f.in[2]),
		operand(f.in[3]), operand(f.in[4]), operand(f.in[5]), opt)
}

// attentionOpt returns the options of a call whose queries are input at, and whose keys, values, mask and kept weights follow.
func attentionOpt(f *frame, at int) kernels.AttentionOpt {
	opt := kernels.AttentionOpt{Scale: f.scalar[0].F, Causal: f.i[0] == 1}
	if kept := f.in[at+4]; kept != nil {
		opt.Kept, opt.KeptScale = operand(kept), f.scalar[1].F
	}
	mask := f.in[at+3]
	if mask == nil {
		return opt
	}
	opt.Mask = operand(mask)
	q, k := f.in[at].shape, f.in[at+1].shape
	opt.Mask.Shape, opt.Mask.Stride = []int{q[0], q[1], q[2], k[2]}, make([]int, 4)
	for d := range 4 {
		if e := d - 4 + len(mask.shape); e >= 0 && mask.shape[e] > 1 {
			opt.Mask.Stride[d] = mask.stride[e]
		} else if k[2] == 1 && d == 3 {
			opt.Mask.Stride[d] = 1
		}
	}
	return opt
}

// attentionFLOPs counts the operations of the given number of products of queries, which are input at, and keys, which follow.
func attentionFLOPs(products int64, at int) func(f *frame) int64 {
	return func(f *frame) int64 {
		q, k := f.in[at], f.in[at+1]
		n := 2 * products * int64(q.Numel()) * int64(k.shape[2])
		if f.i[0] == 1 {
			n /= 2
		}
		return n
	}
}

// backAttention computes the gradients by kernels or, if they are recorded for a further derivative, with operations.
func backAttention(b *back) {
	x := b.x
	if x.GradEnabled() {
		b.attentionOps()
		return
	}
	grad := func(r *row) *frame {
		f := x.op(r, b.grad(0), b.out(0), b.out(1), b.in(0), b.in(1), b.in(2), b.in(3), b.in(4))
		f.scalar, f.i[0] = b.n.scalar, b.n.i[0]
		return f
	}
	if b.need(0) && b.need(1) && b.need(2) && !b.need(3) && packedHeads(b.in(0), b.in(1), b.in(2)) {
		all := grad(rowAttentionGradPacked).call1()
		for i := range 3 {
			b.set(i, x.Transpose(x.Select(all, 2, i), 1, 2))
		}
		return
	}
	r, count := rowAttentionGrad, 3
	if b.need(3) {
		r, count = rowAttentionGradMask, 4
	}
	f := grad(r)
	f.call()
	var grads [4]*Tensor
	copy(grads[:], f.out[:count])
	x.s.leave(f)
	if b.need(3) { // without what fills up the lines
		grads[3] = x.sumTo(x.Contiguous(x.Narrow(grads[3], -1, 0, b.in(1).shape[2])), b.shape(3))
	}
	for i, g := range grads[:count] {
		if b.need(i) {
			b.set(i, g)
		} else {
			g.close()
		}
	}
}

func (b *back) attentionOps() {
	x, g, q, k, v, scale := b.x, b.grad(0), b.in(0), b.in(1), b.in(2), b.n.scalar[0].F
	shared := q.shape[1] / k.shape[1]
	k, v = x.repeatHeads(k, shared), x.repeatHeads(v, shared)
	mask := b.in(3)
	if b.n.i[0] == 1 {
		mask = x.causalMask(q, k)
	}
	p := x.attentionWeights(q, k, scale, mask)
	unshare := func(t *Tensor) *Tensor {
		if shared == 1 {
			return t
		}
		s := b.shape(1)
		return x.Sum(x.View(x.Contiguous(t), s[0], s[1], shared, s[2], s[3]), []int{2}, SumOpt{})
	}
	drop := func(t *Tensor) *Tensor { return t }
	if bits := b.in(4); bits != nil {
		kept := x.unpackBits(bits, q.shape[2], k.shape[2])
		drop = func(t *Tensor) *Tensor { return x.dropoutBackward(t, kept, b.n.scalar[1]) }
	}
	if b.need(2) {
		b.set(2, unshare(x.MatMul(x.turned(drop(p)), g)))
	}
	if b.need(0) || b.need(1) || b.need(3) {
		dp := drop(x.MatMul(g, x.turned(v)))
		ds := x.Mul(p, x.Sub(dp, x.Sum(x.Mul(p, dp), []int{-1}, SumOpt{KeepDim: true})))
		if b.need(3) {
			b.set(3, x.sumTo(ds, b.shape(3)))
		}
		ds = x.MulS(ds, scale)
		if b.need(0) {
			b.set(0, x.MatMul(ds, k))
		}
		if b.need(1) {
			b.set(1, unshare(x.MatMul(x.turned(ds), q)))
		}
	}
}

// AttentionOpt are the options of ScaledDotProductAttention.
type AttentionOpt struct {
	// Mask broadcasts to the scores [..., T, S]. A bool mask says which keys a query sees; a mask of the queries' type is added to the
	// scores, where minus infinity hides a key, as does any number below -2.35e38 except in float64. Under autocast a mask of another
	// floating-point type is converted. nil hides nothing.
	Mask *Tensor
	// Causal lets query i see only the keys 0 to i. It excludes Mask.
	Causal bool
	// Dropout is the probability that a weight becomes 0; the others are multiplied by 1/(1-Dropout).
	Dropout float64
	// Scale multiplies the scores; the default is 1/√D.
	Scale Scalar
	// GroupedHeads lets k and v have fewer heads than q; their number must divide q's. Neighbouring heads of q share one of theirs.
	GroupedHeads bool
}

// ScaledDotProductAttention returns softmax(scale q kᵀ + mask) v for queries q [..., T, D], keys k [..., S, D] and values v [..., S, E],
// all of one floating-point type, whose leading dimensions broadcast. A query from which a mask hides all keys gets zeros. Under autocast
// they are converted to the low-precision type.
//
// The weights [..., T, S] are not stored if q, k and v are half-precision [B, H, T, D] with D = E, a multiple of 8 up to 128, or up to 256
// where a block can have 160 KiB of shared memory: then the backward pass computes them again, in an order that only the shapes decide, so
// that equal inputs give equal gradients; of a dropout, a bit for each weight is stored. The result then has q's layout, so that if q is
// x.Transpose(x.View(t, B, T, H, D), 1, 2), undoing that needs no copy. If there are few queries, as when a model writes one token after
// the other, the keys are divided among blocks, so that all of the device reads them; not with Causal or Dropout. Otherwise it is a
// product, a softmax and a product, in float32 for halves. Dropout draws the same numbers either way: those of x.Dropout for float32
// weights.
//
// A mask that is the same for all queries and heads, such as one of padding with the shape [B, 1, 1, S], saves work: keys that it hides at
// either end of a text are left out. Keys and values that a mask hides should be finite. If they are not, the result may be NaN.
func (x *Exec) ScaledDotProductAttention(q, k, v *Tensor, opt AttentionOpt) *Tensor {
	return x.composite("ScaledDotProductAttention", func(x *Exec) *Tensor {
		cast := x.AutocastDType() != dtype.Invalid
		x = x.casting("ScaledDotProductAttention", castLow, &q, &k, &v)
		if m := opt.Mask; cast && m != nil && q != nil && m.dt.IsFloat() && m.dt != q.dt {
			opt.Mask = x.ToDType(m, q.dt)
		}
		x.checkAttention(q, k, v, opt)
		scale := Or("ScaledDotProductAttention", "Scale", opt.Scale, 1/math.Sqrt(float64(q.shape[len(q.shape)-1])))
		if scale > 0 && x.attentionTakes(q, k, v, opt) {
			var kept *Tensor
			if opt.Dropout > 0 {
				kept = x.dropoutBits(opt.Dropout, q.shape[0], q.shape[1], q.shape[2], k.shape[2])
			}
			f := x.op(rowAttention, q, k, v, opt.Mask, kept)
			f.scalar[0], f.scalar[1] = kernels.FloatScalar(scale), kernels.FloatScalar(kernels.DropoutScale(q.dt, opt.Dropout))
			if opt.Causal {
				f.i[0] = 1
			}
			f.call()
			y, lse := f.out[0], f.out[1]
			x.s.leave(f)
			lse.close()
			return y
		}
		if opt.GroupedHeads {
			shared := q.shape[len(q.shape)-3] / k.shape[len(k.shape)-3]
			k, v = x.repeatHeads(k, shared), x.repeatHeads(v, shared)
		}
		dt := q.dt
		if dt.Size() == 2 { // half-precision scores would lose bits that the attention kernels keep
			q, k, v = x.widened(q), x.widened(k), x.widened(v)
		}
		switch {
		case opt.Causal:
			opt.Mask = x.causalMask(q, k)
		case opt.Mask != nil && opt.Mask.dt != dtype.Bool:
			opt.Mask = x.widened(opt.Mask)
		}
		p := x.attentionWeights(q, k, scale, opt.Mask)
		if opt.Dropout > 0 {
			p = x.Dropout(p, opt.Dropout)
		}
		y := x.MatMul(p, v)
		if dt != y.dt {
			y = x.ToDType(y, dt)
		}
		return y
	})
}

// checkAttention refuses operands that do not fit together.
func (x *Exec) checkAttention(q, k, v *Tensor, opt AttentionOpt) {
	all := []*Tensor{q, k, v}
	fail := func(format string, args ...any) {
		x.fail("ScaledDotProductAttention", fault.Invalid, all, format, args...)
	}
	for i, t := range all {
		switch {
		case t == nil:
			fail(operandNil, i)
		case len(t.shape) < 2:
			fail("operand %d has the shape %v; queries, keys and values have at least 2 dimensions", i, t.shape)
		case !t.dt.IsFloat():
			fail("operand %d is %v; convert it to a floating-point type", i, t.dt)
		case t.dt != q.dt:
			fail("the queries are %v, but operand %d is %v; convert it with x.ToDType", q.dt, i, t.dt)
		}
	}
	last := func(t *Tensor, back int) int { return t.shape[len(t.shape)-back] }
	switch {
	case last(q, 1) != last(k, 1):
		fail("the queries' vectors have %d elements and the keys' %d; they must be equal", last(q, 1), last(k, 1))
	case last(k, 2) != last(v, 2):
		fail("there are %d keys and %d values; each key has one value", last(k, 2), last(v, 2))
	case opt.Causal && opt.Mask != nil:
		fail("Causal and Mask are both given; put the causal part into the mask")
	case !(opt.Dropout >= 0 && opt.Dropout <= 1):
		fail("dropout probability has to be between 0 and 1, but got %v", opt.Dropout)
	case opt.Mask != nil && opt.Mask.dt != dtype.Bool && opt.Mask.dt != q.dt:
		fail("the mask is %v; it must be bool, or %v as the queries", opt.Mask.dt, q.dt)
	case opt.GroupedHeads && (min(len(q.shape), len(k.shape), len(v.shape)) < 3 ||
		last(k, 3) != last(v, 3) || last(k, 3) == 0 || last(q, 3)%last(k, 3) != 0):
		fail(
			"GroupedHeads wants as many heads of values as of keys, in dimension -3, and their number to divide that of the "+
				"queries' heads; "+
				"the shapes are %v, %v and %v", q.shape, k.shape, v.shape)
	}
	lead := func(t *Tensor) []int {
		if opt.GroupedHeads {
			return t.shape[:len(t.shape)-3]
		}
		return t.shape[:len(t.shape)-2]
	}
	var buf [8]int
	if _, err := infer.Broadcast(buf[:0], lead(q), lead(k), lead(v)); err != nil {
		if h := min(len(q.shape), len(k.shape)); h >= 3 && last(k, 3) > 0 && last(q, 3)%last(k, 3) == 0 && !opt.GroupedHeads {
			fail("%v; the %d heads of queries are a multiple of the %d of keys: AttentionOpt{GroupedHeads: true} lets neighbouring heads "+
				"of queries share one of keys and values", err, last(q, 3), last(k, 3))
		}
		fail("%v", err)
	}
	if opt.Mask == nil {
		return
	}
	scores := append(append(buf[:0], q.shape[:len(q.shape)-2]...), last(q, 2), last(k, 2))
	_, err := infer.Broadcast(nil, scores, opt.Mask.shape)
	fits := err == nil
	for back := 1; back <= min(2, len(opt.Mask.shape)); back++ { // a mask may make batches larger, but not matrices
		n := last(opt.Mask, back)
		fits = fits && (n == 1 || n == scores[len(scores)-back])
	}
	if !fits {
		fail("the mask of shape %v does not broadcast to the scores, of shape %v", opt.Mask.shape, scores)
	}
}

// attentionTakes reports whether the kernels of attention take the operands.
func (x *Exec) attentionTakes(q, k, v *Tensor, opt AttentionOpt) bool {
	if opt.Dropout == 1 || len(q.shape) != 4 || len(k.shape) != 4 || !infer.Same(k.shape, v.shape) {
		return false
	}
	if m := opt.Mask; m != nil {
		scores := [...]int{q.shape[0], q.shape[1], q.shape[2], k.shape[2]}
		all, err := infer.Broadcast(nil, scores[:], m.shape)
		if err != nil || !slices.Equal(all, scores[:]) || m.RequiresGrad() && x.GradEnabled() && k.shape[2] > kernels.MaskGradKeys {
			return false
		}
	}
	heads := k.shape[1] == q.shape[1] || opt.GroupedHeads
	return heads && q.shape[0] == k.shape[0] && q.Numel() > 0 && k.Numel() > 0 &&
		kernels.AttentionTakes(x.m.stream.Device().Limits(), q.dt, q.shape[3])
}

// repeatHeads repeats each head of t [..., H, S, D] the given number of times.
func (x *Exec) repeatHeads(t *Tensor, times int) *Tensor {
	if times == 1 {
		return t
	}
	return x.RepeatInterleaveS(t, times, RepeatInterleaveOpt{Dim: new(int(-3))})
}

// causalMask returns the mask of the keys that queries see.
func (x *Exec) causalMask(q, k *Tensor) *Tensor {
	rows := x.Arange(float64(q.shape[len(q.shape)-2]), dtype.Int64, ArangeOpt{})
	cols := x.Arange(float64(k.shape[len(k.shape)-2]), dtype.Int64, ArangeOpt{})
	return x.Ge(x.Unsqueeze(rows, 1), cols)
}

// hiddenBelow is the limit of a mask's elements that hide a key: less than that is infinite in base 2. Models hide keys with the least
// number of bfloat16 or float32.
const hiddenBelow = -math.MaxFloat32 / math.Log2E

// attentionWeights returns softmax(scale q kᵀ + mask), and 0 for a query from which the mask hides all keys.
func (x *Exec) attentionWeights(q, k *Tensor, scale float64, mask *Tensor) *Tensor {
	s := x.MulS(x.MatMul(q, x.Transpose(k, -2, -1)), scale)
	if mask == nil || k.shape[len(k.shape)-2] == 0 {
		return x.Softmax(s, -1, SoftmaxOpt{})
	}
	// A hidden row is filled with zeros in place of the mask: its softmax would have the gradient NaN.
	var blind *Tensor
	if mask.dt == dtype.Bool {
		blind = x.LogicalNot(x.Any(mask, []int{-1}, DimOpt{KeepDim: true}))
		s = x.MaskedFillS(s, x.LogicalNot(x.LogicalOr(mask, blind)), math.Inf(-1))
	} else {
		least := math.Inf(-1)
		if mask.dt != dtype.Float64 {
			least = hiddenBelow
		}
		blind = x.LeS(x.AMax(mask, []int{-1}, DimOpt{KeepDim: true}), least)
		s = x.Add(s, x.MaskedFillS(mask, blind, 0))
	}
	return x.MaskedFillS(x.Softmax(s, -1, SoftmaxOpt{}), blind, 0)
}
