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
	"tenon.dev/internal/wholefile"
	"tenon.dev/memcheck"
)

// memcheckCommands is tenon memcheck.
type memcheckCommands struct {
	Run   memcheckRun   `cmd:"" default:"withargs" help:"Run each test of a target in its own process under a GPU memory checker."`
	Merge memcheckMerge `cmd:"" help:"Merge the results of several runs, such as the shards of one run."`
}

// memcheckRun is the command line of a run.
type memcheckRun struct {
	Filename string `arg:"" optional:"" help:"What to test: a Python file, a pattern of Go packages (./...), or a compiled Go test binary; with --run-command, a title."`
	Timeout  string `arg:"" optional:"" default:"600" help:"Time after which a test is killed: seconds, or a duration such as 10m."`

	Strict       bool     `help:"Also count errors that come from libraries alone (cuBLAS, cuDNN, cuFFT)."`
	Libraries    []string `placeholder:"FILE" type:"existingfile" help:"File that lists more libraries whose errors to ignore. Each line has a name and the text that its stack lines contain."`
	FindingsOnly bool     `help:"Ignore tests that fail although the checker found nothing."`
	Nproc        int      `default:"${cpus}" help:"Number of tests to run at a time."`
	GPUs         string   `name:"gpus" default:"all" help:"GPUs for the workers: all deals out the visible GPUs in turn; a list such as 0:1 or 1,2:3,4 has an entry for each worker."`
	CI           bool     `name:"ci" help:"Log to standard output without a progress bar, and stop at the first failure."`
	Nohang       bool     `help:"Do not count a timeout as a failure."`
	Split        *int     `placeholder:"N" help:"Number of shards to split the tests into (default: taken from the environment of the scheduler, or 1)."`
	Rank         *int     `placeholder:"N" help:"Number of the shard to run, from 0 (default: taken from the environment of the scheduler, or 0)."`

	Tool          []string `default:"memcheck" help:"Tools to run each test under: memcheck, racecheck, initcheck, synccheck, or all."`
	Checker       string   `default:"auto" help:"Checker: compute-sanitizer, cuda-memcheck, tenon (Tenon's own, for programs built with Tenon) or a path; auto takes one of NVIDIA's, and without a GPU Tenon's own."`
	CheckerOption []string `placeholder:"OPTION" sep:"none" help:"Additional option for the checker; can be given more than once."`
	Leaks         bool     `help:"Also report device memory that is never freed."`
	StreamOrder   bool     `help:"Also report stream-ordered allocations that another stream uses without synchronization."`
	Cached        bool     `help:"Leave the caching allocators on, although they hide some errors."`

	Filter  string `placeholder:"REGEXP" help:"Run only the tests whose names match."`
	Skip    string `placeholder:"REGEXP" help:"Skip the tests whose names match."`
	KeepCPU bool   `name:"keep-cpu" help:"Also run the tests of a Python file whose names contain cpu and not cuda."`
	List    bool   `help:"Print the names of the tests without running them."`

	Kind        string `enum:"auto,pytest,go,gobinary" default:"auto" help:"Kind of the target: auto, pytest, go or gobinary."`
	Python      string `placeholder:"PATH" help:"Python interpreter to use."`
	Runner      string `enum:"auto,script,pytest" default:"auto" help:"How to run a test of a Python file: script (python FILE TEST) or pytest; auto is script if the file runs its own tests."`
	GoFlags     string `placeholder:"FLAGS" help:"Flags for go test -c."`
	ListCommand string `placeholder:"COMMAND" help:"Command that prints the test names of any other program, one per line or as GoogleTest does."`
	RunCommand  string `placeholder:"COMMAND" help:"Command that runs one test; {test} stands for its name."`
	ListFormat  string `enum:"auto,lines,gtest" default:"auto" help:"Format that --list-command prints: auto, lines or gtest."`
	Dir         string `placeholder:"DIR" type:"existingdir" help:"Working directory for a Go test binary, or for the two commands."`

	Out           string   `placeholder:"DIR" help:"Folder for result.log, result.jsonl, result.xml and result.html (default: the current one, or shard-RANK if the shard is taken from the environment)."`
	Source        []string `placeholder:"DIR" type:"existingdir" help:"Folder in which the report looks for source lines (default: the current one)."`
	Resume        bool     `help:"Continue the run recorded in result.jsonl."`
	MaxOutput     int64    `default:"1024" help:"MiB of output after which a test is killed; 0 means no limit."`
	KeepOutput    bool     `help:"Keep the end of the output of passing tests too, in the journal and the report."`
	ExitZero      bool     `help:"Exit with status 0 even after failures and timeouts."`
	RequireReport bool     `help:"Exit with status 6 if the checker reported nothing about a test that passed."`
}

