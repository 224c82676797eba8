package memviz

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"sync/atomic"

	"tenon.dev/fault"
	"tenon.dev/internal/ordered"
	"tenon.dev/internal/snapshot"
)

// none is the segment of an allocation that lies in no known one.
const none = math.MaxUint32

// lives are allocations, or segments, as columns.
type lives struct {
	start, end []uint32 // states [start, end)
	freed      []uint32 // of allocations: state from which on the owner had freed it
	size, addr []uint64
	stack      []uint32
	segment    []uint32 // of allocations: number of the segment, or none; of segments: index into the snapshot's, or none
	stream     []uint16 // index into the device's streams
	category   []uint8  // of allocations; of segments: 1 if it is pages of an expandable one
}

// life is one row of lives.
type life struct {
	start, end, freed uint32
	size, addr        uint64
	stack, segment    uint32
	stream            uint16
	category          uint8
}

func (l *lives) len() int { return len(l.start) }

func (l *lives) add(x life) uint32 {
	l.start, l.end, l.freed = append(l.start, x.start), append(l.end, x.end), append(l.freed, x.freed)
	l.size, l.addr = append(l.size, x.size), append(l.addr, x.addr)
	l.stack, l.segment = append(l.stack, x.stack), append(l.segment, x.segment)
	l.stream, l.category = append(l.stream, x.stream), append(l.category, x.category)
	return uint32(l.len() - 1)
}

func (l *lives) at(i uint32) life {
	return life{l.start[i], l.end[i], l.freed[i], l.size[i], l.addr[i], l.stack[i], l.segment[i], l.stream[i], l.category[i]}
}

// sortByAddr sorts rows by address, then by end, and returns where each came to.
func (l *lives) sortByAddr() (moved []uint32) {
	by := make([]uint32, l.len())
	for i := range by {
		by[i] = uint32(i)
	}
	slices.SortStableFunc(by, func(a, b uint32) int {
		return cmp.Or(cmp.Compare(l.addr[a], l.addr[b]), cmp.Compare(l.end[a], l.end[b]))
	})
	var out lives
	moved = make([]uint32, len(by))
	for to, from := range by {
		out.add(l.at(from))
		moved[from] = uint32(to)
	}
	*l = out
	return moved
}

// write adds the sections of two lists, a's rows first.
func (l *lives) write(w *columnWriter, prefix string, before *lives) {
	putColumn(w, prefix+"start", before.start, l.start)
	putColumn(w, prefix+"end", before.end, l.end)
	putColumn(w, prefix+"freed", before.freed, l.freed)
	putColumn(w, prefix+"size", before.size, l.size)
	putColumn(w, prefix+"addr", before.addr, l.addr)
	putColumn(w, prefix+"stack", before.stack, l.stack)
	putColumn(w, prefix+"segment", before.segment, l.segment)
	putColumn(w, prefix+"stream", before.stream, l.stream)
	putColumn(w, prefix+"category", before.category, l.category)
}

// unknown marks what the trace does not tell until its end is known.
const unknown = math.MaxUint32

// mapped is a piece of memory from the driver that is held now.
type mapped struct {
	addr, size uint64
	id         uint32 // row of segments
}

// fromBefore is set in the numbers of rows of before, whose allocations are older than the trace.
const fromBefore = 1 << 31

// follower turns the trace of one device into lives while it is read.
type follower struct {
	device  int
	w       *columnWriter
	entry   deviceEntry
	chunk   []byte
	times   []int64
	streams map[uint64]uint16
	events  uint32
	// traced are allocations of which the trace has the beginning, before those that were there when it began.
	traced, before lives
	live           map[uint64]uint32 // address to row of traced, or of before with fromBefore set
	// segments and segmentsBefore are the same for segments; held has those that are held now, by address.
	segments, segmentsBefore lives
	held                     *ordered.List[mapped]
}

