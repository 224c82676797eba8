package kernels

import (
	"fmt"
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// bitsArgs are the arguments of dropout's bits. out has all words in total, words times height for each head. A head has rows rows of
// length elements. An element is kept if the number drawn for it is below limit. threads is the number of PyTorch's threads.
type bitsArgs struct {
	out                          bufferArg
	all, words, length           intArg
	rows, height, threads, limit intArg
	wordsDiv, heightDiv, turnDiv dividerArg
	philox                       philoxArg
}

func (a *bitsArgs) layout(p params) {
	p.buffer(&a.out, "out", dtype.Uint32)
	p.indexes("all words length rows height threads", &a.all, &a.words, &a.length, &a.rows, &a.height, &a.threads)
	if p.s.Index == 32 {
		p.divider(&a.wordsDiv, "magic0", "shift0")
		p.divider(&a.heightDiv, "magic1", "shift1")
		p.divider(&a.turnDiv, "magic2", "shift2")
	}
	p.philox(&a.philox, p.s.Dropout.Captured)
	p.u64(&a.limit, "limit")
}

// The bits of a head fill whole tiles of attention: keptRows queries by keptWords words.
const keptRows, keptWords = 128, 4

// DropoutBitsShape returns the numbers of words and of rows of the bits for rows of n elements.
func DropoutBitsShape(rows, n int) (words, height int) {
	return ceilDiv(n, 32*keptWords) * keptWords, ceilDiv(rows, keptRows) * keptRows
}

// DropoutBits draws which elements of a contiguous Float32 array [B, H, rows, length] Dropout keeps. out, Uint32 and contiguous, is [B, H,
// words, height], see DropoutBitsShape. A row's first element is bit 0 of its first word; bits outside of the array are 0.
func DropoutBits(is Issuer, p float64, out Operand, rows, length int, ph Philox) error {
	words, height := DropoutBitsShape(rows, length)
	all := out.Numel()
	n := all / max(1, height*words) * rows * length
	if n == 0 {
		return nil
	}
	if n >= 1<<40 {
		return fmt.Errorf("a dropout of %d elements; there must be fewer than 2^40", n)
	}
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Op, s.Compute, s.Outs, s.Index = FamilyDropout, dropoutBits, dtype.Float32, 1, 32
	s.DTypes[0] = out.DType
	s.Vec = uint8(1 << bits.TrailingZeros(uint(n|randomStep)))
	s.Dropout = dropoutSpec{Captured: ph.captured(), Whole: length%randomStep == 0}
	if 32*all+randomThreads > min(is.Index32(), lane32) {
		s.Index = 64
	}
	var a bitsArgs
	a.out.host, a.all.host, a.words.host, a.length.host = out.Ptr, all, words, length
	a.rows.host, a.height.host = rows, height
	a.threads.host = randomGrid(is.Limits(), n) * randomThreads
	a.wordsDiv.host, a.heightDiv.host, a.turnDiv.host = words, height, a.threads.host
	a.philox.give(&ph)
	a.limit.host = int(wordsBelow(float64(float32(1 - p))))
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(ceilDiv(all, randomThreads)), 1, 1}
	l.Block = [3]uint32{randomThreads, 1, 1}
	return is.Issue(l)
}

// bitsKernel is the kernel of dropout's bits.
type bitsKernel struct {
	bitsArgs
	k     *kernel.Builder
	s     *Spec
	ix    dtype.DType
	state philoxState
	keys  philoxKeys
}

func buildDropoutBits(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("dropout_bits"), func(k *kernel.Builder) {
		k.FixedThreads(randomThreads)
		b := &bitsKernel{k: k, s: s, ix: indexType(int(s.Index))}
		b.layout(declaring(k, s))
		b.state = b.philox.state(s.Dropout.Captured, k.I32(0))
		b.keys = b.state.keys()
		at := k.BlockIdx(kernel.X).Convert(b.ix).Mul(k.Int(b.ix, randomThreads)).Add(k.ThreadIdx(kernel.X).Convert(b.ix))
		k.If(at.Lt(b.all.Value), func() {
			line, row := b.divide(&b.heightDiv, at, b.height.Value)
			head, word := b.divide(&b.wordsDiv, line, b.words.Value)
			first := word.Shl(k.I32(5))
			begin := head.Mul(b.rows.Value).Add(row).Mul(b.length.Value).Add(first)
			left := row.Lt(b.rows.Value).Select(b.length.Sub(first).Min(k.Int(b.ix, 32)), k.Int(b.ix, 0)).Convert(dtype.Int32)
			set := k.Var(k.U32(0))
			if s.Dropout.Whole {
				b.whole(begin, left, set)
			} else {
				k.For(k.I32(0), left, k.I32(1), func(j kernel.Value) {
					set.Set(set.Get().Or(b.bit(b.wordOf(begin.Add(j.Convert(b.ix)))).Shl(j)))
				})
			}
			b.out.Store(at.Convert(dtype.Int64), set.Get())
		})
	})
}

