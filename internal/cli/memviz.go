package cli

import (
	"context"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/terminal"
	"tenon.dev/memviz"
)

// memvizCommand is tenon memviz: the viewer, and a report for each of its commands.
type memvizCommand struct {
	Show        memvizShow       `cmd:"" default:"withargs" help:"Show a snapshot as a page in the browser (the default). Given two, show the second and what changed since the first."`
	Stats       memvizStats      `cmd:"" help:"Print the large segments and how full they are."`
	Trace       memvizTrace      `cmd:"" help:"Print the recorded history as a list of allocations and frees."`
	Trees       memvizTrees      `cmd:"" help:"Print the trees of CUDA graphs that compiled regions have recorded, and what their pools hold."`
	Segments    memvizSegments   `cmd:"" help:"Draw a flame graph of the segments and the call stacks that hold their blocks."`
	Memory      memvizMemory     `cmd:"" help:"Draw a flame graph of the call stacks that hold memory."`
	Compare     memvizCompare    `cmd:"" help:"Draw a flame graph of the segments that are in only one of two snapshots."`
	Flamegraph  memvizFlamegraph `cmd:"" help:"Draw a flame graph of the call stacks that held memory at the peak, outermost call first."`
	TracePlot   memvizTracePlot  `cmd:"" name:"trace_plot" aliases:"trace-plot" help:"Write the timeline as one self-contained HTML file."`
	SegmentPlot memvizStatePlot  `cmd:"" name:"segment_plot" aliases:"segment-plot" help:"Write the allocator's state history as one self-contained HTML file."`
	Pprof       memvizProfile    `cmd:"" help:"Write the call stacks that hold memory at the end as a profile for go tool pprof."`
	Perfetto    memvizPerfetto   `cmd:"" help:"Write the recorded history as a trace for ui.perfetto.dev."`
}

// openFlags say how a snapshot is opened.
type openFlags struct {
	Cache   string `help:"Folder for column files, with which a large snapshot opens at once the next time (default: in the user cache directory)." placeholder:"DIR"`
	NoCache bool   `help:"Do not keep a column file."`
}

// open opens a snapshot and shows a bar on stderr meanwhile, if that is a terminal.
func (f openFlags) open(con *console, path string) (*memviz.Recording, error) {
	o := memviz.Options{Cache: f.Cache, NoCache: f.NoCache}
	b := importBar{out: con.screen, began: time.Now(), name: filepath.Base(path)}
	if isTerminal(con.screen) {
		o.Progress = b.advance
	}
	defer b.clear()
	return memviz.Open(path, o)
}

// importBar is a line that shows how far the reading of a snapshot is.
type importBar struct {
	out   io.Writer
	name  string
	began time.Time
	last  time.Time
	drawn bool
}

// importBarWidth is in characters.
const importBarWidth = 30

// advance draws the line, at most ten times a second and not in the first fifth of one, so that small files show none.
func (b *importBar) advance(read, total int64) {
	now := time.Now()
	if now.Sub(b.began) < 200*time.Millisecond || now.Sub(b.last) < 100*time.Millisecond {
		return
	}
	b.last, b.drawn = now, true
	name := terminal.Line(b.name, importBarWidth)
	rate := float64(read) / 1e6 / now.Sub(b.began).Seconds()
	if total <= 0 {
		fmt.Fprintf(b.out, "\rreading %s: %.0f MB, %.0f MB/s ", name, float64(read)/1e6, rate)
		return
	}
	full := int(importBarWidth * min(read, total) / total)
	fmt.Fprintf(b.out, "\rreading %s [%s%s] %d %%, %.0f MB/s ", name, strings.Repeat("█", full), strings.Repeat("·", importBarWidth-full),
		100*read/total, rate)
}

// clear removes the line.
func (b *importBar) clear() {
	if b.drawn {
		fmt.Fprint(b.out, "\r\x1b[K")
	}
}

// memvizShow is the viewer.
type memvizShow struct {
	Files  []string `arg:"" name:"file" help:"Snapshot, as written by Tenon's DumpSnapshot or torch.cuda.memory._dump_snapshot; - is standard input. To compare two, give the earlier one first."`
	Static string   `help:"Write one self-contained HTML file instead of serving the page; - is standard output." placeholder:"OUT.html"`
	NoOpen bool     `help:"Print the address of the page without opening the browser."`
	openFlags
}

