package memviz

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
)

// tileMagic is "TNTL", little-endian.
const tileMagic = 0x4c544e54

// tileRequest names a tile. A min of 0 means the timeline's own; a hi of 0 means no limit.
type tileRequest struct {
	level, index int
	min, lo, hi  uint64
}

// strip is an allocation that is drawn by itself in a tile.
type strip struct {
	pos    uint32
	column [2]int // first column, and the one after the last
	first  int    // index of its first step
}

// step is the position of a strip from a column on.
type step struct {
	offset uint64
	column int
}

// canvas is the working memory of drawing a tile.
type canvas struct {
	t           *timeline
	lev         int
	begin, end  uint32 // states
	columns     int
	peak, total []uint64
	strips      []strip
	steps       []step
	hidden      int
	// crossed are candidates for strips, ascending within a level of the index; edges are the positions at which the stack is cut,
	// ascending.
	crossed, edges []uint32
	weights        []weight
	// changes[b*(columns+1)+c] is the change of the bytes between edges b-1 and b at column c; dirty[b] says that one of them is not 0.
	changes []int64
	dirty   []bool
	below   []uint64
}

// weight is the area of a tile that an allocation fills.
type weight struct {
	area float64
	pos  uint32
}

var canvases = sync.Pool{New: func() any { return new(canvas) }}

// draw returns the tile. The request's level must be at most topTile, and its index within the level. describe returns stack and marks of
// an allocation by number, times the time of a state.
func (t *timeline) draw(r tileRequest, describe func(id uint32) (stack, marks uint32), times func(state int) int64) Tile {
	c := canvases.Get().(*canvas)
	defer canvases.Put(c)
	c.t, c.lev = t, r.level
	c.begin = uint32(r.index * TileColumns << r.level)
	c.end = uint32(min(t.states, (r.index+1)*TileColumns<<r.level))
	c.columns = (int(c.end-c.begin) + 1<<r.level - 1) >> r.level
	c.peak = zeroed(c.peak, c.columns)
	c.silhouette()
	low := r.min
	if low == 0 {
		low = t.low
	}
	c.collect(low)
	if r.hi != 0 && len(c.crossed) > TileStrips {
		c.narrow(r.lo, r.hi)
	}
	c.choose()
	c.stack(low/4, r.lo, r.hi)
	return c.encode(r, low, describe, times)
}

