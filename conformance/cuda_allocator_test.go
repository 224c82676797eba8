package conformance

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/testdevice"
)

// allocatorTests are the behaviours of the caching allocator.
var allocatorTests = []cudaTest{
	{name: "CUDA-004_test_memory_allocation", run: testMemoryAllocation, async: true},
	{name: "CUDA-008_test_out_of_memory", run: testOutOfMemory, async: true},
	{name: "CUDA-009_test_out_of_memory_retry", run: testOutOfMemoryRetry},
	{name: "CUDA-010_test_set_per_process_memory_fraction", run: testSetMemoryFraction, async: true},
	{name: "CUDA-011_test_get_per_process_memory_fraction", run: testGetMemoryFraction, async: true},
	{name: "CUDA-036_test_record_stream", run: testRecordStream, async: true},
	{name: "CUDA-037_test_record_stream_on_shifted_view", run: testRecordStreamShifted, async: true},
	{name: "CUDA-040_test_caching_allocator_record_stream_oom", run: testRecordStreamOOM, async: true},
	{name: "CUDA-054_test_cuda_memory_leak_detection_propagates_errors", run: testLeakDetection, async: true},
	{name: "CUDA-116_test_matmul_memory_use", run: testMatMulMemory, async: true},
	{name: "CUDA-133_test_raises_oom", run: testRaisesOOM, async: true},
	{name: "CUDA-135_test_notifies_oom", run: testNotifiesOOM},
	{name: "CUDA-136_test_allocator_fuzz", run: testAllocatorFuzz, async: true},
	{name: "CUDA-301_test_memory_stats", run: testMemoryStats, async: true},
	{name: "CUDA-309_test_cachingAllocator_raw_alloc", run: testRawAlloc},
}

func testMemoryAllocation(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	for _, size := range []uint64{1, 512, 513, 3 * mib, 30 * mib} {
		before := dev.MemoryAllocated()
		mem, err := dev.RawAlloc(size, x.Stream())
		must(t, err)
		rounded := (size + 511) / 512 * 512
		if async(x) { // has no blocks
			rounded = size
		}
		check(t, "bytes of a raw allocation", dev.MemoryAllocated()-before, int64(rounded))
		must(t, dev.RawFree(mem))
		check(t, "allocated bytes after the free", dev.MemoryAllocated(), before)
	}
	mem, err := dev.RawAlloc(0, x.Stream())
	must(t, err)
	check(t, "address of nothing", mem, 0)
	must(t, dev.RawFree(mem))
	wantError(t, dev.RawFree(12345), "invalid device pointer: ")
}

func testOutOfMemory(t *testing.T, x *tenon.Exec) {
	a := x.Zeros([]int{1024}, tenon.Float32)
	empty := func(n int) error { return tenon.Try(func() { x.Empty([]int{n}, tenon.Int8) }) }
	if async(x) {
		wantOOM(t, empty(gib*800_000_000), "Allocation on device 0 would exceed allowed memory. (out of memory)", "800000000.00 GiB")
	} else {
		wantOOM(t, empty(gib*800_000_000), "CUDA out of memory.", "Tried to allocate 800000000.00 GiB")
	}
	wantOOM(t, empty(gib*8_000_000_000), "Tried to allocate more than 1EB memory")
	check(t, "failures counted", stat(t, x.Device(), "num_ooms"), 1)
	// Work can continue.
	x.CopyInto(a, x.Ones([]int{1024}, tenon.Float32))
	allAre(t, x, "after the failure", a, 1)
}

func testOutOfMemoryRetry(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	settle(t, dev)
	size := int(dev.TotalMemory() / 2)
	x.Empty([]int{1}, tenon.Int8) // a CUDA context takes some memory too
	a := x.Empty([]int{size}, tenon.Int8)
	at := a.DataPtr()
	wantOOM(t, tenon.Try(func() { x.Empty([]int{size}, tenon.Int8) }), "Tried to allocate")
	check(t, "the first tensor's address after the failure", a.DataPtr(), at)
	a.Close()
	b := x.Empty([]int{size}, tenon.Int8)
	check(t, "address of the second tensor, from the cache", b.DataPtr(), at)
	b.Close()
	// A request that the cached block cannot hold: the block is returned to the device first. That retry leaks nothing.
	retries := stat(t, dev, "num_alloc_retries")
	c := x.Empty([]int{size + 64*mib}, tenon.Int8)
	check(t, "retries", stat(t, dev, "num_alloc_retries")-retries, 1)
	check(t, "reserved bytes", dev.MemoryReserved(), int64(size+64*mib+2*mib-1)/(2*mib)*(2*mib)+2*mib)
	c.Close()
	settle(t, dev)
	check(t, "reserved bytes at the end", dev.MemoryReserved(), 2*mib)
}

