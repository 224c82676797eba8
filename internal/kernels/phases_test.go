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
	phaseTrials = flag.Int("phases", 60, "random gradients of inputs with strides to try")
	phaseSeed   = flag.Uint64("phaseseed", 1, "seed of the first of them")
)

// numbers returns count numbers of type t in memory: small integers if whole is set.
func (h *host) numbers(rng *rand.Rand, t dtype.DType, whole bool, count int) (Operand, []float64) {
	o, vs := h.empty(t, count), make([]float64, count)
	b := h.view(o.Ptr)
	for i := range vs {
		if vs[i] = rng.NormFloat64(); whole {
			vs[i] = float64(rng.IntN(7) - 3)
		}
		putReal(b[i*t.Size():], t, vs[i])
		vs[i] = realAt(b[i*t.Size():], t)
	}
	h.written(o.Ptr, count*t.Size())
	return o, vs
}

// randomPhased returns a convolution whose gradient of the input has phases, also one that no convolution of that input has: as for a
// transposed one, the last pixels may receive nothing.
func randomPhased(rng *rand.Rand) *Conv {
	one := func(n ...int) int { return n[rng.IntN(len(n))] }
	c := &Conv{Batch: 1 + rng.IntN(3), In: one(16, 24, 32, 40, 64, 72, 136), Out: one(32, 64, 96, 128), Groups: 1,
		KH: one(1, 2, 3, 3, 5), KW: one(1, 2, 3, 3, 5), StrideH: one(1, 2, 2, 3, 4), StrideW: one(2, 2, 3, 4),
		DilationH: one(1, 1, 2, 3), DilationW: one(1, 1, 2, 3), LastX: true, LastW: rng.IntN(2) == 0, LastY: true, Turn: TurnWherePossible}
	if rng.IntN(2) == 0 {
		c.StrideH, c.KH = c.StrideW, c.KW
	}
	axis := func(taps, stride, dilation int) (size, pad, out int) {
		out, pad = 1+rng.IntN(7), rng.IntN(dilation*(taps-1)+2)
		reach := dilation*(taps-1) + 1
		for {
			if size = (out-1)*stride + reach - 2*pad + rng.IntN(max(stride, dilation)); size > 0 {
				return size, pad, out
			}
			out++
		}
	}
	c.H, c.PadH, c.OH = axis(c.KH, c.StrideH, c.DilationH)
	c.W, c.PadW, c.OW = axis(c.KW, c.StrideW, c.DilationW)
	return c
}

// inputGradient returns the gradient of the input, with channels last, in float64.
func (c *Conv) inputGradient(w, dy []float64) []float64 {
	dx := make([]float64, c.Batch*c.H*c.W*c.In)
	turned := make([]float64, len(w)) // [Out, KH, KW, In]
	for i, v := range w {
		if !c.LastW {
			out, in, tap := i/(c.In*c.KH*c.KW), i/(c.KH*c.KW)%c.In, i%(c.KH*c.KW)
			i = (out*c.KH*c.KW+tap)*c.In + in
		}
		turned[i] = v
	}
	walkIndex([]int{c.Batch, c.OH, c.OW, c.KH, c.KW}, func(_ int, ix []int) {
		h, x := ix[1]*c.StrideH-c.PadH+ix[3]*c.DilationH, ix[2]*c.StrideW-c.PadW+ix[4]*c.DilationW
		if h < 0 || h >= c.H || x < 0 || x >= c.W {
			return
		}
		to, from := dx[((ix[0]*c.H+h)*c.W+x)*c.In:][:c.In], dy[((ix[0]*c.OH+ix[1])*c.OW+ix[2])*c.Out:][:c.Out]
		for o, g := range from {
			for i, v := range turned[((o*c.KH+ix[3])*c.KW+ix[4])*c.In:][:c.In] {
				to[i] += v * g
			}
		}
	})
	return dx
}

// noter is a host that notes what is launched.
type noter struct {
	*host
	specs []Spec
}

func (n *noter) Issue(l *Launch) error {
	n.specs = append(n.specs, l.Spec)
	return n.host.Issue(l)
}

