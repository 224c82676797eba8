package conformance

import (
	"slices"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

// checkpointTests are the behaviours of checkpoints of a graph's pool.
var checkpointTests = []cudaTest{
	{name: "CUDA-140_test_simple", run: checkpointOf(func(x *tenon.Exec) []*tenon.Tensor {
		a := x.Zeros([]int{8 * mib}, tenon.Uint8)
		a = x.Add(a, a)
		b := x.Add(x.Add(bytesOf(x, mib), bytesOf(x, mib)), bytesOf(x, mib))
		return []*tenon.Tensor{a, x.Add(bytesOf(x, mib), b), bytesOf(x, mib)}
	})},
	{name: "CUDA-141_test_allocated_in_middle_of_segment", run: checkpointOf(func(x *tenon.Exec) []*tenon.Tensor {
		all := buffers(x)
		x.AddSInto(all[5], all[5], 2)
		return all[5:6]
	})},
	{name: "CUDA-142_test_multiple_middle_allocations", run: checkpointOf(func(x *tenon.Exec) []*tenon.Tensor {
		all := buffers(x)
		return []*tenon.Tensor{all[5], all[8]}
	})},
	{name: "CUDA-143_test_middle_allocations_contiguous", run: checkpointOf(func(x *tenon.Exec) []*tenon.Tensor {
		return buffers(x)[5:7]
	})},
	{name: "CUDA-144_test_additional_free_following_checkpoint", run: testCheckpointFrees},
	{name: "CUDA-145_test_additional_free_error", run: testCheckpointFreeError},
	{name: "CUDA-146_test_tensor_dies_after_checkpoint", run: testCheckpointDeath},
	{name: "CUDA-147_test_assigning_back_deleter_fns_to_tensor", run: testCheckpointOwners},
	{name: "CUDA-148_test_resnet", run: testCheckpointNetwork},
	{name: "CUDA-149_test_check_pool_live_allocations", run: testPoolLive},
	{name: "CUDA-150_test_allocate_in_thread_to_pool", run: testThreadPool},
}

// bytesOf returns n ones of one byte each.
func bytesOf(x *tenon.Exec, n int) *tenon.Tensor { return x.Ones([]int{n}, tenon.Uint8) }

// buffers returns eleven tensors of the least size of a block.
func buffers(x *tenon.Exec) (all []*tenon.Tensor) {
	for range 11 {
		all = append(all, bytesOf(x, 512))
	}
	return all
}

// recordedIn runs f, captures it into a pool, and returns the graph with f's results; everything else that f made is freed at the end of
// the capture.
func recordedIn(t *testing.T, x *tenon.Exec, pool [2]uint64, f func(x *tenon.Exec) []*tenon.Tensor) (g *tenon.Graph, out []*tenon.Tensor) {
	t.Helper()
	s := newStream(t, x)
	x.On(s).Scope(func(x *tenon.Exec) { f(x) })
	must(t, s.Synchronize())
	g, err := x.Capture(func(x *tenon.Exec) {
		out = x.WithinMany(f)
		for _, a := range out {
			x.Keep(a)
		}
	}, tenon.CaptureOpt{Stream: s, Pool: pool})
	must(t, err)
	return g, out
}

// ofPool returns the segments of a pool.
func ofPool(t *testing.T, x *tenon.Exec, pool [2]uint64) []cuda.Segment {
	t.Helper()
	snap, err := x.Device().Snapshot()
	must(t, err)
	return slices.DeleteFunc(snap.Segments(), func(s cuda.Segment) bool { return s.Pool != pool })
}

// liveBlocks counts the blocks of a pool that are allocated.
func liveBlocks(t *testing.T, x *tenon.Exec, pool [2]uint64) (n int) {
	t.Helper()
	for _, s := range ofPool(t, x, pool) {
		for _, b := range s.Blocks {
			if b.State == "active_allocated" {
				n++
			}
		}
	}
	return n
}

// sameState fails unless every segment still exists with the same blocks.
func sameState(t *testing.T, before, after []cuda.Segment) {
	t.Helper()
	for _, b := range before {
		i := slices.IndexFunc(after, func(s cuda.Segment) bool { return s.Addr == b.Addr })
		if i < 0 {
			t.Errorf("the segment %#x is gone", b.Addr)
			continue
		}
		a := after[i]
		if a.Device != b.Device || a.TotalSize != b.TotalSize || a.Allocated != b.Allocated || a.Active != b.Active || a.Type != b.Type ||
			a.Pool != b.Pool ||
			!slices.EqualFunc(a.Blocks, b.Blocks, func(a, b cuda.Block) bool {
				return a.Addr == b.Addr && a.Size == b.Size && a.State == b.State
			}) {
			t.Errorf("the segment is\n%+v, was\n%+v", a, b)
		}
	}
}

// checkpointOf captures f and immediately restores its pool to a checkpoint.
func checkpointOf(f func(x *tenon.Exec) []*tenon.Tensor) func(t *testing.T, x *tenon.Exec) {
	return func(t *testing.T, x *tenon.Exec) {
		g, out := recordedIn(t, x, [2]uint64{}, f)
		before := ofPool(t, x, g.Pool())
		if len(before) == 0 {
			t.Fatal("the graph has no memory")
		}
		state, err := x.Device().CheckpointPool(g.Pool())
		must(t, err)
		rest, err := x.RestorePool(state, nil, out)
		must(t, err)
		check(t, "addresses without an owner", len(rest), 0)
		sameState(t, before, ofPool(t, x, g.Pool()))
		check(t, "live blocks", liveBlocks(t, x, g.Pool()), len(out))
		replay(t, x, g)
		for _, a := range out {
			if len(testdevice.Read[uint8](t, x, x.ToDType(a, tenon.Uint8))) != a.Numel() {
				t.Error("a result cannot be read")
			}
			a.Close()
		}
		check(t, "live blocks after the results", liveBlocks(t, x, g.Pool()), 0)
		must(t, g.Close())
		must(t, x.Device().EmptyCache())
		check(t, "segments at the end", len(ofPool(t, x, g.Pool())), 0)
	}
}

// one captures a tensor of the least size.
func one(x *tenon.Exec) []*tenon.Tensor { return []*tenon.Tensor{bytesOf(x, 512)} }

func testCheckpointFrees(t *testing.T, x *tenon.Exec) {
	g, out := recordedIn(t, x, [2]uint64{}, one)
	before := ofPool(t, x, g.Pool())
	state, err := x.Device().CheckpointPool(g.Pool())
	must(t, err)
	h, later := recordedIn(t, x, g.Pool(), one)
	check(t, "live blocks of both", liveBlocks(t, x, g.Pool()), 2)
	rest, err := x.RestorePool(state, later, out)
	must(t, err)
	check(t, "addresses without an owner", len(rest), 0)
	later[0].Close() // frees nothing
	sameState(t, before, ofPool(t, x, g.Pool()))
	must(t, h.Close())
	must(t, g.Close())
}

func testCheckpointFreeError(t *testing.T, x *tenon.Exec) {
	g, out := recordedIn(t, x, [2]uint64{}, one)
	state, err := x.Device().CheckpointPool(g.Pool())
	must(t, err)
	h, _ := recordedIn(t, x, g.Pool(), one)
	before := ofPool(t, x, g.Pool())
	_, err = x.RestorePool(state, nil, out)
	wantError(t, err, "being manually freed must be passed")
	sameState(t, before, ofPool(t, x, g.Pool())) // nothing was lost
	must(t, h.Close())
	must(t, g.Close())
}

func testCheckpointDeath(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	g, out := recordedIn(t, x, [2]uint64{}, func(x *tenon.Exec) []*tenon.Tensor {
		return []*tenon.Tensor{bytesOf(x, 512), bytesOf(x, 512)}
	})
	state, err := dev.CheckpointPool(g.Pool())
	must(t, err)
	ptrs := []uint64{out[0].DataPtr(), out[1].DataPtr()}
	for _, a := range out {
		a.Close()
	}
	check(t, "live blocks without the results", liveBlocks(t, x, g.Pool()), 0)
	rest, err := x.RestorePool(state, nil, nil)
	must(t, err)
	slices.Sort(ptrs)
	if !slices.Equal(rest, ptrs) {
		t.Errorf("the addresses without an owner are %x, want %x", rest, ptrs)
	}
	for i, p := range ptrs {
		check(t, "live blocks", liveBlocks(t, x, g.Pool()), 2-i)
		must(t, dev.RawFree(p))
	}
	check(t, "live blocks at the end", liveBlocks(t, x, g.Pool()), 0)
	must(t, g.Close())
}

func testCheckpointOwners(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	in := tenon.From(x, []uint8{1})
	g, out := recordedIn(t, x, [2]uint64{}, func(x *tenon.Exec) (all []*tenon.Tensor) {
		for _, n := range []int{2 * mib, 2 * mib, 20 * mib} {
			all = append(all, x.Add(bytesOf(x, n), in))
		}
		return all
	})
	replay(t, x, g)
	mean := func(v float64) {
		t.Helper()
		for _, a := range out {
			m, err := x.Item(x.Mean(x.ToDType(a, tenon.Float32), nil))
			must(t, err)
			check(t, "mean", m, v)
		}
	}
	mean(2)
	state, err := dev.CheckpointPool(g.Pool())
	must(t, err)
	check(t, "live blocks", liveBlocks(t, x, g.Pool()), 3)
	x.AddSInto(in, in, 1)
	replay(t, x, g)
	mean(3)
	last := out[2].DataPtr()
	rest, err := x.RestorePool(state, out[2:], out[:2])
	must(t, err)
	if !slices.Equal(rest, []uint64{last}) {
		t.Errorf("the addresses without an owner are %x, want %x", rest, last)
	}
	for i, live := range []int{3, 2, 1} {
		check(t, "live blocks", liveBlocks(t, x, g.Pool()), live)
		out[i].Close()
	}
	check(t, "live blocks without the tensors", liveBlocks(t, x, g.Pool()), 1)
	must(t, dev.RawFree(last))
	check(t, "live blocks at the end", liveBlocks(t, x, g.Pool()), 0)
	must(t, g.Close())
}

// residual is a block of two convolutions that adds its input.
type residual struct {
	Conv1, Conv2 *nn.Conv2d
	Norm1, Norm2 *nn.BatchNorm
	Down         *nn.Conv2d
}

func newResidual(x *tenon.Exec, from, to, stride int) *residual {
	opt := nn.Conv2dOpt{Padding: [2]int{1, 1}, NoBias: true}
	first := opt
	first.Stride = [2]int{stride, stride}
	side, norm := [2]int{3, 3}, nn.BatchNormOpt{}
	r := &residual{nn.NewConv2d(x, from, to, side, first), nn.NewConv2d(x, to, to, side, opt), nn.NewBatchNorm2d(x, to, norm),
		nn.NewBatchNorm2d(x, to, norm), nil}
	if stride != 1 || from != to {
		r.Down = nn.NewConv2d(x, from, to, [2]int{1, 1}, nn.Conv2dOpt{Stride: [2]int{stride, stride}, NoBias: true})
	}
	return r
}

func (r *residual) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		a := x.ReLU(r.Norm1.Forward(x, r.Conv1.Forward(x, in)))
		a = r.Norm2.Forward(x, r.Conv2.Forward(x, a))
		if r.Down != nil {
			in = r.Down.Forward(x, in)
		}
		return x.ReLU(x.Add(a, in))
	})
}

