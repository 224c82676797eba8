package memcheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tenon.dev/internal/benchrun"
)

// say is a script that prints a text and exits with a status.
func say(text, status string) string { return "cat <<'EOF'\n" + text + "EOF\nexit " + status }

func TestOutcomes(t *testing.T) {
	bad := group("Invalid __global__ write of size 4", "Host Frame:prog [0x1]")
	lib := group("Invalid __global__ read of size 4", "Host Frame:/usr/lib/libcublas.so.12 (cublasSgemm + 0x10)")
	head, sum1, sum2 := "========= CUDA-MEMCHECK\n", "========= ERROR SUMMARY: 1 errors\n", "========= ERROR SUMMARY: 2 errors\n"
	strict := func(r *Run) { r.Strict = true }
	findings := func(r *Run) { r.FindingsOnly = true }
	for name, c := range map[string]struct {
		script   string
		with     func(*Run)
		want     Outcome
		verified bool
		reason   string
	}{
		"clean":              {say(cleanReport, "0"), nil, Success, true, ""},
		"no report":          {"exit 0", nil, Success, false, ""},
		"error":              {say(head+bad+sum1, "1"), nil, Fail, true, "1 error"},
		"library":            {say(head+lib+sum1, "1"), nil, Ignored, true, "every error is a library's"},
		"library strict":     {say(head+lib+sum1, "1"), strict, Fail, true, "1 error"},
		"library and own":    {say(head+lib+bad+sum2, "1"), nil, Fail, true, "2 errors"},
		"error and status 0": {say(head+bad+sum1, "0"), nil, Fail, true, "although the exit status is 0"},
		"fails by itself":    {say(cleanReport, "3"), nil, Fail, true, "the test failed by itself: exit status 3"},
		"the same, findings": {say(cleanReport, "3"), findings, Ignored, true, "the test failed by itself: exit status 3"},
		"library, cut short": {say(head+lib, "1"), nil, Fail, false, "No error summary found"},
		"library, count":     {say(head+lib+sum2, "1"), nil, Fail, false, "Number of errors does not match"},
		"nonsense":           {"echo ======== what; exit 1", nil, Fail, false, "without a report"},
		"crash":              {"kill -SEGV $$", nil, Fail, false, "ended by signal: segmentation fault"},
		"crash after report": {"cat <<'EOF'\n" + cleanReport + "EOF\nkill -ABRT $$", nil, Fail, true, "ended by signal: aborted"},
		"binary nonsense":    {"head -c 100000 /dev/urandom; exit 1", nil, Fail, false, "exit status 1"},
		"count is no number": {say(head+bad+"========= ERROR SUMMARY: many errors\n", "1"), nil, Fail, false,
			"Number of errors does not match"},
		"no command":          {"exec /nonexistent", nil, Fail, false, "exit status 127"},
		"status without text": {"exit 77", nil, Fail, false, "exit status 77, without a report"},
	} {
		t.Run(name, func(t *testing.T) {
			with := c.with
			if with == nil {
				with = func(*Run) {}
			}
			r := alone(t, c.script, with)
			if r.Outcome != c.want || r.Verified != c.verified || !strings.Contains(r.Reason, c.reason) {
				t.Errorf("outcome %s, verified %v, %q; want %s, %v, %q", r.Outcome, r.Verified, r.Reason, c.want, c.verified, c.reason)
			}
		})
	}
}

func TestCheckerCannotStart(t *testing.T) {
	f := newFake(t)
	f.test("only", "exit 0")
	r, records := f.run()
	r.Checker = &Checker{Name: CheckerLegacy, Path: filepath.Join(f.dir, "absent")}
	if s, err := r.Do(t.Context()); err != nil || s.Failed != 1 || !strings.Contains((*records)[0].Reason, "the test's process failed") {
		t.Errorf("%+v, %v, %+v", s, err, (*records)[0])
	}
}

// A test that hangs is killed with every process that it started, whether still in its group or not.
func TestTimeoutKillsAll(t *testing.T) {
	need(t, "setsid")
	r := alone(t, "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000') & echo before; sleep 1000",
		func(r *Run) { r.Limit = 300 * time.Millisecond })
	if r.Outcome != Timeout || r.Reason != "still running after 300ms" || r.Signal != "killed" || r.Stdout != "before\n" {
		t.Errorf("%+v", r)
	}
	noneLeft(t)
}

// Processes that a test started and did not end are killed after it, whether the test passed or not.
func TestOrphansEnd(t *testing.T) {
	need(t, "setsid")
	for _, body := range []string{"sleep 1000 &", "setsid sleep 1000 & sleep 0.1",
		"(setsid sh -c 'sleep 1000 & sleep 1000' &) ; sleep 0.1", "trap '' TERM HUP INT; (trap '' TERM HUP INT; sleep 1000) &"} {
		if r := alone(t, body+"\n"+say(cleanReport, "0")); r.Outcome != Success {
			t.Errorf("%q: %+v", body, r)
		}
		noneLeft(t)
	}
}

