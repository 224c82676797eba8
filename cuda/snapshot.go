package cuda

import (
	"io"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// Snapshot is the state of the allocators of one or more devices at one moment, with their history. Device.Snapshot makes one, ReadSnapshot
// reads one from a file. It is safe for concurrent reading.
type Snapshot struct{ s *snapshot.Snapshot }

func (s *Snapshot) data() *snapshot.Snapshot {
	if s == nil || s.s == nil {
		panic(
			misused(fault.New(fault.Invalid, "the snapshot is nil or a zero value; use one that Device.Snapshot or ReadSnapshot returned")))
	}
	return s.s
}

// ReadSnapshot reads a snapshot that Write, torch.cuda.memory._dump_snapshot or pickle.dump of torch.cuda.memory._snapshot() wrote, plain
// or compressed with gzip. The file is only data: a pickle that names code is refused with an error of kind Invalid that contains the name.
// A pickle that needs more memory than its length allows (16 MiB and 32 bytes for each byte of the pickle, or 512 for each compressed byte;
// 4 GiB at most) is an error of kind OutOfMemory.
func ReadSnapshot(r io.Reader) (read *Snapshot, err error) {
	defer returned(&err)
	if r == nil {
		return nil, fault.New(fault.Invalid, "the reader is nil; give it one")
	}
	s, err := snapshot.Read(r, snapshot.ReadOptions{})
	if err != nil {
		return nil, err
	}
	return &Snapshot{s: s}, nil
}

// Write writes the snapshot as a pickle of protocol 4 in PyTorch's layout, which tenon memviz, torch.cuda._memory_viz and PyTorch's viewer
// page open.
func (s *Snapshot) Write(w io.Writer) (err error) {
	defer returned(&err)
	data := s.data()
	if w == nil {
		return fault.New(fault.Invalid, "the writer is nil; give it one")
	}
	return data.Write(w)
}

// WriteProfile writes the live allocations by stack as a profile for go tool pprof: their number, the bytes handed out, and the bytes
// requested. Allocations without a recorded stack appear under one name.
func (s *Snapshot) WriteProfile(w io.Writer) (err error) {
	defer returned(&err)
	data := s.data()
	if w == nil {
		return fault.New(fault.Invalid, "the writer is nil; give it one")
	}
	return data.WriteProfile(w)
}

// WriteTrace writes the history as a trace in JSON that ui.perfetto.dev and Chrome's viewer open: for each device the bytes allocated and
// reserved over time, each allocation's life, segments and failures.
func (s *Snapshot) WriteTrace(w io.Writer) (err error) {
	defer returned(&err)
	data := s.data()
	if w == nil {
		return fault.New(fault.Invalid, "the writer is nil; give it one")
	}
	return data.WriteTrace(w)
}

// Frame is one call of a stack.
type Frame struct {
	File string // path; "tenon" for operations
	Line int    // from 1; 0 if not known
	Name string // function, or operation such as tenon::rand
}

// Segment is memory that an allocator got from the driver in one piece; an expandable segment has one for each run of mapped pages. Sizes
// are in bytes.
type Segment struct {
	Device     int       // number of the device
	Addr       uint64    // device address
	TotalSize  uint64    // of all blocks
	Allocated  uint64    // of blocks that are allocated
	Active     uint64    // of blocks that are allocated or wait for other streams
	Requested  uint64    // what callers asked for, of active blocks
	Stream     uint64    // 0 is the default stream
	Type       string    // "small" or "large"
	Pool       [2]uint64 // id of the private pool; zero for the default pool
	Expandable bool      // a run of mapped pages of an expandable segment
	Frames     []Frame   // of the allocation that made it, innermost first; nil if not recorded
	Blocks     []Block   // by address; together they fill the segment
}

// Block is a part of a Segment.
type Block struct {
	Addr      uint64  // device address
	Size      uint64  // bytes
	Requested uint64  // bytes that its last owner asked for
	State     string  // "active_allocated", "active_pending_free" or "inactive"
	Frames    []Frame // of its allocation, innermost first; nil if inactive or not recorded
}

// TraceEntry is one entry of a device's history.
type TraceEntry struct {
	// Action is "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
	// "snapshot", "oom" or "user_defined".
	Action string
	Addr   uint64    // device address; for "oom" the device's free bytes
	Size   uint64    // bytes
	Stream uint64    // 0 is the default stream
	Time   time.Time // when it was recorded, to the microsecond
	Frames []Frame   // innermost first; nil if not recorded
}

// Segments returns the segments with their blocks, by address. Equal stacks share one slice, which the caller must not change.
func (s *Snapshot) Segments() []Segment {
	stacks := s.stacks()
	out := make([]Segment, len(s.data().Segments))
	for i := range s.data().Segments {
		g := &s.data().Segments[i]
		blocks := make([]Block, len(g.Blocks))
		for k, b := range g.Blocks {
			blocks[k] = Block{b.Addr, b.Size, b.Requested, b.State.String(), stacks(b.Stack)}
		}
		out[i] = Segment{g.Device, g.Addr, g.TotalSize, g.Allocated, g.Active, g.Requested, g.Stream, g.Type, g.Pool, g.Expandable,
			stacks(g.Stack), blocks}
	}
	return out
}

// Trace returns the history of the device with this number, oldest first; nil if the snapshot has none. Equal stacks share one slice, which
// the caller must not change.
func (s *Snapshot) Trace(device int) []TraceEntry {
	if device < 0 || device >= len(s.data().Traces) {
		return nil
	}
	stacks := s.stacks()
	out := make([]TraceEntry, len(s.data().Traces[device]))
	for i, e := range s.data().Traces[device] {
		out[i] = TraceEntry{e.Action.String(), e.Addr, e.Size, e.Stream, time.UnixMicro(e.TimeUS), stacks(e.Stack)}
	}
	return out
}

// Settings returns the allocator's settings under PyTorch's names, such as "max_split_size": values are bool, int64, float64, string and,
// for "roundup_power2_divisions", map[string]any.
func (s *Snapshot) Settings() map[string]any { return s.data().Settings }

// stacks returns a function that resolves stacks to frames, each stack once.
func (s *Snapshot) stacks() func(snapshot.StackID) []Frame {
	named := make([][]Frame, s.data().Stacks.Len())
	return func(id snapshot.StackID) []Frame {
		if named[id] == nil && id != 0 {
			for f := range s.data().Stacks.All(id) {
				named[id] = append(named[id], Frame(f))
			}
		}
		return named[id]
	}
}
