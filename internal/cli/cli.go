// Package cli is the commands of the program tenon, one file for each.
// It may not know how devices compute: it asks the packages below and writes for people.
package cli

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/alecthomas/kong"
)

// began is when the program's own code began to run.
var began = time.Now()

// commands is the command line.
type commands struct {
	Doctor    doctor           `cmd:"" help:"Say what is there to run on, what is missing and what that costs, and try it."`
	Memcheck  memcheckCommands `cmd:"" help:"Run every test in its own process under a checker of GPU memory, in parallel over the GPUs."`
	Memviz    memvizCommand    `cmd:"" help:"Show a memory snapshot, Tenon's or PyTorch's, as a page or as text."`
	Memreplay memreplay        `cmd:"" help:"Replay the trace of a memory snapshot under other allocator settings, and compare what they would cost."`
	Version   version          `cmd:"" help:"Print the version."`
}

// console is where a command writes: results to out, the rest to err. args are what came after --, for a program that the command starts.
type console struct {
	out, err io.Writer
	args     []string
}

// exitError ends a command with a status of its own. A nil cause says nothing, since the command has said all.
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

// inFull returns the command line that args stand for: nothing and "help" ask for help, of a command where one follows.
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

// withHelp adds to an error of the command line where help is.
func withHelp(err error) error {
	command := ""
	var e *kong.ParseError
	if errors.As(err, &e) {
		for _, p := range e.Context.Path {
			if p.Command != nil {
				command = " " + p.Command.Name // the outermost
				break
			}
		}
	}
	return fmt.Errorf("%w; \"tenon%s --help\" says what there is", err, command)
}

// Main runs the command that args name and returns the exit status: 0, or 1 or the command's own after one sentence on stderr.
func Main(args []string, stdout, stderr io.Writer) int {
	exit := -1
	con := &console{out: stdout, err: stderr}
	if i := slices.Index(args, "--"); i >= 0 && args[0] == "memcheck" {
		args, con.args = args[:i], args[i+1:]
	}
	var c commands
	parser, err := kong.New(&c, kong.Name("tenon"), kong.Description("Tools for Tenon, the GPU runtime for Go."),
		kong.Writers(stdout, stderr), kong.Exit(func(code int) { exit = code }), kong.BindTo(stdout, (*io.Writer)(nil)),
		kong.Bind(con), kong.Vars{"cpus": strconv.Itoa(runtime.NumCPU())})
	if err != nil {
		fmt.Fprintln(stderr, "tenon:", err)
		return 1
	}
	ctx, err := parser.Parse(inFull(args))
	if exit >= 0 {
		return exit // --help did it
	}
	if err != nil {
		err = withHelp(err)
	}
	if err == nil {
		err = ctx.Run()
	} else if len(args) > 0 && args[0] == "memcheck" {
		err = notRun(err) // its status 1 says that a test failed
	}
	if err == nil {
		return 0
	}
	status := 1
	var own *exitError
	if errors.As(err, &own) {
		status = own.status
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(stderr, "tenon:", text)
	}
	return status
}
