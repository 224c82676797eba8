package fuse

import (
	"math/rand/v2"
	"testing"
)

// cutOf returns the capacity of the edges from the nodes in front to those behind.
func cutOf(edges [][3]int64, behind func(node int64) bool) (sum int64) {
	for _, e := range edges {
		if !behind(e[0]) && behind(e[1]) {
			if sum += e[2]; e[2] == Never {
				return Never
			}
		}
	}
	return sum
}

// The cut is the smallest of all, and of those the nearest to the sink: every node behind it is behind every other smallest one.
func TestCut(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	cuts := 0
	for round := range 3000 {
		nodes := int64(3 + r.IntN(8))
		var c Cut
		var edges [][3]int64
		for range r.IntN(3 * int(nodes)) {
			e := [3]int64{r.Int64N(nodes), r.Int64N(nodes), r.Int64N(5)}
			if r.IntN(5) == 0 {
				e[2] = Never
			}
			if e[0] == e[1] || e[0] == cutSink || e[1] == cutSource {
				continue
			}
			edges = append(edges, e)
			c.Edge(int(e[0]), int(e[1]), e[2])
		}
		got, behind := c.Min()
		least, most := int64(Never), uint(0)
		for set := uint(0); set < 1<<nodes; set++ {
			if set>>cutSource&1 != 0 || set>>cutSink&1 == 0 {
				continue
			}
			switch sum := cutOf(edges, func(n int64) bool { return set>>n&1 != 0 }); {
			case sum < least:
				least, most = sum, set
			case sum == least:
				most &= set
			}
		}
		if least >= Never {
			if got < Never {
				t.Fatalf("round %d: a cut of %d where there is none: %v", round, got, edges)
			}
			continue
		}
		if got != least {
			t.Fatalf("round %d: a cut of %d, and the least is %d: %v", round, got, least, edges)
		}
		if got > 0 {
			cuts++
		}
		for n := range nodes {
			if is := int(n) < len(behind) && behind[n]; len(edges) > 0 && is != (most>>n&1 != 0) {
				t.Fatalf("round %d: node %d is behind the cut: %v, %v", round, n, is, edges)
			}
		}
	}
	if cuts < 500 {
		t.Errorf("only %d cuts cost anything", cuts)
	}
}
