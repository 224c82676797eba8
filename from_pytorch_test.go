package tenon_test

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/cuda/nvtx"
	"tenon.dev/internal/testdevice"
	"tenon.dev/linalg"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/sparse"
	"tenon.dev/torchfile"
)

// The tests of this file hold the code of the tables in docs/from-pytorch.md, word for word.

func openSim(t *testing.T) *tenon.Exec {
	t.Helper()
	return testdevice.Open(t, tenon.Sim(1<<30))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantItem(t *testing.T, x *tenon.Exec, a *tenon.Tensor, want float64) {
	t.Helper()
	if v, err := x.Item(a); v != want || err != nil {
		t.Fatalf("got %v and %v, want %v", v, err, want)
	}
}

func TestFromPyTorchQueries(t *testing.T) {
	sel, err := tenon.ParseSelector("cuda:0")
	must(t, err)
	if x, err := tenon.Open(sel); err == nil { // there is a GPU
		must(t, x.Close())
	}
	x := openSim(t)
	kernels, memory, err := x.Device().Utilization()
	if kernels != 0 || memory != 0 || err == nil {
		t.Error(kernels, memory, err)
	}
	if tenon.GPUs() < 0 || x.Device().Name() == "" || x.Device().UUID() == [16]byte{} {
		t.Error("the device has no name")
	}
	if major, _ := x.Device().Capability(); major == 0 {
		t.Error("it has no capability")
	}
	{
		_, temperature := x.Device().Temperature()
		_, power := x.Device().PowerDraw()
		_, clock := x.Device().ClockRate()
		_, used := x.Device().DeviceMemoryUsed()
		if temperature == nil || power == nil || clock == nil {
			t.Error("a simulated device tells", temperature, power, clock, used)
		}
		if _, err := x.Device().Processes(); err == nil {
			t.Error("a simulated device has processes")
		}
	}
	{
		const code = 2
		err := cuda.CheckError(code)
		if err == nil {
			t.Error("code 2 is no error")
		}
	}
	{
		s := "a range"
		nvtx.Push(s)
		nvtx.Pop()
		nvtx.Mark(s)
		r := nvtx.Start(s)
		r.End()
	}
	f := func(event, stream uint64) {}
	remove := x.Device().Trace(cuda.TraceCallbacks{EventRecorded: f})
	remove()
}

func TestFromPyTorchIndex(test *testing.T) {
	x := openSim(test)
	t := x.Reshape(x.Arange(24, tenon.Float32), 2, 3, 4)
	if n := nn.NumParams([]any{nn.NewParam(t), nn.ReLU{}, nn.NewDropout(0.1), nn.Func((*tenon.Exec).SiLU),
		nn.MaxPool2d{Kernel: [2]int{2, 2}}}); n != 24 {
		test.Error(n)
	}
	rows, mask := tenon.From(x, []int64{0, 1}), x.GtS(t, 3)
	wantItem(test, x, x.Sum(x.Index(t, 0, tenon.All, tenon.Span(1, 3)), nil), 33)
	wantItem(test, x, x.Sum(x.Index(t, tenon.Ellipsis, tenon.NewAxis), nil), 276)
	wantItem(test, x, x.Sum(x.Index(t, rows), nil), 276)
	wantItem(test, x, x.Sum(x.Index(t, mask), nil), 270)
	wantItem(test, x, x.Sum(x.Index(t, tenon.Span(0, tenon.End, 2)), nil), 66)
	wantItem(test, x, x.Sum(x.Index(t, tenon.Span(-3, tenon.End)), nil), 276)
	err := x.Do(func(x *tenon.Exec) error { x.Index(t, 2); return nil })
	if err == nil {
		test.Error("an index out of range is no error")
	}
}

func TestFromPyTorchTopK(t *testing.T) {
	x := openSim(t)
	a := tenon.From(x, []float32{1, 3, 2, 6, 4, 5}, 2, 3)
	values, indices := x.TopK(a, 2)
	wantItem(t, x, x.Sum(values, nil), 16)
	wantItem(t, x, x.Sum(indices, nil), 5)
	values, _ = x.TopK(a, 2, tenon.TopKOpt{Dim: new(0), Smallest: true})
	wantItem(t, x, x.Sum(values, nil), 21)
}

func TestFromPyTorchExec(t *testing.T) {
	x := openSim(t)
	a, b, c := x.Full(nil, 2, tenon.Float32), x.Full(nil, 3, tenon.Float32), x.Empty(nil, tenon.Float32)
	wantItem(t, x, x.Add(a, b), 5)
	wantItem(t, x, x.MulS(a, 2), 4)
	x.AddInto(c, a, b)
	wantItem(t, x, c, 5)
	x.AddInto(a, a, b)
	if got := x.ToDType(a, tenon.Float16); got.DType() != tenon.Float16 || x.ToDType(a, b.DType()) != a {
		t.Error("types do not follow", got)
	}
	{
		a := tenon.From(x, []float32{1, 3, 2, 6, 5, 4}, 2, 3)
		wantItem(t, x, x.Sum(x.ArgMax(a, []int{1}), nil), 1)
		logits, target := a, tenon.From(x, []int64{1, 0})
		loss := x.CrossEntropy(logits, target, tenon.CrossEntropyOpt{LabelSmoothing: 0.1})
		if loss.Dim() != 0 {
			t.Error("the loss is", loss)
		}
		step := compile.New()
		err := step.Do(x, func(x *tenon.Exec) error {
			x.Neg(a)
			return nil
		})
		must(t, err)
		y, err := x.Fork()
		must(t, err)
		wantItem(t, y, y.Max(a), 6)
		must(t, y.Close())
	}
	v, err := x.Item(a)
	if v != 5 || err != nil {
		t.Error(v, err)
	}
	s, err := x.Device().Stream()
	must(t, err)
	if x.On(s).Stream() != s || x.NoGrad().GradEnabled() {
		t.Error("the modes do not follow")
	}
	m := x.Ones([]int{2, 2}, tenon.Float32)
	if got := x.Autocast(tenon.BFloat16).MM(m, m).DType(); got != tenon.BFloat16 {
		t.Error("autocast gave", got)
	}
	x.Scope(func(x *tenon.Exec) {
		if x.AutocastDType() != 0 || !x.AutocastCached() {
			t.Error("autocast is on at the beginning, or keeps nothing")
		}
		y := x.Autocast(tenon.Float16).AutocastCache(false)
		if y.AutocastDType() != tenon.Float16 || y.AutocastCached() || y.Autocast(tenon.DType(0)).AutocastDType() != 0 {
			t.Error("autocast's modes do not follow")
		}
	})
	{
		q, m := x.Ones([]int{1, 2, 5, 16}, tenon.BFloat16), x.Zeros([]int{5}, tenon.Bool)
		k, v := q, x.MulS(q, 2)
		wantItem(t, x, x.AMax(x.ScaledDotProductAttention(q, k, v, tenon.AttentionOpt{Causal: true}), nil), 2)
		wantItem(t, x, x.AMax(x.ScaledDotProductAttention(q, k, v, tenon.AttentionOpt{Mask: m, Dropout: 0.1}), nil), 0)
	}
	{
		a, b := m, x.MulS(m, 2)
		wantItem(t, x, x.TensorDot(a, b, []int{-2, -1}, []int{0, 1}), 8)
		wantItem(t, x, x.Sum(linalg.MultiDot(x, []*tenon.Tensor{a, b, a}), nil), 32)
		wantItem(t, x, linalg.NuclearNorm(x, a, nil), 2)
		{
			a, b := tenon.From(x, []float32{1, 2, 3}), tenon.From(x, []float32{4, 5, 6})
			wantItem(t, x, x.Select(linalg.Cross(x, a, b), 0, 1), 6)
			wantItem(t, x, linalg.VecDot(x, a, b), 32)
		}
		{
			m := x.GtS(a, 0)
			wantItem(t, x, x.Sum(x.Nonzero(a), nil), 4)
			wantItem(t, x, x.Sum(x.MaskedSelect(a, m), nil), 4)
			wantItem(t, x, x.Unique(a), 1)
			values, inverse, counts := x.UniqueWithInverse(a)
			wantItem(t, x, values, 1)
			wantItem(t, x, x.Sum(inverse, nil), 0)
			wantItem(t, x, counts, 4)
			n := tenon.From(x, []int64{1, 0, 2, 4})
			wantItem(t, x, x.Sum(x.RepeatInterleave(a, n), nil), 7)
			wantItem(t, x, x.Sum(x.RepeatInterleaveS(a, 2), nil), 8)
			wantItem(t, x, x.Sum(x.MaskedScatter(a, m, b), nil), 8)
		}
		{
			i, v := tenon.From(x, []int64{8, 8, 3, 3}, 2, 2), tenon.From(x, []float32{4, 5})
			s := sparse.NewCOO(x, i, v, []int{9, 4})
			wantItem(t, x, x.Select(x.Select(s.ToDense(x), 0, 8), 0, 3), 9)
			s = s.Coalesce(x)
			if s.NNZ() != 1 {
				t.Error(s.NNZ())
			}
			wantItem(t, x, s.Values(), 9)
			wantItem(t, x, x.Sum(s.Indices(), nil), 11)
		}
		wantItem(t, x, x.Sum(x.Einsum("ij,jk->ik", a, b), nil), 16)
		same, err := x.Equal(a, b)
		if same || err != nil {
			t.Error(same, err)
		}
	}
	{
		err := tenon.Try(func() { x.Add(m, x.Ones([]int{3}, tenon.Float32)) })
		if err == nil {
			t.Error("shapes that do not fit were added")
		}
	}
	if v, err := tenon.Read[float32](x, a); len(v) != 1 || v[0] != 5 || err != nil {
		t.Error(v, err)
	}
	wantItem(t, x, x.Sum(tenon.From(x, []int{1, 2, 3, 4}, 2, 2), nil), 10)
	wantItem(t, x, x.Sum(x.Zeros([]int{2, 3}, tenon.Float32), nil), 0)
	text, err := x.Format(a)
	if text != "5 float32[] on Simulated GPU" || err != nil {
		t.Error(text, err)
	}
	for _, view := range []*tenon.Tensor{x.Transpose(m, 0, 1), x.Slice(m, 0, 0, 1, 1), x.Select(m, 0, 1)} {
		if !view.SharesStorage(m) {
			t.Error(view, "is no view")
		}
	}
}

func TestFromPyTorchMemory(t *testing.T) {
	x := openSim(t)
	var kept *tenon.Tensor
	x.Scope(func(x *tenon.Exec) {
		a := x.Ones([]int{1000}, tenon.Float32)
		kept = x.Keep(a)
		x.AddS(a, 1)
	})
	kept.Close()
	if n := x.Device().MemoryAllocated(); n != 0 {
		t.Error("the scope left", n)
	}
	a := x.Within(func(x *tenon.Exec) *tenon.Tensor { return x.AddS(x.Ones([]int{1000}, tenon.Float32), 1) })
	if n := x.Device().MemoryAllocated(); n != 4096 || x.Device().Stats()["allocated_bytes.all.current"] != n ||
		x.Device().MaxMemoryReserved() != 2<<20 {
		t.Error("allocated", n)
	}
	a.Close()
	if x.Device().MemoryAllocated() != 0 || x.Device().MemorySummary() == "" || x.Device().HostStats().Flatten() == nil {
		t.Error("closing freed nothing")
	}
	if free, total, err := x.Device().MemInfo(); free >= total || err != nil {
		t.Error(free, total, err)
	}
	must(t, x.Device().EmptyCache())
	must(t, x.Device().EmptyHostCache())
	x.Device().ResetPeakStats()
	x.Device().ResetAccumulatedStats()
	s := "max_split_size_mb:64"
	must(t, x.Device().SetAllocatorSettings(s))
	if x.Device().AllocatorBackend() != "native" {
		t.Error(x.Device().AllocatorBackend())
	}
	x.Device().SetCaching(false)
	x.Device().SetCaching(true)
	seen := 0
	x.Device().OnOutOfMemory(func(o cuda.OOM) { seen++ })
	must(t, x.Device().SetMemoryFraction(0.5))
	if err := tenon.Try(func() { x.Empty([]int{600 << 20}, tenon.Uint8) }); err == nil || seen != 1 {
		t.Error(err, seen)
	}
	n := uint64(1000)
	addr, err := x.Device().RawAlloc(n, x.Stream())
	must(t, err)
	must(t, x.Device().RawFree(addr))
}

func TestFromPyTorchHostMemory(t *testing.T) {
	x := openSim(t)
	a := x.Host().Zeros([]int{3}, tenon.Float32)
	must(t, x.RegisterHost(a))
	must(t, x.UnregisterHost(a))
	b := make([]byte, 4096)
	must(t, x.Device().HostRegister(b))
	must(t, x.Device().HostUnregister(b))
	a = x.PinMemory(a)
	if !a.IsPinned() {
		t.Error("not pinned")
	}
	{
		b := x.Ones([]int{3}, tenon.Float32)
		x.CopyAsyncInto(a, b)
		wantItem(t, x, x.Sum(x.To(a, tenon.ToOpt{NonBlocking: true}), nil), 3)
		s, err := x.Device().Stream()
		must(t, err)
		a := b
		must(t, x.RecordStream(a, s))
	}
}

// counting is an allocator that takes its memory from the driver.
type counting struct{ d *cuda.Device }

func (c counting) Alloc(size uint64, s *cuda.Stream) (uint64, error) { return c.d.Malloc(size) }
func (c counting) Free(addr, size uint64, s *cuda.Stream) error      { return c.d.Free(addr) }

func TestFromPyTorchPoolsAndHistory(t *testing.T) {
	x := openSim(t)
	a := counting{x.Device()}
	pool, err := cuda.NewMemPool(x.Device(), cuda.MemPoolOpt{Allocator: a})
	must(t, err)
	x.UsePool(pool).Ones([]int{3}, tenon.Float32).Close()
	must(t, pool.Close())
	must(t, x.Device().RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryOff}))
	must(t, x.Device().RecordMemoryHistory())
	devices := []*cuda.Device{x.Device()}
	_, err = cuda.SnapshotOf(devices...)
	must(t, err)
	s, err := x.Device().Snapshot()
	must(t, err)
	f := filepath.Join(t.TempDir(), "snapshot.pickle")
	must(t, x.Device().DumpSnapshot(f))
	if read, err := cuda.ReadSnapshotFile(f); err != nil || len(read.Segments()) != len(s.Segments()) {
		t.Error(err)
	}
}

