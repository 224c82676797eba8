package cuda_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/fault"
)

// counted is an Allocator that passes calls to the driver and counts them.
type counted struct {
	d             *cuda.Device
	allocs, frees int
	sizes         map[uint64]uint64
	err           error
	none          bool
}

func (c *counted) Alloc(size uint64, s *cuda.Stream) (uint64, error) {
	if c.none || c.err != nil {
		return 0, c.err
	}
	addr, err := c.d.Malloc(size)
	if err == nil {
		c.allocs++
		c.sizes[addr] = size
	}
	return addr, err
}

func (c *counted) Free(addr, size uint64, s *cuda.Stream) error {
	if c.err != nil {
		return c.err
	}
	if c.sizes[addr] != size || s == nil {
		return errors.New("freed otherwise than allocated")
	}
	c.frees++
	delete(c.sizes, addr)
	return c.d.Free(addr)
}

func TestMemPool(t *testing.T) {
	x, d := open(t, 1<<30)
	a := &counted{d: d, sizes: map[uint64]uint64{}}
	p, err := cuda.NewMemPool(d, cuda.MemPoolOpt{Allocator: a})
	if err != nil {
		t.Fatal(err)
	}
	if id := p.ID(); id[0] != 0 || id[1] == 0 || p.UseCount() != 1 {
		t.Errorf("pool %v with %d uses", id, p.UseCount())
	}
	in := x.UsePool(p)
	var kept []*tenon.Tensor
	for i, want := range []int{1, 1, 2} {
		kept = append(kept, in.Zeros([]int{mib}, tenon.Uint8))
		if got := p.Segments(); len(got) != want || a.allocs != want || got[0].Size != 2*mib || got[0].Large {
			t.Errorf("after %d tensors: %+v, %d calls", i+1, got, a.allocs)
		}
	}
	out := x.Zeros([]int{mib}, tenon.Uint8)
	if a.allocs != 2 || len(d.PoolSegments([2]uint64{})) != 1 {
		t.Errorf("a tensor outside of the pool: %d calls, default pool %+v", a.allocs, d.PoolSegments([2]uint64{}))
	}
	sum := in.Add(kept[0], kept[1]) // reuses nothing: all is live
	if a.allocs != 2 || p.Segments()[1].Allocated != 2*mib {
		t.Errorf("%d calls, %+v", a.allocs, p.Segments())
	}
	if in.UsePool(nil) != x {
		t.Error("UsePool(nil) is not the Exec without a pool")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	err = tenon.Try(func() { in.Zeros([]int{8}, tenon.Uint8) })
	if fault.KindOf(err) != fault.Closed || !strings.Contains(err.Error(), "the pool was closed") {
		t.Errorf("allocating from a closed pool: %v", err)
	}
	for _, k := range append(kept, sum, out) {
		k.Close()
	}
	if err := d.EmptyCache(); err != nil || a.frees != 2 || d.MemoryReserved() != 0 {
		t.Errorf("%v, %d frees, %d bytes reserved", err, a.frees, d.MemoryReserved())
	}
}

// TestMemPoolUncached uses a pool with an Allocator with caching off: each tensor has a separate allocation, which goes back when the
// tensor is closed.
func TestMemPoolUncached(t *testing.T) {
	x, d := open(t, 1<<30)
	d.SetCaching(false)
	a := &counted{d: d, sizes: map[uint64]uint64{}}
	p, err := cuda.NewMemPool(d, cuda.MemPoolOpt{Allocator: a})
	if err != nil {
		t.Fatal(err)
	}
	in := x.UsePool(p)
	y := in.Ones([]int{8}, tenon.Float32)
	z := in.Add(y, y)
	if got := p.Segments(); len(got) != 2 || got[0].Size != 2*mib || got[0].Large || a.allocs != 2 {
		t.Errorf("the pool holds %+v after %d calls", got, a.allocs)
	}
	if v, err := tenon.Read[float32](x, z); err != nil || v[7] != 2 {
		t.Errorf("the sum is %v, %v", v, err)
	}
	z.Close()
	if a.frees != 1 || len(p.Segments()) != 1 {
		t.Errorf("%d frees, the pool holds %+v", a.frees, p.Segments())
	}
	if err := p.Close(); err != nil || a.frees != 1 || len(p.Segments()) != 1 {
		t.Errorf("closing: %v, %d frees", err, a.frees)
	}
	if err := tenon.Try(func() { in.Zeros([]int{8}, tenon.Uint8) }); fault.KindOf(err) != fault.Closed {
		t.Errorf("allocating from a closed pool: %v", err)
	}
	y.Close()
	if a.frees != 2 {
		t.Errorf("%d frees", a.frees)
	}
	if _, err := d.CheckpointPool(p.ID()); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a checkpoint of a closed pool: %v", err)
	}
}

