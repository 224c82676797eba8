package memviz

import (
	"cmp"
	"slices"
	"strconv"

	"tenon.dev/internal/snapshot"
)

// marksOf packs a tile's marks of an allocation.
func (d *device) marksOf(id uint32) uint32 {
	a := &d.active
	m := uint32(min(a.stream[id], 255)) | uint32(d.poolOf(id))<<8 | uint32(a.category[id])<<16
	return m | lifeMarks(a, id, d.entry.Events+1)
}

// segmentMarks is marksOf for segments.
func (d *device) segmentMarks(id uint32) uint32 {
	m := uint32(min(d.cached.stream[id], 255)) | uint32(d.pool[id])<<8
	return m | lifeMarks(&d.cached, id, d.entry.Events+1)
}

// lifeMarks returns bits 24 to 26 of the marks.
func lifeMarks(l *lives, id uint32, states int) (m uint32) {
	if l.start[id] == 0 {
		m |= 1 << 24
	}
	if int(l.end[id]) == states {
		m |= 1 << 25
	}
	// The completion of a free that nothing delays follows it directly.
	if uint64(l.freed[id])+1 < uint64(l.end[id]) {
		m |= 1 << 26
	}
	return m
}

// group adds up allocations by stack and returns the n groups with the most bytes, largest first.
func (rec *Recording) group(d *device, ids []uint32, n int) (groups []Group, rest Group, stacks int) {
	a := &d.active
	index := map[uint32]int{}
	groups = []Group{}
	for _, id := range ids {
		i, ok := index[a.stack[id]]
		if !ok {
			i = len(groups)
			index[a.stack[id]] = i
			groups = append(groups, Group{Stack: a.stack[id], Oldest: int(a.start[id])})
		}
		g := &groups[i]
		g.Bytes += a.size[id]
		g.Count++
		g.Largest = max(g.Largest, a.size[id])
		g.Oldest = min(g.Oldest, int(a.start[id]))
	}
	slices.SortFunc(groups, func(a, b Group) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Stack, b.Stack)) })
	stacks = len(groups)
	n = min(n, stacks)
	for i, g := range groups[n:] {
		if i == 0 {
			rest.Oldest = g.Oldest
		}
		rest.Bytes += g.Bytes
		rest.Count += g.Count
		rest.Largest = max(rest.Largest, g.Largest)
		rest.Oldest = min(rest.Oldest, g.Oldest)
	}
	rest.Label = "all others"
	groups = groups[:n:n]
	for i := range groups {
		groups[i].Label = rec.text.label(groups[i].Stack)
	}
	return groups, rest, stacks
}

// at returns who holds what in a state.
func (rec *Recording) at(d *device, state, top int, filter string) (*State, error) {
	line, err := rec.line(d, ViewActive, filter)
	if err != nil {
		return nil, err
	}
	s := &State{State: state, TimeUS: rec.timeOf(d, state), Cached: d.cachedLine.total(state)}
	ids := line.live(state)
	for i, p := range ids {
		s.Active += line.size[p]
		ids[i] = line.id(p)
	}
	s.Count = len(ids)
	s.Groups, s.Rest, s.Stacks = rec.group(d, ids, top)
	if state > 0 {
		e, err := rec.describeEvent(d, state-1)
		if err != nil {
			return nil, err
		}
		s.Event = &e
	}
	return s, nil
}

// describeEvent returns an entry of the trace for people.
func (rec *Recording) describeEvent(d *device, index int) (Event, error) {
	e, err := rec.event(d, index)
	if err != nil {
		return Event{}, err
	}
	out := Event{Index: index, Action: e.Action.String(), Addr: addrText(e.Addr), Size: e.Size, Stream: strconv.FormatUint(e.Stream, 10),
		TimeUS: e.TimeUS, Stack: uint32(e.Stack), Label: rec.text.label(uint32(e.Stack))}
	if e.Action == snapshot.ActionOOM {
		out.Addr, out.DeviceFree = "", e.Addr
	}
	if int(e.Note) < len(rec.notes) {
		n := rec.notes[e.Note]
		out.Note = n.UserMetadata
		if n.CompileContext != "" && n.CompileContext != "N/A" {
			out.Note = n.CompileContext + " " + n.UserMetadata
		}
	}
	return out, nil
}

// eventList returns a section of the trace.
func (rec *Recording) eventList(d *device, from, count int) (*EventList, error) {
	l := &EventList{From: from, Total: d.entry.Events, Events: []Event{}}
	for i := from; i < min(from+count, d.entry.Events); i++ {
		e, err := rec.describeEvent(d, i)
		if err != nil {
			return nil, err
		}
		l.Events = append(l.Events, e)
	}
	return l, nil
}

