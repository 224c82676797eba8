package compile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

func has(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

func TestExplainRegion(t *testing.T) {
	x := openSim(t)
	r := compile.New()
	for i, n := range []int{64, 64, 64, 64, 32} {
		err := r.Do(x, func(x *tenon.Exec) error {
			a := x.Zeros([]int{n}, tenon.Float32)
			b := x.AddS(x.MulS(a, 2), float64(i))
			if _, err := tenon.Read[float32](x, b); err != nil {
				return err
			}
			b.Close()
			x.Exp(a).Close()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	e := r.Explain(x)
	e.Bandwidth = 1e9
	text := e.String()
	if len(e.Segments) < 2 || len(e.Forks) != 1 || len(e.Cuts) == 0 {
		t.Fatalf("got %+v", e)
	}
	if s := e.Segments[0]; s.Planning <= 0 || s.Building <= 0 || s.Recording <= 0 {
		t.Errorf("the first segment took %v, %v and %v", s.Planning, s.Building, s.Recording)
	} else if !strings.Contains(text, "\n  took "+s.Took()+"\n") {
		t.Errorf("%q is not in\n%s", s.Took(), text)
	}
	if s := e.Segments[0]; s.WarmUps != 1 || s.Recordings != 1 || s.Replays != 2 || len(s.Graphs) != 1 || s.Graphs[0].Kernels == 0 {
		t.Errorf("the first segment is %+v", s)
	}
	if f := e.Forks[0]; f.Differs == "" || !strings.Contains(f.Is, "explain_test.go:") {
		t.Errorf("the fork is %+v", f)
	}
	if c := e.Cuts[0]; c.Cause != "Read" || c.Times != 5 || !strings.Contains(c.At, "explain_test.go:") {
		t.Errorf("the cut is %+v", c)
	}
	fused := false
	for _, k := range e.Segments[0].Kernels {
		fused = fused || k.Fused && k.Bytes > 0 && len(k.Lines) > 0 && strings.Contains(k.Text, "Mul")
	}
	if !fused {
		t.Errorf("no fused kernel in %+v", e.Segments[0].Kernels)
	}
	has(t, text, "compile_test.TestExplainRegion.func1 on "+e.Device+": 5 runs")
	has(t, text, "2 replayed", "group {", "cut by Read", "fork at the first call", "at least", "pool: ")
	var file bytes.Buffer
	if err := e.WriteJSON(&file); err != nil {
		t.Fatal(err)
	}
	back, err := compile.ReadExplanations(&file)
	if err != nil || len(back) != 1 || !reflect.DeepEqual(back[0].String(), text) {
		t.Errorf("read back: %v, %v", back, err)
	}
	if all := compile.ExplainTrees(x); len(all.Segments) == 0 || all.Segments[0].Replays != 2 {
		t.Errorf("the trees: %v", all)
	}
}

// A warm-up plans and builds, a recording adds its own time, and replays add nothing.
func TestExplainTimes(t *testing.T) {
	x := openSim(t)
	r := compile.New()
	times := func(n int) compile.Segment {
		for range n {
			var y *tenon.Tensor
			must(t, r.Do(x, func(x *tenon.Exec) error {
				// no other test builds this kernel, which the process keeps
				y = x.Keep(x.Softmax(x.Atan(x.Erf(x.Sinh(x.Ones([]int{64, 64}, tenon.Float32)))), 1))
				return nil
			}))
			y.Close()
		}
		return r.Explain(x).Segments[0]
	}
	warm := times(1)
	if warm.Planning <= 0 || warm.Building <= 0 || warm.Recording != 0 || strings.Contains(warm.Took(), "record") {
		t.Errorf("the warm-up took %s", warm.Took())
	}
	recorded := times(1)
	if recorded.Recordings != 1 || recorded.Recording <= 0 || recorded.Building < warm.Building {
		t.Errorf("after the recording it is %s, before %s", recorded.Took(), warm.Took())
	}
	if again := times(5); again.Replays != 5 || again.Took() != recorded.Took() {
		t.Errorf("after %d replays it is %s, before %s", again.Replays, again.Took(), recorded.Took())
	}
	if (*compile.Segment)(nil).Took() != "" || (&compile.Segment{}).Took() != "" {
		t.Error("nothing took something")
	}
}

// An optimizer's step that reads halves in place of the gradients that would be made from them reads as many bytes as these have.
func TestExplainCountsHalves(t *testing.T) {
	x := openSim(t)
	step := func(opt compile.Opt) (n int) {
		p := nn.NewParam(x.Ones([]int{48, 32}, tenon.Float32))
		defer p.Close()
		in := x.Ones([]int{8, 48}, tenon.Float32)
		o, err := optim.NewSGD(iter.Seq2[string, *nn.Param](func(yield func(string, *nn.Param) bool) { yield("p", p) }))
		must(t, err)
		defer o.Close()
		r := compile.New(opt)
		must(t, r.Do(x, func(x *tenon.Exec) error {
			if err := x.Backward(x.Sum(x.Autocast(tenon.BFloat16).MatMul(in, p.Tensor()), nil)); err != nil {
				return err
			}
			defer p.SetGrad(nil)
			return o.Step(x)
		}))
		for _, k := range r.Explain(x).Segments[0].Kernels {
			if strings.HasPrefix(k.Name, "Foreach") {
				n += k.Bytes
			}
		}
		return n
	}
	if halves, wide := step(compile.Opt{}), step(compile.Opt{NoFusion: true}); wide < 2*4*48*32 || wide-halves != 2*48*32 {
		t.Errorf("the step moves %d bytes with a gradient of halves, and %d with one of float32", halves, wide)
	}
}

// A call that uses a part of a tensor, such as a row of a cache, counts what moves and not the tensor.
func TestExplainCountsWhatMoves(t *testing.T) {
	x := openSim(t)
	const rows, row = 1000, 16
	cache, k := x.Zeros([]int{rows, row}, tenon.Float32), x.Ones([]int{2, row}, tenon.Float32)
	out, at := x.Zeros([]int{2, row}, tenon.Float32), tenon.From(x, []int64{3, 5})
	picks, mean := x.Expand(x.Unsqueeze(at, 1), 2, row), x.Zeros(nil, tenon.Float32)
	const some, index = 4 * 2 * row, 8 * 2 // the bytes of two rows and of their indexes
	for name, c := range map[string]struct {
		call  func(x *tenon.Exec)
		bytes int
	}{
		"Scatter (IndexCopyInto)":  {func(x *tenon.Exec) { x.IndexCopyInto(cache, cache, 0, at, k) }, index + 2*some},
		"Scatter (IndexAddInto)":   {func(x *tenon.Exec) { x.IndexAddInto(cache, cache, 0, at, k) }, index + 3*some},
		"Scatter (IndexFillSInto)": {func(x *tenon.Exec) { x.IndexFillSInto(cache, cache, 0, at, 7) }, index + 4 + some},
		"Scatter (IndexPutInto)":   {func(x *tenon.Exec) { x.IndexPutInto(cache, k, at) }, index + 2*some},
		"Scatter":                  {func(x *tenon.Exec) { x.ScatterAddInto(cache, cache, 0, picks, k) }, index + 3*some},
		"Scatter (IndexCopy)": {func(x *tenon.Exec) {
			x.CopyInto(out, x.Narrow(x.IndexCopy(cache, 0, at, k), 0, 3, 2))
		}, index + some + 2*4*rows*row},
		"Gather (IndexSelect)": {func(x *tenon.Exec) { x.CopyInto(out, x.IndexSelect(cache, 0, at)) }, index + 2*some},
		"Gather":               {func(x *tenon.Exec) { x.GatherInto(out, cache, 0, picks) }, index + 2*some},
		"Embedding":            {func(x *tenon.Exec) { x.CopyInto(out, x.Embedding(at, cache)) }, index + 2*some},
		"CopyInto":             {func(x *tenon.Exec) { x.CopyInto(x.Narrow(cache, 0, 3, 2), k) }, 2 * some},
		"NLLLoss": {func(x *tenon.Exec) {
			x.CopyInto(mean, x.NLLLoss(x.Narrow(cache, 0, 0, 2), at))
		}, index + 2*4 + 4 + 4},
	} {
		r := compile.New()
		must(t, r.Do(x, func(x *tenon.Exec) error { c.call(x); return nil }))
		found := false
		for _, s := range r.Explain(x).Segments {
			for _, k := range s.Kernels {
				if k.Name == name {
					if found = true; k.Bytes != c.bytes {
						t.Errorf("%s moves %d bytes, want %d", name, k.Bytes, c.bytes)
					}
				}
			}
		}
		if !found {
			t.Errorf("no %s in %s", name, r.Explain(x))
		}
	}
}

// What a region's calls and cuts are named after is what the program called.
func TestExplainNames(t *testing.T) {
	x := openSim(t)
	w := newTraining(t, x)
	r := compile.New()
	for range 2 {
		if err := r.Do(x, func(x *tenon.Exec) error {
			loss := x.CrossEntropy(w.net.Forward(x, w.in), w.want)
			if _, err := x.Item(loss); err != nil {
				return err
			}
			if err := x.Backward(loss); err != nil {
				return err
			}
			return w.opt.Step(x)
		}); err != nil {
			t.Fatal(err)
		}
	}
	has(t, r.Explain(x).String(), "calls deferred", "cut by Read in Item at", "Foreach (AdamW)")
}

// A call has the name of its operation and of the method that the program called, if these differ; on a device without graphs the
// explanation says what has none.
func TestExplainNamesMethods(t *testing.T) {
	for _, sel := range []tenon.Selector{tenon.CPU(), tenon.Sim(64 << 20)} {
		x, err := tenon.Open(sel)
		must(t, err)
		x.Scope(func(x *tenon.Exec) {
			table, at, w := x.Ones([]int{4, 3}, tenon.Float32), x.Zeros([]int{2}, tenon.Int64), x.Ones([]int{3, 3}, tenon.Float32)
			out, region := x.Zeros([]int{2, 3}, tenon.Float32), compile.New()
			for range 2 {
				must(t, region.Do(x, func(x *tenon.Exec) error {
					x.CopyInto(out, x.Linear(x.IndexSelect(table, 0, at), w, nil))
					x.IndexCopyInto(table, table, 0, at, x.Neg(x.Ones([]int{2, 3}, tenon.Float32)))
					return nil
				}))
			}
			text := region.Explain(x).String()
			has(t, text, "Gather (IndexSelect)", "MatMul (Linear)", "(IndexCopyInto)", "  Full (Ones)")
			if x.Device() == x.Host().Device() {
				has(t, text, "without a graph: compile uses no graphs on the processor")
			}
			compile.Reset(x)
		})
		must(t, x.Close())
	}
}

func TestExplainCallable(t *testing.T) {
	x := openSim(t)
	a := tenon.From(x, make([]float32, 64), 64)
	net := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		x.AddSInto(a, a, 1)
		return x.MulS(a, 2)
	})
	net.Call(x, a).Close()
	e := net.Explain(x)
	if len(e.Segments) != 1 || e.Segments[0].Plain != 1 || len(e.Segments[0].Skips) != 1 || e.Segments[0].Skips[0].Remedy == "" {
		t.Errorf("got %+v", e.Segments)
	}
	has(t, e.String(), "skip: skipping cudagraphs due to mutated inputs", "\n    To avoid that, name the argument in Opt.Static")
}

func TestExplanationsOfDamagedFiles(t *testing.T) {
	for _, text := range []string{"", "{", "[]", `{"Format":2}`, "{\"Format\":1}\nx"} {
		if _, err := compile.ReadExplanations(strings.NewReader(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

func TestNoFurtherParts(t *testing.T) {
	for name, want := range map[string][2]bool{"TENON_COMPILE_GROUPS": {false, true}, "TENON_COMPILE_GRAPHS": {true, false}} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "0")
			x := openSim(t)
			a := tenon.From(x, make([]float32, 64), 64)
			r := compile.New()
			for range 4 {
				if err := r.Do(x, func(x *tenon.Exec) error {
					x.AddSInto(a, x.MulS(a, 2), 1)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			if s := r.Stats(x); s.Fused > 0 != want[0] || s.Recordings > 0 != want[1] {
				t.Errorf("got %+v", s)
			}
			if v, err := tenon.Read[float32](x, a); err != nil || v[0] != 15 {
				t.Errorf("got %v, %v", v[0], err)
			}
		})
	}
}

// The log numbers groups and graphs each by themselves.
func TestLogNumbersParts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	t.Setenv("TENON_COMPILE_LOG", file)
	x := openSim(t)
	a := tenon.From(x, make([]float32, 64), 64)
	for range 2 {
		r := compile.New()
		for range 3 {
			must(t, r.Do(x, func(x *tenon.Exec) error {
				x.AddSInto(a, x.MulS(a, 2), 1)
				return nil
			}))
		}
	}
	text, err := os.ReadFile(file)
	must(t, err)
	numbers := map[string][]int{}
	for dec := json.NewDecoder(bytes.NewReader(text)); dec.More(); {
		var p struct {
			Kind   string
			Number int
		}
		must(t, dec.Decode(&p))
		numbers[p.Kind] = append(numbers[p.Kind], p.Number)
	}
	for _, kind := range []string{"group", "graph"} {
		if n := numbers[kind]; len(n) < 2 || n[0] < 1 || n[1] != n[0]+1 {
			t.Errorf("the numbers of each %s are %v in\n%s", kind, n, text)
		}
	}
}

// The counts of a callable include its backward passes, and those of all recordings are the sums over their segments.
func TestExplainCountsAllSegments(t *testing.T) {
	x := openSim(t)
	w := tenon.From(x, make([]float32, 8), 8).SetRequiresGrad(true)
	net := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		b := x.Exp(x.Mul(a, w))
		must(t, compile.Break(x))
		return x.Mul(b, w)
	})
	for range 4 {
		x.Scope(func(x *tenon.Exec) {
			must(t, x.Backward(x.Sum(net.Call(x, x.Ones([]int{8}, tenon.Float32)), nil)))
			w.SetGrad(nil)
		})
	}
	e := net.Explain(x)
	if s := e.Stats; len(e.Segments) != 3 || s.WarmUps != 3 || s.Recordings != 3 || s.Replays != 6 || s.Runs != 4 {
		t.Errorf("%d segments, %+v", len(e.Segments), s)
	}
	has(t, e.String(), "4 runs", "3 warm-up, 3 recorded, 6 replayed")
	e = compile.ExplainTrees(x)
	if s := e.Stats; len(e.Segments) != 3 || s.WarmUps != 3 || s.Recordings != 3 || s.Replays != 6 {
		t.Errorf("all recordings: %d segments, %+v", len(e.Segments), s)
	}
	if text := e.String(); strings.Contains(text, "runs, ") || strings.Contains(text, "kernels: 0;") {
		t.Errorf("all recordings: it prints what it does not know: %s", text)
	}
}

// What Opt.Branches keeps from being remembered is told with the line and what helps: branches that were forgotten, and calls in Frozen.
func TestExplainLimits(t *testing.T) {
	x := openSim(t)
	r := compile.New(compile.Opt{Branches: 2, DynamicLimit: -1})
	run := func(n int) { must(t, r.Do(x, func(x *tenon.Exec) error { chain(x, n, 2); return nil })) }
	warnings(func() {
		for n := 1; n <= 5; n++ {
			run(n)
		}
	})
	must(t, compile.Frozen(x, func(*tenon.Exec) error { run(6); run(7); run(5); return nil }))
	e := r.Explain(x)
	if s := e.Stats; s.Forgotten != 3 || s.Unknown != 12 || len(e.Limits) != 2 {
		t.Errorf("%+v, %+v", s, e.Limits)
	}
	for _, l := range e.Limits {
		if l.Times == 0 || l.Remedy == "" || !strings.Contains(l.Text, "eviction_test.go:") {
			t.Errorf("%+v", l)
		}
	}
	has(t, e.String(), "limit, 12 times: a call ran at once", "limit, 3 times: what was used least recently was forgotten", "Opt.Branches")
}

// A warning about the end of a segment that no graph can contain is in the explanation.
func TestExplainSkippedCuts(t *testing.T) {
	x := openSim(t)
	net := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		b := x.Exp(a)
		_, err := tenon.Read[float32](x, b)
		must(t, err)
		return x.MulS(b, 2)
	})
	warnings(func() {
		for range 3 {
			net.Call(x, x.Ones([]int{8}, tenon.Float32)).Close()
		}
	})
	e := net.Explain(x)
	if len(e.Skips) != 1 || e.Skips[0].Times != 1 {
		t.Errorf("%+v", e.Skips)
	}
	has(t, e.String(), "skip: skipping cudagraphs due to cpu device (_local_scalar_dense)", "explain_test.go:")
}

