package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/printer"
	"go/token"
	"path"
	"sort"
	"strings"
)

// API returns the record of the exported symbols of the module's public packages, sorted, one per line: everything that a program built for
// linux/amd64 can name. Parameter names are left out, since changing one breaks nobody.
func API(t *Tree) []string {
	var out []string
	for _, p := range t.Packages {
		if !public(p.Dir) || p.Name == "main" {
			continue
		}
		a := apiPrinter{prefix: "pkg " + p.importPath() + ", "}
		for _, f := range p.Files {
			if f.Test || !buildsForRecord(f) {
				continue
			}
			for _, d := range f.Syntax.Decls {
				a.decl(d)
			}
		}
		out = append(out, a.lines...)
	}
	sort.Strings(out)
	return out
}

// buildsForRecord reports whether the file belongs to the platform that the record is made for.
func buildsForRecord(f *File) bool {
	stem := strings.TrimSuffix(path.Base(f.Path), ".go")
	for _, other := range []string{"windows", "darwin", "arm64", "freebsd"} {
		if strings.HasSuffix(stem, "_"+other) {
			return false
		}
	}
	for _, g := range f.Syntax.Comments {
		if g.Pos() > f.Syntax.Package {
			break
		}
		for _, c := range g.List {
			if !constraint.IsGoBuild(c.Text) {
				continue
			}
			x, err := constraint.Parse(c.Text)
			if err == nil && !x.Eval(func(tag string) bool {
				return tag == "linux" || tag == "amd64" || tag == "unix" || tag == "gc" || strings.HasPrefix(tag, "go1.")
			}) {
				return false
			}
		}
	}
	return true
}

// apiPrinter collects the lines of one package.
type apiPrinter struct {
	prefix string
	lines  []string
}

func (a *apiPrinter) add(format string, args ...any) {
	a.lines = append(a.lines, a.prefix+fmt.Sprintf(format, args...))
}

func (a *apiPrinter) decl(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if !d.Name.IsExported() {
			return
		}
		if d.Recv == nil {
			a.add("func %s%s%s", d.Name.Name, typeParams(d.Type.TypeParams), signature(d.Type))
		} else if ast.IsExported(receiver(d)) {
			a.add("method (%s) %s%s", source(d.Recv.List[0].Type), d.Name.Name, signature(d.Type))
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					a.typeSpec(s)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if !n.IsExported() {
						continue
					}
					if s.Type != nil {
						a.add("%s %s %s", d.Tok, n.Name, typeText(s.Type))
					} else {
						a.add("%s %s", d.Tok, n.Name)
					}
				}
			}
		}
	}
}

func (a *apiPrinter) typeSpec(s *ast.TypeSpec) {
	head := s.Name.Name + typeParams(s.TypeParams)
	if s.Assign.IsValid() {
		a.add("type %s = %s", head, typeText(s.Type))
		return
	}
	switch typ := s.Type.(type) {
	case *ast.StructType:
		a.add("type %s struct", head)
		for _, f := range typ.Fields.List {
			if len(f.Names) == 0 {
				a.add("type %s struct, embedded %s", head, typeText(f.Type))
			}
			for _, n := range f.Names {
				if n.IsExported() {
					a.add("type %s struct, %s %s", head, n.Name, typeText(f.Type))
				}
			}
		}
	case *ast.InterfaceType:
		a.add("type %s interface", head)
		for _, m := range typ.Methods.List {
			if len(m.Names) == 0 {
				a.add("type %s interface, embedded %s", head, typeText(m.Type))
			}
			for _, n := range m.Names {
				if n.IsExported() {
					a.add("type %s interface, %s%s", head, n.Name, signature(m.Type.(*ast.FuncType)))
				} else {
					a.add("type %s interface, unexported methods", head)
				}
			}
		}
	default:
		a.add("type %s %s", head, typeText(s.Type))
	}
}

// typeParams returns a list of type parameters with its brackets, or nothing.
func typeParams(l *ast.FieldList) string {
	if l == nil {
		return ""
	}
	var parts []string
	for _, f := range l.List {
		for _, n := range f.Names {
			parts = append(parts, n.Name+" "+typeText(f.Type))
		}
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// signature returns parameters and results without names.
func signature(f *ast.FuncType) string {
	in, out := fieldTypes(f.Params), fieldTypes(f.Results)
	s := "(" + strings.Join(in, ", ") + ")"
	switch len(out) {
	case 0:
		return s
	case 1:
		return s + " " + out[0]
	}
	return s + " (" + strings.Join(out, ", ") + ")"
}

func fieldTypes(l *ast.FieldList) []string {
	if l == nil {
		return nil
	}
	var out []string
	for _, f := range l.List {
		for range max(1, len(f.Names)) {
			out = append(out, typeText(f.Type))
		}
	}
	return out
}

// typeText returns a type on one line; parameter names of function types are left out.
func typeText(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.FuncType:
		return "func" + signature(x)
	case *ast.StarExpr:
		return "*" + typeText(x.X)
	case *ast.Ellipsis:
		return "..." + typeText(x.Elt)
	case *ast.ArrayType:
		if x.Len == nil {
			return "[]" + typeText(x.Elt)
		}
		return "[" + source(x.Len) + "]" + typeText(x.Elt)
	case *ast.MapType:
		return "map[" + typeText(x.Key) + "]" + typeText(x.Value)
	}
	return source(x)
}

// source prints an expression as gofmt does, on one line.
func source(x ast.Expr) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, token.NewFileSet(), x); err != nil {
		return "(unprintable: " + err.Error() + ")"
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// Difference returns the lines of recorded that are not in now, and the reverse, each in order.
func Difference(recorded, now []string) (gone, added []string) {
	minus := func(a, b []string) (rest []string) {
		in := map[string]bool{}
		for _, s := range b {
			in[s] = true
		}
		for _, s := range a {
			if !in[s] {
				rest = append(rest, s)
			}
		}
		return rest
	}
	return minus(recorded, now), minus(now, recorded)
}
