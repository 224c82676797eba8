package dtype

import (
	"fmt"
	"math"
	"testing"
)

func TestF16RoundTrip(t *testing.T) {
	for i := 0; i < 1<<16; i++ {
		h := F16(i)
		f := h.Float32()
		if f != f {
			continue
		}
		if g := F16FromFloat32(f); g != h {
			t.Fatalf("%#04x -> %v -> %#04x", i, f, uint16(g))
		}
		// Halfway to the next value rounds to the even one, a little beyond it to the next.
		if h&0x7fff < 0x7bff && h&0x8000 == 0 {
			n := F16(i + 1).Float32()
			mid := (f + n) / 2
			want := h + h&1
			if g := F16FromFloat32(mid); g != want {
				t.Fatalf("tie after %#04x: got %#04x, want %#04x", i, uint16(g), uint16(want))
			}
			if g := F16FromFloat32(math.Nextafter32(mid, 1e9)); g != h+1 {
				t.Fatalf("past tie after %#04x: got %#04x", i, uint16(g))
			}
			if g := F16FromFloat64(math.Nextafter(float64(mid), 1e9)); g != h+1 {
				t.Fatalf("double rounding after %#04x: got %#04x", i, uint16(g))
			}
			if g := F16FromFloat64(math.Nextafter(float64(mid), 0)); g != h {
				t.Fatalf("double rounding before tie after %#04x: got %#04x", i, uint16(g))
			}
		}
	}
	if F16FromFloat32(65520) != 0x7c00 || F16FromFloat32(65519.996) != 0x7bff {
		t.Fatal("overflow boundary")
	}
}

func TestBF16RoundTrip(t *testing.T) {
	for i := 0; i < 1<<16; i++ {
		h := BF16(i)
		f := h.Float32()
		if f != f {
			continue
		}
		if g := BF16FromFloat32(f); g != h {
			t.Fatalf("%#04x -> %v -> %#04x", i, f, uint16(g))
		}
	}
	if BF16FromFloat32(1.00390625) != 0x3f80 || BF16FromFloat32(1.01171875) != 0x3f82 {
		t.Fatal("ties to even")
	}
}

func TestPromote(t *testing.T) {
	cases := []struct{ a, b, want DType }{
		{Bool, Uint8, Uint8}, {Uint8, Int8, Int16}, {Uint8, Int32, Int32}, {Int64, Float16, Float16},
		{Float16, BFloat16, Float32}, {BFloat16, Float32, Float32}, {Float64, Complex64, Complex128},
		{Float32, Complex64, Complex64}, {Complex64, Complex128, Complex128}, {Int32, Int64, Int64}, {Bool, Bool, Bool},
		{Int16, Uint8, Int16},
	}
	for _, c := range cases {
		if g := Promote(c.a, c.b); g != c.want {
			t.Errorf("Promote(%v, %v) = %v, want %v", c.a, c.b, g, c.want)
		}
		if g := Promote(c.b, c.a); g != c.want {
			t.Errorf("Promote(%v, %v) = %v, want %v", c.b, c.a, g, c.want)
		}
	}
}

func TestHalvesPrintNumbers(t *testing.T) {
	for _, f := range []float32{0, float32(math.Copysign(0, -1)), 1.5, -3, 0.099975586, 1e-7, 65504, float32(math.Inf(1)),
		float32(math.Inf(-1)), float32(math.NaN())} {
		h, b := F16FromFloat32(f), BF16FromFloat32(f)
		if got, want := fmt.Sprint([]F16{h}), fmt.Sprint([]float32{h.Float32()}); got != want {
			t.Errorf("the float16 of %v prints as %s, not as %s", f, got, want)
		}
		if got, want := fmt.Sprint([]BF16{b}), fmt.Sprint([]float32{b.Float32()}); got != want {
			t.Errorf("the bfloat16 of %v prints as %s, not as %s", f, got, want)
		}
	}
	if got := fmt.Sprintf("%v %s", F16(0x3e00), BF16(0x3fc0)); got != "1.5 1.5" {
		t.Errorf("1.5 prints as %s", got)
	}
}
