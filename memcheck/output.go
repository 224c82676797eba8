package memcheck

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// tailBytes is how much of the end of each stream a record keeps.
	tailBytes = 8 << 10
	// memoryBytes is how much of a stream is held in memory. Longer output goes to a file.
	memoryBytes = 64 << 10
	// pipeBytes is more than a pipe holds: a reader of leftover data who finds more than that is reading new output.
	pipeBytes = 1 << 20
	// readAfter is how long a process runs before its output is read. Most processes that end sooner print less than a pipe holds, and two
	// readers cost more than everything else that the runner does for a test.
	readAfter = 5 * time.Millisecond
)

// room is how much a process may still print, on both its streams.
type room struct {
	left atomic.Int64
	// over is called when that limit is exceeded, or when output cannot be kept.
	over func()
}

// newRoom returns room for maximum bytes; 0: no limit.
func newRoom(maximum int64, over func()) *room {
	r := &room{over: over}
	if maximum == 0 {
		maximum = math.MaxInt64
	}
	r.left.Store(maximum)
	return r
}

// take returns how many of n bytes fit.
func (r *room) take(n int) int {
	left := r.left.Add(-int64(n))
	if left >= 0 {
		return n
	}
	r.over()
	return int(max(0, left+int64(n)))
}

// output is one output stream of a process: a pipe, whose contents are kept in memory and, when that is full, in a file, so that output of
// any length costs the runner little. A pipe costs a fifth as much as a file, and most output is short.
type output struct {
	room *room
	name string
	// write is the process's end of the pipe, read is the runner's.
	read, write *os.File
	// reading is closed when the reader of a running process's output stops; nil: there was none.
	reading chan struct{}

	mu      sync.Mutex // guards the fields below while the reader runs
	memory  []byte
	file    *os.File // has all of it, once memory does not
	size    int64    // of the output that was kept
	printed int64
	given   bool // given up: later output is not kept
	err     error
}

// openOutput makes a pipe. name is for the file, if one is needed.
func openOutput(name string, r *room) (*output, error) {
	o := &output{room: r, name: name}
	var err error
	if o.read, o.write, err = os.Pipe(); err != nil {
		return nil, fmt.Errorf("cannot make a pipe for the output of a test: %w", err)
	}
	return o, nil
}

// started closes the process's end of the pipe in the runner.
func (o *output) started() { _ = o.write.Close() }

// chunks are read buffers.
var chunks = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// start starts reading a running process's output. Until then a process that prints more than the pipe holds waits.
func (o *output) start() {
	o.reading = make(chan struct{})
	go func() {
		defer close(o.reading)
		b := chunks.Get().(*[64 << 10]byte)
		defer chunks.Put(b)
		for {
			n, err := o.read.Read(b[:])
			o.keep(b[:n])
			if err != nil { // the end, or nobody wants more
				return
			}
		}
	}()
}

// keep appends to the kept output.
func (o *output) keep(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.given || len(b) == 0 {
		return
	}
	o.printed += int64(len(b))
	b = b[:o.room.take(len(b))]
	if o.err != nil || len(b) == 0 {
		return
	}
	if o.file == nil && len(o.memory)+len(b) <= memoryBytes {
		o.memory = append(o.memory, b...)
		o.size += int64(len(b))
		return
	}
	if o.err = o.spill(b); o.err != nil {
		o.room.over()
	}
}

// spill appends to the file, which is created when needed.
func (o *output) spill(b []byte) (err error) {
	if o.file == nil {
		if o.file, err = openUnlinked(o.name); err != nil {
			return fmt.Errorf("cannot make a file for the output of a test: %w", err)
		}
		if _, err = o.file.Write(o.memory); err != nil {
			return fmt.Errorf("cannot keep the output of a test: %w", err)
		}
		o.memory = nil
	}
	n, err := o.file.Write(b)
	o.size += int64(n)
	if err != nil {
		return fmt.Errorf("cannot keep the output of a test: %w", err)
	}
	return nil
}

// finish reads what an ended process left in the pipe, and closes it. Output of other processes that still have the pipe open is not waited
// for.
func (o *output) finish() error {
	err := o.rest()
	o.mu.Lock()
	defer o.mu.Unlock()
	return errors.Join(o.err, err)
}

// close releases everything.
func (o *output) close() error {
	if o == nil || o.file == nil {
		return nil
	}
	return closeUnlinked(o.file)
}

// ReadAt reads the kept output.
func (o *output) ReadAt(b []byte, at int64) (n int, err error) {
	if o.file != nil {
		return o.file.ReadAt(b, at)
	}
	if at < int64(len(o.memory)) {
		n = copy(b, o.memory[at:])
	}
	if n < len(b) {
		err = io.EOF
	}
	return n, err
}

// whole returns a reader of all of it.
func (o *output) whole() io.Reader { return io.NewSectionReader(o, 0, o.size) }

// tail returns its end.
func (o *output) tail() (string, error) {
	text := make([]byte, min(o.size, tailBytes+1))
	n, err := o.ReadAt(text, o.size-int64(len(text)))
	if err != nil && err != io.EOF {
		return "", fmt.Errorf("cannot read the output of a test: %w", err)
	}
	return tail(string(text[:n]), tailBytes), nil
}

// fileFlags are for a file that must not exist yet.
const fileFlags = os.O_CREATE | os.O_EXCL | os.O_RDWR

// removeFiles removes what the process printed.
func (r *Record) removeFiles() error {
	errs := []error{r.stdout.close(), r.stderr.close()}
	if r.report != "" {
		if err := os.Remove(r.report); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// openReport opens the checker's report: its file or, if there is none, standard output, since the checker may ignore its option.
func (r *Record) openReport() (io.ReadCloser, error) {
	if r.report != "" {
		f, err := os.Open(r.report)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot read the checker's report: %w", err)
		}
	}
	return io.NopCloser(r.stdout.whole()), nil
}

// readReport parses the checker's report.
func (r *Record) readReport(o ParseOptions) (rep *Report, reportErr, err error) {
	in, err := r.openReport()
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	rep, reportErr = ParseReport(in, o)
	return rep, reportErr, nil
}

// readTails sets Stdout and Stderr.
func (r *Record) readTails() error {
	var err1, err2 error
	r.Stdout, err1 = r.stdout.tail()
	r.Stderr, err2 = r.stderr.tail()
	return errors.Join(err1, err2)
}
