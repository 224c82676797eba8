package lint

import (
	"go/ast"
	"go/token"
	"regexp"
	"strings"
)

// Docs checks the documentation law: every package has one doc comment of at least two sentences (what it is; what it must not depend on),
// and every exported identifier of a non-test file has a doc comment that says more than its name. One comment covers a group of constants
// or variables. Struct fields need one in public packages, interface methods everywhere; they may share the comment of the first in a run
// of lines, or of the type, if it names each of them.
func Docs(t *Tree) []Finding {
	var out []Finding
	for _, p := range t.Packages {
		out = append(out, t.packageDoc(p)...)
		if p.Name == "main" {
			continue
		}
		for _, f := range p.Files {
			if f.Test {
				continue
			}
			for _, d := range f.Syntax.Decls {
				out = append(out, t.declDoc(d, public(p.Dir))...)
			}
		}
	}
	return out
}

// packageDoc checks the comment above the package clause.
func (t *Tree) packageDoc(p *Package) []Finding {
	var docs []*File
	code := 0
	for _, f := range p.Files {
		if f.Test {
			continue
		}
		code++
		if strings.TrimSpace(f.Syntax.Doc.Text()) != "" {
			docs = append(docs, f)
		}
	}
	switch {
	case code == 0:
		return nil
	case len(docs) == 0:
		return []Finding{{File: p.Dir, Msg: "package has no doc comment: say first what it is, then what it must not depend on"}}
	case len(docs) > 1:
		return []Finding{t.at(docs[1].Syntax.Package, "package has a second doc comment besides %s: keep one", docs[0].Path)}
	}
	text := strings.Join(strings.Fields(docs[0].Syntax.Doc.Text()), " ")
	if strings.Contains(text, "may not know") {
		return []Finding{t.at(docs[0].Syntax.Package, "package doc comment says \"may not know\": say what it must not depend on")}
	}
	if sentences(text) < 2 {
		return []Finding{t.at(docs[0].Syntax.Package,
			"package doc comment has one sentence: say in the second what the package must not depend on")}
	}
	return nil
}

// sentenceEnd is a full stop, or similar, that is followed by white space or the end, and does not belong to an abbreviation.
var sentenceEnd = regexp.MustCompile(`[^.\s][.!?][)"”]?(\s|$)`)

// sentences counts the sentences of a comment.
func sentences(text string) int {
	text = strings.NewReplacer("e.g.", "eg", "i.e.", "ie", "etc. ", "etc ").Replace(text)
	return len(sentenceEnd.FindAllString(text, -1))
}

// declDoc checks one declaration and what it declares; fields is set if struct fields need comments.
func (t *Tree) declDoc(d ast.Decl, fields bool) []Finding {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if !d.Name.IsExported() || d.Recv != nil && !ast.IsExported(receiver(d)) {
			return nil
		}
		return t.wantDoc(d.Name, "function", d.Doc)
	case *ast.GenDecl:
		var out []Finding
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if !s.Name.IsExported() {
					continue
				}
				doc := s.Doc
				if doc == nil && (!d.Lparen.IsValid() || names(d.Doc.Text(), s.Name.Name)) {
					doc = d.Doc
				}
				out = append(out, t.wantDoc(s.Name, "type", doc)...)
				if _, ok := s.Type.(*ast.StructType); !ok || fields {
					out = append(out, t.memberDocs(s, doc.Text())...)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() && d.Doc == nil {
						out = append(out, t.wantDoc(n, d.Tok.String(), s.Doc, s.Comment)...)
					}
				}
			}
		}
		return out
	}
	return nil
}

// memberDocs checks the fields of a struct and the methods of an interface.
func (t *Tree) memberDocs(s *ast.TypeSpec, typeDoc string) []Finding {
	var fields *ast.FieldList
	switch typ := s.Type.(type) {
	case *ast.StructType:
		fields = typ.Fields
	case *ast.InterfaceType:
		fields = typ.Methods
	default:
		return nil
	}
	var out []Finding
	run, last := "", -2
	for _, f := range fields.List {
		line := t.Fset.Position(f.Pos()).Line
		if f.Doc != nil || line > last+1 {
			run = f.Doc.Text()
		}
		last = t.Fset.Position(f.End()).Line
		for _, n := range f.Names {
			if n.IsExported() && f.Doc == nil && f.Comment == nil && !names(run, n.Name) && !names(typeDoc, n.Name) {
				out = append(out, t.at(n.Pos(), "%s.%s has no doc comment", s.Name.Name, n.Name))
			}
		}
	}
	return out
}

// names reports whether a comment mentions a name as a word.
func names(comment, name string) bool {
	for _, w := range strings.FieldsFunc(comment, func(r rune) bool {
		return r != '_' && !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9')
	}) {
		if w == name {
			return true
		}
	}
	return false
}

// wantDoc reports n as undocumented if every comment is empty or says no more than the name.
func (t *Tree) wantDoc(n *ast.Ident, what string, comments ...*ast.CommentGroup) []Finding {
	for _, c := range comments {
		if text := strings.TrimSpace(c.Text()); text != "" && strings.TrimRight(text, ".") != n.Name {
			return nil
		}
	}
	return []Finding{t.at(n.Pos(), "exported %s %s has no doc comment", what, n.Name)}
}

// receiver returns the name of the type that a method belongs to.
func receiver(d *ast.FuncDecl) string {
	x := d.Recv.List[0].Type
	for {
		switch y := x.(type) {
		case *ast.StarExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.IndexListExpr:
			x = y.X
		case *ast.ParenExpr:
			x = y.X
		case *ast.Ident:
			return y.Name
		default:
			return token.IDENT.String()
		}
	}
}