// openAll opens one or two snapshots. The caller calls done.
func (c *memvizShow) openAll(con *console) (rec, before *memviz.Recording, done func(), err error) {
	if len(c.Files) > 2 {
		return nil, nil, nil, misused("memviz takes one snapshot, or two to compare, not %d", len(c.Files))
	}
	rec, err = c.open(con, c.Files[len(c.Files)-1])
	if err != nil || len(c.Files) == 1 {
		return rec, nil, func() { rec.Close() }, err
	}
	before, err = c.open(con, c.Files[0])
	if err != nil {
		rec.Close()
		return nil, nil, nil, err
	}
	return rec, before, func() { rec.Close(); before.Close() }, nil
}

// Run serves until the user interrupts it.
func (c *memvizShow) Run(con *console) error {
	rec, before, done, err := c.openAll(con)
	if err != nil {
		return err
	}
	defer done()
	if c.Static != "" {
		return writeOutput(c.Static, con.file, func(w io.Writer) error {
			return memviz.WriteStatic(w, rec, before)
		})
	}
	s, err := memviz.NewServer(rec, before)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Fprintf(con.out, "%s\nPress Ctrl-C to end.\n", s.URL())
	if !c.NoOpen {
		forget, err := openBrowser(s.URL(), startBrowser)
		if err != nil {
			fmt.Fprintf(con.out, "No browser could be started (%v); open the address above.\n", err)
		}
		defer forget()
	}
	return s.Serve(ctx)
}

// openBrowser opens an address. Everybody on the machine can read the arguments of programs, and who knows the address can read the
// recording: so what the browser is started with is a file that nobody else can read, which leads there. forget removes it.
func openBrowser(url string, start func(target string) error) (forget func(), err error) {
	dir, err := os.MkdirTemp("", "tenon-memviz-*") // which only this user can look into
	if err != nil {
		return func() {}, err
	}
	forget = func() { os.RemoveAll(dir) }
	name := filepath.Join(dir, "open.html")
	text := fmt.Sprintf("<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<meta name=\"referrer\" content=\"no-referrer\">\n<meta "+
		"http-equiv=\"refresh\" content=\"0; url=%[1]s\">\n<title>tenon memviz</title>\n<a href=\"%[1]s\">tenon memviz</a>\n",
		html.EscapeString(url))
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		return forget, err
	}
	return forget, start(name)
}

