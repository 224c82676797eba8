package memcheck

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// setGroup puts the process into a new group, and has the system kill it when the runner ends.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// waitGroup waits until the process has ended, calls ended, kills what is left of its group, and then releases its number: until then no
// other group can get it.
func waitGroup(cmd *exec.Cmd, ended func()) error {
	const byPid, exited, leave = 1, 0x4, 0x1000000 // P_PID, WEXITED, WNOWAIT
	for {
		if _, _, e := syscall.Syscall6(syscall.SYS_WAITID, byPid, uintptr(cmd.Process.Pid), 0, exited|leave, 0, 0); e != syscall.EINTR {
			break
		}
	}
	ended()
	killGroup(cmd.Process.Pid)
	return cmd.Wait()
}

// killMarked kills every process of a run whose job is not running, until there are none.
func killMarked(m runMark, running func(job int) bool) {
	// A process that is being killed may have started others; one that cannot be killed must not block the runner.
	for range 20 {
		found := false
		dir, err := os.Open("/proc")
		if err != nil {
			return
		}
		names, _ := dir.Readdirnames(-1)
		dir.Close()
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil || pid == os.Getpid() || !stale(pid, m, running) {
				continue
			}
			// The handle refers to this process even if its number is reused.
			if p, err := os.FindProcess(pid); err == nil && stale(pid, m, running) {
				found = p.Kill() == nil || found
				_ = p.Release()
			}
		}
		if !found {
			return
		}
	}
}

// stale reports whether a process has the mark of a job that is not running.
func stale(pid int, m runMark, running func(job int) bool) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false // gone, or another user's
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if number, ok := bytes.CutPrefix(v, []byte(m)); ok {
			job, err := strconv.Atoi(string(number))
			return err == nil && !running(job)
		}
	}
	return false
}
