package memcheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Job is one test under one tool.
type Job struct {
	// Test is what runs.
	Test Test
	// Tool is the tool that it runs under.
	Tool Tool
}

// Observer is told what happens in a run. The calls come one at a time, from the run's goroutines.
type Observer interface {
	// Begin is called when a worker starts a job, on the devices gpu.
	Begin(worker int, gpu string, j Job, at time.Time)
	// End is called when a job ends. The record must not be changed; its files are removed afterwards.
	End(r *Record) error
}

// Run is a run of tests, each in its own process under a checker.
type Run struct {
	// Target provides the tests.
	Target Target
	// Jobs are the jobs to run, in this order.
	Jobs []Job
	// Checker is put before every test's command.
	Checker *Checker
	// Libraries are the libraries whose errors are ignored.
	Libraries Libraries
	// GPUs has the value of CUDA_VISIBLE_DEVICES for each worker, "" to leave it unchanged; its length is the number of workers.
	GPUs []string
	// Limit is the time that a test may take; 0: none. MaxPrinted is the number of bytes that it may print; 0: no limit.
	Limit      time.Duration
	MaxPrinted int64
	// Strict also counts errors of libraries. FindingsOnly ignores tests that fail although no error was found. FailFast ends the run at
	// the first failure or, unless NoHang is set, timeout.
	Strict, FindingsOnly, FailFast, NoHang bool
	// KeepOutput keeps the end of a test's output in its record even if it succeeds.
	KeepOutput bool
	// Observers are told about every test.
	Observers []Observer
	// Before has the counts of an earlier part of the same run, which this one continues; nil: there is none.
	Before *Summary

	began   time.Time
	scratch string
	mark    runMark
	env     []string // the runner's own
	next    atomic.Int64
	workers sync.WaitGroup
	sweep   sweep

	mu      sync.Mutex
	running map[int]*process // by job
	summary Summary
	err     error
	stop    context.CancelFunc
}

// Do runs the jobs and returns the counts. When ctx ends, running tests are killed, with every process that they started, and the summary
// is marked as interrupted. An error is one of the runner itself; a failing test is not an error.
func (r *Run) Do(ctx context.Context) (s *Summary, err error) {
	if r == nil || ctx == nil || r.Target == nil || r.Checker == nil {
		return nil, errors.New("a run needs a context, a Target and a Checker, and one of them is nil")
	}
	r.began = time.Now()
	if r.scratch, err = os.MkdirTemp("", "tenon-memcheck-"); err != nil {
		return nil, fmt.Errorf("cannot make a folder for the output of tests: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.scratch)) }()
	if r.mark, err = newMark(); err != nil {
		return nil, err
	}
	r.env = (&exec.Cmd{}).Environ()
	r.sweep.last = r.began
	r.running = map[int]*process{}
	r.summary = Summary{}
	if r.Before != nil {
		r.summary = *r.Before
	}
	r.summary.Planned = r.summary.Ran() + len(r.Jobs)
	before := r.summary.Seconds
	inner, stop := context.WithCancel(ctx)
	defer stop()
	r.stop = stop
	defer context.AfterFunc(inner, r.kill)()
	r.workers.Add(len(r.GPUs))
	for w := range r.GPUs {
		go r.work(inner, w)
	}
	r.workers.Wait()
	r.sweep.now(r.mark, func(int) bool { return false })
	r.summary.Seconds = before + time.Since(r.began).Seconds()
	r.summary.Interrupted = ctx.Err() != nil && r.summary.Ran() < r.summary.Planned
	return &r.summary, r.err
}

// work runs the next job until none is left. All workers share one index.
func (r *Run) work(ctx context.Context, worker int) {
	// Every process is started and waited for by its worker's thread: handing it to another thread costs more than all processing of its
	// output.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for ctx.Err() == nil {
		i := int(r.next.Add(1)) - 1
		if i >= len(r.Jobs) {
			break
		}
		if !r.one(ctx, worker, i) {
			return // another thread has taken over
		}
	}
	r.workers.Done()
}

// kill ends the running processes.
func (r *Run) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.running {
		p.kill(byEnd)
	}
}

func (r *Run) isRunning(i int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[i] != nil
}

// begin records a job that starts.
func (r *Run) begin(ctx context.Context, worker, i int, p *process, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[i] = p
	if ctx.Err() != nil { // kill may have missed it
		p.kill(byEnd)
	}
	for _, o := range r.Observers {
		o.Begin(worker, r.GPUs[worker], r.Jobs[i], at)
	}
}

