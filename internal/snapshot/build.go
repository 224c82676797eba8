package snapshot

import (
	"math"

	"tenon.dev/fault"
	"tenon.dev/internal/pickle"
)

// builder makes a snapshot of a pickle's values while they are read. Frames, stacks, blocks, segments and events are taken out of the
// pickle as each is complete, so that what is held is what the snapshot needs, not Python's dicts.
type builder struct {
	o       ReadOptions
	s       *Snapshot
	words   []word // by the pickle's string number
	blocks  []Block
	batch   []Event
	device  int // of batch
	devices int // seen
	calls   []FrameID
	notes   map[Note]uint16
	// last is the note that the last event had, under the string numbers it came from.
	last struct {
		context, user pickle.Ref
		note          uint16
	}
	stopped error // what ReadOptions.Events returned
}

// batchSize is how many events ReadOptions.Events is given at once.
const batchSize = 4096

func newBuilder(o ReadOptions) *builder {
	b := &builder{o: o, s: &Snapshot{Stacks: &Stacks{}, Notes: make([]Note, 1)}, notes: map[Note]uint16{{}: 0}}
	b.batch = make([]Event, 0, batchSize)
	return b
}

// Take replaces a value by an index. Its low bits are one of these tags, which say what kind of thing it is the index of.
const (
	tagFrame = iota
	tagStack
	tagBlock
	tagSegment
	tagBits = 2
)

func taken(tag, index uint64) pickle.Taken {
	return pickle.Taken{Verdict: pickle.Replace, Value: index<<tagBits | tag}
}

// index returns the index of a value that was taken with the tag.
func index(r pickle.Ref, tag uint64) (uint64, bool) {
	v, ok := r.Taken()
	return v >> tagBits, ok && v&(1<<tagBits-1) == tag
}

// word is what a string of the pickle means as a key and as a value.
type word struct {
	field    field
	action   uint8 // one more than the Action; 0 for no action's name
	state    uint8 // likewise
	category uint8 // likewise
}

// field is a key that the layout knows.
type field uint8

const (
	fieldOther field = iota + 1 // 0 is: not looked up yet
	fieldAction
	fieldAddr
	fieldDeviceFree
	fieldSize
	fieldStream
	fieldTime
	fieldFrames
	fieldContext
	fieldUser
	fieldCategory
	fieldFile
	fieldLine
	fieldName
	fieldAddress
	fieldRequested
	fieldState
	fieldDevice
	fieldTotal
	fieldAllocated
	fieldActive
	fieldType
	fieldPool
	fieldExpandable
	fieldBlocks
)

var fields = map[string]field{"action": fieldAction, "addr": fieldAddr, "device_free": fieldDeviceFree, "size": fieldSize,
	"stream": fieldStream, "time_us": fieldTime, "frames": fieldFrames, "compile_context": fieldContext, "user_metadata": fieldUser,
	"category": fieldCategory, "filename": fieldFile, "line": fieldLine, "name": fieldName, "address": fieldAddress,
	"requested_size": fieldRequested, "state": fieldState, "device": fieldDevice, "total_size": fieldTotal,
	"allocated_size": fieldAllocated, "active_size": fieldActive, "segment_type": fieldType, "segment_pool_id": fieldPool,
	"is_expandable": fieldExpandable, "blocks": fieldBlocks}

// word returns the meaning of a string; other values have none.
func (b *builder) word(d *pickle.Data, r pickle.Ref) word {
	id, ok := r.StringID()
	if !ok {
		return word{field: fieldOther}
	}
	if id < len(b.words) && b.words[id].field != 0 {
		return b.words[id]
	}
	for id >= len(b.words) {
		b.words = append(b.words, word{})
	}
	s, _ := d.Str(r)
	w := word{field: fieldOther, action: place(actionNames[:], s), state: place(stateNames[:], s), category: place(categoryNames[:], s)}
	if s == "active_awaiting_free" { // PyTorch's documentation calls the state so
		w.state = uint8(ActivePendingFree) + 1
	}
	if f, ok := fields[s]; ok {
		w.field = f
	}
	b.words[id] = w
	return w
}

