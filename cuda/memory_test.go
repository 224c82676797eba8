package cuda_test

import (
	"errors"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/fault"
)

// open returns an Exec of a simulated device with the given memory, and the device, until the test ends.
func open(t testing.TB, bytes uint64) (*tenon.Exec, *cuda.Device) {
	t.Helper()
	x, err := tenon.Open(tenon.Sim(bytes))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	d := x.Device()
	d.SetGarbageCollection(false)
	return x, d
}

const mib = 1 << 20

func TestMemoryFigures(t *testing.T) {
	x, d := open(t, 1<<30)
	free, total, err := d.MemInfo()
	if err != nil || total != 1<<30 || free != total {
		t.Fatalf("MemInfo: %d of %d free, %v", free, total, err)
	}
	a := x.Zeros([]int{5 * mib}, tenon.Uint8)
	b := x.Zeros([]int{3 * mib}, tenon.Uint8)
	if got := d.MemoryAllocated(); got != 8*mib {
		t.Errorf("allocated %d", got)
	}
	if got := d.MemoryReserved(); got != 20*mib {
		t.Errorf("reserved %d", got)
	}
	if free, _, err := d.MemInfo(); err != nil || free != 1<<30-20*mib {
		t.Errorf("free %d, %v", free, err)
	}
	b.Close()
	if d.MemoryAllocated() != 5*mib || d.MaxMemoryAllocated() != 8*mib || d.MaxMemoryReserved() != 20*mib {
		t.Errorf("allocated %d, peak %d, reserved peak %d", d.MemoryAllocated(), d.MaxMemoryAllocated(), d.MaxMemoryReserved())
	}
	d.ResetPeakStats()
	if d.MaxMemoryAllocated() != 5*mib {
		t.Errorf("peak after the reset %d", d.MaxMemoryAllocated())
	}
	d.ResetAccumulatedStats()
	if s := d.Stats(); s["allocated_bytes.all.freed"] != 0 || s["allocated_bytes.all.current"] != 5*mib || s["num_device_alloc"] != 0 {
		t.Errorf("after the reset: freed %d, current %d", s["allocated_bytes.all.freed"], s["allocated_bytes.all.current"])
	}
	if text := d.MemorySummary(); !strings.Contains(text, "|   5120 KiB |") || !strings.Contains(text, "from large pool") {
		t.Errorf("summary:\n%s", text)
	}
	if text := d.MemorySummary(cuda.SummaryOpt{Abbreviated: true}); strings.Contains(text, "from large pool") {
		t.Errorf("abbreviated summary:\n%s", text)
	}
	a.Close()
	if err := d.EmptyCache(); err != nil || d.MemoryReserved() != 0 {
		t.Errorf("reserved %d after EmptyCache: %v", d.MemoryReserved(), err)
	}
}

