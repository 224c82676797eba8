package tenon_test

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/fault"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/profile"
)

// profiled returns what a profiler saw of f.
func profiled(t *testing.T, x *tenon.Exec, f func()) *profile.Profile {
	t.Helper()
	p, err := x.Device().Profile()
	if err != nil {
		t.Fatal(err)
	}
	f()
	prof, err := p.Stop()
	if err != nil {
		t.Fatal(err)
	}
	return prof
}

// find returns the only entry of that name and phase.
func find(t *testing.T, p *profile.Profile, name string, phase profile.Phase) (int, *profile.Op) {
	t.Helper()
	at := -1
	for i, o := range p.Ops {
		if o.Name == name && o.Phase == phase {
			if at >= 0 {
				t.Fatalf("%s stands twice in %s", name, phase)
			}
			at = i
		}
	}
	if at < 0 {
		t.Fatalf("no %s in %s among %s", name, phase, names(p))
	}
	return at, &p.Ops[at]
}

func names(p *profile.Profile) (all []string) {
	for _, o := range p.Ops {
		all = append(all, o.Name)
	}
	return all
}

// lineOf returns the line that is more lines below the call.
func lineOf(more int) string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", filepath.Base(file), line+more)
}

// ProfileFunc profiles until its function ends, also by an error or a panic, which it returns with the profile.
func TestProfileFunc(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	failed := errors.New("failed")
	for want, f := range map[string]func(x *tenon.Exec) error{
		"":       func(x *tenon.Exec) error { x.Ones([]int{2}, tenon.Float32).Close(); return nil },
		"failed": func(x *tenon.Exec) error { x.Ones([]int{2}, tenon.Float32).Close(); return failed },
		"Add(": func(x *tenon.Exec) error {
			x.Add(x.Ones([]int{2}, tenon.Float32), x.Ones([]int{3}, tenon.Float32))
			return nil
		},
	} {
		p, err := x.Device().ProfileFunc(func() error { return f(x) })
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) || want == "failed" && err != failed {
			t.Errorf("the error is %v, want %q", err, want)
		}
		if p == nil || !slices.Contains(names(p), "Full") {
			t.Errorf("%q: the profile has %v", want, p)
		}
	}
	if p, err := x.Device().ProfileFunc(nil); p != nil || fault.KindOf(err) != fault.Invalid {
		t.Errorf("a nil function gives %v, %v", p, err)
	}
	profiler, err := x.Device().Profile()
	must(t, err)
	if p, err := x.Device().ProfileFunc(func() error { return failed }); p != nil || err == nil || err == failed {
		t.Errorf("while the device is profiled: %v, %v", p, err)
	}
	if _, err := profiler.Stop(); err != nil {
		t.Error(err)
	}
}

func TestProfileOps(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	w := tenon.From(x, make([]float32, 12), 3, 4).SetRequiresGrad(true)
	b := tenon.From(x, make([]float32, 4)).SetRequiresGrad(true)
	var line, added string
	p := profiled(t, x, func() {
		in := tenon.From(x, make([]float32, 6), 2, 3)
		line = lineOf(1)
		y := x.MatMul(in, w)
		added = lineOf(1)
		z := x.Add(y, b)
		if err := x.Backward(x.Sum(z, nil)); err != nil {
			t.Fatal(err)
		}
	})
	i, o := find(t, p, "MatMul", profile.Forward)
	if got := filepath.Base(p.Line(i)); got != line {
		t.Errorf("the product is at %s, not %s", got, line)
	}
	if got := fmt.Sprint(o.Inputs, o.Outputs); got != "[float32[2 3] float32[3 4]] [float32[2 4]]" {
		t.Errorf("the product is of %s", got)
	}
	if o.Bytes != 4*(6+12+8) || o.FLOPs != 2*2*3*4 || o.Compute != "float32" || len(o.Kernels) == 0 || o.Captured ||
		o.Kind != profile.KindOp {
		t.Errorf("the product is %+v", o)
	}
	i, o = find(t, p, "Add", profile.Forward)
	if got := filepath.Base(p.Line(i)); got != added || o.Bytes != 4*(8+4+8) || o.FLOPs != 8 {
		t.Errorf("the addition is at %s: %+v", got, o)
	}
	i, o = find(t, p, "MatMul", profile.Backward)
	if got := filepath.Base(p.Line(i)); got != line || o.Forward < 0 || p.Ops[o.Forward].Name != "MatMul" {
		t.Errorf("the derivative of the product is at %s, not %s: %+v", got, line, o)
	}
	if _, o = find(t, p, "Write", profile.Forward); o.Kind != profile.KindCopy || o.Bytes != 24 || len(o.Kernels) != 1 {
		t.Errorf("the copy to the device is %+v", o)
	}
	inOrder(t, p, true)
}

