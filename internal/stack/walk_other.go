//go:build !amd64 && !arm64

package stack

import "runtime"

// walk fills pcs with the return addresses of the calling goroutine's stack, from the caller's own on, and returns how many there are.
func walk(pcs []uintptr) int { return runtime.Callers(2, pcs) }
