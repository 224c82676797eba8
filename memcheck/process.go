package memcheck

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// cause is why a process was killed; "" if it was not.
type cause string

const (
	byLimit cause = "limit" // of time
	bySize  cause = "size"  // of what it prints
	byEnd   cause = "end"   // of the run
)

// killWait is how long a killed process may take to vanish. One that waits for a broken device may never.
const killWait = 10 * time.Second

// process is one started test: a process group of its own, whose output goes to files, so that it costs the runner no memory.
type process struct {
	args []string
	dir  string
	env  []string // whole

	out, err *os.File
	cmd      *exec.Cmd
	cuts     chan cause

	// Set when run returns.
	killed cause
	// stuck: it was killed and did not vanish; what follows is then unknown.
	stuck        bool
	exit         int
	signal       string
	seconds, cpu float64
	memory       int64
}

// open makes the files that the process prints to. Where the system allows it they have no name, so that nothing is left to remove.
func (p *process) open(stdout, stderr string) (err error) {
	if p.out, err = openOutput(stdout); err != nil {
		return fmt.Errorf("cannot make a file for what a test prints: %w", err)
	}
	if p.err, err = openOutput(stderr); err != nil {
		return errors.Join(fmt.Errorf("cannot make a file for what a test prints: %w", err), closeOutput(p.out))
	}
	p.cuts = make(chan cause, 1)
	return nil
}

// outputFlags are for a file that did not exist. What is appended stays whole even if the test opens its standard output again.
const outputFlags = os.O_CREATE | os.O_EXCL | os.O_APPEND | os.O_RDWR

// printed is the size of both files.
func (p *process) printed() int64 {
	var n int64
	for _, f := range []*os.File{p.out, p.err} {
		if info, err := f.Stat(); err == nil { // closed: it ended meanwhile
			n += info.Size()
		}
	}
	return n
}

// cut asks for the process to be killed.
func (p *process) cut(why cause) {
	select {
	case p.cuts <- why:
	default:
	}
}

// run starts the process and waits for its end: by itself, at the limit, when it is cut, or when ctx ends. Then no process of its
// group is left, and the files are open still. The error says that it could not be started or waited for.
func (p *process) run(ctx context.Context, limit time.Duration) error {
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = p.dir, p.out, p.err
	p.cmd.Env = p.env
	setGroup(p.cmd)
	began := time.Now()
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		// The system kills the process when the thread that started it ends, so that none outlives a runner that is killed.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			ended <- waitGroup(p.cmd)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	var alarm <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		alarm = timer.C
	}
	var err error
	select {
	case err = <-ended:
	case <-alarm:
		p.killed = byLimit
	case p.killed = <-p.cuts:
	case <-ctx.Done():
		p.killed = byEnd
	}
	if p.killed != "" {
		killGroup(p.cmd.Process.Pid)
		select {
		case err = <-ended:
		case <-time.After(killWait):
			p.stuck, p.exit = true, -1
		}
	}
	p.seconds = time.Since(began).Seconds()
	if p.stuck {
		return nil
	}
	return p.measure(err)
}

// measure notes how the process ended and what it took.
func (p *process) measure(err error) error {
	state := p.cmd.ProcessState
	if state == nil {
		return err
	}
	p.exit = state.ExitCode()
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		p.signal = ws.Signal().String()
	}
	p.cpu = (state.UserTime() + state.SystemTime()).Seconds()
	// A new process begins with the peak of the one that made it, so only what is above the runner's own is the test's.
	if m := peakMemory(state.SysUsage()); m > ownPeak() {
		p.memory = m
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// runMark is the value of an environment variable by which a run finds every process that its tests started, also those that left their group.
type runMark string

// markName is set for every test: the run, a slash, and the number of the job in the run.
const markName = "TENON_MEMCHECK_TEST"

func newMark() (runMark, error) {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return "", err
	}
	return runMark(markName + "=" + hex.EncodeToString(id[:]) + "/"), nil
}

// of returns the variable for job i.
func (m runMark) of(i int) string { return string(m) + strconv.Itoa(i) }

// sweep kills processes that outlived their test.
type sweep struct {
	mu   sync.Mutex
	last time.Time
}

// due sweeps if the last time was more than a second ago: looking at all processes of a machine takes milliseconds.
func (s *sweep) due(m runMark, running func(job int) bool) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if time.Since(s.last) > time.Second {
		killMarked(m, running)
		s.last = time.Now()
	}
}

// now sweeps at once.
func (s *sweep) now(m runMark, running func(job int) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	killMarked(m, running)
	s.last = time.Now()
}
