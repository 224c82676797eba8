package hostsim

import "syscall"

// threadID returns the id of the operating-system thread that the goroutine is locked to.
func threadID() uint64 { return uint64(syscall.Gettid()) }

// hostMemoryBytes returns the host's memory, or 0 if it is unknown.
func hostMemoryBytes() uint64 {
	var i syscall.Sysinfo_t
	if syscall.Sysinfo(&i) != nil {
		return 0
	}
	return uint64(i.Totalram) * uint64(i.Unit)
}
