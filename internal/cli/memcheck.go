package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"tenon.dev/internal/driver/libcuda"
	"tenon.dev/memcheck"
)

// memcheckCommands is tenon memcheck.
type memcheckCommands struct {
	Run   memcheckRun   `cmd:"" default:"withargs" help:"Run every test of a target, each in its own process under a checker of GPU memory."`
	Merge memcheckMerge `cmd:"" help:"Join the results of several runs, such as the shards of one."`
}

// memcheckRun is the command line of a run.
type memcheckRun struct {
	Filename string `arg:"" optional:"" help:"What to test: a Python file, a pattern of Go packages (./...), a compiled Go test binary; with --run-command a title."`
	Timeout  string `arg:"" optional:"" default:"600" help:"Kill a test after so many seconds, or a time such as 10m."`

	Strict       bool     `help:"Count errors that come from libraries alone (cuBLAS, cuDNN, cuFFT), which are ignored otherwise."`
	Libraries    []string `type:"existingfile" help:"File with further libraries whose errors are ignored: a name and the text of its stack lines, a line each."`
	FindingsOnly bool     `help:"Ignore tests that fail by themselves although the checker found nothing."`
	Nproc        int      `default:"${cpus}" help:"Tests that run at a time."`
	GPUs         string   `name:"gpus" default:"all" help:"all: the workers take the visible GPUs in turn; or a list with an entry for each worker: 0:1 or 1,2:3,4."`
	CI           bool     `name:"ci" help:"Log to standard output, without a progress bar, and stop at the first failure."`
	Nohang       bool     `help:"A timeout is no failure."`
	Split        *int     `help:"Split the tests into so many pieces; default: what the scheduler's environment says, or 1."`
	Rank         *int     `help:"Run this piece, from 0; default: what the scheduler's environment says, or 0."`

	Tool          []string `default:"memcheck" help:"What to look for: memcheck, racecheck, initcheck, synccheck, or all. Each test runs once under each."`
	Checker       string   `default:"auto" help:"auto: compute-sanitizer, or cuda-memcheck, or without a GPU, for Go tests and programs built with Tenon, Tenon's own; or compute-sanitizer, cuda-memcheck, tenon, or a path."`
	CheckerOption []string `sep:"none" help:"Further option for the checker."`
	Leaks         bool     `help:"Report device memory that is never freed."`
	StreamOrder   bool     `help:"Report stream-ordered allocations that another stream uses without an order."`
	Cached        bool     `help:"Leave the caching allocators on, which hide some errors."`

	Filter  string `placeholder:"REGEXP" help:"Run only tests whose names match."`
	Skip    string `placeholder:"REGEXP" help:"Leave out tests whose names match."`
	KeepCPU bool   `name:"keep-cpu" help:"Keep tests whose names contain cpu and not cuda."`
	List    bool   `help:"Print the names of the tests that would run, and run none."`

	Kind        string `enum:"auto,pytest,go,gobinary" default:"auto" help:"What the target is: auto, pytest, go, gobinary."`
	Python      string `help:"Python interpreter."`
	Runner      string `enum:"auto,script,pytest" default:"auto" help:"How a test of a Python file runs: script (python FILE TEST) or pytest; auto: script if the file runs its tests itself."`
	GoFlags     string `help:"Flags for go test -c."`
	ListCommand string `placeholder:"COMMAND" help:"Command that prints the names of the tests of any other program, one a line or as GoogleTest does."`
	RunCommand  string `placeholder:"COMMAND" help:"Command that runs the test {test}."`
	ListFormat  string `enum:"auto,lines,gtest" default:"auto" help:"What --list-command prints."`
	Dir         string `type:"existingdir" help:"Working directory of a Go test binary, or of the two commands."`

	Out           string   `help:"Folder for result.log, result.jsonl, result.xml and result.html; default: this one, or shard-RANK for a piece that the environment chose."`
	Source        []string `type:"existingdir" help:"Folder where the report looks for source lines; default: this one."`
	Resume        bool     `help:"Go on with the run that result.jsonl is the journal of."`
	MaxOutput     int64    `default:"1024" help:"Kill a test that prints more than so many MiB; 0: no limit."`
	KeepOutput    bool     `help:"Keep the end of what a test prints also if it passes, in the journal and the report."`
	ExitZero      bool     `help:"Exit with status 0 also after failures and timeouts."`
	RequireReport bool     `help:"Exit with status 6 if the checker said nothing of some test that passed."`
}

