package lint

import (
	"go/ast"
	"io/fs"
	"path"
	"regexp"
)

// concurrency is the page that says for every type what goroutines may share.
const concurrency = "docs/concurrency.md"

// Shared checks that the page names every exported type of the public packages that has methods with a pointer receiver, qualified by its
// package except in the root package.
func Shared(t *Tree) []Finding {
	text, err := fs.ReadFile(t.FS, concurrency)
	if err != nil {
		return []Finding{{File: concurrency, Msg: err.Error()}}
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z]*\\.?[A-Z][A-Za-z0-9]*)`").FindAllSubmatch(text, -1) {
		named[string(m[1])] = true
	}
	var out []Finding
	for _, p := range t.Packages {
		if !public(p.Dir) || p.Name == "main" {
			continue
		}
		for _, f := range p.Files {
			if f.Test {
				continue
			}
			for _, d := range f.Syntax.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Recv == nil || !fn.Name.IsExported() {
					continue
				}
				name := receiver(fn)
				if _, pointer := fn.Recv.List[0].Type.(*ast.StarExpr); !pointer || !ast.IsExported(name) {
					continue
				}
				if p.Dir != "." {
					name = path.Base(p.Dir) + "." + name
				}
				if !named[name] {
					named[name] = true
					out = append(out, t.at(fn.Pos(), "%s does not say what goroutines may share of %s; give it a line in the table",
						concurrency, name))
				}
			}
		}
	}
	return out
}
