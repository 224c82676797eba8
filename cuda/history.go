package cuda

import (
	"cmp"
	"os"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/snapshot"
)

// HistoryMode says how much a History keeps, in the words of PyTorch's argument enabled.
type HistoryMode string

// The modes: nothing, which ends the recording and drops the trace, as PyTorch's None does; only the stack of each live allocation; a trace
// of everything the allocator does, which is the default.
const (
	HistoryOff   HistoryMode = "off"
	HistoryState HistoryMode = "state"
	HistoryAll   HistoryMode = "all"
)

// HistoryContext says which stacks a History keeps, in the words of PyTorch's argument context.
type HistoryContext string

// The contexts: no stacks, as with PyTorch's None; those of allocations, for live blocks only and not in the trace; those of allocations,
// which the entries of their frees repeat; those of allocations, frees and EmptyCache, which is the default.
const (
	ContextNone  HistoryContext = "none"
	ContextState HistoryContext = "state"
	ContextAlloc HistoryContext = "alloc"
	ContextAll   HistoryContext = "all"
)

// HistoryStacks says what a stack of a History shows, in the words of PyTorch's argument stacks; "python" is StacksGo too.
type HistoryStacks string

// What stacks show: the calls of Go functions outside the library's inner packages and the operations that they ran, such as tenon::rand,
// which is the default; the calls alone.
const (
	StacksAll HistoryStacks = "all"
	StacksGo  HistoryStacks = "go"
)

// History says what RecordMemoryHistory records. The zero value is PyTorch's default, which is everything.
type History struct {
	// Enabled says what is kept, and Context whose stacks; if they are left out, HistoryAll and ContextAll.
	Enabled HistoryMode
	Context HistoryContext
	// Stacks is StacksAll if it is left out.
	Stacks HistoryStacks
	// MaxEntries bounds the trace of the device, which keeps the newest entries. An entry takes about 60 bytes of memory. 0 means no bound.
	MaxEntries int
}

// RecordMemoryHistory starts, changes or ends the recording of what the device's allocator does, for Snapshot to show. Changing it keeps
// the entries so far. Recording an event takes well under a microsecond; stacks are resolved to names when a snapshot is taken. An unknown
// value is an error with PyTorch's text, and changes nothing. The back end cudaMallocAsync keeps no history: an error of kind
// Unsupported.
func (d *Device) RecordMemoryHistory(opts ...History) (err error) {
	defer returned(&err)
	h, err := only(opts)
	if err != nil {
		return err
	}
	r := d.open()
	a, err := alloc.ParseHistory(h.words())
	if err != nil {
		return err
	}
	a.MaxEntries = h.MaxEntries
	switch h.Stacks {
	case "", StacksAll:
		return r.RecordHistory(a, true)
	case StacksGo, "python":
		return r.RecordHistory(a, false)
	}
	//tenon:quoted PyTorch's text, which names its values
	return fault.New(fault.Invalid, "expected stacks to be 'python', or 'all'; 'go' means 'python'")
}

// Snapshot returns the segments and blocks that the device's allocator holds and, if RecordMemoryHistory is on, their history. The trace
// then gets an entry "snapshot", which the next Snapshot shows. It makes no driver call, so it neither waits for the device nor harms a
// capture. The back end cudaMallocAsync has no snapshots: an error of kind Unsupported.
func (d *Device) Snapshot() (s *Snapshot, err error) {
	defer returned(&err)
	d.open()
	d.memory("Snapshot")
	data, err := d.rt().Snapshot()
	if err != nil {
		return nil, err
	}
	return &Snapshot{s: data}, nil
}

// DumpSnapshot writes a Snapshot to a file that tenon memviz, PyTorch's torch.cuda._memory_viz and its viewer page open.
func (d *Device) DumpSnapshot(path string) (err error) {
	defer returned(&err)
	d.open()
	d.memory("DumpSnapshot")
	return d.rt().DumpSnapshot(path)
}

// DumpOnOutOfMemory makes every allocation that fails from now on for lack of memory write a snapshot, on the allocating goroutine and
// before it gets its error. The file is path; a "*" in its last part stands for the number of the failure, from 1. Without "*", a later
// failure replaces the file of an earlier one. If path is a folder, the files in it are named oom-*.pickle. A folder that is missing or
// cannot be written to is an error at once. The empty path ends this, and returns the first error of a file that could not be written
// meanwhile.
func (d *Device) DumpOnOutOfMemory(path string) (err error) {
	defer returned(&err)
	return d.rt().DumpOnOutOfMemory(path)
}

// ReadSnapshotFile reads a snapshot from a file that DumpSnapshot or PyTorch wrote, as ReadSnapshot does.
func ReadSnapshotFile(path string) (read *Snapshot, err error) {
	defer returned(&err)
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "the snapshot cannot be opened")
	}
	s, err := snapshot.Read(f, snapshot.ReadOptions{})
	if e := f.Close(); err == nil && e != nil {
		err = fault.Wrap(fault.System, e, "the snapshot cannot be read")
	}
	if err != nil {
		return nil, err
	}
	return &Snapshot{s: s}, nil
}

// words returns PyTorch's words for what is kept and whose stacks, which are empty for none.
func (h History) words() (enabled, context string) {
	enabled, context = cmp.Or(string(h.Enabled), "all"), cmp.Or(string(h.Context), "all")
	if context == string(ContextNone) {
		context = ""
	}
	if enabled == string(HistoryOff) {
		return "", ""
	}
	return enabled, context
}
