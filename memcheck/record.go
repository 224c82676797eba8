package memcheck

import (
	"fmt"
	"time"
)

// Outcome is how a test ended.
type Outcome string

// The outcomes, from the best to the worst.
const (
	// Success: the process ended with status 0 and the checker reported no error.
	Success Outcome = "success"
	// Ignored: all errors that the checker reported are a library's, see [Libraries].
	Ignored Outcome = "ignored"
	// Timeout: the process was still running at the time limit and was killed.
	Timeout Outcome = "timeout"
	// Fail: the checker reported an error, the process failed, or its report cannot be understood.
	Fail Outcome = "fail"
)

// rank orders outcomes; worse is higher.
var rank = map[Outcome]int{Success: 0, Ignored: 1, Timeout: 2, Fail: 3}

// Record is the result of one test run under one tool. It is one line of a journal.
type Record struct {
	// Type is "test".
	Type string `json:"type"`
	// Test is the test's name.
	Test string `json:"test"`
	// Tool is the tool that it ran under.
	Tool Tool `json:"tool"`
	// Outcome is how it ended.
	Outcome Outcome `json:"outcome"`
	// Reason says in words why the outcome is not Success.
	Reason string `json:"reason,omitempty"`
	// Exit is the exit status, or -1 if a signal ended the process; Signal is then its name.
	Exit   int    `json:"exit"`
	Signal string `json:"signal,omitempty"`
	// Skipped is set if the test skipped itself, Verified if a complete report of the checker was read, about a process that called CUDA.
	Skipped  bool `json:"skipped,omitempty"`
	Verified bool `json:"verified"`
	// Start is when the process was started, Seconds how long it ran, CPU the processor time of it and its children in seconds.
	Start   time.Time `json:"start"`
	Seconds float64   `json:"seconds"`
	CPU     float64   `json:"cpu_seconds,omitempty"`
	// Memory is the peak host memory, in bytes, of the largest process of the test; 0: less than the runner's own.
	Memory int64 `json:"memory_bytes,omitempty"`
	// Worker is the worker that ran it, and GPU the devices, as CUDA_VISIBLE_DEVICES names them.
	Worker int    `json:"worker"`
	GPU    string `json:"gpu,omitempty"`
	// Shard is the rank of the machine's part of the run; it is set when reports are joined.
	Shard int `json:"rank,omitempty"`
	// Printed is the number of bytes that the process printed. Stdout and Stderr are the ends of its output; they are kept unless the
	// outcome is Success and [Run] was not told to keep them.
	Printed int64  `json:"printed_bytes,omitempty"`
	Stdout  string `json:"stdout,omitempty"`
	Stderr  string `json:"stderr,omitempty"`
	// Report is the checker's report; nil if the process never started.
	Report *Report `json:"report,omitempty"`

	// The complete output of the process, and the file with the report if it is not in stdout. They live until the run's observers have
	// seen the record.
	stdout, stderr *output
	report         string
}

// judge decides the outcome of a process that ended by itself. reportErr is the parser's error.
func (r *Record) judge(reportErr error, strict, findingsOnly bool) {
	rep := r.Report
	r.Verified = reportErr == nil && rep.Checker != "" && !rep.NoCalls
	libraries := reportErr == nil && rep.Errors > 0 && rep.OnlyLibraries()
	failed := r.Exit != 0
	switch {
	case libraries && !strict:
		r.Outcome, r.Reason = Ignored, "every error is a library's"
	case !failed && (rep.Failing() || libraries || rep.Errors > 0):
		r.Outcome, r.Reason = Fail, count(max(rep.Errors, rep.Groups), "error")
		if rep.Checker != CheckerTenon { // Tenon's checker is part of the program and does not change its status
			r.Reason += ", although the exit status is 0"
		}
	case !failed:
		r.Outcome = Success
	case reportErr != nil:
		r.Outcome, r.Reason = Fail, r.ending()+", and the checker's report cannot be understood: "+reportErr.Error()
		if rep.Checker == "" {
			r.Reason = r.ending() + ", without a report of the checker"
		}
	case rep.Errors == 0 && findingsOnly:
		r.Outcome, r.Reason = Ignored, "the test failed by itself: "+r.ending()
	case rep.Errors == 0:
		r.Outcome, r.Reason = Fail, byItself+r.ending()
	default:
		r.Outcome, r.Reason = Fail, count(rep.Errors, "error")
	}
}

