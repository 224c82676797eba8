package cli

import (
	"io"

	"tenon.dev/fault"
	"tenon.dev/profile"
)

// profileCommand is tenon profile: a table of a profile, or another form of it.
type profileCommand struct {
	File  string `arg:"" help:"Profile, as written by Profile.Write; - is standard input."`
	By    string `default:"op" enum:"time,op,line,module" help:"What a row of the table is: ${enum}; time lists every operation."`
	Rows  int    `default:"30" help:"Maximum number of rows in the table; 0 is all."`
	HTML  string `name:"html" help:"Write one self-contained HTML file instead." placeholder:"OUT.html"`
	Trace string `help:"Write a trace for ui.perfetto.dev instead." placeholder:"OUT.json"`
	Pprof string `help:"Write a profile for go tool pprof instead." placeholder:"OUT.pb.gz"`
}

// Run writes the table, or the files that the flags name.
func (c *profileCommand) Run(con *console) error {
	if c.Rows < 0 {
		return misused("--rows is %d; give a number that is not negative, where 0 is all rows", c.Rows)
	}
	p, err := c.open()
	if err != nil {
		return err
	}
	other := false
	for _, out := range []struct {
		path  string
		write func(w io.Writer) error
	}{{c.HTML, p.WriteHTML}, {c.Trace, p.WriteTrace}, {c.Pprof, p.WritePprof}} {
		if out.path == "" {
			continue
		}
		other = true
		if err := writeOutput(out.path, con.file, out.write); err != nil {
			return err
		}
	}
	if other {
		return nil
	}
	return p.WriteTable(con.out, profile.By(c.By), c.Rows)
}

func (c *profileCommand) open() (*profile.Profile, error) {
	in, err := openInput("profile", c.File)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	p, err := profile.Read(in)
	if err != nil {
		return nil, fault.Wrap(fault.KindOf(err), err, "reading %s", c.File)
	}
	return p, nil
}
