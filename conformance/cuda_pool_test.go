package conformance

import (
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
)

// poolTests are the behaviours of users' private pools.
var poolTests = []cudaTest{
	{name: "CUDA-310_test_mempool_id", run: testMemPoolID},
	{name: "CUDA-311_test_mempool_with_allocator", run: testMemPoolAllocator},
	{name: "CUDA-312_test_mempool_context", run: testMemPoolContext},
	{name: "CUDA-313_test_mempool_multithread", run: testMemPoolThreads},
}

func newPool(t *testing.T, d *cuda.Device, opts ...cuda.MemPoolOpt) *cuda.MemPool {
	t.Helper()
	p, err := cuda.NewMemPool(d, opts...)
	must(t, err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func testMemPoolID(t *testing.T, x *tenon.Exec) {
	a := cuda.NewPoolID()
	b := newPool(t, x.Device()).ID()
	c := cuda.NewPoolID()
	check(t, "first number of a handle", a[0], 0)
	check(t, "first number of a pool's id", b[0], 0)
	if a[1] == 0 || b[1] <= a[1] || c[1] <= b[1] {
		t.Errorf("the ids are %v, %v and %v; want them to grow from 1 on", a, b, c)
	}
}

// ownMemory takes memory from the device and counts.
type ownMemory struct {
	dev           *cuda.Device
	allocs, frees int
	bytes         uint64
}

func (m *ownMemory) Alloc(size uint64, s *cuda.Stream) (uint64, error) {
	m.allocs++
	m.bytes += size
	return m.dev.Malloc(size)
}

func (m *ownMemory) Free(addr, size uint64, s *cuda.Stream) error {
	m.frees++
	m.bytes -= size
	return m.dev.Free(addr)
}

func testMemPoolAllocator(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	check(t, "segments of a new pool", len(newPool(t, dev).Segments()), 0)
	own := &ownMemory{dev: dev}
	pool := newPool(t, dev, cuda.MemPoolOpt{Allocator: own})
	check(t, "uses of a new pool", pool.UseCount(), 1)
	check(t, "allocations at first", own.allocs, 0)
	// within is PyTorch's use_mem_pool: while f runs, allocations on x's stream come from the pool.
	within := func(f func()) {
		must(t, dev.BeginAllocateToPool(pool.ID(), x.Stream()))
		f()
		must(t, dev.EndAllocateToPool(pool.ID()))
		must(t, dev.ReleasePool(pool.ID()))
	}
	var out [3]*tenon.Tensor
	fill := func(i int) { out[i] = x.RandN([]int{mib / 4}, tenon.Float32) }
	within(func() {
		fill(0)
		check(t, "uses within", pool.UseCount(), 2)
	})
	check(t, "uses after", pool.UseCount(), 1)
	check(t, "allocations from the program's own memory", own.allocs, 1)
	check(t, "their bytes", own.bytes, 2*mib)
	within(func() {
		check(t, "segments with one tensor", len(pool.Segments()), 1)
		fill(1)
		check(t, "segments with two", len(pool.Segments()), 1)
		fill(2)
		check(t, "segments with three", len(pool.Segments()), 2)
	})
	check(t, "segments after", len(pool.Segments()), 2)
	check(t, "allocations", own.allocs, 2)
	for _, s := range pool.Segments() {
		check(t, "bytes of a segment", s.Size, 2*mib)
	}
	// Allocations outside a pool's scope come from elsewhere.
	x.Empty([]int{mib / 4}, tenon.Float32).Close()
	check(t, "allocations after one outside", own.allocs, 2)
	for _, v := range out {
		v.Close()
	}
	must(t, dev.Synchronize())
	check(t, "frees before the pool ends", own.frees, 0)
	must(t, pool.Close())
	check(t, "frees", own.frees, 2)
	check(t, "bytes at the end", own.bytes, 0)
}

// testMemPoolContext: Tenon has no current pool; the pool is a mode of the Exec, as the stream is.
func testMemPoolContext(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	pool, inner := newPool(t, dev), newPool(t, dev)
	in := func(p *cuda.MemPool) (n int64) {
		for _, s := range p.Segments() {
			n += int64(s.Allocated)
		}
		return n
	}
	y := x.UsePool(pool)
	a := y.Zeros([]int{mib}, tenon.Uint8)
	check(t, "bytes in the pool", in(pool), mib)
	b := x.Zeros([]int{mib}, tenon.Uint8) // the enclosing Exec has no pool
	check(t, "bytes in the pool after an allocation outside", in(pool), mib)
	c := y.UsePool(inner).Zeros([]int{mib}, tenon.Uint8)
	check(t, "bytes in the pool after one in another", in(pool), mib)
	check(t, "bytes in the other", in(inner), mib)
	d := y.Add(a, b) // derived modes end with their Exec
	check(t, "bytes in the pool after the second of its own", in(pool), 2*mib)
	e := y.UsePool(nil).Zeros([]int{mib}, tenon.Uint8)
	check(t, "bytes in the pool after one with none", in(pool), 2*mib)
	for _, v := range []*tenon.Tensor{a, b, c, d, e} {
		v.Close()
	}
	check(t, "bytes in the pool at the end", in(pool), 0)
}

func testMemPoolThreads(t *testing.T, x *tenon.Exec) {
	const n = 4
	var execs [n]*tenon.Exec
	var pools [n]*cuda.MemPool
	for i := range n {
		var err error
		execs[i], err = x.Fork()
		must(t, err)
	}
	var at [n]uint64
	threads(n, func(i int) {
		p, err := cuda.NewMemPool(x.Device())
		if err != nil {
			t.Error(err)
			return
		}
		pools[i] = p
		y := execs[i].UsePool(p)
		y.Scope(func(y *tenon.Exec) {
			y.Zeros([]int{256}, tenon.Float32)
			if s := p.Segments(); len(s) == 1 {
				at[i] = s[0].Address
			}
		})
	})
	ids, addresses := map[[2]uint64]bool{}, map[uint64]bool{}
	for i, p := range pools {
		if p == nil {
			return
		}
		ids[p.ID()], addresses[at[i]] = true, true
		must(t, p.Close())
	}
	check(t, "different ids", len(ids), n)
	check(t, "different segments", len(addresses), n)
	must(t, x.Device().Synchronize())
}