// place returns one more than the index of s in names, or 0.
func place(names []string, s string) uint8 {
	for i, n := range names {
		if n == s {
			return uint8(i + 1)
		}
	}
	return 0
}

// take is the pickle's Options.Take.
func (b *builder) take(d *pickle.Data, k pickle.Kind, items []pickle.Ref) (pickle.Taken, error) {
	if k == pickle.KindList {
		return b.takeStack(d, items)
	}
	for i := 0; i < len(items); i += 2 {
		switch b.word(d, items[i]).field {
		case fieldAction:
			return b.takeEvent(d, items)
		case fieldFile:
			return b.takeFrame(d, items)
		case fieldState:
			return b.takeBlock(d, items)
		case fieldBlocks:
			return b.takeSegment(d, items)
		}
	}
	return pickle.Taken{}, nil
}

// maxCalls is how many calls of a stack are kept, the innermost ones: a call is 2 bytes in a file, and each that shows it shows all.
const maxCalls = 1 << 14

// takeStack takes a list of frames; an empty list counts as one.
func (b *builder) takeStack(d *pickle.Data, items []pickle.Ref) (pickle.Taken, error) {
	b.calls = b.calls[:0]
	for _, r := range items {
		f, ok := index(r, tagFrame)
		if !ok {
			return pickle.Taken{}, nil
		}
		b.calls = append(b.calls, FrameID(f))
	}
	b.calls = b.calls[:min(len(b.calls), maxCalls)]
	n := b.s.Stacks.Len()
	id := b.s.Stacks.AddCalls(b.calls)
	if b.s.Stacks.Len() > n {
		if err := d.Charge(16*len(b.calls) + 128); err != nil {
			return pickle.Taken{}, err
		}
	}
	return taken(tagStack, uint64(id)), nil
}

func (b *builder) takeFrame(d *pickle.Data, items []pickle.Ref) (pickle.Taken, error) {
	var f Frame
	var err error
	for i := 0; i < len(items); i += 2 {
		v := items[i+1]
		switch b.word(d, items[i]).field {
		case fieldFile:
			f.File, err = text(d, v, "a frame's filename")
		case fieldName:
			f.Name, err = text(d, v, "a frame's name")
		case fieldLine:
			n, ok := d.Int(v)
			if !ok || n < math.MinInt32 || n > math.MaxInt32 {
				err = wrong(v, "a frame's line")
			}
			f.Line = int(n)
		}
		if err != nil {
			return pickle.Taken{}, err
		}
	}
	n := b.s.Stacks.FrameCount()
	id := b.s.Stacks.AddFrame(f)
	if b.s.Stacks.FrameCount() > n {
		err = d.Charge(256)
	}
	return taken(tagFrame, uint64(id)), err
}

func (b *builder) takeEvent(d *pickle.Data, items []pickle.Ref) (pickle.Taken, error) {
	var e Event
	var context, user pickle.Ref
	ok := true
	for i := 0; i < len(items) && ok; i += 2 {
		v := items[i+1]
		switch f := b.word(d, items[i]).field; f {
		case fieldAction:
			a := b.word(d, v).action
			if a == 0 {
				s, _ := d.Str(v)
				return pickle.Taken{}, fault.New(fault.Invalid, "a trace entry's action is %q, which is not known", s)
			}
			e.Action = Action(a - 1)
		case fieldAddr, fieldDeviceFree:
			e.Addr, ok = d.Uint(v)
		case fieldSize:
			e.Size, ok = d.Uint(v)
		case fieldStream:
			e.Stream, ok = handle(d, v)
		case fieldTime:
			e.TimeUS, ok = d.Int(v)
		case fieldFrames:
			e.Stack, ok = stack(v)
		case fieldContext:
			context = v
		case fieldUser:
			user = v
		case fieldCategory:
			if v.Kind() == pickle.KindString {
				e.Category = CategoryUnknown
				if c := b.word(d, v).category; c > 0 {
					e.Category = Category(c - 1)
				}
			}
		}
		if !ok {
			name, _ := d.Str(items[i])
			return pickle.Taken{}, wrong(v, "a trace entry's "+name)
		}
	}
	if context != b.last.context || user != b.last.user {
		if err := b.note(d, context, user); err != nil {
			return pickle.Taken{}, err
		}
	}
	e.Note = b.last.note
	if device := deviceOf(d); device != b.device || len(b.batch) == batchSize {
		if err := b.flush(d); err != nil {
			return pickle.Taken{}, err
		}
		b.device = device
		b.devices = max(b.devices, device+1)
	}
	b.batch = append(b.batch, e)
	return pickle.Taken{Verdict: pickle.Drop}, nil
}