// twice is an operation with a derivative of its own.
type twice struct{}

func (twice) Forward(x *tenon.Exec, c *tenon.FunctionContext, in ...*tenon.Tensor) []*tenon.Tensor {
	return []*tenon.Tensor{x.MulS(in[0], 2)}
}

func (twice) Backward(x *tenon.Exec, c *tenon.FunctionContext, grads ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	return []*tenon.Tensor{x.MulS(grads[0], 2)}, nil
}

func TestFromPyTorchAutograd(t *testing.T) {
	x := openSim(t)
	a := x.Full(nil, 3, tenon.Float32)
	a.SetRequiresGrad(true)
	loss := x.Mul(a, a)
	err := x.Backward(loss)
	must(t, err)
	wantItem(t, x, a.Grad(), 6)

	ys, xs := []*tenon.Tensor{x.Mul(a, x.Mul(a, a))}, []*tenon.Tensor{a}
	gs, err := x.Grad(ys, xs, tenon.GradOpt{CreateGraph: true})
	must(t, err)
	ys = gs
	must(t, x.Backward(ys[0], tenon.BackwardOpt{RetainGraph: true}))
	{
		gs, err := x.Grad(ys, xs)
		must(t, err)
		wantItem(t, x, gs[0], 18)
	}
	total := x.Zeros(nil, tenon.Float32)
	x.NoGrad().AddInto(total, total, loss)
	wantItem(t, x, total, 9)
	f, inputs := twice{}, []*tenon.Tensor{a}
	loss = x.Apply(f, inputs...)[0]
	{
		f := func(x *tenon.Exec, g *tenon.Tensor) *tenon.Tensor { return x.MulS(g, 10) }
		t := loss
		remove := t.RegisterHook(f)
		remove()
		t.RetainGrad()
	}
	called := 0
	{
		f := func(x *tenon.Exec, p *tenon.Tensor) { called++ }
		p := a
		p.RegisterPostAccumulateGradHook(f)
	}
	loss.RegisterHook(func(x *tenon.Exec, g *tenon.Tensor) *tenon.Tensor {
		f := func(x *tenon.Exec) { called++ }
		x.QueueCallback(f)
		return nil
	})
	a.SetGrad(nil)
	must(t, x.Backward(loss))
	wantItem(t, x, a.Grad(), 2)
	if called != 2 || loss.Grad() == nil {
		t.Error("the hooks were called", called, "times")
	}
	{
		f := func(x *tenon.Exec, ins []*tenon.Tensor) []*tenon.Tensor {
			return []*tenon.Tensor{x.Mul(ins[0], ins[1])}
		}
		a, b := x.Full(nil, 2, tenon.Float32).SetRequiresGrad(true), x.Full(nil, 3, tenon.Float32)
		y := x.Checkpoint(f, a, b)[0]
		must(t, x.Backward(y))
		wantItem(t, x, a.Grad(), 3)
		m := nn.ReLU{}
		net := nn.Sequential{m, m}
		wantItem(t, x, x.Sum(x.Add(nn.Checkpoint(x, m, a), nn.CheckpointSequential(x, net, 2, a)), nil), 4)
	}
	pack := func(x *tenon.Exec, t *tenon.Tensor) any { called++; return x.Clone(t) }
	unpack := func(x *tenon.Exec, v any) *tenon.Tensor { return v.(*tenon.Tensor) }
	x.SavedTensorHooks(pack, unpack, func(x *tenon.Exec) { x.Mul(a, a) })
	if called != 4 {
		t.Error("the saved tensors were packed", called-2, "times")
	}
}

