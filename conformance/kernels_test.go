package conformance

import (
	"testing"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/internal/recorded"
)

// TestKernels runs a sample of all recorded operations, forward and backward, for tools that observe their kernels from outside, such as
// a sanitizer; TestOps checks the results.
func TestKernels(t *testing.T) {
	x := open(t)
	dev := (*core.Exec)(x).Device()
	before, known := core.KernelLaunches((*core.Exec)(x)), dev.KernelsBuilt()
	calls := 0
	sample(t, func(c *recorded.Case, call func(x *tenon.Exec, a *args) any) {
		x.Scope(func(x *tenon.Exec) {
			err := try(func() {
				a, grads := newArgs(x, c), loadAll(x, c.GradOut)
				if err := backward(x, call(x, a), grads); err != nil {
					panic(badCase{err.Error()})
				}
				calls++
			})
			if err != nil {
				t.Errorf("%s: %v", c.Name(), err)
			}
		})
	})
	if err := dev.Synchronize(); err != nil {
		t.Fatal(err)
	}
	launches := core.KernelLaunches((*core.Exec)(x)) - before
	if launches == 0 {
		t.Error("no kernel was launched")
	}
	t.Logf("kernels: %d built, %d launches, for %d calls", dev.KernelsBuilt()-known, launches, calls)
}