// zeroed returns s with length n, all zero.
func zeroed[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// silhouette fills peak.
func (c *canvas) silhouette() {
	if c.lev >= peakBase {
		copy(c.peak, c.t.peaks[min(c.lev-peakBase, len(c.t.peaks)-1)][c.begin>>c.lev:])
		return
	}
	delta := make([]int64, c.end-c.begin+1)
	for lev := topLevel; lev >= 0; lev-- {
		for _, p := range c.t.run(lev, c.begin, c.end) {
			s, e := max(c.t.start[p], c.begin), min(c.t.end[p], c.end)
			if s < e {
				delta[s-c.begin] += int64(c.t.size[p])
				delta[e-c.begin] -= int64(c.t.size[p])
			}
		}
	}
	var total int64
	for i := range delta[:len(delta)-1] {
		total += delta[i]
		c.peak[i>>c.lev] = max(c.peak[i>>c.lev], uint64(total))
	}
}

// cross returns the columns in which the allocation lives, [from, to), empty if it lives between two of them.
func (c *canvas) cross(pos uint32) (from, to int) {
	s, e := c.t.start[pos], min(c.t.end[pos], c.end)
	w := uint32(1)<<c.lev - 1
	if s > c.begin {
		from = int((s - c.begin + w) >> c.lev)
	}
	if e > c.begin {
		to = int((e - c.begin + w) >> c.lev)
	}
	return from, to
}

// collect fills crossed with the allocations of at least low bytes that are in a column, and counts the others. crossed ascends within a
// level of the index.
func (c *canvas) collect(low uint64) {
	c.crossed, c.hidden = c.crossed[:0], 0
	for lev := topLevel; lev >= c.lev; lev-- {
		for _, p := range c.t.run(lev, c.begin, c.end) {
			from, to := c.cross(p)
			switch {
			case from >= to:
			case c.t.size[p] < low || c.t.size[p] == 0:
				c.hidden++
			default:
				c.crossed = append(c.crossed, p)
			}
		}
	}
}

// narrow drops from crossed most allocations that do not meet the bytes [lo, hi) anywhere. It cuts the stack into about TileStrips groups
// of neighbours and keeps an allocation if its group meets these bytes in a column in which the allocation lives.
func (c *canvas) narrow(lo, hi uint64) {
	c.edges = c.edges[:0]
	for i := 0; i < len(c.crossed); i += (len(c.crossed) + TileStrips - 1) / TileStrips {
		c.edges = append(c.edges, c.crossed[i])
	}
	slices.Sort(c.edges)
	c.below = zeroed(c.below, c.columns)
	meets := make([][2]int, len(c.edges)+1) // columns [from, to) of each group
	c.accumulate(func(b int) {
		first, last := c.columns, -1
		for i, off := range c.total {
			if c.below[i] < hi && off > lo && off > c.below[i] {
				first, last = min(first, i), i
			}
		}
		copy(c.below, c.total)
		meets[b] = [2]int{first, last + 1}
	})
	kept, b := 0, 0
	var before uint32
	for _, p := range c.crossed {
		if p < before { // the next level
			b = 0
		}
		before = p
		for b < len(c.edges) && c.edges[b] <= p {
			b++
		}
		if from, to := c.cross(p); from < meets[b][1] && to > meets[b][0] {
			c.crossed[kept] = p
			kept++
		}
	}
	c.hidden += len(c.crossed) - kept
	c.crossed = c.crossed[:kept]
}

// choose sets edges to the TileStrips largest in crossed.
func (c *canvas) choose() {
	c.weights = c.weights[:0]
	for _, p := range c.crossed {
		from, to := c.cross(p)
		c.weights = append(c.weights, weight{float64(c.t.size[p]) * float64(to-from), p})
	}
	if len(c.weights) > TileStrips {
		heaviest(c.weights, TileStrips)
		c.hidden += len(c.weights) - TileStrips
		c.weights = c.weights[:TileStrips]
	}
	c.edges = c.edges[:0]
	for _, w := range c.weights {
		c.edges = append(c.edges, w.pos)
	}
	slices.Sort(c.edges)
}

// before reports whether a precedes b among the heaviest; of equal ones the older comes first.
func (a weight) before(b weight) bool { return a.area > b.area || a.area == b.area && a.pos < b.pos }

// heaviest moves the n heaviest to the front, in any order, by Hoare's selection. n is at most the length.
func heaviest(w []weight, n int) {
	for lo, hi := 0, len(w); hi-lo > 1 && lo < n && n < hi; {
		// The pivot is the median of three, so that the sorted runs in crossed cost no more than other data.
		x, y, z := w[lo], w[lo+(hi-lo)/2], w[hi-1]
		if y.before(x) {
			x, y = y, x
		}
		if z.before(y) {
			y = z
			if y.before(x) {
				y = x
			}
		}
		i, k := lo, hi-1
		for i <= k {
			for w[i].before(y) {
				i++
			}
			for y.before(w[k]) {
				k--
			}
			if i <= k {
				w[i], w[k] = w[k], w[i]
				i++
				k--
			}
		}
		if n <= k {
			hi = k + 1
		} else if n >= i {
			lo = i
		} else {
			return
		}
	}
}

// accumulate stacks everything that is in a column. It calls visit for b from 0 to len(edges); total then holds, for each column, the
// bytes of the allocations older than edges[b], or of all allocations for the last b. The edges ascend.
func (c *canvas) accumulate(visit func(b int)) {
	width := c.columns + 1
	c.changes = zeroed(c.changes, (len(c.edges)+1)*width)
	c.dirty = zeroed(c.dirty, len(c.edges)+1)
	c.total = zeroed(c.total, c.columns)
	for lev := topLevel; lev >= c.lev; lev-- {
		b := 0
		for _, p := range c.t.run(lev, c.begin, c.end) {
			from, to := c.cross(p)
			if from >= to {
				continue
			}
			for b < len(c.edges) && c.edges[b] <= p {
				b++
			}
			c.changes[b*width+from] += int64(c.t.size[p])
			c.changes[b*width+to] -= int64(c.t.size[p])
			c.dirty[b] = true
		}
	}
	for b := 0; b <= len(c.edges); b++ {
		if c.dirty[b] {
			var n int64
			row := c.changes[b*width : (b+1)*width]
			for i := range c.total {
				n += row[i]
				c.total[i] += uint64(n)
			}
		}
		visit(b)
	}
}

// stack computes total and the strips with their steps, to a precision of quantum. Unless hi is 0, those outside [lo, hi) are dropped.
func (c *canvas) stack(quantum, lo, hi uint64) {
	c.strips, c.steps = c.strips[:0], c.steps[:0]
	c.accumulate(func(b int) {
		if b < len(c.edges) {
			c.trace(c.edges[b], quantum, lo, hi)
		}
	})
}

// trace adds the strip of pos, whose offsets are now in total, if it is visible.
func (c *canvas) trace(pos uint32, quantum, lo, hi uint64) {
	s := strip{pos: pos, first: len(c.steps)}
	s.column[0], s.column[1] = c.cross(pos)
	seen := hi == 0
	var at uint64
	for i := s.column[0]; i < s.column[1]; i++ {
		off := c.total[i]
		seen = seen || off < hi && off+c.t.size[pos] > lo
		if i == s.column[0] || max(off, at)-min(off, at) > quantum {
			c.steps = append(c.steps, step{off, i})
			at = off
		}
	}
	if !seen {
		c.steps = c.steps[:s.first]
		c.hidden++
		return
	}
	c.strips = append(c.strips, s)
}

// encode writes the tile in the format described in protocol.go.
func (c *canvas) encode(r tileRequest, low uint64, describe func(uint32) (uint32, uint32), times func(int) int64) Tile {
	n, p := len(c.strips), len(c.steps)
	even := func(k int) int { return (k + 1) &^ 1 }
	b := make([]byte, 0, 64+24*c.columns+8*n+4*(even(n)*5+2*n+even(n+1))+8*p+4*even(p))
	le := binary.LittleEndian
	u32 := func(v uint32) { b = le.AppendUint32(b, v) }
	f64 := func(v float64) { b = le.AppendUint64(b, math.Float64bits(v)) }
	pad := func() {
		for len(b)%8 != 0 {
			b = append(b, 0)
		}
	}
	u32(tileMagic)
	u32(1)
	for _, v := range []int{r.level, r.index, c.columns, n, p, c.hidden} {
		u32(uint32(v))
	}
	var top uint64
	for _, v := range c.peak {
		top = max(top, v)
	}
	for _, v := range []float64{float64(c.begin), float64(uint64(1) << c.lev), float64(top), float64(low)} {
		f64(v)
	}
	for _, v := range c.peak {
		f64(float64(v))
	}
	for _, v := range c.total {
		f64(float64(v))
	}
	for i := range c.columns {
		f64(float64(times(int(c.begin) + i<<c.lev)))
	}
	for _, s := range c.strips {
		f64(float64(c.t.size[s.pos]))
	}
	each := func(f func(s strip) uint32) {
		for _, s := range c.strips {
			u32(f(s))
		}
		pad()
	}
	each(func(s strip) uint32 { return c.t.id(s.pos) })
	each(func(s strip) uint32 { stack, _ := describe(c.t.id(s.pos)); return stack })
	each(func(s strip) uint32 { return c.t.start[s.pos] })
	each(func(s strip) uint32 { return c.t.end[s.pos] })
	each(func(s strip) uint32 { _, marks := describe(c.t.id(s.pos)); return marks })
	for _, s := range c.strips {
		u32(uint32(s.column[0]))
		u32(uint32(s.column[1]))
	}
	for _, s := range c.strips {
		u32(uint32(s.first))
	}
	u32(uint32(p))
	pad()
	for _, s := range c.steps {
		f64(float64(s.offset))
	}
	for _, s := range c.steps {
		u32(uint32(s.column))
	}
	pad()
	return b
}

// stacks returns the numbers of the stacks that the tile names.
func (t Tile) stacks() []uint32 {
	le := binary.LittleEndian
	c, n := int(le.Uint32(t[16:])), int(le.Uint32(t[20:]))
	at := 64 + 24*c + 8*n + (4*n+7)&^7
	out := make([]uint32, n)
	for i := range out {
		out[i] = le.Uint32(t[at+4*i:])
	}
	return out
}