// Results in tensors that are there, and options that are 0.
func TestFromPyTorchOut(t *testing.T) {
	x := openSim(t)
	{
		a, b := tenon.From(x, []float32{1, 2, 3, 4}, 2, 2), x.Ones([]int{2, 2}, tenon.Float32)
		c, v, i := x.Empty([]int{2, 2}, tenon.Float32), x.Empty([]int{2}, tenon.Float32), x.Empty([]int{2}, tenon.Int64)
		x.MMInto(c, a, b)
		wantItem(t, x, x.Sum(c, nil), 20)
		x.SumInto(v, a, []int{0})
		wantItem(t, x, x.Sum(v, nil), 10)
		x.MaxDimInto(v, i, a, 0)
		wantItem(t, x, x.Sum(i, nil), 2)
		wantItem(t, x, x.Var(a, nil, tenon.VarOpt{Correction: 0}), 1.25)
		wantItem(t, x, x.Sum(x.Std(a, []int{0}, tenon.VarOpt{Correction: 2}), nil), math.Inf(1))
		x.FillInto(c, 7)
		wantItem(t, x, x.Sum(c, nil), 28)
		x.RandIntInto(c, 9)
		x.RandInto(c)
		wantItem(t, x, x.All(x.LtS(c, 1), nil), 1)
		x.ExpInto(a, a)
		wantItem(t, x, x.All(x.GtS(a, 2.7), nil), 1)
	}
	{
		a := tenon.From(x, []float64{math.NaN(), math.Inf(1), 3})
		wantItem(t, x, x.Sum(x.NanToNum(a, tenon.NanToNumOpt{NaN: 1, PosInf: 0}), nil), 4)
	}
	{
		a, b := tenon.From(x, []float32{1, 0, 0}), tenon.From(x, []float32{0, 1, 0})
		c, v := x.Empty([]int{3}, tenon.Float32), x.Empty(nil, tenon.Float32)
		linalg.CrossInto(x, c, a, b)
		wantItem(t, x, x.Sum(c, nil), 1)
		linalg.VecDotInto(x, v, a, b)
		wantItem(t, x, v, 0)
	}
}

