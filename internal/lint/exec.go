package lint

import (
	"go/ast"
	"path"
	"strconv"
)

// Execs checks that no struct and no package variable outside internal/core holds an Exec, for the same reason that none should hold a
// context.Context: an Exec belongs to one goroutine's call chain and is passed as an argument. Function types may name it, and tests are
// exempt.
func Execs(t *Tree) []Finding {
	var out []Finding
	for _, p := range t.Packages {
		if within(p.Dir, "internal/core/...") {
			continue
		}
		for _, f := range p.Files {
			if f.Test {
				continue
			}
			names := execNames(p, f)
			ast.Inspect(f.Syntax, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.StructType:
					for _, field := range n.Fields.List {
						if names.holds(field.Type) {
							out = append(out, t.at(field.Pos(), "a struct holds an Exec: pass it as an argument, since it belongs to "+
								"the goroutine that calls"))
						}
					}
				case *ast.GenDecl:
					for _, s := range n.Specs {
						if v, ok := s.(*ast.ValueSpec); ok && v.Type != nil && t.topLevel(f, n) && names.holds(v.Type) {
							out = append(out, t.at(v.Pos(), "a package variable holds an Exec: pass it as an argument"))
						}
					}
				}
				return true
			})
		}
	}
	return out
}

// topLevel reports whether decl is one of f's own declarations rather than one inside a function.
func (t *Tree) topLevel(f *File, decl ast.Decl) bool {
	for _, d := range f.Syntax.Decls {
		if d == decl {
			return true
		}
	}
	return false
}

// execType knows the names by which a file can refer to Exec: the local names of packages that have it, and whether the file's own package
// does.
type execType struct {
	packages map[string]bool
	own      bool
}

func execNames(p *Package, f *File) execType {
	e := execType{packages: map[string]bool{}, own: p.Dir == "."}
	for _, spec := range f.Syntax.Imports {
		imp, _ := strconv.Unquote(spec.Path.Value)
		var local string
		switch imp {
		case Module:
			local = "tenon"
		case Module + "/internal/core":
			local = path.Base(imp)
		default:
			continue
		}
		if spec.Name != nil {
			local = spec.Name.Name
		}
		if local == "." {
			e.own = true
		}
		e.packages[local] = true
	}
	return e
}

// holds reports whether a value of the type contains an Exec: directly, through a pointer, or as an element.
func (e execType) holds(x ast.Expr) bool {
	found := false
	ast.Inspect(x, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncType, *ast.StructType: // a nested struct is inspected separately
			return false
		case *ast.SelectorExpr:
			id, ok := n.X.(*ast.Ident)
			found = found || ok && e.packages[id.Name] && n.Sel.Name == "Exec"
			return false
		case *ast.Ident:
			found = found || e.own && n.Name == "Exec"
		}
		return true
	})
	return found
}