func TestMemPoolErrors(t *testing.T) {
	x, d := open(t, 1<<30)
	a := &counted{d: d, sizes: map[uint64]uint64{}, none: true}
	p, err := cuda.NewMemPool(d, cuda.MemPoolOpt{Allocator: a})
	if err != nil {
		t.Fatal(err)
	}
	in := x.UsePool(p)
	alloc := func() error { return tenon.Try(func() { in.Zeros([]int{8}, tenon.Uint8).Close() }) }
	if err := alloc(); fault.KindOf(err) != fault.OutOfMemory || !strings.Contains(err.Error(), "Tried to allocate 2.00 MiB") {
		t.Errorf("an allocator without room: %v", err)
	}
	a.err = &fault.Error{Kind: fault.OutOfMemory, Msg: "mine"}
	if err := alloc(); fault.KindOf(err) != fault.OutOfMemory {
		t.Errorf("an allocator that says so: %v", err)
	}
	a.err, a.none = errors.New("broken"), false
	if err := alloc(); fault.KindOf(err) != fault.System || !strings.Contains(err.Error(), "could not allocate 2097152 bytes: broken") {
		t.Errorf("an allocator that fails: %v", err)
	}
	a.err = nil
	if err := alloc(); err != nil {
		t.Error(err)
	}
	a.err = errors.New("stuck")
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "could not free the 2097152 bytes at 0x") ||
		!strings.Contains(err.Error(), "stuck") {
		t.Errorf("closing: %v", err)
	}
	a.err = nil
	if err := d.EmptyCache(); err != nil || a.frees != 1 {
		t.Errorf("%v, %d frees", err, a.frees)
	}
	other, _ := open(t, 1<<30)
	q, err := cuda.NewMemPool(other.Device())
	if err != nil {
		t.Fatal(err)
	}
	err = tenon.Try(func() { x.UsePool(q) })
	if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "the pool is memory of") {
		t.Errorf("a pool of another device: %v", err)
	}
	refused := func(what string, err error) {
		t.Helper()
		want := fmt.Sprintf("the pool (0, %d) is memory of another machine's device 0 (Simulated GPU), not of device 0 (Simulated GPU); "+
			"give an id that NewPoolID made for that device", q.ID()[1])
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	_, err = x.Capture(func(x *tenon.Exec) {}, tenon.CaptureOpt{Pool: q.ID()})
	refused("a capture into another device's pool", err)
	refused("allocations for another device's pool", d.BeginAllocateToPool(q.ID(), x.Stream()))
	if err := d.BeginAllocateToPool(cuda.NewPoolID(), other.Stream()); fault.KindOf(err) != fault.Invalid ||
		!strings.Contains(err.Error(), "the stream is of") {
		t.Errorf("a stream of another device: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	g, err := x.Capture(func(x *tenon.Exec) {}, tenon.CaptureOpt{Pool: q.ID()}) // nobody's any more
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := other.Capture(func(x *tenon.Exec) {}, tenon.CaptureOpt{Pool: g.Pool()}); fault.KindOf(err) != fault.Invalid ||
		!strings.Contains(err.Error(), "is memory of") {
		t.Errorf("a capture into the pool of another device's graph: %v", err)
	}
}

// TestMemPoolThreads uses four pools from four goroutines at once; each pool has only its goroutine's memory.
func TestMemPoolThreads(t *testing.T) {
	x, d := open(t, 1<<30)
	var wg sync.WaitGroup
	ids := make(chan [2]uint64, 4)
	for range 4 {
		y, err := x.Fork()
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			p, err := cuda.NewMemPool(d)
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			in := y.UsePool(p)
			for range 20 {
				a := in.Ones([]int{1 << 16}, tenon.Float32)
				b := in.Add(a, a)
				out := y.Add(a, b)
				if s := p.Segments(); len(s) != 1 || s[0].Allocated != 512<<10 {
					t.Errorf("pool %v holds %+v", p.ID(), s)
				}
				for _, k := range []*tenon.Tensor{a, b, out} {
					k.Close()
				}
			}
			ids <- p.ID()
		})
	}
	wg.Wait()
	close(ids)
	seen := map[[2]uint64]bool{}
	for id := range ids {
		seen[id] = true
	}
	if len(seen) != 4 {
		t.Errorf("ids %v", seen)
	}
}

// TestPoolDiversion diverts a stream's allocations to a pool by its id, as a capture does, with the cache on and off.
func TestPoolDiversion(t *testing.T) {
	for _, cached := range []bool{true, false} {
		poolDiversion(t, cached)
	}
}

