package cli

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io"
	"math"
	"path/filepath"
	"time"

	"tenon.dev/compile"
	"tenon.dev/fault"
)

// compileCommands is tenon compile.
type compileCommands struct {
	Explain compileExplain `cmd:"" help:"Print an explanation that Explanation.WriteJSON wrote, or write it as a page."`
	Bisect  compileBisect  `cmd:"" help:"Run a failing command repeatedly to find the first fused kernel or graph that makes it fail."`
}

// compileExplain is the command line of tenon compile explain.
type compileExplain struct {
	File      string  `arg:"" help:"Explanation, as written by Explanation.WriteJSON; - is standard input."`
	HTML      string  `name:"html" placeholder:"FILE" help:"Write one self-contained HTML page instead of text; - is standard output."`
	Bandwidth float64 `placeholder:"GB/S" help:"Memory bandwidth of the device in GB/s, such as 4800 for an H200; it gives the minimum time of every kernel."`
}

// Run reads the file and writes text or a page.
func (c *compileExplain) Run(con *console) error {
	if c.Bandwidth < 0 {
		return misused("--bandwidth is %v; give GB/s, such as 4800", c.Bandwidth)
	}
	in, err := openInput("explanation", c.File)
	if err != nil {
		return err
	}
	defer in.Close()
	all, err := compile.ReadExplanations(in)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "reading %s", c.File)
	}
	for _, e := range all {
		if c.Bandwidth > 0 { // else it is what the program set
			e.Bandwidth = c.Bandwidth * 1e9
		}
	}
	if c.HTML != "" {
		return writeOutput(c.HTML, con.file, func(w io.Writer) error { return writeExplainPage(w, filepath.Base(c.File), all) })
	}
	for i, e := range all {
		if i > 0 {
			fmt.Fprintln(con.out)
		}
		fmt.Fprint(con.out, e)
	}
	return nil
}

//go:embed explain/page.html
var explainHTML string

//go:embed explain/page.css
var explainCSS string

//go:embed explain/page.js
var explainJS string

// explainPage is the data of the page.
type explainPage struct {
	Policy, Title string
	CSS           template.CSS
	JS            template.JS
	All           []*compile.Explanation
}

// writeExplainPage writes one self-contained page. The template escapes everything that came from a program; the policy allows only the
// page's own style and script.
func writeExplainPage(w io.Writer, title string, all []*compile.Explanation) error {
	if len(all) == 0 {
		return errors.New("there is nothing to show; give at least one explanation")
	}
	t, err := template.New("page").Funcs(template.FuncMap{
		"floor":    func(k compile.Kernel, bandwidth float64) string { return fmt.Sprintf("%.3g", k.Floor(bandwidth)) },
		"timeline": timelineRows,
		"counted":  counted,
		"what":     func(c compile.Cut) string { return c.What() },
		"runs":     func(s compile.Segment) int { return s.WarmUps + s.Recordings + s.Replays + s.Plain },
		"sum": func(ns ...int) (n int) {
			for _, v := range ns {
				n += v
			}
			return n
		},
		"fused": func(s compile.Segment) (n int) {
			for _, k := range s.Kernels {
				if k.Fused {
					n++
				}
			}
			return n
		},
	}).Parse(explainHTML)
	if err != nil {
		return err
	}
	hash := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return t.Execute(w, explainPage{Title: title, CSS: template.CSS(explainCSS), JS: template.JS(explainJS), All: all,
		Policy: fmt.Sprintf("default-src 'none'; style-src %s; script-src %s; img-src data:", hash(explainCSS), hash(explainJS))})
}

// timelineRow is a run in the page's timeline, whose bars are the runs of segments, in thousandths of the row.
type timelineRow struct {
	Number int
	Took   string
	Bars   []timelineBar
}

type timelineBar struct {
	Segment      int
	Class, Title string
	X, Width     float64
}

func timelineRows(e *compile.Explanation) (rows []timelineRow) {
	class := map[string]string{"warm-up": "warm", "recorded": "rec", "replayed": "play", "without a graph": "plain"}
	for _, r := range e.Timeline() {
		end := max(r.End(), 1)
		row := timelineRow{Number: r.Number, Took: fmt.Sprintf("%.3g ms", end.Seconds()*1e3)}
		for _, s := range r.Runs {
			at := func(d time.Duration) float64 { return math.Round(1e4*float64(d)/float64(end)) / 10 }
			title := fmt.Sprintf("segment %d %s at %.3g ms for %.3g ms", s.Segment, s.Way, s.Start.Seconds()*1e3, s.Took.Seconds()*1e3)
			row.Bars = append(row.Bars, timelineBar{s.Segment, class[s.Way], title, at(s.Start), max(at(s.Took), 2)})
		}
		rows = append(rows, row)
	}
	return rows
}
