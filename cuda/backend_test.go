package cuda_test

import (
	"log/slog"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/fault"
)

// TestBackends runs one program with every allocator back end: gradients, a second stream, a graph, an allocation that fails.
func TestBackends(t *testing.T) {
	for _, conf := range []string{"", "expandable_segments:True", "backend:cudaMallocAsync",
		"max_split_size_mb:32,roundup_power2_divisions:4,release_lock_on_cudamalloc:True"} {
		t.Run(conf, func(t *testing.T) {
			t.Setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
			x, d := open(t, 1<<30)
			w := x.Full([]int{256, 256}, 0.5, tenon.Float32)
			w.SetRequiresGrad(true)
			in := x.Ones([]int{64, 256}, tenon.Float32)
			for range 3 {
				step(t, x, w, in)
			}
			st, err := d.Stream()
			if err != nil {
				t.Fatal(err)
			}
			side := x.On(st)
			for range 20 { // free memory of one stream that another uses
				a := x.Ones([]int{1 << 20}, tenon.Uint8)
				b := side.Add(a, a)
				a.Close()
				b.Close()
			}
			acc := x.Zeros([]int{1024}, tenon.Float32)
			one := x.Ones([]int{1024}, tenon.Float32)
			g, err := x.Capture(func(x *tenon.Exec) {
				sum := x.Add(one, one)
				x.AddInto(acc, acc, sum)
				sum.Close()
			})
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := x.Replay(g); err != nil {
					t.Fatal(err)
				}
			}
			if v, err := tenon.Read[float32](x, acc); err != nil || v[0] != 6 || v[1023] != 6 {
				t.Errorf("after three replays %v, %v", v[:2], err)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			if err := tenon.Try(func() { x.Zeros([]int{2 << 30}, tenon.Uint8) }); fault.KindOf(err) != fault.OutOfMemory ||
				!strings.Contains(err.Error(), "out of memory") {
				t.Errorf("too much: %v", err)
			}
			for _, k := range []*tenon.Tensor{w, in, acc, one} {
				k.Close()
			}
			if err := d.EmptyCache(); err != nil || d.MemoryAllocated() != 0 || d.MemoryReserved() != 0 {
				t.Errorf("%v, %d bytes allocated, %d reserved", err, d.MemoryAllocated(), d.MemoryReserved())
			}
			if free, total, err := d.MemInfo(); free != total || err != nil {
				t.Errorf("%d of %d bytes free, %v", free, total, err)
			}
		})
	}
}

// step is a forward and a backward pass whose gradient is known.
func step(t *testing.T, x *tenon.Exec, w, in *tenon.Tensor) {
	t.Helper()
	y := x.MatMul(in, w)
	loss := x.Sum(y, nil)
	if err := x.Backward(loss); err != nil {
		t.Fatal(err)
	}
	v, err := tenon.Read[float32](x, w.Grad())
	if err != nil || v[0] != 64 || v[len(v)-1] != 64 {
		t.Fatalf("gradient %v, %v", v[:2], err)
	}
	w.SetGrad(nil)
	y.Close()
	loss.Close()
}

func TestAsyncBackendAnswers(t *testing.T) {
	var logged strings.Builder
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	defer slog.SetDefault(old)
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync,max_split_size_mb:32")
	x, d := open(t, 1<<30)
	if d.AllocatorBackend() != "cudaMallocAsync" {
		t.Errorf("back end %q", d.AllocatorBackend())
	}
	if !strings.Contains(logged.String(), "backend:cudaMallocAsync ignores max_split_size_mb,roundup_power2_divisions, and "+
		"garbage_collect_threshold.") {
		t.Errorf("logged %q", logged.String())
	}
	for what, err := range map[string]error{
		"a snapshot":  second(d.Snapshot()),
		"history":     d.RecordMemoryHistory(cuda.History{Context: cuda.ContextNone}),
		"a pool":      second(cuda.NewMemPool(d, cuda.MemPoolOpt{Allocator: &counted{d: d}})),
		"checkpoints": second(d.CheckpointPool(cuda.NewPoolID())),
		"live blocks": second(d.PoolLive(cuda.NewPoolID(), nil)),
	} {
		if fault.KindOf(err) != fault.Unsupported {
			t.Errorf("%s: %v", what, err)
		}
	}
	p, err := cuda.NewMemPool(d)
	if err != nil {
		t.Fatal(err)
	}
	x.UsePool(p).Ones([]int{8}, tenon.Float32).Close()
	if err := p.Close(); err != nil || d.MaxMemoryAllocated() != 32 {
		t.Errorf("%v, %d bytes at most", err, d.MaxMemoryAllocated())
	}
}

func second[T any](_ T, err error) error { return err }
