package cli

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"

	"tenon.dev/compile"
)

// compileCommands is tenon compile.
type compileCommands struct {
	Explain compileExplain `cmd:"" help:"Print what Explanation.WriteJSON wrote, or write it as a page."`
	Bisect  compileBisect  `cmd:"" help:"Run a command that fails again and again, and name the first fused kernel or graph with which it does."`
}

// compileExplain is the command line of tenon compile explain.
type compileExplain struct {
	File      string  `arg:"" help:"File that Explanation.WriteJSON wrote; - is standard input."`
	HTML      string  `name:"html" placeholder:"FILE" help:"Write one self-contained HTML page instead of text."`
	Bandwidth float64 `placeholder:"GB/S" help:"Bandwidth of the device's memory in GB/s, such as 4800 for an H200: the least time of every kernel is computed from it."`
}

// Run reads the file and writes text or a page.
func (c *compileExplain) Run(con *console) error {
	if c.Bandwidth < 0 {
		return fmt.Errorf("--bandwidth %v is no bandwidth; give GB/s, such as 4800", c.Bandwidth)
	}
	in := os.Stdin
	if c.File != "-" {
		var err error
		if in, err = os.Open(c.File); err != nil {
			return err
		}
		defer in.Close()
	}
	all, err := compile.ReadExplanations(in)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	for _, e := range all {
		e.Bandwidth = c.Bandwidth * 1e9
	}
	if c.HTML != "" {
		return writeFile(c.HTML, func(w io.Writer) error { return writeExplainPage(w, filepath.Base(c.File), all) })
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

// explainPage is what the page shows.
type explainPage struct {
	Policy, Title string
	CSS           template.CSS
	JS            template.JS
	All           []*compile.Explanation
}

// writeExplainPage writes one page that needs nothing else. The template escapes all that came from a program; the policy admits the page's
// own style and script alone.
func writeExplainPage(w io.Writer, title string, all []*compile.Explanation) error {
	if len(all) == 0 {
		return errors.New("there is nothing to show; give at least one explanation")
	}
	t, err := template.New("page").Funcs(template.FuncMap{
		"floor": func(k compile.Kernel, bandwidth float64) string { return fmt.Sprintf("%.3g", k.Floor(bandwidth)) },
		"what":  func(c compile.Cut) string { return c.What() },
		"runs":  func(s compile.Segment) int { return s.WarmUps + s.Recordings + s.Replays + s.Plain },
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
