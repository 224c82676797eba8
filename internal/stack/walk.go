//go:build amd64 || arm64

package stack

// walk stores the return addresses of the calling goroutine's stack in pcs, starting with the caller's own, and returns their number. It
// follows the frame pointers as long as they rise within the goroutine's stack, so that a frame that is not Go's ends the walk.
//
//go:noescape
func walk(pcs []uintptr) int
