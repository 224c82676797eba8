package memviz

import (
	"math"

	"tenon.dev/internal/ordered"
)

// cover finds the first of several ranges of addresses that holds an address, however they overlap.
type cover struct {
	// pieces are the parts of ranges that no earlier range covers; runs are the addresses that any range covers.
	pieces *ordered.List[covered]
	runs   *ordered.List[covered]
}

// covered is a run of addresses, and the number of its range.
type covered struct {
	from, to uint64
	number   int
}

func newCover() *cover {
	key := func(c covered) uint64 { return c.from }
	return &cover{ordered.New(key), ordered.New(key)}
}

// add adds a range behind all others.
func (c *cover) add(addr, size uint64, number int) {
	from, to := addr, addr+size
	if to < from {
		to = math.MaxUint64
	}
	if from == to {
		return
	}
	run, left := covered{from: from, to: to}, to // left is the end of what is not yet covered; touching runs are merged
	for left > from {
		place := c.runs.Last(left)
		r := c.runs.Value(place)
		if r == nil || r.to < from {
			c.pieces.Add(covered{from, left, number})
			break
		}
		if r.to < left {
			c.pieces.Add(covered{max(r.to, from), left, number})
		}
		left = r.from
		run.from, run.to = min(run.from, r.from), max(run.to, r.to)
		c.runs.Remove(place)
	}
	c.runs.Add(run)
}

// find returns the number of the first range that holds an address.
func (c *cover) find(addr uint64) (number int, ok bool) {
	p := c.pieces.Value(c.pieces.Last(addr))
	if p == nil || addr >= p.to {
		return 0, false
	}
	return p.number, true
}
