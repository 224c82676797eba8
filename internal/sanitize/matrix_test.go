package sanitize

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tenon.dev/internal/benchrun"
	"tenon.dev/internal/driver/libcuda"
	"tenon.dev/internal/rt"
	"tenon.dev/memcheck"
)

// fakeName is the file name under which this binary is the checker for TestMatrixNoticesLostReports.
const fakeName = "fake-sanitizer"

// parentArg, as this binary's first argument, makes it a parent process that runs the remaining arguments as a command, and succeeds.
const parentArg = "as-parent"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == parentArg {
		os.Exit(parent(os.Args[2:]))
	}
	if filepath.Base(os.Args[0]) == fakeName {
		os.Exit(fake(os.Args[1:]))
	}
	status := benchrun.Main(m, "internal/sanitize", rt.Describe)
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(status)
}

// built is the folder of the programs built by program.
var built struct {
	mu  sync.Mutex
	dir string
}

// program returns a program: the one with this name beside this binary, or the one that the go command builds with the arguments, once.
func program(t *testing.T, name string, args ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if beside := filepath.Join(filepath.Dir(self), name); exists(beside) {
		return beside
	}
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.dir == "" {
		if built.dir, err = os.MkdirTemp("", "tenon-sanitize-"); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(built.dir, name)
	if exists(out) {
		return out
	}
	args = slices.Insert(slices.Clone(args), len(args)-1, "-o", out)
	if text, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Fatalf("there is no %s beside this binary, and it cannot be built: %v\n%s", name, err, text)
	}
	return out
}

// plantedBinary returns a test binary with the planted tests: this one, one beside it, or a new one.
func plantedBinary(t *testing.T) string {
	t.Helper()
	if planted {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		return self
	}
	return program(t, "planted.test", "test", "-c", "-tags", "planted", "tenon.dev/internal/sanitize")
}

// testBinary returns the test binary of a package.
func testBinary(t *testing.T, pkg string) string {
	t.Helper()
	return program(t, filepath.Base(pkg)+".test", "test", "-c", "tenon.dev/"+pkg)
}

// collector keeps the records of a run.
type collector struct{ records []*memcheck.Record }

func (c *collector) Begin(int, string, memcheck.Job, time.Time) {}

// End keeps it.
func (c *collector) End(r *memcheck.Record) error {
	c.records = append(c.records, r)
	return nil
}

