package hostsim

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// threadID returns the id of the operating-system thread that the goroutine is locked to.
func threadID() uint64 { return uint64(syscall.Gettid()) }

// hostMemoryBytes returns the host's memory and swap space, or what a container may use of them; 0 if it is unknown.
func hostMemoryBytes() uint64 {
	var i syscall.Sysinfo_t
	if syscall.Sysinfo(&i) != nil {
		return 0
	}
	all := (uint64(i.Totalram) + uint64(i.Totalswap)) * uint64(i.Unit)
	for _, limit := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(limit)
		if n, wrong := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && wrong == nil && n > 0 {
			all = min(all, n)
		}
	}
	return all
}
