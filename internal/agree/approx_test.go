package agree

import (
	"encoding/binary"
	"math"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/approx"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// testApprox compares the approximate instructions with package approx, for arguments all over the range of float32 and for all from -1 to
// -2.
func testApprox(t *testing.T, m *machine) {
	const n = 1 << 24
	for _, c := range []struct {
		name        string
		instruction func(x kernel.Value) kernel.Value
		want        func(x float32) float32
	}{{"exp2", kernel.Value.Exp2, approx.Exp2}, {"reciprocal", kernel.Value.Reciprocal, approx.Reciprocal}} {
		p, err := kernel.Build(c.name, func(k *kernel.Builder) {
			x, y, count := k.BufferRO("x", dtype.Float32), k.Buffer("y", dtype.Float32), k.Scalar("n", dtype.Int64)
			k.ForEach(count, func(i kernel.Value) { y.Store(i, c.instruction(x.Load(i))) })
		}).Program()
		if err != nil {
			t.Fatal(err)
		}
		in := make([]byte, 0, 4*n)
		for i := range uint32(n / 2) {
			in = binary.LittleEndian.AppendUint32(in, 509*i)                  // every 509th number
			in = binary.LittleEndian.AppendUint32(in, math.Float32bits(-1)|i) // every significand
		}
		m.load(t, []*kir.Program{p})
		got, err := m.run(kernelCase{prog: p, grid: n / 256, block: 256,
			args: []argument{buffer(dtype.Float32, in), zeros(dtype.Float32, n), scalar(dtype.Int64, n)}})
		if err != nil {
			t.Fatal(err)
		}
		wrong := 0
		for i := range n {
			x := math.Float32frombits(binary.LittleEndian.Uint32(in[4*i:]))
			y, want := binary.LittleEndian.Uint32(got[1][4*i:]), math.Float32bits(c.want(x))
			if y == want {
				continue
			}
			if wrong++; wrong < 10 {
				t.Errorf("%s of %v is %#x, not %#x", c.name, x, y, want)
			}
		}
		if wrong > 0 {
			t.Errorf("%s: %d of %d results are not those of package approx", c.name, wrong, n)
		}
	}
}

func TestApproxOnGPU(t *testing.T)       { testApprox(t, openGPU(t)) }
func TestApproxOnSimulator(t *testing.T) { testApprox(t, openSim(t)) }
