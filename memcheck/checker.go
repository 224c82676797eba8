package memcheck

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Checker is a program or a mode that watches the processes of tests.
type Checker struct {
	// Name is the name in the first line of its reports: [CheckerSanitizer], [CheckerLegacy] or [CheckerTenon].
	Name string
	// Path is the program; empty for Tenon's own checker, which is part of the checked program.
	Path string
	// Leaks makes memcheck report allocations that live at exit. StreamOrder makes it report stream-ordered allocations used by another
	// stream without synchronisation; cuda-memcheck cannot do this.
	Leaks, StreamOrder bool
	// Cached leaves PyTorch's and Tenon's caching allocators on. They hide from the checker out-of-bounds accesses that stay in a cached
	// segment, and uses of freed memory.
	Cached bool
	// Options are passed to the program unchanged.
	Options []string
}

// Invocation is how a command runs under a checker.
type Invocation struct {
	// Args is the command, Env the variables added to its environment.
	Args, Env []string
	// Report is the file that will hold the report; empty if the report is mixed into the standard output.
	Report string
}

// usual are the places to look for NVIDIA's checkers besides PATH, best first; of several matches the last by name is used.
var usual = map[string][]string{
	"compute-sanitizer": {"/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/usr/local/cuda-*/bin",
		"/usr/local/cuda-*/compute-sanitizer", "/opt/cuda/bin",
		"/opt/cuda/extras/compute-sanitizer", "/opt/nvidia/hpc_sdk/Linux_x86_64/*/cuda/bin",
		"/usr/lib/nvidia-cuda-toolkit/compute-sanitizer", "/usr/bin"},
	"cuda-memcheck": {"/usr/local/cuda/bin", "/usr/local/cuda-*/bin", "/opt/cuda/bin", "/usr/bin"},
}

// printLimit is the number of errors that compute-sanitizer prints. Its default, 100, often cuts off the errors of a library, and unprinted
// errors cannot be ignored as a library's. cuda-memcheck's default is as high.
const printLimit = "10000"

// ErrNoChecker is returned if none of NVIDIA's checkers was found.
var ErrNoChecker = errors.New(
	"neither compute-sanitizer nor cuda-memcheck is on PATH or in the usual places; they come with the CUDA toolkit")

// FindChecker returns NVIDIA's checker: compute-sanitizer from PATH or the usual places, otherwise the old cuda-memcheck. The error is
// ErrNoChecker.
func FindChecker() (*Checker, error) {
	for _, c := range []Checker{{Name: CheckerSanitizer, Path: find("compute-sanitizer")},
		{Name: CheckerLegacy, Path: find("cuda-memcheck")}} {
		if c.Path != "" {
			return &c, nil
		}
	}
	return nil, ErrNoChecker
}

// CheckerAt returns the checker whose program is at path. It is the old one if its name contains "cuda-memcheck".
func CheckerAt(path string) (*Checker, error) {
	full, err := exec.LookPath(path)
	if err != nil {
		return nil, fmt.Errorf("no checker can be started as %s: %w", path, err)
	}
	if strings.Contains(filepath.Base(path), "cuda-memcheck") {
		return &Checker{Name: CheckerLegacy, Path: full}, nil
	}
	return &Checker{Name: CheckerSanitizer, Path: full}, nil
}

// TenonChecker returns the checker of Tenon's simulator, for Go programs that use Tenon. It needs no GPU, and hides any GPU from the
// program.
func TenonChecker() *Checker { return &Checker{Name: CheckerTenon} }

// find returns a program's path, or "".
func find(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, dir := range usual[name] {
		found, _ := filepath.Glob(filepath.Join(dir, name)) // the patterns are constants
		slices.Sort(found)
		for _, p := range slices.Backward(found) {
			if s, err := os.Stat(p); err == nil && !s.IsDir() && s.Mode()&0o111 != 0 {
				return p
			}
		}
	}
	return ""
}

// Settings names the checker's settings other than the tool, for a [Header].
func (c *Checker) Settings() (names []string) {
	for _, s := range []struct {
		on   bool
		name string
	}{{c.Leaks, "leaks"}, {c.StreamOrder, "stream-order"}, {c.Cached, "cached"}} {
		if s.on {
			names = append(names, s.name)
		}
	}
	return append(names, c.Options...)
}

// Tools returns what the checker can look for.
func (c *Checker) Tools() []Tool { return []Tool{Memcheck, Racecheck, Initcheck, Synccheck} }

// Command returns how to run args under the tool; for Tenon's checker, which can look for everything at once, the tool may be empty. report
// is a file for the report, which must not exist yet.
func (c *Checker) Command(tool Tool, args []string, report string) Invocation {
	inv := Invocation{Report: report}
	if !c.Cached && c.Name != CheckerTenon {
		inv.Env = append(inv.Env, "PYTORCH_NO_CUDA_MEMORY_CACHING=1")
	}
	switch c.Name {
	case CheckerTenon:
		inv.Args = args
		looked := string(tool)
		if tool == "" {
			looked = "memcheck,racecheck,initcheck,synccheck"
		}
		if c.Leaks && (tool == Memcheck || tool == "") {
			looked += ",leaks"
		}
		if c.Cached {
			looked += ",cached"
		}
		inv.Env = append(inv.Env, "CUDA_VISIBLE_DEVICES=", "TENON_CHECK="+report, "TENON_CHECK_TOOLS="+looked)
		return inv
	case CheckerLegacy:
		inv.Report = "" // its report is part of the output
		inv.Args = []string{c.Path, "--error-exitcode", "1"}
		if tool != Memcheck { // its default; the contract's command names none
			inv.Args = append(inv.Args, "--tool", string(tool))
		}
	default:
		// Which processes it checks by default depends on its version; tests may do their work in child processes.
		inv.Args = []string{c.Path, "--tool", string(tool), "--error-exitcode", "1", "--print-limit", printLimit,
			"--require-cuda-init", "no",
			"--target-processes", "all", "--log-file", report}
		if c.StreamOrder && tool == Memcheck {
			inv.Args = append(inv.Args, "--track-stream-ordered-races", "all")
		}
	}
	looked := string(tool)
	if c.Leaks && tool == Memcheck {
		inv.Args = append(inv.Args, "--leak-check", "full")
		looked += ",leaks" // Tenon then leaves leaks to the checker when it closes a device
	}
	inv.Env = append(inv.Env, "TENON_CHECK_TOOLS="+looked) // and leaves naming a faulty kernel to memcheck
	inv.Args = append(append(inv.Args, c.Options...), args...)
	inv.Env = append(inv.Env, "TENON_LINE_INFO=1")
	return inv
}