func newFollower(device int, w *columnWriter) *follower {
	return &follower{device: device, w: w, entry: deviceEntry{Device: device}, streams: map[uint64]uint16{}, live: map[uint64]uint32{},
		held: ordered.New(func(m mapped) uint64 { return m.addr })}
}

// stream returns the index of a stream handle.
func (f *follower) stream(handle uint64) uint16 {
	i, ok := f.streams[handle]
	if !ok {
		if len(f.entry.Streams) >= math.MaxUint16 {
			return math.MaxUint16 - 1
		}
		i = uint16(len(f.entry.Streams))
		f.streams[handle] = i
		f.entry.Streams = append(f.entry.Streams, handle)
	}
	return i
}

// row returns the allocation with a number of live.
func (f *follower) row(id uint32) (*lives, uint32) {
	if id&fromBefore != 0 {
		return &f.before, id &^ fromBefore
	}
	return &f.traced, id
}

// follow takes the next events.
func (f *follower) follow(batch []snapshot.Event) error {
	if uint64(f.events)+uint64(len(batch)) >= fromBefore {
		return fault.New(fault.Unsupported, "device %d has more than %d events; record with max_entries", f.device, fromBefore)
	}
	for i := range batch {
		f.event(&batch[i])
	}
	return f.w.err
}

// event takes the next event.
func (f *follower) event(e *snapshot.Event) {
	stream := f.stream(e.Stream)
	if f.events%timeEvery == 0 {
		f.times = append(f.times, e.TimeUS)
	}
	b := binary.LittleEndian.AppendUint64(f.chunk, e.Addr)
	b = binary.LittleEndian.AppendUint64(b, e.Size)
	b = binary.LittleEndian.AppendUint64(b, uint64(e.TimeUS))
	b = binary.LittleEndian.AppendUint32(b, uint32(e.Stack))
	b = binary.LittleEndian.AppendUint16(b, stream)
	b = binary.LittleEndian.AppendUint16(b, e.Note)
	f.chunk = append(b, byte(e.Action), byte(e.Category))
	if len(f.chunk) == chunkEvents*eventSize {
		f.flush()
	}
	f.events++
	state := f.events // the state after this event
	x := life{start: state, end: unknown, freed: unknown, size: e.Size, addr: e.Addr, stack: uint32(e.Stack), segment: none, stream: stream,
		category: byte(e.Category)}
	switch e.Action {
	case snapshot.ActionAlloc:
		f.alloc(x)
	case snapshot.ActionFreeRequested:
		l, i := f.row(f.owned(x))
		l.freed[i] = min(l.freed[i], state)
	case snapshot.ActionFreeCompleted:
		l, i := f.row(f.owned(x))
		l.freed[i], l.end[i] = min(l.freed[i], state), state
		delete(f.live, e.Addr)
	case snapshot.ActionSegmentAlloc, snapshot.ActionSegmentMap:
		x.category = 0
		if e.Action == snapshot.ActionSegmentMap {
			x.category = 1
		}
		f.release(e.Addr, e.Size, state)
		f.hold(x)
	case snapshot.ActionSegmentFree:
		f.giveBack(x, state)
	case snapshot.ActionSegmentUnmap:
		x.category = 1
		f.giveBack(x, state)
	case snapshot.ActionOOM:
		f.entry.OOMs = append(f.entry.OOMs, int(state-1))
	}
}

// alloc begins an allocation.
func (f *follower) alloc(x life) {
	if id, ok := f.live[x.addr]; ok { // its end is missing
		l, i := f.row(id)
		l.freed[i], l.end[i] = min(l.freed[i], x.start), x.start
	}
	if h := f.held.Value(f.held.Last(x.addr)); h != nil && x.addr-h.addr < h.size {
		x.segment = h.id
	}
	f.live[x.addr] = f.traced.add(x)
}

