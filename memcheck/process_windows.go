package memcheck

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// setGroup puts the process into a new group.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// killGroup kills the process and all its descendants.
func killGroup(pid int) { _ = exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(pid)).Run() }

// openUnlinked opens a new file.
func openUnlinked(name string) (*os.File, error) { return os.OpenFile(name, fileFlags, 0o600) }

// closeUnlinked closes and removes a file that openUnlinked opened.
func closeUnlinked(f *os.File) error { return errors.Join(f.Close(), os.Remove(f.Name())) }

// restWait is how long the reader of an ended process's pipe may take to reach the end.
const restWait = time.Second

// rest reads what is left in the pipe. If another process still has the other end open, the pipe is left to its reader, which keeps nothing
// more.
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

// lockFile does nothing: an open file cannot be renamed here, so a second run fails anyway.
func lockFile(*os.File) error { return nil }

// peakMemory is not measured.
func peakMemory(any) int64 { return 0 }

func ownPeak() int64 { return 0 }

// waitGroup waits until the process has ended, and calls ended. Processes that it left running stay.
func waitGroup(cmd *exec.Cmd, ended func()) error {
	err := cmd.Wait()
	ended()
	return err
}
