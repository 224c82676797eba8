//go:build amd64 || arm64

package stack

// walk stores the return addresses of the calling goroutine's stack in pcs, starting with the caller's own, and returns their number. It
// follows the frame pointers as long as they rise within the goroutine's stack, so that a frame that is not Go's ends the walk.
//
//go:noescape
func walk(pcs []uintptr) int

// Goroutine identifies the calling goroutine among those that have not ended. It is never 0, and another goroutine may get it after the
// calling one has ended.
func Goroutine() uintptr
