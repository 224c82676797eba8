package cli

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// fakeTests changes to a directory of tests that are shell scripts, with a checker that only runs them. It returns the arguments that run
// them.
func fakeTests(t *testing.T, tests map[string]string) []string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the fake checker is a shell script")
	}
	t.Chdir(t.TempDir())
	var list strings.Builder
	for name, body := range tests {
		list.WriteString(name + "\n")
		script(t, name+".sh", body)
	}
	script(t, "cuda-memcheck", "printf '========= CUDA-MEMCHECK\\n========= ERROR SUMMARY: 0 errors\\n'\nshift 2\nexec \"$@\"")
	if err := os.WriteFile("list", []byte(list.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"TENON_MEMCHECK_SPLIT", "TENON_MEMCHECK_RANK", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT",
		"JOB_COMPLETION_INDEX", "RANK", "WORLD_SIZE"} {
		t.Setenv(name, "")
	}
	return []string{"memcheck", "fake", "--list-command", "cat list", "--run-command", "sh {test}.sh", "--checker",
		"./cuda-memcheck", "--nproc", "2"}
}

func script(t *testing.T, name, body string) {
	t.Helper()
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestMemcheckUsage(t *testing.T) {
	base := fakeTests(t, map[string]string{"a": "", "b": ""})
	if err := os.WriteFile("libs", []byte("one two three\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"there is no flag --fast":                {"--fast"},
		`--filter is not a regular expression`:   {"--filter", "("},
		`"leakcheck" is not a tool of`:           {"--tool", "leakcheck"},
		"rank 3 of 2 shards does not exist":      {"--split", "2", "--rank", "3"},
		"Please specify GPU assignment":          {"--gpus", "1:2:3"},
		"libs: line 1 of the list of libraries":  {"--libraries", "libs"},
		"no checker can be started as ./absent":  {"--checker", "./absent"},
		`"99999999999999" is not a timeout`:      {"99999999999999"},
		"--max-output -3 is not a number of MiB": {"--max-output=-3"},
		`"all" of worker 1 names no GPU`:         {"--gpus", "1:all"},
	} {
		out, errs, exit := run(append(base, args...)...)
		if exit != 4 || !strings.Contains(errs, want) || out != "" {
			t.Errorf("%v: exit status %d: %s%s", args, exit, out, errs)
		}
	}
	if _, errs, exit := run("memcheck", "merge", "absent"); exit != 4 || !strings.Contains(errs, "cannot open the journal") {
		t.Errorf("exit status %d: %s", exit, errs)
	}
}

// What the rules leave out is said, with and without --list. Names with cpu mean nothing in a program that is no Python file.
func TestMemcheckLeavesOut(t *testing.T) {
	base := fakeTests(t, map[string]string{"a": "", "b": "", "c_cpu": ""})
	const said = "tests left out: 1 by --skip\n"
	if out, errs, exit := run(append(base, "--list", "--skip", "b")...); exit != 0 || out != "a\nc_cpu\n" || errs != said {
		t.Errorf("--list: exit status %d: %q%s", exit, out, errs)
	}
	if out, errs, exit := run(append(base, "--skip", "b")...); exit != 0 || !strings.HasPrefix(errs, said) {
		t.Errorf("exit status %d: %q%s", exit, out, errs)
	}
	if _, errs, exit := run(append(base, "--filter", "x")...); exit != 5 || !strings.Contains(errs, "tests left out: 3 by --filter\n") {
		t.Errorf("exit status %d: %s", exit, errs)
	}
}

// A program that is no test binary, and lists nothing or refuses the flags of one, gets the way to check any program.
func TestMemcheckOfNoTests(t *testing.T) {
	fakeTests(t, map[string]string{"a": "echo said", "b": "exit 2"})
	for name, status := range map[string]int{"./a.sh": 5, "./b.sh": 4} {
		_, errs, exit := run("memcheck", name, "--kind", "gobinary", "--checker", "./cuda-memcheck")
		if exit != status || !strings.Contains(errs, "not a Go test binary") || !strings.Contains(errs, "give --run-command") ||
			strings.Contains(errs, "no test is left") {
			t.Errorf("%s: exit status %d: %s", name, exit, errs)
		}
	}
}

// Two shards, whose ranks come from the environment, run in separate folders; merged they equal the whole run.
func TestMemcheckMerge(t *testing.T) {
	base := fakeTests(t, map[string]string{"a": "", "b": "exit 7", "c": "", "d": "echo d"})
	t.Setenv("TENON_MEMCHECK_SPLIT", "2")
	for rank, want := range map[string]int{"0": 1, "1": 0} {
		t.Setenv("JOB_COMPLETION_INDEX", rank)
		if out, errs, exit := run(base...); exit != want || !strings.Contains(out, "report: shard-"+rank) {
			t.Fatalf("exit status %d: %s%s", exit, out, errs)
		}
	}
	out, errs, exit := run("memcheck", "merge", "shard-0", "shard-1", "--out", "all")
	if exit != 1 || !strings.HasPrefix(out, "fake: 4 tests in ") || !strings.Contains(out, ": 3 passed, 1 failed\n") {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
	for _, name := range []string{"result.log", "result.jsonl", "result.xml", "result.html"} {
		if text, err := os.ReadFile(filepath.Join("all", name)); err != nil || !strings.Contains(string(text), "b") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if out, errs, exit = run("memcheck", "merge", "all"); exit != 1 || !strings.Contains(out, ": 3 passed, 1 failed\n") {
		t.Errorf("a joined journal: exit status %d: %s%s", exit, out, errs)
	}
	if out, errs, exit = run("memcheck", "merge", "shard-1", "shard-1/result.jsonl", "--out", "part"); exit != 2 ||
		!strings.Contains(out, "missing: of 2 shards of fake") {
		t.Errorf("a shard is missing: exit status %d: %s%s", exit, out, errs)
	}
	if out, errs, exit = run("memcheck", "merge", "shard-0", "shard-1", "--exit-zero", "--out", "all"); exit != 0 {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
}

// Arguments after -- go to the tests. They are refused with --run-command, which holds its own arguments. The output of passed tests is
// kept on request.
func TestMemcheckArguments(t *testing.T) {
	base := fakeTests(t, map[string]string{"a": "echo said by a"})
	if out, errs, exit := run(append(base, "--", "-v")...); exit != 4 || !strings.Contains(errs, "into --run-command") || out != "" {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
	if _, errs, exit := run(append(base, "--keep-output")...); exit != 0 {
		t.Fatalf("exit status %d: %s", exit, errs)
	}
	if journal, err := os.ReadFile("result.jsonl"); err != nil || !strings.Contains(string(journal), "said by a") {
		t.Errorf("%s, %v", journal, err)
	}
	if err := os.WriteFile("test_x.py", []byte("if __name__ == '__main__':\n    main()\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	script(t, "pytest", "exit 1")
	python := []string{"memcheck", "run", "test_x.py", "60", "--python", "./python", "--checker", "./cuda-memcheck", "--keep-output",
		"--resume", "--", "--device", "two words"}
	script(t, "python", "[ $1 = -m ] && { echo \"        test_x.py::test_x (fixtures used: x)\"; exit; }; for a; do echo \"<$a>\"; done")
	if err := os.Remove("result.jsonl"); err != nil {
		t.Fatal(err)
	}
	if _, errs, exit := run(python...); exit != 0 {
		t.Fatalf("exit status %d: %s", exit, errs)
	}
	if journal, err := os.ReadFile("result.jsonl"); err != nil || !strings.Contains(string(journal), `"args":["--device","two words"]`) ||
		!strings.Contains(string(journal), `\u003c--device\u003e\n\u003ctwo words\u003e`) {
		t.Errorf("%s, %v", journal, err)
	}
	if _, errs, exit := run(python[:len(python)-1]...); exit != 4 ||
		!strings.Contains(errs, `it differs in the arguments of tests: ["--device"]`) {
		t.Errorf("exit status %d: %s", exit, errs)
	}
}

// A run without tests says so, and a run whose results cannot be written says how to continue, which then works.
func TestMemcheckStops(t *testing.T) {
	base := fakeTests(t, map[string]string{"a": "", "b": "exit 7"})
	if out, errs, exit := run(append(base, "--filter", "none")...); exit != 5 || !strings.Contains(errs, "no test is left: fake has 2") {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no /dev/full to stand for a full disk")
	}
	base = append(base, "--nproc", "1", "--out", "full")
	if err := errors.Join(os.Mkdir("full", 0o755), os.Symlink("/dev/full", filepath.Join("full", "result.log"))); err != nil {
		t.Fatal(err)
	}
	if out, errs, exit := run(base...); exit != 4 || !strings.Contains(errs, "the run stopped: cannot write the log") ||
		!strings.Contains(errs, "--resume") || out != "" {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
	if err := os.Remove(filepath.Join("full", "result.log")); err != nil {
		t.Fatal(err)
	}
	if out, errs, exit := run(append(base, "--resume")...); exit != 1 || !strings.Contains(errs, "1 of 2 tests have run") ||
		!strings.Contains(out, "1 passed, 1 failed") {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
}

// If a test fails by itself, one line names the setting that may be the reason, but only for programs that may have such a cache and used
// the GPU.
func TestMemcheckCachedHint(t *testing.T) {
	base := fakeTests(t, map[string]string{"a": "", "b": "exit 7"})
	const hint = "need --cached"
	if err := os.WriteFile("test_x.py", []byte("if __name__ == '__main__':\n    main()\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	script(t, "python", "[ $1 = -m ] && { echo \"        test_x.py::test_x (fixtures used: x)\"; exit; }; exit 7")
	script(t, "watched.sh", `echo '{"checker":"TENON-CHECK"}' >>"$TENON_CHECK"; exit 7`)
	python := []string{"memcheck", "test_x.py", "60", "--python", "./python", "--checker", "./cuda-memcheck"}
	own := []string{"memcheck", "own", "60", "--list-command", "echo t", "--run-command", "./watched.sh", "--checker", "tenon"}
	for name, c := range map[string]struct {
		args []string
		want bool
	}{"Python": {python, true}, "Tenon": {own, true}, "Python with --cached": {append(python, "--cached"), false},
		"another program": {base, false}} {
		if _, errs, exit := run(c.args...); exit != 1 || strings.Contains(errs, hint) != c.want {
			t.Errorf("%s: exit status %d: %s", name, exit, errs)
		}
	}
	if _, errs, exit := run(append(base, "--filter", "a")...); exit != 0 || strings.Contains(errs, hint) {
		t.Errorf("of tests that pass: exit status %d: %s", exit, errs)
	}
	script(t, "python", "[ $1 = -m ] && { echo \"        test_x.py::test_x (fixtures used: x)\"; exit; }; exit 1")
	script(t, "cuda-memcheck", "printf '========= CUDA-MEMCHECK\\n========= Error: Target application terminated before first "+
		"instrumented API call\\n'\nexit 7")
	script(t, "watched.sh", "exit 7")
	for name, args := range map[string][]string{"Python without CUDA": python, "a program without Tenon": own} {
		if _, errs, exit := run(args...); exit != 1 || strings.Contains(errs, hint) {
			t.Errorf("%s: exit status %d: %s", name, exit, errs)
		}
	}
}

// A signal ends the run cleanly, with a summary of the tests that ran, and --resume continues it.
func TestMemcheckInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("signals are of Unix")
	}
	base := fakeTests(t, map[string]string{"a": "", "b": "[ -e again ] || { touch reached; sleep 1000; }", "c": ""})
	go func() {
		for range 1000 {
			if _, err := os.Stat("reached"); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Signal(os.Interrupt)
		}
	}()
	out, errs, exit := run(append(base, "--gpus", "0", "--nproc", "1")...)
	if exit != 2 || !strings.Contains(out, "fake: 1 test in ") || !strings.Contains(out, ": 1 passed, 2 not run\n") ||
		!strings.Contains(errs, "interrupted; go on with the same command and --resume") {
		t.Fatalf("exit status %d: %s%s", exit, out, errs)
	}
	page, err := os.ReadFile("result.html")
	if err != nil || !strings.Contains(string(page), `"interrupted":true`) {
		t.Errorf("the report of the part: %v", err)
	}
	script(t, "again", "")
	out, errs, exit = run(append(base, "--resume")...)
	if exit != 0 || !strings.Contains(errs, "going on with result.jsonl: 1 of 3 tests have run") || !strings.Contains(out, ": 3 passed\n") {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
	log, err := os.ReadFile("result.log")
	if err != nil || strings.Count(string(log), "Success: ") != 3 || !strings.HasPrefix(string(log), "Success: a\n") {
		t.Errorf("%s, %v", log, err)
	}
}

// Each test runs under each tool; results can be asked for a passed test without a report.
func TestMemcheckTools(t *testing.T) {
	base := fakeTests(t, map[string]string{"a": ""})
	script(t, "cuda-memcheck", "shift 2; [ \"$1\" = --tool ] && shift 2; exec \"$@\"")
	out, errs, exit := run(append(base, "--tool", "memcheck,racecheck", "--tool", "memcheck")...)
	if exit != 0 || !strings.Contains(out, ": 1 test under 2 tools in ") ||
		strings.Count(out, " 1 passed, 1 of the passed without a report of the checker\n") != 2 {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
	log, err := os.ReadFile("result.log")
	if err != nil || !strings.Contains(string(log), "Success: a [racecheck]\n") ||
		!strings.Contains(string(log), "Success: a [memcheck]\n") {
		t.Errorf("%s, %v", log, err)
	}
	out, errs, exit = run(append(base, "--tool", "all", "--require-report")...)
	if exit != 6 || !strings.Contains(out, ": 1 test under 4 tools in ") {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
}
