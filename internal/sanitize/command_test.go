package sanitize

import (
	"errors"
	"flag"
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
	"tenon.dev/memcheck"
)

var resultsFlag = flag.String("results", "", "TestCommandOnGPU keeps its journal, page and log as this name with .jsonl, .html and .log")

// job is a test binary that the command runs: that of the package in folder pkg, with the tests that match, its own arguments, and a number
// of parallel tests.
type job struct {
	pkg, tests string
	args       []string
	nproc      int
	// planted is set if its tests have bugs, and must fail.
	planted bool
	// parent, if not empty, is a command that starts the binary, so that the binary is not a target itself, and succeeds however the binary
	// ends. "%s" stands for the binary with its arguments.
	parent string
}

// inChild is the planted test that runs in a child process of a parent.
const inChild = "TestPlantedLoopPast"

// shell is a parent whose children compute-sanitizer follows. It does not follow those of a Go program, so the test on a GPU needs a shell.
const shell = "sh -c '%s; exit 0'"

// plantedJobs have a planted test for every tool, and one whose bug is in a child process of parent.
func plantedJobs(parent string) []job {
	var names []string
	for _, name := range proofs {
		names = append(names, name)
	}
	slices.Sort(names)
	return []job{{pkg: "internal/sanitize", tests: "^(" + strings.Join(names, "|") + ")$", nproc: 3, planted: true},
		{pkg: "internal/sanitize", tests: inChild, nproc: 2, planted: true, parent: parent}}
}

// target returns what the command is told to test of a job's binary, and how.
func (j job) target(bin, folder string) (target string, options []string) {
	if j.parent != "" {
		bin = filepath.ToSlash(bin) // a backslash would quote
		return "child", []string{"--list-command", bin + " -test.list=^" + j.tests + "$", "--run-command",
			fmt.Sprintf(j.parent, bin+" -test.v -test.run=^{test}$")}
	}
	return filepath.Base(bin), []string{"--kind", "gobinary", "--dir", folder, "--filter", j.tests}
}

// started is how a command ended, and its output.
type started struct {
	status int
	text   string
}

// start runs a command in a folder to its end.
func start(t *testing.T, dir string, env []string, args ...string) started {
	t.Helper()
	c := exec.Command(args[0], args[1:]...)
	c.Dir = dir
	c.Env = append(c.Environ(), env...)
	text, err := c.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Error(err)
		return started{-1, err.Error()}
	}
	return started{c.ProcessState.ExitCode(), string(text)}
}

