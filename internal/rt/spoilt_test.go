package rt

import (
	"math/rand/v2"
	"testing"
)

// Waits for sound work are dropped; the others may be merged, but still cover everything that they covered.
func TestFewerWaits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var sound [MaxStreams]uint64
	sound[1], sound[2] = 500, 10
	var waits []wait
	for i := range 2 * mostWaits {
		waits = append(waits, wait{by: 3 + i%2, of: 1 + i%2, at: uint64(i), upTo: uint64(r.IntN(1000))})
	}
	all := append([]wait(nil), waits...)
	left := fewer(waits, &sound)
	if len(left) > 2 {
		t.Errorf("%d waits are left of 2 pairs", len(left))
	}
	for _, w := range all {
		if w.upTo <= sound[w.of] {
			continue
		}
		covered := false
		for _, l := range left {
			covered = covered || l.by == w.by && l.of == w.of && l.at <= w.at && l.upTo >= w.upTo
		}
		if !covered {
			t.Errorf("%+v is forgotten", w)
		}
	}
	sound[1], sound[2] = 1000, 1000
	if left = fewer(left, &sound); len(left) != 0 {
		t.Errorf("sound work leaves %v", left)
	}
}
