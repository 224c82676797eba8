package memcheck

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"tenon.dev/internal/terminal"
)

// optOut is set for every process that is started, so that tests that make no sense under a checker can skip themselves.
const optOut = "PYTORCH_CUDA_MEMCHECK=1"

// pytest is a Python file of tests.
type pytest struct {
	file     string
	python   string
	discover []string
	// script is set if a single test is run as python FILE TEST rather than with pytest.
	script bool
	args   []string
}

// mainGuard is the line by which a test file runs its tests when it is started as a program.
var mainGuard = regexp.MustCompile(`(?m)^if\s+__name__\s*==\s*['"]__main__['"]`)

func newPytest(file string, o TargetOptions) (*pytest, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the test file: %w", err)
	}
	p := &pytest{file: file, python: o.Python, args: o.Args}
	switch o.Runner {
	case RunnerScript, RunnerPytest:
		p.script = o.Runner == RunnerScript
	case "":
		p.script = mainGuard.Match(text) && !bytes.Contains(text, []byte("pytest.main("))
	default:
		return nil, fmt.Errorf("--runner %q: give script or pytest", o.Runner)
	}
	p.discover = []string{"pytest"}
	if _, err := exec.LookPath("pytest"); err != nil || o.Python != "" {
		p.discover = nil
	}
	if p.python == "" {
		p.python = "python"
		if _, err := exec.LookPath(p.python); err != nil {
			p.python = "python3"
		}
	}
	if p.discover == nil {
		p.discover = []string{p.python, "-m", "pytest"}
	}
	return p, nil
}

func (p *pytest) String() string { return p.file }

func (p *pytest) Tests(ctx context.Context) ([]Test, error) {
	args := append(slices.Clone(p.discover), "--setup-only", p.file)
	if !p.script { // otherwise they are for the file, and pytest might not accept them
		args = append(args, p.args...)
	}
	out, err := list(ctx, Command{Args: args, Env: []string{optOut}})
	tests := p.parse(out)
	if len(tests) == 0 && err != nil {
		return nil, err
	}
	return tests, nil
}

// parse parses the output of pytest's setup-only mode: a line for each test, which names the fixtures that the test uses.
func (p *pytest) parse(out string) []Test {
	var tests []Test
	for line := range strings.Lines(strings.TrimSpace(out)) {
		node, _, fixtures := strings.Cut(strings.TrimSpace(line), "(fixtures used:")
		if node = strings.TrimSpace(node); node == "" {
			continue
		}
		word := strings.Fields(node)[0]
		// A plain function without fixtures has no such note; its line is only the node, at the eighth column.
		if !fixtures && (p.script || !strings.HasPrefix(line, "        ") || word != node && !strings.Contains(node, "[")) {
			continue
		}
		if p.script {
			node = word // the contract's name, and the one passed to unittest
		}
		_, id, ok := strings.Cut(node, "::")
		if !ok {
			continue
		}
		name := terminal.Line(strings.ReplaceAll(id, "::", "."), 0)
		tests = append(tests, Test{Name: name, CPU: cpuOnly(name), id: id})
	}
	return unique(tests)
}

// cpuOnly reports whether a name has cpu in it and not cuda, in any case.
func cpuOnly(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "cpu") && !strings.Contains(name, "cuda")
}

func (p *pytest) Command(t Test) Command {
	if p.script {
		return Command{Args: append([]string{p.python, p.file, strings.ReplaceAll(t.id, "::", ".")}, p.args...)}
	}
	return Command{Args: append([]string{p.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", p.file + "::" + t.id}, p.args...)}
}

// pythonSkipped matches the last line of unittest and of pytest for a single test that was skipped.
var pythonSkipped = regexp.MustCompile(`(?m)^OK \(skipped=1\)|^(=+ )?1 skipped\b`)

func (p *pytest) Skipped(_ Test, stdout, stderr string) bool {
	return pythonSkipped.MatchString(stdout) || pythonSkipped.MatchString(stderr)
}

func (p *pytest) Close() error { return nil }