// byItself begins the reason of a failure that is not a finding of the checker.
const byItself = "the checker found nothing, but the test failed by itself: "

// ending returns how the process ended.
func (r *Record) ending() string {
	if r.Signal != "" {
		return "ended by signal: " + r.Signal
	}
	return fmt.Sprintf("exit status %d", r.Exit)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Summary holds the counts of a run. A test that ran under several tools counts once for each.
type Summary struct {
	// Planned is the number of tests to run, times the tools. The sum of the outcomes is less if a run was interrupted.
	Planned int `json:"planned"`
	// Succeeded, Ignored, Timeouts and Failed count the outcomes.
	Succeeded int `json:"succeeded"`
	// Ignored: see Succeeded.
	Ignored int `json:"ignored"`
	// Timeouts: see Succeeded.
	Timeouts int `json:"timeouts"`
	// Failed: see Succeeded.
	Failed int `json:"failed"`
	// Skipped and Unverified are included in Succeeded: tests that skipped themselves, and tests about whose processes the checker reported
	// nothing.
	Skipped    int `json:"skipped"`
	Unverified int `json:"unverified"`
	// Kernels is the number of kernels that the checker says it checked; 0 if it does not say, as with NVIDIA's.
	Kernels int `json:"kernels,omitempty"`
	// Findings is the number of distinct defects that are not a library's.
	Findings int `json:"findings"`
	// Seconds is the time of the whole run; for a resumed run, of all its parts; for joined shards, of the longest.
	Seconds float64 `json:"seconds"`
	// Interrupted is set if a signal ended the run. Stopped is set if fail-fast ended it: to "failure" or "hang".
	Interrupted bool   `json:"interrupted,omitempty"`
	Stopped     string `json:"stopped,omitempty"`
	// Missing names what a joined report lacks: shards, or parts of a shard.
	Missing []string `json:"missing,omitempty"`

	keys map[string]bool
}

// Ran returns how many tests ran to an outcome.
func (s *Summary) Ran() int { return s.Succeeded + s.Ignored + s.Timeouts + s.Failed }

// add counts one record.
func (s *Summary) add(r *Record) {
	switch r.Outcome {
	case Success:
		s.Succeeded++
		if r.Skipped {
			s.Skipped++
		} else if !r.Verified {
			s.Unverified++
		}
	case Ignored:
		s.Ignored++
	case Timeout:
		s.Timeouts++
	case Fail:
		s.Failed++
	}
	if r.Report == nil {
		return
	}
	s.Kernels += r.Report.Kernels
	if s.keys == nil {
		s.keys = map[string]bool{}
	}
	for _, f := range r.Report.Findings {
		if key := f.Key(); f.Library == "" && f.Severity == SeverityError && !s.keys[key] {
			s.keys[key] = true
			s.Findings++
		}
	}
}

// Status is an exit status of tenon memcheck.
type Status int

// The exit statuses. If pytest has a status with the same meaning, the number is the same.
const (
	// StatusPassed: every test succeeded, was ignored, or timed out in a run where timeouts are not failures.
	StatusPassed Status = 0
	// StatusFailed: at least one test failed; with fail-fast also a timeout.
	StatusFailed Status = 1
	// StatusInterrupted: a signal ended the run and the report is partial, or a joined report lacks shards.
	StatusInterrupted Status = 2
	// StatusHang: no test failed, and at least one timed out.
	StatusHang Status = 3
	// StatusNotRun: nothing ran, because of an error in the command line, the listing of tests or the search for a checker.
	StatusNotRun Status = 4
	// StatusNoTests: no test is left after the filters.
	StatusNoTests Status = 5
	// StatusUnverified: every test succeeded, but the checker reported nothing about some, and a report was required.
	StatusUnverified Status = 6
)

// Status returns the run's exit status. Timeouts count unless noHang is set, and successes without a report count if required is set.
func (s *Summary) Status(noHang, required bool) Status {
	switch {
	case s.Stopped != "":
		return StatusFailed
	case s.Interrupted || len(s.Missing) > 0:
		return StatusInterrupted
	case s.Failed > 0 || s.Findings > 0:
		return StatusFailed
	case s.Timeouts > 0 && !noHang:
		return StatusHang
	case s.Planned == 0:
		return StatusNoTests
	case required && s.Unverified > 0:
		return StatusUnverified
	}
	return StatusPassed
}
