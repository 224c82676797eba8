package memcheck

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Header is the first line of a journal: what was run, and how.
type Header struct {
	// Type is "run", and Format the journal's version, 1.
	Type   string `json:"type"`
	Format int    `json:"format"`
	// Target is the target's name.
	Target string `json:"target"`
	// Checker is the checker's name.
	Checker string `json:"checker"`
	// Tools are the tools that each test runs under.
	Tools []Tool `json:"tools"`
	// Shard is the part of the run.
	Shard Shard `json:"shard"`
	// Args are the arguments of every test, and Options the checker's settings besides the tool: leaks, stream-order, cached, and its
	// further options.
	Args    []string `json:"args,omitempty"`
	Options []string `json:"options,omitempty"`
	// Jobs is the number of tests times tools, and Digest a hash of their names in order.
	Jobs   int    `json:"jobs"`
	Digest string `json:"digest"`
	// Strict, FindingsOnly and NoHang are the rules that decided outcomes.
	Strict       bool `json:"strict,omitempty"`
	FindingsOnly bool `json:"findings_only,omitempty"`
	NoHang       bool `json:"nohang,omitempty"`
	// Limit is the time limit of a test, in seconds.
	Limit float64 `json:"limit_seconds"`
	// GPUs are the devices of each worker.
	GPUs []string `json:"gpus"`
	// Host is the machine's name, and Began the time when the run began.
	Host  string    `json:"host,omitempty"`
	Began time.Time `json:"began"`
}