// The minimum of bytes and FLOPs of an operation counts neither gaps nor repetitions: it covers picked rows, changed elements, and
// windows that skip elements.
func TestProfileLeast(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0)).NoGrad()
	zeros := func(dt tenon.DType, shape ...int) *tenon.Tensor { return x.Zeros(shape, dt) }
	picture, vector := zeros(tenon.Float32, 2, 3, 8, 8), zeros(tenon.Float32, 3)
	table, index := zeros(tenon.Float32, 100, 4), zeros(tenon.Int64, 5)
	cache, at, part := zeros(tenon.Float32, 100, 4), zeros(tenon.Int64, 1, 4), zeros(tenon.Float32, 1, 4)
	low := zeros(tenon.BFloat16, 4, 16)
	two := tenon.Conv2dOpt{Stride: [2]int{2, 2}}
	same := tenon.Conv2dOpt{Padding: [2]int{1, 1}}
	for _, c := range []struct {
		name         string
		bytes, flops int64
		compute      string
		do           func()
	}{
		{"Conv2d", 4 * (2*3*64 + 6*3*9 + 2*6*64), 2 * 2 * 6 * 64 * 3 * 9, "float32", func() {
			x.Conv2d(picture, zeros(tenon.Float32, 6, 3, 3, 3), nil, same)
		}},
		{"Conv2d", 4 * (2*3*16 + 6*3 + 2*6*16), 2 * 2 * 6 * 16 * 3, "float32", func() {
			x.Conv2d(picture, zeros(tenon.Float32, 6, 3, 1, 1), nil, two)
		}},
		{"BatchNormEval", 4 * (2*2*3*64 + 4*3), 2 * 3 * 64, "float32", func() {
			x.BatchNorm(picture, vector, vector, vector, vector)
		}},
		{"MaxPool2d", 4*(2*3*64+2*3*16) + 8*2*3*16, 0, "float32", func() { x.MaxPool2d(picture, [2]int{2, 2}) }},
		{"AdaptiveAvgPool2d", 4 * (2*3*64 + 2*3), 0, "float32", func() { x.AdaptiveAvgPool2d(picture, [2]int{1, 1}) }},
		{"InterpolateLinear", 4 * (2*3*64 + 2*3*256), 0, "float32", func() {
			x.Interpolate(picture, tenon.InterpolateOpt{Scale: []float64{2}, Mode: tenon.InterpolateBilinear})
		}},
		{"MatMul", 2 * (4*16 + 16*4 + 4*4), 2 * 4 * 4 * 16, "bfloat16", func() { x.MatMul(low, x.Transpose(low, 0, 1)) }},
		{"Embedding", 4*2*5*4 + 8*5, 0, "float32", func() { x.Embedding(index, table) }},
		{"Embedding", 4*(4+5*4) + 8*5, 0, "float32", func() { x.Embedding(index, part) }},
		{"Gather", 4*2*4 + 8*4, 0, "float32", func() { x.Gather(table, 0, at) }},
		{"Scatter", 4*2*4 + 8*4, 0, "float32", func() { x.ScatterInto(cache, cache, 0, at, part) }},
		{"Scatter", 4*3*4 + 8*4, 0, "float32", func() { x.ScatterAddInto(cache, cache, 0, at, part) }},
		{"Scatter", 4*2*4 + 8, 0, "float32", func() { x.IndexCopyInto(cache, cache, 0, x.Narrow(index, 0, 0, 1), part) }},
		{"Scatter", 4*(2*400+4) + 8*4, 0, "float32", func() { x.Scatter(cache, 0, at, part) }},
		{"View", 0, 0, "", func() { x.View(table, 400) }},
	} {
		p := profiled(t, x, c.do)
		at := slices.IndexFunc(p.Ops, func(o profile.Op) bool { return o.Name == c.name })
		if at < 0 {
			t.Errorf("no %s among %s", c.name, names(p))
			continue
		}
		if o := p.Ops[at]; o.Bytes != c.bytes || o.FLOPs != c.flops || o.Compute != c.compute {
			t.Errorf("%s of %v: %d bytes, %d FLOPs in %q, want %d, %d, %q", o.Name, o.Inputs, o.Bytes, o.FLOPs, o.Compute, c.bytes, c.flops,
				c.compute)
		}
	}
}

