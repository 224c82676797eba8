package memcheck

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
)

// tenonLine is one line of the log that the checker of Tenon's simulator writes: a header for every process, findings, the names of the kernels that it
// watched, and, if leaks are looked for, the lives of allocations.
type tenonLine struct {
	Checker string   `json:"checker"`
	PID     int      `json:"pid"`
	Finding *Finding `json:"finding"`
	Kernel  string   `json:"kernel"`
	Alloc   *struct {
		ID      uint64  `json:"id"`
		Address Address `json:"address"`
		Size    uint64  `json:"size"`
		Stack   []Frame `json:"stack"`
	} `json:"alloc"`
	Free uint64 `json:"free"`
}

// owner names an allocation of one of several processes.
type owner struct {
	pid int
	id  uint64
}

// parseTenon reads a log. The error is ErrNoSummary where a line is broken or no process wrote a header. An allocation that no process freed is a leak.
func parseTenon(in *bufio.Reader, o ParseOptions) (*Report, error) {
	rep := &Report{}
	seen, kernels, live := map[string]*Finding{}, map[string]bool{}, map[owner]*Finding{}
	add := func(f *Finding) {
		f.Count = max(f.Count, 1)
		rep.Groups++
		rep.Errors++
		rep.add(seen, f)
	}
	for {
		text, err := readLine(in)
		if err == io.EOF {
			break
		}
		if err != nil {
			return rep, err
		}
		var l tenonLine
		if json.Unmarshal([]byte(text), &l) != nil {
			return rep, ErrNoSummary
		}
		switch {
		case l.Checker != "":
			rep.Checker = l.Checker
		case l.Finding != nil:
			add(l.Finding)
		case l.Kernel != "":
			kernels[l.Kernel] = true
		case l.Alloc != nil:
			a := l.Alloc
			live[owner{l.PID, a.ID}] = &Finding{Tool: o.Tool, Class: Leak, Severity: SeverityError, Count: 1,
				Message:    fmt.Sprintf("Leaked %d bytes at %s", a.Size, a.Address),
				Allocation: &Allocation{Address: a.Address, Size: a.Size, Stack: a.Stack}}
		case l.Free != 0:
			delete(live, owner{l.PID, l.Free})
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(live), func(a, b owner) int {
		if a.pid != b.pid {
			return a.pid - b.pid
		}
		return int(a.id) - int(b.id)
	}) {
		add(live[k])
	}
	rep.Kernels = len(kernels)
	if rep.Checker == "" {
		return rep, ErrNoSummary
	}
	return rep, nil
}