// runUnder runs the tests of a binary that keep selects, under every tool of the checker, each in its own process.
func runUnder(t *testing.T, c *memcheck.Checker, bin, dir string, workers int, limit time.Duration,
	keep func(name string) bool) []*memcheck.Record {
	t.Helper()
	target, err := memcheck.OpenTarget(bin, memcheck.TargetOptions{Kind: memcheck.KindGoBinary, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	tests, err := target.Tests(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var got collector
	run := memcheck.Run{Target: target, Checker: c, Libraries: memcheck.DefaultLibraries(), GPUs: make([]string, workers), Limit: limit,
		Observers: []memcheck.Observer{&got}}
	for _, test := range tests {
		if keep(test.Name) {
			for _, tool := range c.Tools() {
				run.Jobs = append(run.Jobs, memcheck.Job{Test: test, Tool: tool})
			}
		}
	}
	if _, err := run.Do(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(got.records) != len(run.Jobs) || len(run.Jobs) == 0 {
		t.Fatalf("%d records of %d jobs", len(got.records), len(run.Jobs))
	}
	return got.records
}

// bug is what a test says it plants.
type bug struct {
	class  memcheck.Class
	kernel string
	place  string
}

var says = regexp.MustCompile(`(?m)^planted (\S+) in (\S+) at (\S+:\d+)$`)

// classes are the classes under which NVIDIA's tools may report a class: they do not distinguish freed memory from memory outside of
// allocations.
var classes = map[memcheck.Class][]memcheck.Class{
	memcheck.UseAfterFree: {memcheck.UseAfterFree, memcheck.OutOfBounds},
}

// isOf reports whether a finding matches the bug: class, kernel and Go line.
func isOf(f *memcheck.Finding, b bug) bool {
	if f.Class != b.class && !slices.Contains(classes[b.class], f.Class) {
		return false
	}
	if b.class == memcheck.Leak {
		if f.Allocation == nil || len(f.Allocation.Stack) == 0 {
			return false
		}
		goLines := slices.ContainsFunc(f.Allocation.Stack, func(s memcheck.Frame) bool { return strings.HasSuffix(s.File, "_test.go") })
		return !goLines || slices.ContainsFunc(f.Allocation.Stack, func(s memcheck.Frame) bool { return s.Place() == b.place })
	}
	at := func(s []memcheck.Frame) bool { return len(s) > 0 && s[0].Place() == b.place }
	return f.Kernel == b.kernel && (at(f.Device) || at(f.Other))
}

// follows reports whether a finding may accompany a bug that loses the device: the call that reports the fault to the host, and memory that
// can no longer be freed.
func follows(f *memcheck.Finding, want []bug) bool {
	losing := []memcheck.Class{memcheck.OutOfBounds, memcheck.UseAfterFree, memcheck.Barrier, memcheck.StreamRace}
	lost := slices.ContainsFunc(want, func(b bug) bool { return slices.Contains(losing, b.class) })
	return lost && (f.Class == memcheck.APIError || f.Class == memcheck.Leak)
}

// matrix judges the records of the planted tests: it returns how many of their bugs were found as they should be, and what is wrong.
func matrix(records []*memcheck.Record) (found int, wrong []string) {
	tests := map[string][]*memcheck.Record{}
	for _, r := range records {
		tests[r.Test] = append(tests[r.Test], r)
	}
	for name, rs := range tests {
		var want []bug
		skipped := false
		var of, others []string
		for _, r := range rs {
			for _, m := range says.FindAllStringSubmatch(r.Stdout, -1) {
				if b := (bug{memcheck.Class(m[1]), m[2], m[3]}); !slices.Contains(want, b) {
					want = append(want, b)
				}
			}
			skipped = skipped || r.Skipped
			if !r.Verified {
				wrong = append(wrong, fmt.Sprintf("%s under %s has no report: %s", name, r.Tool, r.Reason))
			}
		}
		nothing := strings.HasPrefix(name, "TestRepaired")
		for _, r := range rs {
			if nothing && r.Outcome == memcheck.Fail {
				others = append(others, fmt.Sprintf("%s: %s", r.Tool, r.Reason))
			}
			if r.Report == nil {
				continue
			}
			for _, f := range r.Report.Findings {
				switch text := fmt.Sprintf("%s %s: %s (kernel %q at %v)", r.Tool, f.Class, f.Message, f.Kernel, f.Device); {
				case !nothing && slices.ContainsFunc(want, func(b bug) bool { return isOf(f, b) }):
					of = append(of, text)
				case nothing || !follows(f, want):
					others = append(others, text)
				}
			}
		}
		switch {
		case skipped || nothing && len(others) == 0:
			if !skipped {
				found++
			}
		case nothing:
			wrong = append(wrong, fmt.Sprintf("%s: the repaired programs have findings: %s", name, strings.Join(others, "; ")))
		case len(of) != 1 || len(others) > 0:
			wrong = append(wrong, fmt.Sprintf("%s: %v was found %d times (%s); beside it: %s", name, want, len(of), strings.Join(of, "; "),
				strings.Join(others, "; ")))
		default:
			found++
		}
	}
	slices.Sort(wrong)
	return found, wrong
}

// isPlanted selects the tests of the matrix.
func isPlanted(name string) bool {
	return strings.HasPrefix(name, "TestPlanted") && name != "TestPlantedHang" || strings.HasPrefix(name, "TestRepaired") &&
		!strings.HasPrefix(name, "TestRepairedTensors") && name != "TestRepairedPooled" && name != "TestRepairedBlock"
}

// plantedTests is their number: for each of 7 classes 3 with bugs, and one that runs the repaired versions.
const plantedTests = 28

// TestMatrixOnSimulator checks that for every class of bug, in three kernels, each bug is found exactly once, in its test, with its kernel
// and Go line.
func TestMatrixOnSimulator(t *testing.T) {
	c := memcheck.TenonChecker()
	c.Leaks = true
	found, wrong := matrix(runUnder(t, c, plantedBinary(t), "", 2, time.Minute, isPlanted))
	for _, w := range wrong {
		t.Error(w)
	}
	if found != plantedTests {
		t.Errorf("%d of %d tests are as they should", found, plantedTests)
	}
	t.Logf("%d of %d tests are as they should", found, plantedTests)
	recordCount("memcheck.planted.sim", "tests", found)
}

// TestTensorsOnSimulator does the same for programs that use tensors.
func TestTensorsOnSimulator(t *testing.T) {
	c := memcheck.TenonChecker()
	c.Leaks = true
	found, wrong := matrix(runUnder(t, c, plantedBinary(t), "", 2, time.Minute, func(name string) bool {
		return strings.HasPrefix(name, "TestTensors") && name != "TestTensorsOnSimulator" || strings.HasPrefix(name, "TestRepairedTensors")
	}))
	for _, w := range wrong {
		t.Error(w)
	}
	if found != 17 {
		t.Errorf("%d of 17 tests are as they should", found)
	}
}

// TestLeaksWithGuards checks that leaks are found, each with its line, and nothing else, if guard zones and poison are on as well.
func TestLeaksWithGuards(t *testing.T) {
	t.Setenv("TENON_GUARD", "1")
	t.Setenv("TENON_POISON", "1")
	c := memcheck.TenonChecker()
	c.Leaks = true
	found, wrong := matrix(runUnder(t, c, plantedBinary(t), "", 2, time.Minute, func(name string) bool {
		return slices.Contains([]string{"TestTensorsNeverClosed", "TestTensorsRaw", "TestRepairedTensors", "TestRepairedTensorsGraph"},
			name)
	}))
	for _, w := range wrong {
		t.Error(w)
	}
	if found != 4 {
		t.Errorf("%d of 4 tests are as they should", found)
	}
}

// TestCheckByEnvironment checks that TENON_CHECK alone, without tenon memcheck, finds an access one element past a tensor, and that cached
// memory hides it.
func TestCheckByEnvironment(t *testing.T) {
	for tools, finds := range map[string]bool{"memcheck": true, "memcheck,cached": false} {
		c := exec.Command(plantedBinary(t), "-test.run=^TestTensorsOnePast$")
		c.Env = append(c.Environ(), "TENON_CHECK=-", "TENON_CHECK_TOOLS="+tools)
		text, err := c.CombinedOutput()
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			t.Fatal(err)
		}
		if got := bytes.Contains(text, []byte("at one_past in edges_test.go:")); got != finds {
			t.Errorf("%s: found: %v, want %v\n%.3000s", tools, got, finds, text)
		}
	}
}

// TestMatrixOfPools does the same for stream-ordered memory and for mappings, which only the simulator's checker can look into.
func TestMatrixOfPools(t *testing.T) {
	c := memcheck.TenonChecker()
	c.Leaks = true
	found, wrong := matrix(runUnder(t, c, plantedBinary(t), "", 2, time.Minute, func(name string) bool {
		return strings.HasPrefix(name, "TestPooled") || name == "TestRepairedPooled"
	}))
	for _, w := range wrong {
		t.Error(w)
	}
	if found != 8 {
		t.Errorf("%d of 8 tests are as they should", found)
	}
}

// TestBlocksOnSimulator checks that the reductions of a block have no findings, and have one in the program's line without either of their
// barriers.
func TestBlocksOnSimulator(t *testing.T) {
	found, wrong := matrix(runUnder(t, memcheck.TenonChecker(), plantedBinary(t), "", 2, time.Minute, func(name string) bool {
		return strings.HasPrefix(name, "TestBlockToo") || name == "TestRepairedBlock"
	}))
	for _, w := range wrong {
		t.Error(w)
	}
	if found != 3 {
		t.Errorf("%d of 3 tests are as they should", found)
	}
}

// TestMatrixOnGPU does the same with compute-sanitizer.
func TestMatrixOnGPU(t *testing.T) {
	c := sanitizer(t)
	c.Leaks, c.StreamOrder = true, true
	found, wrong := matrix(runUnder(t, c, plantedBinary(t), "", 4, 2*time.Minute, isPlanted))
	for _, w := range wrong {
		t.Error(w)
	}
	if found != plantedTests {
		t.Errorf("%d of %d tests are as they should", found, plantedTests)
	}
	t.Logf("%d of %d tests are as they should", found, plantedTests)
	recordCount("memcheck.planted.gpu", "tests", found)
}

// TestMatrixNoticesLostReports uses a checker that loses every second report: the matrix must fail.
func TestMatrixNoticesLostReports(t *testing.T) {
	path := fakeChecker(t)
	dir := filepath.Dir(path)
	c := &memcheck.Checker{Name: memcheck.CheckerSanitizer, Path: path, Leaks: true,
		Options: []string{"--counter", filepath.Join(dir, "counter")}}
	found, wrong := matrix(runUnder(t, c, plantedBinary(t), "", 1, time.Minute, isPlanted))
	if lost := plantedTests - found; lost < plantedTests/4 || len(wrong) == 0 {
		t.Errorf("with every second report lost, %d of %d tests are as they should: %q", found, plantedTests, wrong)
	}
}

// parent runs a child, and succeeds even if the child fails.
func parent(child []string) int {
	cmd := exec.Command(child[0], child[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, err)
		return 70
	}
	return 0
}

// fake is a checker with compute-sanitizer's command line. It runs Tenon's own checker and, if given a file to count in, loses every second
// finding.
func fake(args []string) int {
	options := map[string]string{}
	for len(args) > 1 && strings.HasPrefix(args[0], "--") {
		options[args[0]] = args[1]
		args = args[2:]
	}
	report := options["--log-file"]
	looks := options["--tool"]
	if options["--leak-check"] != "" {
		looks += ",leaks"
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(cmd.Environ(), "CUDA_VISIBLE_DEVICES=", "TENON_CHECK="+report+".all", "TENON_CHECK_TOOLS="+looks)
	runErr := cmd.Run()
	all, err := os.ReadFile(report + ".all")
	if err == nil {
		err = lose(all, report, options["--counter"])
	}
	if e, ok := errors.AsType[*exec.ExitError](runErr); ok {
		return e.ExitCode()
	}
	if err = errors.Join(runErr, err); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 70
	}
	return 0
}

// lose copies a log without every second finding and every second leak.
func lose(log []byte, to, counter string) error {
	n := 0
	if b, err := os.ReadFile(counter); counter != "" && err == nil {
		n, _ = strconv.Atoi(string(b))
	}
	var out bytes.Buffer
	for lines := bufio.NewReader(bytes.NewReader(log)); ; {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		var l struct {
			Finding json.RawMessage `json:"finding"`
		}
		if err := json.Unmarshal(line, &l); err != nil {
			return err
		}
		if l.Finding != nil {
			if n++; n%2 == 0 && counter != "" {
				continue
			}
		}
		out.Write(line)
	}
	err := os.WriteFile(to, out.Bytes(), 0o600)
	if counter != "" {
		err = errors.Join(err, os.WriteFile(counter, []byte(strconv.Itoa(n)), 0o600))
	}
	return err
}

// sanitizer returns NVIDIA's checker, or skips the test.
func sanitizer(t *testing.T) *memcheck.Checker {
	t.Helper()
	if n, err := libcuda.New().DeviceCount(); err != nil || n == 0 {
		t.Skipf("needs an NVIDIA GPU: %v", err)
	}
	c, err := memcheck.FindChecker()
	if err != nil {
		t.Skip(err)
	}
	return c
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
