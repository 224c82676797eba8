package fuse

import "math"

// Cut is a directed graph with a source, a sink and edges that have capacities. With the bytes of values as capacities, its minimum cut
// says what to save so that what comes after the cut can be computed again.
type Cut struct {
	first []int32 // the latest edge of each node, or -1
	edges []cutEdge
	level []int32
	next  []int32
	queue []int32
}

// cutEdge is an edge; the edge with the number ^1 is its reverse.
type cutEdge struct {
	to, next int32
	left     int64 // what may still flow
}

// Never is a capacity that is not cut.
const Never = math.MaxInt64 / 4

// The source and the sink of every Cut; CutNodes is the number of the first node that callers may use.
const (
	cutSource = iota
	cutSink
	CutNodes
)

// Edge adds an edge between two nodes with that capacity, from 0 to Never.
func (c *Cut) Edge(from, to int, capacity int64) {
	for len(c.first) <= max(from, to, cutSink) {
		c.first = append(c.first, -1)
	}
	c.edges = append(c.edges, cutEdge{int32(to), c.first[from], capacity}, cutEdge{int32(from), c.first[to], 0})
	c.first[from], c.first[to] = int32(len(c.edges)-2), int32(len(c.edges)-1)
}

// From adds an edge from the source that is never cut, and To one to the sink.
func (c *Cut) From(node int) { c.Edge(cutSource, node, Never) }

// To adds an edge to the sink that is never cut.
func (c *Cut) To(node int) { c.Edge(node, cutSink, Never) }

// Min returns the capacity of the minimum cut, and for each node whether it is behind it, on the sink's side. Of several minimum cuts it
// takes the one that is nearest to the sink. If the capacity is Never or more, there is no cut. It uses Dinic's algorithm (Soviet Math.
// Doklady 11, 1970).
func (c *Cut) Min() (capacity int64, behind []bool) {
	n := len(c.first)
	if n == 0 {
		return 0, nil
	}
	c.level, c.next = make([]int32, n), make([]int32, n)
	for c.levels() {
		copy(c.next, c.first)
		for {
			f := c.flow(cutSource, Never)
			if f == 0 {
				break
			}
			if capacity += f; capacity >= Never {
				return capacity, nil
			}
		}
	}
	behind = make([]bool, n)
	behind[cutSink] = true
	for queue := []int32{cutSink}; len(queue) > 0; queue = queue[1:] {
		for e := c.first[queue[0]]; e >= 0; e = c.edges[e].next {
			if from := c.edges[e].to; c.edges[e^1].left > 0 && !behind[from] {
				behind[from] = true
				queue = append(queue, from)
			}
		}
	}
	return capacity, behind
}

// levels numbers the nodes by their distance from the source, and reports whether the sink can be reached.
func (c *Cut) levels() bool {
	for i := range c.level {
		c.level[i] = -1
	}
	c.level[cutSource] = 0
	c.queue = append(c.queue[:0], cutSource)
	for i := 0; i < len(c.queue); i++ {
		at := c.queue[i]
		for e := c.first[at]; e >= 0; e = c.edges[e].next {
			if to := c.edges[e].to; c.edges[e].left > 0 && c.level[to] < 0 {
				c.level[to] = c.level[at] + 1
				c.queue = append(c.queue, to)
			}
		}
	}
	return c.level[cutSink] >= 0
}

// flow sends up to most from a node to the sink, along edges to the next level.
func (c *Cut) flow(at int32, most int64) int64 {
	if at == cutSink {
		return most
	}
	for ; c.next[at] >= 0; c.next[at] = c.edges[c.next[at]].next {
		e := c.next[at]
		to := c.edges[e].to
		if c.edges[e].left == 0 || c.level[to] != c.level[at]+1 {
			continue
		}
		if f := c.flow(to, min(most, c.edges[e].left)); f > 0 {
			c.edges[e].left -= f
			c.edges[e^1].left += f
			return f
		}
	}
	return 0
}
