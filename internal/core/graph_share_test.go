package core

import (
	"sync"
	"testing"
)

// TestSharesAtOnce: sessions begin and end to read one storage while others do. Each knows where it has put it; the last leaves it free.
func TestSharesAtOnce(t *testing.T) {
	const sessions, rounds = 4, 200000
	s := &storage{}
	var wg sync.WaitGroup
	for n := range sessions {
		wg.Go(func() {
			d := &deferral{number: uint64(n) + 1}
			for range rounds {
				d.touch(&storage{})
				for range 2 {
					slot, ok := d.take(s, false)
					if at, known := d.slot(s); !ok || !known || at != slot || len(d.touched) != 2 || d.touched[slot] != s {
						t.Errorf("session %d has it at %d (%v), then at %d (%v), and %d storages", n, slot, ok, at, known, len(d.touched))
						return
					}
				}
				if err := s.endDeferral(d.number); err != nil {
					t.Error(err)
				}
				clear(d.sharing)
				d.touched, d.places = d.touched[:0], d.places[:0]
				if at, known := d.slot(s); known {
					t.Errorf("session %d still has it at %d", n, at)
				}
			}
		})
	}
	wg.Wait()
	if n := s.deferral(); n != 0 {
		t.Errorf("it belongs to deferral %d", n)
	}
}
