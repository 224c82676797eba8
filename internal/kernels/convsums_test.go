package kernels

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
)

var (
	layTrials = flag.Int("laid", 150, "random convolutions whose images lie in both ways")
	laySeed   = flag.Uint64("laidseed", 1, "seed of the first of them")
)

// randomLaid returns a convolution whose arrays do not have their channels last.
func randomLaid(rng *rand.Rand) *Conv {
	one := func(n ...int) int { return n[rng.IntN(len(n))] }
	c := &Conv{Batch: 1 + rng.IntN(3), In: one(3, 4, 8, 16, 24, 32, 40, 64, 96), Out: one(8, 16, 32, 48, 64, 128), Groups: 1,
		KH: one(1, 1, 3, 3, 5, 7), StrideH: one(1, 1, 2, 3), DilationH: one(1, 1, 1, 2), LastW: rng.IntN(2) == 0, TF32: rng.IntN(8) == 0}
	c.KW, c.StrideW, c.DilationW = c.KH, c.StrideH, c.DilationH
	switch rng.IntN(6) {
	case 0:
		c.Groups, c.Out = c.In, c.In // depthwise
	case 1:
		c.In, c.Out, c.Groups = one(16, 32, 64), one(16, 32, 64), one(2, 4, 8)
	case 2:
		c.KW, c.StrideW = one(1, 2, 3), one(1, 2)
	}
	c.PadH, c.PadW = rng.IntN(c.KH/2*c.DilationH+1), rng.IntN(c.KW/2*c.DilationW+1)
	size := func(taps, stride, pad, dilation int) (in, out int) {
		reach := dilation*(taps-1) + 1
		in = max(one(2, 5, 8, 12, 14, 16, 17, 28), reach-2*pad)
		return in, (in+2*pad-reach)/stride + 1
	}
	c.H, c.OH = size(c.KH, c.StrideH, c.PadH, c.DilationH)
	c.W, c.OW = size(c.KW, c.StrideW, c.PadW, c.DilationW)
	return c
}

// swapped returns o, an array [batch, channels, inner], with its channels last.
func (h *host) swapped(o Operand, batch, channels, inner int) Operand {
	size := o.DType.Size()
	to := h.empty(o.DType, o.Numel())
	from, into := h.view(o.Ptr), h.view(to.Ptr)
	for b := range batch {
		for c := range channels {
			for i := range inner {
				copy(into[((b*inner+i)*channels+c)*size:][:size], from[((b*channels+c)*inner+i)*size:])
			}
		}
	}
	h.written(to.Ptr, o.Numel()*size)
	return to
}

// The products of a convolution have the same bits however its images lie, where laying says so.
func TestConvolutionsLaidAnew(t *testing.T) {
	rng := rand.New(rand.NewPCG(*laySeed, 3))
	kernels := newHost(t).kernels
	found := map[string]int{}
	for trial := range *layTrials {
		h := newHost(t)
		h.kernels, h.limits.SharedPerBlock = kernels, 227<<10
		h.limits.Multiprocessors = []int{2, 8, 132}[rng.IntN(3)]
		c := randomLaid(rng)
		dt := []dtype.DType{dtype.BFloat16, dtype.Float16, dtype.Float32, dtype.Float64}[rng.IntN(4)]
		kind, biased := convKind(rng.IntN(3)), rng.IntN(2) == 0
		biased = biased && kind == convForward
		x, _ := h.numbers(rng, dt, false, c.Batch*c.In*c.H*c.W)
		w, _ := h.numbers(rng, dt, false, c.Out*c.In/c.Groups*c.KH*c.KW)
		odd := kind != convData && rng.IntN(5) == 0 // an input that begins anywhere stays
		if odd {
			x, _ = h.numbers(rng, dt, false, x.Numel()+1)
			x.Ptr, x.Shape = x.Ptr+uint64(dt.Size()), []int{x.Numel() - 1}
		}
		y, _ := h.numbers(rng, dt, false, c.Batch*c.Out*c.OH*c.OW)
		var bias Operand
		if biased {
			bias, _ = h.numbers(rng, dt, false, c.Out)
		}
		how := c.laying(&h.limits, kind, x, w, y, bias)
		if found[fmt.Sprint(kind, how)]++; how == LaidAsTheyAre {
			continue
		}
		run := func(lastX, lastY bool) []byte {
			k := *c
			k.LastX, k.LastY = lastX, lastY
			x, y := x, y
			if lastX {
				x = h.swapped(x, c.Batch, c.In, c.H*c.W)
			}
			if lastY {
				y = h.swapped(y, c.Batch, c.Out, c.OH*c.OW)
			}
			var res Operand
			switch kind {
			case convForward:
				res = h.empty(dt, y.Numel())
				check(t, ConvForward(h, &k, res, x, w, bias))
				if lastY { // back
					res = h.swapped(res, c.Batch, c.OH*c.OW, c.Out)
				}
			case convData:
				res = h.empty(dt, x.Numel())
				check(t, ConvData(h, &k, res, w, y))
				if lastX {
					res = h.swapped(res, c.Batch, c.H*c.W, c.In)
				}
			default:
				res = h.empty(dt, w.Numel())
				check(t, ConvWeight(h, &k, res, y, x))
			}
			return bytes.Clone(h.view(res.Ptr))
		}
		want := run(false, false)
		for _, ways := range [][2]bool{{true, true}, {true, false}, {false, true}} {
			if how == LaidAlike && ways[0] != ways[1] || odd && ways[0] {
				continue
			}
			if got := run(ways[0], ways[1]); !bytes.Equal(got, want) {
				t.Errorf("trial %d, product %d of %v: the bits differ with channels last %v: %+v", trial, kind, dt, ways, *c)
			}
		}
	}
	t.Log(found)
	for _, some := range []string{"0 2", "0 3", "0 4", "1 2", "1 4", "2 2", "2 4"} {
		if *layTrials >= 150 && found[some] == 0 {
			t.Errorf("no product was laid in way %s: %v", some, found)
		}
	}
}

// With 64 images on an H200, every convolution of ResNet-50 can have its images laid anew.
func TestResNetIsLaidAnew(t *testing.T) {
	lim := &Limits{Multiprocessors: 132, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, SharedPerBlock: 227 << 10, Major: 9}
	one := func(in, out, taps, stride, side int) {
		made := (side+taps/2*2-taps)/stride + 1
		c := &Conv{Batch: 64, In: in, Out: out, H: side, W: side, KH: taps, KW: taps, OH: made, OW: made, StrideH: stride, StrideW: stride,
			PadH: taps / 2, PadW: taps / 2, DilationH: 1, DilationW: 1, Groups: 1}
		o := Operand{Ptr: 1 << 40, DType: dtype.BFloat16}
		if how := c.LayForward(lim, o, o, o, Operand{}); how != LaidLast && how != LaidEqual {
			t.Errorf("%d to %d channels, %d taps, stride %d, side %d: laying %d", in, out, taps*taps, stride, side, how)
		}
	}
	one(3, 64, 7, 2, 224)
	in, side := 64, 56
	for stage := range 4 {
		width, stride := 64<<stage, min(stage+1, 2)
		one(in, width, 1, 1, side)
		one(in, 4*width, 1, stride, side)
		one(width, width, 3, stride, side)
		in, side = 4*width, side/stride
		one(in, width, 1, 1, side)
		one(width, width, 3, 1, side)
		one(width, in, 1, 1, side)
	}
}
