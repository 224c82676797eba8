package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"
)

// written are the extensions of files other than Go that people write, and so must keep to MaxColumns.
var written = map[string]bool{".md": true, ".js": true, ".css": true, ".html": true, ".sh": true, ".py": true}

// widePages are generated pages that may have wide tables.
var widePages = map[string]bool{"docs/ops.md": true, "docs/measurements.md": true, "docs/profiles.md": true}

// columns returns the width of a line.
func columns(line string) int {
	return utf8.RuneCountInString(line) + (tabColumns-1)*strings.Count(line, "\t")
}

func tooWide(file string, line, n int) Finding {
	return Finding{File: file, Line: line, Msg: fmt.Sprintf("line has %d columns, the limit is %d: break it", n, MaxColumns)}
}

// longLines finds Go lines that are too long. One finding per file is enough.
func (t *Tree) longLines(f *File) []Finding {
	raw := map[int]bool{}
	exempt := func(l *ast.BasicLit) {
		for i := t.Fset.Position(l.Pos()).Line; l.Value[0] == '`' && i <= t.Fset.Position(l.End()).Line; i++ {
			raw[i] = true
		}
	}
	ast.Inspect(f.Syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if f.Test {
				exempt(n)
			}
		case *ast.Field:
			if n.Tag != nil {
				exempt(n.Tag)
			}
		}
		return true
	})
	n := 0
	for line := range bytes.Lines(f.Text) {
		n++
		s := strings.TrimSuffix(string(line), "\n")
		if width := columns(s); width > MaxColumns && !raw[n] && !strings.HasPrefix(s, "//go:") {
			return []Finding{tooWide(f.Path, n, width)}
		}
	}
	return nil
}

// longPages finds lines that are too long in files other than Go, including those in folders named testdata. One finding per file is
// enough.
func (t *Tree) longPages() []Finding {
	var out []Finding
	_ = fs.WalkDir(t.FS, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && name != "." && (d.Name()[0] == '.' || skipDirs[d.Name()]) {
			return fs.SkipDir
		}
		if err == nil && (!written[path.Ext(name)] || widePages[name]) {
			return nil
		}
		var text []byte
		if err == nil {
			text, err = fs.ReadFile(t.FS, name)
		}
		if err != nil {
			out = append(out, Finding{File: name, Msg: err.Error()})
			return nil
		}
		output := false // in a Markdown block that shows output
		n := 0
		for line := range bytes.Lines(text) {
			n++
			s := strings.TrimSuffix(string(line), "\n")
			if fence, found := strings.CutPrefix(strings.TrimSpace(s), "```"); found && path.Ext(name) == ".md" {
				output = fence == "text"
			}
			if width := columns(s); width > MaxColumns && !output {
				out = append(out, tooWide(name, n, width))
				return nil
			}
		}
		return nil
	})
	return out
}