// The segments that ran most come first, whichever came first: a training step's first run, which creates the optimizer's state, is last.
// Segments that ran equally often keep the order in which they ran.
func TestExplainBeginsWithWhatRuns(t *testing.T) {
	for _, sel := range []tenon.Selector{tenon.CPU(), tenon.Sim(64 << 20)} {
		x, err := tenon.Open(sel)
		must(t, err)
		x.Scope(func(x *tenon.Exec) {
			w := newTraining(t, x)
			r, early := compile.New(), compile.New()
			for range 3 {
				must(t, early.Do(x, func(x *tenon.Exec) error { x.AddSInto(w.in, w.in, 0); return nil }))
			}
			for range 10 {
				must(t, r.Do(x, func(x *tenon.Exec) error {
					loss := x.CrossEntropy(w.net.Forward(x, w.in), w.want)
					must(t, compile.Break(x))
					w.opt.ZeroGrad()
					if err := x.Backward(loss); err != nil {
						return err
					}
					return w.opt.Step(x)
				}))
			}
			e := r.Explain(x)
			var got []string
			for _, s := range e.Segments {
				got = append(got, fmt.Sprint(s.WarmUps+s.Recordings+s.Replays+s.Plain, " ", s.Kernels[len(s.Kernels)-1].Name))
			}
			want := "[10 CrossEntropy 9 Foreach (AdamW) 1 Foreach (AdamW)]"
			if fmt.Sprint(got) != want {
				t.Errorf("on %v: %v, want %s\n%s", sel, got, want, e)
			}
			got = nil
			for _, s := range compile.ExplainTrees(x).Segments {
				got = append(got, fmt.Sprint(s.Replays))
			}
			if x.Device() != x.Host().Device() && fmt.Sprint(got) != "[8 7 1]" {
				t.Errorf("all recordings were replayed %v times", got)
			}
			compile.Reset(x)
		})
		must(t, x.Close())
	}
}

