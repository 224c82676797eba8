package ptx

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/kir"
)

var rewrite = flag.Bool("rewrite", false, "write the golden PTX anew")

// golden is a file of programs and the targets whose PTX is recorded, as listed in its first line: "; targets 75 80 90a".
type golden struct {
	name    string
	progs   []*kir.Program
	targets []Target
}

func goldens(t testing.TB) []golden {
	t.Helper()
	files, err := filepath.Glob("testdata/*.kir")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	var out []golden
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		g := golden{name: strings.TrimSuffix(file, ".kir")}
		first, _, _ := strings.Cut(string(text), "\n")
		for _, word := range strings.Fields(first)[2:] {
			digits, arch := strings.CutSuffix(word, "a")
			var sm int
			if _, err := fmt.Sscan(digits, &sm); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			g.targets = append(g.targets, Target{Major: sm / 10, Minor: sm % 10, Arch: arch})
		}
		if g.progs, err = kir.Parse(text); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, p := range g.progs {
			if err := kir.Verify(p); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
		out = append(out, g)
	}
	return out
}

func TestGolden(t *testing.T) {
	for _, g := range goldens(t) {
		for _, target := range g.targets {
			got, err := Compile(g.progs, target)
			if err != nil {
				t.Fatalf("%s: %v", g.name, err)
			}
			again, err := Compile(g.progs, target)
			if err != nil || !bytes.Equal(got, again) {
				t.Errorf("%s: a second compilation differs", g.name)
			}
			file := fmt.Sprintf("%s.%s.ptx", g.name, strings.Replace(architecture(target), "_", "", 1))
			if *rewrite {
				if err := os.WriteFile(file, got, 0o666); err != nil {
					t.Fatal(err)
				}
				continue
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs; run go test ./internal/ptx -rewrite and look at the change\n%s", file, firstDifference(want, got))
			}
		}
	}
}

// architecture returns ptxas's name for a target.
func architecture(t Target) string {
	s := fmt.Sprintf("sm_%d%d", t.Major, t.Minor)
	if t.Arch {
		s += "a"
	}
	return s
}

// firstDifference shows the first line in which two texts differ.
func firstDifference(want, got []byte) string {
	w, g := strings.Split(string(want), "\n"), strings.Split(string(got), "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d:\n-%s\n+%s", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines, not %d", len(g), len(w))
}

// TestGoldenAssembles assembles the golden programs for old and new devices; only kernels with tiles may spill registers.
func TestGoldenAssembles(t *testing.T) {
	as, err := filepath.Abs("../../.tools/ptxas")
	if _, e := os.Stat(as); err != nil || e != nil {
		if as, err = exec.LookPath("ptxas"); err != nil {
			t.Skip("no ptxas: run .ci/ptxas.sh")
		}
	}
	targets := []Target{{Major: 7, Minor: 5}, {Major: 8}, {Major: 9}}
	if help, err := exec.Command(as, "--help").Output(); err == nil && bytes.Contains(help, []byte("sm_90a")) {
		targets = append(targets, Target{Major: 9, Arch: true})
	}
	spill := regexp.MustCompile(`[1-9]\d+ bytes spill`) // ptxas 11.8 spills four bytes of overlap for sm_80
	for _, g := range goldens(t) {
		for _, target := range targets {
			text, err := Compile(g.progs, target)
			whole := g.name == "testdata/late" && !target.Arch // its warps must have whole rows
			mapped := []string{"testdata/rows", "testdata/overlap", "testdata/row"}
			if whole || slices.Contains(mapped, g.name) && target.Major < 8 {
				if fault.KindOf(err) != fault.Unsupported {
					t.Errorf("rows of tiles are mapped without matrix units: %v", err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%s: %v", g.name, err)
			}
			file := filepath.Join(t.TempDir(), "golden.ptx")
			if err := os.WriteFile(file, text, 0o666); err != nil {
				t.Fatal(err)
			}
			said, err := exec.Command(as, "-v", "-arch", architecture(target), "-o", os.DevNull, file).CombinedOutput()
			if err != nil {
				t.Errorf("%s %s: %v\n%.2000s", g.name, architecture(target), err, said)
			}
			if s := spill.FindString(string(said)); s != "" {
				t.Errorf("%s %s: %s", g.name, architecture(target), s)
			}
		}
	}
}

func TestTargets(t *testing.T) {
	p, err := kir.Parse([]byte("kernel \"nothing\" threads 32\n{\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		major, minor int
		want         string
	}{
		{7, 5, ".version 6.3\n.target sm_75\n"}, {8, 0, ".version 7.0\n.target sm_80\n"}, {8, 6, ".version 7.1\n.target sm_86\n"},
		{8, 9, ".version 7.8\n.target sm_89\n"}, {9, 0, ".version 7.8\n.target sm_90\n"}, {9, 9, ".version 7.8\n.target sm_90\n"},
		{10, 0, ".version 8.6\n.target sm_100\n"}, {12, 0, ".version 8.7\n.target sm_120\n"}, {13, 0, ".version 8.8\n.target sm_121\n"},
	} {
		text, err := Compile(p, Target{Major: c.major, Minor: c.minor})
		if err != nil || !strings.HasPrefix(string(text), c.want) {
			t.Errorf("%d.%d: %.60q, %v; want %q", c.major, c.minor, text, err, c.want)
		}
	}
	if _, err := Compile(p, Target{Major: 7}); fault.KindOf(err) != fault.Unsupported {
		t.Errorf("capability 7.0: %v", err)
	}
	if _, err := Compile(append(p, p...), Target{Major: 8}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("two kernels of one name: %v", err)
	}
}
