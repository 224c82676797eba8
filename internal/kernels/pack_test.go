package kernels

import (
	"testing"

	"tenon.dev/dtype"
)

// BenchmarkPack packs the arguments of the families that have the most arguments.
func BenchmarkPack(b *testing.B) {
	l := &Launch{Args: make([]byte, 0, 4096)}
	run := func(name string, pack func()) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				l.Args = l.Args[:0]
				pack()
			}
		})
	}
	l.Spec.Compute, l.Spec.DTypes[0] = dtype.Float32, dtype.Float32
	p := &product{m: 64, n: 64, k: 64}
	p.batch.nd = 1
	sizes := [maxBatchDims]int32{}
	run("product", func() {
		var a productArgs
		p.args(&a, 0, 64)
		a.size.host = sizes[:]
		for i := range a.stride {
			a.stride[i].host = p.batch.stride[i][:p.batch.nd]
		}
		a.layout(packing(l))
	})
	run("conv", func() {
		var a convArgs
		for _, d := range []*dividerArg{&a.innerDiv, &a.kwDiv, &a.pixDiv, &a.rowDiv, &a.shDiv, &a.swDiv} {
			d.host = 3
		}
		a.layout(packing(l))
	})
}
