//go:build !amd64 && !arm64

package stack

import (
	"bytes"
	"runtime"
	"strconv"
)

// walk stores the return addresses of the calling goroutine's stack in pcs, starting with the caller's own, and returns their number.
func walk(pcs []uintptr) int { return runtime.Callers(2, pcs) }

// Goroutine identifies the calling goroutine among those that have not ended. It is never 0.
func Goroutine() uintptr {
	var text [64]byte // "goroutine 7 [running]:"
	_, rest, _ := bytes.Cut(text[:runtime.Stack(text[:], false)], []byte(" "))
	number, _, _ := bytes.Cut(rest, []byte(" "))
	n, _ := strconv.ParseUint(string(number), 10, 64)
	return uintptr(n)
}
