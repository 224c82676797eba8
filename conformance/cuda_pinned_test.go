package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/record"
	"tenon.dev/internal/rt"
	"tenon.dev/internal/testdevice"
)

// pinnedTests are the behaviours of page-locked memory and of its cache.
var pinnedTests = []cudaTest{
	{name: "CUDA-001_test_pinned_memory_with_cudaregister", run: testPinnedRegister, async: true},
	{name: "CUDA-002_test_pinned_memory_with_cudaregister_multithread", run: testPinnedRegisterThreads, async: true},
	{name: "CUDA-003_test_cudart_register", run: testCudartRegister, async: true},
	{name: "CUDA-038_test_noncontiguous_pinned_memory", run: testNoncontiguousPinned, async: true},
	{name: "CUDA-039_test_caching_pinned_memory", run: testCachingPinned, async: true},
	{name: "CUDA-302_test_host_memory_stats", run: testHostStats, async: true},
	{name: "CUDA-303_test_pinned_memory_empty_cache", run: testPinnedEmptyCache, async: true},
	{name: "CUDA-304_test_pinned_memory_use_background_threads", run: testBackgroundThreads},
}

// pinTwo is the body of CUDA-001: x's device pins memory of 8 and 64 MiB.
func pinTwo(x *tenon.Exec) error {
	if err := x.Device().SetAllocatorSettings("pinned_use_cuda_host_register:True,pinned_num_register_threads:8"); err != nil {
		return err
	}
	host := x.Host()
	if host.Ones([]int{20}, tenon.Float32).IsPinned() {
		return fmt.Errorf("a tensor of the processor is pinned at first")
	}
	for _, n := range []int{1 << 21, 1 << 24} {
		a := x.PinMemory(host.Ones([]int{n}, tenon.Float32))
		if !a.IsPinned() {
			return fmt.Errorf("a tensor of %d elements is not pinned", n)
		}
		b, err := host.Item(host.Sum(a, nil))
		if err != nil || b != float64(n) {
			return fmt.Errorf("the pinned elements add up to %v, not %d: %v", b, n, err)
		}
		c, err := x.Item(x.Sum(x.To(a), nil))
		if err != nil || c != float64(n) {
			return fmt.Errorf("the elements on the device add up to %v, not %d: %v", c, n, err)
		}
		a.Close()
	}
	return nil
}

func testPinnedRegister(t *testing.T, x *tenon.Exec) {
	must(t, pinTwo(x))
	settle(t, x.Device())
	must(t, x.Device().EmptyHostCache())
	s := x.Device().HostStats()
	check(t, "allocations of page-locked memory", s.HostAllocs, 2)
	check(t, "bytes in use", s.ActiveBytes.Current, 0)
	if !onGPU() {
		t.Run("calls", pinnedCalls)
	}
}

// pinnedCalls checks the driver calls: memory is registered if the setting says so, else allocated page-locked.
func pinnedCalls(t *testing.T) {
	host, err := rt.Host()
	must(t, err)
	var rec *record.Device
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(d driver.Device) driver.Device {
		rec = record.New(d)
		return rec
	}})
	must(t, err)
	x := (*tenon.Exec)(core.New(dev, host))
	x.Scope(func(x *tenon.Exec) {
		must(t, pinTwo(x))
		check(t, "registered", rec.Count("HostRegister"), 2)
		check(t, "allocated page-locked", rec.Count("HostAlloc"), 0)
		must(t, x.Synchronize())
		must(t, x.Device().EmptyHostCache())
		check(t, "unregistered", rec.Count("HostUnregister"), 2)
		must(t, x.Device().SetAllocatorSettings("pinned_use_cuda_host_register:False"))
		x.PinMemory(x.Host().Ones([]int{20}, tenon.Float32)).Close()
		check(t, "registered without the setting", rec.Count("HostRegister"), 2)
		check(t, "allocated page-locked without the setting", rec.Count("HostAlloc"), 1)
	})
	must(t, dev.Close())
}

func testPinnedRegisterThreads(t *testing.T, x *tenon.Exec) {
	const n = 4
	var execs [n]*tenon.Exec
	var errs [n]error
	for i := range execs {
		var err error
		execs[i], err = x.Fork()
		must(t, err)
	}
	threads(n, func(i int) {
		err := tenon.Try(func() { execs[i].Scope(func(x *tenon.Exec) { errs[i] = pinTwo(x) }) })
		if err != nil {
			errs[i] = err
		}
	})
	for i, err := range errs {
		if err != nil {
			t.Errorf("goroutine %d: %v", i, err)
		}
	}
	must(t, x.Device().Synchronize())
}

