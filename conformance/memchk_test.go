package conformance

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tenon.dev/internal/cli"
	"tenon.dev/memcheck"
)

// memchk is a folder with a Python file of tests, and stand-ins for pytest, python and cuda-memcheck that come first on PATH. The
// stand-ins record their arguments; each test's behaviour is a shell script.
type memchk struct {
	t   *testing.T
	dir string
}

// newMemchk makes the folder the working directory. Its listing is pytest's output for the tests, each with a script; the script "" is a
// test that passes.
func newMemchk(t *testing.T, tests map[string]string) *memchk {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the fake checkers are shell scripts")
	}
	m := &memchk{t, t.TempDir()}
	var listing strings.Builder
	listing.WriteString("collected items\n\ntest_a.py \nSETUP    F something\n")
	names := make([]string, 0, len(tests))
	for name := range tests {
		names = append(names, name)
	}
	slices.Sort(names)
	slices.Reverse(names) // the runner has to sort
	for _, name := range names {
		fmt.Fprintf(&listing, "        test_a.py::%s (fixtures used: _unittest_fixture, request)\n", strings.ReplaceAll(name, ".", "::"))
		body := tests[name]
		if body == "" {
			body = "exit 0"
		}
		m.write("tests/"+name, body, 0o755)
	}
	m.write("listing", listing.String(), 0o644)
	m.write("test_a.py", "if __name__ == '__main__':\n    run_tests()\n", 0o644)
	m.write("bin/pytest", "#!/bin/sh\necho \"$@ optout=$PYTORCH_CUDA_MEMCHECK\" >>"+m.dir+"/listed\ncat "+m.dir+"/listing", 0o755)
	m.write("bin/python", "#!/bin/sh\necho \"$CUDA_VISIBLE_DEVICES|$PYTORCH_CUDA_MEMCHECK|$1 $2\" >>"+m.dir+"/ran\nexec sh "+m.dir+
		"/tests/$2", 0o755)
	m.write("bin/cuda-memcheck", "#!/bin/sh\necho \"$@\" >>"+m.dir+"/checked\nshift 2\n"+
		"[ -e "+m.dir+"/tests/$3 ] && grep -q CUDA-MEMCHECK "+m.dir+"/tests/$3 || { echo '========= CUDA-MEMCHECK'; echo '========= "+
		"ERROR SUMMARY: 0 errors'; }\nexec \"$@\"", 0o755)
	t.Setenv("PATH", filepath.Join(m.dir, "bin")+string(filepath.ListSeparator)+os.Getenv("PATH"))
	t.Setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
	for _, name := range []string{"TENON_MEMCHECK_SPLIT", "TENON_MEMCHECK_RANK", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT",
		"JOB_COMPLETION_INDEX", "RANK", "WORLD_SIZE"} {
		t.Setenv(name, "")
	}
	t.Chdir(m.dir)
	t.Setenv("MEMCHECK_SUITE", m.dir)
	t.Cleanup(m.noneLeft)
	return m
}

func (m *memchk) write(name, text string, mode os.FileMode) {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
}

