package alloc

import (
	"sync/atomic"
	"time"

	"tenon.dev/fault"
)

// Action is what a TraceEntry records. Its text forms are PyTorch's.
type Action uint8

// The actions of a trace.
const (
	ActionAlloc         Action = iota // a block was handed out; Size is the requested size
	ActionFreeRequested               // the owner freed it
	ActionFreeCompleted               // no stream uses it any more: it is in the free list
	ActionSegmentAlloc                // the device allocated a segment
	ActionSegmentFree                 // a segment was returned to the device
	ActionSegmentMap                  // pages of an expandable segment were mapped
	ActionSegmentUnmap                // pages of an expandable segment were unmapped
	ActionSnapshot                    // a snapshot was taken; Size is the active bytes
	ActionOOM                         // an allocation failed; Addr is the device's free memory
)

var actionNames = [...]string{"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
	"segment_unmap", "snapshot", "oom"}

// String returns PyTorch's name of the action, such as "segment_alloc".
func (a Action) String() string { return actionNames[a] }

// TraceEntry is one event of a device's history.
type TraceEntry struct {
	Action  Action
	Addr    uint64 // device address; for ActionOOM the device's free bytes
	Size    uint64 // bytes
	Stream  Stream
	Time    int64 // microseconds since 1970
	Context any   // what the context collector returned; nil if the context level stores none
}

// Level says how much context is gathered. Higher levels include lower ones.
type Level uint8

// The levels of context.
const (
	LevelNever Level = iota // none
	LevelState              // at allocation, kept on blocks, for snapshots
	LevelAlloc              // and stored in trace entries; those of frees repeat the allocation's
	LevelAll                // and gathered again at free and EmptyCache
)

// HistoryEnabled says what RecordHistory switches on.
type HistoryEnabled uint8

// The states of history recording.
const (
	HistoryOff   HistoryEnabled = iota // nothing is recorded, and the trace is cleared
	HistoryState                       // blocks keep contexts; the trace holds one entry
	HistoryAll                         // the trace holds MaxEntries
)

// History are the arguments of RecordHistory.
type History struct {
	Enabled    HistoryEnabled
	Context    Level
	MaxEntries int        // 0: unlimited
	Collect    func() any // gathers the caller's context; called without the allocator's lock. Needed if Context is above LevelNever
}

// ParseHistory returns the history that the texts of PyTorch's torch.cuda.memory._record_memory_history name: enabled is
// "", "state" or "all", context "", "state", "alloc" or "all".
func ParseHistory(enabled, context string) (History, error) {
	var h History
	switch enabled {
	case "":
	case "state":
		h.Enabled = HistoryState
	case "all":
		h.Enabled = HistoryAll
	default:
		return History{}, fault.New(fault.Invalid, "expected state to be 'state', 'all', or empty")
	}
	switch context {
	case "":
	case "state":
		h.Context = LevelState
	case "alloc":
		h.Context = LevelAlloc
	case "all":
		h.Context = LevelAll
	default:
		return History{}, fault.New(fault.Invalid, "expected context to be 'state', 'alloc', 'all', or empty")
	}
	return h, nil
}

// collector is the part of the history that is read without the lock.
type collector struct {
	level   Level
	collect func() any
}

// ring keeps the newest entries, in chunks, so that an unbounded trace is never moved.
type ring struct {
	on     bool
	level  Level
	limit  int // 0: unlimited
	chunks []*[ringChunk]TraceEntry
	n      int // entries
	next   int // where the next one goes once there are limit entries
}

const ringChunk = 1 << 10

// RecordHistory starts, changes or (HistoryOff) ends the recording of the device's history. Changing the context keeps the
// entries so far.
func (d *Device) RecordHistory(h History) error {
	if h.MaxEntries < 0 {
		return fault.New(fault.Invalid, "the history's MaxEntries is %d; it must be 0 (unlimited) or more", h.MaxEntries)
	}
	if h.Enabled == HistoryOff {
		h.Context = LevelNever
	} else if err := d.strategy.lacks("recordHistory"); err != nil {
		return err
	}
	if h.Context > LevelNever && h.Collect == nil {
		return fault.New(fault.Invalid, "a history with contexts needs a Collect function")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.start(h)
	return nil
}

// history records a device's actions: it holds the newest entries and the collector of contexts for new ones.
type history struct {
	collector atomic.Pointer[collector]
	ring      ring // under the allocator's lock
}

// start begins, changes or ends the recording, with the lock held.
func (p *history) start(h History) {
	p.collector.Store(&collector{level: h.Context, collect: h.Collect})
	if h.Enabled == HistoryOff {
		p.ring = ring{}
		return
	}
	limit := h.MaxEntries
	if h.Enabled == HistoryState {
		limit = 1
	}
	kept := p.ring.read()
	if limit > 0 && len(kept) > limit {
		kept = kept[len(kept)-limit:]
	}
	p.ring = ring{on: true, level: h.Context, limit: limit}
	for _, e := range kept {
		p.ring.add(e)
	}
}

// gather returns the caller's context if level is recorded. The lock must not be held.
func (p *history) gather(level Level) any {
	if c := p.collector.Load(); c != nil {
		return c.gather(level)
	}
	return nil
}

// gather is a separate function, so that history's gather is inlined into every allocation.
//
//go:noinline
func (c *collector) gather(level Level) any {
	if c.level < level {
		return nil
	}
	return c.collect()
}

// record appends to the trace.
func (p *history) record(a Action, addr, size uint64, s Stream, context any) {
	if !p.ring.on {
		return
	}
	if p.ring.level < LevelAlloc {
		context = nil
	}
	p.ring.add(TraceEntry{Action: a, Addr: addr, Size: size, Stream: s, Time: time.Now().UnixMicro(), Context: context})
}

func (r *ring) add(e TraceEntry) {
	i := r.next
	if r.limit == 0 || r.n < r.limit {
		i = r.n
		if i%ringChunk == 0 {
			r.chunks = append(r.chunks, new([ringChunk]TraceEntry))
		}
		r.n++
	} else if r.next++; r.next == r.limit {
		r.next = 0
	}
	r.chunks[i/ringChunk][i%ringChunk] = e
}

// read returns a copy of the entries, oldest first.
func (r *ring) read() []TraceEntry {
	s := make([]TraceEntry, 0, r.n)
	s = r.appendRange(s, r.next, r.n)
	return r.appendRange(s, 0, r.next)
}

func (r *ring) appendRange(s []TraceEntry, from, to int) []TraceEntry {
	for from < to {
		end := min(to, from+ringChunk-from%ringChunk)
		s = append(s, r.chunks[from/ringChunk][from%ringChunk:][:end-from]...)
		from = end
	}
	return s
}
