package agree

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/kir"
)

// poisoned is set in the process that loses its device on purpose.
const poisoned = "-test.run=^TestFailedAssertInChild$"

// failingAssert asserts that every thread's number is below 40.
func failingAssert() kernelCase {
	p := named("failing_assert")
	p.Locs = []kir.Loc{{}, {File: "example.go", Line: 77}}
	tid := p.special(kir.TidX)
	p.do(kir.Instr{Op: kir.OpAssert, Type: dtype.Bool, Text: "thread below 40"}, p.op(kir.OpLt, dtype.Int32, dtype.Bool, tid, p.i32(40)))
	return kernelCase{prog: p.Program, grid: 1, block: threads}
}

// TestFailedAssert checks that a failed assertion stops the device with its message and Go line, in a separate process.
func TestFailedAssert(t *testing.T) {
	openGPU(t)
	out, err := exec.Command(os.Args[0], poisoned, "-test.v").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"example.go:77", "thread below 40", "failing_assert"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the device did not print %q:\n%.2000s", want, out)
		}
	}
}

// TestFailedAssertInChild is the other half of TestFailedAssert.
func TestFailedAssertInChild(t *testing.T) {
	alone := false
	for _, a := range os.Args {
		alone = alone || a == poisoned
	}
	if !alone {
		t.Skip("runs alone, in a process that TestFailedAssert starts")
	}
	m := openGPU(t)
	c := failingAssert()
	m.load(t, []*kir.Program{c.prog})
	if _, err := m.run(c); !errors.Is(err, driver.Assert) {
		t.Fatalf("a failed assertion gave %v, not error 710", err)
	}
}