// startBrowser opens a file the way the system does.
func startBrowser(name string) error {
	var cmd *exec.Cmd
	switch runtime.GOOS {
	case "darwin":
		cmd = exec.Command("open", name)
	case "windows":
		cmd = exec.Command("rundll32", "url.dll,FileProtocolHandler", name)
	default:
		cmd = exec.Command("xdg-open", name)
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait() // so that no zombie stays
	return nil
}

// reportInput is the snapshot of a text report.
type reportInput struct {
	File string `arg:"" name:"file" help:"Snapshot; - is standard input."`
}

// memvizStats is PyTorch's segsum.
type memvizStats struct{ reportInput }

// Run prints it.
func (c *memvizStats) Run(con *console) error { return c.print(con.out, memviz.WriteStats) }

// memvizTrees is the trees of compiled regions.
type memvizTrees struct{ reportInput }

// Run prints them.
func (c *memvizTrees) Run(con *console) error { return c.print(con.out, memviz.WriteTrees) }

// memvizTrace is PyTorch's trace.
type memvizTrace struct{ reportInput }

// Run prints it, as PyTorch does with the end of the last line, which the report itself has not.
func (c *memvizTrace) Run(con *console) error {
	out := measured{to: con.out}
	if err := c.print(&out, memviz.WriteTrace); err != nil {
		return err
	}
	_, err := fmt.Fprintln(con.out)
	if err == nil && out.bytes == 0 {
		_,
			err = fmt.Fprintf(con.err,
			"%s holds no trace, so nothing is printed; the history must be recorded before the work that matters\n", c.File)
	}
	return err
}

// measured counts what is written.
type measured struct {
	to    io.Writer
	bytes int
}

func (m *measured) Write(p []byte) (int, error) {
	m.bytes += len(p)
	return m.to.Write(p)
}

// print writes a report to standard output.
func (c *reportInput) print(out io.Writer, write func(io.Writer, io.Reader, string) error) error {
	in, err := openInput("snapshot", c.File)
	if err != nil {
		return err
	}
	defer in.Close()
	return write(out, in, c.File)
}

// graphOutput is where a flame graph goes.
type graphOutput struct {
	Output string `short:"o" default:"output.svg" help:"File for the image. A name that ends in .txt, or - for standard output, gets the lines that the image is drawn from." placeholder:"FILE"`
}

// write draws lines, or writes them as they are.
func (o graphOutput) write(out io.Writer, title string, write func(w io.Writer) error) error {
	if o.Output == "-" || strings.HasSuffix(o.Output, ".txt") {
		return writeOutput(o.Output, out, write)
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(write(w)) }()
	err := writeOutput(o.Output, out, func(to io.Writer) error { return memviz.WriteFlameGraph(to, r, title) })
	r.Close()
	return err
}

// memvizSegments is PyTorch's segments.
type memvizSegments struct {
	reportInput
	graphOutput
}

// Run writes it.
func (c *memvizSegments) Run(con *console) error {
	return c.write(con.out, "Segments of "+filepath.Base(c.File), func(w io.Writer) error { return c.print(w, memviz.WriteSegments) })
}

// memvizMemory is PyTorch's memory.
type memvizMemory struct {
	reportInput
	graphOutput
}

// Run writes it.
func (c *memvizMemory) Run(con *console) error {
	return c.write(con.out, "Memory of "+filepath.Base(c.File), func(w io.Writer) error { return c.print(w, memviz.WriteMemory) })
}

// memvizCompare is PyTorch's compare.
type memvizCompare struct {
	Before string `arg:"" help:"Earlier snapshot."`
	After  string `arg:"" help:"Later snapshot."`
	graphOutput
}

// Run writes it.
func (c *memvizCompare) Run(con *console) error {
	before, err := openInput("snapshot", c.Before)
	if err != nil {
		return err
	}
	defer before.Close()
	after, err := openInput("snapshot", c.After)
	if err != nil {
		return err
	}
	defer after.Close()
	return c.write(con.out, "Segments that only one of "+filepath.Base(c.Before)+" and "+filepath.Base(c.After)+" has",
		func(w io.Writer) error {
			return memviz.WriteCompare(w, before, after, c.Before, c.After)
		})
}

// memvizFlamegraph is who held memory.
type memvizFlamegraph struct {
	File   string `arg:"" help:"Snapshot; - is standard input."`
	At     string `default:"peak" enum:"peak,end" help:"Moment to show: ${enum}."`
	Device int    `default:"-1" help:"Device number (default: the device with the longest trace)."`
	graphOutput
	openFlags
}

// Run writes it.
func (c *memvizFlamegraph) Run(con *console) error {
	rec, err := c.open(con, c.File)
	if err != nil {
		return err
	}
	defer rec.Close()
	device := c.Device
	if device < 0 {
		if device = rec.MainDevice(); device < 0 {
			return fault.New(fault.Invalid, "%s holds nothing of any device", c.File)
		}
	}
	return c.write(con.out, fmt.Sprintf("Who held memory of device %d at the %s, %s", device, c.At, filepath.Base(c.File)),
		func(w io.Writer) error {
			return memviz.WriteHolders(w, rec, device, c.At)
		})
}

// plotOutput is where a page goes.
type plotOutput struct {
	File   string `arg:"" help:"Snapshot; - is standard input."`
	Output string `short:"o" default:"output.html" help:"File for the page; - is standard output." placeholder:"FILE"`
	openFlags
}

// plot writes a self-contained page that begins with a view.
func (c *plotOutput) plot(con *console, view memviz.View) error {
	rec, err := c.open(con, c.File)
	if err != nil {
		return err
	}
	defer rec.Close()
	return writeOutput(c.Output, con.file, func(w io.Writer) error {
		return memviz.WriteStatic(w, rec, nil, memviz.StaticOptions{View: view})
	})
}

// memvizTracePlot is PyTorch's trace_plot.
type memvizTracePlot struct {
	plotOutput
	Segments bool `short:"s" help:"Show cached segments instead of allocations."`
}

// Run writes it.
func (c *memvizTracePlot) Run(con *console) error {
	if c.Segments {
		return c.plot(con, memviz.ViewCached)
	}
	return c.plot(con, memviz.ViewActive)
}

// memvizStatePlot is PyTorch's segment_plot.
type memvizStatePlot struct{ plotOutput }

// Run writes it.
func (c *memvizStatePlot) Run(con *console) error { return c.plot(con, memviz.ViewState) }