// memcheckMerge is the command line of a merge.
type memcheckMerge struct {
	Journals      []string `arg:"" help:"result.jsonl files, or folders that contain one."`
	Out           string   `placeholder:"DIR" default:"merged" help:"Folder for result.log, result.jsonl, result.xml and result.html."`
	Source        []string `placeholder:"DIR" type:"existingdir" help:"Folder in which the report looks for source lines (default: none, since a journal can name any file)."`
	ExitZero      bool     `help:"Exit with status 0 even after failures and timeouts."`
	RequireReport bool     `help:"Exit with status 6 if the checker reported nothing about a test that passed."`
}

// Help documents details that the command line's grammar does not show.
func (memcheckCommands) Help() string {
	return "Arguments after -- are passed to every test of a Python file or of Go tests: tenon memcheck ops.test 600 -- -device=cuda\n\n" +
		"Exit status: 0 every test passed or was ignored; 1 a test failed (with --ci also: timed out); 2 interrupted, or shards are " +
		"missing from a merge; " +
		"3 no test failed and some timed out; 4 nothing ran; 5 no test is left after filtering; 6 see --require-report. See " +
		"docs/memcheck.md for details."
}

// notRun gives an error the status of a run that did not begin.
func notRun(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{int(memcheck.StatusNotRun), err}
}

// target opens the tests to run.
func (c *memcheckRun) target(args []string) (memcheck.Target, error) {
	if c.Filename == "" && c.RunCommand == "" && c.ListCommand == "" {
		//tenon:quoted what it tests, as run_cuda_memcheck.py does, may be such a file
		return nil, errors.New("there is nothing to test: name a Python file, Go packages or a Go test binary, or give --list-command " +
			"and --run-command")
	}
	flags := strings.Fields(c.GoFlags)
	auto := func(s string) string {
		if s == "auto" {
			return ""
		}
		return s
	}
	return memcheck.OpenTarget(c.Filename, memcheck.TargetOptions{
		Kind: memcheck.TargetKind(auto(c.Kind)), Python: c.Python, Runner: memcheck.PythonRunner(auto(c.Runner)), GoFlags: flags,
		List: c.ListCommand, Run: c.RunCommand, Format: memcheck.ListFormat(auto(c.ListFormat)), Dir: c.Dir, Args: args})
}

// limit reads the timeout.
func (c *memcheckRun) limit() (time.Duration, error) {
	if n, err := strconv.Atoi(c.Timeout); err == nil && n > 0 && n <= int(math.MaxInt64/time.Second) {
		return time.Duration(n) * time.Second, nil
	}
	if d, err := time.ParseDuration(c.Timeout); err == nil && d > 0 {
		return d, nil
	}
	return 0, fmt.Errorf("%q is not a timeout; give whole seconds, or a time such as 10m", c.Timeout)
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
			var names []string
			for _, t := range known {
				names = append(names, string(t))
			}
			return nil, fmt.Errorf("%q is not a tool of %s, which has %s", name, checker.Name, strings.Join(names, ", "))
		}
		if !slices.Contains(tools, memcheck.Tool(name)) {
			tools = append(tools, memcheck.Tool(name))
		}
	}
	return tools, nil
}

// checker finds the requested checker.
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
			return s, fmt.Errorf("%s is not a regular expression: %s", x.name, strings.TrimPrefix(err.Error(), "error parsing regexp: "))
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
		return notRun(fmt.Errorf("--max-output %d is not a number of MiB; 0 means no limit", c.MaxOutput))
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
	selected := chosen(con, selection, tests)
	switch {
	case len(tests) == 0 && c.RunCommand == "" && !strings.HasSuffix(c.Filename, ".py"):
		fmt.Fprintf(con.err, "%s lists no tests, or is not a Go test binary; for another program give --run-command and --list-command\n",
			target)
	case len(selected) == 0:
		fmt.Fprintf(con.err, "no test is left: %s has %d, before the filters and the split\n", target, len(tests))
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
	return c.run(ctx, con, run, out, memcheck.Header{Target: target.String(), Checker: checker.Name, Tools: tools, Args: con.args,
		Options: checker.Settings(), Shard: selection.Shard,
		Jobs: len(run.Jobs), Digest: memcheck.Digest(run.Jobs), Strict: c.Strict, FindingsOnly: c.FindingsOnly, NoHang: c.Nohang,
		Limit: limit.Seconds(), GPUs: gpus, Host: host, Began: time.Now()})
}

