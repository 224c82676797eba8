package memcheck

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"tenon.dev/internal/terminal"
)

// Test is one test of a target, which runs in its own process.
type Test struct {
	// Name identifies the test in reports, filters and the order; it is unique in its target.
	Name string
	// CPU is set if the name says that the test uses only the processor. PyTorch's convention for its Python files applies: the name
	// contains cpu and not cuda, in any case. Other programs have no such convention.
	CPU bool
	// id is how the target's program is told which test to run, and place tells a target of several programs which one it is.
	id    string
	place int
}

// Command is a command to start a process with, without a shell.
type Command struct {
	// Args are the program and its arguments.
	Args []string
	// Dir is the working directory; "" is the caller's.
	Dir string
	// Env is added to the caller's environment, as NAME=value.
	Env []string
}

// Target is a program whose tests can be listed and run one by one.
type Target interface {
	// String names the target for readers.
	String() string
	// Tests lists the tests, each once, in the target's own order. It may start processes, which end when ctx does.
	Tests(ctx context.Context) ([]Test, error)
	// Command returns the command that runs one test. The runner puts a checker before it.
	Command(t Test) Command
	// Skipped reports whether the test was skipped, according to the end of its output.
	Skipped(t Test, stdout, stderr string) bool
	// Close removes what Tests built.
	Close() error
}

// TargetKind is a kind of target.
type TargetKind string

// The kinds of targets.
const (
	KindPytest   TargetKind = "pytest"   // a Python file
	KindGo       TargetKind = "go"       // a pattern of Go packages
	KindGoBinary TargetKind = "gobinary" // a compiled Go test binary
	KindCommand  TargetKind = "command"  // any other program, with List and Run
)

// PythonRunner is how one test of a Python file is run.
type PythonRunner string

// The ways to run one test of a Python file.
const (
	RunnerScript PythonRunner = "script" // python FILE TEST
	RunnerPytest PythonRunner = "pytest" // python -m pytest FILE::TEST
)

// ListFormat is how a command lists tests.
type ListFormat string

// The formats of lists of tests.
const (
	FormatLines ListFormat = "lines" // one name per line
	FormatGTest ListFormat = "gtest" // as GoogleTest's --gtest_list_tests prints them
)

// TargetOptions is what [OpenTarget] needs to know besides the name.
type TargetOptions struct {
	// Kind is the kind of target; with "", OpenTarget finds it out from the name.
	Kind TargetKind
	// Python starts the interpreter; "" means python, or python3 if python is not found.
	Python string
	// Runner says how one test of a Python file is run; "" is RunnerScript for files that run their own tests other than with pytest, and
	// RunnerPytest for others.
	Runner PythonRunner
	// GoFlags are added to go test -c.
	GoFlags []string
	// List and Run are command lines for any other program: List prints the names of its tests, and Run runs one.
	List, Run string
	// Format is how List prints; "" finds it out from the output.
	Format ListFormat
	// Dir is where a compiled test binary, List and Run are started; "" is the working directory.
	Dir string
	// Args are passed to the process of each test of a Python file or of Go tests, after the arguments that choose the test, and to the one
	// that lists them. Any other program has its arguments in List and Run.
	Args []string
}

// OpenTarget returns the target for a name: a Python file, a pattern of Go packages, a compiled Go test binary; or, with Run set, any
// program. The error says how the name was interpreted and which names are valid.
func OpenTarget(name string, opts ...TargetOptions) (Target, error) {
	o, err := only("OpenTarget", opts)
	if err != nil {
		return nil, err
	}
	kind := o.Kind
	if kind == "" {
		kind = kindOf(name, o)
	}
	switch kind {
	case KindCommand:
		return newCommandTarget(name, o)
	case KindPytest:
		return newPytest(name, o)
	case KindGoBinary:
		if _, err := os.Stat(name); err != nil {
			return nil, fmt.Errorf("there is no test binary %s: build one with go test -c", name)
		}
		return &goTarget{label: name, args: o.Args, binaries: []goBinary{{path: name, dir: o.Dir}}}, nil
	case KindGo:
		return &goTarget{label: name, args: o.Args, pattern: name, flags: o.GoFlags}, nil
	case "":
		return nil, unknownTarget(name)
	}
	return nil, fmt.Errorf("%q is no kind of target; give %s, %s, %s or %s", kind, KindPytest, KindGo, KindGoBinary, KindCommand)
}

// unknownTarget is the error for a name that is no target.
func unknownTarget(name string) error {
	if f, err := os.Open(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read the target: %w", err)
	} else if err == nil {
		f.Close()
	}
	//tenon:quoted what it tests, as run_cuda_memcheck.py does, may be such a file
	return fmt.Errorf("%q is neither a Python file, a pattern of Go packages such as ./..., nor a compiled Go test binary; "+
		"for any other program give --list-command and --run-command", name)
}

