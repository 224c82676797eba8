package memviz

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// query is a parsed search: all conditions must hold.
type query []func(id uint32) bool

// searched is what a query looks into: the allocations or the segments of a device.
type searched struct {
	rec  *Recording
	d    *device
	l    *lives
	pool func(id uint32) uint8
	// categories says that l has them.
	categories bool
}

// look returns what queries of a view look into.
func (rec *Recording) look(d *device, view View) searched {
	if view == ViewCached {
		return searched{rec, d, &d.cached, func(id uint32) uint8 { return d.pool[id] }, false}
	}
	return searched{rec, d, &d.active, d.poolOf, true}
}

// holds reports whether an allocation, or a segment, is what is looked for.
func (q query) holds(id uint32) bool {
	for _, c := range q {
		if !c(id) {
			return false
		}
	}
	return true
}

// splitQuery cuts a query at spaces outside quotes. Quotes vanish.
func splitQuery(text string) []string {
	var words []string
	var word strings.Builder
	quoted, begun := false, false
	for _, r := range text {
		switch {
		case r == '"':
			quoted, begun = !quoted, true
		case r == ' ' && !quoted:
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}

// parse parses the language of SearchResult.
func (s searched) parse(text string) (query, error) {
	var q query
	for _, w := range splitQuery(text) {
		word, negate := strings.CutPrefix(w, "-")
		if word == "" {
			continue
		}
		c, err := s.condition(word)
		if err != nil {
			return nil, err
		}
		if negate {
			plain := c
			c = func(id uint32) bool { return !plain(id) }
		}
		q = append(q, c)
	}
	return q, nil
}

// condition parses one word.
func (s searched) condition(word string) (func(id uint32) bool, error) {
	a := s.l
	if rest, ok := strings.CutPrefix(word, "size"); ok && rest != "" && strings.ContainsRune("<>=:", rune(rest[0])) {
		return sizeCondition(a, word, rest)
	}
	key, value, _ := strings.Cut(word, ":")
	number := func() (uint64, error) {
		n, err := strconv.ParseUint(value, 0, 64)
		if err != nil {
			return 0, fault.New(fault.Invalid, "%q is not a search word: after %s: comes a number", word, key)
		}
		return n, nil
	}
	switch key {
	case "stream":
		i := slices.IndexFunc(s.d.entry.Streams, func(h uint64) bool { return strconv.FormatUint(h, 10) == value })
		return func(id uint32) bool { return int(a.stream[id]) == i }, nil
	case "pool":
		p := slices.Index(s.d.pools, "("+strings.Trim(value, "()")+")")
		return func(id uint32) bool { return int(s.pool(id)) == p }, nil
	case "graph", "tree":
		return s.nodeCondition(value, key == "tree"), nil
	case "category":
		c := slices.Index(categories(), value)
		return func(id uint32) bool { return s.categories && int(a.category[id]) == c }, nil
	case "addr":
		n, err := number()
		return func(id uint32) bool { return n-a.addr[id] < max(a.size[id], 1) }, err
	case "state":
		n, err := number()
		return func(id uint32) bool { return uint64(a.start[id]) <= n && n < uint64(a.end[id]) }, err
	case "event": // alive in the state after it
		n, err := number()
		return func(id uint32) bool { return uint64(a.start[id]) <= n+1 && n < uint64(a.end[id])-1 }, err
	case "id":
		n, err := number()
		return func(id uint32) bool { return uint64(id) == n }, err
	case "stack":
		n, err := number()
		return func(id uint32) bool { return uint64(a.stack[id]) == n }, err
	}
	hit := s.rec.text.matching(word)
	return func(id uint32) bool { return hit[a.stack[id]] }, nil
}

// sizeCondition parses what follows size.
func sizeCondition(a *lives, word, rest string) (func(id uint32) bool, error) {
	op := rest[:1]
	rest = rest[1:]
	if strings.HasPrefix(rest, "=") && op != "=" {
		op, rest = op+"=", rest[1:]
	}
	n, err := parseSize(rest)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%q is not a search word: a size is a number of bytes or ends in k, M, G or KiB, MiB, GiB",
			word)
	}
	return map[string]func(uint32) bool{
		"<":  func(id uint32) bool { return a.size[id] < n },
		"<=": func(id uint32) bool { return a.size[id] <= n },
		">":  func(id uint32) bool { return a.size[id] > n },
		">=": func(id uint32) bool { return a.size[id] >= n },
		"=":  func(id uint32) bool { return a.size[id] == n },
		":":  func(id uint32) bool { return a.size[id] == n },
		":=": func(id uint32) bool { return a.size[id] == n },
	}[op], nil
}

