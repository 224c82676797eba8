//go:build unix

package memcheck

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// killGroup kills every process of the group that pid leads. That none is left is no error.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }

// openUnlinked opens a new file and takes its name away.
func openUnlinked(name string) (*os.File, error) {
	f, err := os.OpenFile(name, outputFlags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lockFile locks f against other processes; the error is errShared. A file system without locks has none to offer.
func lockFile(f *os.File) error {
	if errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
		return errShared
	}
	return nil
}

// closeOutput closes a file that openOutput opened; with that it is gone.
func closeOutput(f *os.File) error { return f.Close() }

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