func testCheckpointNetwork(t *testing.T, x *tenon.Exec) {
	widths, side := []int{64, 64, 128, 128, 256, 256, 512, 512}, 255
	if !onGPU() {
		widths, side = []int{4, 4, 8, 8}, 31
	}
	net := nn.Sequential{nn.NewConv2d(x, 3, widths[0], [2]int{7, 7}, nn.Conv2dOpt{Stride: [2]int{2, 2}, Padding: [2]int{3, 3}}), nn.ReLU{},
		nn.MaxPool2d{Kernel: [2]int{3, 3}, Opt: tenon.MaxPoolOpt{Stride: [2]int{2, 2}}}}
	from := widths[0]
	for i, to := range widths {
		stride := 1
		if i > 0 && to != from {
			stride = 2
		}
		net = append(net, newResidual(x, from, to, stride))
		from = to
	}
	net = append(net, nn.AdaptiveAvgPool2d{Size: [2]int{1, 1}}, nn.Flatten{}, nn.NewLinear(x, from, 100))
	defer nn.Close(net)
	nn.Eval(net)
	in := x.Rand([]int{1, 3, side, side}, tenon.Float32)
	checkpointOf(func(x *tenon.Exec) []*tenon.Tensor { return []*tenon.Tensor{net.Forward(x.NoGrad(), in)} })(t, x)
}