// note finds the number of an event's note. Beyond 65,535 different ones events have none.
func (b *builder) note(d *pickle.Data, context, user pickle.Ref) error {
	var n Note
	n.CompileContext, _ = d.Str(context)
	n.UserMetadata, _ = d.Str(user)
	id, ok := b.notes[n]
	if !ok && len(b.s.Notes) <= math.MaxUint16 {
		if err := d.Charge(256); err != nil {
			return err
		}
		id = uint16(len(b.s.Notes))
		b.notes[n] = id
		b.s.Notes = append(b.s.Notes, n)
	}
	b.last.context, b.last.user, b.last.note = context, user, id
	return nil
}

// deviceOf returns the index, in the list of traces, of the trace that the value on offer goes to. Events have only events beside them, so
// a list right beneath one is its trace; otherwise that is beneath the last mark.
func deviceOf(d *pickle.Data) int {
	values, marks, at := d.Stack()
	floor := 0
	under := func(at int) int {
		for len(marks) > 0 && marks[len(marks)-1] > at {
			marks = marks[:len(marks)-1]
		}
		floor = 0
		if len(marks) > 0 {
			floor = marks[len(marks)-1]
		}
		return floor - 1
	}
	list := func(i int) bool { return i >= 0 && values[i].Kind() == pickle.KindList }
	trace := under(at)
	if at-1 >= floor && list(at-1) {
		trace = at - 1
	}
	if !list(trace) {
		return 0
	}
	if outer := under(trace); list(outer) {
		return len(d.Items(values[outer])) + trace - floor
	}
	if list(trace - 1) {
		return len(d.Items(values[trace-1]))
	}
	return 0
}

// maxDevices bounds the number of traces.
const maxDevices = 1 << 12

// flush hands the gathered events on.
func (b *builder) flush(d *pickle.Data) error {
	if len(b.batch) == 0 {
		return nil
	}
	if b.device >= maxDevices {
		return fault.New(fault.Invalid, "the file has traces of more than %d devices", maxDevices)
	}
	if b.o.Events != nil {
		if err := b.o.Events(b.device, b.batch); err != nil {
			b.stopped = err
			return err
		}
	} else {
		if err := d.Charge(64 * len(b.batch)); err != nil {
			return err
		}
		for b.device >= len(b.s.Traces) {
			b.s.Traces = append(b.s.Traces, nil)
		}
		b.s.Traces[b.device] = append(b.s.Traces[b.device], b.batch...)
	}
	b.batch = b.batch[:0]
	return nil
}

func (b *builder) takeBlock(d *pickle.Data, items []pickle.Ref) (pickle.Taken, error) {
	var k Block
	addressed, ok := false, true
	for i := 0; i < len(items); i += 2 {
		v := items[i+1]
		switch b.word(d, items[i]).field {
		case fieldAddress, fieldAddr:
			addressed = true
			k.Addr, ok = d.Uint(v)
		case fieldSize:
			k.Size, ok = d.Uint(v)
		case fieldRequested:
			k.Requested, ok = d.Uint(v)
		case fieldFrames:
			k.Stack, ok = stack(v)
		case fieldState:
			state := b.word(d, v).state
			if state == 0 {
				s, _ := d.Str(v)
				return pickle.Taken{}, fault.New(fault.Invalid, "a block's state is %q, which is not known", s)
			}
			k.State = BlockState(state - 1)
		}
		if !ok {
			name, _ := d.Str(items[i])
			return pickle.Taken{}, wrong(v, "a block's "+name)
		}
	}
	if !addressed {
		k.Addr = noAddress
	}
	if err := d.Charge(96); err != nil {
		return pickle.Taken{}, err
	}
	b.blocks = append(b.blocks, k)
	return taken(tagBlock, uint64(len(b.blocks)-1)), nil
}

