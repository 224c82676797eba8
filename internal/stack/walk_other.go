//go:build !amd64 && !arm64

package stack

import "runtime"

// walk stores the return addresses of the calling goroutine's stack in pcs, starting with the caller's own, and returns their number.
func walk(pcs []uintptr) int { return runtime.Callers(2, pcs) }
