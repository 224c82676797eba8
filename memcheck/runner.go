package memcheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	// Tool is what it runs under.
	Tool Tool
}

// Observer is told what happens in a run. The calls come one at a time, from the run's goroutines.
type Observer interface {
	// Begin says that a worker starts a job, on the devices gpu.
	Begin(worker int, gpu string, j Job, at time.Time)
	// End says that it ended. The record must not be changed, and its files are gone afterwards.
	End(r *Record) error
}

// Run is a run of tests, each in a process of its own under a checker.
type Run struct {
	// Target has the tests.
	Target Target
	// Jobs are what runs, in this order.
	Jobs []Job
	// Checker goes before every test's command.
	Checker *Checker
	// Libraries are those whose errors are ignored.
	Libraries Libraries
	// GPUs has the value of CUDA_VISIBLE_DEVICES for each worker, "" to leave it as it is; its length is the number of workers.
	GPUs []string
	// Limit is the time that a test may take; 0: none. MaxPrinted is how many bytes it may print; 0: no limit.
	Limit      time.Duration
	MaxPrinted int64
	// Strict counts errors of libraries. FindingsOnly ignores tests that fail by themselves, with no error found. FailFast ends the run at
	// the first failure or, without NoHang, timeout.
	Strict, FindingsOnly, FailFast, NoHang bool
	// KeepOutput keeps the end of what a test prints in its record also if it succeeds.
	KeepOutput bool
	// Observers are told of every test.
	Observers []Observer
	// Before is the count of an earlier part of the same run, which is gone on with; nil: there is none.
	Before *Summary

	began   time.Time
	scratch string
	mark    runMark
	env     []string // the runner's own
	next    atomic.Int64
	sweep   sweep

	mu      sync.Mutex
	running map[int]*process // by job
	summary Summary
	err     error
	stop    context.CancelFunc
}

// Do runs the jobs and returns the counts. When ctx ends, running tests are killed, with every process that they started, and the
// summary says that it was interrupted. An error is one of the runner itself: a test's failure is none.
func (r *Run) Do(ctx context.Context) (s *Summary, err error) {
	if r == nil || ctx == nil || r.Target == nil || r.Checker == nil {
		return nil, errors.New("a run needs a context, a Target and a Checker, and one of them is nil")
	}
	r.began = time.Now()
	if r.scratch, err = os.MkdirTemp("", "tenon-memcheck-"); err != nil {
		return nil, fmt.Errorf("cannot make a folder for what tests print: %w", err)
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
	var workers sync.WaitGroup
	for w := range r.GPUs {
		workers.Go(func() { r.work(inner, w) })
	}
	watched := make(chan struct{})
	go func() { defer close(watched); r.watch(inner) }()
	workers.Wait()
	stop()
	<-watched
	r.sweep.now(r.mark, func(int) bool { return false })
	r.summary.Seconds = before + time.Since(r.began).Seconds()
	r.summary.Interrupted = ctx.Err() != nil && r.summary.Ran() < r.summary.Planned
	return &r.summary, r.err
}

// work runs the next job until none is left. All workers share one index.
func (r *Run) work(ctx context.Context, worker int) {
	for ctx.Err() == nil {
		i := int(r.next.Add(1)) - 1
		if i >= len(r.Jobs) {
			return
		}
		rec, err := r.one(ctx, worker, i)
		r.end(i, rec, err)
		if rec != nil && rec.Outcome == Timeout {
			r.sweep.now(r.mark, r.isRunning)
		}
		r.sweep.due(r.mark, r.isRunning)
	}
}

func (r *Run) isRunning(i int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[i] != nil
}

// begin notes a job that starts.
func (r *Run) begin(worker, i int, p *process, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[i] = p
	for _, o := range r.Observers {
		o.Begin(worker, r.GPUs[worker], r.Jobs[i], at)
	}
}

// end tells the observers of a job's record. A nil record is of a test that the end of the run cut short.
func (r *Run) end(i int, rec *Record, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
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
}

// one runs one job. The record is nil if the run ended before the test did.
func (r *Run) one(ctx context.Context, worker, i int) (*Record, error) {
	job, base := r.Jobs[i], filepath.Join(r.scratch, strconv.Itoa(i))
	c := r.Target.Command(job.Test)
	inv := r.Checker.Command(job.Tool, c.Args, base+".report")
	rec := &Record{Type: "test", Test: job.Test.Name, Tool: job.Tool, Worker: worker, GPU: r.GPUs[worker], report: inv.Report}
	p := &process{args: inv.Args, dir: c.Dir, env: append(slices.Clip(r.env), optOut, r.mark.of(i))}
	if c.Dir != "" {
		dir, err := filepath.Abs(c.Dir)
		if err != nil {
			return nil, fmt.Errorf("cannot tell the working directory of a test: %w", err)
		}
		p.env = append(p.env, "PWD="+dir)
	}
	if rec.GPU != "" {
		p.env = append(p.env, "CUDA_VISIBLE_DEVICES="+rec.GPU)
	}
	p.env = append(append(p.env, c.Env...), inv.Env...)
	if err := p.open(base+".out", base+".err"); err != nil {
		return nil, err
	}
	rec.stdout, rec.stderr = p.out, p.err
	rec.Start = r.began.Add(time.Since(r.began)) // whatever the wall clock does meanwhile
	r.begin(worker, i, p, rec.Start)
	err := p.run(ctx, r.Limit)
	if p.killed == byEnd {
		return nil, rec.removeFiles()
	}
	rec.Seconds, rec.CPU, rec.Memory, rec.Exit, rec.Signal = p.seconds, p.cpu, p.memory, p.exit, p.signal
	if err != nil {
		rec.Outcome, rec.Reason, rec.Exit = Fail, "the test's process failed: "+err.Error(), -1
		return rec, nil
	}
	return rec, r.conclude(rec, job.Test, p)
}

// conclude reads what a process left and decides the outcome.
func (r *Run) conclude(rec *Record, t Test, p *process) (err error) {
	var reportErr error
	if rec.Report, reportErr, err = rec.readReport(ParseOptions{Tool: rec.Tool, Libraries: r.Libraries}); err != nil {
		return err
	}
	printed := p.printed()
	if p.killed == bySize { // what it printed until that was noticed is no one's to keep
		if err = rec.cutFiles(r.MaxPrinted); err != nil {
			return err
		}
	}
	if err = rec.readTails(); err != nil {
		return err
	}
	rec.Printed = printed
	switch p.killed {
	case byLimit:
		rec.Outcome, rec.Reason = Timeout, fmt.Sprintf("still running after %v", r.Limit)
		if p.stuck {
			rec.Reason += "; it did not end when it was killed, and was left behind"
		}
	case bySize:
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

// watch looks at running tests now and then: one that prints too much is killed.
func (r *Run) watch(ctx context.Context) {
	if r.MaxPrinted == 0 {
		return
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r.mu.Lock()
		for _, p := range r.running {
			if p.printed() > r.MaxPrinted {
				p.cut(bySize)
			}
		}
		r.mu.Unlock()
	}
}
