package cuda

import (
	"os"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/snapshot"
)

// History says what RecordMemoryHistory records, with the argument values of torch.cuda.memory._record_memory_history. The zero History
// records nothing.
type History struct {
	// Enabled is "all", which keeps a trace of everything the allocator does; "state", which keeps only the stack of each live allocation;
	// or "", which ends the recording and drops the trace.
	Enabled string
	// Context says which stacks are kept: "all", those of allocations, frees and EmptyCache; "alloc", those of allocations, which the
	// entries of their frees repeat; "state", those of allocations, for live blocks only and not in the trace; "", none.
	Context string
	// Stacks is what a stack shows: "go" (or PyTorch's word, "python"), the calls of Go functions outside the library's inner packages;
	// "all" or "", also the operations that they ran, such as tenon::rand.
	Stacks string
	// MaxEntries bounds the trace of the device, which keeps the newest entries. An entry takes about 60 bytes of memory. 0 means no bound.
	MaxEntries int
}

// RecordMemoryHistory starts, changes or ends the recording of what the device's allocator does, for Snapshot to show. Changing it keeps
// the entries so far. Recording an event takes well under a microsecond; stacks are resolved to names when a snapshot is taken. An unknown
// value in h is an error with PyTorch's text, and changes nothing. The back end cudaMallocAsync keeps no history: an error of kind
// Unsupported.
func (d *Device) RecordMemoryHistory(h History) (err error) {
	defer returned(&err)
	r := d.rt()
	a, err := alloc.ParseHistory(h.Enabled, h.Context)
	if err != nil {
		return err
	}
	a.MaxEntries = h.MaxEntries
	switch h.Stacks {
	case "", "all":
		return r.RecordHistory(a, true)
	case "go", "python":
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
	data, err := d.rt().Snapshot()
	if err != nil {
		return nil, err
	}
	return &Snapshot{s: data}, nil
}

// DumpSnapshot writes a Snapshot to a file that tenon memviz, PyTorch's torch.cuda._memory_viz and its viewer page open.
func (d *Device) DumpSnapshot(path string) (err error) {
	defer returned(&err)
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
func ReadSnapshotFile(path string) (*Snapshot, error) {
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
