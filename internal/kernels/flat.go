package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// flatArgs are the arguments of FlatIndex's kernel: n columns of rank numbers, and their sizes.
type flatArgs struct {
	index, out         bufferArg
	n, step            intArg
	rank, across, next intArg
	sizes              listArg[int]
}

func (a *flatArgs) layout(p params) {
	p.bufferRO(&a.index, "index", dtype.Int64)
	if p.s.Outs > 0 {
		p.buffer(&a.out, "out", dtype.Int64)
		p.i64(&a.next, "next")
	}
	p.i64(&a.n, "n")
	p.i64(&a.step, "step")
	p.i32(&a.rank, "rank")
	p.i64(&a.across, "across")
	list(p, &a.sizes, "sizes", maxDims)
}

const flatThreads = 256

// FlatIndex writes, for each column of index [len(sizes), n], of Int64, its row-major position in an array of shape sizes to the vector
// out. A number that is negative or not below its size stops the kernel. If out is absent (Ptr 0), it only checks.
func FlatIndex(is Issuer, out, index Operand, sizes []int) error {
	n := index.Shape[1]
	switch {
	case len(sizes) > maxDims:
		return fmt.Errorf("an index has at most %d numbers, but there are %d sizes", maxDims, len(sizes))
	case n == 0:
		return nil
	}
	l := is.NewLaunch()
	l.Spec = Spec{Family: FamilyFlat, Compute: dtype.Int64, Ins: 1}
	l.Spec.DTypes[0] = dtype.Int64
	var a flatArgs
	a.index.host, a.n.host, a.step.host, a.across.host = index.Ptr, n, index.Stride[1], index.Stride[0]
	a.rank.host, a.sizes.host = len(sizes), sizes
	if out.Ptr != 0 {
		l.Spec.Outs, l.Spec.DTypes[1] = 1, dtype.Int64
		a.out.host, a.next.host = out.Ptr, out.Stride[0]
	}
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{uint32(ceilDiv(n, flatThreads)), 1, 1}, [3]uint32{flatThreads, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilyFlat, func(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("flat_index"), func(k *kernel.Builder) {
		k.FixedThreads(flatThreads)
		var a flatArgs
		a.layout(declaring(k, s))
		i := k.BlockIdx(kernel.X).MulWide(k.I32(flatThreads)).Add(k.ThreadIdx(kernel.X).Convert(dtype.Int64))
		k.If(i.Lt(a.n.Value), func() {
			flat, column := k.Var(k.I64(0)), i.Mul(a.step.Value)
			k.For(k.I32(0), a.rank.Value, k.I32(1), func(d kernel.Value) {
				size := a.sizes.Load(d)
				at := checkedIndex(a.index.Load(column.Add(d.Convert(dtype.Int64).Mul(a.across.Value))), size, false)
				flat.Set(flat.Get().Mul(size).Add(at))
			})
			if s.Outs > 0 {
				a.out.Store(i.Mul(a.next.Value), flat.Get())
			}
		})
	})
})
