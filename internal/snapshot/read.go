package snapshot

import (
	"bufio"
	"compress/gzip"
	"errors"
	"io"

	"tenon.dev/fault"
	"tenon.dev/internal/filetype"
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
	// MaxMemory bounds the memory in bytes that Read may hold; 0 is 4 GiB. Whatever it is, a file may take 16 MiB and 32 bytes for each
	// byte of its pickle, or 512 for each byte that is compressed. A file that needs more is an error.
	MaxMemory int64
}

// The bounds on memory. PyTorch's snapshots and ours take up to 5 bytes for each of the pickle and 36 for each compressed one, while
// instructions of a pickle that are a few bytes long can ask for kilobytes, and gzip packs a thousand bytes into one.
const (
	defaultMemory = 4 << 30  // where ReadOptions gives none
	floorMemory   = 16 << 20 // what any file may take
	pickleFactor  = 32       // what each byte of a pickle allows
	fileFactor    = 512      // what each byte of a file allows
)

// Read reads a snapshot from a pickle of protocol 0 to 5, plain or compressed with gzip. Anything else is an error of kind
// fault.Invalid that says why; a pickle that names code is refused with the name. The calls of ReadOptions are made by the calling
// goroutine.
func Read(r io.Reader, o ReadOptions) (*Snapshot, error) {
	if r == nil {
		return nil, fault.New(fault.Invalid, "the snapshot's reader is nil; give it one")
	}
	if o.MaxMemory == 0 {
		o.MaxMemory = defaultMemory
	}
	counted := &counter{r: r}
	in := bufio.NewReaderSize(counted, 1<<16)
	src := in
	if head, _ := in.Peek(2); len(head) == 2 && head[0] == 0x1f && head[1] == 0x8b {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "the snapshot's gzip wrapping is broken")
		}
		src = bufio.NewReaderSize(z, 1<<16)
	}
	head, err := src.Peek(filetype.Head)
	if is := filetype.Guess(head); is != "" && (len(head) > 0 || errors.Is(err, io.EOF)) {
		return nil, fault.New(fault.Invalid, "the snapshot cannot be read: it is not a pickle, as DumpSnapshot writes, but %s", is)
	}
	b := newBuilder(o)
	po := pickle.Options{MaxMemory: o.MaxMemory, Take: b.take,
		Bound: func(read int64) int64 { return floorMemory + min(pickleFactor*read, fileFactor*counted.n) }}
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
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fault.New(fault.Invalid, "the snapshot cannot be read: the compressed file ends in the middle; it was not written "+
			"or copied to its end")
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
