package kernels

import (
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
)

// TestTurnedCopies: copies between orders of dimensions are exact for every element size, with one launch of the kernel for them.
func TestTurnedCopies(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 1))
	for _, dt := range []dtype.DType{dtype.Bool, dtype.Uint8, dtype.BFloat16, dtype.Float16, dtype.Float32, dtype.Int64, dtype.Complex64,
		dtype.Complex128} {
		h := newHost(t)
		for name, c := range map[string]struct {
			in, out Operand
			turns   bool
		}{
			"square":      {permuted(h.random(rng, dt, 64, 64), 1, 0), h.random(rng, dt, 64, 64), true},
			"odd":         {permuted(h.random(rng, dt, 35, 47), 1, 0), h.random(rng, dt, 47, 35), true},
			"least":       {permuted(h.random(rng, dt, 16, 16), 1, 0), h.random(rng, dt, 16, 16), true},
			"flat":        {permuted(h.random(rng, dt, 300, 8), 1, 0), h.random(rng, dt, 8, 300), true},
			"high":        {permuted(h.random(rng, dt, 9, 300), 1, 0), h.random(rng, dt, 300, 9), false},
			"narrow":      {permuted(h.random(rng, dt, 300, 7), 1, 0), h.random(rng, dt, 7, 300), false},
			"small":       {permuted(h.random(rng, dt, 40, 15, 16), 0, 2, 1), h.random(rng, dt, 40, 16, 15), false},
			"channels":    {permuted(h.random(rng, dt, 3, 17, 20, 18), 0, 2, 3, 1), h.random(rng, dt, 3, 20, 18, 17), true},
			"to channels": {permuted(h.random(rng, dt, 3, 17, 6, 19), 0, 3, 1, 2), h.random(rng, dt, 3, 19, 17, 6), true},
			"gaps": {sliced(permuted(h.random(rng, dt, 40, 70), 1, 0), 0, 3, 63, 1), sliced(h.random(rng, dt, 60, 50), 1, 4, 44, 1),
				true},
			"both turned": {permuted(h.random(rng, dt, 40, 70), 1, 0), permuted(h.random(rng, dt, 40, 70), 1, 0), false},
			"repeated":    {expanded(h.random(rng, dt, 40, 1), 40, 70), h.random(rng, dt, 40, 70), false},
		} {
			want := h.readComplex(c.in)
			h.launches = 0
			check(t, Pointwise(h, Copy, dt, nil, []Operand{c.out}, []Operand{c.in}))
			if h.launches != 1 || (h.l.Spec.Family == FamilyTurn) != c.turns {
				t.Errorf("%v %s: %d launches, the last of family %d", dt, name, h.launches, h.l.Spec.Family)
			}
			for i, v := range h.readComplex(c.out) {
				if v != want[i] {
					t.Fatalf("%v %s: element %d is %v, want %v", dt, name, i, v, want[i])
				}
			}
		}
		h.index32 = 1000 // split into parts
		in, out := permuted(h.random(rng, dt, 70, 80), 1, 0), h.random(rng, dt, 80, 70)
		want := h.readComplex(in)
		check(t, Pointwise(h, Copy, dt, nil, []Operand{out}, []Operand{in}))
		for i, v := range h.readComplex(out) {
			if v != want[i] {
				t.Fatalf("%v in parts: element %d is %v, want %v", dt, i, v, want[i])
			}
		}
	}
}

// TestTurnedAccesses: if lengths, strides and addresses allow it, several elements are read and written at a time, also on one side only.
// Tiles that are cut off, and those of several batches, are correct then too.
func TestTurnedAccesses(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 2))
	for dt, most := range map[dtype.DType][2]uint8{dtype.Uint8: {4, 16}, dtype.BFloat16: {4, 8}, dtype.Float32: {4, 4},
		dtype.Float64: {2, 2}, dtype.Complex128: {1, 1}} {
		h := newHost(t)
		for name, c := range map[string]struct {
			in, out    Operand
			take, give bool
		}{
			"both":       {permuted(h.random(rng, dt, 112, 76), 1, 0), h.random(rng, dt, 76, 112), true, true},
			"batches":    {permuted(h.random(rng, dt, 2, 144, 3, 20), 2, 3, 0, 1), h.random(rng, dt, 3, 20, 2, 144), true, true},
			"apart":      {permuted(h.random(rng, dt, 4, 5, 16, 16), 1, 0, 3, 2), h.random(rng, dt, 5, 4, 16, 16), true, true},
			"odd width":  {permuted(h.random(rng, dt, 81, 68), 1, 0), h.random(rng, dt, 68, 81), true, false},
			"odd height": {permuted(h.random(rng, dt, 80, 67), 1, 0), h.random(rng, dt, 67, 80), false, true},
			"odd batch": {sliced(permuted(h.random(rng, dt, 3, 33, 32), 0, 2, 1), 2, 0, 32, 1), h.random(rng, dt, 3, 32, 32), true,
				true},
			"odd in step":   {sliced(permuted(h.random(rng, dt, 64, 69), 1, 0), 0, 0, 68, 1), h.random(rng, dt, 68, 64), false, true},
			"odd out step":  {permuted(h.random(rng, dt, 64, 68), 1, 0), sliced(h.random(rng, dt, 68, 65), 1, 0, 64, 1), true, false},
			"odd in start":  {sliced(permuted(h.random(rng, dt, 64, 80), 1, 0), 0, 1, 65, 1), h.random(rng, dt, 64, 64), false, true},
			"odd out start": {permuted(h.random(rng, dt, 64, 64), 1, 0), sliced(h.random(rng, dt, 64, 80), 1, 1, 65, 1), true, false},
		} {
			want := h.readComplex(c.in)
			check(t, Pointwise(h, Copy, dt, nil, []Operand{c.out}, []Operand{c.in}))
			for i, side := range []bool{c.take, c.give} {
				n := uint8(1)
				if side {
					n = most[i]
				}
				if got := [2]uint8{h.l.Spec.Turn.Take, h.l.Spec.Turn.Give}[i]; h.l.Spec.Family != FamilyTurn || got != n {
					t.Errorf("%v %s: family %d, %d elements at a time on side %d, want %d", dt, name, h.l.Spec.Family, got, i, n)
				}
			}
			for i, v := range h.readComplex(c.out) {
				if v != want[i] {
					t.Fatalf("%v %s: element %d is %v, want %v", dt, name, i, v, want[i])
				}
			}
		}
	}
}

// TestFarComplexElements: the parts of complex elements are found even if twice a 32-bit index needs 33 bits.
func TestFarComplexElements(t *testing.T) {
	h := newHost(t)
	const far = 5 << 28
	in := Operand{Ptr: 1 << 40, DType: dtype.Complex64, Shape: []int{2, 3}, Stride: []int{far, 2}}
	for i := range 2 {
		at := in.Ptr + uint64(i*far*8)
		h.place(at, make([]byte, 64))
		if h.check != nil {
			h.check.Alloc(at, 64)
		}
	}
	h.write(in, func(n int) complex128 { return complex(float64(n), -float64(n)) })
	out := h.empty(dtype.Complex64, 2, 3)
	check(t, Pointwise(h, Copy, dtype.Complex64, nil, []Operand{out}, []Operand{in}))
	for n, v := range h.readComplex(out) {
		if v != complex(float64(n), -float64(n)) {
			t.Errorf("element %d is %v", n, v)
		}
	}
}
