package memcheck

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"

	"tenon.dev/internal/checklog"
)

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
		l, err := checklog.Decode([]byte(text))
		if err != nil {
			return rep, ErrNoSummary
		}
		switch {
		case l.Checker != "":
			rep.Checker = l.Checker
		case l.Finding != nil:
			f, err := tenonFinding(l.Finding)
			if err != nil {
				return rep, ErrNoSummary
			}
			add(f)
		case l.Kernel != "":
			kernels[l.Kernel] = true
		case l.Alloc != nil:
			a, err := tenonAllocation(&checklog.Allocation{Address: l.Alloc.Address, Size: l.Alloc.Size, Stack: l.Alloc.Stack})
			if err != nil {
				return rep, ErrNoSummary
			}
			live[owner{l.PID, l.Alloc.ID}] = &Finding{Tool: o.Tool, Class: Leak, Severity: SeverityError, Count: 1,
				Message: fmt.Sprintf("Leaked %d bytes at %s", a.Size, a.Address), Allocation: a}
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

// tenonFinding returns a finding of a log's line. The error is that of an address that is none.
func tenonFinding(l *checklog.Finding) (*Finding, error) {
	f := &Finding{Tool: Tool(l.Tool), Class: Class(l.Class), Severity: Severity(l.Severity), Message: l.Message, Details: l.Details, Kernel: l.Kernel,
		Device: tenonFrames(l.Device), Other: tenonFrames(l.Other), Access: l.Access, Space: l.Space, Size: l.Size, Thread: l.Thread, Block: l.Block,
		Stack: tenonFrames(l.Stack), Count: l.Count}
	var err error
	if l.Address != "" {
		err = f.Address.UnmarshalText([]byte(l.Address))
	}
	if err == nil && l.Allocation != nil {
		f.Allocation, err = tenonAllocation(l.Allocation)
	}
	return f, err
}

// tenonAllocation is the same of an allocation.
func tenonAllocation(l *checklog.Allocation) (*Allocation, error) {
	a := &Allocation{Size: l.Size, Relation: l.Relation, Stack: tenonFrames(l.Stack), Freed: tenonFrames(l.Freed)}
	return a, a.Address.UnmarshalText([]byte(l.Address))
}

// tenonFrames is the same of a stack.
func tenonFrames(l []checklog.Frame) (stack []Frame) {
	for _, f := range l {
		stack = append(stack, Frame{Function: f.Function, File: f.File, Line: f.Line, Text: f.Text})
	}
	return stack
}