// commandOver runs tenon memcheck over all jobs at once, each test in its own process under every tool of the checker, and joins the
// results in a folder, which it returns with the records. The exit statuses must show that the planted tests failed and all others passed,
// each with a report.
func commandOver(t *testing.T, checker string, limit time.Duration, env []string, jobs []job) (dir string, records []*memcheck.Record) {
	t.Helper()
	tenon, root := program(t, "tenon", "build", "tenon.dev/cmd/tenon"), t.TempDir()
	module, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ended := make([]started, len(jobs))
	merge := []string{tenon, "memcheck", "merge", "--out", filepath.Join(root, "all")}
	for i, j := range jobs {
		bin := ""
		if j.planted {
			bin = plantedBinary(t)
		} else {
			bin = testBinary(t, j.pkg)
		}
		out := filepath.Join(root, strconv.Itoa(i))
		merge = append(merge, out)
		wg.Go(func() {
			target, options := j.target(bin, filepath.Join(module, j.pkg))
			args := append([]string{tenon, "memcheck", "run", target, limit.String(), "--source", module, "--checker",
				checker, "--tool", "all",
				"--nproc", strconv.Itoa(j.nproc), "--split", "1", "--rank", "0", "--keep-output", "--require-report", "--out", out},
				options...)
			ended[i] = start(t, filepath.Dir(bin), env, append(append(args, "--"), j.args...)...)
		})
	}
	wg.Wait()
	for i, j := range jobs {
		want := 0
		if j.planted {
			want = 1
		}
		if ended[i].status != want {
			t.Errorf("tenon memcheck over %s ended with status %d, want %d\n%.6000s", j.pkg, ended[i].status, want, ended[i].text)
		} else {
			t.Logf("%s: %s", j.pkg, ended[i].text)
		}
	}
	if e := start(t, root, env, append(merge, "--source", module)...); e.status != 1 {
		t.Fatalf("the merge ended with status %d\n%.6000s", e.status, e.text)
	}
	dir = filepath.Join(root, "all")
	in, err := os.Open(filepath.Join(dir, memcheck.JournalName))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, _, _, err := memcheck.ReadJournal(in, func(r *memcheck.Record) error {
		records = append(records, r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return dir, records
}

// ran match the lines in which tests report how many kernels they ran.
var ran = []*regexp.Regexp{regexp.MustCompile(`(\d+) kernels agree, 0 buffers differ`), regexp.MustCompile(`kernels: (\d+) built`),
	regexp.MustCompile(`kernels of this share: (\d+)`)}

// judge compares records of the command with the planted bugs: each must be found once, only by its tool, and nothing else may be found. It
// returns how many kernels ran under each tool without a finding, according to the checker or the tests.
func judge(t *testing.T, records []*memcheck.Record) map[memcheck.Tool]int {
	t.Helper()
	kernels := map[memcheck.Tool]int{}
	var bugs []*memcheck.Record
	for _, r := range records {
		if strings.HasPrefix(r.Test, "TestPlanted") {
			bugs = append(bugs, r)
			continue
		}
		if r.Outcome != memcheck.Success || r.Skipped || !r.Verified || r.Report == nil || r.Report.Errors != 0 ||
			len(r.Report.Findings) != 0 {
			t.Errorf("%s under %s: %s, skipped %v, verified %v: %s\n%.3000s", r.Test, r.Tool, r.Outcome, r.Skipped, r.Verified,
				r.Reason, r.Stdout)
			continue
		}
		n := r.Report.Kernels
		for _, line := range ran {
			if m := line.FindStringSubmatch(r.Stdout); m != nil && n == 0 {
				n, _ = strconv.Atoi(m[1])
			}
		}
		kernels[r.Tool] += n
	}
	found, wrong := matrix(bugs)
	for _, w := range wrong {
		t.Error(w)
	}
	if want := len(proofs) + 1; found != want || len(bugs) != want*len(proofs) {
		t.Errorf("%d of %d planted bugs are found as they should, in %d records", found, want, len(bugs))
	}
	return kernels
}

// TestCommandOnGPU uses the command as people do, over the tests that run Tenon's kernels on a GPU, with compute-sanitizer's four tools.
func TestCommandOnGPU(t *testing.T) {
	sanitizer(t)
	dir, records := commandOver(t, "compute-sanitizer", 260*time.Second, nil, append(plantedJobs(shell),
		job{pkg: "conformance", tests: "^(TestKernels|TestDigitsLosses)$", args: []string{"-device=cuda"}, nproc: 8},
		job{pkg: "internal/agree", tests: "^TestProducts$", args: []string{"-shard=0/24"}, nproc: 4},
		job{pkg: "internal/agree", tests: "^(TestBackEndsAgree|TestProductsOnGPU|TestPortableProductsOnGPU|TestUnary32)$", nproc: 6}))
	if *resultsFlag != "" {
		for _, name := range []string{memcheck.JournalName, "result.html", "result.log"} {
			if err := copyFile(filepath.Join(dir, name), *resultsFlag+filepath.Ext(name)); err != nil {
				t.Error(err)
			}
		}
	}
	for tool, n := range judge(t, records) {
		t.Logf("%s: 0 findings, %d kernels", tool, n)
		if n < 1000 {
			t.Errorf("only %d kernels ran under %s", n, tool)
		}
		if !t.Failed() {
			recordCount("memcheck.kernels."+string(tool), "kernels", n)
		}
	}
}

// TestCommandOnSimulator does the same with the simulator's checker, and with a program that has compute-sanitizer's command line and is
// found on PATH. Both are configured through the environment, which every child inherits, so the parent is this binary.
func TestCommandOnSimulator(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	onPath := []string{"PATH=" + filepath.Dir(fakeChecker(t)) + string(filepath.ListSeparator) + os.Getenv("PATH")}
	for checker, env := range map[string][]string{"tenon": nil, fakeName: onPath} {
		_, records := commandOver(t, checker, time.Minute, env, append(plantedJobs(filepath.ToSlash(self)+" "+parentArg+" %s"),
			job{pkg: "internal/kernels", tests: "^TestNLL$", args: []string{"-test.short"}, nproc: 2}))
		for tool, n := range judge(t, records) {
			if n == 0 {
				t.Errorf("no kernel ran under %s of %s", tool, checker)
			}
		}
	}
}

// fakeChecker returns the path of this binary under the name that makes it a checker.
func fakeChecker(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), fakeName)
	if err := errors.Join(copyFile(self, path), os.Chmod(path, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

// recordCount records a count for the run file.
func recordCount(name, unit string, n int) {
	benchrun.Record(benchrun.Figure{Name: name, Unit: unit, Sample: benchrun.Summarize([]float64{float64(n)})})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(fmt.Errorf("cannot keep %s: %w", from, err), out.Close())
	}
	return out.Close()
}
