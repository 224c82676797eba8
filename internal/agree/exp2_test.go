package agree

import (
	"encoding/binary"
	"math"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// testExp2 compares 2^x with float64: over all normal results, at and beyond the ends of the range, and for NaN and infinities.
func testExp2(t *testing.T, m *machine) {
	const n = 1 << 18
	p, err := kernel.Build("exp2", func(k *kernel.Builder) {
		x, y, count := k.BufferRO("x", dtype.Float32), k.Buffer("y", dtype.Float32), k.Scalar("n", dtype.Int64)
		k.ForEach(count, func(i kernel.Value) { y.Store(i, x.Load(i).Exp2()) })
	}).Program()
	if err != nil {
		t.Fatal(err)
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	xs := []float32{0, 1, -1, 0.5, -0.5, 127, -126, 128, 500, -127, -500, inf, -inf, nan}
	for len(xs) < n {
		xs = append(xs, -130+float32(len(xs))*(260.0/n))
	}
	var in []byte
	for _, x := range xs {
		in = put(in, dtype.Float32, uint64(math.Float32bits(x)))
	}
	m.load(t, []*kir.Program{p})
	got, err := m.run(kernelCase{prog: p, grid: n / 256, block: 256,
		args: []argument{buffer(dtype.Float32, in), zeros(dtype.Float32, n), scalar(dtype.Int64, n)}})
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range xs {
		y := float64(math.Float32frombits(binary.LittleEndian.Uint32(got[1][4*i:])))
		want := math.Exp2(float64(x))
		switch {
		case x != x:
			if y == y {
				t.Errorf("2^NaN is %v", y)
			}
		case want < 0x1p-126:
			if !(y >= 0 && y <= 0x1p-126) {
				t.Fatalf("2^%v is %v", x, y)
			}
		case x >= 128:
			if !math.IsInf(y, 1) {
				t.Fatalf("2^%v is %v", x, y)
			}
		case !(math.Abs(y-want) <= 8e-6*want):
			t.Fatalf("2^%v is %v, want %v", x, y, want)
		}
	}
}

func TestExp2OnGPU(t *testing.T)       { testExp2(t, openGPU(t)) }
func TestExp2OnSimulator(t *testing.T) { testExp2(t, openSim(t)) }