// owned returns the allocation that a free names; one that the trace does not know was there before.
func (f *follower) owned(x life) uint32 {
	id, ok := f.live[x.addr]
	if !ok {
		x.start = 0
		id = f.before.add(x) | fromBefore
		f.live[x.addr] = id
	}
	return id
}

// hold adds a segment. One that reaches beyond the last address is ignored.
func (f *follower) hold(x life) {
	if x.size > 0 && x.addr+x.size > x.addr {
		f.held.Add(mapped{x.addr, x.size, f.segments.add(x)})
	}
}

// from returns the place of the first held piece that ends after addr.
func (f *follower) from(addr uint64) ordered.At {
	at := f.held.Last(addr)
	if h := f.held.Value(at); h != nil && addr-h.addr < h.size {
		return at
	}
	return f.held.Next(at)
}

// giveBack ends segments in [x.addr, x.addr+x.size). Memory there whose allocation the trace does not have was held before it began.
func (f *follower) giveBack(x life, state uint32) {
	covered := f.release(x.addr, x.size, state)
	at, end := x.addr, x.addr+x.size
	gone := x
	gone.start, gone.end, gone.freed = 0, state, state
	for _, c := range append(covered, [2]uint64{end, end}) {
		if c[0] > at {
			gone.addr, gone.size = at, c[0]-at
			f.segmentsBefore.add(gone)
		}
		at = max(at, c[1])
	}
}

// release ends the held pieces in [addr, addr+size) and returns their ranges. A piece that reaches beyond is cut: the rest begins anew.
func (f *follower) release(addr, size uint64, state uint32) (covered [][2]uint64) {
	end := addr + size
	if end < addr {
		end = math.MaxUint64
	}
	for {
		at := f.from(addr)
		p := f.held.Value(at)
		if p == nil || p.addr >= end {
			return covered
		}
		h := *p
		f.held.Remove(at)
		rest := f.segments.at(h.id)
		f.segments.end[h.id] = state
		rest.start = state
		from, to := max(h.addr, addr), min(h.addr+h.size, end)
		covered = append(covered, [2]uint64{from, to})
		if h.addr < from {
			rest.addr, rest.size = h.addr, from-h.addr
			f.hold(rest)
		}
		if h.addr+h.size > to {
			rest.addr, rest.size = to, h.addr+h.size-to
			f.hold(rest)
		}
	}
}

// flush writes the chunk of events.
func (f *follower) flush() {
	if len(f.chunk) > 0 {
		f.entry.Chunks = append(f.entry.Chunks, [2]int64{f.w.off, int64(len(f.chunk))})
		f.entry.CRCs = append(f.entry.CRCs, crc32.Checksum(f.chunk, castagnoli))
		f.w.write(f.chunk)
		f.chunk = f.chunk[:0]
	}
}

// conclude adds what the snapshot's segments tell beyond the trace and writes the device's columns. segments are the indexes of the
// device's.
func (f *follower) conclude(s *snapshot.Snapshot, segments []uint32) error {
	f.flush()
	states := f.events + 1
	for _, i := range segments {
		f.segment(&s.Segments[i], i, states)
	}
	for _, l := range []*lives{&f.traced, &f.before, &f.segments, &f.segmentsBefore} {
		for i := range l.start {
			l.end[i], l.freed[i] = min(l.end[i], states), min(l.freed[i], states)
		}
	}
	f.before.sortByAddr()
	f.segmentsBefore.sortByAddr()
	shift := uint32(f.segmentsBefore.len())
	for _, l := range []*lives{&f.traced, &f.before} {
		for i, g := range l.segment {
			if g == none {
				l.segment[i] = f.earlier(l.addr[i], l.start[i])
			} else {
				l.segment[i] = g + shift
			}
		}
	}
	p := devicePrefix(f.device)
	f.traced.write(f.w, p+"active.", &f.before)
	f.segments.write(f.w, p+"cached.", &f.segmentsBefore)
	putColumn(f.w, p+"times", f.times)
	f.entry.Events = int(f.events)
	f.w.dir.Devices = append(f.w.dir.Devices, f.entry)
	return f.w.err
}

