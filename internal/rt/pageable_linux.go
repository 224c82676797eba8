package rt

import "syscall"

// mapPageable returns n bytes of ordinary memory outside the Go heap, which no one has touched yet.
func mapPageable(n uint64) ([]byte, error) {
	if n > 1<<46 {
		return nil, syscall.ENOMEM
	}
	return syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
}

// unmapPageable gives memory of mapPageable back.
func unmapPageable(b []byte) error { return syscall.Munmap(b) }