// inOrder checks that times come one after another and lie within each other as the operations do.
func inOrder(t *testing.T, p *profile.Profile, works bool) {
	t.Helper()
	type run struct {
		o *profile.Op
		k profile.Kernel
	}
	var kernels []run
	last, took := map[int]time.Duration{}, time.Duration(0)
	for i := range p.Ops {
		o := &p.Ops[i]
		if o.Begin > o.End || o.End > p.Duration || i > 0 && o.Begin < p.Ops[i-1].Begin && o.Goroutine == p.Ops[i-1].Goroutine {
			t.Errorf("%s was called from %v to %v in %v", o.Name, o.Begin, o.End, p.Duration)
		}
		if o.Parent >= 0 {
			if up := &p.Ops[o.Parent]; up.Begin > o.Begin || up.End < o.End {
				t.Errorf("%s is not within %s", o.Name, up.Name)
			}
		}
		for _, k := range o.Kernels {
			if k.Name == "" || k.Timed == o.Captured || k.Begin > k.End {
				t.Errorf("%s has the kernel %+v", o.Name, k)
			}
			if k.Timed && !k.Whole {
				kernels = append(kernels, run{o, k})
				took += k.End - k.Begin
			}
		}
	}
	// Deferred operations run after operations that began later.
	slices.SortStableFunc(kernels, func(a, b run) int { return cmp.Compare(a.k.Begin, b.k.Begin) })
	for _, r := range kernels {
		if r.k.Begin < last[r.o.Stream] {
			t.Errorf("%s of %s on stream %d began at %v, before the one that ended at %v", r.k.Name, r.o.Name, r.o.Stream, r.k.Begin,
				last[r.o.Stream])
		}
		last[r.o.Stream] = max(last[r.o.Stream], r.k.End)
	}
	if works && took == 0 {
		t.Error("the device's clock did not move")
	}
}

// Segments that the allocator takes and gives back while a profile is taken are in it, as are those from before, with both kinds.
func TestProfileSegments(t *testing.T) {
	for _, conf := range []string{"", "expandable_segments:True"} {
		t.Setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
		x := testdevice.Open(t, tenon.Sim(0)).NoGrad()
		old := x.Zeros([]int{3 << 20}, tenon.Float32)
		held := x.Device().MemoryReserved
		before := held()
		p := profiled(t, x, func() {
			raw, err := x.Device().Malloc(1 << 20) // not the allocator's
			if err == nil {
				err = x.Device().Free(raw)
			}
			if err != nil {
				t.Fatal(err)
			}
			y := x.Zeros([]int{40 << 20}, tenon.Float32)
			y.Close()
			if err := x.Device().EmptyCache(); err != nil {
				t.Fatal(err)
			}
			x.Zeros([]int{30 << 20}, tenon.Float32)
		})
		var sum, first, most int64
		var last time.Duration
		for _, e := range p.Segments {
			if sum += e.Bytes; e.At == 0 {
				first = sum
			}
			most = max(most, sum)
			if e.At < last || e.Addr == 0 || e.Bytes == 0 || e.Bytes == 1<<20 {
				t.Errorf("%q: an event after %v is %+v", conf, last, e)
			}
			last = e.At
		}
		if first != before || sum != held() || most < 160<<20 {
			t.Errorf("%q: %d bytes before, want %d; %d after, want %d; at most %d", conf, first, before, sum, held(), most)
		}
		old.Close()
	}
}

