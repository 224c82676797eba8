package drivertest

import (
	"bytes"
	"sync"

	"tenon.dev/internal/driver"
)

var contextTests = []test{
	{"Info", false, testInfo},
	{"TokensNest", false, testTokensNest},
	{"Synchronize", true, testSynchronize},
}

var memoryTests = []test{
	{"Alloc", false, testAlloc},
	{"AllocErrors", false, testAllocErrors},
	{"MemInfo", false, testMemInfo},
	{"OutOfMemory", false, testOutOfMemory},
	{"FreeWaits", true, testFreeWaits},
	{"Concurrent", false, testConcurrentAlloc},
}

var hostMemoryTests = []test{
	{"Alloc", false, testHostAlloc},
	{"Errors", false, testHostErrors},
	{"Register", false, testHostRegister},
}

func testInfo(f *fixture) {
	i := f.d.Info()
	if i.Name == "" || i.Multiprocessors < 1 || i.MaxThreadsPerBlock < 1 || i.WarpSize != 32 || i.ClockKHz < 1 {
		f.Errorf("incomplete: %+v", *i)
	}
	if i.SharedPerBlock < 1 || i.SharedPerBlockOptin < i.SharedPerBlock {
		f.Errorf("shared memory: %d a block, %d with opt-in", i.SharedPerBlock, i.SharedPerBlockOptin)
	}
	if i.Image != driver.FormatPTX && i.Image != driver.FormatKIR {
		f.Errorf("unknown image format %q", i.Image)
	}
}

func testTokensNest(f *fixture) {
	t := f.d.Enter()
	if t.ID() != f.th.ID() {
		f.Errorf("two tokens of one thread have ids %d and %d", f.th.ID(), t.ID())
	}
	t.Leave()
	if _, _, err := f.d.MemInfo(f.th); err != nil {
		f.Errorf("the outer token after the inner left: %v", err)
	}
	id := f.th.ID() // on this thread: a token's id must be read on the token's own thread
	f.onThread(func(t driver.Thread) {
		if t.ID() == id {
			f.Errorf("two threads have one id %d", t.ID())
		}
	})
}

func testSynchronize(f *fixture) {
	s, e := f.stream(), f.event(false)
	f.spin(s, 20)
	f.ok(f.d.EventRecord(e, s))
	f.ok(f.d.Synchronize(f.th))
	done, err := f.d.EventQuery(f.th, e)
	f.ok(err)
	if !done {
		f.Error("work is pending after Synchronize")
	}
}

func testAlloc(f *fixture) {
	sizes := []uint64{1, 4, 512, 513, 4096, 1 << 20, 2<<20 - 1, 2 << 20, 3<<20 + 5, 64 << 20}
	type span struct{ p, n uint64 }
	var live []span
	for _, n := range sizes {
		p, err := f.d.MemAlloc(f.th, n)
		f.ok(err)
		if p == 0 || uint64(p)%512 != 0 {
			f.Errorf("%d bytes at %#x: not aligned to 512", n, uint64(p))
		}
		for _, o := range live {
			if uint64(p) < o.p+o.n && o.p < uint64(p)+n {
				f.Errorf("%d bytes at %#x overlap %d bytes at %#x", n, uint64(p), o.n, o.p)
			}
		}
		live = append(live, span{uint64(p), n})
	}
	for _, o := range live {
		f.ok(f.d.MemFree(f.th, driver.Ptr(o.p)))
	}
}

func testAllocErrors(f *fixture) {
	_, err := f.d.MemAlloc(f.th, 0)
	f.code(err, "MemAlloc", driver.InvalidValue)
	p, err := f.d.MemAlloc(f.th, 4096)
	f.ok(err)
	f.code(f.d.MemFree(f.th, p+8), "MemFree", driver.InvalidValue)
	f.ok(f.d.MemFree(f.th, p))
	f.code(f.d.MemFree(f.th, p), "MemFree", driver.InvalidValue)
	// Freeing address 0 does nothing, as in CUDA.
	f.ok(f.d.MemFree(f.th, 0))
}

func testMemInfo(f *fixture) {
	free, total, err := f.d.MemInfo(f.th)
	f.ok(err)
	if total == 0 || free > total {
		f.Fatalf("free %d of total %d", free, total)
	}
	const n = 64 << 20
	p, err := f.d.MemAlloc(f.th, n)
	f.ok(err)
	during, _, err := f.d.MemInfo(f.th)
	f.ok(err)
	f.ok(f.d.MemFree(f.th, p))
	after, _, err := f.d.MemInfo(f.th)
	f.ok(err)
	if f.d.Info().Inline {
		return // host memory has no capacity to compare with
	}
	if free-during != n || after != free {
		f.Errorf("free bytes %d, %d while 64 MiB were allocated, %d after", free, during, after)
	}
	if free%(2<<20) != during%(2<<20) {
		f.Errorf("memory info moves in steps smaller than 2 MiB: %d, %d", free, during)
	}
}

