package hostsim

import (
	"bytes"
	"encoding/binary"
	"testing"

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
