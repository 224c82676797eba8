package memcheck

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// setGroup puts the process into a new group of its own.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// killGroup kills the process and all that descend from it.
func killGroup(pid int) { _ = exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(pid)).Run() }

// openUnlinked opens a new file.
func openUnlinked(name string) (*os.File, error) { return os.OpenFile(name, fileFlags, 0o600) }

// closeUnlinked closes and removes a file that openUnlinked opened.
func closeUnlinked(f *os.File) error { return errors.Join(f.Close(), os.Remove(f.Name())) }

// restWait is how long the reader of an ended process's pipe may take to see its end.
const restWait = time.Second

// rest reads what is left in the pipe. One whose other end another process still has is left to its reader, who keeps no more.
func (o *output) rest() error {
	if o.reading == nil {
		o.start()
	}
	select {
	case <-o.reading:
		return o.read.Close()
	case <-time.After(restWait):
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.given = true
	return nil
}

// lockFile does nothing: a file that is open cannot be renamed here, so a second run fails by itself.
func lockFile(*os.File) error { return nil }

// peakMemory is not measured.
func peakMemory(any) int64 { return 0 }

func ownPeak() int64 { return 0 }

// waitGroup waits until the process has ended, and says so. What it left running stays.
func waitGroup(cmd *exec.Cmd, ended func()) error {
	err := cmd.Wait()
	ended()
	return err
}
