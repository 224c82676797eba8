// Package tenontest helps programs test what they compute with Tenon: an operation that fails ends one Go test and not the process, a
// leak fails the test and names its line, and tensors are compared with PyTorch's tolerances. It must not depend on what is tested.
package tenontest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
)

// Run opens a device, the processor or the one that s selects, and calls f with an Exec on it. An operation that fails in f ends the test
// with t.Fatal, and the message names the line of f that called it. When f returns, Run closes f's tensors, and compiled regions forget
// what they recorded. The test fails if memory of the device, or of the processor beside it, is then still in use, such as that of a module
// without [nn.Close] in a variable outside of f; the message names the lines that allocated it. Memory that nothing refers to any more,
// such as that of a module in a variable of f, is garbage and no leak. The test also fails on an error that the device reports late, and on
// what the memory checks found. When the test ends, the device is closed.
//
// Nothing is shared with other tests: device and processor, with their memory and random numbers, are the test's own. A tensor that was
// made elsewhere comes to f's Exec by To. So tests on the processor and on simulated devices may run in parallel. Tests on one GPU should
// not: a fault of one loses the GPU to all, and some calls break captures of others.
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
	x := open(t, selector)
	err = x.Do(func(x *tenon.Exec) error {
		f(x)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(core.Forget((*core.Exec)(x)), x.Device().Synchronize()); err != nil {
		t.Fatal(err)
	}
	text, err := left((*core.Exec)(x))
	if host := x.Host(); err == nil && text == "" && host.Device() != x.Device() {
		text, err = left((*core.Exec)(host))
	}
	if err != nil {
		t.Fatal(err)
	}
	if text != "" {
		t.Error(text)
	}
}

// open opens a device and a processor until the test ends.
func open(t testing.TB, s tenon.Selector) *tenon.Exec {
	t.Helper()
	opened, err := tenon.Open(s)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := core.Alone((*core.Exec)(opened))
	if err != nil {
		t.Fatal(err)
	}
	x := (*tenon.Exec)(alone)
	for _, x := range []*tenon.Exec{x.Host(), x} {
		t.Cleanup(func() {
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		})
		// On a device without a history, leaks are reported without their lines.
		_ = x.Device().RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryState, Context: cuda.ContextAlloc, Stacks: cuda.StacksGo})
	}
	return x
}

// mostLines bounds the lines that a report names.
const mostLines = 10

// left says what is left open on x's device, or returns "". The error is what the memory checks found there.
func left(x *core.Exec) (text string, err error) {
	bytes, lines, graphs, err := x.Device().Left()
	if err == nil {
		err = x.Device().MemoryDefects()
	}
	if bytes == 0 || err != nil {
		return "", err
	}
	text = fmt.Sprintf("the test left %d bytes of %s open: "+
		"close modules with nn.Close, and optimizers, scalers, graphs and tensors that were kept with their Close",
		bytes, x.Device().Info().Name)
	return text + listed("; they were made at", lines) + listed("; graphs are open that hold what they use, captured at", graphs), nil
}

// listed returns what and lines below it, or "" if there are none.
func listed(what string, lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	if len(lines) > mostLines {
		lines = append(lines[:mostLines], "…")
	}
	return what + "\n\t" + strings.Join(lines, "\n\t")
}
