package kernels

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// The copy engine does not gather runs beside a gradient of the output that is not aligned to 16 bytes; the result is the same.
func TestRunsBesideMisalignedGradients(t *testing.T) {
	c := &Conv{Batch: 4, In: 3, H: 16, W: 16, Out: 32, KH: 3, KW: 3, OH: 8, OW: 8, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1,
		DilationW: 1, Groups: 1, LastX: true, LastW: true, LastY: true, Turn: TurnWherePossible}
	h, rng := &noter{host: newHost(t)}, rand.New(rand.NewPCG(3, 4))
	h.limits.SharedPerBlock, h.limits.Major = 227<<10, 9
	const kind = dtype.BFloat16
	count := c.Batch * c.OH * c.OW * c.Out
	x, _ := h.numbers(rng, kind, true, c.Batch*c.H*c.W*c.In)
	dy, _ := h.numbers(rng, kind, true, count)
	apart := h.empty(kind, count+8)
	apart.Ptr += 2
	copy(h.view(apart.Ptr), h.view(dy.Ptr)[:count*kind.Size()])
	h.written(apart.Ptr, count*kind.Size())
	var want []byte
	for i, dy := range []Operand{dy, apart} {
		h.specs = nil
		dw := h.empty(kind, c.Out*c.In*c.KH*c.KW)
		check(t, ConvWeight(h, c, dw, dy, x))
		got := h.view(dw.Ptr)[:dw.Numel()*kind.Size()]
		if runs := slices.ContainsFunc(h.specs, func(s Spec) bool { return s.Product.Mapped == mapRight }); runs != (i == 0) {
			t.Errorf("gradient %d: runs %v", i, runs)
		}
		if i == 0 {
			want = slices.Clone(got)
		} else if !bytes.Equal(got, want) {
			t.Error("the gradient of the weight differs")
		}
	}
}
