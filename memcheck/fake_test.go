package memcheck

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"tenon.dev/internal/benchrun"
	"tenon.dev/internal/rt"
)

// TestMain looks for processes that the tests of this package left running.
func TestMain(m *testing.M) {
	status := benchrun.Main(m, "memcheck", rt.Describe)
	if left := marked(); len(left) > 0 {
		fmt.Printf("FAIL: processes of tests are left: %v\n", left)
		status = 1
	}
	os.Exit(status)
}

// marked lists the processes that carry the mark of any run and descend from a run in this process.
func marked() []string {
	var left []string
	dirs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, d := range dirs {
		env, err := os.ReadFile(d)
		if err != nil || !bytes.Contains(env, []byte("\x00"+markName+"=")) ||
			!bytes.Contains(env, []byte("MEMCHECK_SUITE="+strconv.Itoa(os.Getpid())+"\x00")) {
			continue
		}
		left = append(left, filepath.Dir(d))
	}
	return left
}

// noneLeft fails the test if one of its processes is still running. A killed process may take a moment to disappear.
func noneLeft(t *testing.T) {
	t.Helper()
	var left []string
	for range 200 {
		if left = marked(); len(left) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("processes are left: %v", left)
}

// cleanReport is the output of a checker that found nothing.
const cleanReport = "========= CUDA-MEMCHECK\n========= ERROR SUMMARY: 0 errors\n"

// group is one error in the format of cuda-memcheck.
func group(message string, stack ...string) string {
	return "========= " + message + "\n=========     Saved host backtrace up to driver entry point at kernel launch time\n=========     " +
		strings.Join(stack, "\n=========     ") + "\n=========\n"
}

// fake is a target of shell scripts and a checker that runs them, in the test's own folder.
type fake struct {
	t       *testing.T
	dir     string
	checker *Checker
	scripts []string
}

func newFake(t *testing.T) *fake {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the fake checkers are shell scripts")
	}
	t.Setenv("MEMCHECK_SUITE", strconv.Itoa(os.Getpid()))
	f := &fake{t: t, dir: t.TempDir()}
	f.checker = &Checker{Name: CheckerLegacy, Path: f.script("cuda-memcheck", "shift 2; exec \"$@\"")}
	t.Cleanup(func() { noneLeft(t) })
	return f
}

// script writes a shell script and returns its path.
func (f *fake) script(name, body string) string {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// test adds a test, whose script also prints the report.
func (f *fake) test(name, body string) {
	f.script(name+".sh", body)
	f.scripts = append(f.scripts, name)
}

// file writes a file for scripts to print, and returns its path.
func (f *fake) file(name, text string) string {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// run returns a run of all tests with one worker, and the records that it will produce.
func (f *fake) run() (*Run, *[]*Record) {
	f.t.Helper()
	target, err := OpenTarget("", TargetOptions{List: "echo", Run: "sh " + f.dir + "/{test}.sh"})
	if err != nil {
		f.t.Fatal(err)
	}
	r := &Run{Target: target, Checker: f.checker, Libraries: DefaultLibraries(), GPUs: []string{""}, Limit: 30 * time.Second}
	for _, name := range f.scripts {
		r.Jobs = append(r.Jobs, Job{Test{Name: name, id: name}, Memcheck})
	}
	k := &keeper{}
	r.Observers = append(r.Observers, k)
	return r, &k.records
}

// keeper is an observer that keeps the records.
type keeper struct {
	records []*Record
	began   func(Job)
}

func (k *keeper) Begin(_ int, _ string, j Job, _ time.Time) {
	if k.began != nil {
		k.began(j)
	}
}

func (k *keeper) End(r *Record) error {
	k.records = append(k.records, r)
	return nil
}

// alone runs one script and returns its record.
func alone(t *testing.T, body string, with ...func(*Run)) *Record {
	t.Helper()
	f := newFake(t)
	f.test("only", body)
	r, records := f.run()
	for _, w := range with {
		w(r)
	}
	s, err := r.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(*records) != 1 || s.Ran() != 1 {
		t.Fatalf("%d records, summary %+v", len(*records), s)
	}
	return (*records)[0]
}

// need skips the test unless the program is installed.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("needs %s: %v", program, err)
	}
}

// bareProcesses runs a command n times, workers at a time, with nothing around it.
func bareProcesses(b *testing.B, n, workers int, name string, args ...string) {
	jobs := make(chan struct{}, n)
	for range n {
		jobs <- struct{}{}
	}
	close(jobs)
	done := make(chan error, workers)
	for range workers {
		go func() {
			var err error
			for range jobs {
				err = errors.Join(err, exec.Command(name, args...).Run())
			}
			done <- err
		}()
	}
	for range workers {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
}
