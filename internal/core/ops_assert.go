package core

import (
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// rowAssert has no results; i[0] is the Claim.
var rowAssert *row

func init() {
	rowAssert = define(row{Name: "AssertAsync", takes: "t;; claim ->", Torch: "_assert_async", flags: flagAsserts, infer: func(*frame) {},
		run: func(f *frame) error { return kernels.Assert(f, operand(f.in[0]), kernels.Claim(f.i[0])) }})
}

// AssertAsync fails if t, of one element, is zero or false, once the work before it is done; a NaN is not zero. It does not wait. On a
// simulated device the next call that waits for the work returns the error, once, with this operation and its line, and the device stays
// usable. A GPU is lost to the process: a later call returns the fault, with this operation among the suspects. On the processor the call
// itself fails. In a capture it becomes part of the graph. The number of elements is checked at the call.
func (x *Exec) AssertAsync(t *Tensor) {
	switch n := t.Numel(); {
	case n == 0:
		x.fail("AssertAsync", fault.Invalid, []*Tensor{t}, "Boolean value of Tensor with no values is ambiguous")
	case n > 1:
		x.fail("AssertAsync", fault.Invalid, []*Tensor{t}, "Boolean value of Tensor with more than one value is ambiguous")
	}
	x.claim(t, kernels.ClaimNonzero, nil)
}

// claim is AssertAsync with another claim, about what b says.
func (x *Exec) claim(t *Tensor, c kernels.Claim, b *blame) {
	f := x.op(rowAssert, t)
	f.i[0], f.blame = int(c), b
	f.call()
	x.s.leave(f)
}
