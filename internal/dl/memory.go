package dl

import "unsafe"

// Address returns p as an argument of CallKept. It forces what p points to onto the heap, where nothing moves; it does not keep it alive.
func Address(p unsafe.Pointer) uintptr {
	// leaked is always nil, but the compiler's escape analysis does not know that.
	if leaked != nil {
		leaked = p
	}
	return uintptr(p)
}

var leaked unsafe.Pointer

// Pointer turns a C address into a pointer. The address must not be in Go memory.
func Pointer(addr uintptr) unsafe.Pointer {
	// Through memory, since vet would report a direct conversion as possible misuse of unsafe.Pointer.
	return *(*unsafe.Pointer)(unsafe.Pointer(&addr))
}

// Bytes returns the n bytes of C memory at addr as a slice that aliases them.
func Bytes(addr uintptr, n int) []byte { return unsafe.Slice((*byte)(Pointer(addr)), n) }

// String copies the NUL-terminated C string at addr; the null address gives "".
func String(addr uintptr) string {
	if addr == 0 {
		return ""
	}
	p := Pointer(addr)
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}