func testCudartRegister(t *testing.T, x *tenon.Exec) {
	a := x.Host().Ones([]int{20}, tenon.Float32)
	check(t, "pinned at first", a.IsPinned(), false)
	must(t, x.RegisterHost(a))
	check(t, "pinned when registered", a.IsPinned(), true)
	if x.RegisterHost(a) == nil {
		t.Error("memory can be registered twice")
	}
	allAre(t, x, "a copy of registered memory", x.To(a, tenon.ToOpt{NonBlocking: true}), 1)
	must(t, x.UnregisterHost(a))
	check(t, "pinned when unregistered", a.IsPinned(), false)
	if x.UnregisterHost(a) == nil {
		t.Error("memory can be unregistered twice")
	}
	wantError(t, x.RegisterHost(x.Ones([]int{4}, tenon.Float32)), "memory of the processor is registered for a GPU")
	// Memory of the Go program, without a tensor.
	b := make([]byte, 1<<16)
	must(t, x.Device().HostRegister(b))
	if x.Device().HostRegister(b[100:200]) == nil {
		t.Error("part of registered memory can be registered")
	}
	must(t, x.Device().HostUnregister(b))
	wantError(t, x.Device().HostUnregister(b), "not registered")
}

func testNoncontiguousPinned(t *testing.T, x *tenon.Exec) {
	host := x.Host()
	a := host.T(host.View(host.Arange(10, tenon.Int64), 2, 5))
	p := x.PinMemory(a)
	check(t, "pinned", p.IsPinned(), true)
	check(t, "equal", equal(t, x, a, p), true)
	check(t, "strides", fmt.Sprint(p.Stride()), fmt.Sprint(a.Stride()))
	// A tensor with gaps between its elements.
	s := host.Slice(host.View(host.Arange(24, tenon.Int64), 4, 6), 1, 1, 6, 2)
	q := x.PinMemory(s)
	check(t, "with gaps: equal", equal(t, x, s, q), true)
	check(t, "with gaps: contiguous", q.IsContiguous(), true)
	if x.PinMemory(q) != q {
		t.Error("what is pinned was copied")
	}
	wantError(t, tenon.Try(func() { x.PinMemory(x.Ones([]int{2}, tenon.Float32)) }), "cannot pin",
		"only tensors of the processor can be pinned")
	wantError(t, tenon.Try(func() { host.PinMemory(a) }), "memory is pinned for a GPU")
}

func testCachingPinned(t *testing.T, x *tenon.Exec) {
	pin := func() *tenon.Tensor { return x.PinMemory(tenon.From(x.Host(), []float32{1})) }
	gpu := x.Zeros([]int{1}, tenon.Float32)
	spin(x, time.Millisecond)
	must(t, x.Device().Synchronize())

	a := pin()
	ptr := a.DataPtr()
	a.Close()
	a = pin()
	check(t, "address after a free", a.DataPtr(), ptr)
	// Not while a copy is in progress.
	spin(x, time.Second)
	x.CopyAsyncInto(gpu, a)
	check(t, "the copy waits", busy(t, x.Stream()), true)
	a.Close()
	b := pin()
	if b.DataPtr() == ptr {
		t.Error("the memory was reused while a copy was to read it")
	}
	check(t, "the copy", testdevice.Read[float32](t, x, gpu)[0], 1)
	must(t, x.Synchronize())
	c := pin()
	check(t, "address after the copy", c.DataPtr(), ptr)
	b.Close()
	c.Close()
}