// allocation returns everything known about an allocation.
func (rec *Recording) allocation(d *device, view View, id uint32) Allocation {
	l, pool := &d.active, uint8(0)
	if view == ViewCached {
		l, pool = &d.cached, d.pool[id]
	} else {
		pool = d.poolOf(id)
	}
	states := d.entry.Events + 1
	x := Allocation{ID: id, Addr: addrText(l.addr[id]), Size: l.size[id], Stream: strconv.FormatUint(d.entry.Streams[l.stream[id]], 10),
		Pool: d.pools[pool], Start: int(l.start[id]), Freed: int(l.freed[id]), End: int(l.end[id]), Stack: rec.text.stack(l.stack[id])}
	if view == ViewActive {
		x.Category = snapshot.Category(l.category[id]).String()
	}
	x.Before, x.Stays = x.Start == 0, x.End == states
	if !x.Before {
		x.StartUS = rec.timeOf(d, x.Start)
	}
	if !x.Stays {
		x.EndUS = rec.timeOf(d, x.End)
	}
	return x
}

// blocks returns memory as the allocator sees it in a state.
func (rec *Recording) blocks(d *device, state int) *BlockMap {
	m := &BlockMap{State: state, Segments: []Segment{}, Strays: []Block{}}
	held := d.cachedLine.live(state)
	slices.SortFunc(held, func(a, b uint32) int { return cmp.Compare(d.cached.addr[a], d.cached.addr[b]) })
	var ends []uint64 // of the segments of m
	var starts []uint64
	for _, g := range held {
		c := &d.cached
		last := len(m.Segments) - 1
		if last >= 0 && m.Segments[last].Expandable && c.category[g] == 1 && c.addr[g] == ends[last] &&
			int(c.stream[g]) == m.Segments[last].Stream &&
			(m.Segments[last].Pool == int(d.pool[g]) || d.pool[g] == 0 || m.Segments[last].Pool == 0) {
			m.Segments[last].Size += c.size[g]
			m.Segments[last].Pool = max(m.Segments[last].Pool, int(d.pool[g]))
			ends[last] += c.size[g]
			continue
		}
		s := Segment{Addr: addrText(c.addr[g]), Size: c.size[g], ID: g, Stream: int(c.stream[g]), Pool: int(d.pool[g]),
			Expandable: c.category[g] == 1,
			Stack:      c.stack[g], Blocks: []Block{}}
		s.Kind = rec.kind(d, g)
		m.Segments = append(m.Segments, s)
		starts, ends = append(starts, c.addr[g]), append(ends, c.addr[g]+c.size[g])
	}
	live := d.activeLine.live(state)
	a := &d.active
	rounded := rec.lastSizes(d, state)
	slices.SortFunc(live, func(x, y uint32) int { return cmp.Compare(a.addr[x], a.addr[y]) })
	k := 0
	for _, id := range live {
		for k < len(ends) && ends[k] <= a.addr[id] {
			k++
		}
		b := Block{Offset: a.addr[id], Size: a.size[id], ID: id, Stack: a.stack[id], Pending: int(a.freed[id]) <= state}
		if k == len(ends) || a.addr[id] < starts[k] {
			m.Strays = append(m.Strays, b)
			continue
		}
		b.Offset -= starts[k]
		if n, ok := rounded[a.addr[id]]; ok {
			b.Size = n
		}
		m.Segments[k].Blocks = append(m.Segments[k].Blocks, b)
	}
	for i := range m.Segments {
		m.Segments[i].measure()
	}
	return m
}

// kind returns the kind of pool that a segment belongs to. The snapshot tells it for the segments that it has, the size for others, since
// only the small pool allocates segments of 2 MiB. It is "" for pages of an expandable segment that the snapshot does not have.
func (rec *Recording) kind(d *device, g uint32) string {
	switch c := &d.cached; {
	case c.segment[g] != none:
		return rec.segments[c.segment[g]].Type
	case c.category[g] == 1:
		return ""
	case c.size[g] == smallSegment:
		return "small"
	}
	return "large"
}

// lastSizes returns, if state is the last, the sizes of the snapshot's active blocks by address.
func (rec *Recording) lastSizes(d *device, state int) map[uint64]uint64 {
	if state != d.entry.Events {
		return nil
	}
	m := map[uint64]uint64{}
	for i := range rec.segments {
		if g := &rec.segments[i]; g.Device == d.index {
			for _, b := range g.Blocks {
				if b.State != snapshot.Inactive {
					m[b.Addr] = b.Size
				}
			}
		}
	}
	return m
}

// minBlock is the allocator's unit: a smaller gap between two blocks is rounding, not free memory.
const minBlock = 512

// gaps yields the free pieces between the blocks with the index of the block after each.
func (s *Segment) gaps(yield func(offset, size uint64, after int)) {
	var at uint64
	for i, b := range s.Blocks {
		if b.Offset > at {
			yield(at, b.Offset-at, i)
		}
		at = max(at, min(s.Size, (b.Offset+max(b.Size, 1)+minBlock-1)/minBlock*minBlock))
	}
	if s.Size > at {
		yield(at, s.Size-at, len(s.Blocks))
	}
}

// measure fills Active and Largest.
func (s *Segment) measure() {
	for _, b := range s.Blocks {
		s.Active += b.Size
	}
	s.gaps(func(_, size uint64, _ int) { s.Largest = max(s.Largest, size) })
}
