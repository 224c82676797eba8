package hostsim

import (
	"encoding/binary"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Fresh device memory is made of private mappings of one file that holds the pattern, so pages are shared until written. The kernel counts
// each piece as a mapping and allows a process about 65,530, so the pieces are counted too, and memory beyond the budget starts as zeros.
const (
	patternBytes = 4 << 20
	pieceBudget  = 40_000
	pattern      = 0x7FFF_7FFF
)

var pieces atomic.Int64

// patternFile returns a file of patternBytes of pattern, or nil if the system cannot create one.
var patternFile = sync.OnceValue(func() *os.File {
	number := map[string]uintptr{"amd64": 319, "arm64": 279}[runtime.GOARCH] // memfd_create; package syscall has no name for it
	name := []byte("hostsim\x00")
	if number == 0 {
		return nil
	}
	const closeOnExec = 1
	fd, _, errno := syscall.Syscall(number, uintptr(unsafe.Pointer(&name[0])), closeOnExec, 0)
	if errno != 0 {
		return nil
	}
	f := os.NewFile(fd, "hostsim")
	b := make([]byte, patternBytes)
	for i := 0; i < len(b); i += 4 {
		binary.LittleEndian.PutUint32(b[i:], pattern)
	}
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil
	}
	return f
})

// mapBacking returns size bytes of fresh memory, page-aligned, without touching them; plain memory is zero, other memory holds the pattern.
// It reports false if the system has no room.
func mapBacking(size uint64, plain bool) (backing, bool) {
	if size > 1<<46 {
		return backing{}, false
	}
	if !plain {
		if b, ok := spareBacking(size); ok {
			return b, true
		}
	}
	mem, err := syscall.Mmap(-1, 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	if err != nil {
		return backing{}, false
	}
	b := backing{mem: mem}
	if plain {
		if size >= 2*step {
			syscall.Madvise(mem, 14) // MADV_HUGEPAGE: fewer faults; only a hint, so the error is ignored
		}
		return b, true
	}
	b.pieces = mapPattern(mem)
	return b, true
}

// mapPattern maps the pattern over mem, as far as the budget allows, and returns the number of pieces used.
func mapPattern(mem []byte) (count int64) {
	f := patternFile()
	if f == nil {
		return 0
	}
	base, size := uintptr(unsafe.Pointer(&mem[0])), uint64(len(mem))
	for off := uint64(0); off < size && pieces.Load() < pieceBudget; off += patternBytes {
		n := min(patternBytes, size-off)
		_, _, errno := syscall.Syscall6(syscall.SYS_MMAP, base+uintptr(off), uintptr(n), syscall.PROT_READ|syscall.PROT_WRITE,
			syscall.MAP_PRIVATE|syscall.MAP_FIXED|syscall.MAP_NORESERVE, f.Fd(), 0)
		if errno != 0 {
			break
		}
		count++
		pieces.Add(1)
	}
	runtime.KeepAlive(mem)
	return count
}

// virtualMemory is set if the functions below work.
const virtualMemory = true

// reserveHost returns size bytes of addresses that must not be accessed yet.
func reserveHost(size uint64) ([]byte, bool) {
	if size > 1<<46 {
		return nil, false
	}
	mem, err := syscall.Mmap(-1, 0, int(size), syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	return mem, err == nil
}

// commitHost turns a part of a reserveHost range into fresh memory, and returns the pieces of pattern in it.
func commitHost(mem []byte) (count int64, ok bool) {
	if syscall.Mprotect(mem, syscall.PROT_READ|syscall.PROT_WRITE) != nil {
		return 0, false
	}
	return mapPattern(mem), true
}

// decommitHost releases the memory of a part; its addresses stay reserved.
func decommitHost(mem []byte, count int64) {
	_, _, errno := syscall.Syscall6(syscall.SYS_MMAP, uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)), syscall.PROT_NONE,
		syscall.MAP_PRIVATE|syscall.MAP_FIXED|syscall.MAP_ANON|syscall.MAP_NORESERVE, ^uintptr(0), 0)
	if errno != 0 {
		panic("hostsim: mmap: " + errno.Error())
	}
	pieces.Add(-count)
}

// releaseHost releases a reserveHost range.
func releaseHost(mem []byte) { unmap(mem) }

// unmapBacking releases the result of mapBacking, or keeps it for the next.
func unmapBacking(b backing) {
	if keepBacking(b) {
		return
	}
	pieces.Add(-b.pieces)
	unmap(b.mem)
}

// mapHost returns n bytes of memory outside the Go heap, or nil.
func mapHost(n uint64) []byte {
	if n > 1<<46 {
		return nil
	}
	b, err := syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil
	}
	return b[:n:n]
}

// unmapHost releases the result of mapHost.
func unmapHost(b []byte) { unmap(b) }