// Segments that are given back while a profile begins are not in it after that.
func TestProfileSegmentsAtStart(t *testing.T) {
	for _, conf := range []string{"", "expandable_segments:True"} {
		t.Setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
		x := testdevice.Open(t, tenon.Sim(0)).NoGrad()
		for range 20_000 { // what a profile finds at its beginning
			x.Empty([]int{1}, tenon.Float32)
		}
		for round := range 8 {
			a := x.Empty([]int{40 << 18}, tenon.Float32)
			a.Close()
			emptied := make(chan error)
			go func() {
				time.Sleep(time.Duration(round) * 750 * time.Microsecond)
				emptied <- x.Device().EmptyCache()
			}()
			p := profiled(t, x, func() {
				if err := <-emptied; err != nil {
					t.Fatal(err)
				}
			})
			var sum int64
			for _, e := range p.Segments {
				sum += e.Bytes
			}
			if held := x.Device().MemoryReserved(); sum != held {
				t.Fatalf("%q: after %d segment events %d bytes are in use, want %d", conf, len(p.Segments), sum, held)
			}
		}
	}
}

func TestProfileConvFLOPs(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	w := tenon.From(x, make([]float32, 4*2*3*3), 4, 2, 3, 3).SetRequiresGrad(true)
	in := tenon.From(x, make([]float32, 2*5*5), 1, 2, 5, 5)
	p := profiled(t, x, func() {
		y := x.Conv2d(in, w, nil)
		if err := x.Backward(x.Sum(y, nil)); err != nil {
			t.Fatal(err)
		}
	})
	const want = 2 * 4 * 3 * 3 * 2 * 3 * 3 // for each element of the result, each of the window
	if _, o := find(t, p, "Conv2d", profile.Forward); o.FLOPs != want {
		t.Errorf("the convolution has %d operations, not %d", o.FLOPs, want)
	}
	if _, o := find(t, p, "Conv2dWeightGrad", profile.Backward); o.FLOPs != want {
		t.Errorf("the weight's gradient has %d operations, not %d", o.FLOPs, want)
	}
}

// trained returns the profile of two steps of a small network.
func trained(t *testing.T, x *tenon.Exec) *profile.Profile {
	net := nn.Sequential{nn.NewLinear(x, 8, 16), nn.ReLU{}, nn.NewLinear(x, 16, 4)}
	opt, err := optim.NewAdam(nn.Params(net))
	if err != nil {
		t.Fatal(err)
	}
	return profiled(t, x, func() {
		for range 2 {
			x.Scope(func(x *tenon.Exec) {
				in := tenon.From(x, make([]float32, 32*8), 32, 8)
				y := net.Forward(x, in)
				if err := x.Backward(x.Mean(x.Mul(y, y), nil)); err != nil {
					t.Fatal(err)
				}
				if err := opt.Step(x); err != nil {
					t.Fatal(err)
				}
				opt.ZeroGrad()
			})
		}
	})
}

