package hostsim

import (
	"bytes"
	"encoding/binary"
	"testing"
	"unsafe"

	"tenon.dev/internal/driver"
)

// TestCapacityIsOnlyReserved allocates far more than the host has, and touches both ends.
func TestCapacityIsOnlyReserved(t *testing.T) {
	d, th := open(t, Options{Capacity: 140 << 30})
	s, err := d.StreamCreate(th, true, 0)
	must(t, err)
	const n = 139 << 30
	p := alloc(t, d, th, n)
	_, err = d.MemAlloc(th, 2<<30)
	want(t, err, "MemAlloc", driver.OutOfMemory)
	must(t, d.Memset(p+n-4096, 7, 1, 4096, s))
	b := make([]byte, 8)
	must(t, d.CopyDtoH(b, p+n-8, s))
	if !bytes.Equal(b, bytes.Repeat([]byte{7}, 8)) {
		t.Errorf("the end of the allocation holds %v", b)
	}
	must(t, d.CopyDtoH(b, p, s))
	if binary.LittleEndian.Uint32(b) != pattern {
		t.Errorf("the start of the allocation holds %v", b)
	}
	must(t, d.MemFree(th, p))
	if free, total, _ := d.MemInfo(th); free != total || total != 140<<30 {
		t.Errorf("free %d of %d after the free", free, total)
	}
	if n := pieces.Load(); n != 0 {
		t.Errorf("%d pieces of pattern are mapped after the free", n)
	}
}

// TestReusedBacking frees memory of which some pages were written: the next device gets the same pages of the host, all of them fresh.
func TestReusedBacking(t *testing.T) {
	const n = 6 << 20
	var first uintptr
	for i := range 3 {
		d, th := open(t, Options{})
		s, err := d.StreamCreate(th, true, 0)
		must(t, err)
		p := alloc(t, d, th, n)
		b := make([]byte, n)
		must(t, d.CopyDtoH(b, p, s))
		for at := 0; at < n; at += 4 {
			if v := binary.LittleEndian.Uint32(b[at:]); v != pattern {
				t.Fatalf("allocation %d: byte %d holds %#x", i, at, v)
			}
		}
		mem := d.mem.bytes(p, n)
		if at := uintptr(unsafe.Pointer(&mem[0])); i == 0 {
			first = at
		} else if pagemap() != nil && at != first {
			t.Errorf("allocation %d is at %#x of the host, not at %#x", i, at, first)
		}
		must(t, d.Memset(p, 7, 1, 1, s))
		must(t, d.Memset(p+3<<20-2, 8, 1, 5000, s))
		must(t, d.Memset(p+n-1, 9, 1, 1, s))
		must(t, d.StreamSynchronize(th, s))
		must(t, d.MemFree(th, p))
	}
	spares.Lock()
	defer spares.Unlock()
	if spares.size > spareMost {
		t.Errorf("%d bytes are kept", spares.size)
	}
}