// When a process ends its group is killed, before anything looks for processes that left it.
func TestGroupEnds(t *testing.T) {
	f := newFake(t)
	p := &process{args: []string{"sh", "-c", "sleep 1000 & sleep 1000 & echo done"},
		env: append((&exec.Cmd{}).Environ(), markName+"=none/0")}
	if err := p.open(f.dir+"/out", f.dir+"/err", 0); err != nil {
		t.Fatal(err)
	}
	p.done = func(err error) {
		if err := errors.Join(err, p.finish()); err != nil {
			t.Error(err)
		}
	}
	if !p.run(0) || p.exit != 0 || p.killed != "" || p.printed() != int64(len("done\n")) {
		t.Errorf("%+v", p)
	}
	noneLeft(t)
}

func TestTooMuchOutput(t *testing.T) {
	var log bytes.Buffer
	r := alone(t, "cat /dev/zero", func(r *Run) {
		r.MaxPrinted = 1 << 20
		r.Observers = append(r.Observers, &Log{Out: &log})
	})
	if r.Outcome != Fail || r.Reason != "printed more than the limit of 1048576 bytes" || r.Printed <= 1<<20 || len(r.Stdout) > tailBytes {
		t.Errorf("%s, %s, %d bytes printed", r.Outcome, r.Reason, r.Printed)
	}
	if n := log.Len(); n < 1<<20 || n > 1<<20+100 {
		t.Errorf("%d bytes are in the log, want what is within the limit", n)
	}
}

// A hundred megabytes of output pass through the runner, but the runner's own memory does not grow with them.
func TestLargeOutput(t *testing.T) {
	f := newFake(t)
	line := strings.Repeat("x", 99) + "\n"
	chunk := f.file("chunk", strings.Repeat(line, 10_000))
	copies := strings.Repeat(chunk+" ", 100)
	bad := f.file("bad", "========= CUDA-MEMCHECK\n"+group("Invalid __global__ write of size 4", "Host Frame:prog [0x1]")+
		"========= ERROR SUMMARY: 1 errors\n")
	f.test("a", "cat "+copies+bad+"; cat "+bad+" >&2; exit 1")
	f.test("b", "head -c 100000000 /dev/zero; exit 1") // one endless line
	r, records := f.run()
	r.GPUs = []string{"", ""}
	log, err := os.Create(filepath.Join(f.dir, "result.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r.Observers = append(r.Observers, &Log{Out: log})
	before := ownPeak()
	if s, err := r.Do(t.Context()); err != nil || s.Failed != 2 || s.Findings != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, rec := range *records {
		if rec.Printed < 100_000_000 || len(rec.Stdout) > tailBytes {
			t.Errorf("%s printed %d bytes, of which %d are kept", rec.Test, rec.Printed, len(rec.Stdout))
		}
	}
	if info, err := log.Stat(); err != nil || info.Size() < 200_000_000 {
		t.Errorf("the log has %d bytes, %v; it must have all that failed tests print", info.Size(), err)
	}
	if grown := ownPeak() - before; grown > 60<<20 {
		t.Errorf("the runner's peak grew by %d MiB", grown>>20)
	}
	benchrun.Record(benchrun.Figure{Name: "memcheck.memory", Unit: "MiB",
		Sample: benchrun.Summarize([]float64{float64(ownPeak()) / (1 << 20)})})
}

func TestMemoryAndTime(t *testing.T) {
	need(t, "python3")
	take := ownPeak()>>20 + 300 // MiB; a test that uses less than this process did has no peak of its own
	r := alone(t, fmt.Sprintf("python3 -c 'x = bytearray(%d << 20)'\n", take)+say(cleanReport, "0"))
	if r.Memory < take<<20 || r.Memory > (take+300)<<20 {
		t.Errorf("peak memory %d MiB of a test that takes %d", r.Memory>>20, take)
	}
	if r.Seconds <= 0 || r.CPU <= 0 || r.Start.IsZero() {
		t.Errorf("times: %+v", r)
	}
}

// Workers share one index: each takes the next test until none is left, and each has its own devices.
func TestWorkers(t *testing.T) {
	f := newFake(t)
	for _, n := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		f.test(n, "echo gpu=$CUDA_VISIBLE_DEVICES optout=$PYTORCH_CUDA_MEMCHECK; exit 9")
	}
	r, records := f.run()
	r.GPUs = []string{"3", "1,2"}
	s, err := r.Do(t.Context())
	if err != nil || s.Failed != 7 || s.Planned != 7 {
		t.Fatalf("%+v, %v", s, err)
	}
	var names []string
	for _, rec := range *records {
		names = append(names, rec.Test)
		if want := "gpu=" + r.GPUs[rec.Worker] + " optout=1\n"; rec.Stdout != want || rec.GPU != r.GPUs[rec.Worker] {
			t.Errorf("%s of worker %d printed %q", rec.Test, rec.Worker, rec.Stdout)
		}
	}
	slices.Sort(names)
	if got := strings.Join(names, ""); got != "abcdefg" {
		t.Errorf("ran %s", got)
	}
}

func TestFailFast(t *testing.T) {
	f := newFake(t)
	f.test("a", say(cleanReport, "0"))
	f.test("b", "exit 1")
	f.test("c", say(cleanReport, "0"))
	r, records := f.run()
	r.FailFast = true
	if s, err := r.Do(t.Context()); err != nil || s.Stopped != "failure" || s.Ran() != 2 || len(*records) != 2 ||
		s.Status(false, false) != StatusFailed {
		t.Errorf("%+v, %v", s, err)
	}
	for _, noHang := range []bool{false, true} {
		f := newFake(t)
		f.test("a", "sleep 100")
		f.test("b", say(cleanReport, "0"))
		r, _ := f.run()
		r.FailFast, r.NoHang, r.Limit = true, noHang, 200*time.Millisecond
		s, err := r.Do(t.Context())
		if err != nil || (s.Stopped == "hang") == noHang || s.Timeouts != 1 || (s.Succeeded == 1) != noHang {
			t.Errorf("nohang %v: %+v, %v", noHang, s, err)
		}
	}
}

// The end of the context kills the running tests, and no outcome is recorded for them.
func TestInterrupt(t *testing.T) {
	need(t, "setsid")
	f := newFake(t)
	f.test("a", say(cleanReport, "0"))
	f.test("b", "setsid sleep 1000 & sleep 1000")
	f.test("c", "sleep 1000")
	f.test("d", "sleep 1000")
	r, records := f.run()
	r.GPUs = []string{"", ""}
	ctx, cancel := context.WithCancel(t.Context())
	var began atomic.Int32
	r.Observers[0].(*keeper).began = func(Job) {
		if began.Add(1) == 3 {
			cancel()
		}
	}
	s, err := r.Do(ctx)
	if err != nil || !s.Interrupted || s.Ran() != 1 || len(*records) != 1 || s.Status(false, false) != StatusInterrupted {
		t.Errorf("%+v, %v", s, err)
	}
}

// failing is an observer that cannot write.
type failing struct{ Journal }

func (failing) End(*Record) error { return errors.New("the disk is full") }

func TestObserverFails(t *testing.T) {
	f := newFake(t)
	f.test("a", "exit 0")
	f.test("b", "exit 0")
	r, _ := f.run()
	r.Observers = append(r.Observers, &failing{})
	if _, err := r.Do(t.Context()); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("error %v", err)
	}
}