func testSetMemoryFraction(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	for _, f := range []float64{2, -0.1, 1.0000001, math.NaN()} {
		wantError(t, dev.SetMemoryFraction(f), "Invalid fraction value")
	}
	wantError(t, dev.SetMemoryFraction(2), "Invalid fraction value: 2", "Allowed range: 0~1")
	limited := "the limit that was set for this process is "
	if async(x) {
		limited = "would exceed allowed memory"
	}
	a := x.Zeros([]int{1024}, tenon.Float32)
	must(t, dev.EmptyCache())
	must(t, dev.SetMemoryFraction(0.5))
	dev.ResetPeakStats()
	total := float64(dev.TotalMemory())
	// 0.499 of the device can be allocated.
	tmp := x.Empty([]int{int(total*0.499) - int(dev.MaxMemoryReserved())}, tenon.Int8)
	tmp.Close()
	must(t, dev.EmptyCache())
	// 0.5 beyond the existing memory cannot, though the device has it.
	wantOOM(t, tenon.Try(func() { x.Empty([]int{int(total * 0.5)}, tenon.Int8) }), "out of memory", limited)
	if free, _, err := dev.MemInfo(); err != nil || float64(free) < total*0.5 {
		t.Logf("the device itself has %d bytes free (%v)", free, err)
	}
	// The failure did no harm.
	x.CopyInto(a, x.Ones([]int{1024}, tenon.Float32))
	allAre(t, x, "after the failure", a, 1)
}

func testGetMemoryFraction(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	check(t, "fraction at first", dev.MemoryFraction(), 1)
	for _, f := range []float64{0.5, 0.3, 1} {
		must(t, dev.SetMemoryFraction(f))
		check(t, "fraction", dev.MemoryFraction(), f)
	}
}

// testRecordStream runs once with the waits and records of PyTorch's test, and once with none, where Tenon orders streams by itself.
func testRecordStream(t *testing.T, x *tenon.Exec) {
	t.Run("by hand", func(t *testing.T) { recordStream(t, x.ManualStreams(), true) })
	t.Run("automatic", func(t *testing.T) { recordStream(t, x, false) })
}

func recordStream(t *testing.T, x *tenon.Exec, manual bool) {
	host := x.PinMemory(tenon.From(x.Host(), []float32{1, 2, 3, 4}))
	result := x.Empty([]int{4}, tenon.Float32)
	stream := newStream(t, x)
	side := x.On(stream)
	// Loads the copy's kernel and lets the allocator see the small pool, so that nothing below waits for the device.
	x.CopyInto(result, x.Zeros([]int{4}, tenon.Float32))
	must(t, x.Device().Synchronize())

	tmp := side.To(host, tenon.ToOpt{NonBlocking: true})
	ptr := tmp.DataPtr()
	if manual {
		must(t, x.WaitStream(stream))
		must(t, x.RecordStream(tmp, x.Stream()))
	}
	spin(x, 50*time.Millisecond)
	x.CopyInto(result, tmp)
	tmp.Close()

	tmp2 := side.Zeros([]int{4}, tenon.Float32)
	if tmp2.DataPtr() == ptr {
		t.Error("the memory was reused while the other stream was to read it")
	}
	if got := testdevice.Read[float32](t, x, result); got[0] != 1 || got[1] != 2 || got[2] != 3 || got[3] != 4 {
		t.Errorf("the copy is %v", got)
	}
	// Once the other stream is done, the memory is reused on the stream that it was allocated for.
	must(t, x.Synchronize())
	tmp3 := side.Empty([]int{4}, tenon.Float32)
	if !async(x) { // whose addresses are the driver's matter
		check(t, "address after the wait", tmp3.DataPtr(), ptr)
	}
	for _, v := range []*tenon.Tensor{tmp2, tmp3, result, host} {
		v.Close()
	}
	must(t, x.Device().Synchronize())
}

func testRecordStreamShifted(t *testing.T, x *tenon.Exec) {
	m := x.ManualStreams()
	own, other := newStream(t, x), newStream(t, x)
	a := m.On(own)
	// Without the record the memory is reused, so the following shows the effect of the record.
	for _, record := range []bool{false, true} {
		base := a.Empty([]int{10}, tenon.Float32)
		view := a.Slice(base, 0, 5, 10, 1)
		if view.Offset() == 0 || view.DataPtr() == base.DataPtr() {
			t.Fatal("the view has no offset")
		}
		spin(m.On(other), 50*time.Millisecond)
		if record {
			must(t, a.RecordStream(view, other))
		}
		ptr := base.DataPtr()
		base.Close()
		view.Close()
		spin(a, time.Millisecond) // the device's clock advances, but not to the end of the other stream's work
		must(t, own.Synchronize())
		check(t, "the other stream is busy", busy(t, other), true)
		again := a.Empty([]int{10}, tenon.Float32)
		if moved := again.DataPtr() != ptr; moved != record && (record || !async(x)) {
			t.Errorf("record %v: the next tensor is at %#x, the one before was at %#x", record, again.DataPtr(), ptr)
		}
		again.Close()
		must(t, x.Device().Synchronize())
	}
}