// memcheckMerge is the command line of a merge.
type memcheckMerge struct {
	Journals      []string `arg:"" help:"Files result.jsonl, or folders that hold one."`
	Out           string   `default:"merged" help:"Folder for result.log, result.jsonl, result.xml and result.html."`
	Source        []string `type:"existingdir" help:"Folder where the report looks for source lines; default: none, since a journal may name any file."`
	ExitZero      bool     `help:"Exit with status 0 also after failures and timeouts."`
	RequireReport bool     `help:"Exit with status 6 if the checker said nothing of some test that passed."`
}

// Help documents what the command line's grammar does not show.
func (memcheckCommands) Help() string {
	return "Arguments after -- go to every test of a Python file or of Go tests: tenon memcheck ops.test 600 -- -device=cuda\n\n" +
		"Exit status: 0 every test passed or was ignored; 1 a test failed (with --ci also: timed out); 2 interrupted, or a merge lacks shards; " +
		"3 no test failed and some timed out; 4 nothing ran; 5 no test is left after the filters; 6 see --require-report. docs/memcheck.md has the rest."
}

// notRun gives an error the status of a run that did not begin.
func notRun(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{int(memcheck.StatusNotRun), err}
}

// target opens what is to be tested.
func (c *memcheckRun) target(args []string) (memcheck.Target, error) {
	if c.Filename == "" && c.RunCommand == "" && c.ListCommand == "" {
		//tenon:quoted what it tests, as run_cuda_memcheck.py does, may be such a file
		return nil, errors.New("there is nothing to test: name a Python file, Go packages or a Go test binary, or give --list-command and --run-command")
	}
	flags := strings.Fields(c.GoFlags)
	auto := func(s string) string {
		if s == "auto" {
			return ""
		}
		return s
	}
	return memcheck.OpenTarget(c.Filename, memcheck.TargetOptions{Kind: auto(c.Kind), Python: c.Python, Runner: auto(c.Runner), GoFlags: flags,
		List: c.ListCommand, Run: c.RunCommand, Format: auto(c.ListFormat), Dir: c.Dir,
		Args: args})
}

// limit reads the timeout.
func (c *memcheckRun) limit() (time.Duration, error) {
	if n, err := strconv.Atoi(c.Timeout); err == nil && n > 0 && n <= int(math.MaxInt64/time.Second) {
		return time.Duration(n) * time.Second, nil
	}
	if d, err := time.ParseDuration(c.Timeout); err == nil && d > 0 {
		return d, nil
	}
	return 0, fmt.Errorf("%q is no timeout; give whole seconds, or a time such as 10m", c.Timeout)
}

// tools reads the list of tools.
func (c *memcheckRun) tools(checker *memcheck.Checker) ([]memcheck.Tool, error) {
	known := checker.Tools()
	var tools []memcheck.Tool
	for _, name := range c.Tool {
		if name == "all" {
			return known, nil
		}
		if !slices.Contains(known, memcheck.Tool(name)) {
			return nil, fmt.Errorf("%q is no tool of %s; it has %v", name, checker.Name, known)
		}
		if !slices.Contains(tools, memcheck.Tool(name)) {
			tools = append(tools, memcheck.Tool(name))
		}
	}
	return tools, nil
}

