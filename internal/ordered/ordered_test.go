package ordered

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A list does as a sorted slice does, whatever is added and removed.
func TestList(t *testing.T) {
	type value struct{ key, n uint64 }
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		l := New(func(v value) uint64 { return v.key })
		var want []value
		last := func(k uint64) int {
			i, _ := slices.BinarySearchFunc(want, k, func(v value, k uint64) int {
				if v.key <= k {
					return -1
				}
				return 1
			})
			return i - 1
		}
		for n := range uint64(20_000) {
			k := rnd.Uint64N(1 << (4 + 4*seed))
			if grow := n < 10_000; rnd.IntN(4) > 0 == grow {
				want = slices.Insert(want, last(k)+1, value{k, n})
				l.Add(value{k, n})
			} else if at := l.Last(k); l.Value(at) != nil {
				want = slices.Delete(want, last(k), last(k)+1)
				l.Remove(at)
			} else if last(k) >= 0 {
				t.Fatalf("nothing is found at %d, want %v", k, want[last(k)])
			}
			if l.Len() != len(want) {
				t.Fatalf("%d values, want %d", l.Len(), len(want))
			}
			i, at := last(k), l.Last(k)
			for range 3 {
				got := l.Value(at)
				if (i >= 0 && i < len(want)) != (got != nil) || got != nil && *got != want[i] {
					t.Fatalf("at %d of %d stands %v", i, len(want), got)
				}
				i, at = i+1, l.Next(at)
				if i > len(want) {
					break
				}
			}
		}
		i := 0
		for v := range l.All() {
			if *v != want[i] {
				t.Fatalf("value %d is %v, want %v", i, *v, want[i])
			}
			i++
		}
		if i != len(want) {
			t.Fatalf("%d values of %d", i, len(want))
		}
	}
}
