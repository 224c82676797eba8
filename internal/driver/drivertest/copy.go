package drivertest

import (
	"bytes"
	"sync/atomic"

	"tenon.dev/internal/driver"
)

var copyTests = []test{
	{"RoundTrip", false, testRoundTrip},
	{"Offsets", false, testCopyOffsets},
	{"Zero", false, testCopyZero},
	{"PageableSourceIsRead", true, testPageableSource},
	{"PageableDestinationWaits", true, testPageableDestination},
	{"PinnedIsAsynchronous", true, testPinnedAsync},
	{"PinnedSourceIsReadLater", true, testPinnedSource},
	{"DtoD", false, testDtoD},
	{"Memset", false, testMemset},
	{"Errors", false, testCopyErrors},
}

var callbackTests = []test{
	{"Order", false, testCallbackOrder},
	{"StreamWaitsForReturn", true, testCallbackBlocks},
	{"WithoutWaiting", false, testCallbackNoWait},
	{"Unregister", false, testCallbackUnregister},
}

// ramp returns n bytes that count up from first.
func ramp(n int, first byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i) + byte(i>>8)
	}
	return b
}

func testRoundTrip(f *fixture) {
	for _, n := range []int{1, 3, 4096, 65537, 3 << 20} {
		p, s := f.alloc(uint64(n)), f.stream()
		for _, pinned := range []bool{false, true} {
			src, dst := ramp(n, 5), make([]byte, n)
			if pinned {
				src, dst = f.host(uint64(n)), f.host(uint64(n))
				copy(src, ramp(n, 9))
			}
			f.ok(f.d.CopyHtoD(p, src, s))
			f.ok(f.d.CopyDtoH(dst, p, s))
			f.sync(s)
			if !bytes.Equal(src, dst) {
				f.Errorf("%d bytes, pinned %v: read back other bytes", n, pinned)
			}
		}
	}
}

func testCopyOffsets(f *fixture) {
	const n = 10000
	p, s, got := f.alloc(n), f.stream(), make([]byte, n)
	want := ramp(n, 0)
	f.ok(f.d.CopyHtoD(p, want, s))
	part := ramp(777, 100)
	f.ok(f.d.CopyHtoD(p+1001, part, s))
	copy(want[1001:], part)
	f.ok(f.d.CopyDtoH(got, p, s))
	f.sync(s)
	if !bytes.Equal(got, want) {
		f.Error("a copy into the middle of an allocation went wrong")
	}
	f.ok(f.d.CopyDtoH(got[:501], p+1000, s))
	f.sync(s)
	if !bytes.Equal(got[:501], want[1000:1501]) {
		f.Error("a copy from the middle of an allocation went wrong")
	}
}

func testCopyZero(f *fixture) {
	p, s := f.alloc(512), f.stream()
	f.ok(f.d.CopyHtoD(p, nil, s))
	f.ok(f.d.CopyDtoH(nil, p, s))
	f.ok(f.d.CopyDtoD(p, p+8, 0, s))
	f.ok(f.d.Memset(p, 1, 1, 0, s))
	f.sync(s)
}

func testPageableSource(f *fixture) {
	const n = 1 << 20
	p, s := f.alloc(n), f.stream()
	src, got := ramp(n, 3), make([]byte, n)
	f.spin(s, 20)
	f.ok(f.d.CopyHtoD(p, src, s))
	clear(src) // it was read before the call returned
	f.ok(f.d.CopyDtoH(got, p, s))
	f.sync(s)
	if !bytes.Equal(got, ramp(n, 3)) {
		f.Error("a pageable source was read after the call")
	}
}

func testPageableDestination(f *fixture) {
	p, s, got := f.alloc(512), f.stream(), make([]byte, 512)
	f.ok(f.d.Memset(p, 1, 1, 512, s))
	f.spin(s, 20)
	f.ok(f.d.Memset(p, 2, 1, 512, s))
	f.ok(f.d.CopyDtoH(got, p, s))
	if !bytes.Equal(got, bytes.Repeat([]byte{2}, 512)) {
		f.Error("a pageable destination does not hold the data when the call returns")
	}
}

func testPinnedAsync(f *fixture) {
	p, s, b := f.alloc(4096), f.stream(), f.host(4096)
	clear(b)
	f.ok(f.d.Memset(p, 7, 1, 4096, s))
	f.spin(s, 50)
	f.ok(f.d.CopyDtoH(b, p, s))
	if b[0] != 0 || b[4095] != 0 {
		f.Error("the copy was done before the work ahead of it")
	}
	f.query(s, false)
	f.sync(s)
	if !bytes.Equal(b, bytes.Repeat([]byte{7}, 4096)) {
		f.Error("page-locked memory does not hold the copied bytes after a wait")
	}
}

func testPinnedSource(f *fixture) {
	p, s, b, got := f.alloc(4096), f.stream(), f.host(4096), make([]byte, 4096)
	copy(b, bytes.Repeat([]byte{1}, 4096))
	f.spin(s, 50)
	f.ok(f.d.CopyHtoD(p, b, s))
	copy(b, bytes.Repeat([]byte{2}, 4096))
	f.ok(f.d.CopyDtoH(got, p, s))
	if !bytes.Equal(got, bytes.Repeat([]byte{2}, 4096)) {
		f.Error("page-locked memory was read before the stream got to the copy")
	}
}

