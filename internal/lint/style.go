package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"path"
	"strings"
)

// The limits of the style law: in lines, and in columns for a line, where a tab counts as four.
const (
	MaxFunction = 120
	MaxFile     = 800
	MaxColumns  = 140
	tabColumns  = 4
)

// tableMark, in a function's comment and followed by a reason, exempts it from MaxFunction: it is a table in the form of code.
const tableMark = "//tenon:table "

// vague are names that say nothing about what a file or package contains.
var vague = map[string]bool{
	"util": true, "utils": true, "utility": true, "utilities": true, "common": true, "commons": true,
	"helper": true, "helpers": true, "base": true, "misc": true,
}

// Style checks the style law: functions of at most MaxFunction lines unless marked as tables, Go files of at most MaxFile lines, lines of
// at most MaxColumns columns, and no file or package with a name that would fit anything. The limit of columns is also that of Markdown,
// JavaScript, CSS, HTML, shell and Python. Exempt from the limits are generated files, pages with generated tables (widePages), directives,
// struct tags, raw strings in tests, which are mostly output or data, and output that a page shows in a text block.
func Style(t *Tree) []Finding {
	var out []Finding
	for _, p := range t.Packages {
		if vague[path.Base(p.Dir)] || vague[p.Name] {
			out = append(out, Finding{File: p.Dir, Msg: "package name says nothing: name it after what it holds"})
		}
		for _, f := range p.Files {
			out = append(out, t.fileStyle(f)...)
		}
	}
	return append(out, t.longPages()...)
}

func (t *Tree) fileStyle(f *File) []Finding {
	var out []Finding
	stem := strings.TrimSuffix(strings.TrimSuffix(path.Base(f.Path), ".go"), "_test")
	if vague[stem] {
		out = append(out, Finding{File: f.Path, Msg: "file name says nothing: name it by the noun that it is about"})
	}
	if f.Generated {
		if stem[0] != 'z' {
			out = append(out, Finding{File: f.Path, Msg: "generated file whose name does not start with z"})
		}
		return out
	}
	if stem[0] == 'z' && len(stem) > 1 && stem[1] == '_' {
		out = append(out, Finding{File: f.Path, Msg: "file is named like a generated one, but lacks Go's marker for generated code"})
	}
	if n := bytes.Count(f.Text, []byte("\n")); n > MaxFile {
		out = append(out, Finding{File: f.Path, Msg: sprintLimit("file", n, MaxFile) + ": split it by idea"})
	}
	out = append(out, t.longLines(f)...)
	for _, d := range f.Syntax.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || marked(fn.Doc, tableMark) {
			continue
		}
		if n := t.Fset.Position(fn.End()).Line - t.Fset.Position(fn.Pos()).Line + 1; n > MaxFunction {
			out = append(out, t.at(fn.Name.Pos(), "%s: split it, or mark it %q with the reason if it is a table",
				sprintLimit("function "+fn.Name.Name, n, MaxFunction), strings.TrimSpace(tableMark)))
		}
	}
	return out
}

// marked reports whether a comment contains the mark with a reason.
func marked(doc *ast.CommentGroup, mark string) bool {
	if doc == nil {
		return false
	}
	for _, c := range doc.List {
		if reason, ok := strings.CutPrefix(c.Text, mark); ok && strings.TrimSpace(reason) != "" {
			return true
		}
	}
	return false
}

func sprintLimit(what string, n, limit int) string {
	return fmt.Sprintf("%s has %d lines, the limit is %d", what, n, limit)
}
