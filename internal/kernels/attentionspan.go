package kernels

import (
	gomath "math"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Masks of padding hide the keys at the end or at the beginning of a batch's texts from all queries. The blocks of attention leave out the
// tiles of such keys, and need no mask where a batch's queries see all keys in between.

// spannedFrom is the least number of keys from which on attentionSpans is worth its launch.
const spannedFrom = 256

const spanThreads = 256

// spanWords is how many words of attentionSpans a batch has: the first key seen, the one after the last key seen, whether all in between
// are seen, and a 0, so that all four are loaded at once.
const spanWords = 4

// issueSpans launches attentionSpans if the mask is the same for all heads and queries.
func (a *attention) issueSpans(is Issuer) (err error) {
	m := &a.mask
	if m.Ptr == 0 || m.Stride[1] != 0 && a.heads > 1 || m.Stride[2] != 0 && a.queries > 1 || a.keys < spannedFrom {
		return nil
	}
	if a.spans, err = is.Workspace(4 * spanWords * a.batch); err != nil {
		return err
	}
	l := is.NewLaunch()
	var args attentionArgs
	a.fill(&l.Spec, attentionSpans, attentionSpec{}, &args)
	l.Spec.Ins, l.Spec.DTypes[keptType] = 2, dtype.Invalid
	args.layout(packing(l))
	l.Grid, l.Block = [3]uint32{uint32(a.batch), 1, 1}, [3]uint32{spanThreads, 1, 1}
	return is.Issue(l)
}

// findSpans is the kernel of attentionSpans, which has a block for each batch.
func (a *attentionKernel) findSpans() {
	k := a.k
	k.FixedThreads(spanThreads)
	a.batch, a.head = k.BlockIdx(kernel.X), k.I32(0)
	tid, at := k.ThreadIdx(kernel.X), a.maskOf(a.head)
	from, to, count := k.Var(a.keys.Value), k.Var(k.I32(0)), k.Var(k.I32(0))
	k.For(tid, a.keys.Value, k.I32(spanThreads), func(key kernel.Value) {
		seen := at(k.I32(0), key, k.I32(0))
		if a.s.added() {
			seen = seen.Convert(dtype.Float32).Mul(k.Const(dtype.Float32, gomath.Log2E)).Ne(k.Const(dtype.Float32, gomath.Inf(-1)))
		}
		k.If(seen, func() {
			from.Set(from.Get().Min(key))
			to.Set(key.Add(k.I32(1)))
			count.Set(count.Get().Add(k.I32(1)))
		})
	})
	last := k.BlockMax(to.Get())
	first := k.BlockMin(from.Get()).Min(last) // both are 0 if no key is seen
	whole := k.BlockSum(count.Get()).Eq(last.Sub(first)).Select(k.I32(1), k.I32(0))
	k.If(tid.Eq(k.I32(0)), func() {
		a.spans.StoreVec(a.batch.Mul(k.I32(spanWords)).Convert(dtype.Int64), first, last, whole, k.I32(0))
	})
}

// loadSpan sets what the block knows about the keys that its batch's queries see.
func (a *attentionKernel) loadSpan() {
	a.to = a.keys.Value
	if !a.s.spanned() {
		return
	}
	span := a.spans.LoadVec(a.batch.Mul(a.k.I32(spanWords)).Convert(dtype.Int64), spanWords)
	a.from, a.to, a.whole = span[0], span[1], span[2].Ne(a.k.I32(0))
}

// knowsWhole reports whether the kernel learns that queries see all keys in a batch's span, and need no mask there. A mask that is added is
// always needed.
func (a *attentionKernel) knowsWhole() bool { return a.s.spanned() && !a.s.added() }
