package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/nn"
	"tenon.dev/tenontest"
)

// learned trains and returns the printed output and the bits of parameters and buffers.
func learned(t *testing.T, o options) string {
	t.Helper()
	var out strings.Builder
	tenontest.Run(t, func(x *tenon.Exec) {
		x.Device().Generator().SetSeed(3)
		model := newModel(x)
		defer nn.Close(model)
		if err := train(x, model, o, &out); err != nil {
			t.Fatal(err)
		}
		for name, p := range nn.StateDict(model) {
			bits, err := x.Bytes(p)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "%s %x\n", name, bits)
		}
		if o.compile {
			trees, ok := compile.TreesOf(x)
			if !ok || trees.Graphs == 0 {
				t.Errorf("nothing ran as a graph: %+v", trees)
			}
			if err := compile.Reset(x); err != nil {
				t.Error(err)
			}
		}
	}, tenon.Sim(0))
	return out.String()
}

// Steps run as graphs give the same bits as eager ones, and half precision gives other bits than full precision.
func TestCompile(t *testing.T) {
	eager := learned(t, options{steps: 10, amp: true})
	if got := learned(t, options{steps: 10, amp: true, compile: true}); got != eager {
		t.Errorf("with graphs it learns\n%.80s\nwithout\n%.80s", got, eager)
	}
	if got := learned(t, options{steps: 10}); got == eager {
		t.Error("without half precision it learns the same")
	}
}

// The network learns which quadrant is bright, and the snapshot contains the program's stacks.
func TestRun(t *testing.T) {
	var out strings.Builder
	snapshot := filepath.Join(t.TempDir(), "resnet.pickle")
	if err := run(options{device: "sim", steps: 30, amp: true, snapshot: snapshot}, &out); err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`step 10  loss (.*)\nstep 20  .*\nstep 30  loss (.*)\naccuracy (.*)\n`).FindStringSubmatch(out.String())
	if m == nil {
		t.Fatalf("it printed\n%s", out.String())
	}
	var n [3]float64
	for i := range n {
		n[i], _ = strconv.ParseFloat(m[i+1], 64)
	}
	if n[1] > n[0]/2 || n[2] < 0.9 {
		t.Errorf("it printed\n%s", out.String())
	}
	s, err := cuda.ReadSnapshotFile(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	seen := false
	for _, e := range s.Trace(0) {
		for _, f := range e.Frames {
			seen = seen || strings.Contains(f.Name, "residual")
		}
	}
	if !seen {
		t.Errorf("of %d events none is of the program", len(s.Trace(0)))
	}
}
