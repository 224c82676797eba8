package hostsim

import (
	"testing"

	"tenon.dev/internal/driver"
)

// TestPoolReuse follows addresses: a stream gets the memory that it freed at once, another stream when the free has run.
func TestPoolReuse(t *testing.T) {
	d, th := enter(t, New(Options{Capacity: 1 << 30}), 0)
	a, err := d.StreamCreate(th, true, 0)
	must(t, err)
	b, err := d.StreamCreate(th, true, 0)
	must(t, err)
	must(t, d.PoolKeep(th, 1<<40))
	alloc := func(n uint64, s driver.Stream) driver.Ptr {
		t.Helper()
		p, err := d.MemAllocAsync(th, n, s)
		must(t, err)
		return p
	}
	release := d.Hold(a)
	p := alloc(4096, a)
	must(t, d.MemFreeAsync(th, p, a))
	if q := alloc(1024, b); q == p {
		t.Error("another stream got memory whose free has not run")
	} else {
		must(t, d.MemFreeAsync(th, q, b))
	}
	first, second := alloc(1024, a), alloc(3072, a)
	if first != p || second != p+1024 {
		t.Errorf("the stream got %#x and %#x, not the parts of %#x", first, second, p)
	}
	if u, err := d.PoolUsage(th); err != nil || u.Used != 4096+1024 || u.Reserved != chunkBytes {
		t.Errorf("usage %+v, %v", u, err)
	}
	must(t, d.MemFreeAsync(th, first, a))
	must(t, d.MemFreeAsync(th, second, a))
	release()
	must(t, d.Synchronize(th))
	if u, err := d.PoolUsage(th); err != nil || u.Used != 0 {
		t.Errorf("usage %+v, %v", u, err)
	}
	if q := alloc(4096, b); q != p {
		t.Errorf("another stream got %#x after the free, want %#x", q, p)
	}
}

// TestPoolFreedAtOnce frees pool memory with MemFree, which does not wait: the memory returns to the pool, and the pool keeps the chunk.
func TestPoolFreedAtOnce(t *testing.T) {
	d, th := enter(t, New(Options{Capacity: 1 << 30}), 0)
	s := streams(t, d, th, 1)[0]
	must(t, d.PoolKeep(th, 1<<40))
	p, err := d.MemAllocAsync(th, 4096, s)
	must(t, err)
	q, err := d.MemAllocAsync(th, 4096, s)
	must(t, err)
	must(t, d.MemFree(th, p))
	want(t, d.MemFree(th, p), "MemFree", driver.InvalidValue)
	want(t, d.MemFree(th, q+8), "MemFree", driver.InvalidValue)
	if u, err := d.PoolUsage(th); err != nil || u.Used != 4096 || u.Reserved != chunkBytes {
		t.Errorf("usage %+v, %v", u, err)
	}
	if again, err := d.MemAllocAsync(th, 4096, s); err != nil || again != p {
		t.Errorf("%#x, %v; want %#x", again, err, p)
	}
	must(t, d.CaptureBegin(th, s, driver.CaptureRelaxed))
	r, err := d.MemAllocAsync(th, 4096, s)
	must(t, err)
	g, err := d.CaptureEnd(th, s)
	must(t, err)
	x, err := d.GraphInstantiate(th, g)
	must(t, err)
	must(t, d.GraphDestroy(th, g))
	must(t, d.GraphLaunch(x, s))
	must(t, d.MemFree(th, r))
	must(t, d.GraphLaunch(x, s))
	must(t, d.GraphExecDestroy(th, x))
	must(t, d.Close())
}

// TestPoolWaitsForFrees allocates the last memory, whose frees have not run yet.
func TestPoolWaitsForFrees(t *testing.T) {
	d, th := enter(t, New(Options{Capacity: 64 << 20}), 0)
	a, err := d.StreamCreate(th, true, 0)
	must(t, err)
	b, err := d.StreamCreate(th, true, 0)
	must(t, err)
	for i := range 4 {
		p, err := d.MemAllocAsync(th, 60<<20, a)
		if err != nil {
			t.Fatalf("allocation %d: %v", i, err)
		}
		must(t, d.Memset(p, 0, 1, 60<<20, a))
		must(t, d.MemFreeAsync(th, p, a))
		a, b = b, a
	}
	p, err := d.MemAllocAsync(th, 8<<20, a) // other chunks must be released first
	must(t, err)
	if _, err := d.MemAllocAsync(th, 60<<20, b); err == nil {
		t.Error("68 MiB of 64 were allocated")
	} else {
		want(t, err, "MemAllocAsync", driver.OutOfMemory)
	}
	must(t, d.MemFreeAsync(th, p, a))
}

// TestGraphMemoryEnds checks that a graph's memory is released with the graph and its executable, and that of a failed capture at once.
func TestGraphMemoryEnds(t *testing.T) {
	d, th := enter(t, New(Options{Capacity: 1 << 30}), 0)
	s, err := d.StreamCreate(th, true, 0)
	must(t, err)
	free := func(want uint64) {
		t.Helper()
		if n, _, err := d.MemInfo(th); err != nil || n != want {
			t.Errorf("%d bytes free, want %d, %v", n, want, err)
		}
	}
	must(t, d.CaptureBegin(th, s, driver.CaptureRelaxed))
	p, err := d.MemAllocAsync(th, 8<<20, s)
	must(t, err)
	must(t, d.Memset(p, 1, 1, 8<<20, s))
	g, err := d.CaptureEnd(th, s)
	must(t, err)
	x, err := d.GraphInstantiate(th, g)
	must(t, err)
	must(t, d.GraphDestroy(th, g))
	must(t, d.GraphLaunch(x, s))
	free(1<<30 - 8<<20)
	must(t, d.MemFreeAsync(th, p, s))
	must(t, d.GraphExecDestroy(th, x)) // the launch still runs
	free(1 << 30)
	want(t, d.MemFreeAsync(th, p, s), "MemFreeAsync", driver.InvalidValue)
	must(t, d.Synchronize(th))

	must(t, d.CaptureBegin(th, s, driver.CaptureRelaxed))
	_, err = d.MemAllocAsync(th, 8<<20, s)
	must(t, err)
	must(t, d.StreamDestroy(th, s))
	free(1 << 30)
}

// TestUnmapUnderWork unmaps memory that queued work uses: that is a fault of the device, not of the process.
func TestUnmapUnderWork(t *testing.T) {
	d, th := enter(t, New(Options{}), 0)
	if !d.Info().VirtualMemory {
		t.Skip("the simulator has virtual memory on Linux only")
	}
	s, err := d.StreamCreate(th, true, 0)
	must(t, err)
	r, err := d.MemReserve(th, 4*step)
	must(t, err)
	must(t, d.MemMap(th, r, 2*step))
	must(t, d.Memset(r, 1, 1, 2*step, s))
	must(t, d.MemUnmap(th, r, 2*step))
	want(t, d.StreamSynchronize(th, s), "StreamSynchronize", driver.IllegalAddress)
	if err := d.MemUnreserve(th, r, 4*step); err != nil {
		t.Errorf("a free on a lost device: %v", err)
	}
}