func TestAllocatorSettings(t *testing.T) {
	x, d := open(t, 1<<30)
	if got := d.AllocatorBackend(); got != "native" {
		t.Errorf("backend %q", got)
	}
	for text, want := range map[string]string{
		"foo:1,bar:2":                           "Unrecognized CachingAllocator option: foo",
		"garbage_collection_threshold:1.2":      "garbage_collect_threshold too big, set it 0.0~1.0",
		"max_split_size_mb:2":                   "CachingAllocator option max_split_size_mb too small, must be > 20",
		"release_lock_on_cudamalloc:none":       "Expected a single True/False argument for release_lock_on_cudamalloc",
		"pinned_use_cuda_host_register:none":    "Expected a single True/False argument for pinned_use_cuda_host_register",
		"pinned_num_register_threads:1024":      "Number of register threads should be less than or equal to 128",
		"backend:cudaMallocAsync":               "Allocator backend parsed at runtime != allocator backend parsed at load time",
		"roundup_power2_divisions:[64:8,128:3]": "For roundups, the divisons has to be power of 2 or 0 to disable roundup ",
	} {
		if err := d.SetAllocatorSettings(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if err := d.SetAllocatorSettings("roundup_power2_divisions:4"); err != nil {
		t.Fatal(err)
	}
	x.Zeros([]int{84 * mib}, tenon.Uint8).Close()
	if s := d.Stats(); s["active_bytes.all.allocated"] != 96*mib || s["requested_bytes.all.allocated"] != 84*mib {
		t.Errorf("84 MiB took %d bytes, requested %d", s["active_bytes.all.allocated"], s["requested_bytes.all.allocated"])
	}
	if err := d.SetAllocatorSettings(""); err != nil {
		t.Fatal(err)
	}
	d.ResetAccumulatedStats()
	if err := d.EmptyCache(); err != nil {
		t.Fatal(err)
	}
	x.Zeros([]int{84 * mib}, tenon.Uint8).Close()
	if s := d.Stats(); s["active_bytes.all.allocated"] != 84*mib {
		t.Errorf("84 MiB took %d bytes after the reset of the divisions", s["active_bytes.all.allocated"])
	}
}

func TestEnvironmentSettings(t *testing.T) {
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:2")
	x, d := open(t, 1<<30)
	x.Zeros([]int{84 * mib}, tenon.Uint8).Close()
	if got := d.MaxMemoryAllocated(); got != 96*mib {
		t.Errorf("84 MiB took %d bytes", got)
	}
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "foo:1")
	_, err := tenon.Open(tenon.Sim(1 << 30))
	if err == nil || !strings.Contains(err.Error(), "Unrecognized CachingAllocator option: foo") ||
		!strings.Contains(err.Error(), "PYTORCH_CUDA_ALLOC_CONF") {
		t.Errorf("Open with bad settings: %v", err)
	}
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "")
	t.Setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
	x, d = open(t, 1<<30)
	a := x.Zeros([]int{5 * mib}, tenon.Uint8)
	if free, _, _ := d.MemInfo(); free != 1<<30-6*mib || d.MemoryAllocated() != 0 {
		t.Errorf("without a cache: %d bytes free, %d counted", free, d.MemoryAllocated())
	}
	a.Close()
	if free, _, _ := d.MemInfo(); free != 1<<30 {
		t.Errorf("without a cache: %d bytes free in the end", free)
	}
	// A capture allocates from the driver too, and its graph keeps that as long as it lives.
	in := x.Ones([]int{3 * mib}, tenon.Uint8)
	before, _, _ := d.MemInfo()
	var out *tenon.Tensor
	g, err := x.Capture(func(x *tenon.Exec) { out = x.Add(x.Add(in, in), in) })
	if err != nil {
		t.Fatal(err)
	}
	if free, _, _ := d.MemInfo(); free > before-8*mib {
		t.Errorf("a graph without a cache holds %d bytes", before-free)
	}
	if err := x.Replay(g); err != nil {
		t.Error(err)
	}
	if got, err := tenon.Read[uint8](x, out); err != nil || got[3*mib-1] != 3 {
		t.Error(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if free, _, _ := d.MemInfo(); free != before {
		t.Errorf("%d bytes stay when the graph is closed", before-free)
	}
}

func TestMemoryFraction(t *testing.T) {
	x, d := open(t, 1<<30)
	if d.MemoryFraction() != 1 {
		t.Errorf("fraction %v at first", d.MemoryFraction())
	}
	for _, f := range []float64{-0.1, 1.1} {
		if err := d.SetMemoryFraction(f); err == nil || !strings.Contains(err.Error(), "Invalid fraction value") {
			t.Errorf("fraction %v: %v", f, err)
		}
	}
	if err := d.SetMemoryFraction(0.5); err != nil || d.MemoryFraction() != 0.5 {
		t.Errorf("fraction %v, %v", d.MemoryFraction(), err)
	}
	var seen []cuda.OOM
	d.OnOutOfMemory(func(o cuda.OOM) { seen = append(seen, o) })
	kept := x.Ones([]int{4}, tenon.Float32)
	err := tenon.Try(func() { x.Zeros([]int{513 * mib}, tenon.Uint8) })
	if fault.KindOf(err) != fault.OutOfMemory || !strings.Contains(err.Error(), "out of memory") ||
		!strings.Contains(err.Error(), "; the limit that was set for this process is 512.00 MiB, ") {
		t.Errorf("over the fraction: %v", err)
	}
	if !strings.HasPrefix(err.Error(), "Zeros: the result uint8[537919488] does not fit: CUDA out of memory. Tried to allocate ") {
		t.Errorf("the error does not say what for: %v", err)
	}
	if len(seen) != 1 || seen[0] != (cuda.OOM{Device: d.Ordinal(), Wanted: 514 * mib, Allowed: 512 * mib, Free: 1<<30 - 2*mib}) {
		t.Errorf("the observer saw %+v", seen)
	}
	v, err := x.Item(x.Sum(kept, nil))
	if err != nil || v != 4 {
		t.Errorf("after the failure: %v, %v", v, err)
	}
}

func TestRawMemory(t *testing.T) {
	x, d := open(t, 1<<30)
	s := x.Stream()
	if addr, err := d.RawAlloc(0, s); addr != 0 || err != nil {
		t.Errorf("0 bytes: %#x, %v", addr, err)
	}
	addr, err := d.RawAlloc(1, s)
	if err != nil || addr == 0 || d.MemoryAllocated() != 512 {
		t.Fatalf("1 byte: %#x, %v, allocated %d", addr, err, d.MemoryAllocated())
	}
	if err := d.RawFree(addr); err != nil || d.MemoryAllocated() != 0 {
		t.Errorf("free: %v, allocated %d", err, d.MemoryAllocated())
	}
	for addr, want := range map[uint64]string{0: "", addr: "invalid device pointer: ", 12345: "invalid device pointer: "} {
		err := d.RawFree(addr)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("RawFree(%#x): %v, want %q", addr, err, want)
		}
	}
	other, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := d.RawAlloc(8, other.Stream()); err == nil || !strings.Contains(err.Error(), "another device") {
		t.Errorf("a stream of another device: %v", err)
	}
	d.SetCaching(false)
	before := d.Stats()["requested_bytes.all.allocated"]
	addr, err = d.RawAlloc(mib, s)
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Stats()["requested_bytes.all.allocated"]; got != before {
		t.Errorf("an uncached allocation was counted: %d, before %d", got, before)
	}
	d.SetCaching(true)
	if err := d.RawFree(addr); err != nil {
		t.Error(err)
	}
	if addr, err = d.RawAlloc(mib, s); err != nil || d.Stats()["requested_bytes.all.allocated"] != before+mib {
		t.Errorf("cached again: %v, %d", err, d.Stats()["requested_bytes.all.allocated"])
	}
	if err := d.RawFree(addr); err != nil {
		t.Error(err)
	}
	var e *fault.Error
	if _, err := d.RawAlloc(1<<62, s); !errors.As(err, &e) || !strings.Contains(err.Error(), "more than 1EB") {
		t.Errorf("1<<62 bytes: %v", err)
	}
}
