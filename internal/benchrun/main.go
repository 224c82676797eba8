package benchrun

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"tenon.dev/fault"
)

var (
	runFile   = flag.String("runfile", "", "merge the results of this test binary into the run file of this name")
	runCommit = flag.String("runcommit", "", "the commit that the results and profiles are of")
)

// Commit returns the commit that -runcommit names, or "".
func Commit() string { return *runCommit }

// recorded are the figures passed to Record.
var recorded struct {
	mu      sync.Mutex
	figures []Figure
}

// Record adds figures to the run file that Main writes. It may be called from any goroutine.
func Record(figures ...Figure) {
	recorded.mu.Lock()
	defer recorded.mu.Unlock()
	recorded.figures = append(recorded.figures, figures...)
}

// Main runs a test binary's tests and benchmarks and returns the exit status; a TestMain calls it. With -runfile FILE it merges the
// results, and the figures passed to Record, into FILE. device returns the name of the device that the tests used, and its driver with the
// version; it is called after the tests. pkg is the package's folder within the module; the binary must run in the module's folder or below
// it.
func Main(m *testing.M, pkg string, device func() (name, driver string)) int {
	flag.Parse()
	if *runFile == "" {
		return m.Run()
	}
	// Test results are logged only with -test.v, and to the value of os.Stdout when the tests start.
	if err := flag.Set("test.v", "true"); err != nil {
		fmt.Fprintln(os.Stderr, "benchrun:", err)
		return 1
	}
	var log bytes.Buffer
	status, err := tee(m, &log)
	if err == nil {
		err = save(*runFile, pkg, &log, device)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchrun:", err)
		return 1
	}
	return status
}

// tee runs the tests while copying standard output to log.
func tee(m interface{ Run() int }, log io.Writer) (status int, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fault.Wrap(fault.System, err, "cannot copy the tests' output")
	}
	stdout := os.Stdout
	os.Stdout = w
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.MultiWriter(stdout, log), r)
		copied <- err
	}()
	status = m.Run()
	os.Stdout = stdout
	if err = w.Close(); err == nil {
		err = <-copied
	}
	if err != nil {
		err = fault.Wrap(fault.System, err, "cannot copy the tests' output")
	}
	return status, err
}

// save merges a log and the recorded figures into the named run file.
func save(name, pkg string, log io.Reader, device func() (string, string)) error {
	tests, figures, err := ParseLog(pkg, log)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "cannot read the tests' output")
	}
	root, err := Root()
	if err != nil {
		return err
	}
	now := &Run{Date: time.Now().UTC().Format(time.DateOnly), Host: host(), Go: runtime.Version() + " " + runtime.GOOS + "/" +
		runtime.GOARCH, Commit: *runCommit}
	now.Device, now.Driver = device()
	if now.Packages, err = HashPackages(root); err != nil {
		return err
	}
	recorded.mu.Lock()
	defer recorded.mu.Unlock()
	now.Add(figures...)
	now.Add(recorded.figures...)
	now.AddTests(tests...)
	if _, err := os.Stat(name); err != nil {
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			return fault.Wrap(fault.System, err, "cannot make the run file's folder")
		}
		return now.Write(name)
	}
	run, err := Read(name)
	if err == nil {
		err = run.Merge(now)
	}
	if err != nil {
		return err
	}
	return run.Write(name)
}

// host names the processor and counts the threads that the process may use.
func host() string {
	model := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.TrimSpace(strings.TrimLeft(name, "\t :"))
				break
			}
		}
	}
	return fmt.Sprintf("%s, %d threads", model, runtime.GOMAXPROCS(0))
}
