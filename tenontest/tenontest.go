// Package tenontest helps programs test what they compute with Tenon: an operation that fails ends one Go test and not the process, what a
// test leaves open is an error that names its line, and tensors are compared with PyTorch's tolerances. It must not depend on what is
// tested.
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

// Run calls f with an Exec of a device that is opened for it: the processor's, or the one that s selects. Every operation that fails in f
// ends the test with t.Fatal, and the message has the line of f that called it. When f returns its tensors are closed. What still holds
// memory of the device then, such as a module without [nn.Close] or an optimizer without Close, fails the test, with the lines that took
// the memory; so does an error that the device found late.
//
// Tests of the processor and of simulated devices may run in parallel, since each has a device of its own. Those of one GPU may not: the
// memory of others would count.
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

// leaks is what a device held before a test.
type leaks struct {
	dev    *cuda.Device
	before int64
}

func watch(dev *cuda.Device) leaks {
	// A device without a history has its leaks reported without their lines.
	_ = dev.RecordMemoryHistory(cuda.History{Enabled: "state", Context: "alloc", Stacks: "go"})
	return leaks{dev, dev.MemoryAllocated()}
}

// report says what the device holds besides, if anything.
func (l leaks) report() string {
	held := l.dev.MemoryAllocated() - l.before
	for range 2 { // a tensor that nothing refers to goes with a collection, and so does what it held
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

// mostLines is how many lines a report names.
const mostLines = 10

// lines are those of the program that took what is held.
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

// programs is the innermost line of a stack that is the program's.
func programs(stack []cuda.Frame) string {
	for _, f := range stack {
		if side, _ := origin.Of(f.Name, f.File); side == origin.Program {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
	}
	return ""
}
