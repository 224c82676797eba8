package core

import (
	"math"
	"testing"
)

// TestSlotsForget checks that slots of earlier runs are forgotten, also when the counter of runs starts again.
func TestSlotsForget(t *testing.T) {
	var s slots
	for _, c := range []struct {
		epoch uint32
		ids   []uint64
	}{{0, []uint64{3, 7, 5}}, {1, []uint64{5, 3}}, {math.MaxUint32, []uint64{7, 5, 3}}} {
		s.epoch = c.epoch
		s.reset()
		for i, id := range c.ids {
			if got := s.of(id); got != uint64(i+1) {
				t.Errorf("after run %d, storage %d has slot %d, want %d", c.epoch, id, got, i+1)
			}
		}
	}
}
