package cuda

import (
	"os"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/snapshot"
)

// History says what RecordMemoryHistory records, in the words of torch.cuda.memory._record_memory_history. The zero History records
// nothing.
type History struct {
	// Enabled is "all", which keeps a trace of everything the allocator does; "state", which keeps the stack of each live allocation alone;
	// or "", which ends the recording and drops the trace.
	Enabled string
	// Context says whose stacks are kept: "all", those of allocations, frees and EmptyCache; "alloc", those of allocations, which the
	// entries of their frees repeat; "state", those of allocations, with the live blocks alone and not in the trace; "" none.
	Context string
	// Stacks is what a stack shows: "go" (or PyTorch's word, "python"), the calls of Go functions outside the library's inner packages;
	// "all" or "", also the operations that they ran, such as tenon::rand.
	Stacks string
	// MaxEntries bounds the trace of the device: the newest stay. An entry takes about 60 bytes of memory. 0 is no bound.
	MaxEntries int
}

// RecordMemoryHistory starts, changes or ends the recording of what the device's allocator does, for Snapshot to show. Changing it
// keeps the entries so far. A recorded event takes well under a microsecond; stacks are named when a snapshot is taken. Texts that
// History does not know are errors with PyTorch's texts, and change nothing. The cudaMallocAsync backend keeps no history: an error of
// kind Unsupported.
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
	return fault.New(fault.Invalid, "expected stacks to be 'python', or 'all'; 'go' means 'python'")
}

// Snapshot returns the segments and blocks that the device's allocator holds and, where RecordMemoryHistory is on, how that came about. The
// trace then gets an entry "snapshot", which the next Snapshot shows. It makes no call of the driver, so it neither waits for the device
// nor harms a capture. The cudaMallocAsync backend has no snapshots: an error of kind Unsupported.
func (d *Device) Snapshot() (s *Snapshot, err error) {
	defer returned(&err)
	data, err := d.rt().Snapshot()
	if err != nil {
		return nil, err
	}
	return &Snapshot{s: data}, nil
}

// DumpSnapshot writes a Snapshot to a file, which tenon memviz, PyTorch's torch.cuda._memory_viz and its viewer page open.
func (d *Device) DumpSnapshot(path string) (err error) {
	defer returned(&err)
	return d.rt().DumpSnapshot(path)
}

// DumpOnOutOfMemory makes every allocation that fails from now on for want of memory write a snapshot, on the goroutine whose allocation it
// was and before that gets its error. The file is path, with the number of the failure, from 1, in place of a "*" in its last part; without
// "*" a later failure replaces the file of an earlier one. If path is a folder the files are named oom-*.pickle in it. A folder that is
// missing or cannot be written is an error at once. The empty path ends this, and returns the first error of a file that could not be
// written meanwhile.
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
