package memviz

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
	"sync"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

func decimal(n int) string { return strconv.Itoa(n) }

// Recording is a snapshot opened for viewing. It is safe for concurrent use.
type Recording struct {
	name     string
	file     io.ReaderAt
	close    func() error
	columns  *columnReader
	devices  []*device // by number
	stacks   *snapshot.Stacks
	segments []snapshot.Segment
	settings map[string]any
	notes    []snapshot.Note
	trees    []snapshot.Tree
	text     stackText

	mu      sync.Mutex
	chunks  []chunk     // most recently used first
	filters []*filtered // likewise
}

// device is what a recording holds of one.
type device struct {
	index          int
	entry          deviceEntry
	active, cached lives
	activeLine     *timeline
	cachedLine     *timeline
	times          []int64
	pools          []string // the first is the unknown one
	pool           []uint8  // by number of segment
	marks          []Mark
	categorised    bool // some allocation has a category
}

// chunk is a piece of a device's trace in memory.
type chunk struct {
	device, index int
	data          []byte
}

// keptChunks is how many chunks stay in memory: 32 MiB.
const keptChunks = 16

// load reads a column file.
func load(name string, r io.ReaderAt, size int64) (*Recording, error) {
	c, err := newColumnReader(r, size)
	if err != nil {
		return nil, err
	}
	rec := &Recording{name: name, file: r, columns: c, settings: c.dir.Settings, notes: c.dir.Notes, trees: c.dir.Trees,
		close: func() error { return nil }}
	if err := snapshot.CheckTrees(rec.trees); err != nil {
		return nil, err
	}
	if err := rec.loadStacks(c); err != nil {
		return nil, err
	}
	if err := rec.loadSegments(c); err != nil {
		return nil, err
	}
	for _, e := range c.dir.Devices {
		d, err := rec.loadDevice(c, e)
		if err != nil {
			return nil, err
		}
		rec.devices = append(rec.devices, d)
	}
	c.buf = nil
	for _, d := range rec.devices {
		d.marks = rec.placeMarks(d, c.dir.Annotations)
	}
	rec.text = stackText{rec.stacks}
	return rec, nil
}

// loadStacks reads frames and stacks.
func (rec *Recording) loadStacks(c *columnReader) error {
	text, err := getColumn[uint8](c, "frames")
	if err != nil {
		return err
	}
	rec.stacks = &snapshot.Stacks{}
	word := func() (string, bool) {
		n, k := binary.Uvarint(text)
		if k <= 0 || n > uint64(len(text)-k) {
			return "", false
		}
		s := string(text[k : k+int(n)])
		text = text[k+int(n):]
		return s, true
	}
	for n := 0; len(text) > 0; n++ {
		file, ok1 := word()
		line, k := binary.Varint(text)
		text = text[max(k, 0):]
		name, ok2 := word()
		if !ok1 || !ok2 || k <= 0 {
			return damaged("frames do not parse")
		}
		if rec.stacks.AddFrame(snapshot.Frame{File: file, Line: int(line), Name: name}) != snapshot.FrameID(n) {
			return damaged("a frame is there twice")
		}
	}
	lengths, err := getColumn[uint32](c, "stack_lengths")
	if err != nil {
		return err
	}
	calls, err := getColumn[uint32](c, "calls")
	if err != nil {
		return err
	}
	var ids []snapshot.FrameID
	for i, n := range lengths {
		if uint64(n) > uint64(len(calls)) {
			return damaged("stacks are cut")
		}
		ids = ids[:0]
		for _, id := range calls[:n] {
			if int(id) >= rec.stacks.FrameCount() {
				return damaged("a stack names a frame that is not there")
			}
			ids = append(ids, snapshot.FrameID(id))
		}
		calls = calls[n:]
		if rec.stacks.AddCalls(ids) != snapshot.StackID(i+1) {
			return damaged("a stack is there twice")
		}
	}
	return nil
}

// loadSegments reads the segments and blocks of the snapshot.
func (rec *Recording) loadSegments(c *columnReader) error {
	segs, err := getColumn[uint64](c, "segments")
	if err != nil {
		return err
	}
	blocks, err := getColumn[uint64](c, "blocks")
	if err != nil {
		return err
	}
	if len(segs)%segmentFields != 0 || len(blocks)%blockFields != 0 {
		return damaged("segments have a wrong length")
	}
	stacks := uint64(rec.stacks.Len())
	for v := range slices.Chunk(segs, segmentFields) {
		g := snapshot.Segment{Device: int(v[0]), Addr: v[1], TotalSize: v[2], Allocated: v[3], Active: v[4], Requested: v[5], Stream: v[6],
			Pool: [2]uint64{v[7], v[8]}, Type: "large", Expandable: v[9]&2 != 0, Stack: snapshot.StackID(v[10])}
		if v[9]&1 != 0 {
			g.Type = "small"
		}
		if v[10] >= stacks || v[11] > uint64(len(blocks)/blockFields) || v[0] > maxDevice {
			return damaged("a segment names what is not there")
		}
		for b := range slices.Chunk(blocks[:v[11]*blockFields], blockFields) {
			if b[3]>>8 >= stacks {
				return damaged("a block names a stack that is not there")
			}
			g.Blocks = append(g.Blocks, snapshot.Block{Addr: b[0], Size: b[1], Requested: b[2], State: snapshot.BlockState(b[3]),
				Stack: snapshot.StackID(b[3] >> 8)})
		}
		blocks = blocks[v[11]*blockFields:]
		rec.segments = append(rec.segments, g)
	}
	return nil
}

