package cli

import (
	"regexp"
	"runtime"
	"strings"
	"testing"

	"tenon.dev"
)

// run returns what the command writes and its exit status.
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
		`  sim        Simulated GPU, capability \d+\.\d+, \d+ multiprocessors, .* GiB free`, "  cpu        CPU",
		"\noptional libraries\n", "  nvml  ", "  cublasLt  ", "  cudnn  ", "  nccl  ", "  cusparse  ", "  nvtx  ",
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

// A setting that does not parse is an error even where nothing reads it, and said once.
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
		{nil, 1, `expected one of "doctor", `},
		{[]string{"doktor"}, 1, `did you mean "doctor"?`},
		{[]string{"version", "--deep"}, 1, "unknown flag --deep"},
		{[]string{"--help"}, 0, "Usage: tenon <command>"},
	} {
		out, errs, exit := run(c.args...)
		if exit != c.exit || !strings.Contains(out+errs, c.want) {
			t.Errorf("%v: exit status %d: %s%s", c.args, exit, out, errs)
		}
		if exit == 1 && strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: more than one line: %s", c.args, errs)
		}
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