// divide returns n / d and n % d for n ≥ 0, where v is the divider of d.
func (b *bitsKernel) divide(v *dividerArg, n, d kernel.Value) (q, r kernel.Value) {
	if b.s.Index == 32 {
		return v.divide(n, d)
	}
	q = n.Div(d)
	return q, n.Sub(q.Mul(d))
}

// bit returns 1 if a drawn word keeps its element, and 0 otherwise.
func (b *bitsKernel) bit(word kernel.Value) kernel.Value {
	return word.Lt(b.limit.Convert(dtype.Uint32)).Select(b.k.U32(1), b.k.U32(0))
}

// draw returns the words of one of PyTorch's threads in a step.
func (b *bitsKernel) draw(thread, step kernel.Value) [4]kernel.Value {
	p := b.state.of(thread.Convert(dtype.Int32))
	return p.words(p.block.Add(step.Convert(dtype.Uint64)), b.keys)
}

// four returns the bits of four elements that share a step of a thread.
func (b *bitsKernel) four(thread, step kernel.Value) kernel.Value {
	four := b.k.U32(0)
	for i, w := range b.draw(thread, step) {
		four = four.Or(b.bit(w).Shl(b.k.I32(i)))
	}
	return four
}

// whole sets the bits of a word whose first element, begin, begins a step of a thread. Nearly always the word is full, and its threads make
// one step.
func (b *bitsKernel) whole(begin, left kernel.Value, set kernel.Var) {
	k := b.k
	start, thread := b.divide(&b.turnDiv, begin.Shr(k.I32(2)), b.threads.Value)
	const groups = 32 / randomStep
	full := left.Eq(k.I32(32)).And(thread.Add(k.Int(b.ix, groups-1)).Lt(b.threads.Value))
	k.IfElse(full, func() {
		all := k.U32(0)
		for j := range groups {
			all = all.Or(b.four(thread.Add(k.Int(b.ix, int64(j))), start).Shl(k.I32(randomStep * j)))
		}
		set.Set(all)
	}, func() {
		step, thread := k.Var(start), k.Var(thread)
		k.For(k.I32(0), left, k.I32(randomStep), func(j kernel.Value) {
			set.Set(set.Get().Or(b.four(thread.Get(), step.Get()).Shl(j)))
			next := thread.Get().Add(k.Int(b.ix, 1))
			wraps := next.Eq(b.threads.Value)
			thread.Set(wraps.Select(k.Int(b.ix, 0), next))
			step.Set(step.Get().Add(wraps.Select(k.Int(b.ix, 1), k.Int(b.ix, 0))))
		})
	})
}

// wordOf returns the word that Dropout draws for element i if Spec.Vec adjacent elements share a step of a thread.
func (b *bitsKernel) wordOf(i kernel.Value) kernel.Value {
	k, vec := b.k, int(b.s.Vec)
	share := bits.TrailingZeros(uint(vec))
	turn, thread := b.divide(&b.turnDiv, i.Shr(k.I32(share)), b.threads.Value)
	// A step has four words: for one group of four, two of two, or four of one.
	count := func(n int) kernel.Value { return k.Int(b.ix, int64(n)) }
	part := turn.And(count(randomStep/vec - 1)).Mul(count(vec)).Add(i.And(count(vec - 1)))
	ws := b.draw(thread, turn.Shr(k.I32(2-share)))
	word := ws[0]
	for n := 1; n < len(ws); n++ {
		word = part.Eq(count(n)).Select(ws[n], word)
	}
	return word
}