// end passes a job's record to the observers. A nil record is for a test that the end of the run interrupted.
func (r *Run) end(i int, rec *Record, err error) {
	r.mu.Lock()
	delete(r.running, i)
	if rec != nil && err == nil && r.summary.Stopped == "" {
		r.summary.add(rec)
		for _, o := range r.Observers {
			err = errors.Join(err, o.End(rec))
		}
		err = errors.Join(err, rec.removeFiles())
		switch {
		case !r.FailFast:
		case rec.Outcome == Fail:
			r.summary.Stopped = "failure"
			r.stop()
		case rec.Outcome == Timeout && !r.NoHang:
			r.summary.Stopped = "hang"
			r.stop()
		}
	}
	if err != nil {
		r.err = errors.Join(r.err, err)
		r.stop()
	}
	r.mu.Unlock()
	if rec != nil && rec.Outcome == Timeout {
		r.sweep.now(r.mark, r.isRunning)
	}
	r.sweep.due(r.mark, r.isRunning)
}

// one runs one job. It reports false if its process did not end when it was killed; another thread has then ended the job and continues
// with the next.
func (r *Run) one(ctx context.Context, worker, i int) bool {
	job, base := r.Jobs[i], filepath.Join(r.scratch, strconv.Itoa(i))
	c := r.Target.Command(job.Test)
	inv := r.Checker.Command(job.Tool, c.Args, base+".report")
	rec := &Record{Type: "test", Test: job.Test.Name, Tool: job.Tool, Worker: worker, GPU: r.GPUs[worker], report: inv.Report}
	p := &process{args: inv.Args, dir: c.Dir, env: append(slices.Clip(r.env), optOut, r.mark.of(i))}
	if c.Dir != "" {
		dir, err := filepath.Abs(c.Dir)
		if err != nil {
			r.end(i, nil, fmt.Errorf("cannot tell the working directory of a test: %w", err))
			return true
		}
		p.env = append(p.env, "PWD="+dir)
	}
	if rec.GPU != "" {
		p.env = append(p.env, "CUDA_VISIBLE_DEVICES="+rec.GPU)
	}
	p.env = append(append(p.env, c.Env...), inv.Env...)
	if err := p.open(base+".out", base+".err", r.MaxPrinted); err != nil {
		r.end(i, nil, err)
		return true
	}
	rec.stdout, rec.stderr = p.out, p.err
	p.done = func(failed error) {
		if err := p.finish(); err != nil || p.killed == byEnd {
			r.end(i, nil, errors.Join(err, rec.removeFiles()))
		} else {
			r.end(i, rec, r.conclude(rec, job.Test, p, failed))
		}
		if p.stuck {
			go r.work(ctx, worker)
		}
	}
	rec.Start = r.began.Add(time.Since(r.began)) // independent of changes to the wall clock
	r.begin(ctx, worker, i, p, rec.Start)
	return p.run(r.Limit)
}

// conclude reads what a process left and decides the outcome. failed is the reason why the process could not be started or waited for; the
// returned error is the runner's.
func (r *Run) conclude(rec *Record, t Test, p *process, failed error) (err error) {
	rec.Seconds, rec.CPU, rec.Memory, rec.Exit, rec.Signal = p.seconds, p.cpu, p.memory, p.exit, p.signal
	if failed != nil {
		rec.Outcome, rec.Reason, rec.Exit = Fail, "the test's process failed: "+failed.Error(), -1
		return nil
	}
	var reportErr error
	if rec.Report, reportErr, err = rec.readReport(ParseOptions{Tool: rec.Tool, Libraries: r.Libraries}); err != nil {
		return err
	}
	if err = rec.readTails(); err != nil {
		return err
	}
	rec.Printed = p.printed()
	switch {
	case p.killed == byLimit:
		rec.Outcome, rec.Reason = Timeout, fmt.Sprintf("still running after %v", r.Limit)
		if p.stuck {
			rec.Reason += "; it did not end when it was killed, and was left behind"
		}
	case r.MaxPrinted > 0 && rec.Printed > r.MaxPrinted:
		rec.Outcome, rec.Reason = Fail, fmt.Sprintf("printed more than the limit of %d bytes", r.MaxPrinted)
	default:
		rec.judge(reportErr, r.Strict, r.FindingsOnly)
	}
	if rec.Outcome == Success {
		rec.Skipped = r.Target.Skipped(t, rec.Stdout, rec.Stderr)
		if !r.KeepOutput {
			rec.Stdout, rec.Stderr = "", ""
		}
	}
	return nil
}