// read fills l from the sections of a prefix.
func (l *lives) read(c *columnReader, prefix string) (err error) {
	column(c, &err, &l.start, prefix+"start")
	column(c, &err, &l.end, prefix+"end")
	column(c, &err, &l.freed, prefix+"freed")
	column(c, &err, &l.size, prefix+"size")
	column(c, &err, &l.addr, prefix+"addr")
	column(c, &err, &l.stack, prefix+"stack")
	column(c, &err, &l.segment, prefix+"segment")
	column(c, &err, &l.stream, prefix+"stream")
	column(c, &err, &l.category, prefix+"category")
	if err != nil {
		return err
	}
	for _, n := range []int{len(l.end), len(l.freed), len(l.size), len(l.addr), len(l.stack), len(l.segment), len(l.stream),
		len(l.category)} {
		if n != len(l.start) {
			return damaged(prefix + " columns differ in length")
		}
	}
	return nil
}

// column is getColumn unless an error came before.
func column[T number](c *columnReader, err *error, to *[]T, name string) {
	if *err == nil {
		*to, *err = getColumn[T](c, name)
	}
}

// check reports what the rows may not be. segments bounds the column segment.
func (l *lives) check(states, stacks, streams, segments int) error {
	var before uint32
	for i, s := range l.start {
		e := l.end[i]
		switch {
		case s < before || s >= e || int64(e) > int64(states):
			return damaged("a life has no order")
		case int(l.stack[i]) >= stacks || int(l.stream[i]) >= streams || int(l.segment[i]) >= segments && l.segment[i] != none:
			return damaged("a life names what is not there")
		}
		before = s
	}
	return nil
}

// loadDevice reads the columns of one device and indexes them.
func (rec *Recording) loadDevice(c *columnReader, e deviceEntry) (*device, error) {
	d := &device{index: e.Device, entry: e}
	p := devicePrefix(e.Device)
	if err := d.active.read(c, p+"active."); err != nil {
		return nil, err
	}
	if err := d.cached.read(c, p+"cached."); err != nil {
		return nil, err
	}
	var err error
	if d.times, err = getColumn[int64](c, p+"times"); err != nil {
		return nil, err
	}
	if e.Events < 0 || e.Events >= fromBefore || len(d.times) != (e.Events+timeEvery-1)/timeEvery ||
		len(e.Chunks) != (e.Events+chunkEvents-1)/chunkEvents || len(e.CRCs) != len(e.Chunks) {
		return nil, damaged("the number of events is wrong")
	}
	states, stacks := e.Events+1, rec.stacks.Len()
	if err := d.active.check(states, stacks, len(e.Streams), d.cached.len()); err != nil {
		return nil, err
	}
	if err := d.cached.check(states, stacks, len(e.Streams), len(rec.segments)); err != nil {
		return nil, err
	}
	for _, o := range e.OOMs {
		if o < 0 || o >= e.Events {
			return nil, damaged("a failed allocation is not in the trace")
		}
	}
	rec.findPools(d)
	d.categorised = slices.ContainsFunc(d.active.category, func(c uint8) bool { return c != 0 })
	d.activeLine = newTimeline(states, d.active.start, d.active.end, d.active.size, nil)
	d.cachedLine = newTimeline(states, d.cached.start, d.cached.end, d.cached.size, nil)
	return d, nil
}

// findPools names the pools of a device and says which segment belongs to which. Only segments of the snapshot tell.
func (rec *Recording) findPools(d *device) {
	d.pools = []string{""}
	index := map[[2]uint64]uint8{}
	d.pool = make([]uint8, d.cached.len())
	for i, g := range d.cached.segment {
		if g == none {
			continue
		}
		id := rec.segments[g].Pool
		k, ok := index[id]
		if !ok {
			if len(d.pools) > 255 {
				continue
			}
			k = uint8(len(d.pools))
			index[id] = k
			d.pools = append(d.pools, poolText(id))
		}
		d.pool[i] = k
	}
}

// poolOf returns the index of the pool of an allocation, 0 if unknown.
func (d *device) poolOf(id uint32) uint8 {
	if g := d.active.segment[id]; g != none {
		return d.pool[g]
	}
	return 0
}

// usable returns why the recording cannot be used, or nil.
func (rec *Recording) usable() error {
	if rec == nil || rec.stacks == nil {
		return fault.New(fault.Invalid, "the recording is nil or a zero value; use one that Open or Import returned")
	}
	return nil
}

