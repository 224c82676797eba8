package memcheck

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"tenon.dev/internal/checklog"
)

// owner identifies an allocation of one of several processes.
type owner struct {
	pid int
	id  uint64
}

// tenonLine is a line of the log, in terms of this package's types: their JSON form is the log's.
type tenonLine struct {
	checklog.Line
	Finding *Finding `json:"finding"`
	Alloc   *struct {
		ID uint64 `json:"id"`
		Allocation
	} `json:"alloc"`
}

// decode parses a line of the log.
func (l *tenonLine) decode(text []byte) error {
	if nullInList(text) {
		return errNullInList
	}
	if err := json.Unmarshal(text, l); err != nil {
		return err
	}
	f := l.Finding
	if l.Alloc != nil {
		f = &Finding{Allocation: &l.Alloc.Allocation}
	}
	if f == nil {
		return nil
	}
	return f.check()
}

// parseTenon parses a log. The error is ErrNoSummary if a line is broken or no process wrote a header. An allocation that no process freed
// is a leak.
func parseTenon(in *bufio.Reader, o ParseOptions) (*Report, error) {
	rep := &Report{}
	seen, kernels, live := map[string]*Finding{}, map[string]bool{}, map[owner]*Finding{}
	add := func(f *Finding) {
		f.Count = max(f.Count, 1)
		rep.Groups++
		rep.Errors++
		rep.add(seen, f)
	}
	for n := 1; ; n++ {
		text, err := readLine(in)
		if err == io.EOF {
			break
		}
		if err != nil {
			return rep, err
		}
		var l tenonLine
		if err := l.decode([]byte(text)); err != nil {
			return rep, fmt.Errorf("%w: line %d of the checker's log: %w", ErrNoSummary, n, err)
		}
		switch {
		case l.Checker != "":
			rep.Checker = l.Checker
		case l.Finding != nil:
			add(l.Finding)
		case l.Kernel != "":
			kernels[l.Kernel] = true
		case l.Alloc != nil:
			live[owner{l.PID, l.Alloc.ID}] = &Finding{Tool: o.Tool, Class: Leak, Severity: SeverityError, Count: 1,
				Message: fmt.Sprintf("Leaked %d bytes at %s", l.Alloc.Size, l.Alloc.Address), Allocation: &l.Alloc.Allocation}
		case l.Free != 0:
			delete(live, owner{l.PID, l.Free})
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(live), func(a, b owner) int {
		return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.id, b.id))
	}) {
		add(live[k])
	}
	rep.Kernels = len(kernels)
	if !rep.clamp() || rep.Checker == "" {
		return rep, ErrNoSummary
	}
	return rep, nil
}
