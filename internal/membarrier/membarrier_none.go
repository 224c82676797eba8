//go:build !linux || !amd64 || race

package membarrier

// Supported says whether the functions of this package work here.
const Supported = false

// Prepare does nothing here.
func Prepare() {}

// Ready returns false here.
func Ready() bool { return false }

// Fence must not be called here.
func Fence() { panic("membarrier: not supported") }
