package memcheck

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

//go:embed page/page.html
var pageHTML string

//go:embed page/page.css
var pageCSS string

//go:embed page/page.js
var pageJS string

// pageData is what the page shows besides findings and tests.
type pageData struct {
	Title   string    `json:"title"`
	Headers []*Header `json:"headers"`
	Summary *Summary  `json:"summary"`
	Written time.Time `json:"written"`
}

type pageFinding struct {
	*Finding
	Place  string       `json:"place,omitempty"`
	Site   string       `json:"site,omitempty"`
	Tests  []int        `json:"tests"`
	Total  int          `json:"total"`
	Source []sourceLine `json:"source,omitempty"`
}

type sourceLine struct {
	Number int    `json:"n"`
	Text   string `json:"text"`
	Here   bool   `json:"here,omitempty"`
}

type pageTest struct {
	Name     string   `json:"name"`
	Tool     Tool     `json:"tool"`
	Outcome  Outcome  `json:"outcome"`
	Reason   string   `json:"reason,omitempty"`
	Skipped  bool     `json:"skipped,omitempty"`
	Verified bool     `json:"verified"`
	Start    float64  `json:"start"` // seconds since the first test of its journal
	Seconds  float64  `json:"seconds"`
	CPU      float64  `json:"cpu,omitempty"`
	Memory   int64    `json:"memory,omitempty"`
	Printed  int64    `json:"printed,omitempty"`
	Worker   int      `json:"worker"`
	GPU      string   `json:"gpu,omitempty"`
	Header   int      `json:"header"`
	Findings [][2]int `json:"findings,omitempty"`
	Stdout   string   `json:"stdout,omitempty"`
	Stderr   string   `json:"stderr,omitempty"`
}

// WriteHTML writes the results as one self-contained page: it needs no other file and no network. Source lines around the places of
// findings come from the source files below the given folders, recognised by extension; a file is used only if its name occurs there once.
// Without folders no file is read: give none for a journal that others wrote, whose findings may name any file.
func (res *Results) WriteHTML(w io.Writer, sources ...string) error {
	out := bufio.NewWriter(w)
	err := writePage(out, func() error { return res.writeData(out, newSourceTree(sources)) })
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return fmt.Errorf("cannot write the HTML report: %w", err)
	}
	return nil
}

// writeData writes the page's data, one finding or test at a time, since together they may be large.
func (res *Results) writeData(out *bufio.Writer, tree *sourceTree) error {
	head, err := json.Marshal(pageData{Title: res.Title(), Headers: res.Headers, Summary: &res.Summary, Written: time.Now()})
	if err != nil {
		return err
	}
	lines := json.NewEncoder(out) // it escapes < and >, so that text from a test cannot end the element
	each := func(before string, n int, item func(i int) any) error {
		_, err := out.WriteString(before)
		for i := 0; i < n && err == nil; i++ {
			if i > 0 {
				err = out.WriteByte(',')
			}
			if err == nil {
				err = lines.Encode(item(i))
			}
		}
		return err
	}
	first := make([]time.Time, len(res.Headers))
	for _, t := range res.tests {
		if at := first[t.header]; at.IsZero() || t.Start.Before(at) {
			first[t.header] = t.Start
		}
	}
	if _, err = out.Write(bytes.TrimSuffix(head, []byte("}"))); err != nil {
		return err
	}
	err = each(`,"findings":[`, len(res.findings), func(i int) any { return pageFindingOf(res.findings[i], tree) })
	if err == nil {
		err = each(`],"tests":[`, len(res.tests), func(i int) any { return pageTestOf(res.tests[i], first[res.tests[i].header]) })
	}
	if err == nil {
		_, err = out.WriteString("]}")
	}
	return err
}

// pageFindingOf returns a finding with the source lines of its place.
func pageFindingOf(f *found, tree *sourceTree) pageFinding {
	p := pageFinding{Finding: f.Finding, Tests: f.tests, Total: f.count}
	if len(f.Device) > 0 {
		p.Place = f.Device[0].Place()
		p.Source = tree.around(f.Device[0])
	}
	if s := f.Finding.Site(); s != nil && s.File != "" {
		p.Site = s.Place()
		if p.Source == nil {
			p.Source = tree.around(*s)
		}
	}
	return p
}