// A region that a session never ran has an explanation, which names the device.
func TestExplainBeforeTheFirstRun(t *testing.T) {
	x := openSim(t)
	net := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.MulS(a, 2) })
	for _, e := range []*compile.Explanation{compile.New().Explain(x), net.Explain(x)} {
		if e.Device == "" || e.Stats != (compile.Stats{}) || len(e.Segments) != 0 {
			t.Errorf("got %+v", e)
		}
		has(t, e.String(), e.Device, "segments: 0 warm-up, 0 recorded, 0 replayed, 0 without a graph")
	}
}

// A fork names the two operations, or what else differs first.
func TestExplainForks(t *testing.T) {
	x := openSim(t)
	a := x.Ones([]int{4}, tenon.Float32)
	half := x.ToDType(a, tenon.Float16)
	for want, f := range map[string]func(x *tenon.Exec, second bool){
		"operation: Exp, Sin": func(x *tenon.Exec, second bool) {
			if second {
				x.Sin(a)
			} else {
				x.Exp(a)
			}
		},
		"type of operand 0: float32, float16": func(x *tenon.Exec, second bool) {
			if second {
				x.Exp(half)
			} else {
				x.Exp(a)
			}
		},
		"number of operands: 2, 3": func(x *tenon.Exec, second bool) {
			if second {
				x.Cat([]*tenon.Tensor{a, a, a}, 0)
			} else {
				x.Cat([]*tenon.Tensor{a, a}, 0)
			}
		},
	} {
		r := compile.New()
		for i := range 2 {
			must(t, r.Do(x, func(x *tenon.Exec) error { f(x, i == 1); return nil }))
		}
		if forks := r.Explain(x).Forks; len(forks) != 1 || forks[0].Differs != want {
			t.Errorf("%+v, want %s", forks, want)
		}
	}
}
