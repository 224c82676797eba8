package alloc

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"tenon.dev/fault"
)

// bench is a device for a test: it fails the test on errors and checks the invariants at its end.
type bench struct {
	t *testing.T
	*Device
	f *fakeDevice
}

func newBench(t *testing.T, total uint64, conf string, o Options) bench {
	t.Helper()
	s, err := ParseSettings(conf)
	if err != nil {
		t.Fatal(err)
	}
	o.Settings = &s
	f := newFakeDevice(total)
	b := bench{t, New(f, o), f}
	t.Cleanup(func() {
		if err := check(b.Device, f); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b bench) alloc(size uint64, s Stream) *Block {
	b.t.Helper()
	k, err := b.Alloc(size, s)
	b.ok(err)
	return k
}

func (b bench) free(blocks ...*Block) {
	b.t.Helper()
	for _, k := range blocks {
		b.ok(b.Free(k))
	}
}

func (b bench) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// fails checks that err is of the kind and that its text contains part.
func (b bench) fails(err error, kind fault.Kind, part string) {
	b.t.Helper()
	if fault.KindOf(err) != kind || !strings.Contains(err.Error(), part) {
		b.t.Errorf("error %v of kind %v, want %v with %q", err, fault.KindOf(err), kind, part)
	}
}

func (b bench) stat(key string) int64 {
	b.t.Helper()
	s := b.Stats()
	v, ok := s.Flatten()[key]
	if !ok {
		b.t.Fatalf("no statistic %q", key)
	}
	return v
}

func (b bench) want(key string, want int64) {
	b.t.Helper()
	if v := b.stat(key); v != want {
		b.t.Errorf("%s is %d, want %d", key, v, want)
	}
}

func TestStatsKeys(t *testing.T) {
	data, err := os.ReadFile("testdata/memory_stats_keys.txt")
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	b := newBench(t, 1<<30, "", Options{})
	s := b.Stats()
	for line := range strings.Lines(s.String()) {
		key, _, _ := strings.Cut(line, " ")
		have = append(have, key)
	}
	if want := strings.Fields(string(data)); !slices.Equal(have, want) || len(want) != StatCount {
		t.Errorf("keys %q, want %q", have, want)
	}
}

func TestAllocNothing(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	if k := b.alloc(0, 0); k != nil {
		t.Errorf("0 bytes gave a block")
	}
	b.free(nil)
	b.ok(b.RecordStream(nil, 1))
	b.want("segment.all.current", 0)
	k := b.alloc(1, 0)
	b.want("allocated_bytes.all.current", 512)
	b.want("requested_bytes.all.current", 1)
	b.free(k)
	b.want("allocated_bytes.all.current", 0)
	b.fails(b.Free(k), fault.Invalid, "invalid device pointer: ")
	b.fails(b.RecordStream(k, 1), fault.Invalid, "invalid device pointer: ")
}

func TestBestFit(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	var k []*Block
	for range 8 {
		k = append(k, b.alloc(100*1024, 0))
	}
	big := b.alloc(200*1024, 0)
	wall := b.alloc(1024, 0)
	rest := b.alloc(900*1024, 0) // the rest of the segment
	one, best := k[1].Addr(), big.Addr()
	b.free(k[5], k[1], big) // big is the better fit for 150 KiB, k[1] the lower address for 100 KiB
	if got := b.alloc(150*1024, 0); got.Addr() != best {
		t.Errorf("150 KiB at %#x, the best fit is at %#x", got.Addr(), best)
	}
	if got := b.alloc(100*1024, 0); got.Addr() != one {
		t.Errorf("100 KiB at %#x, the lowest is %#x", got.Addr(), one)
	}
	b.want("segment.all.current", 1)
	if got := b.alloc(100*1024, 1); got.Stream() != 1 {
		t.Errorf("a block of stream %d", got.Stream())
	}
	b.want("segment.all.current", 2)
	_, _ = wall, rest
}

func TestRecordStream(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	b.f.Shut(2)
	k := b.alloc(16, 1)
	addr := k.Addr()
	b.ok(b.RecordStream(k, 1)) // its own stream
	b.ok(b.RecordStream(k, 2))
	b.ok(b.RecordStream(k, 2))
	b.free(k)
	b.want("active.all.current", 1)
	b.want("allocation.all.current", 0)
	b.want("requested_bytes.all.current", 16)
	if s := b.Segments()[0].Blocks[0].State; s != ActivePendingFree || s.String() != "active_pending_free" {
		t.Errorf("the block is %v", s)
	}
	other := b.alloc(16, 1)
	if other.Addr() == addr {
		t.Error("the block was reused while stream 2 reads it")
	}
	b.f.Open(2)
	if again := b.alloc(16, 1); again.Addr() != addr {
		t.Errorf("%#x was not reused: %#x", addr, again.Addr())
	}
	b.want("num_sync_all_streams", 0)
}

// TestHeadOfLine shows that a slow stream holds back only the blocks that it reads.
func TestHeadOfLine(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	b.f.Shut(1)
	slow, fast := b.alloc(512, 0), b.alloc(512, 0)
	b.ok(b.RecordStream(slow, 1))
	b.ok(b.RecordStream(fast, 2))
	at := fast.Addr()
	b.free(slow, fast)
	if k := b.alloc(512, 0); k.Addr() != at {
		t.Errorf("the block that only the fast stream read is at %#x, not reused at %#x", at, k.Addr())
	}
}

// TestPendingInsteadOfOOM is CUDA-040: the allocator waits for memory that other streams read before it fails with an out-of-memory error.
func TestPendingInsteadOfOOM(t *testing.T) {
	b := newBench(t, 400*mib, "", Options{})
	for range 100 {
		b.f.Shut(2)
		k := b.alloc(160*mib, 1)
		b.ok(b.RecordStream(k, 2))
		b.free(k)
	}
	if b.stat("num_sync_all_streams") == 0 || b.stat("num_alloc_retries") == 0 {
		t.Error("nothing was waited for")
	}
	b.want("num_ooms", 0)
}

// sizesIn returns the numbers of bytes in a text.
func sizesIn(text string) []string {
	return regexp.MustCompile(`[0-9.]+ (bytes|[KMG]iB)`).FindAllString(text, -1)
}

func TestOOMMessage(t *testing.T) {
	data, err := os.ReadFile("testdata/oom.txt")
	if err != nil {
		t.Fatal(err)
	}
	mibs := func(f float64) uint64 { return uint64(f * mib) }
	gibs := func(f float64) uint64 { return mibs(f * 1024) }
	o := outOfMemory{wanted: 1 << 50, free: gibs(138.17), total: gibs(139.80), allocated: mibs(562.10), private: mibs(22.88),
		reserved: mibs(562.10) + mibs(259.90), processes: func() []ProcessMemory {
			return []ProcessMemory{{PID: 7, Bytes: gibs(1.62), Self: true}}
		}}
	got := o.message(0)
	if want := string(data); !slices.Equal(sizesIn(got), sizesIn(want)) || len(sizesIn(got)) != 7 {
		t.Errorf("the message is\n%s\nPyTorch's is\n%s", got, want)
	}
	for _, want := range []string{"Tried to allocate 1048576.00 GiB. ", "138.17 GiB is free; ", "this process has 1.62 GiB in use, ",
		"tensors hold 562.10 MiB, 22.88 MiB of it in the pools of graphs, ",
		"and 259.90 MiB is cached for more: make the batch smaller, since this is more than the device has"} {
		if !strings.Contains(got, want) {
			t.Errorf("the message lacks %q: %s", want, got)
		}
	}
	if strings.Contains(strings.ToLower(got), "torch") || strings.HasSuffix(got, ".") {
		t.Errorf("the message is %s", got)
	}
	o.processes = func() []ProcessMemory { return []ProcessMemory{{PID: 7, Bytes: 3 * mib}} }
	o.fractionSet, o.allowed = true, 5*mib
	if got := o.message(3); !strings.Contains(got, " GPU 3 has ") ||
		!strings.Contains(got,
			" is free; process 7 has 3.00 MiB in use, the limit that was set for this process is 5.00 MiB, tensors hold ") {
		t.Errorf("the message is %s", got)
	}
}

// The message suggests only remedies that may help.
func TestOOMRemedies(t *testing.T) {
	const gib = 1 << 30
	for want, o := range map[string]outOfMemory{
		": make the batch smaller, since this is more than the device has": {wanted: 9 * gib, total: 8 * gib, free: 8 * gib},
		": make the batch smaller, or raise the limit with SetMemoryFraction": {wanted: 3 * gib, total: 8 * gib, free: 8 * gib,
			fractionSet: true, allowed: 2 * gib},
		": make the batch smaller, since this is more than the device has\n": {wanted: 9 * gib, total: 8 * gib, fractionSet: true,
			allowed: 2 * gib},
		": make the batch smaller": {wanted: 4 * gib, total: 8 * gib, free: 2 * gib}, // other processes use it
		": close tensors that are done with, or make the batch smaller": {wanted: 4 * gib, total: 8 * gib, free: 2 * gib,
			allocated: 6 * gib,
			reserved:  6 * gib, split: true},
		": close tensors that are done with, close graphs that are done with (those of regions with compile.Reset), or " +
			"make the batch smaller": {wanted: 4 * gib, total: 8 * gib,
			free: 2 * gib, allocated: 6 * gib, private: gib, reserved: 6 * gib},
		": close tensors that are done with, make the batch smaller, or avoid pieces too small to use with " +
			`SetAllocatorSettings("expandable_segments:True")`: {wanted: 4 * gib, total: 8 * gib, free: gib, allocated: 4 * gib,
			reserved: 7 * gib, split: true},
		": close tensors that are done with, make the batch smaller, or call EmptyCache before the capture": {wanted: 4 * gib,
			total: 8 * gib,
			free:  gib, allocated: 4 * gib, reserved: 7 * gib, capturing: true},
	} {
		if got := o.message(0) + "\n"; !strings.HasSuffix(got, strings.TrimSuffix(want, "\n")+"\n") {
			t.Errorf("the message is\n%swant %s", got, want)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 bytes", 1024: "1024 bytes", 1025: "1.00 KiB", mib: "1024.00 KiB", 20 * mib: "20.00 MiB",
		1 << 30: "1024.00 MiB", 800000000 << 30: "800000000.00 GiB"} {
		if got := FormatSize(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

func TestOOM(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{Index: 2})
	type call struct {
		device                int
		wanted, allowed, free uint64
	}
	var seen []call
	b.AddOOMObserver(func(device int, wanted, allowed, free uint64) {
		seen = append(seen, call{device, wanted, allowed, free})
		b.Stats() // the lock is free
	})
	_, err := b.Alloc(8000000000<<30, 0)
	b.fails(err, fault.OutOfMemory, "CUDA out of memory. Tried to allocate more than 1EB memory")
	_, err = b.Alloc(800000000<<30, 0)
	b.fails(err, fault.OutOfMemory, "Tried to allocate 800000000.00 GiB")
	half := b.alloc(600*mib, 0)
	_, err = b.Alloc(600*mib, 0)
	b.fails(err, fault.OutOfMemory, "Tried to allocate 600.00 MiB. GPU 2 has a total capacity of 1024.00 MiB of which 424.00 MiB is free; ")
	if want := []call{{2, 800000000 << 30, 1 << 30, 1 << 30}, {2, 600 * mib, 1 << 30, 424 * mib}}; !slices.Equal(seen, want) {
		t.Errorf("observers saw %v, want %v", seen, want)
	}
	b.want("num_ooms", 2)
	b.want("num_alloc_retries", 2)
	b.free(half)
	b.free(b.alloc(600*mib, 0)) // the cached block
	b.alloc(700*mib, 0)         // cached memory makes room
}

func TestMemoryFraction(t *testing.T) {
	b := newBench(t, 1000*mib, "", Options{})
	for _, f := range []float64{-0.1, 1.5, math.NaN()} {
		b.fails(b.SetMemoryFraction(f), fault.Invalid, "Invalid fraction value: ")
	}
	b.fails(b.SetMemoryFraction(2.5), fault.Invalid, "Invalid fraction value: 2.5. Allowed range: 0~1")
	if b.MemoryFraction() != 1 {
		t.Errorf("the fraction is %v", b.MemoryFraction())
	}
	b.ok(b.SetMemoryFraction(0.5))
	if b.MemoryFraction() != 0.5 {
		t.Errorf("the fraction is %v", b.MemoryFraction())
	}
	k := b.alloc(498*mib, 0)
	_, err := b.Alloc(502*mib, 0)
	b.fails(err, fault.OutOfMemory, "the limit that was set for this process is 500.00 MiB, tensors hold 498.00 MiB")
	b.free(k)
	b.alloc(500*mib, 0)
	b.f.fail = func(call string) error { return errInjected }
	_, err = b.Alloc(mib, 0)
	if !errors.Is(err, errInjected) { // the allocator must ask the device how much is free
		t.Errorf("error %v", err)
	}
	b.f.fail = nil
}

func TestFreeMemoryCallback(t *testing.T) {
	b := newBench(t, 100*mib, "", Options{})
	k := b.alloc(60*mib, 0)
	at, calls := k.Addr(), 0
	b.AddFreeMemoryCallback(func() bool { calls++; return false })
	b.AddFreeMemoryCallback(func() bool {
		if k == nil {
			return false
		}
		b.free(k)
		k = nil
		return true
	})
	if got := b.alloc(60*mib, 0); got.Addr() != at {
		t.Errorf("%#x is not what the callback freed", got.Addr())
	}
	if calls != 1 {
		t.Errorf("the first callback was called %d times", calls)
	}
	b.want("num_device_alloc", 1)
}

func TestCollect(t *testing.T) {
	var b bench
	var loose []*Block
	var seen []Pressure
	willing := false
	b = newBench(t, 100*mib, "", Options{Collect: func(p Pressure) bool {
		seen = append(seen, p)
		if !willing && !p.Failing {
			return false
		}
		b.free(loose...)
		n := len(loose)
		loose = nil
		return n > 0
	}})
	loose = append(loose, b.alloc(60*mib, 0))
	b.alloc(20*mib, 0)
	loose = append(loose, b.alloc(10*mib, 0)) // 90 MiB in three segments
	k := b.alloc(70*mib, 0)                   // the loose ones are freed before failing
	b.free(k)
	b.want("num_ooms", 0)
	if want := []Pressure{{60 * mib, 0, false}, {20 * mib, 60 * mib, false}, {10 * mib, 80 * mib, false}, {70 * mib, 90 * mib, false},
		{70 * mib, 90 * mib, true}}; !slices.Equal(seen, want) {
		t.Errorf("asked %v, want %v", seen, want)
	}
	loose, willing = append(loose, b.alloc(65*mib, 0)), true
	at := loose[0].Addr()
	if got := b.alloc(65*mib, 0); got.Addr() != at {
		t.Errorf("the collection before growth freed %#x, the block is at %#x", at, got.Addr())
	}
	seen = nil
	_, err := b.Alloc(300*mib, 0)
	b.fails(err, fault.OutOfMemory, "Tried to allocate 300.00 MiB")
	b.ok(b.BeginAllocateToPool(NewPoolID(), StreamFilter(1)))
	_, err = b.Alloc(300*mib, 0)
	b.fails(err, fault.OutOfMemory, "Tried to allocate 300.00 MiB")
	if len(seen) != 2 {
		t.Errorf("asked %v: under a diversion it must not be", seen)
	}
	b.f.Capture(0, 5)
	if seen = nil; len(b.diversions) != 1 {
		t.Fatal("no diversion")
	}
	b.diversions = nil
	if _, err = b.Alloc(300*mib, 0); fault.KindOf(err) != fault.OutOfMemory || seen != nil {
		t.Errorf("asked %v in a capture (%v)", seen, err)
	}
	b.f.Capture(0, 0)
}

// TestMaxSplitSize tests the oversize rules and the release of just enough oversize blocks.
func TestMaxSplitSize(t *testing.T) {
	b := newBench(t, 400*mib, "max_split_size_mb:30", Options{})
	b.want("max_split_size", 30*mib)
	large := b.alloc(100*mib, 0)
	b.want("oversize_allocations.current", 1)
	b.want("oversize_segments.current", 1)
	at := large.Addr()
	b.free(large)
	if k := b.alloc(10*mib, 0); k.Addr() == at {
		t.Error("a small request took an oversize block")
	}
	if k := b.alloc(79*mib, 0); k.Addr() == at { // 100 >= 79 + 20
		t.Error("a request took a block that is larger by 20 MiB and more")
	}
	k := b.alloc(81*mib, 0)
	if k.Addr() != at || k.Size() != 100*mib {
		t.Errorf("81 MiB at %#x, %d bytes; wanted the whole block at %#x", k.Addr(), k.Size(), at)
	}
	b.want("inactive_split.all.current", 0)
	b.free(k) // cached: 100; live: 10, 79(80)
	small, other := b.alloc(50*mib, 0), b.alloc(60*mib, 0)
	b.free(small, other)
	whole := b.alloc(140*mib, 0) // 300 held: the largest are released until they make 140, so 100 and 60, not 50
	b.want("num_device_free", 2)
	b.want("num_alloc_retries", 0)
	b.free(whole)
	b.alloc(20*mib, 1)
	b.alloc(115*mib, 0) // 300 held; 140 is too large for it and is released alone
	b.want("num_device_free", 3)
	b.want("num_alloc_retries", 0)
	b.alloc(160*mib, 0) // 276 held; releasing 50 is not enough, so everything is flushed
	b.want("num_device_free", 4)
	b.want("num_alloc_retries", 1)
	b.want("oversize_segments.freed", 4)
}

// TestOversizeInHeldPool: a pool keeps the memory that a captured graph may write to, even if a lack of memory makes the allocator release
// oversize blocks of the default pool.
func TestOversizeInHeldPool(t *testing.T) {
	b := newBench(t, 200*mib, "max_split_size_mb:30", Options{})
	id := NewPoolID()
	b.ok(b.RetainPool(id))
	b.into(id, 0, func() { b.free(b.alloc(100*mib, 0)) })
	b.into(id, 0, func() {
		_, err := b.Alloc(140*mib, 0)
		b.fails(err, fault.OutOfMemory, "Tried to allocate 140.00 MiB")
	})
	if s := b.poolSegments(id); len(s) != 1 || s[0].TotalSize != 100*mib {
		t.Errorf("the pool holds %+v", s)
	}
	b.ok(b.ReleasePool(id))
	b.alloc(140*mib, 0)
}

func TestGarbageCollection(t *testing.T) {
	for _, late := range []bool{false, true} {
		testGarbageCollection(t, late)
	}
}

func testGarbageCollection(t *testing.T, late bool) {
	const conf = "garbage_collection_threshold:0.5"
	b := newBench(t, 1000*mib, conf, Options{})
	if late {
		b.SetSettings(DefaultSettings())
	}
	b.ok(b.SetMemoryFraction(0.8)) // 800 allowed, threshold 400
	if late {
		s, err := b.Settings().Update(conf)
		b.ok(err)
		b.SetSettings(s)
	}
	old := []*Block{b.alloc(100*mib, 0), b.alloc(100*mib, 0)}
	b.free(old...)
	for range 10 {
		b.free(b.alloc(100*mib, 0)) // one of them stays young, the other ages
	}
	b.alloc(250*mib, 0)
	b.want("num_device_free", 0)
	b.alloc(120*mib, 0) // 450 > 400
	b.want("num_device_free", 1)
	b.want("reserved_bytes.all.current", 470*mib)
	b.want("num_sync_all_streams", 0)
}

func TestTable(t *testing.T) {
	table := new(Table)
	b := newBench(t, 1<<30, "", Options{Table: table})
	other := New(newFakeDevice(1<<30), Options{Table: table})
	addr, err := b.RawAlloc(1000, 3)
	b.ok(err)
	k, ok := table.Find(addr)
	if !ok || k.silo.pool != &b.small || k.Requested() != 1000 || k.Stream() != 3 {
		t.Errorf("found %v %v", k, ok)
	}
	if zero, err := b.RawAlloc(0, 0); zero != 0 || err != nil {
		t.Errorf("0 bytes gave %#x, %v", zero, err)
	}
	b.ok(b.RawFree(0))
	b.ok(other.RawFree(addr)) // the table finds the block's device
	b.want("allocation.all.current", 0)
	b.fails(b.RawFree(addr), fault.Invalid, "invalid device pointer: ")
	addr, err = b.RawAlloc(1000, 3)
	b.ok(err)
	k, _ = table.Find(addr)
	b.free(k)
	if _, ok := table.Find(addr); ok {
		t.Error("a freed block can be found")
	}
	_, err = b.RawAlloc(8<<30, 0)
	b.fails(err, fault.OutOfMemory, "out of memory")
}

func TestBlockAt(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	if _, ok := b.BlockAt(5); ok {
		t.Error("a block without segments")
	}
	k, l := b.alloc(1000, 0), b.alloc(5000, 0)
	b.alloc(5000, 1)
	for addr, want := range map[uint64]*Block{k.Addr(): k, k.Addr() + 1023: k, l.Addr() + 77: l, l.Addr() + 6000: nil, k.Addr() - 1: nil,
		k.Addr() + 1<<35: nil} {
		if got, ok := b.BlockAt(addr); got != want || ok != (want != nil) {
			t.Errorf("at %#x there is %v", addr, got)
		}
	}
}

func TestUncached(t *testing.T) {
	b := newBench(t, 100*mib, "", Options{})
	kept := b.alloc(1000, 0)
	b.SetCaching(false)
	k := b.alloc(1000, 1)
	if k.Size() != 1000 || k.Stream() != 1 || (k.Pool() != PoolID{}) || b.f.segments[k.Addr()] != 1000 {
		t.Errorf("%d bytes at %#x", k.Size(), k.Addr())
	}
	b.want("requested_bytes.all.current", 1000)
	b.ok(b.RecordStream(k, 2))
	b.free(kept) // a cached block goes back to the cache
	b.want("requested_bytes.all.current", 0)
	b.f.fail = func(string) error { return errInjected }
	if err := b.Free(k); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	if _, err := b.Alloc(5, 0); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	b.f.fail = nil
	b.free(k)
	b.fails(b.Free(k), fault.Invalid, "invalid device pointer: ")
	_, err := b.Alloc(200*mib, 0)
	b.fails(err, fault.OutOfMemory, "out of memory")
	addr, err := b.RawAlloc(300, 0)
	b.ok(err)
	b.f.fail = func(string) error { return errInjected }
	if err := b.RawFree(addr); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	b.f.fail = nil
	b.SetCaching(true)
	b.ok(b.RawFree(addr))
	b.SetCaching(false)
	addr, err = b.RawAlloc(300, 0)
	b.ok(err)
	k, _ = b.options.Table.Find(addr)
	b.free(k)
	b.fails(b.RawFree(addr), fault.Invalid, "invalid device pointer: ")
	b.f.Capture(3, 1)
	_, err = b.Alloc(5, 3)
	b.fails(err, fault.Capture, "caching is off")
	b.f.Capture(3, 0)
}

// Memory that a capture allocates with caching off comes from the device, is not reused while graphs hold its pool, and goes back with the
// last of them.
func TestUncachedCapture(t *testing.T) {
	b := newBench(t, 100*mib, "", Options{})
	b.SetCaching(false)
	outside := b.alloc(512, 3)
	id := NewCapturePoolID()
	b.ok(b.BeginAllocateToPool(id, b.CaptureFilter(7)))
	b.f.Capture(3, 7)
	temporary, result := b.alloc(1000, 3), b.alloc(2000, 3)
	addr, err := b.RawAlloc(300, 3)
	b.ok(err)
	if temporary.Pool() != id || result.Pool() != id || b.f.segments[temporary.Addr()] != 1000 || b.f.segments[result.Addr()] != 2000 {
		t.Errorf("%d and %d bytes of pools %v and %v", temporary.Size(), result.Size(), temporary.Pool(), result.Pool())
	}
	at := temporary.Addr()
	b.free(temporary)
	b.fails(b.Free(temporary), fault.Invalid, "freed before")
	b.ok(b.RawFree(addr))
	b.fails(b.RawFree(addr), fault.Invalid, "invalid device pointer: ")
	b.free(outside)
	other := b.alloc(1000, 3)
	if other.Addr() == at {
		t.Error("memory that the graph writes to is given out again")
	}
	b.f.Capture(3, 0)
	b.ok(b.EndAllocateToPool(id))
	if ok, err := b.PoolLive(id, []uint64{result.Addr()}); err != nil || ok { // the other one lives too
		t.Error(ok, err)
	}
	b.ok(b.EmptyCache())
	b.ok(b.RetainPool(id)) // a second graph
	b.ok(b.ReleasePool(id))
	if b.f.segments[at] != 1000 || b.f.segments[addr] != 300 {
		t.Error("memory of a graph is gone")
	}
	b.f.fail = func(string) error { return errInjected }
	if err := b.ReleasePool(id); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	b.f.fail = nil
	b.ok(b.EmptyCache())
	if b.f.segments[at] != 0 || b.f.segments[addr] != 0 || b.f.segments[result.Addr()] != 2000 {
		t.Error("what no graph writes to is not back, or what lives is gone")
	}
	b.free(other)
	b.free(result)
	if b.f.segments[result.Addr()] != 0 {
		t.Error("it is not back")
	}
}

func TestReset(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	k := b.alloc(mib, 0)
	b.free(b.alloc(mib, 0), k)
	b.want("allocated_bytes.all.peak", 2*mib)
	b.want("allocated_bytes.small_pool.freed", 2*mib)
	b.ResetPeakStats()
	b.want("allocated_bytes.all.peak", 0)
	b.want("reserved_bytes.all.peak", 2*mib)
	b.ResetAccumulatedStats()
	b.want("allocated_bytes.small_pool.freed", 0)
	b.want("num_device_alloc", 0)
	b.want("max_split_size", -1)
	s := b.Stats()
	if s.ReservedBytes.Small() != (Stat{Current: 2 * mib, Peak: 2 * mib}) || s.ReservedBytes.Large() != (Stat{}) {
		t.Errorf("reserved %+v", s.ReservedBytes)
	}
}

// TestNoGarbage shows that the hot paths allocate nothing on Go's heap.
func TestNoGarbage(t *testing.T) {
	d, _ := crowded(t, 200)
	for name, f := range map[string]func(){
		"exact":  func() { pair(t, d, 64<<20, 0) },
		"split":  func() { pair(t, d, 700, 1) },
		"record": func() { recordPair(t, d) },
		"raw": func() {
			addr, err := d.RawAlloc(4096, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.RawFree(addr); err != nil {
				t.Fatal(err)
			}
		},
	} {
		f()
		f()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func recordPair(t *testing.T, d *Device) {
	k, err := d.Alloc(700, 0)
	if err != nil {
		t.Fatal(err)
	}
	for s := range Stream(3) {
		if err := d.RecordStream(k, s); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Free(k); err != nil {
		t.Fatal(err)
	}
}

// TestConcurrent lets goroutines use one device at once; run it with the race detector.
func TestConcurrent(t *testing.T) {
	b := newBench(t, 300*mib, "release_lock_on_cudamalloc:True,max_split_size_mb:50", Options{Collect: func(Pressure) bool { return true }})
	b.ok(b.RecordHistory(History{Enabled: HistoryAll, Context: LevelAll, MaxEntries: 100, Collect: func() any { return "somewhere" }}))
	b.AddFreeMemoryCallback(func() bool { return true })
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 9))
			var live []*Block
			for range 400 {
				switch r.IntN(12) {
				case 0:
					b.Snapshot()
				case 1:
					if err := b.EmptyCache(); err != nil {
						t.Error(err)
					}
				case 2, 3, 4, 5, 6:
					k, err := b.Alloc(uint64(r.IntN(20*mib))+1, Stream(r.IntN(3)))
					if err != nil && fault.KindOf(err) != fault.OutOfMemory {
						t.Error(err)
					}
					if k != nil {
						live = append(live, k)
					}
				default:
					if n := len(live); n > 0 {
						k := live[n-1]
						live = live[:n-1]
						if err := errors.Join(b.RecordStream(k, Stream(r.IntN(3))), b.Free(k)); err != nil {
							t.Error(err)
						}
					}
				}
			}
			for _, k := range live {
				if err := b.Free(k); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		for range 20 {
			id := NewPoolID()
			err := b.BeginAllocateToPool(id, StreamFilter(9))
			k, e := b.Alloc(3*mib, 9)
			if e == nil && k.Pool() != id {
				t.Errorf("a block of pool %v", k.Pool())
			}
			if fault.KindOf(e) == fault.OutOfMemory {
				e = nil
			}
			if err = errors.Join(err, e, b.Free(k), b.EndAllocateToPool(id), b.ReleasePool(id)); err != nil {
				t.Error(err)
			}
		}
	}()
	wg.Wait()
	b.ok(b.EmptyCache())
	b.want("reserved_bytes.all.current", 0)
}
