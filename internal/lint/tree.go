// Package lint implements the laws of the source tree as checks that tests run: imports, documentation, style, wording, the public API. It
// must not depend on what any package does: it reads only source text and imports no package of the module.
package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"sort"
	"strings"
)

// Module is the module path that every check assumes.
const Module = "tenon.dev"

// Finding is one violation of a law: its place, and one sentence saying what is wrong and what to do.
type Finding struct {
	// File is the path within the tree; Line starts at 1, or is 0 if the whole file or folder is meant.
	File string
	Line int
	Msg  string
}

// String returns the finding as "file:line: message".
func (f Finding) String() string {
	if f.Line == 0 {
		return f.File + ": " + f.Msg
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Msg)
}

// File is one parsed Go file.
type File struct {
	// Path is slash-separated and relative to the tree's root.
	Path string
	// Text is the source.
	Text []byte
	// Syntax is the file with its comments.
	Syntax *ast.File
	// Test is set if the file's name ends in _test.go, Generated if it has Go's marker for generated files.
	Test, Generated bool
}

// Package is the set of Go files in one folder, for all platforms and build tags.
type Package struct {
	// Dir is relative to the root, "." for the root itself; Path is the import path within the module, "." likewise.
	Dir string
	// Name is the package name of the non-test files, or of the tests if there are no others.
	Name string
	// Files are sorted by path.
	Files []*File
}

// Tree is a parsed module.
type Tree struct {
	// FS is the tree's source.
	FS fs.FS
	// Fset holds the positions of all files.
	Fset *token.FileSet
	// Packages are sorted by folder.
	Packages []*Package
}

// Load parses every Go file under the root of fsys. It ignores what the go command ignores: testdata, and folders whose name starts with a
// dot or an underscore. A file that does not parse is an error.
func Load(fsys fs.FS) (*Tree, error) {
	t := &Tree{FS: fsys, Fset: token.NewFileSet()}
	byDir := map[string]*Package{}
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); p != "." && (n == "testdata" || n[0] == '.' || n[0] == '_') {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") || d.Name()[0] == '.' || d.Name()[0] == '_' {
			return nil
		}
		text, err := fs.ReadFile(fsys, p)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(t.Fset, p, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("lint: cannot parse: %w", err)
		}
		f := &File{Path: p, Text: text, Syntax: syntax, Test: strings.HasSuffix(p, "_test.go"), Generated: ast.IsGenerated(syntax)}
		dir := path.Dir(p)
		pkg := byDir[dir]
		if pkg == nil {
			pkg = &Package{Dir: dir, Name: syntax.Name.Name}
			byDir[dir] = pkg
			t.Packages = append(t.Packages, pkg)
		}
		if !f.Test {
			pkg.Name = syntax.Name.Name
		}
		pkg.Files = append(pkg.Files, f)
		return nil
	})
	if err != nil {
		return nil, err
	}
	sort.Slice(t.Packages, func(i, j int) bool { return t.Packages[i].Dir < t.Packages[j].Dir })
	return t, nil
}

// at makes a finding at pos.
func (t *Tree) at(pos token.Pos, format string, args ...any) Finding {
	p := t.Fset.Position(pos)
	return Finding{File: p.Filename, Line: p.Line, Msg: fmt.Sprintf(format, args...)}
}

// importPath returns the import path of the package.
func (p *Package) importPath() string {
	if p.Dir == "." {
		return Module
	}
	return Module + "/" + p.Dir
}

// folderOf returns the folder of an import path of the module, "." for the root, and whether it belongs to the module.
func folderOf(imp string) (string, bool) {
	if imp == Module {
		return ".", true
	}
	return strings.CutPrefix(imp, Module+"/")
}

// within reports whether dir matches pattern, or lies below it if pattern ends in "/...". A "*" matches one element.
func within(dir, pattern string) bool {
	if root, ok := strings.CutSuffix(pattern, "/..."); ok {
		for d := dir; d != "."; d = path.Dir(d) {
			if within(d, root) {
				return true
			}
		}
		return false
	}
	ok, _ := path.Match(pattern, dir)
	return ok
}

// public reports whether the folder contains a package that users import.
func public(dir string) bool {
	for _, p := range []string{"internal/...", "*/internal/...", "cmd/...", "bench/...", "conformance/...", "examples/...",
		"docs/...", "api/..."} {
		if within(dir, p) {
			return false
		}
	}
	return true
}
