package sanitize

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"tenon.dev/internal/driver/libcuda"
)

// tools are compute-sanitizer's, with the line by which each ends a run without findings.
var tools = map[string]string{
	"memcheck":  "ERROR SUMMARY: 0 errors",
	"racecheck": "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
	"initcheck": "ERROR SUMMARY: 0 errors",
	"synccheck": "ERROR SUMMARY: 0 errors",
}

// sanitizer returns the path of compute-sanitizer, or skips the test.
func sanitizer(t *testing.T) string {
	t.Helper()
	if n, err := libcuda.New().DeviceCount(); err != nil || n == 0 {
		t.Skipf("needs an NVIDIA GPU: %v", err)
	}
	if path, err := exec.LookPath("compute-sanitizer"); err == nil {
		return path
	}
	for _, pattern := range []string{"/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda*/bin/compute-sanitizer", "/usr/local/cuda*/compute-sanitizer/compute-sanitizer"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	t.Skip("needs NVIDIA's compute-sanitizer, which comes with the CUDA toolkit")
	return ""
}

// under runs a test binary under a tool, with Go lines in the kernels.
func under(t *testing.T, tool, dir, file string, args ...string) string {
	t.Helper()
	line := append([]string{"--tool", tool, "--print-limit", "20", file}, args...)
	cmd := exec.Command(sanitizer(t), line...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "TENON_LINE_INFO=1")
	out, err := cmd.CombinedOutput()
	text := string(out)
	if strings.Contains(text, "Device not supported") {
		t.Skipf("compute-sanitizer does not support this machine's device: %.300s", text)
	}
	if err != nil && !strings.Contains(text, "SUMMARY") {
		t.Fatalf("%s: %v\n%.4000s", tool, err, text)
	}
	return text
}

var plantedLine = regexp.MustCompile(`planted at (planted_test\.go:\d+)`)

// TestFindsPlantedBugs sees each tool find its bug, at its Go line: without that, no "0 errors" of the tool counts.
func TestFindsPlantedBugs(t *testing.T) {
	sanitizer(t)
	for name, b := range bugs {
		t.Run(name, func(t *testing.T) { find(t, name, b) })
	}
}

func find(t *testing.T, name string, b bug) {
	out := under(t, b.tool, "", os.Args[0], "-test.run=^TestPlanted$", "-test.v", "-planted="+name)
	m := plantedLine.FindStringSubmatch(out)
	switch {
	case m == nil:
		t.Fatalf("the planted kernel did not run:\n%.4000s", out)
	case strings.Contains(out, tools[b.tool]):
		t.Fatalf("%s found nothing:\n%.4000s", b.tool, out)
	case !strings.Contains(out, b.says) || !strings.Contains(out, m[1]):
		t.Fatalf("%s does not say %q at %s:\n%.4000s", b.tool, b.says, m[1], out)
	}
	for _, line := range strings.Split(out, "\n") {
		if strings.Contains(line, b.says) || strings.Contains(line, m[1]) && strings.HasPrefix(line, "=") {
			t.Logf("%s: %s", b.tool, strings.TrimLeft(line, "= "))
			break
		}
	}
}

// suites are the test binaries whose kernels the tools look at: their folder, the tests, and the line that tells how many kernels ran.
var suites = []struct {
	pkg     string
	args    []string
	kernels *regexp.Regexp
}{
	{"internal/agree", []string{"-test.run=^TestBackEndsAgree$"}, regexp.MustCompile(`(\d+) kernels agree, 0 buffers differ`)},
	{"conformance", []string{"-test.run=^TestKernels$", "-device=cuda"}, regexp.MustCompile(`kernels: (\d+) built`)},
}

// testBinary returns the test binary of a package: the one beside this binary, or a new one.
func testBinary(t *testing.T, pkg string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(pkg) + ".test"
	if beside := filepath.Join(filepath.Dir(self), name); exists(beside) {
		return beside
	}
	out := filepath.Join(t.TempDir(), name)
	if text, err := exec.Command("go", "test", "-c", "-o", out, "tenon.dev/"+pkg).CombinedOutput(); err != nil {
		t.Fatalf("there is no %s beside this binary, and it cannot be built: %v\n%s", name, err, text)
	}
	return out
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestKernelsAreClean runs the kernel tests under every tool, and each tool's planted bug with them.
func TestKernelsAreClean(t *testing.T) {
	sanitizer(t)
	for _, s := range suites {
		for tool, clean := range tools {
			t.Run(fmt.Sprintf("%s/%s", filepath.Base(s.pkg), tool), func(t *testing.T) {
				t.Parallel()
				for name, b := range bugs {
					if b.tool == tool {
						find(t, name, b)
					}
				}
				bin := testBinary(t, s.pkg)
				began := time.Now()
				out := under(t, tool, filepath.Join("..", "..", s.pkg), bin, append(s.args, "-test.v")...)
				n := s.kernels.FindStringSubmatch(out)
				if n == nil || !strings.Contains(out, clean) || strings.Contains(out, "--- FAIL") {
					t.Fatalf("%s over %s is not clean:\n%.6000s", tool, s.pkg, out)
				}
				t.Logf("%s over %s: 0 errors, %s kernels, %.0f s", tool, s.pkg, n[1], time.Since(began).Seconds())
			})
		}
	}
}
