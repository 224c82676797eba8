package tenon_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/fault"
	"tenon.dev/internal/gpt2"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/profile"
)

// captured captures f and closes the graph when the test ends.
func captured(t *testing.T, x *tenon.Exec, f func(x *tenon.Exec)) *tenon.Graph {
	t.Helper()
	g, err := x.Capture(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

func replayed(t *testing.T, x *tenon.Exec, g *tenon.Graph) {
	t.Helper()
	if err := x.Replay(g); err != nil {
		t.Fatal(err)
	}
}

// replays returns the indexes of the replays and, for each, those of its operations.
func replays(p *profile.Profile) (all []int, parts [][]int) {
	at := map[int]int{}
	for i, o := range p.Ops {
		if o.Kind == profile.KindGraph {
			at[i] = len(all)
			all = append(all, i)
			parts = append(parts, nil)
		} else if k, ok := at[o.Parent]; ok && o.Parent >= 0 {
			parts[k] = append(parts[k], i)
		}
	}
	return all, parts
}

// checkReplay checks that the times of a replay's kernels lie within the replay's time, and that tables count them once.
func checkReplay(t *testing.T, p *profile.Profile, i int, parts []int) {
	t.Helper()
	o := &p.Ops[i]
	if o.Note != "" {
		t.Errorf("the replay has no twin: %s", o.Note)
		return
	}
	w := slices.IndexFunc(o.Kernels, func(k profile.Kernel) bool { return k.Whole })
	if w < 0 || !o.Kernels[w].Timed {
		t.Errorf("the replay has the kernels %+v", o.Kernels)
		return
	}
	whole, sum := o.Kernels[w], o.Device()
	for _, k := range parts {
		part := &p.Ops[k]
		sum += part.Device()
		for _, n := range part.Kernels {
			if !n.Timed || n.Begin < whole.Begin || n.End > whole.End || n.End <= n.Begin {
				t.Errorf("%s of %s took from %v to %v in a replay from %v to %v", n.Name, part.Name, n.Begin, n.End, whole.Begin, whole.End)
			}
		}
	}
	if took := whole.End - whole.Begin; sum > took || sum == 0 {
		t.Errorf("the kernels of a replay of %v took %v", took, sum)
	}
}

// A profiler that sees the capture lists it, and each replay has its operations with their times.
func TestProfileCapture(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	a := tenon.From(x, make([]float32, 64))
	x.Mul(x.Exp(a), a)
	var line, recorded string
	p := profiled(t, x, func() {
		recorded = lineOf(1)
		g := captured(t, x, func(x *tenon.Exec) { x.Mul(x.Exp(a), a) })
		line = lineOf(1)
		if err := x.Replay(g); err != nil {
			t.Fatal(err)
		}
	})
	all, parts := replays(p)
	if len(all) != 1 || len(parts[0]) != 2 {
		t.Fatalf("the replays are %v of %v", all, parts)
	}
	var names []string
	for k, name := range []string{"Exp", "Mul"} {
		first := slices.IndexFunc(p.Ops, func(o profile.Op) bool { return o.Name == name })
		c, o := &p.Ops[first], &p.Ops[parts[0][k]]
		if !c.Captured || len(c.Kernels) != 1 || c.Kernels[0].Timed || c.Device() != 0 {
			t.Errorf("the captured operation is %+v", c)
		}
		if o.Name != name || o.Captured || o.Device() == 0 || len(o.Kernels) != 1 || o.Bytes != c.Bytes || o.FLOPs != 64 ||
			filepath.Base(p.Line(parts[0][k])) != recorded {
			t.Errorf("the replayed operation at %s is %+v", p.Line(parts[0][k]), o)
		}
		names = append(names, c.Kernels[0].Name)
	}
	o := &p.Ops[all[0]]
	if filepath.Base(p.Line(all[0])) != line || !slices.Equal(o.Nodes, names) || o.Device() != 0 {
		t.Errorf("the replay at %s is %+v", p.Line(all[0]), o)
	}
	checkReplay(t, p, all[0], parts[0])
	inOrder(t, p, true)
}

// ramp returns small numbers.
func ramp(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i%7) / 8
	}
	return v
}