// device returns the one with a number.
func (rec *Recording) device(n int) (*device, error) {
	if err := rec.usable(); err != nil {
		return nil, err
	}
	for _, d := range rec.devices {
		if d.index == n {
			return d, nil
		}
	}
	numbers := make([]int, len(rec.devices))
	for i, d := range rec.devices {
		numbers[i] = d.index
	}
	return nil, fault.New(fault.Invalid, "%s has no device %d; it has devices %v", rec.name, n, numbers)
}

// chunk returns the bytes of a chunk of a device's trace.
func (rec *Recording) chunk(d *device, index int) ([]byte, error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	for i, c := range rec.chunks {
		if c.device == d.index && c.index == index {
			copy(rec.chunks[1:i+1], rec.chunks[:i])
			rec.chunks[0] = c
			return c.data, nil
		}
	}
	at := d.entry.Chunks[index]
	want := min(chunkEvents, d.entry.Events-index*chunkEvents) * eventSize
	if at[1] != int64(want) || at[0] < 0 || at[0] > rec.columns.size {
		return nil, damaged("a chunk of events has a wrong length")
	}
	b := make([]byte, want)
	if _, err := rec.file.ReadAt(b, at[0]); err != nil {
		return nil, fault.Wrap(fault.System, err, "reading the column file")
	}
	if crc32.Checksum(b, castagnoli) != d.entry.CRCs[index] {
		return nil, damaged("the checksum of a chunk of events differs")
	}
	if len(rec.chunks) < keptChunks {
		rec.chunks = append(rec.chunks, chunk{})
	}
	copy(rec.chunks[1:], rec.chunks)
	rec.chunks[0] = chunk{d.index, index, b}
	return b, nil
}

// traceEvent is an entry of the trace with the device's numbering of streams.
type traceEvent struct {
	snapshot.Event
	stream uint16
}

// event returns an entry of a device's trace.
func (rec *Recording) event(d *device, index int) (traceEvent, error) {
	b, err := rec.chunk(d, index/chunkEvents)
	if err != nil {
		return traceEvent{}, err
	}
	b = b[index%chunkEvents*eventSize:]
	le := binary.LittleEndian
	e := traceEvent{stream: le.Uint16(b[28:])}
	e.Addr, e.Size, e.TimeUS = le.Uint64(b), le.Uint64(b[8:]), int64(le.Uint64(b[16:]))
	e.Stack, e.Note, e.Action, e.Category = snapshot.StackID(le.Uint32(b[24:])), le.Uint16(b[30:]), snapshot.Action(b[32]),
		snapshot.Category(b[33])
	if int(e.Stack) >= rec.stacks.Len() || int(e.stream) >= len(d.entry.Streams) {
		return traceEvent{}, damaged("an event names what is not there")
	}
	e.Stream = d.entry.Streams[e.stream]
	return e, nil
}

// timeOf returns the time of the event that led to a state; that of the first event for state 0.
func (rec *Recording) timeOf(d *device, state int) int64 {
	i := max(state-1, 0)
	if i >= d.entry.Events {
		return 0
	}
	if i%timeEvery == 0 {
		return d.times[i/timeEvery]
	}
	e, err := rec.event(d, i)
	if err != nil {
		return d.times[i/timeEvery] // near enough for a label; whoever asks for the event itself gets the error
	}
	return e.TimeUS
}

// coarseTime is timeOf to within timeEvery events, without reading the file.
func (d *device) coarseTime(state int) int64 {
	i := max(state-1, 0)
	if i/timeEvery >= len(d.times) {
		return 0
	}
	return d.times[i/timeEvery]
}

// stateAt returns the first state whose event is not before a time.
func (rec *Recording) stateAt(d *device, us int64) int {
	lo, _ := slices.BinarySearch(d.times, us)
	i := max(lo-1, 0) * timeEvery
	for i < d.entry.Events && i < lo*timeEvery && rec.timeOf(d, i+1) < us {
		i++
	}
	return min(i+1, d.entry.Events)
}

// keptMarks is the most marks of a device.
const keptMarks = 10000

// placeMarks pairs the annotations that concern a device and finds their states.
func (rec *Recording) placeMarks(d *device, notes []snapshot.Annotation) []Mark {
	marks := []Mark{}
	open := map[string][]int{}
	for _, a := range notes {
		if a.Device != d.index {
			continue
		}
		switch o := open[a.Name]; {
		case a.Stage == "START" && len(marks) < keptMarks:
			open[a.Name] = append(o, len(marks))
			marks = append(marks, Mark{Name: a.Name, Start: rec.stateAt(d, a.TimeUS), End: d.entry.Events + 1})
		case a.Stage == "END" && len(o) > 0:
			m := &marks[o[len(o)-1]]
			m.End = max(m.Start, rec.stateAt(d, a.TimeUS))
			open[a.Name] = o[:len(o)-1]
		}
	}
	return marks
}

// Close closes the file.
func (rec *Recording) Close() error {
	if err := rec.usable(); err != nil {
		return err
	}
	return rec.close()
}
