package memcheck

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
)

// tailBytes is how much of each stream's end a record keeps.
const tailBytes = 8 << 10

// removeFiles gives up what the process printed.
func (r *Record) removeFiles() error {
	var errs []error
	for _, f := range []*os.File{r.stdout, r.stderr} {
		if f != nil {
			errs = append(errs, closeOutput(f))
		}
	}
	if r.report != "" {
		if err := os.Remove(r.report); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// cutFiles shortens what the process printed to n bytes a stream.
func (r *Record) cutFiles(n int64) error {
	for _, f := range []*os.File{r.stdout, r.stderr} {
		info, err := f.Stat()
		if err == nil && info.Size() > n {
			err = f.Truncate(n)
		}
		if err != nil {
			return fmt.Errorf("cannot cut what a test printed: %w", err)
		}
	}
	return nil
}

// whole reads a file from its start, wherever its process stopped writing.
func whole(f *os.File) io.Reader { return io.NewSectionReader(f, 0, math.MaxInt64) }

// openReport opens the checker's report: its file, or standard output where there is none, since the checker may not heed its option.
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
	return io.NopCloser(whole(r.stdout)), nil
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

// readTails fills Stdout and Stderr.
func (r *Record) readTails() error {
	var err1, err2 error
	r.Stdout, err1 = fileTail(r.stdout)
	r.Stderr, err2 = fileTail(r.stderr)
	return errors.Join(err1, err2)
}

// fileTail returns the end of a file.
func fileTail(f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("cannot read what a test printed: %w", err)
	}
	size := info.Size()
	text := make([]byte, min(size, tailBytes+1))
	if size == 0 {
		return "", nil
	}
	n, err := f.ReadAt(text, size-int64(len(text)))
	if err != nil && err != io.EOF {
		return "", fmt.Errorf("cannot read what a test printed: %w", err)
	}
	return tail(string(text[:n]), tailBytes), nil
}
