package kernels

import (
	"tenon.dev/kernel"
)

// Assert stops the device if the only element of t, of any type, is zero; a NaN is not.
func Assert(is Issuer, t Operand) error {
	l := is.NewLaunch()
	l.Spec = Spec{Family: FamilyAssert, Compute: t.DType, Ins: 1}
	l.Spec.DTypes[0] = t.DType
	l.u64(t.Ptr)
	l.Grid, l.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilyAssert, func(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("assert"), func(k *kernel.Builder) {
		k.FixedThreads(1)
		k.Assert(arrayParam(k, "t", s.DTypes[0]).load(k.I32(0), 1)[0].NonZero(), "the value is zero")
	})
})
