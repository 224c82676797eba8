//go:build unix && !linux

package memcheck

import (
	"os"
	"os/exec"
	"syscall"
)

// setGroup puts the process into a new group of its own.
func setGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// openOutput opens a new file.
func openOutput(name string) (*os.File, error) { return openUnlinked(name) }

// waitGroup waits until the process has ended and kills what is left of its group.
func waitGroup(cmd *exec.Cmd) error {
	err := cmd.Wait()
	killGroup(cmd.Process.Pid)
	return err
}