// noAddress marks blocks of old files, which have no addresses: a block begins where the one before it ends.
const noAddress = math.MaxUint64

func (b *builder) takeSegment(d *pickle.Data, items []pickle.Ref) (pickle.Taken, error) {
	var g Segment
	ok := true
	for i := 0; i < len(items); i += 2 {
		v := items[i+1]
		switch b.word(d, items[i]).field {
		case fieldDevice:
			var n int64
			n, ok = d.Int(v)
			ok = ok && n >= -1 && n < maxDevices
			g.Device = int(n)
		case fieldAddress, fieldAddr:
			g.Addr, ok = d.Uint(v)
		case fieldTotal:
			g.TotalSize, ok = d.Uint(v)
		case fieldAllocated:
			g.Allocated, ok = d.Uint(v)
		case fieldActive:
			g.Active, ok = d.Uint(v)
		case fieldRequested:
			g.Requested, ok = d.Uint(v)
		case fieldStream:
			g.Stream, ok = handle(d, v)
		case fieldType:
			g.Type, ok = d.Str(v)
		case fieldPool:
			ok = b.pool(d, v, &g)
		case fieldExpandable:
			g.Expandable, ok = d.Bool(v)
		case fieldFrames:
			g.Stack, ok = stack(v)
		case fieldBlocks:
			ok = b.blocksOf(d, v, &g)
		}
		if !ok {
			name, _ := d.Str(items[i])
			return pickle.Taken{}, wrong(v, "a segment's "+name)
		}
	}
	next := g.Addr
	for i := range g.Blocks {
		if g.Blocks[i].Addr == noAddress {
			g.Blocks[i].Addr = next
		}
		next = g.Blocks[i].Addr + g.Blocks[i].Size
	}
	if err := d.Charge(320 + 40*len(g.Blocks)); err != nil {
		return pickle.Taken{}, err
	}
	b.s.Segments = append(b.s.Segments, g)
	return taken(tagSegment, uint64(len(b.s.Segments)-1)), nil
}

func (b *builder) pool(d *pickle.Data, v pickle.Ref, g *Segment) bool {
	pair := d.Items(v)
	if len(pair) != 2 {
		return false
	}
	var ok1, ok2 bool
	g.Pool[0], ok1 = d.Uint(pair[0])
	g.Pool[1], ok2 = d.Uint(pair[1])
	return ok1 && ok2
}

// blocksOf copies the blocks of a segment.
func (b *builder) blocksOf(d *pickle.Data, v pickle.Ref, g *Segment) bool {
	if _, none := index(v, tagStack); none {
		return true // an empty list
	}
	if v.Kind() != pickle.KindList {
		return false
	}
	for _, r := range d.Items(v) {
		i, ok := index(r, tagBlock)
		if !ok {
			return false
		}
		g.Blocks = append(g.Blocks, b.blocks[i])
	}
	return true
}

// stack returns the stack that a value is: a list of frames, or None.
func stack(v pickle.Ref) (StackID, bool) {
	if v.Kind() == pickle.KindNone {
		return 0, true
	}
	id, ok := index(v, tagStack)
	return StackID(id), ok
}

// handle returns a stream's handle, which some writers give a sign.
func handle(d *pickle.Data, v pickle.Ref) (uint64, bool) {
	if n, ok := d.Uint(v); ok {
		return n, true
	}
	n, ok := d.Int(v)
	return uint64(n), ok
}

func text(d *pickle.Data, v pickle.Ref, what string) (string, error) {
	s, ok := d.Str(v)
	if !ok && v.Kind() != pickle.KindNone {
		return "", wrong(v, what)
	}
	return s, nil
}

// wrong is the error of a value that cannot be what it should be.
func wrong(v pickle.Ref, what string) error {
	return fault.New(fault.Invalid, "%s is of type %v, which it cannot be", what, v.Kind())
}