// ChooseChecker returns the checker for a target on a machine with that many GPUs: NVIDIA's (see [FindChecker]) or, without a GPU, Tenon's
// own for Go tests and for any other Go program that includes Tenon. An error wraps [ErrNoChecker].
func ChooseChecker(t Target, gpus int) (*Checker, error) {
	program, command := t.(*commandTarget)
	_, tests := t.(*goTarget)
	if gpus == 0 && (tests || command && program.usesTenon()) {
		return TenonChecker(), nil
	}
	c, err := FindChecker()
	if err != nil && (tests || command) {
		err = fmt.Errorf("%w; a Tenon program on the simulator needs neither: give --checker tenon", err)
	}
	return c, err
}

// kindOf guesses the kind of target, or returns "".
func kindOf(name string, o TargetOptions) TargetKind {
	if o.Run != "" || o.List != "" {
		return KindCommand
	}
	info, err := os.Stat(name)
	switch {
	case strings.HasSuffix(name, ".py"):
		return KindPytest
	case strings.Contains(name, "..."):
		return KindGo
	case errors.Is(err, fs.ErrNotExist):
		if !strings.HasPrefix(name, ".") && !filepath.IsAbs(name) && strings.Contains(name, "/") {
			return KindGo // an import path
		}
	case err == nil && info.IsDir():
		if files, _ := filepath.Glob(filepath.Join(name, "*_test.go")); len(files) > 0 {
			return KindGo
		}
	case err == nil:
		if _, err := buildinfo.ReadFile(name); err == nil {
			return KindGoBinary
		}
	}
	return ""
}

// list runs a command that lists tests and returns its standard output. The error holds the end of its output.
func list(ctx context.Context, c Command) (string, error) {
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append(cmd.Environ(), c.Env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(errs.String())
		if said == "" {
			said = strings.TrimSpace(out.String())
		}
		return out.String(), fmt.Errorf("listing tests with %q failed: %w\n%s", strings.Join(c.Args, " "), err, ends(said))
	}
	return out.String(), nil
}

// ends returns s without its middle if it is long: the reason of a failure is at the start, as with Go's package flag, or at the end, as
// with Python.
func ends(s string) string {
	const head, last = 600, 1400
	if len(s) <= head+last {
		return s
	}
	first := s[:head]
	if i := strings.LastIndexByte(first, '\n'); i > head/2 {
		first = first[:i]
	}
	return strings.ToValidUTF8(first, "") + "\n…\n" + tail(s, last)
}

// tail returns the last n bytes of s, from the start of a line if there is one.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	if _, rest, ok := strings.Cut(s, "\n"); ok && len(rest) > n/2 {
		s = rest
	}
	return strings.ToValidUTF8(s, "")
}

// unique keeps the first of tests with equal names.
func unique(tests []Test) []Test {
	seen := make(map[string]bool, len(tests))
	return slices.DeleteFunc(tests, func(t Test) bool {
		if seen[t.Name] {
			return true
		}
		seen[t.Name] = true
		return false
	})
}

// commandTarget is any program, given by a command that lists its tests and one that runs a test.
type commandTarget struct {
	label     string
	list, run []string
	format    ListFormat
	dir       string
	// placeholder is set if run says where the test's name goes; otherwise it is the last argument.
	placeholder bool
}

func newCommandTarget(label string, o TargetOptions) (*commandTarget, error) {
	if o.List == "" || o.Run == "" {
		return nil, errors.New("any other program needs both commands: --list-command, which prints the names of its tests, and " +
			"--run-command, which runs the test {test}")
	}
	if len(o.Args) > 0 {
		//tenon:quoted what it tests, as run_cuda_memcheck.py does, may be such a file
		return nil, errors.New("arguments after -- are for Python files and Go tests: write those of a program into --run-command")
	}
	c := &commandTarget{label: label, format: o.Format, dir: o.Dir}
	var err error
	if c.list, err = splitWords(o.List); err != nil {
		return nil, fmt.Errorf("--list-command: %w", err)
	}
	if c.run, err = splitWords(o.Run); err != nil {
		return nil, fmt.Errorf("--run-command: %w", err)
	}
	if len(c.list) == 0 || len(c.run) == 0 {
		return nil, errors.New("--list-command and --run-command each need a program to start")
	}
	if !slices.Contains([]ListFormat{"", FormatLines, FormatGTest}, c.format) {
		return nil, fmt.Errorf("--list-format %q: give lines or gtest", c.format)
	}
	c.placeholder = slices.ContainsFunc(c.run, func(w string) bool { return strings.Contains(w, "{test}") })
	if c.label == "" {
		c.label = c.run[0]
	}
	return c, nil
}

