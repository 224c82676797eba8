package memcheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// goBinary is a compiled test binary, the folder in which its tests expect to start, and its import path, "" for a binary given as a file.
type goBinary struct {
	path, dir, pkg string
}

// goTarget is a set of Go tests: packages, which Tests builds, or one binary.
type goTarget struct {
	label    string
	pattern  string
	flags    []string
	args     []string // for the tests' own flags
	binaries []goBinary
	// built is the folder of the binaries that Tests made.
	built string
}

func (g *goTarget) String() string { return g.label }

// build compiles the test binary of every package of the pattern that has tests.
func (g *goTarget) build(ctx context.Context) error {
	out, err := list(ctx, Command{Args: []string{"go", "list", "-f",
		"{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}\t{{.Dir}}{{end}}", g.pattern}})
	if err != nil {
		return err
	}
	if g.built, err = os.MkdirTemp("", "tenon-memcheck-build-"); err != nil {
		return fmt.Errorf("cannot make a folder for test binaries: %w", err)
	}
	g.binaries = nil
	for line := range strings.Lines(out) {
		pkg, dir, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			continue
		}
		file := filepath.Join(g.built, strconv.Itoa(len(g.binaries)), path.Base(pkg)+".test")
		if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("cannot make a folder for test binaries: %w", err)
		}
		args := append([]string{"go", "test", "-c", "-o", file}, g.flags...)
		if _, err := list(ctx, Command{Args: append(args, pkg)}); err != nil {
			return err
		}
		g.binaries = append(g.binaries, goBinary{file, dir, pkg})
	}
	if len(g.binaries) == 0 {
		return fmt.Errorf("no package of %s has tests", g.pattern)
	}
	return nil
}

// goTest matches the names that -test.list prints and -test.run runs, except benchmarks.
var goTest = regexp.MustCompile(`^(Test|Example|Fuzz)\w*$`)

func (g *goTarget) Tests(ctx context.Context) ([]Test, error) {
	if g.pattern != "" && g.built == "" {
		if err := g.build(ctx); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	var tests []Test
	for i, b := range g.binaries {
		file, err := filepath.Abs(b.path)
		if err != nil {
			return nil, err
		}
		g.binaries[i].path = file
		out, err := list(ctx, Command{Args: append([]string{file, "-test.list=."}, g.args...), Dir: b.dir, Env: []string{optOut}})
		if err != nil && g.pattern == "" {
			err = fmt.Errorf("%w\nif %s is not a Go test binary, give --run-command and --list-command", err, g.label)
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			name := strings.TrimSpace(line)
			if !goTest.MatchString(name) {
				continue
			}
			full := name
			if b.pkg != "" {
				full = b.pkg + "." + name
			}
			tests = append(tests, Test{Name: full, id: name, place: i})
		}
	}
	return unique(tests), nil
}

func (g *goTarget) Command(t Test) Command {
	b := g.binaries[t.place]
	return Command{
		// The runner enforces the time limit, so that a test that hangs is a hang and not a panic.
		Args: append([]string{b.path, "-test.run=^" + t.id + "$", "-test.v", "-test.count=1", "-test.timeout=0"}, g.args...),
		Dir:  b.dir,
		// Kernels written in Go keep their line numbers for the checker.
		Env: []string{"TENON_LINE_INFO=1"},
	}
}

func (g *goTarget) Skipped(t Test, stdout, _ string) bool {
	return slices.ContainsFunc(strings.Split(stdout, "\n"), func(line string) bool {
		return strings.HasPrefix(line, "--- SKIP: "+t.id+" ")
	})
}

func (g *goTarget) Close() error {
	if g.built == "" {
		return nil
	}
	err := os.RemoveAll(g.built)
	g.built = ""
	return err
}
