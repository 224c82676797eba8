package vexec

import (
	"runtime"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// TestLoadKeepsNoProgram checks that a loaded kernel takes a few times the memory of its text: the parsed and the optimized program, which
// take much more, are gone once it is compiled.
func TestLoadKeepsNoProgram(t *testing.T) {
	p, err := kernel.Build("long", func(k *kernel.Builder) {
		n := k.Scalar("n", dtype.Int64)
		in, out := k.Buffer("x", dtype.Float32), k.Buffer("y", dtype.Float32)
		k.ForEach(n, func(i kernel.Value) {
			i = i.Mul(k.I64(4))
			vs := in.LoadVec(i, 4)
			for range 50 {
				for j, v := range vs {
					vs[j] = v.FMA(k.F32(0.5), k.F32(1)).Mul(v)
				}
			}
			out.StoreVec(i, vs...)
		})
	}).Program()
	if err != nil {
		t.Fatal(err)
	}
	text := kir.Print(p)
	held := func() uint64 {
		runtime.GC()
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	const count = 50
	modules := make([]*Module, count)
	before := held()
	for i := range modules {
		if modules[i], err = Load(text); err != nil {
			t.Fatal(err)
		}
	}
	each := int(held()-before) / count
	runtime.KeepAlive(modules)
	t.Logf("text of %d bytes, %d bytes for each loaded kernel", len(text), each)
	if most := 8 * len(text); each > most {
		t.Errorf("a loaded kernel takes %d bytes, with a text of %d; at most %d expected", each, len(text), most)
	}
}
