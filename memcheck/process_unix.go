//go:build unix

package memcheck

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"
)

// killGroup kills every process of the group that pid leads. It is not an error if none is left.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }

// openUnlinked opens a new file and removes its name.
func openUnlinked(name string) (*os.File, error) {
	f, err := os.OpenFile(name, fileFlags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lockFile locks f against other processes; if another holds the lock, the error is errShared. On a file system without locks it does
// nothing.
func lockFile(f *os.File) error {
	if errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
		return errShared
	}
	return nil
}

// closeUnlinked closes a file opened by openUnlinked, which deletes it.
func closeUnlinked(f *os.File) error { return f.Close() }

// rest reads what is in the pipe, without waiting for more: a process that left the group may still have the other end open.
func (o *output) rest() error {
	if o.reading != nil {
		if err := o.read.SetReadDeadline(time.Unix(1, 0)); err != nil { // in the past: the reader stops
			return errors.Join(err, o.read.Close())
		}
		<-o.reading
		if err := o.read.SetReadDeadline(time.Time{}); err != nil {
			return errors.Join(err, o.read.Close())
		}
	}
	pipe, err := o.read.SyscallConn()
	if err != nil {
		return errors.Join(err, o.read.Close())
	}
	b := chunks.Get().(*[64 << 10]byte)
	defer chunks.Put(b)
	for total := 0; total < pipeBytes; {
		n := 0
		_ = pipe.Read(func(fd uintptr) bool {
			for {
				var e error
				if n, e = syscall.Read(int(fd), b[:]); e != syscall.EINTR {
					return true
				}
			}
		})
		if n <= 0 { // the end, or nothing more yet
			break
		}
		o.keep(b[:n])
		total += n
	}
	return o.read.Close()
}

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
