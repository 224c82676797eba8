package memcheck

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// setGroup puts the process into a new group of its own.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// killGroup kills the process and all that descend from it.
func killGroup(pid int) { _ = exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(pid)).Run() }

// openOutput opens a new file.
func openOutput(name string) (*os.File, error) { return os.OpenFile(name, outputFlags, 0o600) }

// closeOutput closes and removes a file that openOutput opened.
func closeOutput(f *os.File) error { return errors.Join(f.Close(), os.Remove(f.Name())) }

// lockFile does nothing: a file that is open cannot be renamed here, so a second run fails by itself.
func lockFile(*os.File) error { return nil }

// peakMemory is not measured.
func peakMemory(any) int64 { return 0 }

func ownPeak() int64 { return 0 }

// waitGroup waits until the process has ended. What it left running stays.
func waitGroup(cmd *exec.Cmd) error { return cmd.Wait() }