// BenchmarkInstant alternates between runs of 1,000 tests that end at once and the same processes with nothing around them, at the same
// parallelism. It reports the time per test or process of each in microseconds, and the ratio.
func BenchmarkInstant(b *testing.B) {
	const workers, each = 2, 1000
	dir := b.TempDir()
	checker := &Checker{Name: CheckerLegacy, Path: filepath.Join(dir, "cuda-memcheck")}
	text := "#!/bin/sh\necho '========= CUDA-MEMCHECK'; echo '========= ERROR SUMMARY: 0 errors'\nshift 2; exec \"$@\"\n"
	if err := os.WriteFile(checker.Path, []byte(text), 0o755); err != nil {
		b.Fatal(err)
	}
	target, err := OpenTarget("", TargetOptions{List: "echo", Run: "true {test}"})
	if err != nil {
		b.Fatal(err)
	}
	var bare, run time.Duration
	tests := 0
	for b.Loop() {
		journal, err := CreateJournal(filepath.Join(dir, JournalName), Header{})
		if err != nil {
			b.Fatal(err)
		}
		r := &Run{Target: target, Checker: checker, GPUs: make([]string, workers), Limit: time.Minute, MaxPrinted: 1 << 30,
			Observers: []Observer{journal}}
		for range each {
			r.Jobs = append(r.Jobs, Job{Test{Name: "a", id: "a"}, Memcheck})
		}
		began := time.Now()
		s, err := r.Do(b.Context())
		run += time.Since(began)
		if err != nil || s.Succeeded != len(r.Jobs) {
			b.Fatal(s, err)
		}
		if err := journal.Close(s); err != nil {
			b.Fatal(err)
		}
		began = time.Now()
		bareProcesses(b, len(r.Jobs), workers, checker.Path, "--error-exitcode", "1", "true", "a")
		bare += time.Since(began)
		tests += len(r.Jobs)
	}
	b.ReportMetric(float64(bare.Microseconds())/float64(tests), "bare-µs/test")
	b.ReportMetric(float64(run.Microseconds())/float64(tests), "run-µs/test")
	b.ReportMetric(run.Seconds()/bare.Seconds(), "times-bare")
}
