package kernels

import (
	"tenon.dev/kernel"
)

// Claim is what an assertion says about a number that is not zero.
type Claim uint8

// The claims.
const (
	// ClaimNonzero is about the number itself.
	ClaimNonzero Claim = iota
	// ClaimProbabilities and ClaimEnough are about results of comparisons.
	ClaimProbabilities
	ClaimEnough
)

// broken is what a device reports if a claim does not hold.
var broken = []string{"the value is zero", "a probability is negative, infinite or NaN", "a row has fewer probabilities other than 0 " +
	"than are drawn from it without replacement"}

// assertSpec is what assertions are specialised on.
type assertSpec struct{ Claim Claim }

// assertArgs are the arguments of an assertion.
type assertArgs struct{ t arrayArg }

func (a *assertArgs) layout(p params) { p.array(&a.t, "t", p.s.DTypes[0]) }

// Assert stops its kernel if the only element of t, of any type, is zero; a NaN is not zero.
func Assert(is Issuer, t Operand, c Claim) error {
	l := is.NewLaunch()
	l.Spec = Spec{Family: FamilyAssert, Compute: t.DType, Ins: 1, Assert: assertSpec{c}}
	l.Spec.DTypes[0] = t.DType
	var a assertArgs
	a.t.host = t.Ptr
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilyAssert, func(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("assert"), func(k *kernel.Builder) {
		k.FixedThreads(1)
		var a assertArgs
		a.layout(declaring(k, s))
		k.Assert(a.t.load(k.I32(0), 1)[0].NonZero(), broken[s.Assert.Claim])
	})
})
