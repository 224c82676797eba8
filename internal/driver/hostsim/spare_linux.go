package hostsim

import (
	"encoding/binary"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// Freed backings of common sizes are kept for later allocations, of any device: a page that was written before is filled with the pattern
// again, which takes a tenth of the time of a page fault. The least recently freed are unmapped when there are too many.
const (
	spareLargest = 64 << 20  // the largest backing that is kept
	spareMost    = 256 << 20 // the most that all of them have
)

// spares are the kept backings, by the time at which they were freed.
var spares struct {
	sync.Mutex
	kept []backing
	size uint64
}

// pagemap is the kernel's table of this process's pages, or nil if the system has none; then no backing is kept.
var pagemap = sync.OnceValue(func() *os.File {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil || os.Getpagesize() != pageBytes {
		return nil
	}
	return f
})

// pageBytes is the size of a page on the systems whose backings are kept.
const pageBytes = 4096

// keepBacking takes a freed backing that holds the pattern wherever it was not written, and reports whether it will be used again.
func keepBacking(b backing) bool {
	size := uint64(len(b.mem))
	if size > spareLargest || uint64(b.pieces)*patternBytes < size || pagemap() == nil {
		return false
	}
	pieces.Add(-b.pieces)
	spares.Lock()
	spares.kept = append(spares.kept, b)
	spares.size += size
	var old []backing
	for spares.size > spareMost {
		old = append(old, spares.kept[0])
		spares.size -= uint64(len(spares.kept[0].mem))
		spares.kept = spares.kept[1:]
	}
	spares.Unlock()
	for _, b := range old {
		unmap(b.mem)
	}
	return true
}

// spareBacking returns a kept backing of the given size, all of it the pattern, if there is one.
func spareBacking(size uint64) (backing, bool) {
	spares.Lock()
	at := len(spares.kept) - 1
	for at >= 0 && uint64(len(spares.kept[at].mem)) != size {
		at--
	}
	if at < 0 {
		spares.Unlock()
		return backing{}, false
	}
	b := spares.kept[at]
	spares.kept = append(spares.kept[:at], spares.kept[at+1:]...)
	spares.size -= size
	spares.Unlock()
	if !renew(b.mem) {
		unmap(b.mem)
		return backing{}, false
	}
	pieces.Add(b.pieces)
	return b, true
}

// renew fills the pages of mem that were written with the pattern: those that are no longer the file's.
func renew(mem []byte) bool {
	const file, present, swapped = 1 << 61, 1 << 63, 1 << 62
	var entries [512]uint64
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&entries)), unsafe.Sizeof(entries))
	first := uintptr(unsafe.Pointer(&mem[0])) / pageBytes
	count := len(mem) / pageBytes
	for done := 0; done < count; {
		n := min(len(entries), count-done)
		if got, err := pagemap().ReadAt(raw[:8*n], int64(8*(first+uintptr(done)))); err != nil || got != 8*n {
			return false
		}
		for i, e := range entries[:n] {
			if e&(present|swapped) != 0 && e&file == 0 {
				copy(mem[(done+i)*pageBytes:], patternPage())
			}
		}
		done += n
	}
	return true
}

// patternPage is a page of pattern.
var patternPage = sync.OnceValue(func() []byte {
	b := make([]byte, pageBytes)
	for i := 0; i < len(b); i += 4 {
		binary.LittleEndian.PutUint32(b[i:], pattern)
	}
	return b
})

// unmap releases memory that mmap returned.
func unmap(mem []byte) {
	if err := syscall.Munmap(mem); err != nil {
		panic("hostsim: munmap: " + err.Error())
	}
}