// Digest returns the hash of the jobs, as stored in a header.
func Digest(jobs []Job) string {
	h := sha256.New()
	for _, j := range jobs {
		fmt.Fprintf(h, "%q %q\n", j.Test.Name, j.Tool)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// differs names what distinguishes two runs, or returns "".
func (h *Header) differs(o *Header) string {
	switch {
	case h.Format != o.Format:
		return "the journal's format"
	case h.Target != o.Target:
		return "the target: " + o.Target
	case h.Checker != o.Checker:
		return "the checker: " + o.Checker
	case !slices.Equal(h.Tools, o.Tools):
		return fmt.Sprintf("the tools: %v", o.Tools)
	case !slices.Equal(h.Args, o.Args):
		return fmt.Sprintf("the arguments of tests: %q", o.Args)
	case !slices.Equal(h.Options, o.Options):
		return fmt.Sprintf("the options of the checker: %q", o.Options)
	case h.Strict != o.Strict || h.FindingsOnly != o.FindingsOnly:
		return "what counts as a failure (--strict, --findings-only)"
	case h.Shard.Split != o.Shard.Split:
		return fmt.Sprintf("the number of shards: %d", o.Shard.Split)
	}
	return ""
}

// ending is the last line of a journal, or of each part of an interrupted one.
type ending struct {
	Type    string    `json:"type"`
	Ended   time.Time `json:"ended"`
	Summary *Summary  `json:"summary"`
}

// Journal is a run's record on disk, with one JSON value per line: a [Header], a [Record] for each test as it ends, and the summary. An
// interrupted run can be resumed from it. It is an [Observer].
type Journal struct {
	file *os.File
}

// errShared is the error for a journal that another run has open.
var errShared = errors.New("another run is writing to it")

// lock locks f for this run until it is closed or the process ends. The error names the journal and the remedy.
func lock(f *os.File, name string) error {
	err := lockFile(f)
	if err == nil { // another run may have renamed it before it was locked
		mine, err1 := f.Stat()
		there, err2 := os.Stat(name)
		if err1 != nil || err2 != nil || !os.SameFile(mine, there) {
			err = errShared
		}
	}
	return shared(err, name)
}

// shared adds the journal and the remedy to errShared.
func shared(err error, name string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w; wait for it, or give another --out", name, err)
}

// CreateJournal creates a journal. An existing file of that name is renamed to name.old, since it may be all that is left of a long run; it
// is an error if another run is still writing it.
func CreateJournal(name string, h Header) (*Journal, error) {
	if old, err := os.Open(name); err == nil {
		if err := errors.Join(lock(old, name), old.Close()); err != nil {
			return nil, err
		}
	}
	if err := os.Rename(name, name+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot keep the earlier journal: %w", err)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) { // created since the renaming
		return nil, shared(errShared, name)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make the journal: %w", err)
	}
	return newJournal(f, name, h)
}

// unopened is the error for a journal that cannot be opened.
func unopened(err error) error {
	var known *fs.PathError
	if errors.As(err, &known) {
		return fmt.Errorf("cannot open the journal %s: %w", known.Path, known.Err)
	}
	return fmt.Errorf("cannot open the journal: %w", err)
}

// newJournal writes the header to an empty file, and closes the file if that fails.
func newJournal(f *os.File, name string, h Header) (*Journal, error) {
	h.Type, h.Format = "run", 1
	j := &Journal{f}
	if err := lock(f, name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := j.write(h); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

// ResumeJournal continues a journal: it returns the counts so far and the jobs that are still to run. If the journal belongs to another
// run, the error names what differs. If there is no file, or its run was killed before it wrote a line, a new journal begins.
func ResumeJournal(name string, h Header, jobs []Job) (j *Journal, before *Summary, left []Job, err error) {
	h.Type, h.Format = "run", 1
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		j, err = CreateJournal(name, h)
		return j, &Summary{}, jobs, err
	}
	if err != nil {
		return nil, nil, nil, unopened(err)
	}
	if err := lock(f, name); err != nil {
		return nil, nil, nil, errors.Join(err, f.Close())
	}
	before = &Summary{}
	done := map[string]bool{}
	old, last, good, err := ReadJournal(f, func(r *Record) error {
		done[jobKey(r.Test, r.Tool)] = true
		before.add(r)
		return nil
	})
	switch {
	case errors.Is(err, errNoHeader):
		if err = f.Truncate(0); err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
		if err != nil {
			return nil, nil, nil, errors.Join(err, f.Close())
		}
		j, err = newJournal(f, name, h)
		return j, before, jobs, err
	case err != nil:
		err = fmt.Errorf("%s: %w; run without --resume, or give another --out", name, err)
	default:
		what := old.differs(&h)
		if what == "" && (old.Digest != h.Digest || old.Shard.Rank != h.Shard.Rank) {
			what = "the tests that it selects"
		}
		if what != "" {
			err = fmt.Errorf("%s belongs to another run; it differs in %s; run without --resume, or give another --out", name, what)
		}
	}
	if err == nil {
		// A line that was being written when the runner was killed is removed.
		if err = f.Truncate(good); err == nil {
			_, err = f.Seek(good, io.SeekStart)
		}
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, f.Close())
	}
	if last != nil {
		before.Seconds = last.Seconds
	}
	left = slices.DeleteFunc(slices.Clone(jobs), func(j Job) bool { return done[jobKey(j.Test.Name, j.Tool)] })
	return &Journal{f}, before, left, nil
}

func jobKey(test string, tool Tool) string { return string(tool) + " " + test }

// errNoJournal is the error for a journal that no function opened.
var errNoJournal = errors.New("the journal is nil or a zero value; use one that CreateJournal or ResumeJournal returned")

func (j *Journal) write(v any) error {
	if j == nil || j.file == nil {
		return errNoJournal
	}
	line, err := json.Marshal(v)
	if err == nil {
		_, err = j.file.Write(append(line, '\n')) // one call, so that a killed runner leaves at most one incomplete line
	}
	if err != nil {
		return fmt.Errorf("cannot write the journal: %w", err)
	}
	return nil
}

// Begin does nothing.
func (j *Journal) Begin(int, string, Job, time.Time) {}

// End appends the record.
func (j *Journal) End(r *Record) error { return j.write(r) }

// Close appends the summary and closes the file. A nil summary means that the run failed because of the runner itself.
func (j *Journal) Close(s *Summary) error {
	if j == nil || j.file == nil {
		return errNoJournal
	}
	var err error
	if s != nil {
		err = j.write(ending{"end", time.Now(), s})
	}
	return errors.Join(err, j.file.Close())
}

// errNoHeader is the error for a journal without a complete line.
var errNoHeader = errors.New("the journal has no header: it is not one of tenon memcheck, or its run was killed at the start")

// ReadJournal reads a journal and calls f for every record, in the order in which the tests ended. The summary is the last one, or nil if
// the run was killed before it could write one; good is the total length of the complete lines in bytes. An incomplete last line is not an
// error.
//
// Values that no run writes are an error that names the line: negative and huge numbers, lists with a null, unknown outcomes.
func ReadJournal(in io.Reader, f func(*Record) error) (h *Header, s *Summary, good int64, err error) {
	if in == nil || f == nil {
		return nil, nil, 0, errors.New("the journal's reader, or the function that takes its records, is nil; give both")
	}
	return readJournal(in, func(*Header) error { return nil }, f)
}

// readJournal is ReadJournal, but also calls begin with the header before any record.
func readJournal(in io.Reader, begin func(*Header) error, f func(*Record) error) (h *Header, s *Summary, good int64, err error) {
	lines := bufio.NewReaderSize(in, 64<<10)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			if h == nil {
				return nil, nil, 0, errNoHeader
			}
			return h, s, good, nil
		}
		if err != nil {
			return nil, nil, 0, fmt.Errorf("cannot read the journal: %w", err)
		}
		var kind struct {
			Type   string `json:"type"`
			Format int    `json:"format"`
		}
		if err = json.Unmarshal(line, &kind); err == nil {
			switch {
			case nullInList(line):
				err = errNullInList
			case h == nil && (kind.Type != "run" || kind.Format != 1):
				err = errors.New("is not a header of format 1")
			case kind.Type == "run":
				first := h == nil
				h = &Header{}
				if err = decode(line, h, h.check); err == nil && first {
					err = begin(h)
				}
			case kind.Type == "test":
				r := &Record{}
				if err = decode(line, r, r.check); err == nil {
					err = f(r)
				}
			case kind.Type == "end":
				e := ending{Summary: &Summary{}}
				err = decode(line, &e, func() error { return cmp.Or(e.Summary, &Summary{}).check() })
				s = e.Summary
			default:
				err = fmt.Errorf("is of the unknown type %q", kind.Type)
			}
		}
		if err != nil {
			var syntax *json.SyntaxError
			if h == nil && errors.As(err, &syntax) {
				return nil, nil, 0, fmt.Errorf("line %d of the journal is not JSON; give a result.jsonl of tenon memcheck", n)
			}
			return nil, nil, 0, fmt.Errorf("line %d of the journal: %w: %.80q", n, err, bytes.TrimSpace(line))
		}
		good += int64(len(line))
	}
}

// decode decodes a line into the value that check then checks.
func decode(line []byte, into any, check func() error) error {
	if err := json.Unmarshal(line, into); err != nil {
		return err
	}
	return check()
}