func TestFromPyTorchInPlace(t *testing.T) {
	x := openSim(t)
	a, w := x.Ones([]int{4, 2}, tenon.Float32).SetRequiresGrad(true), x.Full(nil, 2, tenon.Float32).SetRequiresGrad(true)
	y := x.MulS(a, 3)
	x.IndexPutInto(y, w, tenon.All, 0)
	{
		y := x.Detach(x.Clone(y))
		rows, cols := tenon.From(x, []int64{0, 1}), tenon.From(x, []int64{1, 1})
		x.IndexPutAddInto(y, w, rows, cols)
		x.IndexPutAddSInto(y, 1, rows, cols)
		x.IndexPutSInto(y, 0, rows)
		wantItem(t, x, x.Sum(x.Index(y, rows), nil), 0)
	}
	{
		y, w := x.Detach(x.Clone(y)), x.Full([]int{2, 2}, 5, tenon.Float32)
		rows := tenon.From(x, []int64{0, 3})
		x.IndexCopyInto(y, y, 0, rows, w)
		wantItem(t, x, x.Sum(x.Index(y, rows), nil), 20)
		x.IndexFillSInto(y, y, 0, rows, 0)
		wantItem(t, x, x.Sum(x.Index(y, rows), nil), 0)
		x.IndexAddInto(y, y, 0, rows, w, tenon.IndexAddOpt{Alpha: 2})
		wantItem(t, x, x.Sum(x.Index(y, rows), nil), 40)
	}
	{
		v := x.Index(y, tenon.Span(1, 3))
		x.MulInto(v, v, w)
	}
	{
		v := x.View(y, -1)
		x.AddInto(v, v, w)
	}
	mask := x.GtS(y, 7)
	x.MaskedFillSInto(y, y, mask, 0)
	wantItem(t, x, x.Sum(y, nil), 4+5+6+6+4+5)
	must(t, x.Backward(x.Sum(y, nil)))
	wantItem(t, x, w.Grad(), 2+1+5+5+2+1)
	wantItem(t, x, x.Sum(a.Grad(), nil), 3+3)
}

