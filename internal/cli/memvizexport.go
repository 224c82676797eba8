package cli

import (
	"io"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// memvizProfile writes the holders of memory for go tool pprof.
type memvizProfile struct {
	reportInput
	Output string `short:"o" default:"memory.pb.gz" help:"File for the profile; - is standard output." placeholder:"FILE"`
}

// Run writes the file.
func (c *memvizProfile) Run(con *console) error {
	return c.export(con, c.Output, (*snapshot.Snapshot).WriteProfile)
}

// memvizPerfetto writes the history for ui.perfetto.dev.
type memvizPerfetto struct {
	reportInput
	Output string `short:"o" default:"memory.json" help:"File for the trace; - is standard output." placeholder:"FILE"`
}

// Run writes the file.
func (c *memvizPerfetto) Run(con *console) error {
	return c.export(con, c.Output, (*snapshot.Snapshot).WriteTrace)
}

// export reads the snapshot and writes it in another form.
func (c *reportInput) export(con *console, output string, write func(*snapshot.Snapshot, io.Writer) error) error {
	in, err := openInput("snapshot", c.File)
	if err != nil {
		return err
	}
	defer in.Close()
	s, err := snapshot.Read(in, snapshot.ReadOptions{})
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "reading %s", c.File)
	}
	return writeOutput(output, con.file, func(w io.Writer) error { return write(s, w) })
}