func testOutOfMemory(f *fixture) {
	_, err := f.d.MemAlloc(f.th, 1<<50)
	f.code(err, "MemAlloc", driver.OutOfMemory)
	p := f.alloc(4096)
	f.fill(p, 3, 1024)
	f.want(f.stream(), p, 3, 1024)
}

func testFreeWaits(f *fixture) {
	s, e := f.stream(), f.event(false)
	p, err := f.d.MemAlloc(f.th, 4096)
	f.ok(err)
	f.spin(s, 20)
	f.ok(f.d.Memset(p, 1, 1, 4096, s))
	f.ok(f.d.EventRecord(e, s))
	f.ok(f.d.MemFree(f.th, p))
	done, err := f.d.EventQuery(f.th, e)
	f.ok(err)
	if !done {
		f.Error("MemFree returned before the work that used the memory was done")
	}
}

func testConcurrentAlloc(f *fixture) {
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			t := f.d.Enter()
			defer t.Leave()
			s, err := f.d.StreamCreate(t, true, 0)
			if err != nil {
				f.Error(err)
				return
			}
			defer f.d.StreamDestroy(t, s)
			want := bytes.Repeat([]byte{byte(g + 1)}, 10000)
			got := make([]byte, len(want))
			for range 20 {
				p, err := f.d.MemAlloc(t, 10000)
				if err != nil {
					f.Error(err)
					return
				}
				if err := f.d.Memset(p, uint32(g+1), 1, 10000, s); err != nil {
					f.Error(err)
				}
				if err := f.d.CopyDtoH(got, p, s); err != nil {
					f.Error(err)
				}
				if err := f.d.StreamSynchronize(t, s); err != nil {
					f.Error(err)
				}
				if !bytes.Equal(got, want) {
					f.Errorf("goroutine %d read another's bytes", g)
				}
				if err := f.d.MemFree(t, p); err != nil {
					f.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func testHostAlloc(f *fixture) {
	for _, n := range []uint64{1, 100, 4096, 5 << 20} {
		b, err := f.d.HostAlloc(f.th, n)
		f.ok(err)
		if uint64(len(b)) != n {
			f.Errorf("HostAlloc(%d) returned %d bytes", n, len(b))
		}
		b[0], b[n-1] = 7, 9
		if n > 1 && (b[0] != 7 || b[n-1] != 9) {
			f.Error("page-locked memory does not hold what was written")
		}
		f.ok(f.d.HostFree(f.th, b))
	}
}

func testHostErrors(f *fixture) {
	_, err := f.d.HostAlloc(f.th, 0)
	f.code(err, "HostAlloc", driver.InvalidValue)
	_, err = f.d.HostAlloc(f.th, 1<<55)
	f.code(err, "HostAlloc", driver.OutOfMemory)
	f.code(f.d.HostFree(f.th, make([]byte, 16)), "HostFree", driver.InvalidValue)
	f.ok(f.d.HostFree(f.th, nil))
}

// testHostRegister registers memory of the Go heap, uses it as page-locked memory, and unregisters it.
func testHostRegister(f *fixture) {
	b := make([]byte, 3<<20)
	f.ok(f.d.HostRegister(f.th, b))
	f.code(f.d.HostRegister(f.th, b), "HostRegister", driver.HostMemoryRegistered)
	f.code(f.d.HostFree(f.th, b), "HostFree", driver.InvalidValue)
	b[0], b[len(b)-1] = 7, 9
	p, err := f.d.MemAlloc(f.th, uint64(len(b)))
	f.ok(err)
	s, err := f.d.StreamCreate(f.th, true, 0)
	f.ok(err)
	f.ok(f.d.CopyHtoD(p, b, s))
	f.ok(f.d.StreamSynchronize(f.th, s))
	clear(b)
	f.ok(f.d.CopyDtoH(b, p, s))
	f.ok(f.d.StreamSynchronize(f.th, s))
	if b[0] != 7 || b[len(b)-1] != 9 {
		f.Errorf("the copies left %d and %d, want 7 and 9", b[0], b[len(b)-1])
	}
	f.ok(f.d.HostUnregister(f.th, b))
	f.code(f.d.HostUnregister(f.th, b), "HostUnregister", driver.HostMemoryNotRegistered)
	f.code(f.d.HostRegister(f.th, nil), "HostRegister", driver.InvalidValue)
	f.ok(f.d.HostRegister(f.th, b)) // again, for Close to end
	if v := f.d.HostView(p, 16); f.d.Info().Inline != (len(v) == 16 && v[0] == 7) {
		f.Errorf("the host's view of device memory is %v", v)
	}
	if f.d.HostView(p, 1<<40) != nil {
		f.Error("the host has a view of memory beyond the allocation")
	}
	f.ok(f.d.HostUnregister(f.th, b))
	f.ok(f.d.MemFree(f.th, p))
	f.ok(f.d.StreamDestroy(f.th, s))
}