// segment takes a segment of the snapshot, which is there at the end.
func (f *follower) segment(g *snapshot.Segment, index, states uint32) {
	stream := f.stream(g.Stream)
	row := life{end: states, freed: states, addr: g.Addr, size: g.TotalSize, stack: uint32(g.Stack), segment: index, stream: stream}
	if g.Expandable {
		row.category = 1
	}
	at, end := g.Addr, g.Addr+g.TotalSize
	for place := f.from(at); at < end; place = f.held.Next(place) {
		next := end
		h := f.held.Value(place)
		if h != nil && h.addr < end {
			next = max(h.addr, at)
			f.segments.segment[h.id] = index
		}
		if next > at {
			row.addr, row.size = at, next-at
			f.segmentsBefore.add(row)
		}
		if next == end {
			break
		}
		at = h.addr + h.size
	}
	for i := range g.Blocks {
		b := &g.Blocks[i]
		if _, known := f.live[b.Addr]; known || b.State == snapshot.Inactive {
			continue
		}
		x := life{end: states, freed: states, addr: b.Addr, size: b.Requested, stack: uint32(b.Stack), segment: none, stream: stream}
		if x.size == 0 {
			x.size = b.Size
		}
		if b.State == snapshot.ActivePendingFree {
			x.freed = 0
		}
		f.before.add(x)
	}
}

// mostBefore is how many segments from before the trace can have held an address: one, and a few where entries are missing.
const mostBefore = 64

// earlier returns the segment from before the trace that held an address in a state, or none.
func (f *follower) earlier(addr uint64, state uint32) uint32 {
	b := &f.segmentsBefore
	i := sort.Search(b.len(), func(i int) bool { return b.addr[i] > addr }) - 1
	for last := i - mostBefore; i >= 0 && i > last && addr-b.addr[i] < b.size[i]; i-- {
		if state < b.end[i] {
			return uint32(i)
		}
	}
	return none
}

// maxDevice is the greatest number of a device that is believed.
const maxDevice = 1 << 20

func devicePrefix(device int) string { return "device" + decimal(device) + "." }

// importSnapshot reads a snapshot with read and writes its column file to w.
func importSnapshot(read func(snapshot.ReadOptions) (*snapshot.Snapshot, error), w io.Writer, src source) error {
	c := newColumnWriter(w)
	c.dir.Source = src
	followers := map[int]*follower{}
	follow := func(device int) *follower {
		f := followers[device]
		if f == nil {
			f = newFollower(device, c)
			followers[device] = f
		}
		return f
	}
	p := newPipe(func(device int, batch []snapshot.Event) error { return follow(device).follow(batch) })
	s, err := read(snapshot.ReadOptions{Events: p.put})
	if e := p.close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	for d, trace := range s.Traces { // of a reader that gave them whole
		if len(trace) > 0 {
			if err := follow(d).follow(trace); err != nil {
				return err
			}
		}
	}
	segments := map[int][]uint32{}
	for i, g := range s.Segments {
		if g.Device < 0 || g.Device > maxDevice {
			return fault.New(fault.Invalid, "a segment belongs to device %d, which cannot be", g.Device)
		}
		follow(g.Device)
		segments[g.Device] = append(segments[g.Device], uint32(i))
	}
	for _, t := range s.Trees {
		follow(t.Device)
	}
	for _, d := range slices.Sorted(maps.Keys(followers)) {
		if err := followers[d].conclude(s, segments[d]); err != nil {
			return err
		}
	}
	writeRest(c, s)
	return c.finish()
}

// pipe hands batches of events to a goroutine, so that the columns are made while the snapshot is being read on: together they take half
// the time.
type pipe struct {
	full  chan batch
	empty chan []snapshot.Event
	done  chan struct{}
	// failed is the error that ended the goroutine's work; later batches are dropped.
	failed atomic.Pointer[error]
}

