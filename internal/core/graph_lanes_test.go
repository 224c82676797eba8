package core

import (
	"math/rand/v2"
	"testing"
)

// Random work in lanes: what uses the same memory, and not only to read it, must keep its order, through the lane's own order and the waits
// for the other lane.
func TestLanesKeepOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	used, waits := 0, 0
	for range 500 {
		work := make([]laneWork, 2+r.IntN(40))
		places := 2 + r.IntN(30)
		for i := range work {
			work[i].cost, work[i].takes = float64(500+r.IntN(9000)), r.IntN(takesKinds)
			for range 1 + r.IntN(3) {
				from := uint64(r.IntN(places))
				work[i].spans = append(work[i].spans, laneSpan{from, from + uint64(r.IntN(3)), r.IntN(3) == 0})
			}
		}
		l, ok := distribute(work)
		if !ok {
			continue
		}
		used++
		before := make([]map[int]bool, len(work))
		for i := range work {
			before[i] = map[int]bool{}
			comes := func(j int) {
				before[i][j] = true
				for k := range before[j] {
					before[i][k] = true
				}
			}
			for j := i - 1; j >= 0; j-- {
				if l.of[j] == l.of[i] {
					comes(j)
					break
				}
			}
			if j := l.awaits[i]; j >= 0 {
				waits++
				if j >= i || l.of[j] == l.of[i] {
					t.Fatalf("work %d of lane %d awaits %d of lane %d", i, l.of[i], j, l.of[j])
				}
				comes(j)
			}
			for j := range i {
				if work[i].after(&work[j]) && !before[i][j] {
					t.Fatalf("work %d does not come after %d: %+v, %+v in lanes %v awaiting %v", i, j, work[i], work[j], l.of, l.awaits)
				}
			}
		}
	}
	if used < 50 || waits < 100 {
		t.Errorf("only %d sets of work were distributed, with %d waits", used, waits)
	}
}

// Lanes do not pay for work that is (almost) one chain, for work that all needs the same resource, and for very many calls.
func TestLanesAreRefused(t *testing.T) {
	free := func(n int, cost float64, chained bool) (work []laneWork) {
		for i := range n {
			from := uint64(2 * i)
			if chained {
				from = 0
			}
			work = append(work, laneWork{spans: []laneSpan{{from, from + 1, true}}, cost: cost})
		}
		return work
	}
	taking := func(work []laneWork, even, odd int) []laneWork {
		for i := range work {
			work[i].takes = []int{even, odd}[i%2]
		}
		return work
	}
	for _, c := range []struct {
		what string
		work []laneWork
		want bool
	}{
		{"small and independent", free(8, 5000, false), true},
		{"a chain", free(8, 5000, true), false},
		{"nearly a chain", append(free(39, 5000, true), free(2, 5000, false)[1]), false},
		{"all arithmetic", taking(free(8, 5000, false), takesArithmetic, takesArithmetic), false},
		{"all bandwidth", taking(free(8, 5000, false), takesBandwidth, takesBandwidth), false},
		{"half of it arithmetic, half bandwidth", taking(free(8, 5000, false), takesArithmetic, takesBandwidth), true},
		{"of many pieces", append(free(1, 5000, false), laneWork{spans: make([]laneSpan, laneSpans), cost: 5000}), false},
		{"too much", free(laneMost+1, 5000, false), false},
		{"one", free(1, 5000, false), false},
	} {
		if _, ok := distribute(c.work); ok != c.want {
			t.Errorf("work that is %s: %v; want %v", c.what, ok, c.want)
		}
	}
}
