package memviz

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomTimeline draws n random lifetimes in a number of states.
func randomTimeline(rng *rand.Rand, states, n int) *timeline {
	type row struct {
		start, end uint32
		size       uint64
	}
	var rows []row
	for range n {
		s := rng.IntN(states)
		if rng.IntN(10) == 0 {
			s = 0
		}
		length := 1 + rng.IntN(states-s)
		if rng.IntN(2) == 0 {
			length = min(length, 1+rng.IntN(8))
		}
		rows = append(rows, row{uint32(s), uint32(s + length), uint64(rng.IntN(1 << (4 * (1 + rng.IntN(5)))))})
	}
	slices.SortStableFunc(rows, func(a, b row) int { return int(a.start) - int(b.start) })
	var start, end []uint32
	var size []uint64
	for _, r := range rows {
		start, end, size = append(start, r.start), append(end, r.end), append(size, r.size)
	}
	return newTimeline(states, start, end, size, nil)
}

// plainLive is live, in the simplest form.
func plainLive(t *timeline, state int) []uint32 {
	var out []uint32
	for i := range t.start {
		if int(t.start[i]) <= state && state < int(t.end[i]) {
			out = append(out, uint32(i))
		}
	}
	return out
}

func plainTotal(t *timeline, state int) (n uint64) {
	for _, p := range plainLive(t, state) {
		n += t.size[p]
	}
	return n
}

func TestTimelineLive(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		states := 1 + rng.IntN(300)
		line := randomTimeline(rng, states, rng.IntN(200))
		var peak uint64
		at := 0
		for s := range states {
			want := plainLive(line, s)
			if got := line.live(s); !slices.Equal(got, want) {
				t.Fatalf("state %d of %d: %v, want %v", s, states, got, want)
			}
			if n := plainTotal(line, s); n != line.total(s) {
				t.Fatalf("state %d: total %d, want %d", s, line.total(s), n)
			} else if n > peak {
				peak, at = n, s
			}
		}
		if line.max != peak || line.peak != at || line.last != plainTotal(line, states-1) {
			t.Fatalf("peak %d at %d, last %d; want %d at %d", line.max, line.peak, line.last, peak, at)
		}
	}
}

// parsed is a tile decoded by its description in protocol.go.
type parsed struct {
	columns, hidden          int
	first, step, top, min    float64
	peak, total, time        []float64
	size                     []float64
	id, stack, start, end    []uint32
	marks                    []uint32
	column, stepOf, stepCols []uint32
	offset                   []float64
}

func parseTile(t testing.TB, b Tile) parsed {
	t.Helper()
	le := binary.LittleEndian
	if string(b[:4]) != "TNTL" || le.Uint16(b[4:]) != 1 {
		t.Fatalf("not a tile: %x", b[:8])
	}
	at := 64
	floats := func(n int) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = math.Float64frombits(le.Uint64(b[at:]))
			at += 8
		}
		return out
	}
	words := func(n int) []uint32 {
		out := make([]uint32, n)
		for i := range out {
			out[i] = le.Uint32(b[at:])
			at += 4
		}
		at = (at + 7) &^ 7
		return out
	}
	var p parsed
	strips, steps := int(le.Uint32(b[20:])), int(le.Uint32(b[24:]))
	p.columns, p.hidden = int(le.Uint32(b[16:])), int(le.Uint32(b[28:]))
	at = 32
	h := floats(4)
	p.first, p.step, p.top, p.min = h[0], h[1], h[2], h[3]
	p.peak, p.total, p.time = floats(p.columns), floats(p.columns), floats(p.columns)
	p.size = floats(strips)
	p.id, p.stack, p.start, p.end, p.marks = words(strips), words(strips), words(strips), words(strips), words(strips)
	p.column, p.stepOf = words(2*strips), words(strips+1)
	p.offset, p.stepCols = floats(steps), words(steps)
	if at != len(b) {
		t.Fatalf("the tile has %d bytes, its parts %d", len(b), at)
	}
	return p
}