func TestProfileTraining(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	p := trained(t, x)
	modules := map[profile.Phase][]string{}
	for _, o := range p.Ops {
		if o.Name == "MatMul" && !slices.Contains(modules[o.Phase], o.Module) {
			modules[o.Phase] = append(modules[o.Phase], o.Module)
		}
		if o.Name == "MatMul" && o.Phase == profile.Forward && o.Within != "Linear" {
			t.Errorf("the product is within %q", o.Within)
		}
	}
	for _, ph := range []profile.Phase{profile.Forward, profile.Backward} {
		if fmt.Sprint(modules[ph]) != "[Sequential/Linear]" {
			t.Errorf("%s products are of %v", ph, modules[ph])
		}
	}
	var steps int
	for _, o := range p.Ops {
		if o.Name == "Foreach" {
			steps++
			if o.Phase != profile.Optimizer || o.Within != "Adam" {
				t.Errorf("the optimizer's step is of %s, within %q", o.Phase, o.Within)
			}
		}
	}
	if steps != 2 {
		t.Errorf("%d steps of the optimizer", steps)
	}
	rows, err := p.Rows(profile.ByOp)
	if err != nil || !slices.ContainsFunc(rows, func(r profile.Row) bool { return r.Key == "Foreach (Adam)" }) {
		t.Errorf("no row is named after the optimizer: %v, %v", rows, err)
	}
	inOrder(t, p, true)

	at := p.Peak()
	left := int64(0)
	for _, e := range p.Memory {
		left += e.Bytes
		if left < 0 {
			t.Fatalf("at %v less than nothing is in use", e.At)
		}
	}
	block := func(n int) int64 { return int64((n + 511) / 512 * 512) } // as the allocator rounds
	weights := block(8*16*4) + block(16*4) + block(16*4*4) + block(4*4)
	if at.By[profile.Parameters] != weights || at.By[profile.Gradients] > weights || at.By[profile.Gradients] == 0 {
		t.Errorf("at the peak there are %v, with %d bytes of weights", at.By, weights)
	}
	if s := at.By[profile.OptimizerState]; s < 2*weights || s > 3*weights+4096 {
		t.Errorf("the optimizer's state is %d bytes, with %d of weights", s, weights)
	}
	if at.By[profile.Activations] == 0 || at.By[profile.Inputs] != block(32*8*4) {
		t.Errorf("at the peak there are %v", at.By)
	}
	var sum int64
	//tenon:unordered a sum
	for _, n := range at.By {
		sum += n
	}
	if sum != at.Total || x.Device().Stats()["allocated_bytes.all.peak"] < at.Total {
		t.Errorf("the categories make %d of %d bytes", sum, at.Total)
	}
}

// A compiled region's operations are there when they are called, the fused kernel when it runs, and the graph when it is replayed.
func TestProfileRegion(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	a := tenon.From(x, make([]float32, 64), 8, 8)
	region := compile.Func(func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.MatMul(x.Mul(x.Exp(in), in), in) })
	p := profiled(t, x, func() {
		for range 8 {
			x.Scope(func(x *tenon.Exec) {
				if _, err := tenon.Read[float32](x, region.Call(x, a)); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
	kinds := map[profile.Kind]int{}
	for _, o := range p.Ops {
		kinds[o.Kind]++
		if o.Fused >= 0 && (p.Ops[o.Fused].Kind != profile.KindFused || !o.Deferred || len(o.Kernels) > 0) {
			t.Errorf("%s was fused into %s: %+v", o.Name, p.Ops[o.Fused].Name, o)
		}
		if o.Kind == profile.KindFused && (len(o.Kernels) != 1 || o.FLOPs != 128 || o.Bytes != 2*64*4) {
			t.Errorf("the fused kernel is %+v", o)
		}
	}
	if kinds[profile.KindFused] == 0 || kinds[profile.KindGraph] == 0 || kinds[profile.KindOp] < 16 {
		t.Errorf("the profile has %v", kinds)
	}
	inOrder(t, p, true)
}

func TestProfileGoroutines(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	const many, each = 4, 50
	p := profiled(t, x, func() {
		var all sync.WaitGroup
		for range many {
			y, err := x.Fork()
			if err != nil {
				t.Fatal(err)
			}
			st, err := x.Device().Stream()
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				y.On(st).Scope(func(y *tenon.Exec) {
					a := y.Zeros([]int{256}, tenon.Float32)
					for range each {
						a = y.Exp(a)
					}
				})
			})
		}
		all.Wait()
	})
	by, streams := map[int64]int{}, map[int]bool{}
	for _, o := range p.Ops {
		if o.Name == "Exp" {
			by[o.Goroutine]++
			streams[o.Stream] = true
		}
	}
	if len(by) != many || len(streams) != many {
		t.Fatalf("the operations are of %d goroutines on %d streams", len(by), len(streams))
	}
	//tenon:unordered each is looked at
	for g, n := range by {
		if n != each {
			t.Errorf("goroutine %d has %d operations", g, n)
		}
	}
	inOrder(t, p, true)
}

// Stopping and starting a profile does not disturb operations in progress.
func TestProfileBetweenCalls(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	y, err := x.Fork()
	if err != nil {
		t.Fatal(err)
	}
	done, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				y.Scope(func(y *tenon.Exec) { y.Exp(y.Zeros([]int{16}, tenon.Float32)) })
			}
		}
	}()
	for range 20 {
		profiled(t, x, runtime.Gosched)
	}
	close(stop)
	<-done
}