// trainingStep captures a training step that leaves its loss in the returned tensor.
func trainingStep(t *testing.T, x *tenon.Exec) (g *tenon.Graph, loss *tenon.Tensor, params []*tenon.Tensor, product, square string) {
	if err := x.Generator().SetSeed(3); err != nil {
		t.Fatal(err)
	}
	net := nn.Sequential{nn.NewLinear(x, 8, 16), nn.ReLU{}, nn.NewDropout(0.5), nn.NewLinear(x, 16, 4)}
	for _, p := range nn.Params(net) {
		params = append(params, p.Tensor())
	}
	opt, err := optim.NewSGD(nn.Params(net), optim.SGDOpt{LR: 0.1, Momentum: 0.9})
	if err != nil {
		t.Fatal(err)
	}
	in := x.RandN([]int{32, 8}, tenon.Float32)
	step := func(x *tenon.Exec) *tenon.Tensor {
		product = lineOf(1)
		y := net.Forward(x, in)
		square = lineOf(1)
		l := x.Mean(x.Mul(y, y), nil)
		if err := x.Backward(l); err != nil {
			t.Fatal(err)
		}
		if err := opt.Step(x); err != nil {
			t.Fatal(err)
		}
		opt.ZeroGrad()
		return x.Detach(l)
	}
	x.Scope(func(x *tenon.Exec) { step(x) })
	g = captured(t, x, func(x *tenon.Exec) { loss = step(x) })
	return g, loss, params, product, square
}

// A graph captured before the profiler started shows its operations too, and its replays give the same bits.
func TestProfileReplayTraining(t *testing.T) {
	devices := map[string]tenon.Selector{"sim": tenon.Sim(0), "cpu": tenon.CPU()}
	if tenon.GPUs() > 0 {
		devices["cuda"] = tenon.CUDA(0)
	}
	for name, device := range devices {
		t.Run(name, func(t *testing.T) {
			const runs = 5
			var want, got [][]float32
			var p *profile.Profile
			var product, square string
			for _, seen := range []bool{false, true} {
				x := testdevice.Open(t, device)
				g, loss, params, at, squared := trainingStep(t, x)
				product, square = at, squared
				var all [][]float32
				run := func() {
					for range runs {
						replayed(t, x, g)
						all = append(all, testdevice.Read[float32](t, x, loss))
					}
					for _, w := range params {
						all = append(all, testdevice.Read[float32](t, x, w))
					}
				}
				if want = got; seen {
					p = profiled(t, x, run)
				} else {
					run()
				}
				got = all
			}
			for i := range want {
				if !slices.Equal(want[i], got[i]) {
					t.Fatalf("value %d is %v under a profiler, %v without", i, got[i], want[i])
				}
			}
			all, parts := replays(p)
			if len(all) != runs {
				t.Fatalf("%d replays", len(all))
			}
			phases := map[profile.Phase]int{}
			for k, i := range all {
				if name != "cpu" { // its kernels record no times
					checkReplay(t, p, i, parts[k])
				}
				kernels := 0
				for _, j := range parts[k] {
					o := &p.Ops[j]
					phases[o.Phase]++
					kernels += len(o.Kernels)
					switch line := filepath.Base(p.Line(j)); {
					case o.Name == "MatMul":
						if line != product || o.Module != "Sequential/Linear" || o.FLOPs == 0 || len(o.Inputs) < 2 || len(o.Outputs) != 1 ||
							o.Compute != "float32" || o.Phase == profile.Forward && o.Within != "Linear" {
							t.Errorf("%s product at %s, not %s: %+v", o.Phase, line, product, o)
						}
					case o.Name == "Mul" && o.Phase == profile.Forward:
						if line != square {
							t.Errorf("the square is at %s, not %s", line, square)
						}
					}
				}
				if kernels < len(p.Ops[i].Nodes) || len(p.Ops[i].Nodes) < 10 {
					t.Errorf("%d of %d kernels belong to operations", kernels, len(p.Ops[i].Nodes))
				}
			}
			if phases[profile.Forward] == 0 || phases[profile.Backward] == 0 || phases[profile.Optimizer] == 0 {
				t.Errorf("the operations are of %v", phases)
			}
			inOrder(t, p, true)
		})
	}
}