// parseSize reads "512", "10MiB", "1.5G", "2k"; units are powers of 1024.
func parseSize(s string) (uint64, error) {
	i := strings.IndexFunc(s, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if i < 0 {
		i = len(s)
	}
	v, err := strconv.ParseFloat(s[:i], 64)
	if err != nil {
		return 0, err
	}
	unit := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(s[i:]), "b"), "i")
	shift := strings.Index(" kmgtp", unit)
	if len(unit) > 1 || shift < 0 {
		return 0, strconv.ErrSyntax
	}
	if unit != "" {
		v *= math.Pow(1024, float64(shift))
	}
	if v >= 1<<63 {
		return 0, strconv.ErrRange
	}
	return uint64(v), nil
}

// categories are the names that a category indexes.
func categories() []string {
	var out []string
	for c := snapshot.CategoryNone; c <= snapshot.CategoryUnknown; c++ {
		out = append(out, c.String())
	}
	return out
}

// filtered is the timeline of the allocations that a query finds.
type filtered struct {
	device int
	view   View
	query  string
	line   *timeline
}

// keptFilters is how many filtered timelines are kept.
const keptFilters = 4

// line returns the timeline of a view with a filter, "" for none.
func (rec *Recording) line(d *device, view View, filter string) (*timeline, error) {
	whole := d.activeLine
	switch view {
	case ViewCached:
		whole = d.cachedLine
	case ViewActive:
	default:
		return nil, fault.New(fault.Invalid, "there is no view %q; the views with tiles are %s and %s", view, ViewActive, ViewCached)
	}
	if filter == "" {
		return whole, nil
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	for i, f := range rec.filters {
		if f.device == d.index && f.view == view && f.query == filter {
			copy(rec.filters[1:i+1], rec.filters[:i])
			rec.filters[0] = f
			return f.line, nil
		}
	}
	q, err := rec.look(d, view).parse(filter)
	if err != nil {
		return nil, err
	}
	f := &filtered{d.index, view, filter, whole.subset(q.holds)}
	if len(rec.filters) < keptFilters {
		rec.filters = append(rec.filters, nil)
	}
	copy(rec.filters[1:], rec.filters)
	rec.filters[0] = f
	return f.line, nil
}

// maxGroups bounds the groups of a search.
const maxGroups = 50

// search finds allocations.
func (rec *Recording) search(d *device, text string, limit int) (*SearchResult, error) {
	line, err := rec.line(d, ViewActive, text)
	if err != nil {
		return nil, err
	}
	r := &SearchResult{Query: text, Count: len(line.start), Results: []Allocation{}}
	ids := make([]uint32, len(line.start))
	for i := range ids {
		ids[i] = line.id(uint32(i))
		r.Bytes += line.size[i]
	}
	r.Groups, _, _ = rec.group(d, ids, maxGroups)
	for _, id := range largest(ids, d.active.size, limit) {
		x := rec.allocation(d, ViewActive, id)
		x.Stack.Frames = []Frame{}
		r.Results = append(r.Results, x)
	}
	return r, nil
}

// largest returns the n ids of the greatest sizes, greatest first, oldest first among equals. The ids ascend.
func largest(ids []uint32, size []uint64, n int) []uint32 {
	var best []uint32
	cut := func() {
		slices.SortFunc(best, func(a, b uint32) int { return cmp.Or(cmp.Compare(size[b], size[a]), cmp.Compare(a, b)) })
		best = best[:min(len(best), n)]
	}
	var least uint64 // of n that are as large; what is not larger comes after them
	for _, id := range ids {
		if n == 0 || least > 0 && size[id] <= least {
			continue
		}
		if best = append(best, id); len(best) >= 2*n+1000 {
			cut()
			least = size[best[n-1]]
		}
	}
	cut()
	return best
}
