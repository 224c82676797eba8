package memcheck

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Log writes the log result.log: a line "Success: TEST", "Ignored: TEST", "Timeout: TEST" or "Fail: TEST" for each test. After a "Fail"
// line comes everything that the test printed: standard output, the checker's report if it is separate, standard error. It is an
// [Observer].
type Log struct {
	// Out receives the log.
	Out io.Writer
	// Tools makes the lines name the tool too, for runs under several.
	Tools bool
}

// words are the outcomes' names in the log.
var words = map[Outcome]string{Success: "Success", Ignored: "Ignored", Timeout: "Timeout", Fail: "Fail"}

// Begin does nothing.
func (l *Log) Begin(int, string, Job, time.Time) {}

// End writes the test's lines. It copies the test's output through a small buffer, however long it is.
func (l *Log) End(r *Record) error {
	_, err := fmt.Fprintf(l.Out, "%s: %s\n", words[r.Outcome], r.name(l.Tools, 0))
	if err == nil && r.Outcome == Fail {
		err = errors.Join(l.copy(r.stdout.whole()), l.copyReport(r.report), l.copy(r.stderr.whole()))
	}
	if err != nil {
		return fmt.Errorf("cannot write the log: %w", err)
	}
	return nil
}

// copy writes a text and a newline.
func (l *Log) copy(in io.Reader) error {
	if _, err := io.Copy(struct{ io.Writer }{l.Out}, in); err != nil {
		return err
	}
	_, err := fmt.Fprintln(l.Out)
	return err
}

// copyReport copies a file. There may be no separate report, or it may not have been written.
func (l *Log) copyReport(name string) error {
	f, err := os.Open(name)
	if name == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return l.copy(f)
}
