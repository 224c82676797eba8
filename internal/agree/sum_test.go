package agree

import (
	"math"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

func TestIndexSumsOnGPU(t *testing.T)       { testIndexSums(t, openGPU(t)) }
func TestIndexSumsOnSimulator(t *testing.T) { testIndexSums(t, openSim(t)) }

// testIndexSums: accesses at a register plus a constant share the address at the register, even where that is before the memory: the
// constants are 33 and 34, and the register is -33 in the first thread.
func testIndexSums(t *testing.T, m *machine) {
	const n = 96
	f := dtype.Float32
	p, err := kernel.Build("index_sums", func(k *kernel.Builder) {
		k.FixedThreads(n)
		in, out := k.BufferRO("in", f), k.Buffer("out", f)
		first, second := k.Shared("first", f, n+1), k.Shared("second", f, n+1)
		tid := k.ThreadIdx(kernel.X)
		i := tid.Sub(k.I32(33))
		at, next := i.Add(k.I32(33)), i.Add(k.I32(33)).Add(k.I32(1))
		wide := i.Convert(dtype.Int64).Add(k.I64(33))
		for _, s := range []kernel.Array{first, second} {
			s.Store(at, in.Load(at))
			k.If(tid.Eq(k.I32(0)), func() { s.Store(k.I32(n), in.Load(k.I32(n))) })
		}
		k.Barrier()
		sum := first.Load(next).Add(second.Load(at)).Add(in.Load(next)).Add(in.Load(wide))
		k.For(k.I32(-40), k.I32(-36), k.I32(1), func(j kernel.Value) { // a counter that is negative
			out.Store(tid.Mul(k.I32(5)).Add(j).Add(k.I32(40)), first.Load(j.Add(k.I32(41))))
		})
		out.Store(tid.Mul(k.I32(5)).Add(k.I32(4)), sum)
	}).Program()
	if err != nil {
		t.Fatal(err)
	}
	m.load(t, []*kir.Program{p})
	var in, want []byte
	number := func(i int) float32 { return float32(i*i%101) - 40 }
	for i := range n + 1 {
		in = put(in, f, uint64(math.Float32bits(number(i))))
	}
	for i := range n {
		for j := range 4 {
			want = put(want, f, uint64(math.Float32bits(number(j+1))))
		}
		want = put(want, f, uint64(math.Float32bits(2*number(i+1)+2*number(i))))
	}
	got, err := m.run(kernelCase{prog: p, grid: 1, block: n, args: []argument{buffer(f, in), zeros(f, len(want)/f.Size())}})
	if err != nil {
		t.Fatal(err)
	}
	if d := differ(f, got[1], want); d != "" {
		t.Error(d)
	}
}