// printTests prints the selected tests.
func (c *memcheckRun) printTests(ctx context.Context, con *console, target memcheck.Target, s memcheck.Selection) error {
	tests, err := target.Tests(ctx)
	if err != nil {
		return err
	}
	for _, t := range chosen(con, s, tests) {
		fmt.Fprintln(con.out, t.Name)
	}
	return nil
}

// chosen returns the selected tests, and says on standard error how many are left out.
func chosen(con *console, s memcheck.Selection, tests []memcheck.Test) []memcheck.Test {
	if text := s.LeftOut(tests); text != "" {
		fmt.Fprintln(con.err, text)
	}
	return s.Of(tests)
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
	var file *os.File
	if !c.CI { // before the journal, so that an older run's results stay if the log cannot be made
		if file, err = os.OpenFile(filepath.Join(out, "result.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
			return notRun(fmt.Errorf("cannot make the log: %w", err))
		}
	}
	if c.Resume {
		journal, run.Before, run.Jobs, err = memcheck.ResumeJournal(name, h, run.Jobs)
	} else {
		journal, err = memcheck.CreateJournal(name, h)
	}
	if err == nil && file != nil && !c.Resume {
		if info, e := file.Stat(); e == nil && info.Mode().IsRegular() {
			err = file.Truncate(0)
		}
	}
	if err != nil {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
		return notRun(err)
	}
	if run.Before != nil && run.Before.Ran() > 0 {
		what := "tests have run"
		if len(h.Tools) > 1 {
			what = "runs of tests are done"
		}
		fmt.Fprintf(con.err, "going on with %s: %d of %d %s\n", name, run.Before.Ran(), h.Jobs, what)
	}
	run.Observers = append(run.Observers, journal)
	log := &memcheck.Log{Out: con.out, Tools: len(h.Tools) > 1}
	var progress *memcheck.Progress
	if file != nil {
		log.Out = file
		title := h.Target
		if n := len(h.Tools); n > 1 { // the progress counts runs: a test runs once under each tool
			title += fmt.Sprintf(", runs under %d tools", n)
		}
		progress = &memcheck.Progress{Out: con.screen, Terminal: isTerminal(con.screen), Title: title, Total: h.Jobs}
		progress.Start(run.Before)
		run.Observers = append(run.Observers, progress)
	}
	run.Observers = append(run.Observers, log)
	summary, err := run.Do(ctx)
	if progress != nil {
		progress.Stop()
		err = errors.Join(err, file.Close())
	}
	if err != nil { // an error of the journal, the log or the runner: print no summary that would claim more
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
	// Only PyTorch and Tenon have the cache of this setting: Python files and Go tests may use them, and anything that Tenon's checker
	// saw does.
	if cached := c.RunCommand == "" || h.Checker == memcheck.CheckerTenon; cached && !c.CI && !c.Cached && res.FailedAlone() > 0 {
		fmt.Fprintln(con.err, "device memory is not cached under a checker, so that it sees every use after a free; tests of the cache "+
			"itself need --cached")
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

// exitStatus turns a summary into the command's result.
func exitStatus(s *memcheck.Summary, noHang, required, zero bool) error {
	status := s.Status(noHang, required)
	if status == memcheck.StatusPassed || zero && status != memcheck.StatusInterrupted {
		return nil
	}
	return &exitError{int(status), nil}
}

// writeReports writes the reports of journals into the folder and the summary to the console. Source lines come only from files below
// sources.
func writeReports(con *console, out string, sources []string, journals ...string) (*memcheck.Results, error) {
	res, err := memcheck.ReadResults(journals...)
	if err != nil {
		return nil, err
	}
	page := filepath.Join(out, "result.html")
	err = errors.Join(wholefile.Write("", page, func(w io.Writer) error { return res.WriteHTML(w, sources...) }),
		wholefile.Write("", filepath.Join(out, "result.xml"), res.WriteJUnit))
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(con.out, "%s\nreport: %s\n", strings.TrimRight(res.Text(), "\n"), page)
	return res, nil
}

// Run merges journals.
func (c *memcheckMerge) Run(con *console) error {
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return notRun(fmt.Errorf("cannot make the folder for results: %w", err))
	}
	res, err := writeReports(con, c.Out, c.Source, c.Journals...)
	if err != nil {
		return notRun(err)
	}
	err = errors.Join(wholefile.Write("", filepath.Join(c.Out, memcheck.JournalName), func(w io.Writer) error {
		return res.JoinJournals(w, c.Journals...)
	}),
		wholefile.Write("", filepath.Join(c.Out, "result.log"), res.WriteLog))
	if err != nil {
		return notRun(err)
	}
	noHang := !slices.ContainsFunc(res.Headers, func(h *memcheck.Header) bool { return !h.NoHang })
	return exitStatus(&res.Summary, noHang, c.RequireReport, c.ExitZero)
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