// lines returns the lines of a file, none if it does not exist.
func (m *memchk) lines(name string) []string {
	text, err := os.ReadFile(filepath.Join(m.dir, name))
	if err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

// run runs tenon memcheck and checks the exit status. The stand-ins take precedence over a real checker on this machine.
func (m *memchk) run(status int, args ...string) (stdout, stderr string) {
	m.t.Helper()
	if c, err := memcheck.FindChecker(); err == nil && !strings.HasPrefix(c.Path, m.dir) && !slices.Contains(args, "merge") &&
		!slices.Contains(args, "--checker") {
		args = append([]string{"--checker", filepath.Join(m.dir, "bin", "cuda-memcheck")}, args...)
	}
	var out, errs strings.Builder
	if got := cli.Main(append([]string{"memcheck"}, args...), &out, &errs); got != status {
		m.t.Fatalf("exit status %d, want %d\n%s%s", got, status, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// expect compares those lines of result.log that belong to the contract, in order.
func (m *memchk) expect(want ...string) {
	m.t.Helper()
	var got []string
	for _, l := range m.lines("result.log") {
		if regexp.MustCompile("^(Success|Fail|Ignored|Timeout): ").MatchString(l) {
			got = append(got, l)
		}
	}
	if !slices.Equal(got, want) {
		m.t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// noneLeft fails the test if one of its processes still runs.
func (m *memchk) noneLeft() {
	var left []string
	for range 2000 { // on a busy machine, a killed process takes its time
		left = nil
		environs, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, e := range environs {
			if env, err := os.ReadFile(e); err == nil && bytes.Contains(env, []byte("MEMCHECK_SUITE="+m.dir+"\x00")) {
				left = append(left, filepath.Dir(e))
			}
		}
		if len(left) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	m.t.Errorf("processes are left: %v", left)
}

// legacy returns a script that prints a report of cuda-memcheck with one group for each stack, and ends with status 1.
func legacy(stacks ...string) string {
	text := "========= CUDA-MEMCHECK\n"
	for _, s := range stacks {
		text += "========= Invalid __global__ write of size 4\n" +
			"=========     Saved host backtrace up to driver entry point at kernel launch time\n"
		for _, l := range strings.Split(s, ";") {
			text += "=========     Host Frame:" + l + "\n"
		}
		text += "=========\n"
	}
	return say(text+fmt.Sprintf("========= ERROR SUMMARY: %d errors\n", len(stacks)), 1)
}

// say returns a script that prints a text and exits with a status.
func say(text string, status int) string {
	return fmt.Sprintf("cat <<'EOF'\n%sEOF\nexit %d", text, status)
}

const (
	ownStack  = "./prog [0x1234];/lib/libc.so.6 (__libc_start_main + 0xf0)"
	blasStack = "/usr/lib/libcuda.so.1 (cuLaunchKernel + 0x2c);/usr/local/lib/libcublas.so.12 [0x99];./prog [0x1]"
	dnnStack  = "/usr/lib/libcudnn.so.8 [0x99];./prog [0x1]"
	fftStack  = "/usr/lib/libcufft.so.10 [0x99];./prog [0x1]"
)

// TestMEMCHK checks the contract of the sanitizer runner, with one sub-test for each of its rows.
func TestMEMCHK(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"001_filename": memchkFilename, "002_timeout": memchkTimeoutArgument, "003_strict": memchkStrict, "004_nproc": memchkNproc,
		"005_gpus": memchkGPUs,
		"006_ci":   memchkCI, "007_nohang": memchkNohang, "008_split_rank": memchkSplit, "009_environment": memchkEnvironment,
		"010_discovery":  memchkDiscovery,
		"011_cpu_filter": memchkCPUFilter, "012_order": memchkOrder, "013_workers": memchkWorkers, "014_command": memchkCommand,
		"015_timeout": memchkTimeout,
		"016_success": memchkSuccess, "017_failure": memchkFailure, "018_log": memchkLog, "019_ignore_rule": memchkIgnoreRule,
		"020_report_grammar": memchkGrammar,
		"021_report_checks":  memchkReportChecks, "022_exit_zero": memchkExitZero, "017_recorded_outputs": memchkRecorded,
		"017_fake_checkers": memchkFakes,
	} {
		t.Run("MEMCHK-"+name, test)
	}
}

func memchkFilename(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a_cuda": ""})
	m.run(0, "test_a.py", "60")
	m.expect("Success: T.a_cuda")
	if _, errs := m.run(4, "test_absent.py", "60"); !strings.Contains(errs, "test_absent.py") {
		t.Errorf("a file that is not there: %s", errs)
	}
	if _, errs := m.run(4); !strings.Contains(errs, "there is nothing to test") {
		t.Errorf("no file: %s", errs)
	}
}

func memchkTimeoutArgument(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": "sleep 100", "T.b": ""})
	began := time.Now()
	m.run(3, "test_a.py", "1", "--nproc", "2")
	m.expect("Success: T.b", "Timeout: T.a")
	if d := time.Since(began); d < time.Second {
		t.Errorf("the test was killed after %v, before its second", d)
	}
	for _, bad := range []string{"soon", "0", "-1"} {
		if _, errs := m.run(4, "test_a.py", bad); !strings.Contains(errs, "is not a timeout") &&
			!strings.Contains(errs, "there is no flag -1") {
			t.Errorf("%s: %s", bad, errs)
		}
	}
}

func memchkStrict(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": legacy(blasStack)})
	m.run(0, "test_a.py", "60")
	m.expect("Ignored: T.a")
	m.run(1, "test_a.py", "60", "--strict")
	m.expect("Fail: T.a")
}

// meet returns a test script that ends when n of its kind run at the same time, and fails if they never do.
func meet(n int) string {
	return fmt.Sprintf(
		"mkdir -p met; touch met/$$; for i in $(seq 200); do [ $(ls met | wc -l) -ge %d ] && exit 0; sleep 0.05; done; exit 9", n)
}

func memchkNproc(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": meet(3), "T.b": meet(3), "T.c": meet(3)})
	m.run(0, "test_a.py", "60", "--nproc", "3")
	var help strings.Builder
	cli.Main([]string{"memcheck", "run", "--help"}, &help, &help)
	if want := fmt.Sprintf("--nproc=%d", runtime.NumCPU()); !strings.Contains(help.String(), want) {
		t.Errorf("the default is not the number of processors, %s", want)
	}
	if _, errs := m.run(4, "test_a.py", "60", "--nproc", "0"); !strings.Contains(errs, "at least one test") {
		t.Error(errs)
	}
}

func memchkGPUs(t *testing.T) {
	tests := map[string]string{}
	for i := range 8 {
		tests[fmt.Sprintf("T.t%d", i)] = "sleep 0.2"
	}
	m := newMemchk(t, tests)
	devices := func() string {
		seen := map[string]bool{}
		for _, l := range m.lines("ran") {
			gpu, _, _ := strings.Cut(l, "|")
			seen[gpu] = true
		}
		var list []string
		for g := range seen {
			list = append(list, g)
		}
		slices.Sort(list)
		os.Remove("ran")
		return strings.Join(list, " ")
	}
	m.run(0, "test_a.py", "60", "--nproc", "4")
	if got := devices(); got != "0 1 2" {
		t.Errorf("all: devices %s", got)
	}
	m.run(0, "test_a.py", "60", "--nproc", "3", "--gpus", "1,2:3,4:5,6")
	if got := devices(); got != "1,2 3,4 5,6" {
		t.Errorf("a list: devices %s", got)
	}
	if _, errs := m.run(4, "test_a.py", "60", "--nproc", "4", "--gpus", "1:2"); !strings.Contains(errs,
		"Please specify GPU assignment for each process, separated by :") {
		t.Error(errs)
	}
}

func memchkCI(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": "", "T.b": say("the test's words\n", 5), "T.c": ""})
	out, errs := m.run(1, "test_a.py", "60", "--ci", "--nproc", "1")
	if !strings.HasPrefix(out, "Success: T.a\nFail: T.b\n") || !strings.Contains(out, "the test's words") ||
		strings.Contains(out, "Success: T.c") {
		t.Errorf("standard output: %s", out)
	}
	if errs != "Failure detected on cuda-memcheck\n" {
		t.Errorf("standard error, which must have no progress: %q", errs)
	}
	if _, err := os.Stat("result.log"); !os.IsNotExist(err) {
		t.Errorf("there is a log file: %v", err)
	}
	if len(m.lines("ran")) != 2 {
		t.Errorf("ran %q; the first failure must be the end", m.lines("ran"))
	}
}

func memchkNohang(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": "sleep 100", "T.b": ""})
	out, _ := m.run(0, "test_a.py", "400ms", "--ci", "--nohang", "--nproc", "1")
	if !strings.HasPrefix(out, "Timeout: T.a\nSuccess: T.b\n") {
		t.Error(out)
	}
	m.run(0, "test_a.py", "400ms", "--nohang", "--nproc", "1")
	m.expect("Timeout: T.a", "Success: T.b")
}

func memchkSplit(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": "", "T.b": "", "T.c": "", "T.d": "", "T.e": ""})
	for rank, want := range []string{"a b", "c d", "e"} {
		m.run(0, "test_a.py", "60", "--nproc", "1", "--split", "3", "--rank", strconv.Itoa(rank))
		var lines []string
		for _, n := range strings.Fields(want) {
			lines = append(lines, "Success: T."+n)
		}
		m.expect(lines...)
	}
	m.run(5, "test_a.py", "60", "--split", "4", "--rank", "3") // chunks of 2 leave none
	m.expect()
	m.run(0, "test_a.py", "60", "--nproc", "1") // split 1, rank 0
	m.expect("Success: T.a", "Success: T.b", "Success: T.c", "Success: T.d", "Success: T.e")
}

func memchkEnvironment(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": ""})
	t.Setenv("PYTORCH_CUDA_MEMCHECK", "0")
	m.run(0, "test_a.py", "60", "--gpus", "7", "--nproc", "1")
	if got := m.lines("ran"); !slices.Equal(got, []string{"7|1|test_a.py T.a"}) {
		t.Errorf("the test saw %q", got)
	}
	if got := m.lines("listed"); !slices.Equal(got, []string{"--setup-only test_a.py optout=1"}) {
		t.Errorf("the listing saw %q", got)
	}
}

func memchkDiscovery(t *testing.T) {
	m := newMemchk(t, map[string]string{"TestA.test_x_cuda": "", "TestA.test_y_cuda": "", "test_function": ""})
	m.write("listing", `============ test session starts ============
test_a.py 
        test_a.py::TestA::test_x_cuda (fixtures used: _unittest_setUpClass_fixture_TestA)
  SETUP    C _unittest_setUpClass_fixture_TestA
        test_a.py::test_function (fixtures used: tmp_path, tmp_path_factory)
        test_a.py::TestA::test_not_run
        test_a.py::TestA::test_y_cuda (fixtures used: a) and more words
`, 0o644)
	m.run(0, "test_a.py", "60", "--nproc", "1")
	m.expect("Success: TestA.test_x_cuda", "Success: TestA.test_y_cuda", "Success: test_function")
	m.write("bin/pytest", "#!/bin/sh\necho no such plugin >&2\nexit 4", 0o755)
	if _, errs := m.run(4, "test_a.py", "60"); !strings.Contains(errs, "no such plugin") {
		t.Errorf("a listing that fails: %s", errs)
	}
}

func memchkCPUFilter(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.add_cpu": "", "T.add_CPU_x": "", "T.add_cuda": "", "T.cpu_to_CUDA": "", "T.plain": ""})
	_, errs := m.run(0, "test_a.py", "60", "--nproc", "1")
	m.expect("Success: T.add_cuda", "Success: T.cpu_to_CUDA", "Success: T.plain")
	if !strings.Contains(errs, "tests left out: 2 with cpu and not cuda in the name (see --keep-cpu)\n") {
		t.Errorf("standard error has %q", errs)
	}
}

func memchkOrder(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.b": "", "T.B": "", "T.a_cpu": "", "S.z": "", "T.a10": "", "T.a9": ""})
	m.run(0, "test_a.py", "60", "--nproc", "1")
	m.expect("Success: S.z", "Success: T.B", "Success: T.a10", "Success: T.a9", "Success: T.b")
	m.run(0, "test_a.py", "60", "--nproc", "1", "--split", "2", "--rank", "1") // sorted first, then cut
	m.expect("Success: T.a9", "Success: T.b")
}

func memchkWorkers(t *testing.T) {
	// The first test holds its worker until all the others, which the second worker takes one after another, stand in the log.
	m := newMemchk(t, map[string]string{"T.b": "", "T.c": "", "T.d": "", "T.e": "",
		"T.a": "for i in $(seq 200); do grep -q 'Success: T.e' result.log && exit 0; sleep 0.05; done; exit 9"})
	m.run(0, "test_a.py", "60", "--nproc", "2", "--gpus", "0:1")
	m.expect("Success: T.b", "Success: T.c", "Success: T.d", "Success: T.e", "Success: T.a")
	ran := m.lines("ran")
	slices.Sort(ran)
	other := map[string]int{}
	for _, l := range ran {
		other[l[:1]]++
	}
	if len(ran) != 5 || !(other["0"] == 1 && other["1"] == 4 || other["0"] == 4 && other["1"] == 1) {
		t.Errorf("ran %q; one worker must have taken one test, and the other the rest", ran)
	}
}

func memchkCommand(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": "echo to stdout; echo to stderr >&2; exit 3"})
	m.run(1, "test_a.py", "60", "--nproc", "1", "--gpus", "2,1")
	if got := m.lines("checked"); !slices.Equal(got, []string{"--error-exitcode 1 python test_a.py T.a"}) {
		t.Errorf("cuda-memcheck was given %q", got)
	}
	if got := m.lines("ran"); !slices.Equal(got, []string{"2,1|1|test_a.py T.a"}) {
		t.Errorf("the test saw %q", got)
	}
	if log := strings.Join(m.lines("result.log"), "\n"); !strings.Contains(log, "to stdout\nto stderr") {
		t.Errorf("the log lacks an output stream: %s", log)
	}
	// The modern checker is preferred to the old one, and writes its report to a file.
	m.write("bin/compute-sanitizer", "#!/bin/sh\necho \"$@\" >>"+m.dir+"/checked\nwhile [ \"$1\" != python ]; do [ \"$1\" = --log-file "+
		"] && log=$2; shift; done\n"+
		"printf '========= COMPUTE-SANITIZER\\n========= ERROR SUMMARY: 0 errors\\n' >$log\nexec \"$@\"", 0o755)
	m.write("tests/T.a", "exit 0", 0o755)
	m.run(0, "test_a.py", "60", "--require-report")
	if got := m.lines("checked"); len(got) != 2 || !strings.HasPrefix(got[1], "--tool memcheck --error-exitcode 1 ") ||
		!strings.HasSuffix(got[1], " python test_a.py T.a") {
		t.Errorf("compute-sanitizer was given %q", got)
	}
}

func memchkTimeout(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": "sleep 100 & sleep 100", "T.b": ""})
	out, errs := m.run(1, "test_a.py", "400ms", "--ci", "--nproc", "1")
	if !strings.HasPrefix(out, "Timeout: T.a\n") || strings.Contains(out, "T.b") || errs != "Hang detected on cuda-memcheck\n" {
		t.Errorf("%s%s", out, errs)
	}
	m.noneLeft()
	m.run(3, "test_a.py", "4s", "--nproc", "1") // T.b must finish by then, however busy the machine is
	m.expect("Timeout: T.a", "Success: T.b")
}

func memchkSuccess(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": "echo words", "T.b": say("========= CUDA-MEMCHECK\n========= ERROR SUMMARY: 0 errors\n", 0)})
	m.run(0, "test_a.py", "60", "--nproc", "1")
	if got := m.lines("result.log"); !slices.Equal(got, []string{"Success: T.a", "Success: T.b"}) {
		t.Errorf("%q; what a test prints is of no interest when it passes", got)
	}
}

func memchkFailure(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": "echo on stderr >&2\n" + legacy(ownStack), "T.b": legacy(blasStack), "T.c": ""})
	m.run(1, "test_a.py", "60", "--nproc", "1")
	m.expect("Fail: T.a", "Ignored: T.b", "Success: T.c")
	log := strings.Join(m.lines("result.log"), "\n")
	if fail, out, err := strings.Index(log, "Fail: T.a"), strings.Index(log, "Invalid __global__ write"),
		strings.Index(log, "on stderr"); fail < 0 || fail > out || out > err {
		t.Errorf("after the line come standard output and then standard error: %s", log)
	}
	out, errs := m.run(1, "test_a.py", "60", "--ci", "--nproc", "1")
	if errs != "Failure detected on cuda-memcheck\n" || strings.Contains(out, "T.b") {
		t.Errorf("%s%s", out, errs)
	}
}

// memchkFakes runs a passing test under checkers that do not do their work.
func memchkFakes(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		status int
		want   string
		log    int64
	}{
		"hangs":           {"trap '' TERM INT HUP; \"$@\"; while :; do sleep 1; done", 3, "Timeout: T.a", 0},
		"crashes":         {"\"$@\"; kill -SEGV $$", 1, "Fail: T.a", 0},
		"crashes midway":  {"echo '========= CUDA-MEMCHECK'; echo '========= Invalid'; kill -ABRT $$", 1, "Fail: T.a", 0},
		"prints nonsense": {"head -c 100000 /dev/urandom; echo ======== ERROR SUMMARY; exit 1", 1, "Fail: T.a", 100_000},
		"forks children":  {"sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &); \"$@\"", 0, "Success: T.a", 0},
		"forks and hangs": {"sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &); sleep 1000", 3,
			"Timeout: T.a", 0},
		"prints 100 MB":    {"yes a line that is no report | head -c 100000000; exit 1", 1, "Fail: T.a", 100_000_000},
		"is not there now": {"exec /nonexistent/checker", 1, "Fail: T.a", 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemchk(t, map[string]string{"T.a": ""})
			m.write("bin/cuda-memcheck", "#!/bin/sh\nshift 2\n"+c.body, 0o755)
			limit := "60"
			if strings.HasPrefix(c.want, "Timeout") {
				limit = "300ms"
			}
			m.run(c.status, "test_a.py", limit, "--nproc", "1")
			if info, err := os.Stat("result.log"); err != nil || info.Size() < c.log {
				t.Errorf("%v: the log has not all that was printed: %+v", err, info)
			}
			log, err := os.Open("result.log")
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			first := make([]byte, len(c.want)+1)
			if _, err := io.ReadFull(log, first); err != nil || string(first) != c.want+"\n" {
				t.Errorf("the log begins with %q, %v; want %q", first, err, c.want)
			}
		})
	}
}

// memchkRecorded replays the output and exit statuses of compute-sanitizer on an H200, for each of its tools.
func memchkRecorded(t *testing.T) {
	const folder = "../memcheck/testdata/h200"
	recordings, err := filepath.Abs(folder)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := os.ReadFile(filepath.Join(recordings, "runs.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{}
	status := map[string]string{}
	for line := range strings.Lines(string(runs)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		name := strings.TrimSuffix(f[0], ".txt")
		if _, err := os.Stat(filepath.Join(recordings, f[0])); err != nil {
			continue // not every run was kept
		}
		tests[name], status[name] = "exit 0", f[1]
	}
	m := newMemchk(t, tests)
	var statuses strings.Builder
	for name, s := range status {
		fmt.Fprintf(&statuses, "%s) exit %s;;\n", name, s)
	}
	m.write("bin/compute-sanitizer", "#!/bin/sh\nwhile [ \"$1\" != python ]; do [ \"$1\" = --log-file ] && log=$2; shift; done\n"+
		"cp "+recordings+"/$3.txt $log\ncase $3 in\n"+statuses.String()+"esac", 0o755)
	m.run(1, "test_a.py", "60", "--nproc", "2", "--keep-cpu")
	journal, err := os.Open(memcheck.JournalName)
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	ran, findings := 0, 0
	_, _, _, err = memcheck.ReadJournal(journal, func(r *memcheck.Record) error {
		ran++
		want := memcheck.Success
		if status[r.Test] != "0" {
			want = memcheck.Fail
		}
		if r.Outcome != want {
			t.Errorf("%s, whose exit status was %s: %s, %s", r.Test, status[r.Test], r.Outcome, r.Reason)
		}
		// The record of a test matches its own recording.
		text, err := os.ReadFile(filepath.Join(recordings, r.Test+".txt"))
		if err != nil {
			return err
		}
		rep, err := parse(t, string(text))
		if r.Verified != (err == nil && !rep.NoCalls) || r.Report.Errors != rep.Errors || len(r.Report.Findings) != len(rep.Findings) {
			t.Errorf("%s: %+v, verified %v; the recording has %+v, %v", r.Test, r.Report, r.Verified, rep, err)
			return nil
		}
		findings += len(rep.Findings)
		for i, f := range r.Report.Findings {
			if f.Message != rep.Findings[i].Message || strings.Contains(r.Test, "-go-") && f.Kernel != "" &&
				(len(f.Device) == 0 || f.Device[0].File != "planted_test.go" || f.Device[0].Line == 0) {
				t.Errorf("%s: %+v", r.Test, f)
			}
		}
		return nil
	})
	if err != nil || ran != len(tests) || findings < 40 {
		t.Errorf("%d of %d recordings ran, with %d findings, %v", ran, len(tests), findings, err)
	}
	t.Logf("%d recorded outputs, %d findings", ran, findings)
}

func memchkLog(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": "", "T.b": "exit 3", "T.c": legacy(blasStack), "T.d": "sleep 100"})
	_, errs := m.run(1, "test_a.py", "400ms", "--nproc", "1")
	m.expect("Success: T.a", "Fail: T.b", "Ignored: T.c", "Timeout: T.d")
	if !strings.Contains(errs, "test_a.py: 4 of 4, 1 failed, 1 timed out, 1 ignored") {
		t.Errorf("the progress must end with all four, failures included: %s", errs)
	}
	for _, name := range []string{"result.jsonl", "result.xml", "result.html"} {
		if info, err := os.Stat(name); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func memchkIgnoreRule(t *testing.T) {
	cut, _, _ := strings.Cut(legacy(blasStack), "========= ERROR SUMMARY")
	m := newMemchk(t, map[string]string{
		"T.blas": legacy(blasStack), "T.dnn": legacy(dnnStack), "T.fft": legacy(fftStack), "T.all": legacy(blasStack, dnnStack, fftStack),
		"T.mixed": legacy(blasStack, ownStack), "T.own": legacy(ownStack), "T.cut": cut + "EOF\nexit 1", "T.crash": "kill -SEGV $$",
		"T.none": "exit 1",
	})
	m.run(1, "test_a.py", "60", "--nproc", "1")
	m.expect("Ignored: T.all", "Ignored: T.blas", "Fail: T.crash", "Fail: T.cut", "Ignored: T.dnn", "Ignored: T.fft", "Fail: T.mixed",
		"Fail: T.none", "Fail: T.own")
	// A test that fails without any error: all of its zero errors are a library's.
	m.run(1, "test_a.py", "60", "--nproc", "1", "--findings-only", "--filter", "none|own")
	m.expect("Ignored: T.none", "Fail: T.own")
	// A file extends the list of libraries.
	m.write("libs", "# ours\nprog ./prog\n", 0o644)
	m.run(0, "test_a.py", "60", "--nproc", "1", "--libraries", "libs", "--filter", "own|mixed")
	m.expect("Ignored: T.mixed", "Ignored: T.own")
}

// parse reads a report as the runner does.
func parse(t *testing.T, text string) (*memcheck.Report, error) {
	t.Helper()
	return memcheck.ParseReport(strings.NewReader(text), memcheck.ParseOptions{Tool: memcheck.Memcheck,
		Libraries: memcheck.DefaultLibraries()})
}

const groupA = "========= Invalid __global__ read of size 4\n" +
	"=========     Saved host backtrace up to driver entry point at kernel launch time\n" +
	"=========     Host Frame:a.so (f + 0x1) [0x9]\n=========     Host Frame:b.so [0x2]\n=========\n"

func memchkGrammar(t *testing.T) {
	rep, err := parse(t, "========= Invalid before the report\n=========\nwords\n========= CUDA-MEMCHECK\n"+groupA+"the program's words\n"+
		strings.ReplaceAll(groupA, "read", "write")+"========= ERROR SUMMARY: 2 errors\n=========\nafter\n")
	if err != nil || rep.Groups != 2 || rep.Errors != 2 || len(rep.Findings) != 2 {
		t.Fatalf("%+v, %v", rep, err)
	}
	f := rep.Findings[0]
	if f.Message != "Invalid __global__ read of size 4" || len(f.Stack) != 2 ||
		!strings.HasSuffix(f.Stack[0].Text, "a.so (f + 0x1) [0x9]") || !strings.HasSuffix(f.Stack[1].Text, "b.so [0x2]") {
		t.Errorf("%+v; the first line is the message, the second is dropped, the rest are the stack", f)
	}
	// A group without a closing blank line is not counted.
	if _, err := parse(t, "========= CUDA-MEMCHECK\n"+groupA+strings.TrimSuffix(groupA, "=========\n")+
		"========= ERROR SUMMARY: 2 errors\n"); err == nil || err.Error() != "Number of errors does not match" {
		t.Errorf("a group that runs into the summary: %v", err)
	}
	// A single error is printed as "1 errors", and the first line of a report must match exactly.
	if rep, err := parse(t, "========= CUDA-MEMCHECK\n"+groupA+"========= ERROR SUMMARY: 1 errors\n"); err != nil || rep.Errors != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
	if _, err := parse(t, "x========= CUDA-MEMCHECK\n"+groupA+"========= ERROR SUMMARY: 1 errors\n"); err == nil ||
		err.Error() != "No error summary found" {
		t.Errorf("a first line with more on it: %v", err)
	}
}

func memchkReportChecks(t *testing.T) {
	for text, want := range map[string]string{
		"========= CUDA-MEMCHECK\n" + groupA + "========= ERROR SUMMARY: 1 errors\n":       "",
		"========= CUDA-MEMCHECK\n========= ERROR SUMMARY: 0 errors\n":                     "",
		"========= CUDA-MEMCHECK\n" + groupA + "========= ERROR SUMMARY: 2 errors\n":       "Number of errors does not match",
		"========= CUDA-MEMCHECK\n" + groupA + "========= ERROR SUMMARY: several errors\n": "Number of errors does not match",
		"========= CUDA-MEMCHECK\n" + groupA:                                               "No error summary found",
		"":                                                                                 "No error summary found",
	} {
		if _, err := parse(t, text); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	// If the checker drops every second report the test fails, although everything that it shows is a library's.
	m := newMemchk(t, map[string]string{"T.a": legacy(blasStack, dnnStack, fftStack)})
	m.run(0, "test_a.py", "60", "--nproc", "1")
	m.expect("Ignored: T.a")
	m.write("bin/cuda-memcheck", "#!/bin/sh\nshift 2\n\"$@\" | awk '/Invalid/ { n++ } n % 2 == 0 && /Invalid/ { skip = 1 } !skip { "+
		"print } /^=========$/ { skip = 0 }'\nexit 1", 0o755)
	m.run(1, "test_a.py", "60", "--nproc", "1")
	m.expect("Fail: T.a")
	if log := strings.Join(m.lines("result.log"), "\n"); strings.Count(log, "Invalid") != 2 ||
		!strings.Contains(log, "ERROR SUMMARY: 3 errors") {
		t.Errorf("the checker was to drop one of three reports: %s", log)
	}
}

func memchkExitZero(t *testing.T) {
	m := newMemchk(t, map[string]string{"T.a": legacy(ownStack), "T.b": "sleep 100", "T.c": ""})
	m.run(0, "test_a.py", "400ms", "--nproc", "1", "--exit-zero")
	m.expect("Fail: T.a", "Timeout: T.b", "Success: T.c")
	m.run(1, "test_a.py", "400ms", "--nproc", "1")
	m.run(3, "test_a.py", "400ms", "--nproc", "1", "--skip", "T.a")
	m.run(0, "test_a.py", "400ms", "--nproc", "1", "--filter", "T.c")
	m.run(5, "test_a.py", "400ms", "--filter", "T.x")
}
