package kernels

import (
	"fmt"
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// bitsArgs are the arguments of dropout's bits: of all words, of which each of some rows has words, and of heads with height rows of which
// rows exist, with length elements each. threads is the number of PyTorch's threads.
type bitsArgs struct {
	out                bufferArg
	all, words, length intArg
	rows, height       intArg
	threads            intArg
	philox             philoxArg
	keep               scalarArg
}

func (a *bitsArgs) layout(p params) {
	p.buffer(&a.out, "out", dtype.Uint32)
	p.i64s("all words length rows height threads", &a.all, &a.words, &a.length, &a.rows, &a.height, &a.threads)
	p.philox(&a.philox, p.s.Dropout.Captured)
	p.scalar(&a.keep, "keep", dtype.Float32)
}

// The bits of a head fill whole tiles of attention: keptRows queries by keptWords words.
const keptRows, keptWords = 128, 4

// DropoutBitsShape returns the numbers of rows and of words of the bits for rows of n elements.
func DropoutBitsShape(rows, n int) (height, words int) {
	return ceilDiv(rows, keptRows) * keptRows, ceilDiv(n, 32*keptWords) * keptWords
}

// DropoutBits draws which elements of a contiguous Float32 array [B, H, rows, length] Dropout keeps. out, Uint32 and contiguous, is [B, H,
// height, words], see DropoutBitsShape. A row's first element is bit 0 of its first word; bits outside of the array are 0.
func DropoutBits(is Issuer, p float64, out Operand, rows, length int, ph Philox) error {
	height, words := DropoutBitsShape(rows, length)
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
	s.Family, s.Op, s.Compute, s.Outs = FamilyDropout, dropoutBits, dtype.Float32, 1
	s.DTypes[0] = out.DType
	s.Vec = uint8(1 << bits.TrailingZeros(uint(n|randomStep)))
	s.Dropout = dropoutSpec{Captured: ph.captured(), Whole: length%randomStep == 0}
	var a bitsArgs
	a.out.host, a.all.host, a.words.host, a.length.host = out.Ptr, all, words, length
	a.rows.host, a.height.host = rows, height
	a.threads.host = randomGrid(is.Limits(), n) * randomThreads
	a.philox.give(&ph)
	a.keep.host.F = float64(float32(1 - p))
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(min(ceilDiv(all, randomThreads), 1<<20)), 1, 1}
	l.Block = [3]uint32{randomThreads, 1, 1}
	return is.Issue(l)
}

func buildDropoutBits(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("dropout_bits"), func(k *kernel.Builder) {
		k.FixedThreads(randomThreads)
		var a bitsArgs
		a.layout(declaring(k, s))
		state := a.philox.state(s.Dropout.Captured, k.I32(0))
		keys := state.keys()
		keep := func(word kernel.Value) kernel.Value {
			return uniform32(word).Lt(a.keep.Re).Select(k.U32(1), k.U32(0))
		}
		draw := func(thread, step kernel.Value) [4]kernel.Value {
			p := state.of(thread.Convert(dtype.Int32))
			return p.words(p.block.Add(step.Convert(dtype.Uint64)), keys)
		}
		k.ForEach(a.all.Value, func(at kernel.Value) {
			line := at.Div(a.words.Value)
			first := at.Sub(line.Mul(a.words.Value)).Shl(k.I32(5))
			head := line.Div(a.height.Value)
			row := line.Sub(head.Mul(a.height.Value))
			begin := head.Mul(a.rows.Value).Add(row).Mul(a.length.Value).Add(first)
			left := row.Lt(a.rows.Value).Select(a.length.Sub(first).Min(k.I64(32)), k.I64(0)).Convert(dtype.Int32)
			set := k.Var(k.U32(0))
			if s.Dropout.Whole {
				wholeBits(k, &a, begin, left, set, keep, draw)
			} else {
				k.For(k.I32(0), left, k.I32(1), func(j kernel.Value) {
					word := wordOf(k, int(s.Vec), begin.Add(j.Convert(dtype.Int64)), a.threads.Value, draw)
					set.Set(set.Get().Or(keep(word).Shl(j)))
				})
			}
			a.out.Store(at, set.Get())
		})
	})
}

// wholeBits sets the bits of a word whose first element, begin, begins a step of a thread.
func wholeBits(k *kernel.Builder, a *bitsArgs, begin, left kernel.Value, set kernel.Var, keep func(kernel.Value) kernel.Value,
	draw func(thread, step kernel.Value) [4]kernel.Value) {
	group := begin.Shr(k.I32(2))
	start := group.Div(a.threads.Value)
	step, thread := k.Var(start), k.Var(group.Sub(start.Mul(a.threads.Value)))
	k.For(k.I32(0), left, k.I32(randomStep), func(j kernel.Value) {
		four := k.U32(0)
		for i, w := range draw(thread.Get(), step.Get()) {
			four = four.Or(keep(w).Shl(k.I32(i)))
		}
		set.Set(set.Get().Or(four.Shl(j)))
		next := thread.Get().Add(k.I64(1))
		wraps := next.Eq(a.threads.Value)
		thread.Set(wraps.Select(k.I64(0), next))
		step.Set(step.Get().Add(wraps.Select(k.I64(1), k.I64(0))))
	})
}

// wordOf returns the word that Dropout draws for element i if vec adjacent elements share a step of a thread.
func wordOf(k *kernel.Builder, vec int, i, threads kernel.Value, draw func(thread, step kernel.Value) [4]kernel.Value) kernel.Value {
	share := bits.TrailingZeros(uint(vec))
	group := i.Shr(k.I32(share))
	turn := group.Div(threads)
	thread := group.Sub(turn.Mul(threads))
	// A step has four words: for one group of four, two of two, or four of one.
	part := turn.And(k.I64(int64(randomStep/vec - 1))).Mul(k.I64(int64(vec))).Add(i.And(k.I64(int64(vec - 1))))
	ws := draw(thread, turn.Shr(k.I32(2-share)))
	word := ws[0]
	for n := 1; n < len(ws); n++ {
		word = part.Eq(k.I64(int64(n))).Select(ws[n], word)
	}
	return word
}