func TestFromPyTorchPrint(test *testing.T) {
	x := openSim(test)
	for _, m := range []nn.Module{nn.NewConv2d(x, 3, 8, [2]int{3, 3}, nn.Conv2dOpt{Stride: [2]int{2, 2}, Padding: [2]int{1, 1}}),
		nn.NewConv1d(x, 3, 8, 3, nn.Conv1dOpt{Padding: 1})} {
		if text := nn.String(m); !strings.Contains(text, "(3, 8, ") || !strings.Contains(text, "padding=(1,") {
			test.Error(text)
		}
		nn.Close(m)
	}
	twice := nn.NewConvTranspose2d(x, 16, 8, [2]int{2, 2}, nn.ConvTranspose2dOpt{Stride: [2]int{2, 2}})
	defer nn.Close(twice)
	if shape := twice.Forward(x, x.Ones([]int{1, 16, 5, 4}, tenon.Float32)).Shape(); !slices.Equal(shape, []int{1, 8, 10, 8}) {
		test.Error(shape)
	}
	doubled := nn.Upsample{Scale: []float64{2}}
	{
		t := doubled.Forward(x, x.Ones([]int{1, 1, 3, 2}, tenon.Float32))
		t = x.Interpolate(t, tenon.InterpolateOpt{Size: []int{7, 5}, Mode: tenon.InterpolateBilinear})
		if !slices.Equal(t.Shape(), []int{1, 1, 7, 5}) {
			test.Error(t)
		}
	}
	m, t := nn.NewLinear(x, 64, 10), x.Ones([]int{2}, tenon.Float32)
	defer nn.Close(m)
	if text := nn.String(m); text != "Linear(in_features=64, out_features=10, bias=True)" {
		test.Error(text)
	}
	nn.NewBuffer(t, nn.BufferOpt{NonPersistent: true}).Close()
}

