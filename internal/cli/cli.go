// Package cli is the commands of the program tenon, one file for each.
// It may not know how devices compute: it asks the packages below and writes for people.
package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/alecthomas/kong"
)

// began is when the program's own code began to run.
var began = time.Now()

// commands is the command line.
type commands struct {
	Doctor  doctor  `cmd:"" help:"Say what is there to run on, what is missing and what that costs, and try it."`
	Version version `cmd:"" help:"Print the version."`
}

// Main runs the command that args name and returns the exit status: 0, or 1 after one sentence on stderr.
func Main(args []string, stdout, stderr io.Writer) int {
	exit := -1
	var c commands
	parser, err := kong.New(&c, kong.Name("tenon"), kong.Description("Tools for Tenon, the GPU runtime for Go."),
		kong.Writers(stdout, stderr), kong.Exit(func(code int) { exit = code }), kong.BindTo(stdout, (*io.Writer)(nil)))
	if err != nil {
		fmt.Fprintln(stderr, "tenon:", err)
		return 1
	}
	ctx, err := parser.Parse(args)
	if exit >= 0 {
		return exit // --help did it
	}
	if err == nil {
		err = ctx.Run()
	}
	if err != nil {
		fmt.Fprintln(stderr, "tenon:", err)
		return 1
	}
	return 0
}