// A captured derivative of a call before the capture belongs to no operation of the replay: here Cos and Mul, like the first gradients.
func TestProfileReplayOfEarlierForward(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	w := x.Full([]int{4}, 2, tenon.Float32).SetRequiresGrad(true)
	y := x.Sum(x.Sin(w), nil)
	g := captured(t, x, func(x *tenon.Exec) {
		z := x.Sum(x.Exp(w), nil)
		for _, v := range []*tenon.Tensor{y, z} {
			if _, err := x.Grad([]*tenon.Tensor{v}, []*tenon.Tensor{w}); err != nil {
				t.Error(err)
			}
		}
	})
	p := profiled(t, x, func() { replayed(t, x, g) })
	of := map[string]int{}
	for _, o := range p.Ops {
		switch {
		case o.Phase != profile.Backward:
		case o.Forward < 0:
			of["none"]++
		default:
			of[p.Ops[o.Forward].Name]++
		}
	}
	if want := map[string]int{"Exp": 1, "none": 4}; !maps.Equal(of, want) {
		t.Errorf("the derivatives are of %v", of)
	}
}

// Work on several streams has times, one after the other.
func TestProfileReplayBranches(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0)).NoGrad()
	a := tenon.From(x, []float32{1, 2, 3, 4, 5, 6, 7, 8}, 2, 4)
	st, err := x.Device().Stream()
	if err != nil {
		t.Fatal(err)
	}
	var out *tenon.Tensor
	g := captured(t, x, func(x *tenon.Exec) {
		b := x.Exp(a)
		c := x.On(st).Mul(b, a)
		d := x.Add(b, a)
		out = x.Sub(c, d)
	})
	replayed(t, x, g)
	first := testdevice.Read[float32](t, x, out)
	x.CopyInto(a, tenon.From(x, []float32{1, 2, 3, 4, 5, 6, 7, 9}, 2, 4))
	replayed(t, x, g)
	want := testdevice.Read[float32](t, x, out)
	x.FillInto(out, 3)
	var got []float32
	p := profiled(t, x, func() {
		replayed(t, x, g)
		got = testdevice.Read[float32](t, x, out)
	})
	if !slices.Equal(got, want) || slices.Equal(got, first) {
		t.Errorf("the profiled replay gives %v, not %v", got, want)
	}
	all, parts := replays(p)
	checkReplay(t, p, all[0], parts[0])
	var ops []string
	for _, i := range parts[0] {
		ops = append(ops, p.Ops[i].Name)
	}
	if fmt.Sprint(ops) != "[Exp Mul Add Sub]" {
		t.Errorf("the operations are %v", ops)
	}
	inOrder(t, p, true)
}

// Fills are nodes of a graph too, and copies are kernels of one.
func TestProfileReplayMoves(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	const n = 1 << 18
	w := tenon.From(x, ramp(n)).SetRequiresGrad(true)
	var copied, grad *tenon.Tensor
	var line string
	g := captured(t, x, func(x *tenon.Exec) {
		copied = x.NoGrad().Clone(w)
		line = lineOf(1)
		part := x.Narrow(w, 0, 5, 10)
		if err := x.Backward(x.Sum(part, nil)); err != nil {
			t.Fatal(err)
		}
		grad = w.Grad()
	})
	x.NoGrad().FillInto(grad, 9)
	var got, slope []float32
	p := profiled(t, x, func() {
		replayed(t, x, g)
		got, slope = testdevice.Read[float32](t, x, copied), testdevice.Read[float32](t, x, grad)
	})
	if !slices.Equal(got, ramp(n)) || slope[4] != 0 || slope[5] != 1 || slope[15] != 0 {
		t.Errorf("the profiled replay gives the gradient %v", slope[:20])
	}
	all, parts := replays(p)
	checkReplay(t, p, all[0], parts[0])
	kernels := map[string]string{}
	for _, i := range parts[0] {
		for _, k := range p.Ops[i].Kernels {
			kernels[k.Name] = p.Ops[i].Name
			if k.Name == "fill" && filepath.Base(p.Line(i)) != line { // the fill of an operation without work
				t.Errorf("the fill is at %s, not %s", p.Line(i), line)
			}
		}
	}
	if kernels["pw_copy_f32_f32_f32_i32_v4"] != "Copy" || kernels["fill"] != "ViewBackward" {
		t.Errorf("the kernels are of %v", kernels)
	}
}

