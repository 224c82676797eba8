package compile_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// overrun writes the first n elements of y.
var overrun = kernel.Build("overrun", func(k *kernel.Builder) {
	n := k.Scalar("n", dtype.Int64)
	y := k.Buffer("y", dtype.Float32)
	k.ForEach(n, func(i kernel.Value) { y.Store(i, k.Const(dtype.Float32, 1)) })
})

// stray writes an element of y.
var stray = kernel.Build("stray", func(k *kernel.Builder) {
	k.Threads(1)
	at := k.Scalar("at", dtype.Int64)
	y := k.Buffer("y", dtype.Float32)
	y.Store(at, k.Const(dtype.Float32, 1))
})

// lineOf returns the calling file and its line that ends in a comment of that text.
func lineOf(t *testing.T, comment string) string {
	t.Helper()
	_, path, _, _ := runtime.Caller(1)
	file := filepath.Base(path)
	text, err := os.ReadFile(file)
	must(t, err)
	for i, l := range strings.Split(string(text), "\n") {
		if strings.HasSuffix(l, " // "+comment) {
			return fmt.Sprintf("%s:%d", file, i+1)
		}
	}
	t.Fatalf("no line ends in // %s", comment)
	return ""
}

// one is a grid of one thread.
var one = tenon.LaunchShape{Grid: [3]int{1}, Block: [3]int{1}}

// watched are programs that have a bug, most of them in a region.
var watched = map[string]func(t *testing.T, x *tenon.Exec){
	"one call": region(func(x *tenon.Exec, out *tenon.Tensor, _ int64) {
		e := x.Empty([]int{64}, tenon.Float32) // empty of one
		x.SumInto(out, e, nil)                 // sum of one
	}),
	"a chain": region(func(x *tenon.Exec, out *tenon.Tensor, _ int64) {
		e := x.Empty([]int{64}, tenon.Float32) // empty of a chain
		e = x.MulS(e, 2)                       // first of a chain
		x.SumInto(out, x.Exp(e), nil)          // last of a chain
	}),
	"a graph": region(func(x *tenon.Exec, out *tenon.Tensor, run int64) {
		y := x.Zeros([]int{256}, tenon.Float32)
		x.Launch(stray, one, tenon.Integer(run/4*(1<<30)), tenon.Out(y)) // launch of a graph
		x.SumInto(out, y, nil)
	}),
	"a capture": func(t *testing.T, x *tenon.Exec) {
		y := x.Zeros([]int{256}, tenon.Float32)
		g, err := x.Capture(func(x *tenon.Exec) {
			x.Launch(stray, one, tenon.Integer(1<<30), tenon.Out(y)) // launch of a capture
		})
		must(t, err)
		must(t, x.Replay(g))
	},
}

// region returns a program that runs a step in a region five times.
func region(step func(x *tenon.Exec, out *tenon.Tensor, run int64)) func(t *testing.T, x *tenon.Exec) {
	return func(t *testing.T, x *tenon.Exec) {
		r, out := compile.New(), x.Zeros(nil, tenon.Float32)
		for run := range int64(5) {
			must(t, r.Do(x, func(x *tenon.Exec) error { step(x, out, run); return nil }))
		}
		fmt.Println(r.Stats(x).Replays, "replays")
	}
}

// A checker's findings in what a region runs, one by one, fused or in a graph, name the line of the call, or the lines, and not that of Do.
// So do the allocations in them. Those in a captured graph name the call that was captured.
func TestFindingsNameTheCall(t *testing.T) {
	if name := os.Getenv("TENON_TEST_WATCHED"); name != "" {
		x, err := tenon.Open(tenon.Sim(0))
		must(t, err)
		watched[name](t, x)
		_ = x.Synchronize() // the device may be lost
		return
	}
	for name, c := range map[string]struct {
		tools string
		want  []string
	}{
		"one call": {"initcheck", []string{"at the call in @sum of one", "at the allocation in @empty of one", "0 replays"}},
		"a chain": {"initcheck", []string{"of the calls at @first of a chain, @last of a chain\n", "at the call in @last of a chain",
			"at the allocation in @empty of a chain", "0 replays"}},
		"a graph":   {"memcheck,cached", []string{"at the call in @launch of a graph", "3 replays"}},
		"a capture": {"memcheck", []string{"at the call in @launch of a capture"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestFindingsNameTheCall$")
			cmd.Env = append(os.Environ(), "TENON_TEST_WATCHED="+name, "TENON_CHECK=-", "TENON_CHECK_TOOLS="+c.tools)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			frames := regexp.MustCompile(`\n=+ +Host Frame: \S+ in `).ReplaceAllString(string(out), " in ")
			for _, want := range c.want {
				want = regexp.MustCompile("@[a-z ]+").ReplaceAllStringFunc(want, func(m string) string { return lineOf(t, m[1:]) })
				if !strings.Contains(frames, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

// A guard zone that a kernel in a region has overwritten belongs to the line that made the tensor.
func TestGuardsNameTheCall(t *testing.T) {
	x := open(t)
	d := x.Device()
	d.SetMemoryChecks(cuda.MemoryChecks{Guard: true})
	must(t, d.RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryState, Context: cuda.ContextState}))
	must(t, compile.New().Do(x, func(x *tenon.Exec) error {
		y := x.Zeros([]int{256}, tenon.Float32) // guarded
		x.Launch(overrun, tenon.Over(260), tenon.Integer(260), tenon.Out(y))
		return nil
	}))
	if err := d.MemoryDefects(); err == nil || !strings.HasSuffix(err.Error(), lineOf(t, "guarded")) {
		t.Errorf("got %v, want %s", err, lineOf(t, "guarded"))
	}
}

// The history shows the stack of the call that made a tensor, also where a graph made it and where it was moved to before the next run, and
// nothing that is inside of the region.
func TestStacksOfRegions(t *testing.T) {
	x := open(t)
	dev := x.Device()
	must(t, dev.RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryAll, Context: cuda.ContextAlloc, Stacks: cuda.StacksGo}))
	a := x.Ones([]int{64}, tenon.Float32)
	r := compile.New()
	for range 4 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			b := x.Neg(a)
			y = x.Keep(x.Exp(b)) // made for a history
			return nil
		}))
		defer y.Close()
	}
	s, err := dev.Snapshot()
	must(t, err)
	is := func(what string, frames []cuda.Frame) {
		if at := fmt.Sprintf("%s:%d", filepath.Base(frames[1].File), frames[1].Line); frames[0].Name != "tenon.(*Exec).Exp" ||
			at != lineOf(t, "made for a history") || strings.Contains(fmt.Sprint(frames), "compile.(*") {
			t.Errorf("the stack of %s is %v", what, frames)
		}
	}
	events, blocks := 0, 0
	for _, e := range s.Trace(dev.Ordinal()) {
		if e.Frames[0].Name != "tenon.(*Exec).Ones" {
			is(string(e.Action), e.Frames)
			events++
		}
	}
	for _, g := range s.Segments() {
		for _, b := range g.Blocks {
			if len(b.Frames) > 0 && b.Frames[0].Name != "tenon.(*Exec).Ones" {
				is("a block", b.Frames)
				blocks++
			}
		}
	}
	if events < 10 || blocks < 3 {
		t.Errorf("%d events and %d blocks", events, blocks)
	}
}
