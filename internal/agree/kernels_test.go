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
	t.Logf("%d pointwise operations and types", tryPointOps(p, share))
	tryCopies(p)
	tryInPlace(p)
	tryMultiTensor(p)
	t.Logf("%d reductions and types", tryReductions(p, 2*share))
	softmaxes(p)
	norms(p)
	channelNorms(p)
	indexing(p)
	pooling(p)
	likelihoods(p)
	randoms(p)
	p.finish()
}
