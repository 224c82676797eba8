package origin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program copies testdata/program into a new module and runs it. It returns the lines that the program prints, split at the tab, and for
// each route the file and line to expect: the route's call, or the line marked "at" with the route.
func program(t *testing.T) (lines [][2]string, want map[string]string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	check(t, err)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	check(t, err)
	check(t, os.CopyFS(dir, os.DirFS("testdata/program")))
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	check(t, err)
	check(t, os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o644))
	mod :=
		"module tenon.development/x\n\ngo 1.26.0\n\nrequire tenon.dev v0.0.0\n\n" +
			"require github.com/ebitengine/purego v0.11.3 // indirect\n\n" +
			"replace tenon.dev => " + root + "\n"
	check(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o644))
	c := exec.Command("go", "run", ".")
	c.Dir = dir
	c.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "GOPROXY=off")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for l := range strings.Lines(string(out)) {
		route, rest, _ := strings.Cut(strings.TrimSpace(l), "\t")
		lines = append(lines, [2]string{route, rest})
	}
	want = map[string]string{}
	for _, file := range []string{"main.go", "layers/layers.go"} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		check(t, err)
		n := 0
		for l := range strings.Lines(string(text)) {
			n++
			if _, rest, ok := strings.Cut(l, `says("`); ok {
				route, _, _ := strings.Cut(rest, `"`)
				want[route] = fmt.Sprintf("%s:%d", file, n)
			}
			if _, route, ok := strings.Cut(l, "// at "); ok {
				want[strings.TrimSpace(route)] = fmt.Sprintf("%s:%d", file, n)
			}
		}
	}
	return lines, want
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestProgram checks that every error of a program outside the module names the program's line, and that a stack in its memory history
// shows only those functions of the library that the program called.
func TestProgram(t *testing.T) {
	lines, want := program(t)
	var stack []string
	named := 0
	for _, l := range lines {
		if l[0] == "stack" {
			stack = append(stack, l[1])
			continue
		}
		if want, got, _ := strings.Cut(l[1], " "); l[0] == "name" {
			if got != want {
				t.Errorf("an error of %s names %q", want, got)
			}
			named++
			continue
		}
		if !strings.HasSuffix(l[1], "/"+want[l[0]]) || want[l[0]] == "" {
			t.Errorf("%s: the error names %s, and the program's line is %s", l[0], l[1], want[l[0]])
		}
		delete(want, l[0])
	}
	for route := range want {
		t.Errorf("%s: the program prints nothing", route)
	}
	if named < 10 {
		t.Errorf("the program prints %d names of operations", named)
	}
	const shown = "tenon.(*Exec).Linear\ntenon.dev/nn.(*Linear).Forward\ntenon.dev/nn.Sequential.Forward\n" +
		"tenon.dev/nn.Sequential.Forward\n" +
		"main.history.func1.1\nmain.history.func1\nmain.history\nmain.main"
	if got := strings.Join(stack, "\n"); got != shown {
		t.Errorf("the stack of an allocation is\n%s\nwant\n%s", got, shown)
	}
}
