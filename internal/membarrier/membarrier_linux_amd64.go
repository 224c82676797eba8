//go:build !race

package membarrier

import (
	"sync"
	"sync/atomic"
	"syscall"
)

// Supported says whether the functions of this package work here. With the race detector, which does not know this kind of order, they do
// not.
const Supported = true

// The number of membarrier(2), and its commands.
const (
	membarrier = 324

	fence    = 1 << 3
	register = 1 << 4
)

var (
	once  sync.Once
	ready atomic.Bool
)

// Prepare asks the kernel for Fence, once and without waiting: it may take milliseconds. Until then, and if the kernel has no such fence,
// Ready returns false.
func Prepare() {
	once.Do(func() {
		go func() {
			// Not a raw call, which would keep the world from stopping for as long.
			if _, _, errno := syscall.Syscall(membarrier, register, 0, 0); errno == 0 {
				ready.Store(true)
			}
		}()
	})
}

// Ready reports whether Fence may be called.
func Ready() bool { return ready.Load() }

// Fence makes every thread of the process that runs now pass a full memory fence, the caller's too. It takes microseconds.
func Fence() {
	if !call(fence) && !(call(register) && call(fence)) { // a restored process has to register again
		panic("membarrier: the kernel refuses a fence that it has granted")
	}
}

func call(command uintptr) bool {
	_, _, errno := syscall.RawSyscall(membarrier, command, 0, 0)
	return errno == 0
}
