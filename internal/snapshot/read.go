package snapshot

import (
	"bufio"
	"compress/gzip"
	"errors"
	"io"

	"tenon.dev/fault"
	"tenon.dev/internal/pickle"
)

// ReadOptions say how Read reads.
type ReadOptions struct {
	// Events, if not nil, is given the events of a device, oldest first, a batch at a time as the file is read; the batch is only valid
	// during the call. Traces of the snapshot stay empty. Stacks and notes that the events name are in the snapshot once Read returns. An
	// error ends Read with it.
	Events func(device int, batch []Event) error
	// Progress, if not nil, is told now and then how many bytes of the reader were used.
	Progress func(read int64)
	// MaxMemory bounds the memory in bytes that Read may hold; 0 is 4 GiB. A file that needs more is an error.
	MaxMemory int64
}

// defaultMemory is the bound on memory where ReadOptions gives none.
const defaultMemory = 4 << 30

// Read reads a snapshot from a pickle of protocol 0 to 5, plain or compressed with gzip. What is no snapshot is an error of kind
// fault.Invalid that says why; a pickle that names code is refused with the name. The calls of ReadOptions are made by the calling goroutine.
func Read(r io.Reader, o ReadOptions) (*Snapshot, error) {
	if o.MaxMemory == 0 {
		o.MaxMemory = defaultMemory
	}
	counted := &counter{r: r}
	in := bufio.NewReaderSize(counted, 1<<16)
	var src io.Reader = in
	if head, _ := in.Peek(2); len(head) == 2 && head[0] == 0x1f && head[1] == 0x8b {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "the snapshot's gzip wrapping is broken")
		}
		src = z
	}
	b := newBuilder(o)
	po := pickle.Options{MaxMemory: o.MaxMemory, Take: b.take}
	if o.Progress != nil {
		po.Progress = func(int64) { o.Progress(counted.n) }
	}
	d, err := pickle.Read(src, po)
	if err == nil {
		err = b.finish(d)
	}
	if err == nil {
		return b.s, nil
	}
	if errors.Is(err, b.stopped) && b.stopped != nil {
		return nil, b.stopped
	}
	return nil, fault.Wrap(fault.Invalid, err, "the snapshot cannot be read")
}

// counter counts what was read.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
