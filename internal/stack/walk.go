//go:build amd64 || arm64

package stack

// walk fills pcs with the return addresses of the calling goroutine's stack, from the caller's own on, and returns how many there are. It
// follows the frame pointers as long as they rise within the goroutine's stack, so that a frame that is not Go's ends the walk.
//
//go:noescape
func walk(pcs []uintptr) int