func testRecordStreamOOM(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	n := sized(40*mib, mib) // elements
	capped(t, dev, int64(n)*4*10)
	stream := newStream(t, x)
	m := x.ManualStreams()
	side := m.On(stream)
	y := side.Zeros([]int{n}, tenon.Float32)
	must(t, dev.Synchronize())
	for i := range 100 {
		a := m.Empty([]int{n}, tenon.Float32)
		spin(side, time.Millisecond) // the side stream lags behind
		side.AddInto(y, y, a)
		must(t, m.RecordStream(a, stream))
		a.Close()
		if t.Failed() {
			t.Fatalf("turn %d", i)
		}
	}
	// cudaMallocAsync frees in stream order and need not wait.
	if !async(x) && (stat(t, dev, "num_sync_all_streams") == 0 || stat(t, dev, "num_alloc_retries") == 0) {
		t.Error("the cap was never reached: the test shows nothing")
	}
	check(t, "failures", stat(t, dev, "num_ooms"), 0)
	must(t, dev.Synchronize())
}

func testLeakDetection(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	before := dev.MemoryAllocated()
	err := tenon.Try(func() {
		x.Scope(func(x *tenon.Exec) {
			a := x.RandN([]int{3, 1}, tenon.Float32)
			b := x.RandN([]int{2, 1}, tenon.Float32)
			x.Add(a, b)
		})
	})
	wantError(t, err, "The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 0")
	check(t, "allocated bytes after the failure", dev.MemoryAllocated(), before)
	// A real leak is detected.
	var kept *tenon.Tensor
	x.Scope(func(x *tenon.Exec) { kept = x.Keep(x.Empty([]int{256}, tenon.Float32)) })
	check(t, "bytes of a tensor that left its scope", dev.MemoryAllocated()-before, 1024)
	kept.Close()
	check(t, "allocated bytes at the end", dev.MemoryAllocated(), before)
}

func testMatMulMemory(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	used := func() int64 {
		must(t, dev.Synchronize())
		v := dev.MaxMemoryAllocated()
		dev.ResetPeakStats()
		return v
	}
	a := x.Rand([]int{1, 32, 32}, tenon.Float32)
	b := x.Rand([]int{24, 32, 1}, tenon.Float32)
	product := func(f func(x *tenon.Exec)) int64 {
		x.Scope(f)
		return used()
	}
	used()
	plain := product(func(x *tenon.Exec) { x.MatMul(a, b) })
	wide := x.Expand(a, 24, 32, 32)
	check(t, "peak with an expanded operand", product(func(x *tenon.Exec) { x.MatMul(wide, b) }), plain)
	check(t, "peak of BMM", product(func(x *tenon.Exec) { x.BMM(wide, b) }), plain)
	// Only the result: no operand was copied.
	check(t, "peak above the operands", plain-dev.MemoryAllocated(), 24*32*4)
}

func testRaisesOOM(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	empty := func() { x.Empty([]int{1024 * 1024 * 1024 * 1024}, tenon.Float32) }
	t.Run("default", func(t *testing.T) { wantOOM(t, tenon.Try(empty), "4096.00 GiB") })
	t.Run("max_split_size", func(t *testing.T) {
		// Blocks beyond the limit are freed one by one before the failure.
		must(t, dev.SetAllocatorSettings("max_split_size_mb:1024"))
		must(t, dev.EmptyCache())
		if async(x) { // has no blocks to split
			wantOOM(t, tenon.Try(empty), "4096.00 GiB")
			return
		}
		x.Empty([]int{3 * gib}, tenon.Int8).Close()
		x.Empty([]int{100 * mib}, tenon.Int8).Close()
		check(t, "oversize allocations", stat(t, dev, "oversize_allocations.allocated"), 1)
		wantOOM(t, tenon.Try(empty), "Tried to allocate 4096.00 GiB")
		check(t, "reserved bytes after the failure", dev.MemoryReserved(), 0)
	})
}