// pageTestOf returns a test; first is the start of the first test in its journal.
func pageTestOf(t *result, first time.Time) pageTest {
	p := pageTest{Name: t.Test, Tool: t.Tool, Outcome: t.Outcome, Reason: t.Reason, Skipped: t.Skipped, Verified: t.Verified,
		Start: t.Start.Sub(first).Seconds(), Seconds: t.Seconds, CPU: t.CPU, Memory: t.Memory, Printed: t.Printed,
		Worker: t.Worker, GPU: t.GPU, Header: t.header, Stdout: t.Stdout, Stderr: t.Stderr}
	for _, h := range t.findings {
		p.Findings = append(p.Findings, [2]int{h.finding, h.count})
	}
	return p
}

// writePage fills the page. The policy in its head allows its own style and script, by their hashes, and nothing else.
func writePage(out *bufio.Writer, data func() error) error {
	policy := fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; img-src data:", contentHash(pageCSS), contentHash(pageJS))
	rest := pageHTML
	for _, part := range []struct {
		mark string
		fill func() error
	}{
		{"{{policy}}", func() error { _, err := out.WriteString(policy); return err }},
		{"{{css}}", func() error { _, err := out.WriteString(pageCSS); return err }},
		{"{{data}}", data},
		{"{{js}}", func() error { _, err := out.WriteString(pageJS); return err }},
	} {
		before, after, _ := strings.Cut(rest, part.mark)
		if _, err := out.WriteString(before); err != nil {
			return err
		}
		if err := part.fill(); err != nil {
			return err
		}
		rest = after
	}
	_, err := out.WriteString(rest)
	return err
}

func contentHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// sourceTree finds source files by the name that a checker gives them: often only the last part of a path.
type sourceTree struct {
	dirs   []string
	byName map[string][]string // nil until needed
	texts  map[string][]string
}

func newSourceTree(dirs []string) *sourceTree {
	return &sourceTree{dirs: dirs, texts: map[string][]string{}}
}

// around returns the lines around a frame's line, or nil.
func (s *sourceTree) around(f Frame) []sourceLine {
	const each = 4
	if f.File == "" || f.Line <= 0 || len(s.dirs) == 0 {
		return nil
	}
	lines := s.lines(s.find(f.File))
	if f.Line > len(lines) {
		return nil
	}
	var out []sourceLine
	for n := max(1, f.Line-each); n <= min(len(lines), f.Line+each); n++ {
		out = append(out, sourceLine{n, strings.ToValidUTF8(lines[n-1], "?"), n == f.Line})
	}
	return out
}

// find returns the only file below the folders that name can refer to, or "". No other file is read, whatever name a report contains.
func (s *sourceTree) find(name string) string {
	if s.byName == nil {
		s.byName = map[string][]string{}
		for _, dir := range s.dirs {
			s.index(dir)
		}
	}
	only, suffix := "", string(filepath.Separator)+filepath.FromSlash(name)
	for _, path := range s.byName[filepath.Base(name)] {
		if path == name {
			return path
		}
		if filepath.IsAbs(name) || strings.HasSuffix(path, suffix) {
			if only != "" && only != path {
				return ""
			}
			only = path
		}
	}
	return only
}

// index records the files below dir; it covers only part of a large tree, and skips what it cannot read.
func (s *sourceTree) index(dir string) {
	const most = 100_000
	seen := 0
	dir, err := filepath.Abs(dir)
	if err != nil {
		return
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if seen++; seen > most {
			return fs.SkipAll
		}
		switch {
		case err != nil && d != nil && d.IsDir():
			return fs.SkipDir
		case err != nil:
			return nil
		case d.IsDir() && path != dir && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return fs.SkipDir
		case d.Type().IsRegular() && isSource(d.Name()):
			s.byName[d.Name()] = append(s.byName[d.Name()], path)
		}
		return nil
	})
}

// sourceExtensions are the extensions of the files whose lines reports show. A journal may name any file, and reports are passed on, so a
// key or a setting must not get into one.
var sourceExtensions = []string{".go", ".py", ".pyx", ".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".inl",
	".inc", ".rs", ".s", ".ptx"}

// isSource reports whether a file's name is that of source code, which is not secret.
func isSource(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains(sourceExtensions, strings.ToLower(filepath.Ext(name)))
}

// lines returns a file's lines, or nil if it is not a file or is larger than source code would be.
func (s *sourceTree) lines(path string) []string {
	if path == "" {
		return nil
	}
	if lines, ok := s.texts[path]; ok {
		return lines
	}
	var lines []string
	if info, err := os.Stat(path); err == nil && info.Size() < 8<<20 {
		if text, err := os.ReadFile(path); err == nil {
			lines = strings.Split(string(text), "\n")
		}
	}
	s.texts[path] = lines
	return lines
}