func testHostStats(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	must(t, dev.EmptyHostCache())
	dev.ResetAccumulatedHostStats()
	dev.ResetPeakHostStats()
	var want cuda.HostStats
	see := func(when string) {
		t.Helper()
		got := dev.HostStats()
		got.HostAllocTime, got.HostFreeTime = want.HostAllocTime, want.HostFreeTime
		if got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", when, got, want)
		}
	}
	add := func(s *cuda.Stat, n int64) {
		s.Current += n
		s.Allocated += n
		s.Peak = max(s.Peak, s.Current)
	}
	sub := func(s *cuda.Stat, n int64) {
		s.Current -= n
		s.Freed += n
	}
	pin := func(n int, fresh bool, size int64) *tenon.Tensor {
		if fresh {
			add(&want.Allocations, 1)
			add(&want.AllocatedBytes, size)
			want.HostAllocs++
		}
		add(&want.ActiveRequests, 1)
		add(&want.ActiveBytes, size)
		return x.PinMemory(x.Host().Empty([]int{n}, tenon.Float32))
	}
	free := func(a *tenon.Tensor, size int64) {
		sub(&want.ActiveRequests, 1)
		sub(&want.ActiveBytes, size)
		a.Close()
	}
	see("at first")
	a := pin(10*1024, true, 64*kib)
	see("40 KiB")
	free(a, 64*kib)
	see("freed")
	a = pin(10*1024, false, 64*kib)
	see("40 KiB again")
	b := pin(20*1024, true, 128*kib)
	see("80 KiB beside it")
	must(t, dev.EmptyHostCache())
	see("the cache was empty")
	free(a, 64*kib)
	see("the first freed")
	free(b, 128*kib)
	see("both freed")
	must(t, dev.EmptyHostCache())
	for _, size := range []int64{64 * kib, 128 * kib} {
		sub(&want.Allocations, 1)
		sub(&want.AllocatedBytes, size)
		want.HostFrees++
	}
	see("the cache emptied")
	flat := dev.HostStats().Flatten()
	for key, v := range map[string]int64{"allocated_bytes.peak": 192 * kib, "active_bytes.allocated": 256 * kib, "num_host_alloc": 2,
		"num_host_free":     2,
		"allocations.freed": 2, "active_requests.peak": 2} {
		check(t, key, flat[key], v)
	}
}

func testPinnedEmptyCache(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	for _, mode := range []string{"True", "False"} {
		must(t, dev.SetAllocatorSettings("pinned_use_cuda_host_register:"+mode))
		before := dev.HostStats()
		a := x.PinMemory(x.Host().Ones([]int{mib}, tenon.Float32))
		check(t, "pinned", a.IsPinned(), true)
		a.Close()
		must(t, dev.EmptyHostCache())
		after := dev.HostStats()
		check(t, "bytes held, register mode "+mode, after.AllocatedBytes.Current, 0)
		check(t, "frees, register mode "+mode, after.HostFrees-before.HostFrees, 1)
		// A pinned tensor that was dropped without Close is freed too, once the collector has found it.
		b := x.PinMemory(x.Host().Ones([]int{mib}, tenon.Float32))
		ptr := b.DataPtr()
		allAre(t, x, "a copy", x.To(b, tenon.ToOpt{NonBlocking: true}), 1)
		b.Close()
		must(t, x.Device().Synchronize())
		c := x.PinMemory(x.Host().Ones([]int{mib}, tenon.Float32))
		check(t, "address from the cache, register mode "+mode, c.DataPtr(), ptr)
		c.Close()
		must(t, dev.EmptyHostCache())
	}
}

// childVariable makes the test binary a child of testBackgroundThreads.
const childVariable = "TENON_CONFORMANCE_CHILD"

// testBackgroundThreads runs itself in a child whose settings come from the environment. Tenon checks the events of freed memory on the
// next allocation and has no thread for it: the setting is read and checked but has no other effect.
func testBackgroundThreads(t *testing.T, x *tenon.Exec) {
	if os.Getenv(childVariable) != "" {
		a := x.PinMemory(x.Host().Ones([]int{mib}, tenon.Float32))
		check(t, "pinned", a.IsPinned(), true)
		allAre(t, x, "a copy", x.To(a, tenon.ToOpt{NonBlocking: true}), 1)
		a.Close()
		return
	}
	for value, ok := range map[string]bool{"True": true, "False": true, "none": false} {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.count=1",
			"-device", *deviceFlag)
		cmd.Env = append(os.Environ(), childVariable+"=1", "PYTORCH_CUDA_ALLOC_CONF=pinned_use_background_threads:"+value)
		out, err := cmd.CombinedOutput()
		if (err == nil) != ok || ok && !strings.Contains(string(out), "PASS") {
			t.Errorf("a child with pinned_use_background_threads:%s: %v\n%s", value, err, out)
		}
		if !ok && !strings.Contains(string(out), "Expected a single True/False argument for pinned_use_background_threads") {
			t.Errorf("a child with a wrong setting says\n%s", out)
		}
	}
}