func TestFromPyTorchDevices(t *testing.T) {
	if tenon.GPUs() > 0 {
		x, err := tenon.Open(tenon.CUDA(0))
		must(t, err)
		must(t, x.Close())
	}
	cpu, err := tenon.Open(tenon.CPU())
	must(t, err)
	must(t, cpu.Close())
	sim, err := tenon.Open(tenon.Sim(24 << 30))
	must(t, err)
	must(t, sim.Close())
	best, err := tenon.Open(tenon.Best())
	must(t, err)
	must(t, best.Close())
	n, err := tenon.Best().Count()
	must(t, err)
	if second, err := tenon.Open(tenon.Best().At(1)); err == nil {
		must(t, second.Close())
	} else if n > 1 {
		t.Error(err)
	}
	x := openSim(t)
	a := x.Host().Ones([]int{3}, tenon.Float32)
	a = x.To(a)
	wantItem(t, x.Host(), x.Host().Sum(x.Host().To(a), nil), 3)
	must(t, x.Device().Synchronize())
	var y *tenon.Tensor
	g, err := x.Capture(func(x *tenon.Exec) { y = x.MulS(a, 2) })
	must(t, err)
	must(t, x.Replay(g))
	wantItem(t, x, x.Sum(y, nil), 6)
	must(t, g.Close())
	x.Device().Generator().SetSeed(5)
	r := x.Rand([]int{2}, tenon.Float32)
	q := x.WithGenerator(cuda.NewGenerator(5)).Rand([]int{2}, tenon.Float32)
	wantItem(t, x, x.Max(x.Abs(x.Sub(r, q))), 0)
	nn.InitUniform(x, r, 2, 3, nn.InitOpt{Generator: nn.NewHostGenerator(5)})
	wantItem(t, x, x.Floor(x.Min(r)), 2)
	start, end := x.Device().NewEvent(cuda.EventOpt{Timing: true}), x.Device().NewEvent(cuda.EventOpt{Timing: true})
	must(t, start.Record(x.Stream()))
	must(t, end.Record(x.Stream()))
	must(t, end.Synchronize())
	if d, err := start.Elapsed(end); d < 0 || err != nil {
		t.Error(d, err)
	}
	s, err := x.Device().Stream()
	must(t, err)
	must(t, x.On(s).WaitStream(x.Stream()))
}

