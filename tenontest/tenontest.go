// Package tenontest helps programs test what they compute with Tenon: an operation that fails ends one Go test and not the process, a
// leak fails the test and names its line, and tensors are compared with PyTorch's tolerances. It must not depend on what is tested.
package tenontest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
	"tenon.dev/internal/origin"
)

// Run opens a device, the processor or the one that s selects, and calls f with an Exec on it. An operation that fails in f ends the test
// with t.Fatal, and the message names the line of f that called it. Run closes f's tensors when f returns. The test fails if anything
// then still holds memory of the device, such as a module without [nn.Close] or an optimizer without Close; the message names the lines
// that allocated the memory. It also fails on an error that the device reports late.
//
// Tests on the processor and on simulated devices may run in parallel, since each has its own device. Tests on one GPU must not, since
// each would count the others' memory.
//
// [nn.Close]: https://pkg.go.dev/tenon.dev/nn#Close
func Run(t testing.TB, f func(x *tenon.Exec), s ...tenon.Selector) {
	t.Helper()
	if len(s) == 0 {
		s = []tenon.Selector{tenon.CPU()}
	}
	selector, err := core.Only("tenontest.Run", s)
	if err != nil {
		t.Fatal(err)
	}
	x, err := tenon.Open(selector)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	l := watch(x.Device())
	err = x.Do(func(x *tenon.Exec) error {
		f(x)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Device().Synchronize(); err != nil {
		t.Fatal(err)
	}
	if text := l.report(); text != "" {
		t.Error(text)
	}
}

// leaks records what a device held before a test.
type leaks struct {
	dev    *cuda.Device
	before int64
}

func watch(dev *cuda.Device) leaks {
	// On a device without a history, leaks are reported without their lines.
	_ = dev.RecordMemoryHistory(cuda.History{Enabled: "state", Context: "alloc", Stacks: "go"})
	return leaks{dev, dev.MemoryAllocated()}
}

// report says what the device holds beyond that, or returns "".
func (l leaks) report() string {
	held := l.dev.MemoryAllocated() - l.before
	for range 2 { // a collection frees unreachable tensors, the next one what these held
		if held > 0 {
			runtime.GC()
			held = l.dev.MemoryAllocated() - l.before
		}
	}
	if held <= 0 {
		return ""
	}
	text := fmt.Sprintf("the test left %d bytes of %s open: "+
		"close modules with nn.Close, and optimizers, scalers, graphs and tensors that were kept with their Close",
		held, l.dev.Name())
	if lines := l.lines(); len(lines) > 0 {
		text += "; they were made at\n\t" + strings.Join(lines, "\n\t")
	}
	return text
}

// mostLines bounds the lines that a report names.
const mostLines = 10

// lines returns the program's lines that allocated the memory still held.
func (l leaks) lines() (lines []string) {
	s, err := l.dev.Snapshot()
	if err != nil {
		return nil
	}
	for _, segment := range s.Segments() {
		for _, b := range segment.Blocks {
			line := programs(b.Frames)
			if b.State != "active_allocated" || line == "" || slices.Contains(lines, line) {
				continue
			}
			if len(lines) == mostLines {
				return append(lines, "…")
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// programs returns the innermost line of a stack that belongs to the program.
func programs(stack []cuda.Frame) string {
	for _, f := range stack {
		if side, _ := origin.Of(f.Name, f.File); side == origin.Program {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
	}
	return ""
}