func testPoolLive(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	pool := cuda.NewPoolID()
	g, out := recordedIn(t, x, pool, func(x *tenon.Exec) []*tenon.Tensor { return []*tenon.Tensor{x.Ones([]int{4}, tenon.Float32)} })
	is := func(want bool, addrs ...uint64) {
		t.Helper()
		live, err := dev.PoolLive(pool, addrs)
		must(t, err)
		check(t, "exactly these are live", live, want)
	}
	p := out[0].DataPtr()
	is(true, p)
	is(false, p, 0)
	is(false)
	out[0].Close()
	is(true)
	must(t, g.Close())
	must(t, dev.EmptyCache())
	_, err := dev.PoolLive(pool, nil)
	wantError(t, err, "Could not find pool of id")
}

func testThreadPool(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	pool := cuda.NewPoolID()
	g, out := recordedIn(t, x, pool, func(x *tenon.Exec) []*tenon.Tensor { return []*tenon.Tensor{x.Rand([]int{4}, tenon.Float32)} })
	out[0].Close()
	check(t, "segments of the graph", len(ofPool(t, x, pool)), 1)
	three := func(x *tenon.Exec) {
		x.Scope(func(x *tenon.Exec) { x.Add(bytesOf(x, 20*mib), bytesOf(x, 20*mib)) })
	}
	fork := func() *tenon.Exec {
		y, err := x.Fork()
		must(t, err)
		return y
	}
	in, beside := fork(), fork()
	var wg sync.WaitGroup
	wg.Go(func() {
		err := dev.BeginAllocateToPool(pool, in.Stream())
		if err == nil {
			for range 10 {
				three(in)
			}
			if err = dev.EndAllocateToPool(pool); err == nil {
				err = dev.ReleasePool(pool)
			}
		}
		if err != nil {
			t.Error(err)
		}
		three(in)
	})
	wg.Go(func() {
		for range 10 {
			beside.Scope(func(x *tenon.Exec) { bytesOf(x, 20*mib); bytesOf(x, 20*mib) })
		}
	})
	wg.Wait()
	check(t, "segments with the thread's", len(ofPool(t, x, pool)), 4)
	must(t, g.Close())
	must(t, dev.Synchronize())
	must(t, dev.EmptyCache())
	check(t, "segments at the end", len(ofPool(t, x, pool)), 0)
}
