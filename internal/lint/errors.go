package lint

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// quotedMark, on a line or the one above it and followed by a reason, allows an error text to use words that are not the project's own; the
// reason names the quoted text.
const quotedMark = "//tenon:quoted "

// theirs matches words of PyTorch, Python and C++, which mean nothing to a Go programmer.
var theirs = regexp.MustCompile(`(?i:pytorch|python|\btorch\.)|\bNone\b|\w::|\bu?int\d+_t\b|\brequires_grad\b|\b[Ll]eaf Variable|` +
	`\b[a-z]+(_[a-z]+)*_( |$)|\b[a-z]\w*\(\):|\blinalg\.[a-z]|=(True|False)\b`)

// makesError are the functions and methods whose texts become errors.
var makesError = regexp.MustCompile(`^(New|Wrap|Errorf|panicAt|[fF]ail\w*|[rR]efus\w*)$`)

// otherErrors are folders of development tools, whose texts name what they compare with.
var otherErrors = []string{"bench/...", "internal/benchrun", "internal/recorded", "internal/lint", "conformance"}

// errorMakers are functions of one package: makes are those that make an error of a text that they are given, and says those that return
// parts of such texts.
type errorMakers struct{ makes, says map[string]bool }

func errorMakersOf(p *Package) errorMakers {
	m := errorMakers{map[string]bool{}, map[string]bool{}}
	each := func(visit func(d *ast.FuncDecl)) {
		for _, f := range p.Files {
			for _, d := range f.Syntax.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil && !f.Test {
					visit(d)
				}
			}
		}
	}
	each(func(d *ast.FuncDecl) { m.makes[d.Name.Name] = m.makes[d.Name.Name] || m.passesText(d) })
	each(func(d *ast.FuncDecl) {
		m.texts(d.Body, func(text ast.Node) {
			ast.Inspect(text, func(n ast.Node) bool {
				if c, ok := n.(*ast.CallExpr); ok {
					if f, ok := c.Fun.(*ast.Ident); ok {
						m.says[f.Name] = true
					}
				}
				return true
			})
		})
	})
	return m
}

// passesText reports whether d makes an error of a string that is its parameter.
func (m errorMakers) passesText(d *ast.FuncDecl) bool {
	given := map[string]bool{}
	for _, f := range d.Type.Params.List {
		if id, ok := f.Type.(*ast.Ident); ok && id.Name == "string" {
			for _, name := range f.Names {
				given[name.Name] = true
			}
		}
	}
	passes := false
	m.texts(d.Body, func(text ast.Node) {
		id, ok := text.(*ast.Ident)
		passes = passes || ok && given[id.Name]
	})
	return passes
}

// texts calls said with the parts of n that become texts of errors: arguments of functions that make errors, what is assigned to the
// field Msg, and the results of functions that say parts of texts.
func (m errorMakers) texts(n ast.Node, said func(n ast.Node)) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if !m.make(n) {
				return true
			}
			for _, arg := range n.Args {
				said(arg)
			}
			return false
		case *ast.AssignStmt:
			for i, l := range n.Lhs {
				if s, ok := l.(*ast.SelectorExpr); ok && s.Sel.Name == "Msg" && len(n.Rhs) == len(n.Lhs) {
					said(n.Rhs[i])
				}
			}
		case *ast.FuncDecl:
			if m.says[n.Name.Name] {
				m.results(n, said)
			}
		}
		return true
	})
}

// results calls said with the results of d that are no errors.
func (m errorMakers) results(d *ast.FuncDecl, said func(n ast.Node)) {
	ast.Inspect(d, func(n ast.Node) bool {
		r, ok := n.(*ast.ReturnStmt)
		if !ok {
			return true
		}
		for _, v := range r.Results {
			if c, ok := v.(*ast.CallExpr); !ok || !m.make(c) {
				said(v)
			}
		}
		return true
	})
}

// make reports whether c makes an error of its arguments.
func (m errorMakers) make(c *ast.CallExpr) bool {
	return makesError.MatchString(called(c)) || m.makes[called(c)]
}

// Errors checks that the texts of errors are in the project's own words. Lines with quotedMark are exempt.
func Errors(t *Tree) []Finding {
	var out []Finding
	for _, p := range t.Packages {
		if slices.ContainsFunc(otherErrors, func(pattern string) bool { return within(p.Dir, pattern) }) {
			continue
		}
		makers := errorMakersOf(p)
		for _, f := range p.Files {
			if f.Test {
				continue
			}
			free := map[int]bool{}
			for _, g := range f.Syntax.Comments {
				for _, c := range g.List {
					if reason, ok := strings.CutPrefix(c.Text, quotedMark); ok && strings.TrimSpace(reason) != "" {
						line := t.Fset.Position(c.Pos()).Line
						free[line], free[line+1] = true, true
					}
				}
			}
			said := func(n ast.Node) {
				ast.Inspect(n, func(n ast.Node) bool {
					l, ok := n.(*ast.BasicLit)
					if !ok || l.Kind != token.STRING || free[t.Fset.Position(l.Pos()).Line] {
						return true
					}
					text, err := strconv.Unquote(l.Value)
					if word := theirs.FindString(text); err == nil && word != "" {
						out = append(out, t.at(l.Pos(), "an error says %q; say it in words of our own, or which text gives them "+
							"with %sreason", word, quotedMark))
					}
					return true
				})
			}
			makers.texts(f.Syntax, said)
		}
	}
	return out
}

// called returns the last part of the name of the called function.
func called(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
