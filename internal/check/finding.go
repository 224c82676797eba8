package check

import (
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"

	"tenon.dev/internal/checklog"
	"tenon.dev/internal/origin"
	"tenon.dev/internal/stack"
	"tenon.dev/internal/terminal"
)

// tools maps each class to the tool that finds it; the names are compute-sanitizer's.
var tools = map[string]string{checklog.OutOfBounds: "memcheck", checklog.UseAfterFree: "memcheck", checklog.Misaligned: "memcheck",
	checklog.InvalidFree: "memcheck", checklog.Leak: "leaks",
	checklog.Uninitialized: "initcheck", checklog.Race: "racecheck", checklog.StreamRace: "racecheck", checklog.Barrier: "synccheck"}

// newFrame returns a frame; file may include folders.
func newFrame(function, file string, line int) checklog.Frame {
	f := checklog.Frame{Function: function, Line: line, Text: function}
	if file != "" {
		f.File = path.Base(strings.ReplaceAll(file, `\`, "/"))
		f.Text = fmt.Sprintf("%s in %s:%d", function, f.File, line)
	}
	return f
}

// keyOf is equal for findings of one defect.
func keyOf(f *checklog.Finding) string {
	k := []string{f.Class, f.Kernel, f.Access}
	for _, s := range [][]checklog.Frame{f.Device, f.Other} {
		if len(s) > 0 {
			k = append(k, s[0].Text)
		}
	}
	if len(f.Device) == 0 {
		stack := f.Stack
		if len(stack) == 0 && f.Allocation != nil {
			stack = f.Allocation.Stack
		}
		if len(stack) > 0 {
			k = append(k, stack[0].Text)
		}
	}
	return strings.Join(k, "\x1f")
}

// maxLine is the maximum length of a line shown to readers, in characters.
const maxLine = 1000

// textOf formats the finding for readers, like a report of compute-sanitizer. Names come from the program and may contain anything.
func textOf(f *checklog.Finding) string {
	var b strings.Builder
	line := func(indent, format string, args ...any) {
		b.WriteString("========= " + indent + terminal.Line(fmt.Sprintf(format, args...), maxLine) + "\n")
	}
	line("", "%s", f.Message)
	for _, d := range f.Device {
		line("    ", "at %s", d.Text)
	}
	if f.Thread != nil {
		line("    ", "by thread (%d,%d,%d) in block (%d,%d,%d)", f.Thread[0], f.Thread[1], f.Thread[2], f.Block[0], f.Block[1], f.Block[2])
	}
	for _, d := range f.Details {
		line("    ", "%s", d)
	}
	stack := func(heading string, frames []checklog.Frame) {
		if len(frames) > 0 {
			line("    ", "%s", heading)
			for _, s := range frames {
				line("        ", "Host Frame: %s", s.Text)
			}
		}
	}
	stack("Saved host backtrace at the call", f.Stack)
	if a := f.Allocation; a != nil {
		if a.Relation != "" {
			line("    ", "and is %s at %s of size %d bytes", a.Relation, a.Address, a.Size)
		}
		stack("Saved host backtrace at the allocation", a.Stack)
		stack("Saved host backtrace at the free", a.Freed)
	}
	line("", "")
	return b.String()
}

// frameLimit is the maximum number of host frames kept.
const frameLimit = 24

// caller is a call of the program for which something is done, by its program counters. If it is done for several calls, as by a fused
// kernel, it is the last of them, and all has all of them.
type caller struct {
	pcs []uintptr
	all []*stack.Stack
}

// called returns the caller's callers, or the calls that the calling goroutine works for.
func called() caller {
	if calls, _ := stack.Represented(); len(calls) > 0 {
		c := caller{pcs: calls[len(calls)-1].Calls()}
		if len(calls) > 1 {
			c.all = slices.Clone(calls)
		}
		return c
	}
	var pcs [128]uintptr
	return caller{pcs: slices.Clone(pcs[:runtime.Callers(3, pcs[:])])}
}

// tell adds the caller to a finding in what was done for it.
func (c *caller) tell(f *checklog.Finding) {
	f.Stack = frames(c.pcs)
	var lines []string
	for _, s := range c.all {
		if at := top(s.Calls()); at.File != "" {
			if line := fmt.Sprintf("%s:%d", at.File, at.Line); !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	if len(lines) > 1 {
		f.Details = append(f.Details, "It does the work of the calls at "+strings.Join(lines, ", "))
	}
}

// frames resolves program counters to frames, starting with the program's first frame and leaving out later frames of the library; if none
// is the program's, it returns all of them.
func frames(pcs []uintptr) (out []checklog.Frame) {
	if len(pcs) == 0 {
		return nil
	}
	var inner []checklog.Frame
	for it, more := runtime.CallersFrames(pcs), true; more && len(out) < frameLimit; {
		var f runtime.Frame
		f, more = it.Next()
		if f.Function == "" || f.Function == "runtime.goexit" {
			continue
		}
		fr := newFrame(f.Function, f.File, f.Line)
		switch side, _ := origin.Of(f.Function, f.File); {
		case side == origin.Program || side == origin.System && len(out) > 0:
			out = append(out, fr)
		case len(out) == 0:
			inner = append(inner, fr)
		}
	}
	if len(out) == 0 {
		return inner
	}
	return out
}
