//go:build unix

package memcheck

import (
	"runtime"
	"syscall"
)

// killGroup kills every process of the group that pid leads. That none is left is no error.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }

// peakMemory returns the peak of resident memory in bytes.
func peakMemory(usage any) int64 {
	u, ok := usage.(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return int64(u.Maxrss)
	}
	return int64(u.Maxrss) << 10
}

// ownPeak is peakMemory of this process.
func ownPeak() int64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return peakMemory(&u)
}