func poolDiversion(t *testing.T, cached bool) {
	x, d := open(t, 1<<30)
	d.SetCaching(cached)
	id := cuda.NewPoolID()
	if err := d.EndAllocateToPool(id); err == nil || !strings.Contains(err.Error(),
		"endAllocatePool: not currently recording to mempool_id") {
		t.Errorf("ending nothing: %v", err)
	}
	if err := d.BeginAllocateToPool(id, x.Stream()); err != nil {
		t.Fatal(err)
	}
	if err := d.BeginAllocateToPool(id, x.Stream()); err == nil ||
		!strings.Contains(err.Error(), "beginAllocateToPool: already recording to mempool_id") {
		t.Errorf("beginning twice: %v", err)
	}
	a := x.Ones([]int{4}, tenon.Float32)
	addr := d.PoolSegments(id)[0].Address
	if live, err := d.PoolLive(id, []uint64{addr}); !live || err != nil {
		t.Errorf("PoolLive: %v, %v", live, err)
	}
	if live, err := d.PoolLive(id, nil); live || err != nil {
		t.Errorf("PoolLive of nothing: %v, %v", live, err)
	}
	if err := d.EndAllocateToPool(id); err != nil {
		t.Error(err)
	}
	a.Close()
	if live, err := d.PoolLive(id, nil); !live || err != nil {
		t.Errorf("PoolLive in the end: %v, %v", live, err)
	}
	if err := d.ReleasePool(id); err != nil {
		t.Error(err)
	}
	if err := d.EmptyCache(); err != nil || len(d.PoolSegments(id)) != 0 {
		t.Errorf("%v, %+v", err, d.PoolSegments(id))
	}
	if _, err := d.PoolLive(id, nil); err == nil || !strings.Contains(err.Error(), "Could not find pool of id") {
		t.Errorf("PoolLive of no pool: %v", err)
	}
}

// TestBackwardTakesTheCallersPool closes the pool of the forward pass before the backward pass.
func TestBackwardTakesTheCallersPool(t *testing.T) {
	x, d := open(t, 1<<30)
	p, err := cuda.NewMemPool(d)
	if err != nil {
		t.Fatal(err)
	}
	w := x.Ones([]int{4}, tenon.Float32)
	w.SetRequiresGrad(true)
	in := x.UsePool(p)
	loss := in.Sum(in.Mul(w, w), nil)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := x.Backward(loss); err != nil {
		t.Fatal(err)
	}
	g, err := tenon.Read[float32](x, w.Grad())
	if err != nil || g[0] != 2 {
		t.Errorf("gradient %v, %v", g, err)
	}
}

// TestPoolCheckpoint restores a pool: tensors that were live at the checkpoint keep their address and content, later memory is free again.
func TestPoolCheckpoint(t *testing.T) {
	x, d := open(t, 1<<30)
	p, err := cuda.NewMemPool(d)
	if err != nil {
		t.Fatal(err)
	}
	in := x.UsePool(p)
	full := func(v float64) *tenon.Tensor { return in.Full([]int{64}, v, tenon.Float32) }
	a, b, c := full(1), full(2), full(3)
	b.Close()
	state, err := d.CheckpointPool(p.ID())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(state.Live()); n != 2 {
		t.Errorf("%d live addresses, want 2", n)
	}
	layout := p.Segments()
	late, more := full(4), full(5)
	if _, err := x.RestorePool(state, []*tenon.Tensor{late}, []*tenon.Tensor{a}); err == nil ||
		!strings.Contains(err.Error(), "being manually freed must be passed") {
		t.Errorf("two live tensors were not named: %v", err)
	}
	if _, err := x.RestorePool(state, nil, []*tenon.Tensor{late}); err == nil || !strings.Contains(err.Error(), "pass it as stale") {
		t.Errorf("a late tensor to be kept: %v", err)
	}
	if _, err := x.RestorePool(state, []*tenon.Tensor{b}, nil); err == nil || !strings.Contains(err.Error(), "has no memory of the pool") {
		t.Errorf("a closed tensor: %v", err)
	}
	rest, err := x.RestorePool(state, []*tenon.Tensor{late, more, c}, []*tenon.Tensor{a})
	if err != nil || len(rest) != 1 || rest[0] != state.Live()[1] {
		t.Fatalf("restored: %x, %v; live then %x", rest, err, state.Live())
	}
	if got := p.Segments(); len(got) != len(layout) || got[0] != layout[0] {
		t.Errorf("segments %+v, at the checkpoint %+v", got, layout)
	}
	v, err := tenon.Read[float32](x, a)
	if err != nil || v[0] != 1 || v[63] != 1 {
		t.Errorf("the kept tensor holds %v, %v", v[:2], err)
	}
	again := full(6) // where b was
	v, err = tenon.Read[float32](x, a)
	if err != nil || v[0] != 1 {
		t.Errorf("the kept tensor was overwritten: %v, %v", v[:2], err)
	}
	for _, k := range []*tenon.Tensor{late, more, c, again, a} {
		k.Close()
	}
	if live, err := d.PoolLive(p.ID(), rest); !live || err != nil {
		t.Errorf("only the address without an owner should be live: %v, %v", live, err)
	}
	if err := d.RawFree(rest[0]); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil || len(d.PoolSegments(p.ID())) != 0 {
		t.Errorf("%v, %+v", err, d.PoolSegments(p.ID()))
	}
	if _, err := x.RestorePool(state, nil, nil); err == nil || !strings.Contains(err.Error(), "Could not find private pool id") {
		t.Errorf("a pool that is gone: %v", err)
	}
	if _, err := d.CheckpointPool(p.ID()); err == nil || !strings.Contains(err.Error(), "Could not find pool of id") {
		t.Errorf("a checkpoint of no pool: %v", err)
	}
}
