package memcheck

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// cause is why a process was killed; "" if it was not.
type cause string

const (
	byLimit cause = "limit" // of time
	bySize  cause = "size"  // of output
	byEnd   cause = "end"   // end of the run
)

// killWait is how long a killed process may take to disappear. One that waits for a broken device may never do so.
var killWait = 10 * time.Second

// endGroup is killGroup, except in tests of processes that cannot be killed.
var endGroup = killGroup

// process is one started test: its own process group, which one thread waits for. Its output goes through pipes.
type process struct {
	args []string
	dir  string
	env  []string // complete
	// done is called once, when the process has ended, or when it was killed and did not end. The error says why it could not be started or
	// waited for.
	done func(err error)

	out, err *output
	cmd      *exec.Cmd
	began    time.Time

	mu    sync.Mutex
	timer *time.Timer
	// started and over give its state: between them its process number is its own.
	started, over bool
	killed        cause
	// stuck is set if it was killed and did not disappear; the fields below are then unknown.
	stuck bool

	// Set when run returns.
	exit         int
	signal       string
	seconds, cpu float64
	memory       int64
}

// open makes the pipes for the process's output, for at most maximum bytes, 0: no limit. The names are for files, used if it prints a lot.
func (p *process) open(stdout, stderr string, maximum int64) (err error) {
	r := newRoom(maximum, func() { p.kill(bySize) })
	if p.out, err = openOutput(stdout, r); err != nil {
		return err
	}
	if p.err, err = openOutput(stderr, r); err != nil {
		p.out.started()
		return errors.Join(err, p.out.finish())
	}
	return nil
}

// printed is the size of both streams, including output that was not kept.
func (p *process) printed() int64 { return p.out.printed + p.err.printed }

// kill ends the process and its group, or keeps it from starting. A process that does not disappear is left behind.
func (p *process) kill(why cause) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.killed != "" {
		return
	}
	p.killed = why
	if p.started {
		endGroup(p.cmd.Process.Pid)
		p.timer.Stop()
		p.timer = time.AfterFunc(killWait, p.abandon)
	}
}

// abandon leaves a killed process behind. The thread that waits for it keeps waiting.
func (p *process) abandon() {
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		return
	}
	p.over, p.stuck, p.exit = true, true, -1
	p.mu.Unlock()
	p.seconds = time.Since(p.began).Seconds()
	p.done(nil)
}

// start starts the process, unless it was killed already.
func (p *process) start(limit time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.err.started()
	defer p.out.started()
	p.began = time.Now()
	if p.killed != "" {
		return nil
	}
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = p.dir, p.out.write, p.err.write
	p.cmd.Env = p.env
	setGroup(p.cmd)
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.started = true
	after := readAfter
	if limit > 0 {
		after = min(after, limit)
	}
	p.timer = time.AfterFunc(after, func() { p.goesOn(limit) })
	return nil
}

// goesOn starts reading the process's output, and limits its time.
func (p *process) goesOn(limit time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.killed != "" {
		return
	}
	p.out.start()
	p.err.start()
	if limit > 0 {
		p.timer = time.AfterFunc(limit-time.Since(p.began), func() { p.kill(byLimit) })
	}
}

// ended records that the process ended. It reports false if nobody is waiting for that any more.
func (p *process) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer.Stop()
	p.over = true
	return !p.stuck
}

// run starts the process on this thread, waits for its end, and calls done; no process of its group is left then. It reports false if
// something else called done because the process did not end when it was killed.
//
// The system kills the process when the thread that started it ends, so that no process outlives a killed runner.
func (p *process) run(limit time.Duration) bool {
	if err := p.start(limit); err != nil || !p.started {
		p.done(err)
		return true
	}
	var mine bool
	err := waitGroup(p.cmd, func() { mine = p.ended() })
	if mine {
		p.seconds = time.Since(p.began).Seconds()
		p.done(p.measure(err))
	}
	return mine
}

// finish reads the rest of the output. The error is about output that could not be kept.
func (p *process) finish() error { return errors.Join(p.out.finish(), p.err.finish()) }

// measure records how the process ended and what it used.
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
	// A new process begins with the peak of its parent, so a peak is the test's only if it exceeds the runner's own.
	if m := peakMemory(state.SysUsage()); m > ownPeak() {
		p.memory = m
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// runMark is the value of an environment variable by which a run finds every process that its tests started, including those that left
// their group.
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

// due sweeps if the last sweep was more than a second ago: looking at all processes of a machine takes milliseconds.
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
