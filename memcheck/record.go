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
	// Ignored: every error that the checker reported is a library's, see [Libraries].
	Ignored Outcome = "ignored"
	// Timeout: the process was still running at the time limit and was killed.
	Timeout Outcome = "timeout"
	// Fail: the checker reported an error, or the process failed, or its report cannot be understood.
	Fail Outcome = "fail"
)

// rank orders outcomes, worse ones higher.
var rank = map[Outcome]int{Success: 0, Ignored: 1, Timeout: 2, Fail: 3}

// Record is what is known of one test after it ran under one tool. It is one line of a journal.
type Record struct {
	// Type is "test".
	Type string `json:"type"`
	// Test is the test's name.
	Test string `json:"test"`
	// Tool is what it ran under.
	Tool Tool `json:"tool"`
	// Outcome is how it ended.
	Outcome Outcome `json:"outcome"`
	// Reason says in words why the outcome is not Success.
	Reason string `json:"reason,omitempty"`
	// Exit is the exit status, -1 if a signal ended the process, whose name is then in Signal.
	Exit   int    `json:"exit"`
	Signal string `json:"signal,omitempty"`
	// Skipped: the test said that it skipped itself. Verified: a whole report of the checker was read, of a process that called CUDA.
	Skipped  bool `json:"skipped,omitempty"`
	Verified bool `json:"verified"`
	// Start is when the process was started, Seconds how long it ran, CPU the processor time of it and its children, in seconds.
	Start   time.Time `json:"start"`
	Seconds float64   `json:"seconds"`
	CPU     float64   `json:"cpu_seconds,omitempty"`
	// Memory is the peak of the host's memory, in bytes, of the largest of the test's processes; 0: less than the runner's own.
	Memory int64 `json:"memory_bytes,omitempty"`
	// Worker ran it, on the devices GPU, as CUDA_VISIBLE_DEVICES names them.
	Worker int    `json:"worker"`
	GPU    string `json:"gpu,omitempty"`
	// Shard is the rank of the machine's piece of the run, set where reports are joined.
	Shard int `json:"rank,omitempty"`
	// Printed is how many bytes the process printed; Stdout and Stderr are their last ones, kept unless the outcome is Success and [Run]
	// was not told to keep them.
	Printed int64  `json:"printed_bytes,omitempty"`
	Stdout  string `json:"stdout,omitempty"`
	Stderr  string `json:"stderr,omitempty"`
	// Report is the checker's; nil if the process never started.
	Report *Report `json:"report,omitempty"`

	// All that the process printed, and the file with the report where it is not in stdout, live until the run's observers have seen the
	// record.
	stdout, stderr *output
	report         string
}

// judge decides the outcome of a process that ended by itself. reportErr is the parser's.
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
		if rep.Checker != CheckerTenon { // which is a part of the program and leaves its status alone
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

// byItself begins the reason of a failure that is not the checker's finding.
const byItself = "the checker found nothing, but the test failed by itself: "

// ending says how the process ended.
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

// Summary counts what happened in a run.
type Summary struct {
	// Planned is how many tests there were to run, times the tools. The outcomes' sum is less where a run was cut short.
	Planned int `json:"planned"`
	// Succeeded, Ignored, Timeouts and Failed count the outcomes.
	Succeeded int `json:"succeeded"`
	// Ignored: see Succeeded.
	Ignored int `json:"ignored"`
	// Timeouts: see Succeeded.
	Timeouts int `json:"timeouts"`
	// Failed: see Succeeded.
	Failed int `json:"failed"`
	// Skipped and Unverified are parts of Succeeded: tests that skipped themselves, and tests of whose processes the checker said nothing.
	Skipped    int `json:"skipped"`
	Unverified int `json:"unverified"`
	// Kernels is how many kernels the checker says it looked at; 0 if it does not say, as NVIDIA's do not.
	Kernels int `json:"kernels,omitempty"`
	// Findings is the number of distinct defects that are no library's.
	Findings int `json:"findings"`
	// Seconds is the time of the whole run; of a run that was resumed, of all its parts; of joined shards, the longest.
	Seconds float64 `json:"seconds"`
	// Interrupted: a signal ended the run. Stopped: a failure did, with fail-fast; then it is "failure" or "hang".
	Interrupted bool   `json:"interrupted,omitempty"`
	Stopped     string `json:"stopped,omitempty"`
	// Missing names what a joined report lacks: shards, or parts of a shard.
	Missing []string `json:"missing,omitempty"`

	keys map[string]bool
}

// Ran is how many tests ran to an outcome.
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

// The exit statuses. Where pytest has one for the same end, the number is the same.
const (
	// StatusPassed: every test succeeded or was ignored, or timed out where a timeout is no failure.
	StatusPassed Status = 0
	// StatusFailed: at least one test failed; with fail-fast also a timeout.
	StatusFailed Status = 1
	// StatusInterrupted: a signal ended the run, and what is reported is a part; or a joined report lacks shards.
	StatusInterrupted Status = 2
	// StatusHang: no test failed, and at least one timed out.
	StatusHang Status = 3
	// StatusNotRun: nothing ran, since the command line, the listing of tests or the search for a checker failed.
	StatusNotRun Status = 4
	// StatusNoTests: there is no test to run after the filters.
	StatusNoTests Status = 5
	// StatusUnverified: every test succeeded, but of some the checker said nothing, and a report was required.
	StatusUnverified Status = 6
)

// Status returns the run's exit status. A timeout counts unless noHang is set, and a success without a report if required is set.
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
