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

// theirs matches words of PyTorch and Python, which mean nothing to a Go programmer.
var theirs = regexp.MustCompile(`PyTorch|PYTORCH|Python|\bNone\b|\btorch\.|pytorch\.org`)

// makesError are the functions and methods whose texts become errors.
var makesError = regexp.MustCompile(`^(New|Wrap|Errorf|panicAt|[fF]ail\w*|[rR]efus\w*)$`)

// otherErrors are folders of development tools, whose texts name what they compare with.
var otherErrors = []string{"bench/...", "internal/benchrun", "internal/recorded", "internal/lint", "conformance"}

// Errors checks that the texts of errors are in the project's own words. Lines with quotedMark are exempt.
func Errors(t *Tree) []Finding {
	var out []Finding
	for _, p := range t.Packages {
		if slices.ContainsFunc(otherErrors, func(pattern string) bool { return within(p.Dir, pattern) }) {
			continue
		}
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
			ast.Inspect(f.Syntax, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || !makesError.MatchString(called(call)) {
					return true
				}
				for _, arg := range call.Args {
					ast.Inspect(arg, func(n ast.Node) bool {
						l, ok := n.(*ast.BasicLit)
						if !ok || l.Kind != token.STRING || free[t.Fset.Position(l.Pos()).Line] {
							return true
						}
						text, err := strconv.Unquote(l.Value)
						if word := theirs.FindString(text); err == nil && word != "" {
							out = append(out,
								t.at(l.Pos(), "an error says %q; say it in words of our own, or which text gives them with %sreason",
									word, quotedMark))
						}
						return true
					})
				}
				return false
			})
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