func testNotifiesOOM(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	var seen []cuda.OOM
	dev.OnOutOfMemory(func(o cuda.OOM) { seen = append(seen, o) })
	wantOOM(t, tenon.Try(func() { x.Empty([]int{1024 * 1024 * 1024 * 1024}, tenon.Float32) }))
	if len(seen) != 1 {
		t.Fatalf("the observer was called %d times", len(seen))
	}
	free, total, err := dev.MemInfo()
	must(t, err)
	check(t, "device", seen[0].Device, dev.Ordinal())
	check(t, "wanted", seen[0].Wanted, 4<<40)
	check(t, "allowed", seen[0].Allowed, total)
	if !onGPU() {
		check(t, "free", seen[0].Free, free)
	}
	must(t, dev.SetMemoryFraction(0.25))
	wantOOM(t, tenon.Try(func() { x.Empty([]int{1024 * 1024 * 1024 * 1024}, tenon.Float32) }))
	check(t, "allowed with a fraction", seen[1].Allowed, total/4)
	check(t, "failures counted", stat(t, dev, "num_ooms"), 2)
}

// testAllocatorFuzz is the program of PyTorch's test. The simulator fills memory at the host's speed, so it uses 1/64 of the sizes and
// fewer steps.
func testAllocatorFuzz(t *testing.T, x *tenon.Exec) {
	scale, steps := sized(1, 64), sized(10_000, 2_000)
	if *longFlag {
		steps = 10_000
	}
	type entry struct {
		serial int
		tensor *tenon.Tensor
	}
	r := rand.New(rand.NewPCG(123, 0))
	var live []entry
	total, serial := 0, 0
	alloc := func() {
		lo, hi := 2*mib/4/scale, 200*mib/4/scale
		n := lo + r.IntN(hi-lo)
		live = append(live, entry{serial, x.Full([]int{n}, float64(serial), tenon.Int32)})
		serial++
		total += n
	}
	free := func() {
		i := r.IntN(len(live))
		e := live[i]
		live[i] = live[len(live)-1]
		live = live[:len(live)-1]
		allAre(t, x, "a tensor at its end", e.tensor, float64(e.serial))
		total -= e.tensor.Numel()
		e.tensor.Close()
	}
	for range steps {
		for total >= gib/4/scale {
			free()
		}
		weight := 1.1
		if len(live) > 0 {
			weight = 2.1
		}
		switch v := r.Float64() * weight; {
		case v < 1:
			alloc()
		case v < weight-0.1:
			free()
		default:
			must(t, x.Device().EmptyCache())
		}
		if t.Failed() {
			return
		}
	}
	for len(live) > 0 {
		free()
	}
	check(t, "failures", stat(t, x.Device(), "num_ooms"), 0)
	check(t, "live allocations", stat(t, x.Device(), "allocation.all.current"), 0)
}

func testMemoryStats(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	settle(t, dev)
	dev.ResetPeakStats()
	dev.ResetAccumulatedStats()
	before := dev.Stats()
	a := x.Ones([]int{8, 32}, tenon.Float32)
	if async(x) { // counts only allocated bytes
		check(t, "allocated bytes", dev.MemoryAllocated()-before["allocated_bytes.all.current"], 1024)
		a.Close()
		check(t, "allocated bytes after the close", dev.MemoryAllocated(), before["allocated_bytes.all.current"])
		return
	}
	check(t, "active bytes", stat(t, dev, "active_bytes.all.current")-before["active_bytes.all.current"], 1024)
	check(t, "allocated bytes", dev.MemoryAllocated()-before["allocated_bytes.all.current"], 1024)
	check(t, "active bytes, sum", stat(t, dev, "active_bytes.all.allocated"), 1024)
	check(t, "active bytes, small pool", stat(t, dev, "active_bytes.small_pool.current")-before["active_bytes.small_pool.current"], 1024)
	a.Close()
	check(t, "active bytes after the close", stat(t, dev, "active_bytes.all.current"), before["active_bytes.all.current"])
	check(t, "active bytes, freed", stat(t, dev, "active_bytes.all.freed"), 1024)
	check(t, "active bytes, peak", stat(t, dev, "active_bytes.all.peak")-before["active_bytes.all.current"], 1024)
}

func testRawAlloc(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	must(t, dev.EmptyCache())
	dev.ResetAccumulatedStats()
	requested := func() int64 {
		before := stat(t, dev, "requested_bytes.all.allocated")
		mem, err := dev.RawAlloc(mib, x.Stream())
		must(t, err)
		after := stat(t, dev, "requested_bytes.all.allocated")
		must(t, dev.RawFree(mem))
		return after - before
	}
	dev.SetCaching(false)
	check(t, "requested bytes without the cache", requested(), 0)
	check(t, "reserved bytes without the cache", dev.MemoryReserved(), 0)
	dev.SetCaching(true)
	check(t, "requested bytes with the cache", requested(), mib)
}

// threads runs f on n goroutines concurrently.
func threads(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}