// A compiled region's operations are there when they are called, and have their times from the replay, as fused kernels do.
func TestProfileReplayRegion(t *testing.T) {
	for _, from := range []int{0, 4} { // before and after the region is recorded
		t.Run(fmt.Sprint(from), func(t *testing.T) { profileRegion(t, from) })
	}
}

func profileRegion(t *testing.T, from int) {
	const runs = 12
	var line string
	var want, got [][]float32
	var p *profile.Profile
	for _, seen := range []bool{false, true} {
		x := testdevice.Open(t, tenon.Sim(0)).NoGrad()
		a := tenon.From(x, ramp(64), 8, 8)
		k := 0.0
		f := compile.Func(func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
			line = lineOf(1)
			return x.MatMul(x.MulS(x.Mul(x.Exp(in), in), k), in)
		})
		var all [][]float32
		run := func(from, to int) {
			for i := from; i < to; i++ {
				k = float64(i) // a different number in each run
				x.Scope(func(x *tenon.Exec) { all = append(all, testdevice.Read[float32](t, x, f.Call(x, a))) })
			}
		}
		if want = got; seen {
			run(0, from)
			p = profiled(t, x, func() { run(from, runs) })
		} else {
			run(0, runs)
		}
		got = all
	}
	for i := range want {
		if !slices.Equal(want[i], got[i]) {
			t.Fatalf("run %d gives %v under a profiler, %v without", i, got[i], want[i])
		}
	}
	all, _ := replays(p)
	if len(all) < 4 {
		t.Fatalf("%d replays among %v", len(all), names(p))
	}
	for _, i := range all {
		checkRegion(t, p, i, line)
	}
	inOrder(t, p, true)
}

// checkRegion checks the replay of a region: its kernels are those of operations that began before it.
func checkRegion(t *testing.T, p *profile.Profile, i int, line string) {
	t.Helper()
	whole := p.Ops[i].Kernels[0]
	if !whole.Whole || len(p.Ops[i].Kernels) != 1 || p.Ops[i].Note != "" {
		t.Fatalf("the replay is %+v", p.Ops[i])
	}
	var sum time.Duration
	found := map[string]bool{}
	for j := range p.Ops {
		o := &p.Ops[j]
		for _, k := range o.Kernels {
			if k.Whole || k.Begin < whole.Begin || k.End > whole.End {
				continue
			}
			if o.Stream != p.Ops[i].Stream {
				t.Errorf("%s ran on stream %d, its replay on %d", o.Name, o.Stream, p.Ops[i].Stream)
			}
			sum += k.End - k.Begin
			found[o.Name] = true
			if filepath.Base(p.Line(j)) != line || o.Bytes == 0 || o.FLOPs == 0 || o.Captured {
				t.Errorf("%s at %s, not %s: %+v", o.Name, p.Line(j), line, o)
			}
			if o.Kind == profile.KindFused {
				if fmt.Sprint(o.Inputs, o.Outputs, o.Bytes, o.FLOPs) != "[float32[8 8]] [float32[8 8]] 512 192" {
					t.Errorf("the fused kernel is of %v, %v, %d bytes and %d FLOPs", o.Inputs, o.Outputs, o.Bytes, o.FLOPs)
				}
				if slices.IndexFunc(p.Ops, func(part profile.Op) bool { return part.Fused == j && part.Name == "Exp" }) < 0 {
					t.Error("no Exp names the fused kernel")
				}
			}
		}
	}
	if !found["Fused"] || !found["MatMul"] || sum > whole.End-whole.Begin || sum == 0 {
		t.Errorf("a replay of %v has %v of %v", whole.End-whole.Begin, found, sum)
	}
}