// TestPhases compares gradients of inputs with strides with those that threads gather, and with sums in float64. If neither product is
// divided into parts, they have the same bits. On larger devices phases always have the same bits.
func TestPhases(t *testing.T) {
	rng := rand.New(rand.NewPCG(*phaseSeed, 7))
	kernels := newHost(t).kernels
	equal, divided, empty := 0, 0, 0
	for trial := range *phaseTrials {
		h := &noter{host: newHost(t)}
		h.kernels, h.limits.SharedPerBlock = kernels, 227<<10
		c, dt, whole := randomPhased(rng), []dtype.DType{dtype.BFloat16, dtype.Float16}[trial%2], rng.IntN(2) == 0
		if rng.IntN(2) == 0 {
			c.Tile = 1 + rng.IntN(len(costsWalk))
		}
		name := fmt.Sprintf("trial %d, %v, integers %v: %+v", trial, dt, whole, *c)
		w, ws := h.numbers(rng, dt, whole, c.Out*c.In*c.KH*c.KW)
		dy, dys := h.numbers(rng, dt, whole, c.Batch*c.OH*c.OW*c.Out)
		parts, used := false, false
		var results [3][]byte
		for way := range results {
			h.limits.Multiprocessors = []int{2, 2, 132}[way]
			h.limits.Major = []int{9, 8, 9}[way] // on sm_80 threads gather
			h.specs = nil
			dx := h.empty(dt, c.Batch*c.H*c.W*c.In)
			check(t, ConvData(h, c, dx, w, dy))
			phased := false
			for _, s := range h.specs {
				phased = phased || s.Product.Mapped == mapPhases
				parts = parts || s.Product.Split()
			}
			if f := c.phased(); phased != (way != 1 && f != nil && f.fits() && c.Batch*c.H*c.W >= walkLeast) {
				t.Fatalf("%s: way %d, phases %v", name, way, phased)
			} else if way == 0 && phased && f.phases.list[len(f.phases.list)-1].count() == 0 {
				empty++
			}
			used = used || phased
			results[way] = h.view(dx.Ptr)[:dx.Numel()*dt.Size()]
		}
		if used && !bytes.Equal(results[0], results[2]) {
			t.Errorf("%s: other bits on more multiprocessors", name)
		}
		if bytes.Equal(results[0], results[1]) {
			equal++
		} else if whole || !parts {
			t.Errorf("%s: phases give other bits", name)
		}
		if parts {
			divided++
		}
		unit := map[dtype.DType]float64{dtype.BFloat16: 1.0 / 128, dtype.Float16: 1.0 / 1024}[dt]
		for i, want := range c.inputGradient(ws, dys) {
			got := realAt(results[0][i*dt.Size():], dt)
			if whole && got != rounded(dt, want) || !close(got, want, unit) {
				t.Fatalf("%s: element %d is %v, want %v", name, i, got, want)
			}
		}
	}
	t.Logf("%d of %d gradients have the same bits both ways; %d are divided, %d have phases without taps", equal, *phaseTrials, divided,
		empty)
	if 2*equal < *phaseTrials || empty == 0 || divided == 0 {
		t.Errorf("of %d gradients %d have the same bits both ways, %d are divided, and %d have phases without taps", *phaseTrials, equal,
			divided, empty)
	}
}

// TestPhasesPay checks for which layers phases are estimated to be faster than the product of all pixels and taps: for those of ResNet-50
// and others that fill a device, but not for a few pixels of which most receive nothing.
func TestPhasesPay(t *testing.T) {
	for _, l := range []struct {
		in, out, side, taps, stride, batch int
		pay                                bool
	}{
		{128, 128, 56, 3, 2, 64, true}, {256, 256, 28, 3, 2, 64, true}, {512, 512, 14, 3, 2, 64, true}, {512, 512, 14, 3, 2, 1, true},
		{256, 512, 56, 1, 2, 64, true}, {1024, 2048, 14, 1, 2, 64, true}, {96, 192, 56, 2, 2, 64, true},
		{64, 64, 28, 1, 3, 64, false}, {2048, 64, 8, 1, 3, 1, false},
	} {
		c := &Conv{Batch: l.batch, In: l.in, H: l.side, W: l.side, Out: l.out, KH: l.taps, KW: l.taps, StrideH: l.stride, StrideW: l.stride,
			PadH: l.taps / 2, PadW: l.taps / 2, DilationH: 1, DilationW: 1, Groups: 1, LastX: true, LastW: true, LastY: true}
		c.OH = (c.H+2*c.PadH-c.KH)/c.StrideH + 1
		c.OW = c.OH
		limits := Limits{Multiprocessors: notional, MaxThreadsPerSM: 2048, SharedPerBlock: notionalShared, Major: 9}
		if got := c.walks(&limits, convData, dtype.BFloat16) != nil; got != l.pay {
			t.Errorf("%+v: phases are chosen %v, want %v", l, got, l.pay)
		}
		if limits.Major = 8; c.walks(&limits, convData, dtype.BFloat16) != nil {
			t.Errorf("%+v: phases are chosen on sm_80", l)
		}
	}
}

// TestPhasesMean: the mean is of the numbers of taps, as a part of the largest.
func TestPhasesMean(t *testing.T) {
	for taps, want := range map[int]float64{1: 1. / 4, 2: 1, 3: 9. / 16, 4: 1, 5: 25. / 36} { // 1 and 0 in a row, 1 and 1, 2 and 1, …
		c := &Conv{Batch: 1, In: 8, Out: 8, Groups: 1, H: 8, W: 8, OH: 4, OW: 4, KH: taps, KW: taps, StrideH: 2, StrideW: 2, DilationH: 1,
			DilationW: 1}
		if got := c.phased().phases.mean; got != want {
			t.Errorf("of %d taps, the mean is %v; want %v", taps, got, want)
		}
	}
}