func TestProfileManyKernels(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	const many = 5000 // more than the limit of operations that wait for their times
	p := profiled(t, x, func() {
		a := x.Zeros([]int{1}, tenon.Float32)
		for i := range many {
			x.AddInto(a, a, a)
			if i%1000 == 999 {
				if err := x.Synchronize(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
	n := 0
	for _, o := range p.Ops {
		if o.Name == "Add" && len(o.Kernels) == 1 && o.Kernels[0].Timed {
			n++
		}
	}
	if n != many {
		t.Errorf("%d of %d have their times", n, many)
	}
	inOrder(t, p, true)
}

func TestProfileErrors(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	first := lineOf(1)
	p, err := x.Device().Profile()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Device().Profile(); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "is being profiled already by "+
		"the profiler that was started at ") || !strings.Contains(err.Error(), first+"; stop that profiler first") {
		t.Errorf("a second profiler: %v", err)
	}
	if _, err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stop(); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "stopped before") {
		t.Errorf("stopped twice: %v", err)
	}
	if _, err := x.Device().Profile(cuda.ProfileOpt{Bandwidth: -1}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a negative bandwidth: %v", err)
	}
	y, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		t.Fatal(err)
	}
	if p, err = y.Device().Profile(); err != nil {
		t.Fatal(err)
	}
	y.Exp(y.Zeros([]int{4}, tenon.Float32))
	if err := y.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stop(); fault.KindOf(err) != fault.Closed {
		t.Errorf("stopped after Close: %v", err)
	}
	var none *cuda.Profiler
	if _, err := none.Stop(); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a nil profiler: %v", err)
	}
}

// A call that fails is in the profile, and what comes after it too.
func TestProfileFailedCall(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	a, b := x.Zeros([]int{2}, tenon.Float32), x.Zeros([]int{3}, tenon.Float32)
	p := profiled(t, x, func() {
		var e *tenon.Error
		if err := tenon.Try(func() { x.Mul(a, b) }); !errors.As(err, &e) {
			t.Fatal(err)
		}
		x.Exp(a)
	})
	if _, o := find(t, p, "Mul", profile.Forward); len(o.Kernels) != 0 || len(o.Outputs) != 0 {
		t.Errorf("the call that failed is %+v", o)
	}
	if _, o := find(t, p, "Exp", profile.Forward); o.Parent != -1 || len(o.Kernels) != 1 {
		t.Errorf("the call after it is %+v", o)
	}
}

// After the profile has stopped, operations allocate as much as before.
func TestProfileOff(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	a := x.Zeros([]int{16}, tenon.Float32)
	run := func() { x.AddInto(a, a, a) }
	count := func() float64 {
		run()
		if err := x.Synchronize(); err != nil {
			t.Fatal(err)
		}
		return testing.AllocsPerRun(50, run)
	}
	before := count()
	profiled(t, x, run)
	if after := count(); after > before {
		t.Errorf("an addition in place allocates %v times after a profile, %v before", after, before)
	}
}
