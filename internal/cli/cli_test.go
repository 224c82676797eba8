package cli

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"tenon.dev"
)

// run returns the command's output and exit status.
func run(args ...string) (stdout, stderr string, exit int) {
	var out, errs strings.Builder
	exit = Main(args, &out, &errs)
	return out.String(), errs.String(), exit
}

func TestDoctor(t *testing.T) {
	out, errs, exit := run("doctor")
	if exit != 0 || errs != "" {
		t.Fatalf("exit status %d: %s", exit, errs)
	}
	for _, want := range []string{
		`^tenon .*` + runtime.GOOS + "/" + runtime.GOARCH, "\ndrivers\n", "  libcuda    ", "  simulator  built in", "\ndevices\n",
		`  sim        Simulated GPU, capability \d+\.\d+, \d+ multiprocessors, 80.0 GiB of simulated memory; host memory`,
		"  cpu        CPU, .* GiB of memory, shared with all programs\n",
		"\noptional libraries\n", "  nvml  ", "  cublasLt  ", "  cudnn  ", "  nccl  ", "  cusparse  ",
		"\ntrial\n", `  start      [\d.]+ ms until it was open, [\d.]+ ms until the first result`,
		`  kernels    2 built and loaded, 2 of 4 launches found theirs ready`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("nothing matches %q in\n%s", want, out)
		}
	}
	if tenon.GPUs() > 0 && !strings.Contains(out, "  cuda:0     NVIDIA") {
		t.Errorf("the GPU is not listed in\n%s", out)
	}
}

// A setting that does not parse is an error even if nothing reads it, and is reported once.
func TestDoctorSetting(t *testing.T) {
	t.Setenv("TENON_LINE_INFO", "maybe")
	if _, errs, exit := run("doctor"); exit != 1 || strings.Count(errs, `TENON_LINE_INFO is "maybe"`) != 1 {
		t.Errorf("exit status %d: %s", exit, errs)
	}
}

func TestVersion(t *testing.T) {
	out, errs, exit := run("version")
	if exit != 0 || errs != "" || !strings.HasPrefix(out, "tenon ") || !strings.Contains(out, runtime.Version()) {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		exit int
		want string
	}{
		{nil, 0, "Usage: tenon <command>"},
		{[]string{"help"}, 0, "Usage: tenon <command>"},
		{[]string{"help", "doctor"}, 0, "Usage: tenon doctor"},
		{[]string{"help", "doktor"}, 2, `did you mean "doctor"?`},
		{[]string{"--version"}, 0, "tenon "},
		{[]string{"--help"}, 0, "Usage: tenon <command>"},
	} {
		out, errs, exit := run(c.args...)
		if exit != c.exit || !strings.Contains(out+errs, c.want) {
			t.Errorf("%v: exit status %d: %s%s", c.args, exit, out, errs)
		}
		if exit != 0 && strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: more than one line: %s", c.args, errs)
		}
	}
}

// full is a writer that fails after the given number of bytes, like a full disk.
type full int

func (f *full) Write(p []byte) (int, error) {
	if *f -= full(len(p)); *f < 0 {
		return 0, syscall.ENOSPC
	}
	return len(p), nil
}

func TestOutputThatIsLost(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
	}{{[]string{"version"}, 1}, {[]string{"--help"}, 1}, {[]string{"doctor"}, 1}, {[]string{"memcheck", "run", "--help"}, 4}} {
		var errs strings.Builder
		if exit := Main(c.args, new(full), &errs); exit != c.want || !strings.Contains(errs.String(), "no space left on device") ||
			strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%q on a full disk: status %d, want %d, and %q", c.args, exit, c.want, errs.String())
		}
		enough := full(1 << 20)
		if exit := Main(c.args, &enough, &errs); exit != 0 {
			t.Errorf("%q with enough room: status %d", c.args, exit)
		}
	}
}

// A failure that both the driver and a device report is shown once, in the longer form.
func TestDistinct(t *testing.T) {
	short, long, other := errors.New("no symbol"), errors.New("a GPU cannot be used: no symbol"), errors.New("another")
	if err := distinct([]error{nil, short, long, other, long, short, nil}); err == nil ||
		err.Error() != "a GPU cannot be used: no symbol\nanother" {
		t.Error(err)
	}
	if err := distinct([]error{nil, nil}); err != nil {
		t.Error(err)
	}
}

func TestKernelCache(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("CUDA_CACHE_PATH", "")
	t.Setenv("CUDA_CACHE_DISABLE", "")
	file := filepath.Join(home, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want := func(c kernelCache, text string) {
		t.Helper()
		var out strings.Builder
		(&report{out: &out}).kernelCache(c)
		if !strings.Contains(out.String(), text) {
			t.Errorf("%+v gives %q, not %q", c, out.String(), text)
		}
	}
	if runtime.GOOS != "windows" { // Windows has no HOME
		want(cacheOf("linux"), "kept by the driver in "+filepath.Join(home, ".nv", "ComputeCache"))
	}
	want(cacheOf("plan9"), "cache      kept by the driver\n")
	t.Setenv("CUDA_CACHE_PATH", file)
	want(cacheOf("linux"), "file cannot be written, so every start compiles its kernels anew")
	t.Setenv("CUDA_CACHE_DISABLE", "1")
	want(cacheOf("linux"), "switched off by CUDA_CACHE_DISABLE, so every start")
	if left, err := os.ReadDir(home); len(left) != 1 || err != nil {
		t.Errorf("looking left %v, %v", left, err)
	}
}

func TestSettings(t *testing.T) {
	t.Setenv("TENON_POISON", "1")
	t.Setenv("TENON_POSION", "1")
	out, errs, exit := run("doctor")
	if want := "  TENON_POSION=1: nothing reads this variable; docs/knobs.md lists those that there are\n"; exit != 0 ||
		!strings.Contains(out, "\nenvironment\n") ||
		!strings.Contains(out, "  TENON_POISON=1\n"+want) {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
	var b strings.Builder
	if (&report{out: &b}).settings(nil); b.Len() != 0 {
		t.Errorf("nothing set gives %q", b.String())
	}
}

func TestLook(t *testing.T) {
	if f := (&optional{}).look(); f.err == nil || f.path != "" {
		t.Errorf("a library for no system: %+v", f)
	}
	o := optional{files: map[string][]string{runtime.GOOS: {"libtenon-absent.so.1", "libtenon-absent.so"}}}
	if f := o.look(); f.err == nil || f.path != "" || !strings.Contains(f.err.Error(), "libtenon-absent.so.1") && !f.leftOut {
		t.Errorf("a library that is nowhere: %+v", f)
	}
	o = optional{files: map[string][]string{"linux": {"libc.so.6"}}, version: "getpid"}
	if f := o.look(); runtime.GOOS == "linux" && !f.leftOut && (f.err != nil || !strings.Contains(f.path, "libc") || f.version == 0) {
		t.Errorf("the C library: %+v", f)
	}
}

func TestTrialFails(t *testing.T) {
	if _, err := tryOut(tenon.CUDA(99)); err == nil {
		t.Error("a GPU with number 99 was opened")
	}
}