func TestFromPyTorchGraphs(t *testing.T) {
	x := openSim(t)
	a := x.Ones([]int{3}, tenon.Float32)
	s, err := x.Device().Stream()
	must(t, err)
	var kept *tenon.Tensor
	g, err := x.Capture(func(x *tenon.Exec) {
		if !x.Capturing() {
			t.Error("x.Capturing() is false in a capture")
		}
		t := x.MulS(a, 2)
		kept = x.Keep(t)
	}, tenon.CaptureOpt{Debug: true})
	must(t, err)
	path := filepath.Join(t.TempDir(), "graph.dot")
	must(t, g.Dump(path))
	for _, opt := range []tenon.CaptureOpt{tenon.CaptureOpt{Share: g}, {Pool: g.Pool()}, {Pool: cuda.NewPoolID()},
		tenon.CaptureOpt{Stream: s, Mode: cuda.CaptureRelaxed}} {
		h, err := x.Capture(func(x *tenon.Exec) { x.AddS(a, 1) }, opt)
		must(t, err)
		must(t, x.Replay(h))
		must(t, h.Close())
	}
	must(t, x.Replay(g))
	must(t, g.Close())
	wantItem(t, x, x.Sum(kept, nil), 6)
	y := kept
	x.AddSInto(y, y, 1)
	x.MulSInto(y, y, 2)
	wantItem(t, x, x.Sum(y, nil), 18)
	x.FillInto(y, 0)
	wantItem(t, x, x.Sum(y, nil), 0)

	gen := x.Generator()
	{
		s := gen.Clone()
		b, c := x.Rand([]int{2}, tenon.Float32), x.WithGenerator(s).Rand([]int{2}, tenon.Float32)
		wantItem(t, x, x.Max(x.Abs(x.Sub(b, c))), 0)
	}

	m := nn.NewLinear(x, 3, 2)
	defer nn.Close(m)
	sample := x.Ones([]int{4, 3}, tenon.Float32)
	graphed, err := nn.Graph(x, m, sample)
	must(t, err)
	wantItem(t, x, x.Max(x.Abs(x.Sub(graphed.Forward(x, sample), m.Forward(x, sample)))), 0)
	must(t, graphed.Close())
	callables := []nn.Callable{{Samples: []*tenon.Tensor{a}, Forward: func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor {
		return []*tenon.Tensor{x.AddS(in[0], 1)}
	}}}
	functions, err := nn.GraphCallables(x, callables)
	must(t, err)
	wantItem(t, x, x.Sum(functions[0].Call(x, a)[0], nil), 6)
	must(t, functions[0].Close())
}