// checker finds the checker that is asked for.
func (c *memcheckRun) checker(t memcheck.Target, gpus int) (checker *memcheck.Checker, err error) {
	switch c.Checker {
	case "auto":
		checker, err = memcheck.ChooseChecker(t, gpus)
	case "tenon":
		checker = memcheck.TenonChecker()
	default:
		checker, err = memcheck.CheckerAt(c.Checker)
		if err != nil && !strings.ContainsRune(c.Checker, filepath.Separator) {
			// Perhaps it is not on PATH, but in one of the usual places.
			if usual, e := memcheck.FindChecker(); e == nil && filepath.Base(usual.Path) == c.Checker {
				checker, err = usual, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	checker.Leaks, checker.StreamOrder, checker.Cached, checker.Options = c.Leaks, c.StreamOrder, c.Cached, c.CheckerOption
	return checker, nil
}

// selection reads the filters and the shard.
func (c *memcheckRun) selection() (s memcheck.Selection, err error) {
	s.KeepCPU = c.KeepCPU
	for _, x := range []struct {
		name, text string
		to         **regexp.Regexp
	}{{"--filter", c.Filter, &s.Match}, {"--skip", c.Skip, &s.Skip}} {
		if x.text == "" {
			continue
		}
		if *x.to, err = regexp.Compile(x.text); err != nil {
			return s, fmt.Errorf("%s: %w", x.name, err)
		}
	}
	s.Shard, err = memcheck.EnvironmentShard(c.Split, c.Rank)
	return s, err
}

// libraries reads the lists of libraries.
func (c *memcheckRun) libraries() (memcheck.Libraries, error) {
	libs := memcheck.DefaultLibraries()
	for _, name := range c.Libraries {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		err = libs.Read(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return libs, nil
}

// countGPUs returns the number of the machine's NVIDIA GPUs. On Linux it counts their device files: the driver would take memory and time.
func countGPUs() int {
	if runtime.GOOS == "linux" {
		found, _ := filepath.Glob("/dev/nvidia[0-9]*")
		return len(found)
	}
	n, err := libcuda.New().DeviceCount()
	if err != nil {
		return 0
	}
	return n
}

// Run lists the tests, runs them and writes the reports.
func (c *memcheckRun) Run(con *console) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the program at once.
	context.AfterFunc(ctx, stop)
	limit, err := c.limit()
	if err != nil {
		return notRun(err)
	}
	if c.Nproc < 1 {
		return notRun(fmt.Errorf("--nproc %d: at least one test must run at a time", c.Nproc))
	}
	if c.MaxOutput < 0 || c.MaxOutput > math.MaxInt64>>20 {
		return notRun(fmt.Errorf("--max-output %d is no number of MiB; 0 is no limit", c.MaxOutput))
	}
	target, err := c.target(con.args)
	if err != nil {
		return notRun(err)
	}
	defer target.Close()
	selection, err := c.selection()
	if err != nil {
		return notRun(err)
	}
	visible := memcheck.VisibleGPUs(countGPUs())
	gpus, err := memcheck.AssignGPUs(c.GPUs, c.Nproc, visible)
	if err != nil {
		return notRun(err)
	}
	libs, err := c.libraries()
	if err != nil {
		return notRun(err)
	}
	if c.List {
		return notRun(c.printTests(ctx, con, target, selection))
	}
	checker, err := c.checker(target, len(visible))
	if err != nil {
		return notRun(err)
	}
	tools, err := c.tools(checker)
	if err != nil {
		return notRun(err)
	}
	tests, err := target.Tests(ctx)
	if ctx.Err() != nil {
		return &exitError{int(memcheck.StatusInterrupted), errors.New("interrupted while the tests were listed")}
	}
	if err != nil {
		return notRun(err)
	}
	run := &memcheck.Run{Target: target, Checker: checker, Libraries: libs, GPUs: gpus, Limit: limit, MaxPrinted: c.MaxOutput << 20,
		Strict: c.Strict, FindingsOnly: c.FindingsOnly, FailFast: c.CI, NoHang: c.Nohang, KeepOutput: c.KeepOutput}
	selected := selection.Of(tests)
	if len(selected) == 0 {
		fmt.Fprintf(con.err, "no test is left: %s has %d, before the filters for names and the processor, and the split\n", target, len(tests))
	}
	for _, t := range selected {
		for _, tool := range tools {
			run.Jobs = append(run.Jobs, memcheck.Job{Test: t, Tool: tool})
		}
	}
	out := c.Out
	if out == "" {
		out = "."
		if selection.Shard.Source != "" {
			out = fmt.Sprintf("shard-%d", selection.Shard.Rank)
		}
	}
	host, _ := os.Hostname()
	return c.run(ctx, con, run, out, memcheck.Header{Target: target.String(), Checker: checker.Name, Tools: tools, Args: con.args, Options: checker.Settings(), Shard: selection.Shard,
		Jobs: len(run.Jobs), Digest: memcheck.Digest(run.Jobs), Strict: c.Strict, FindingsOnly: c.FindingsOnly, NoHang: c.Nohang,
		Limit: limit.Seconds(), GPUs: gpus, Host: host, Began: time.Now()})
}

// printTests prints the selected tests.
func (c *memcheckRun) printTests(ctx context.Context, con *console, target memcheck.Target, s memcheck.Selection) error {
	tests, err := target.Tests(ctx)
	if err != nil {
		return err
	}
	for _, t := range s.Of(tests) {
		fmt.Fprintln(con.out, t.Name)
	}
	return nil
}

// stopped are the contract's sentences for a run that its first failure or hang ended.
var stopped = map[string]string{"failure": "Failure detected on cuda-memcheck", "hang": "Hang detected on cuda-memcheck"}

// run runs the jobs with the journal, the log and the progress, and then writes the reports.
func (c *memcheckRun) run(ctx context.Context, con *console, run *memcheck.Run, out string, h memcheck.Header) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return notRun(fmt.Errorf("cannot make the folder for results: %w", err))
	}
	name := filepath.Join(out, memcheck.JournalName)
	var journal *memcheck.Journal
	var err error
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if c.Resume {
		journal, run.Before, run.Jobs, err = memcheck.ResumeJournal(name, h, run.Jobs)
		flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	} else {
		journal, err = memcheck.CreateJournal(name, h)
	}
	if err != nil {
		return notRun(err)
	}
	if run.Before != nil && run.Before.Ran() > 0 {
		fmt.Fprintf(con.err, "going on with %s: %d of %d tests have run\n", name, run.Before.Ran(), h.Jobs)
	}
	run.Observers = append(run.Observers, journal)
	log := &memcheck.Log{Out: con.out, Tools: len(h.Tools) > 1}
	var progress *memcheck.Progress
	var file *os.File
	if !c.CI {
		if file, err = os.OpenFile(filepath.Join(out, "result.log"), flags, 0o644); err != nil {
			return notRun(errors.Join(fmt.Errorf("cannot make the log: %w", err), journal.Close(nil)))
		}
		log.Out = file
		progress = &memcheck.Progress{Out: con.screen, Terminal: isTerminal(con.screen), Title: h.Target, Total: h.Jobs}
		progress.Start(run.Before)
		run.Observers = append(run.Observers, progress)
	}
	run.Observers = append(run.Observers, log)
	summary, err := run.Do(ctx)
	if progress != nil {
		progress.Stop()
		err = errors.Join(err, file.Close())
	}
	if err != nil { // the journal's or the log's, or the runner's own: no summary is to claim more
		_ = journal.Close(nil)
		return notRun(fmt.Errorf("the run stopped: %w; when that is mended, the same command with --resume goes on", err))
	}
	if err = journal.Close(summary); err != nil {
		return notRun(err)
	}
	sources := c.Source
	if len(sources) == 0 {
		sources = []string{"."}
	}
	res, err := writeReports(con, out, sources, name)
	if err != nil {
		return notRun(err)
	}
	// Only PyTorch and Tenon have the cache that the setting is of: Python files and Go tests may use them, and what Tenon's checker saw does.
	if cached := c.RunCommand == "" || h.Checker == memcheck.CheckerTenon; cached && !c.CI && !c.Cached && res.FailedAlone() > 0 {
		fmt.Fprintln(con.err, "device memory is not cached under a checker, so that it sees every use after a free; tests of the cache itself need --cached")
	}
	if summary.Interrupted {
		fmt.Fprintf(con.err, "interrupted; go on with the same command and --resume\n")
	}
	if text := stopped[summary.Stopped]; text != "" {
		fmt.Fprintln(con.err, text)
		return &exitError{int(memcheck.StatusFailed), nil}
	}
	return exitStatus(&res.Summary, c.Nohang, c.RequireReport, c.ExitZero)
}

// exitStatus turns a summary into what the command returns.
func exitStatus(s *memcheck.Summary, noHang, required, zero bool) error {
	status := s.Status(noHang, required)
	if status == memcheck.StatusPassed || zero && status != memcheck.StatusInterrupted {
		return nil
	}
	return &exitError{int(status), nil}
}

// writeReports writes the reports of journals into the folder and the summary to the console. Lines of source come from below the sources alone.
func writeReports(con *console, out string, sources []string, journals ...string) (*memcheck.Results, error) {
	res, err := memcheck.ReadResults(journals...)
	if err != nil {
		return nil, err
	}
	page := filepath.Join(out, "result.html")
	err = errors.Join(writeFile(page, func(w io.Writer) error { return res.WriteHTML(w, sources...) }),
		writeFile(filepath.Join(out, "result.xml"), res.WriteJUnit))
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(con.out, "%s\nreport: %s\n", strings.TrimRight(res.Text(), "\n"), page)
	return res, nil
}

// writeFile writes a file whole: a reader sees the old one or the new one.
func writeFile(name string, fill func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	err = errors.Join(fill(f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot write %s: %w", name, err), os.Remove(f.Name()))
	}
	return nil
}

// Run joins journals.
func (c *memcheckMerge) Run(con *console) error {
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return notRun(fmt.Errorf("cannot make the folder for results: %w", err))
	}
	res, err := writeReports(con, c.Out, c.Source, c.Journals...)
	if err != nil {
		return notRun(err)
	}
	err = errors.Join(writeFile(filepath.Join(c.Out, memcheck.JournalName), func(w io.Writer) error { return res.JoinJournals(w, c.Journals...) }),
		writeFile(filepath.Join(c.Out, "result.log"), res.WriteLog))
	if err != nil {
		return notRun(err)
	}
	noHang := !slices.ContainsFunc(res.Headers, func(h *memcheck.Header) bool { return !h.NoHang })
	return exitStatus(&res.Summary, noHang, c.RequireReport, c.ExitZero)
}

// isTerminal reports whether what is written to w is shown on a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