func testDtoD(f *fixture) {
	const n = 100001
	a, b, s, got := f.alloc(n), f.alloc(n), f.stream(), make([]byte, n)
	f.ok(f.d.CopyHtoD(a, ramp(n, 1), s))
	f.ok(f.d.Memset(b, 0, 1, n, s))
	f.ok(f.d.CopyDtoD(b+1, a, n-1, s))
	f.ok(f.d.CopyDtoH(got, b, s))
	f.sync(s)
	if got[0] != 0 || !bytes.Equal(got[1:], ramp(n, 1)[:n-1]) {
		f.Error("device copy went wrong")
	}
}

func testMemset(f *fixture) {
	const n = 4096
	p, s, got := f.alloc(n), f.stream(), make([]byte, n)
	for _, c := range []struct {
		width int
		v     uint32
		want  []byte
	}{
		{1, 0xabcd12, []byte{0x12}},
		{2, 0xabcd1234, []byte{0x34, 0x12}},
		{4, 0x12345678, []byte{0x78, 0x56, 0x34, 0x12}},
	} {
		f.ok(f.d.Memset(p, 0xee, 1, n, s))
		f.ok(f.d.Memset(p+driver.Ptr(c.width), c.v, c.width, uint64(100/c.width), s))
		f.ok(f.d.CopyDtoH(got, p, s))
		f.sync(s)
		want := bytes.Repeat([]byte{0xee}, n)
		copy(want[c.width:], bytes.Repeat(c.want, 100/c.width))
		if !bytes.Equal(got, want) {
			f.Errorf("memset of width %d went wrong", c.width)
		}
	}
}

func testCopyErrors(f *fixture) {
	s, b := f.stream(), make([]byte, 512)
	p, err := f.d.MemAlloc(f.th, 512)
	f.ok(err)
	f.code(f.d.Memset(p, 0, 3, 4, s), "Memset", driver.InvalidValue)
	f.code(f.d.Memset(p+1, 0, 4, 4, s), "Memset", driver.InvalidValue)
	f.code(f.d.Memset(p+1, 0, 2, 4, s), "Memset", driver.InvalidValue)
	f.ok(f.d.MemFree(f.th, p))
	f.code(f.d.CopyHtoD(0, b, s), "CopyHtoD", driver.InvalidValue)
	f.code(f.d.CopyDtoH(b, 0, s), "CopyDtoH", driver.InvalidValue)
	f.code(f.d.Memset(0, 0, 1, 4, s), "Memset", driver.InvalidValue)
	q := f.alloc(512)
	f.code(f.d.CopyDtoD(0, q, 16, s), "CopyDtoD", driver.InvalidValue)
	f.code(f.d.CopyDtoD(q, 0, 16, s), "CopyDtoD", driver.InvalidValue)
	f.sync(s)
}

func testCallbackOrder(f *fixture) {
	s, p, b := f.stream(), f.alloc(4), f.host(4)
	clear(b)
	var seen [2]byte
	first := f.d.RegisterCallback(func() { seen[0] = b[0] })
	second := f.d.RegisterCallback(func() { seen[1] = b[0] })
	defer f.d.UnregisterCallback(first)
	defer f.d.UnregisterCallback(second)
	f.ok(f.d.Memset(p, 5, 1, 4, s))
	f.ok(f.d.CopyDtoH(b, p, s))
	f.ok(f.d.Callback(s, first))
	f.ok(f.d.Memset(p, 6, 1, 4, s))
	f.ok(f.d.CopyDtoH(b, p, s))
	f.ok(f.d.Callback(s, second))
	f.sync(s)
	if seen != [2]byte{5, 6} {
		f.Errorf("callbacks saw %v, want [5 6]", seen)
	}
}

func testCallbackBlocks(f *fixture) {
	s, release := f.stream(), make(chan struct{})
	var entered, left atomic.Bool
	id := f.d.RegisterCallback(func() { entered.Store(true); <-release; left.Store(true) })
	defer f.d.UnregisterCallback(id)
	f.ok(f.d.Callback(s, id))
	f.query(s, false)
	close(release)
	f.sync(s)
	if !entered.Load() || !left.Load() {
		f.Error("the stream is done but its callback is not")
	}
}

func testCallbackNoWait(f *fixture) {
	s, p, ran := f.stream(), f.alloc(512), make(chan struct{})
	id := f.d.RegisterCallback(func() { close(ran) })
	defer f.d.UnregisterCallback(id)
	f.ok(f.d.Memset(p, 0, 1, 512, s))
	f.ok(f.d.Callback(s, id))
	<-ran // no driver call waits for it
	f.sync(s)
}

func testCallbackUnregister(f *fixture) {
	s := f.stream()
	n := 0
	a := f.d.RegisterCallback(func() { n++ })
	b := f.d.RegisterCallback(func() { n += 10 })
	if a == b {
		f.Error("two callbacks have one id")
	}
	f.d.UnregisterCallback(a)
	f.code(f.d.Callback(s, a), "Callback", driver.InvalidValue)
	f.ok(f.d.Callback(s, b))
	f.sync(s)
	f.d.UnregisterCallback(b)
	if n != 10 {
		f.Errorf("callbacks added %d, want 10", n)
	}
}