func TestFromPyTorchFiles(t *testing.T) {
	x := openSim(t)
	f := filepath.Join(t.TempDir(), "shared.pt")
	whole := x.Ones([]int{4}, tenon.Float32)
	must(t, torchfile.Save(x, f, []any{whole, x.Narrow(whole, 0, 1, 2)}))
	file, err := torchfile.Open(f)
	must(t, err)
	defer file.Close()
	l := file.Root().([]any)
	a, b := l[0].(*torchfile.Tensor), l[1].(*torchfile.Tensor)
	ts, err := file.LoadAll(x, a, b)
	must(t, err)
	if !ts[0].SharesStorage(ts[1]) {
		t.Error("what shared memory does not share it again")
	}
}

func TestFromPyTorchNumbers(t *testing.T) {
	x := openSim(t)
	x.Device().Generator().SetSeed(5)
	if x.Device().Generator().Seed() != 5 {
		t.Error("the seed is another")
	}
	p := tenon.From(x, []float32{0, 1, 0}, 3)
	wantItem(t, x, x.Sum(x.Multinomial(p, 100, tenon.MultinomialOpt{Replacement: true}), nil), 100)
	{
		a := x.Empty([]int{3}, tenon.Float32)
		x.BernoulliSInto(a, 0.5)
		wantItem(t, x, x.All(x.LeS(a, 1), nil), 1)
		x.BernoulliInto(a, p)
		wantItem(t, x, x.Sum(a, nil), 1)
	}
	a, w := tenon.From(x, []int64{1, 3, 3}, 3), tenon.From(x, []float32{1, 2, 3}, 3)
	wantItem(t, x, x.Select(x.BinCount(a, tenon.BinCountOpt{Weight: w, MinLength: 10}), 0, 3), 5)
	y := x.TF32(true)
	if !y.TF32Enabled() || x.TF32(false).TF32Enabled() {
		t.Error("the switch of tf32 has no effect")
	}
	mean := x.Ones([]int{2, 3}, tenon.Float32)
	invStd, counts := mean, tenon.From(x, []float32{2, 2}, 2)
	m, s := x.BatchNormGatherStats(mean, invStd, counts, nil, nil, 0.1, 1e-5)
	wantItem(t, x, x.Max(m), 1)
	wantItem(t, x, x.RoundDecimals(x.Max(s), 4), 1)
	a = x.Ones([]int{1}, tenon.Float32)
	x.AssertAsync(a)
	v, err := tenon.Read[float32](x, a)
	must(t, err)
	if v[0] != 1 {
		t.Error(v)
	}
	brain := tenon.From(x, []tenon.BF16{tenon.BF16FromFloat32(1.5)})
	if v, err := tenon.Read[tenon.BF16](x, brain); err != nil || v[0].Float32() != 1.5 {
		t.Errorf("a bfloat16 reads as %v, %v", v, err)
	}
	if _, err := tenon.Read[int64](x, a); err == nil {
		t.Error("a float32 tensor was read as int64")
	}
}

// Groups of parameters, by predicate.
func TestFromPyTorchGroups(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	m := nn.NewLinear(x, 2, 3)
	defer nn.Close(m)
	matrices, vectors := nn.SplitParams(nn.Params(m), func(name string, p *nn.Param) bool { return p.Tensor().Dim() > 1 })
	adamw, err := optim.NewAdamW(matrices)
	must(t, err)
	defer adamw.Close()
	{
		err := adamw.Add(vectors, optim.AdamOpt{WeightDecay: 0})
		must(t, err)
	}
	if n := adamw.Groups(); n != 2 {
		t.Errorf("there are %d groups", n)
	}
	for range 2 { // a half can be ranged over again, and left early
		for name, p := range vectors {
			if name != "bias" || p != m.Bias {
				t.Error(name)
			}
			break
		}
	}
	for want, f := range map[string]func(){
		"the parameters are nil":    func() { nn.SplitParams(nil, func(string, *nn.Param) bool { return true }) },
		"the function predicate is": func() { nn.SplitParams(nn.Params(m), nil) },
	} {
		if err := tenon.Try(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
