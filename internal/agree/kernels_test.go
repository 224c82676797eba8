package agree

import (
	"testing"
)

// TestKernels runs every built-in kernel on two devices and compares the memory afterwards bit for bit, but for NaNs' payloads and what
// exceptions names.
func TestKernels(t *testing.T) {
	p := newPair(t)
	share := 1
	if p.onGPU() {
		share = 3
	}
	n := tryPointOps(p, share)
	t.Logf("%d pointwise operations and types", n)
	tryCopies(p)
	tryInPlace(p)
	tryMultiTensor(p)
	p.finish()
}
