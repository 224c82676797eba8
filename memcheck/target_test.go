package memcheck

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSplitWords(t *testing.T) {
	for line, want := range map[string][]string{
		"":                      nil,
		"  a\tb  ":              {"a", "b"},
		`a 'b c' "d e"f ''`:     {"a", "b c", "d ef", ""},
		`"a\nb\$c\\" \n`:        {`a\nb$c\`, "n"},
		`a\ b "c\"d" 'e\f' \\`:  {"a b", `c"d`, `e\f`, `\`},
		`--filter='x y' {test}`: {"--filter=x y", "{test}"},
	} {
		got, err := splitWords(line)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", line, got, err)
		}
	}
	for _, line := range []string{"'a", `"a`, `a\`} {
		if _, err := splitWords(line); err == nil {
			t.Errorf("%q was accepted", line)
		}
	}
}

func FuzzSplitWords(f *testing.F) {
	f.Add(`a 'b c' "d\"e" \f`)
	f.Fuzz(func(t *testing.T, line string) {
		words, err := splitWords(line)
		if err != nil {
			return
		}
		// The words can be quoted and split again.
		var quoted []string
		for _, w := range words {
			quoted = append(quoted, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		}
		again, err := splitWords(strings.Join(quoted, " "))
		if err != nil || !slices.Equal(words, again) {
			t.Errorf("%q: %q, then %q, %v", line, words, again, err)
		}
	})
}

const googleListing = `Running main() from gtest_main.cc
Plain.
  First
  DISABLED_Second
Sums/IntTest.
  Adds/0  # GetParam() = 4
  Adds/1  # GetParam() = 5
Typed/0.  # TypeParam = float
  Works
DISABLED_Suite.
  Never
`

// Names are shown without characters that would confuse a terminal or XML, and stay distinct; the program gets them unchanged.
func TestOddNames(t *testing.T) {
	f := newFake(t)
	listing := f.file("listing", "a b\nünï\n$(x)\nbad\xff\nbad\xfe\n\x1b[31mred\nzero\x00\n\ufffe\n")
	f.script("show", "printf '%s' \"$1\" | od -An -tx1; exit 1")
	target, err := OpenTarget("", TargetOptions{List: "cat " + listing, Run: f.dir + "/show"})
	if err != nil {
		t.Fatal(err)
	}
	tests, err := target.Tests(t.Context())
	if want := `a b ünï $(x) bad\xff bad\xfe \x1b[31mred zero\x00 \ufffe`; err != nil || names(tests) != want {
		t.Errorf("%s, %v, want %s", names(tests), err, want)
	}
	k := &keeper{}
	r := &Run{Target: target, Checker: f.checker, GPUs: []string{""}, Observers: []Observer{k},
		Jobs: []Job{{tests[3], Memcheck}, {tests[5], Memcheck}}}
	if _, err := r.Do(t.Context()); err != nil || strings.TrimSpace(k.records[0].Stdout) != "62 61 64 ff" ||
		!strings.HasPrefix(strings.TrimSpace(k.records[1].Stdout), "1b 5b") {
		t.Errorf("%+v, %v", k.records, err)
	}
}

func TestGoogleListing(t *testing.T) {
	if !looksLikeGoogleTest(googleListing) || looksLikeGoogleTest("a.\nb.\n") || looksLikeGoogleTest("TestA\n  TestB\n") {
		t.Error("listings of GoogleTest are not told apart from others")
	}
	want := "Plain.First Sums/IntTest.Adds/0 Sums/IntTest.Adds/1 Typed/0.Works"
	if got := strings.Join(googleTests(googleListing), " "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestCommandTarget(t *testing.T) {
	f := newFake(t)
	listing := f.file("listing", googleListing)
	target, err := OpenTarget("sums", TargetOptions{List: "cat " + listing, Run: "./sums '--gtest_filter={test}' --x"})
	if err != nil {
		t.Fatal(err)
	}
	tests, err := target.Tests(t.Context())
	if err != nil || len(tests) != 4 {
		t.Fatalf("%v, %v", tests, err)
	}
	if got := target.Command(tests[1]).Args; !slices.Equal(got, []string{"./sums", "--gtest_filter=Sums/IntTest.Adds/0", "--x"}) {
		t.Errorf("%q", got)
	}
	if !target.Skipped(tests[0], "[ RUN      ] Plain.First\n[  SKIPPED ] Plain.First (0 ms)\n", "") ||
		target.Skipped(tests[0], "[       OK ] Plain.First", "") {
		t.Error("a skipped test is not told")
	}
	target, err = OpenTarget("", TargetOptions{List: "printf 'b\\n a \\n\\nb\\n'", Run: "prog -t"})
	if err != nil {
		t.Fatal(err)
	}
	if tests, err = target.Tests(t.Context()); err != nil || names(tests) != "b a" || target.String() != "prog" {
		t.Errorf("%v, %v, %s", tests, err, target)
	}
	if got := target.Command(tests[0]).Args; !slices.Equal(got, []string{"prog", "-t", "b"}) {
		t.Errorf("without a placeholder: %q", got)
	}
	for want, o := range map[string]TargetOptions{
		"needs both commands":                {Run: "x"},
		"--list-command: \"'\" ends within":  {List: "'", Run: "x"},
		"--run-command: \"'\" ends within":   {List: "x", Run: "'"},
		"each need a program":                {List: " ", Run: "x"},
		"write those of a program into":      {List: "x", Run: "x", Args: []string{"-v"}},
		`--list-format "xml": give lines or`: {List: "x", Run: "x", Format: "xml"},
	} {
		if _, err := OpenTarget("", o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
	target, err = OpenTarget("", TargetOptions{List: "sh -c 'echo out of luck >&2; exit 3'", Run: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = target.Tests(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 3") ||
		!strings.Contains(err.Error(), "out of luck") {
		t.Errorf("a listing that fails: %v", err)
	}
}

const setupOnly = `============================= test session starts ==============================
collected 5 items

test_a.py 
        test_a.py::TestA::test_x_cuda (fixtures used: _unittest_setUpClass_fixture_TestA)
SETUP    F tmp_path_factory
        test_a.py::test_plain
        test_a.py::test_param[a-1] (fixtures used: request)
        test_a.py::test_param[with blank] (fixtures used: request)
        test_a.py::TestA::test_x_cuda (fixtures used: again)
TEARDOWN F tmp_path_factory
============================ no tests ran in 0.01s =============================
`

func TestPytestListing(t *testing.T) {
	script, suite := &pytest{file: "d/test_a.py", python: "py", script: true}, &pytest{file: "d/test_a.py", python: "py"}
	if got := names(script.parse(setupOnly)); got != "TestA.test_x_cuda test_param[a-1] test_param[with" {
		t.Errorf("as a script: %s", got)
	}
	tests := suite.parse(setupOnly)
	if got := names(tests); got != "TestA.test_x_cuda test_plain test_param[a-1] test_param[with blank]" {
		t.Errorf("by pytest: %s", got)
	}
	if got := script.Command(tests[0]).Args; !slices.Equal(got, []string{"py", "d/test_a.py", "TestA.test_x_cuda"}) {
		t.Errorf("%q", got)
	}
	if got := suite.Command(tests[3]).Args; got[len(got)-1] != "d/test_a.py::test_param[with blank]" {
		t.Errorf("%q", got)
	}
	for out, want := range map[string]bool{"OK (skipped=1)\n": true, "1 skipped in 0.02s\n": true, "=== 1 skipped in 0.1s ===": true,
		"OK\n": false, "1 passed, 1 skipped": false} {
		if suite.Skipped(tests[0], "", "Ran 1 test\n"+out) != want {
			t.Errorf("%q: skipped must be %v", out, want)
		}
	}
}

func TestPytestFile(t *testing.T) {
	dir := t.TempDir()
	with, without, suite := filepath.Join(dir, "test_with.py"), filepath.Join(dir, "test_without.py"), filepath.Join(dir, "test_suite.py")
	for file, text := range map[string]string{with: "import x\nif __name__ == '__main__':\n    run_tests()\n",
		without: "def test_a(): pass\n",
		suite:   "import pytest\nif __name__ == '__main__':\n    pytest.main([__file__])\n"} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ file, want string }{{with, "py " + with + " C.t -x"},
		{without, "py -m pytest -q -p no:cacheprovider " + without + "::C::t -x"}} {
		target, err := OpenTarget(c.file, TargetOptions{Python: "py", Args: []string{"-x"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(target.Command(Test{Name: "C.t", id: "C::t"}).Args, " "); got != c.want {
			t.Errorf("with an argument: %s", got)
		}
	}
	for _, c := range []struct {
		file   string
		runner PythonRunner
		script bool
	}{{with, "", true}, {without, "", false}, {suite, "", false}, {with, RunnerPytest, false}, {without, RunnerScript, true}} {
		target, err := OpenTarget(c.file, TargetOptions{Runner: c.runner})
		if err != nil || target.(*pytest).script != c.script {
			t.Errorf("%+v: %+v, %v", c, target, err)
		}
	}
	if _, err := OpenTarget(with, TargetOptions{Runner: "nose"}); err == nil || !strings.Contains(err.Error(), "give script or pytest") {
		t.Error(err)
	}
	if _, err := OpenTarget(filepath.Join(dir, "test_absent.py")); err == nil ||
		!strings.Contains(err.Error(), "cannot read the test file") {
		t.Error(err)
	}
	target, err := OpenTarget(with, TargetOptions{Python: "/absent/python"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := target.Tests(t.Context()); err == nil || !strings.Contains(err.Error(), "/absent/python -m pytest --setup-only") {
		t.Error(err)
	}
}

// TestPytestItself lists and runs a file with the real pytest.
func TestPytestItself(t *testing.T) {
	python := "python3"
	if exec.Command(python, "-c", "import pytest").Run() != nil {
		if python = "/usr/bin/python3"; exec.Command(python, "-c", "import pytest").Run() != nil {
			t.Skip("needs Python with pytest")
		}
	}
	f := newFake(t)
	file := f.file("test_real.py", `import pytest, unittest
def test_plain(): pass
def test_fixture(tmp_path): assert tmp_path.exists()
@pytest.mark.parametrize("x", ["a", "b c"])
def test_param(x): assert x == "a"
def test_skipped(): pytest.skip()
class TestUnit(unittest.TestCase):
    def test_unit(self): pass
`)
	target, err := OpenTarget(file, TargetOptions{Python: python})
	if err != nil {
		t.Fatal(err)
	}
	tests, err := target.Tests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.script("cuda-memcheck", "echo '========= CUDA-MEMCHECK'; echo '========= ERROR SUMMARY: 0 errors'; shift 2; exec \"$@\"")
	k := &keeper{}
	r := &Run{Target: target, Checker: f.checker, GPUs: []string{"", ""}, Observers: []Observer{k}}
	for _, test := range (Selection{}).Of(tests) {
		r.Jobs = append(r.Jobs, Job{test, Memcheck})
	}
	if s, err := r.Do(t.Context()); err != nil || s.Succeeded != 5 || s.Failed != 1 || s.Skipped != 1 {
		for _, rec := range k.records {
			t.Logf("%s: %s %s\n%s%s", rec.Test, rec.Outcome, rec.Reason, rec.Stdout, rec.Stderr)
		}
		t.Errorf("%+v, %v", s, err)
	}
}

// TestGoTargets builds, lists and runs the tests of a module, as packages and as a binary.
func TestGoTargets(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.26\n",
		"p/p.go": "package p\n", "none/none.go": "package none\n", "p/data.txt": "here",
		"p/p_test.go": "package p\n\nimport (\n\t\"flag\"\n\t\"fmt\"\n\t\"os\"\n\t\"testing\"\n)\n\n" +
			"func TestReads(t *testing.T) {\n\tif _, err := os.ReadFile(os.Getenv(\"PWD\") + \"/data.txt\"); err != nil " +
			"{\n\t\tt.Fatal(err)\n\t}\n}\n" +
			"var word = flag.String(\"word\", \"\", \"\")\n\nfunc TestReadsOnCPU(t *testing.T) { if *word != \"two words\" { t.Skip() } " +
			"}\nfunc BenchmarkB(b *testing.B) {}\nfunc FuzzF(f *testing.F) { f.Fuzz(func(t *testing.T, s string) {}) }\n" +
			"func Example() {\n\tfmt.Println(1)\n\t// Output: 1\n}\n",
		"q/x_test.go": "package q_test\n\nimport \"testing\"\n\nfunc TestReads(t *testing.T) { t.Fail() }\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	f := newFake(t)
	run := func(target Target, want string, failed, skipped int) {
		t.Helper()
		tests, err := target.Tests(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := names(tests); got != want {
			t.Errorf("tests %s, want %s", got, want)
		}
		if n := len(Selection{}.Of(tests)); n != len(tests) {
			t.Errorf("%d of %d tests are selected", n, len(tests))
		}
		k := &keeper{}
		r := &Run{Target: target, Checker: f.checker, GPUs: []string{"", ""}, Observers: []Observer{k}}
		for _, test := range tests {
			r.Jobs = append(r.Jobs, Job{test, Memcheck})
		}
		if s, err := r.Do(t.Context()); err != nil || s.Failed != failed || s.Skipped != skipped || s.Ran() != len(tests) {
			t.Errorf("%+v, %v", s, err)
			for _, rec := range k.records {
				t.Logf("%s: %s %s\n%s%s", rec.Test, rec.Outcome, rec.Reason, rec.Stdout, rec.Stderr)
			}
		}
	}
	target, err := OpenTarget("./...")
	if err != nil {
		t.Fatal(err)
	}
	const p, q = "example.com/m/p.", "example.com/m/q."
	run(target, p+"TestReads "+p+"TestReadsOnCPU "+p+"FuzzF "+p+"Example "+q+"TestReads", 1, 1)
	built := target.(*goTarget).built
	if err := target.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(built); built == "" || !os.IsNotExist(err) {
		t.Errorf("the binaries in %q are left: %v", built, err)
	}
	if text, err := exec.Command("go", "test", "-c", "-o", "p.bin", "./p").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if target, err = OpenTarget("p.bin", TargetOptions{Dir: "p"}); err != nil {
		t.Fatal(err)
	}
	run(target, "TestReads TestReadsOnCPU FuzzF Example", 0, 1)
	for name, o := range map[string]TargetOptions{"p.bin": {Dir: "p", Args: []string{"-word", "two words"}},
		"./p": {Args: []string{"-word=two words"}}} {
		if target, err = OpenTarget(name, o); err != nil {
			t.Fatal(err)
		}
		want := "TestReads TestReadsOnCPU FuzzF Example"
		if name == "./p" {
			want = p + strings.ReplaceAll(want, " ", " "+p)
		}
		run(target, want, 0, 0)
		if err := target.Close(); err != nil {
			t.Error(err)
		}
	}
	if target, err = OpenTarget("p.bin", TargetOptions{Dir: "p", Args: []string{"-wrod", "x"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := target.Tests(t.Context()); err == nil || !strings.Contains(err.Error(), "flag provided but not defined: -wrod") {
		t.Errorf("an argument that the tests do not know: %v", err)
	}
	for pattern, want := range map[string]string{"./none": "no package of ./none has tests", "./absent/...": "no such file or directory",
		"example.com/absent/x": "failed"} {
		target, err := OpenTarget(pattern, TargetOptions{Kind: KindGo})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := target.Tests(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", pattern, err, want)
		}
	}
}

func TestKinds(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]TargetKind{"a_test.py": KindPytest, "./...": KindGo, "../memcheck": KindGo, "tenon.dev/cuda": KindGo,
		self: KindGoBinary, text: "", "absent": "", "./absent": ""} {
		if got := kindOf(name, TargetOptions{}); got != want {
			t.Errorf("%s is taken for %q, want %q", name, got, want)
		}
	}
	if _, err := OpenTarget("absent"); err == nil || !strings.Contains(err.Error(), "neither a Python file") {
		t.Error(err)
	}
	if err := os.Chmod(text, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenTarget(text); err == nil || os.Getuid() != 0 &&
		!strings.Contains(err.Error(), "cannot read the target") {
		t.Error(err)
	}
	if _, err := OpenTarget("a_test.py", TargetOptions{Kind: "python"}); err == nil ||
		err.Error() != `"python" is no kind of target; give pytest, go, gobinary or command` {
		t.Error(err)
	}
	if _, err := OpenTarget("absent", TargetOptions{Kind: KindGoBinary}); err == nil || !strings.Contains(err.Error(), "go test -c") {
		t.Error(err)
	}
	if c, err := ChooseChecker(&goTarget{}, 0); err != nil || c.Name != CheckerTenon {
		t.Errorf("Go tests without a GPU: %+v, %v", c, err)
	}
	t.Setenv("PATH", t.TempDir())
	for name, tenon := range map[string]bool{self: true, text: false, "absent": false} {
		c, err := ChooseChecker(&commandTarget{run: []string{name, "{test}"}}, 0)
		if tenon && (err != nil || c.Name != CheckerTenon) {
			t.Errorf("a program of Tenon's without a GPU: %+v, %v", c, err)
		}
		if !tenon && err == nil && c.Name == CheckerTenon {
			t.Errorf("Tenon's checker is chosen for %s", name)
		}
	}
	within := &commandTarget{run: []string{"./" + filepath.Base(self)}, dir: filepath.Dir(self)}
	if c, err := ChooseChecker(within, 0); err != nil || c.Name != CheckerTenon {
		t.Errorf("a program of Tenon's in a folder: %+v, %v", c, err)
	}
	if c, err := ChooseChecker(within, 1); err == nil && c.Name == CheckerTenon {
		t.Error("Tenon's checker is chosen though there is a GPU")
	}
}