// batch is some events of a device's trace, in order.
type batch struct {
	device int
	events []snapshot.Event
}

func newPipe(work func(device int, events []snapshot.Event) error) *pipe {
	const depth = 8
	p := &pipe{full: make(chan batch, depth), empty: make(chan []snapshot.Event, depth+1), done: make(chan struct{})}
	for range depth + 1 {
		p.empty <- nil
	}
	go func() {
		defer close(p.done)
		for b := range p.full {
			if p.failed.Load() == nil {
				if err := work(b.device, b.events); err != nil {
					p.failed.Store(&err)
				}
			}
			p.empty <- b.events[:0]
		}
	}()
	return p
}

// put hands over a copy of the events. It returns the error of earlier ones.
func (p *pipe) put(device int, events []snapshot.Event) error {
	if err := p.failed.Load(); err != nil {
		return *err
	}
	p.full <- batch{device, append(<-p.empty, events...)}
	return nil
}

// close waits until all work is done and returns its error.
func (p *pipe) close() error {
	close(p.full)
	<-p.done
	if err := p.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// segmentFields is the number of columns of a segment, blockFields of a block.
const (
	segmentFields = 12
	blockFields   = 4
)

// writeRest writes what belongs to no device's trace: segments, blocks, stacks and the settings.
func writeRest(c *columnWriter, s *snapshot.Snapshot) {
	var segs, blocks []uint64
	for i := range s.Segments {
		g := &s.Segments[i]
		flags := uint64(0)
		if g.Type == "small" {
			flags |= 1
		}
		if g.Expandable {
			flags |= 2
		}
		segs = append(segs, uint64(g.Device), g.Addr, g.TotalSize, g.Allocated, g.Active, g.Requested, g.Stream,
			g.Pool[0], g.Pool[1], flags,
			uint64(g.Stack), uint64(len(g.Blocks)))
		for j := range g.Blocks {
			b := &g.Blocks[j]
			blocks = append(blocks, b.Addr, b.Size, b.Requested, uint64(b.State)|uint64(b.Stack)<<8)
		}
	}
	putColumn(c, "segments", segs)
	putColumn(c, "blocks", blocks)
	var text []byte
	c.section("frames", func(yield func([]byte)) {
		for i := range s.Stacks.FrameCount() {
			f := s.Stacks.Frame(snapshot.FrameID(i))
			text = binary.AppendUvarint(text[:0], uint64(len(f.File)))
			text = append(text, f.File...)
			text = binary.AppendVarint(text, int64(f.Line))
			text = binary.AppendUvarint(text, uint64(len(f.Name)))
			yield(append(text, f.Name...))
		}
	})
	lengths := make([]uint32, 0, s.Stacks.Len())
	var calls []uint32
	for i := 1; i < s.Stacks.Len(); i++ {
		ids := s.Stacks.Calls(snapshot.StackID(i))
		lengths = append(lengths, uint32(len(ids)))
		for _, id := range ids {
			calls = append(calls, uint32(id))
		}
	}
	putColumn(c, "stack_lengths", lengths)
	putColumn(c, "calls", calls)
	c.dir.Settings, c.dir.Notes, c.dir.Annotations, c.dir.Trees = shownSettings(s.Settings), s.Notes, s.Annotations, s.Trees
}

// shownSettings are settings as JSON can have them, which has no number that is not finite: such a one is its name.
func shownSettings(m map[string]any) map[string]any {
	if m == nil {
		return nil
	}
	out := make(map[string]any, len(m))
	for k, v := range m {
		switch v := v.(type) {
		case map[string]any:
			out[k] = shownSettings(v)
		case float64:
			out[k] = v
			if math.IsNaN(v) || math.IsInf(v, 0) {
				out[k] = strconv.FormatFloat(v, 'g', -1, 64)
			}
		default:
			out[k] = v
		}
	}
	return out
}