// Table, trace, page and pprof have the operations of replays at their lines.
func TestProfileReplayOutputs(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0)).NoGrad()
	a := tenon.From(x, make([]float32, 64), 8, 8)
	line := lineOf(1)
	g := captured(t, x, func(x *tenon.Exec) { x.MatMul(x.Exp(a), a) })
	p := profiled(t, x, func() {
		for range 3 {
			replayed(t, x, g)
		}
	})
	rows, err := p.Rows(profile.ByOp)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"MatMul", "Exp"} {
		k := slices.IndexFunc(rows, func(r profile.Row) bool { return r.Key == name })
		if k < 0 || rows[k].Calls != 3 || rows[k].Device == 0 || rows[k].Bytes == 0 || rows[k].FLOPs == 0 || rows[k].Host != 0 {
			t.Errorf("no row of %s among %+v", name, rows)
		}
	}
	rows, err = p.Rows(profile.ByLine)
	if err != nil {
		t.Fatal(err)
	}
	if k := slices.IndexFunc(rows, func(r profile.Row) bool { return strings.HasSuffix(r.Key, line) }); k < 0 || rows[k].Calls != 6 ||
		rows[k].Device == 0 {
		t.Errorf("no row of %s among %+v", line, rows)
	}
	outputs := map[string]func(b *bytes.Buffer) error{
		"table": func(b *bytes.Buffer) error { return p.WriteTable(b, profile.ByLine, 0) },
		"trace": func(b *bytes.Buffer) error { return p.WriteTrace(b) },
		"page":  func(b *bytes.Buffer) error { return p.WriteHTML(b) },
	}
	//tenon:unordered each is looked at
	for name, write := range outputs {
		var b bytes.Buffer
		if err := write(&b); err != nil || !strings.Contains(b.String(), line) {
			t.Errorf("the %s lacks %s, %v", name, line, err)
		}
		if n := strings.Count(b.String(), "matmul_"); name == "trace" && n < 6 || name == "page" && n != 3 {
			t.Errorf("the %s has %d kernels", name, n)
		}
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	read, err := profile.Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	all, parts := replays(read)
	checkReplay(t, read, all[2], parts[2])
}

// A graph as large as a training step of GPT-2, with many runs queued before the device begins.
func TestProfileReplayMany(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0)).NoGrad()
	const kernels, runs = 1000, 80
	a, one := x.Zeros([]int{1}, tenon.Int32), x.Ones([]int{1}, tenon.Int32)
	g := captured(t, x, func(x *tenon.Exec) {
		for range kernels {
			x.AddInto(a, a, one)
		}
	})
	var sum []int32
	p := profiled(t, x, func() {
		for range runs {
			replayed(t, x, g)
		}
		sum = testdevice.Read[int32](t, x, a)
	})
	if sum[0] != kernels*runs {
		t.Errorf("%d replays of %d additions give %d", runs, kernels, sum[0])
	}
	all, parts := replays(p)
	timed := 0
	for k, i := range all {
		if p.Ops[i].Note != "" {
			if !strings.Contains(p.Ops[i].Note, "too many replays wait") || p.Ops[i].Device() == 0 || len(parts[k]) > 0 {
				t.Errorf("replay %d: %+v", k, p.Ops[i])
			}
			continue
		}
		timed++
		if len(parts[k]) != kernels {
			t.Fatalf("replay %d has %d operations", k, len(parts[k]))
		}
		checkReplay(t, p, i, parts[k])
	}
	if len(all) != runs || timed != 1<<16/(kernels+1) { // the limit of pending events
		t.Errorf("%d of %d replays have times of their kernels", timed, len(all))
	}
	inOrder(t, p, true)
}

