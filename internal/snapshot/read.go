package snapshot

import (
	"io"

	"tenon.dev/fault"
)

// ReadOptions say how Read reads.
type ReadOptions struct {
	// Events, if not nil, is given the events of a device, oldest first, a batch at a time as the file is read; the batch is only valid
	// during the call. Traces of the snapshot stay empty. Stacks that the events name are in Snapshot.Stacks once Read returns. An error
	// ends Read with it.
	Events func(device int, batch []Event) error
	// Progress, if not nil, is told now and then how many bytes of the reader were used.
	Progress func(read int64)
	// MaxMemory bounds the memory in bytes that Read may hold; 0 is 4 GiB. A file that needs more is an error.
	MaxMemory int64
}

// Read reads a snapshot from a pickle of protocol 2 to 5, plain or compressed with gzip.
func Read(r io.Reader, o ReadOptions) (*Snapshot, error) {
	return nil, fault.New(fault.Invalid, "the reader is not written yet")
}
