package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"tenon.dev/fault"
	"tenon.dev/internal/knob"
)

// compileBisect is the command line of tenon compile bisect.
type compileBisect struct {
	Command []string `arg:"" passthrough:"" help:"Command whose exit status is not 0 with package compile, and 0 without it."`
}

// compilePart is a line of the log of package compile.
type compilePart struct {
	Kind, Kernel, Text, What, From, To string
	Number                             int
	Lines                              []string
}

// bisection runs the command.
type bisection struct {
	ctx     context.Context
	con     *console
	command []string
	log     string
	runs    int
}

// Run searches and prints what it finds.
func (c *compileBisect) Run(con *console) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "tenon-bisect-")
	if err != nil {
		return err
	}
	if len(c.Command) > 1 && c.Command[0] == "--" {
		c.Command = c.Command[1:]
	}
	b := &bisection{ctx: ctx, con: con, command: c.Command, log: filepath.Join(dir, "log")}
	return errors.Join(b.search(), os.RemoveAll(dir))
}

// search finds the first part with which the command fails.
func (b *bisection) search() error {
	failed, err := b.fails("on", "", 0)
	if err != nil {
		return err
	}
	if !failed {
		return errors.New("the command passes with compile; there is nothing to find")
	}
	if failed, err = b.fails("off", "", 0); err != nil {
		return err
	}
	if failed {
		return errors.New("the command fails without compile too (TENON_COMPILE=off); look for the fault there")
	}
	if _, err := b.fails("compare", "", 0); err != nil {
		return err
	}
	if found, err := b.parts("difference"); len(found) > 0 || err != nil {
		if err == nil {
			found[0].printDifference(b.con.out)
		}
		return err
	}
	fmt.Fprintln(b.con.err, "no kernel gives other bits than its calls do one by one; the search goes on")
	if failed, err = b.fails("save", "", 0); err != nil {
		return err
	}
	if !failed {
		fmt.Fprintln(b.con.out, recomputeFails)
		return nil
	}
	for _, try := range []struct{ mode, kind string }{{"fusion", "group"}, {"graphs", "graph"}, {"on", "graph"}} {
		if failed, err = b.fails(try.mode, "", 0); err != nil {
			return err
		}
		if failed {
			return b.first(try.mode, try.kind)
		}
	}
	return errors.New("the command failed and then passed with the same settings; it must fail every time")
}

const recomputeFails = "the command passes if callables save all values that their backward passes read (TENON_COMPILE=save): values " +
	"that are computed again differ\nset compile.Opt.NoRecompute for the callable until that is mended"

// first finds the lowest number of parts of the kind with which the command fails, after a run that has failed with all.
func (b *bisection) first(mode, kind string) error {
	all, err := b.parts(kind)
	if err != nil {
		return err
	}
	failed, err := b.fails(mode, kind, 0)
	if err != nil {
		return err
	}
	if failed {
		return fmt.Errorf("the command fails with TENON_COMPILE=%s though no %s takes part; the fault is in what runs later than "+
			"without compile, or not at all",
			mode, kind)
	}
	passes, fails := 0, len(all)
	for fails-passes > 1 {
		n := passes + (fails-passes)/2
		if failed, err = b.fails(mode, kind, n); err != nil {
			return err
		}
		if failed {
			fails = n
		} else {
			passes = n
		}
	}
	if failed, err = b.fails(mode, kind, fails); err != nil {
		return err
	}
	if all, err = b.parts(kind); err != nil {
		return err
	}
	if !failed || len(all) < fails || fails == 0 {
		return errors.New("the command does not do the same in every run; it must fail every time, and call operations in the same order")
	}
	all[fails-1].print(b.con.out, passes)
	return nil
}

// fails runs the command with at most most parts of the kind, or with all parts if kind is "", and reports whether it failed.
func (b *bisection) fails(mode, kind string, most int) (bool, error) {
	if err := os.RemoveAll(b.log); err != nil {
		return false, err
	}
	cmd := exec.CommandContext(b.ctx, b.command[0], b.command[1:]...)
	cmd.Env = append(cmd.Environ(), knob.Compile.Name()+"="+mode, knob.CompileLog.Name()+"="+b.log)
	limits := map[string]string{"group": knob.CompileGroups.Name(), "graph": knob.CompileGraphs.Name()}
	said := knob.Compile.Name() + "=" + mode
	for _, k := range []string{"group", "graph"} {
		n := knob.MaxCompileParts
		if k == kind {
			n = most
			said += fmt.Sprintf(" %s=%d", limits[k], n)
		}
		cmd.Env = append(cmd.Env, limits[k]+"="+strconv.Itoa(n))
	}
	err := cmd.Run()
	b.runs++
	var exit *exec.ExitError
	switch {
	case b.ctx.Err() != nil:
		return false, errors.New("interrupted")
	case err != nil && !errors.As(err, &exit):
		return false, fault.Wrap(fault.System, cmp.Or(errors.Unwrap(err), err), "cannot run %q", b.command[0])
	}
	verdict := "passes"
	if err != nil {
		verdict = "fails"
	}
	fmt.Fprintf(b.con.err, "run %d: %s %s\n", b.runs, said, verdict)
	return err != nil, nil
}

// parts returns the parts of the kind that the last run logged.
func (b *bisection) parts(kind string) (all []compilePart, err error) {
	f, err := os.Open(b.log)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		var p compilePart
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // a killed command may leave an incomplete line
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if p.Kind == kind {
			all = append(all, p)
		}
	}
}

// printDifference prints a kernel that gives other bits than its calls.
func (p *compilePart) printDifference(w io.Writer) {
	fmt.Fprintf(w, "a kernel gives other bits than its calls do one by one\n%s\n", p.What)
	p.printRest(w)
}

func (p *compilePart) print(w io.Writer, passes int) {
	fmt.Fprintf(w, "first failure with %s %d; it passes with %d\n", p.Kind, p.Number, passes)
	p.printRest(w)
}

func (p *compilePart) printRest(w io.Writer) {
	if p.Kernel != "" {
		fmt.Fprintf(w, "kernel %s\nsegment from %s to %s\n", p.Kernel, p.From, p.To)
	}
	fmt.Fprintf(w, "lines %s\n%s", strings.Join(p.Lines, ", "), p.Text)
}