// Where a graph has work that no twin can do, a replay has one time, and the profile says why.
func TestProfileReplayWithoutTwin(t *testing.T) {
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
	x := testdevice.Open(t, tenon.Sim(0)).NoGrad()
	a := tenon.From(x, []float32{1, 2})
	g := captured(t, x, func(x *tenon.Exec) { x.AddInto(a, x.MulS(a, 2), a) })
	p := profiled(t, x, func() {
		replayed(t, x, g)
		replayed(t, x, g)
	})
	if got := testdevice.Read[float32](t, x, a); got[0] != 9 || got[1] != 18 {
		t.Errorf("the replays give %v", got)
	}
	all, _ := replays(p)
	for _, i := range all {
		if o := &p.Ops[i]; !strings.Contains(o.Note, "nodes are not kernels, copies or fills of operations") || o.Device() == 0 ||
			len(o.Kernels) != 1 {
			t.Errorf("the replay is %+v", o)
		}
	}
	var b bytes.Buffer
	if err := p.WriteTable(&b, profile.ByOp, 0); err != nil || !strings.Contains(b.String(), "one time for all of its kernels") ||
		!strings.Contains(b.String(), "(2 times)") {
		t.Errorf("the table says\n%s%v", b.String(), err)
	}
	b.Reset()
	if err := p.WriteHTML(&b); err != nil || !strings.Contains(b.String(), "one time for all of its kernels") {
		t.Errorf("the page does not say why, %v", err)
	}
}

// A failed assertion in a profiled replay is reported as in any other, and the profile contains the replay.
func TestProfileReplayFailure(t *testing.T) {
	for name, device := range map[string]tenon.Selector{"sim": tenon.Sim(0), "cpu": tenon.CPU()} {
		t.Run(name, func(t *testing.T) {
			x := testdevice.Open(t, device).NoGrad()
			table, at := tenon.From(x, []float32{1, 2, 3}), tenon.From(x, []int64{1, 2})
			var out *tenon.Tensor
			g := captured(t, x, func(x *tenon.Exec) { out = x.IndexSelect(table, 0, at) })
			fails := func() error {
				x.CopyInto(at, tenon.From(x, []int64{1, 7}))
				return errors.Join(x.Replay(g), x.Synchronize())
			}
			plain := fails()
			var failed error
			p := profiled(t, x, func() {
				failed = fails()
				x.CopyInto(at, tenon.From(x, []int64{0, 2}))
				replayed(t, x, g)
				if got := testdevice.Read[float32](t, x, out); got[0] != 1 || got[1] != 3 {
					t.Errorf("the next replay gives %v", got)
				}
			})
			if plain == nil || failed == nil || failed.Error() != plain.Error() || fault.KindOf(failed) != fault.Invalid {
				t.Errorf("the failed assertion is told as %v, without a profiler as %v", failed, plain)
			}
			if all, parts := replays(p); len(all) != 2 || len(parts[1]) != 1 || p.Ops[parts[1][0]].Device() == 0 {
				t.Errorf("the replays are %v of %v", all, parts)
			}
		})
	}
}

