//go:build unix && !linux

package memcheck

import (
	"os/exec"
	"syscall"
)

// setGroup puts the process into a new group.
func setGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// waitGroup waits until the process has ended, calls ended, and kills what is left of its group.
func waitGroup(cmd *exec.Cmd, ended func()) error {
	err := cmd.Wait()
	ended()
	killGroup(cmd.Process.Pid)
	return err
}
