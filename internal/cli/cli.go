// Package cli holds the commands of the program tenon, one file for each.
// It must not depend on how devices compute: it asks the packages below it and formats their answers.
package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"tenon.dev/internal/terminal"
)

// began is the time when the program's own code started.
var began = time.Now()

// commands is the command line.
type commands struct {
	Compile   compileCommands  `cmd:"" help:"Show what package compile did with a program's calls."`
	Doctor    doctor           `cmd:"" help:"Report what Tenon can run on here, what is missing and what that costs, and try it out."`
	Memcheck  memcheckCommands `cmd:"" help:"Run each test in its own process under a GPU memory checker, in parallel across the GPUs."`
	Memviz    memvizCommand    `cmd:"" help:"Show a memory snapshot from Tenon or PyTorch as a page or as text."`
	Memreplay memreplay        `cmd:"" help:"Replay the trace of a memory snapshot under other allocator settings and compare their memory use."`
	Profile   profileCommand   `cmd:"" help:"Show a recorded profile as a table, a page, a trace or a pprof profile."`
	Version   version          `cmd:"" help:"Print the version."`
}

// console is where a command writes: results to out, the rest to err. Both print text from programs and files as [terminal.Writer] does,
// so that no text controls a terminal. args are the arguments after --, for a program that the command starts.
type console struct {
	out, err io.Writer
	// file is standard output, for a file that is written unchanged, and screen is standard error, for progress bars.
	file, screen io.Writer
	args         []string
}

// output remembers the first write error, which print calls ignore.
type output struct {
	to io.Writer

	mu  sync.Mutex
	err error
}

// Write implements [io.Writer].
func (o *output) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.err = cmp.Or(o.err, err)
	}
	return n, err
}

// failed returns an error if not everything was written.
func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("the output is not whole: %w", o.err)
}

// exitError ends a command with a particular exit status. A nil cause prints nothing, since the command has printed everything.
type exitError struct {
	status int
	cause  error
}

// Error returns the cause's text.
func (e *exitError) Error() string {
	if e.cause == nil {
		return ""
	}
	return e.cause.Error()
}

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.cause }

// inFull returns the command line that args stand for: no arguments and "help" ask for help, on a command if one follows.
func inFull(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"--help"}
	case args[0] == "help":
		return append(args[1:len(args):len(args)], "--help")
	case args[0] == "--version":
		return append([]string{"version"}, args[1:]...)
	}
	return args
}

// Main runs the command that args name and returns the exit status: 0, or, after one sentence on stderr, 1 for a failure, 2 for an
// invalid command line, or a status of the command's own.
func Main(args []string, stdout, stderr io.Writer) int {
	exit := -1
	out := &output{to: stdout}
	text, errText := &terminal.Writer{To: out}, &terminal.Writer{To: stderr}
	con := &console{out: text, err: errText, file: out, screen: stderr}
	if i := slices.Index(args, "--"); i >= 0 && args[0] == "memcheck" {
		args, con.args = args[:i], args[i+1:]
	}
	var c commands
	parser, err := kong.New(&c, kong.Name("tenon"), kong.Description("Tools for Tenon, the GPU runtime for Go.\n\n"+
		"Exit status: 0 success; 1 failure; 2 a command line that cannot be used. memcheck has statuses of its own."),
		kong.Writers(text, errText), kong.Exit(func(code int) { exit = code }), kong.BindTo(text, (*io.Writer)(nil)),
		kong.Bind(con), kong.Vars{"cpus": strconv.Itoa(runtime.NumCPU())})
	if err != nil {
		fmt.Fprintln(errText, "tenon:", err)
		return 1
	}
	parser.Model.HelpFlag.Help = "Show this help."
	ctx, err := parser.Parse(inFull(args))
	done := false
	switch {
	case exit >= 0: // --help did it
		err = nil
	case err != nil:
		err = usageError(err)
	default:
		err, done = ctx.Run(), true
	}
	_, _ = text.Flush(), errText.Flush() // out remembers the error
	if lost := out.failed(); lost != nil && (err == nil || !done) {
		err, done = lost, false
	}
	if err == nil {
		return max(exit, 0)
	}
	if !done && len(args) > 0 && args[0] == "memcheck" {
		err = notRun(err) // its status 1 says that a test failed
	}
	status := 1
	var own *exitError
	if errors.As(err, &own) {
		status = own.status
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(errText, "tenon:", text)
	}
	return status
}