// Graphs are replayed, captured and closed by several goroutines while profiles come and go.
func TestProfileReplayGoroutines(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0)).NoGrad()
	var all sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		y, err := x.Fork()
		if err != nil {
			t.Fatal(err)
		}
		st, err := x.Device().Stream()
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			y := y.On(st)
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				default:
				}
				y.Scope(func(y *tenon.Exec) {
					a, one := y.Zeros([]int{8}, tenon.Float32), y.Ones([]int{8}, tenon.Float32)
					g, err := y.Capture(func(y *tenon.Exec) { y.AddInto(a, y.MulS(a, 1), one) })
					if err != nil {
						t.Error(err)
						return
					}
					for range 5 {
						if err := y.Replay(g); err != nil {
							t.Error(err)
						}
					}
					if got := testdevice.Read[float32](t, y, a); got[0] != 5 {
						t.Errorf("five replays give %v", got)
					}
					if err := g.Close(); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	seen := 0
	for range 40 {
		p := profiled(t, x, func() { time.Sleep(2 * time.Millisecond) })
		_, parts := replays(p)
		for _, k := range parts {
			seen += len(k)
		}
	}
	close(stop)
	all.Wait()
	if seen == 0 {
		t.Error("no replay has operations")
	}
}

// The twins that profiles make of a graph are freed with the profile or the graph; closing the device before both leaves nothing.
func TestProfileReplayEnds(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		t.Fatal(err)
	}
	x = x.NoGrad()
	a := tenon.From(x, make([]float32, 8))
	g, err := x.Capture(func(x *tenon.Exec) { x.ExpInto(a, a) })
	if err != nil {
		t.Fatal(err)
	}
	p := profiled(t, x, func() {
		replayed(t, x, g)
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	if all, parts := replays(p); len(all) != 1 || len(parts[0]) != 1 || p.Ops[parts[0][0]].Device() == 0 {
		t.Errorf("a graph that was closed before the profile has %v of %v", parts, all)
	}
	g = captured(t, x, func(x *tenon.Exec) { x.ExpInto(a, a) })
	for range 2 {
		p = profiled(t, x, func() { replayed(t, x, g) })
		all, parts := replays(p)
		checkReplay(t, p, all[0], parts[0])
	}
	if _, err := x.Device().Profile(); err != nil {
		t.Fatal(err)
	}
	replayed(t, x, g)
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// Every kernel of a training step of GPT-2 belongs to an operation, in a captured graph and in those of a compiled region, and training
// continues as it would without a profiler.
func TestProfileReplayGPT2(t *testing.T) {
	small := gpt2.Small()
	small.Layers = 6
	for name, train := range map[string]func(x *tenon.Exec, step func(x *tenon.Exec) error) (func() error, error){
		"capture": func(x *tenon.Exec, step func(x *tenon.Exec) error) (func() error, error) {
			if err := step(x); err != nil {
				return nil, err
			}
			var failed error
			g, err := x.Capture(func(x *tenon.Exec) { failed = step(x) })
			if err = errors.Join(err, failed); err != nil {
				return nil, err
			}
			t.Cleanup(func() { g.Close() })
			return func() error { return x.Replay(g) }, nil
		},
		"region": func(x *tenon.Exec, step func(x *tenon.Exec) error) (func() error, error) {
			region := compile.New()
			run := func() error { return region.Do(x, step) }
			return run, errors.Join(run(), run(), run(), run())
		},
	} {
		t.Run(name, func(t *testing.T) {
			var want, got []float32
			var p *profile.Profile
			for _, seen := range []bool{false, true} {
				x := testdevice.Open(t, tenon.Sim(0))
				if err := x.Generator().SetSeed(5); err != nil {
					t.Fatal(err)
				}
				training, err := gpt2.NewTraining(x, small, 2)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(training.Close)
				step, err := train(x, training.Step)
				if err != nil {
					t.Fatal(err)
				}
				run := func() {
					for range 3 {
						if err := step(); err != nil {
							t.Fatal(err)
						}
					}
				}
				if want = got; seen {
					p = profiled(t, x, run)
				} else {
					run()
				}
				got = testdevice.Read[float32](t, x, training.Loss)
			}
			if !slices.Equal(want, got) {
				t.Errorf("the loss is %v under a profiler, %v without", got, want)
			}
			nodes, owned, left := 0, 0, map[string]int{}
			for i := range p.Ops {
				o := &p.Ops[i]
				if o.Kind == profile.KindGraph {
					nodes += len(o.Nodes)
					for _, k := range o.Kernels {
						if !k.Whole {
							left[k.Name]++
						}
					}
				}
				if o.Kind == profile.KindGraph && o.Note != "" {
					t.Error(o.Note)
				}
				for _, k := range o.Kernels {
					if !k.Timed {
						t.Errorf("%s of %s has no time", k.Name, o.Name)
					}
					if o.Kind != profile.KindGraph && k.Name != "copy" && k.Name != "fill" {
						owned++
					}
				}
			}
			t.Logf("%d kernels in replays, %d of operations, %v of none", nodes, owned, left)
			if nodes < 300 || owned < nodes-len(left) {
				t.Errorf("of %d kernels %d belong to operations, and %v to none", nodes, owned, left)
			}
			inOrder(t, p, true)
		})
	}
}
