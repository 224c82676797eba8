package agree

import (
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// TestKernels runs every built-in kernel on two devices and compares the memory afterwards bit for bit, except for the payloads of NaNs and
// what exceptions names.
func TestKernels(t *testing.T) {
	spread(t, func(p *pair) {
		share := 1
		if p.onGPU() {
			share = 2
		}
		t.Logf("%d pointwise operations and types", tryPointOps(p, share))
		tryCopies(p)
		tryInPlace(p)
		tryFused(p)
		tryMultiTensor(p)
		tryScale(p)
		t.Logf("%d reductions and types", tryReductions(p, 2*share))
		for _, try := range []func(*pair){
			softmaxes, norms, normSums, channelNorms, indexing, sorting, turning, pooling, resampling, likelihoods, entropies, randoms,
			multinomials, compactions, flats, assertions} {
			try(p)
		}
		if !p.onGPU() { // on a GPU all of them are assembled
			t.Run("assemble", func(t *testing.T) { assembleKernels(t, p.lib, 10) })
		}
	})
}

// TestPlantedDifferenceIsSeen runs trials that each go wrong in one way: different results on one device, writes beyond a result, writes to
// an operand.
func TestPlantedDifferenceIsSeen(t *testing.T) {
	p := newPair(t)
	p.quiet = true
	fill := func(is kernels.Issuer, o kernels.Operand, v float64) error {
		return kernels.Pointwise(is, kernels.Fill, dtype.Float32, numbersOf(v), []kernels.Operand{o}, nil)
	}
	calls, shared := 0, out(dtype.Float32, dense, 100) // trials may share arrays
	p.try(trial{name: "other results", arrays: []*array{shared}, run: func(is kernels.Issuer, o []kernels.Operand) error {
		calls++
		return fill(is, o[0], float64(calls))
	}})
	p.try(trial{name: "beyond the end", arrays: []*array{out(dtype.Float32, dense, 100)},
		run: func(is kernels.Issuer, o []kernels.Operand) error {
			o[0].Shape = []int{101}
			return fill(is, o[0], 1)
		}})
	p.try(trial{name: "an operand", arrays: []*array{out(dtype.Float32, dense, 100), in(dtype.Float32, dense, mild, 100)},
		run: func(is kernels.Issuer, o []kernels.Operand) error {
			return fill(is, o[1], 1)
		}})
	p.try(trial{name: "nothing wrong", arrays: []*array{shared}, run: func(is kernels.Issuer, o []kernels.Operand) error {
		return fill(is, o[0], 1)
	}})
	p.flush()
	got := strings.Join(p.reports, "\n")
	for what, n := range map[string]int{"100 of 100 differ": 1, "writes outside its results": 4} {
		if strings.Count(got, what) != n {
			t.Errorf("want %d reports of %q:\n%s", n, what, got)
		}
	}
	if p.bad != 5 || strings.Contains(got, "nothing wrong") {
		t.Errorf("want 5 reports, have %d:\n%s", p.bad, got)
	}
}