func (c *commandTarget) String() string { return c.label }

// usesTenon reports whether the tests start a Go program that includes Tenon.
func (c *commandTarget) usesTenon() bool {
	name := c.run[0]
	if c.dir != "" && filepath.Base(name) != name && !filepath.IsAbs(name) {
		name = filepath.Join(c.dir, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return false
	}
	info, err := buildinfo.ReadFile(path)
	const module = "tenon.dev"
	return err == nil && (info.Main.Path == module || slices.ContainsFunc(info.Deps, func(m *debug.Module) bool {
		return m.Path == module
	}))
}

func (c *commandTarget) Tests(ctx context.Context) ([]Test, error) {
	out, err := list(ctx, Command{Args: c.list, Dir: c.dir, Env: []string{optOut}})
	if err != nil {
		return nil, err
	}
	var names []string
	if c.format == FormatGTest || c.format == "" && looksLikeGoogleTest(out) {
		names = googleTests(out)
	} else {
		for line := range strings.Lines(out) {
			if line = strings.TrimSpace(line); line != "" {
				names = append(names, line)
			}
		}
	}
	var tests []Test
	for _, n := range names {
		shown := terminal.Line(n, 0)
		tests = append(tests, Test{Name: shown, id: n})
	}
	return unique(tests), nil
}

func (c *commandTarget) Command(t Test) Command {
	var args []string
	for _, w := range c.run {
		args = append(args, strings.ReplaceAll(w, "{test}", t.id))
	}
	if !c.placeholder {
		args = append(args, t.id)
	}
	return Command{Args: args, Dir: c.dir}
}

// googleSkipped is GoogleTest's line for a test that called GTEST_SKIP.
var googleSkipped = regexp.MustCompile(`(?m)^\[  SKIPPED \] `)

func (c *commandTarget) Skipped(_ Test, stdout, _ string) bool {
	return googleSkipped.MatchString(stdout)
}

func (c *commandTarget) Close() error { return nil }

// looksLikeGoogleTest reports whether a listing has the format of --gtest_list_tests: a line "Suite." followed by an indented one.
func looksLikeGoogleTest(out string) bool {
	suite := false
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(strings.TrimRight(line, " \r\n"), "#")
		switch name = strings.TrimRight(name, " "); {
		case strings.HasPrefix(name, "  "):
			return suite
		default:
			suite = strings.HasSuffix(name, ".") && !strings.Contains(name, " ")
		}
	}
	return false
}

// googleTests returns Suite.Test for every test of a listing by --gtest_list_tests, except those that are DISABLED_.
func googleTests(out string) []string {
	var names []string
	suite := ""
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(strings.TrimRight(line, " \r\n"), "#")
		name = strings.TrimRight(name, " ")
		switch {
		case !strings.HasPrefix(name, " "):
			suite = ""
			if strings.HasSuffix(name, ".") && !strings.Contains(name, " ") {
				suite = name
			}
		case suite != "" && strings.TrimSpace(name) != "":
			full := suite + strings.TrimSpace(name)
			if !strings.HasPrefix(full, "DISABLED_") && !strings.Contains(full, ".DISABLED_") && !strings.Contains(full, "/DISABLED_") {
				names = append(names, full)
			}
		}
	}
	return names
}

// splitWords splits a command line like a shell: at blanks, with ' and " for quoting and \ before a single character; within " a \ counts
// only before characters that have a meaning there. It expands nothing.
func splitWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	open := false // a word has begun, even if it is empty
	var quote rune
	escaped := false
	next := func(i int, any string) bool { return i+1 < len(line) && strings.IndexByte(any, line[i+1]) >= 0 }
	for i, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote == 0 || r == '\\' && quote == '"' && next(i, "$`\"\\\n"):
			escaped, open = true, true
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, open = r, true
		case r == ' ' || r == '\t' || r == '\n':
			if open {
				words = append(words, word.String())
				word.Reset()
			}
			open = false
		default:
			word.WriteRune(r)
			open = true
		}
	}
	if quote != 0 || escaped {
		return nil, fmt.Errorf("%q ends within a quotation", line)
	}
	if open {
		words = append(words, word.String())
	}
	return words, nil
}

// only returns the options of a function, which takes them once or not at all.
func only[T any](name string, opts []T) (opt T, err error) {
	if len(opts) > 1 {
		return opt, fmt.Errorf("%s: options are given %d times; give one %T", name, len(opts), opt)
	}
	if len(opts) == 1 {
		opt = opts[0]
	}
	return opt, nil
}