// stacking remembers, by state, the bytes below each allocation.
type stacking map[int][]uint64

// below returns the bytes of the allocations older than pos that live in a state.
func (o stacking) below(line *timeline, state, pos int) uint64 {
	sums := o[state]
	if sums == nil {
		sums = make([]uint64, len(line.start)+1)
		for i := range line.start {
			sums[i+1] = sums[i]
			if int(line.start[i]) <= state && state < int(line.end[i]) {
				sums[i+1] += line.size[i]
			}
		}
		o[state] = sums
	}
	return sums[pos]
}

// check compares a tile with the timeline, in the simplest form.
func (p parsed) check(t *testing.T, line *timeline, r tileRequest) {
	t.Helper()
	offsets := stacking{}
	width := 1 << r.level
	for c := range p.columns {
		s := int(p.first) + c*width
		if got := uint64(p.total[c]); got != plainTotal(line, s) {
			t.Fatalf("%+v column %d: total %d, want %d", r, c, got, plainTotal(line, s))
		}
		var top uint64
		for k := s; k < min(s+width, line.states); k++ {
			top = max(top, plainTotal(line, k))
		}
		if uint64(p.peak[c]) != top {
			t.Fatalf("%+v column %d: peak %v, want %d", r, c, p.peak[c], top)
		}
	}
	drawn := map[uint32]bool{}
	for i, id := range p.id {
		pos, _ := line.find(id)
		drawn[pos] = true
		if i > 0 && p.id[i-1] >= id {
			t.Fatalf("%+v: strips %d and %d out of order", r, p.id[i-1], id)
		}
		if p.start[i] != line.start[pos] || p.end[i] != line.end[pos] || uint64(p.size[i]) != line.size[pos] || p.size[i] < p.min {
			t.Fatalf("%+v: strip %d is not its allocation", r, id)
		}
		seen := r.hi == 0
		k := p.stepOf[i]
		if k == p.stepOf[i+1] || p.stepCols[k] != p.column[2*i] {
			t.Fatalf("%+v: strip %d does not begin with a step", r, id)
		}
		for c := p.column[2*i]; c < p.column[2*i+1]; c++ {
			s := int(p.first) + int(c)*width
			if k+1 < p.stepOf[i+1] && p.stepCols[k+1] == c {
				k++
			}
			below := offsets.below(line, s, int(pos))
			lives := int(line.start[pos]) <= s && s < int(line.end[pos])
			if !lives || math.Abs(float64(below)-p.offset[k]) > p.min/4 {
				t.Fatalf("%+v: strip %d column %d lies at %v, want %d (lives %v)", r, id, c, p.offset[k], below, lives)
			}
			seen = seen || below < r.hi && below+line.size[pos] > r.lo
		}
		if !seen {
			t.Fatalf("%+v: strip %d lies outside", r, id)
		}
	}
	crossing := 0
	for i := range line.start {
		crosses, seen := false, false
		for c := range p.columns {
			state := uint32(p.first) + uint32(c*width)
			if state < line.start[i] || line.end[i] <= state {
				continue
			}
			crosses = true
			if seen = seen || r.hi == 0; !seen {
				below := offsets.below(line, int(state), i)
				seen = below < r.hi && below+line.size[i] > r.lo
			}
		}
		if crosses {
			crossing++
		}
		if seen && len(p.id) < TileStrips && !drawn[uint32(i)] && line.size[i] >= uint64(p.min) && line.size[i] > 0 {
			t.Fatalf("%+v: allocation %d of %d bytes has no strip", r, i, line.size[i])
		}
	}
	if crossing != len(p.id)+p.hidden {
		t.Fatalf("%+v: %d strips and %d hidden, %d cross", r, len(p.id), p.hidden, crossing)
	}
}

func noStack(uint32) (uint32, uint32) { return 0, 0 }
func noTime(int) int64                { return 0 }

func TestTiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 12 {
		line := randomTimeline(rng, 1+rng.IntN(3000), rng.IntN(400))
		if rng.IntN(3) == 0 {
			line = line.subset(func(id uint32) bool { return id%3 != 0 })
		}
		for range 5 {
			r := tileRequest{level: rng.IntN(line.topTile() + 1)}
			r.index = rng.IntN((line.states-1)/(TileColumns<<r.level) + 1)
			if rng.IntN(2) == 0 {
				r.min = 1 << rng.IntN(12)
				r.lo = uint64(rng.Int64N(int64(line.max + 1)))
				r.hi = r.lo + 1 + line.max/8
			}
			parseTile(t, line.draw(r, noStack, noTime)).check(t, line, r)
		}
	}
}

// With more candidates than strips the largest are drawn, and a narrow window shows everything in it, however small.
func TestTileLimit(t *testing.T) {
	const n = 3 * TileStrips
	var start, end []uint32
	var size []uint64
	for i := range n {
		start, end, size = append(start, uint32(i/100)), append(end, 200), append(size, uint64(512*(1+i%5)))
	}
	line := newTimeline(201, start, end, size, nil)
	p := parseTile(t, line.draw(tileRequest{min: 1}, noStack, noTime))
	if len(p.id) != TileStrips || p.hidden != n-TileStrips {
		t.Fatalf("%d strips, %d hidden", len(p.id), p.hidden)
	}
	for i := range p.id {
		if p.size[i] < 4*512 {
			t.Fatalf("allocation %d of %v bytes has a strip before larger ones", p.id[i], p.size[i])
		}
	}
	r := tileRequest{min: 1, lo: 100_000, hi: 120_000}
	p = parseTile(t, line.draw(r, noStack, noTime))
	p.check(t, line, r)
	want := 0
	var below uint64
	for i := range n {
		if below < r.hi && below+size[i] > r.lo {
			want++
		}
		below += size[i]
	}
	if len(p.id) != want || want == 0 {
		t.Fatalf("%d strips in the window, want %d", len(p.id), want)
	}
}

// With many candidates in many columns, a window still shows everything in it.
func TestTileWindow(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	line := randomTimeline(rng, 700, 3*TileStrips)
	for range 4 {
		lo := uint64(rng.Int64N(int64(line.max)))
		for level := range 2 {
			r := tileRequest{level: level, min: 1, lo: lo, hi: lo + line.max/64}
			p := parseTile(t, line.draw(r, noStack, noTime))
			if len(p.id) == TileStrips {
				t.Fatal("the window is too full to tell")
			}
			p.check(t, line, r)
		}
	}
}

func TestTileStacks(t *testing.T) {
	line := newTimeline(4, []uint32{0, 1, 2}, []uint32{4, 3, 4}, []uint64{5, 6, 7}, nil)
	b := line.draw(tileRequest{}, func(id uint32) (uint32, uint32) {
		return 10 + id, 100 + id
	}, func(s int) int64 { return int64(1000 + s) })
	if got := b.stacks(); !slices.Equal(got, []uint32{10, 11, 12}) {
		t.Errorf("stacks %v", got)
	}
	p := parseTile(t, b)
	if !slices.Equal(p.marks, []uint32{100, 101, 102}) || !slices.Equal(p.time, []float64{1000, 1001, 1002, 1003}) {
		t.Errorf("marks %v, times %v", p.marks, p.time)
	}
}

func TestHeaviest(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		w := make([]weight, 1+rng.IntN(400))
		for i := range w {
			w[i] = weight{float64(rng.IntN(1 + rng.IntN(100))), uint32(i)}
			if rng.IntN(2) == 0 {
				w[i].area = float64(i)
			}
		}
		want := slices.Clone(w)
		order := func(a, b weight) int {
			if a.before(b) {
				return -1
			}
			return 1
		}
		slices.SortFunc(want, order)
		n := rng.IntN(len(w) + 1)
		heaviest(w, n)
		slices.SortFunc(w[:n], order)
		if !slices.Equal(w[:n], want[:n]) {
			t.Fatalf("the %d heaviest of %d are wrong", n, len(w))
		}
	}
}
