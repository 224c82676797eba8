package lint

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// internalMark, in the comment of an exported declaration and followed by a reason, exempts it from Nameable.
const internalMark = "//tenon:internal "

// Nameable checks that what a public package exports (functions, variables, methods, exported fields and embedded types) only uses types
// that its users can name: none of a package that is not public, unless a public package has an exported alias of it, and no unexported
// one, except embedded. Declarations marked with internalMark and a reason are exempt. Packages outside the module count as empty.
func Nameable(t *Tree) []Finding {
	w := nameWalk{t: t, checked: map[string]*types.Package{}, aliased: map[*types.TypeName]bool{}, free: map[token.Pos]bool{}}
	var roots []*types.Package
	for _, p := range t.Packages {
		if public(p.Dir) && p.Name != "main" {
			pkg, _ := w.Import(p.importPath())
			roots = append(roots, pkg)
		}
	}
	for _, pkg := range roots {
		for _, name := range pkg.Scope().Names() {
			if tn, ok := pkg.Scope().Lookup(name).(*types.TypeName); ok && tn.Exported() && tn.IsAlias() {
				if named, ok := types.Unalias(tn.Type()).(*types.Named); ok {
					w.aliased[named.Obj()] = true
				}
			}
		}
	}
	for _, pkg := range roots {
		for _, name := range pkg.Scope().Names() {
			w.object(pkg.Scope().Lookup(name), pkg.Name()+"."+name)
		}
	}
	return w.out
}

// nameWalk is one run of Nameable.
type nameWalk struct {
	t       *Tree
	checked map[string]*types.Package
	aliased map[*types.TypeName]bool // by a public package
	free    map[token.Pos]bool       // names of marked declarations
	out     []Finding
}

// Import checks the declarations of a package of the tree, for the platform of the API record.
func (w *nameWalk) Import(path string) (*types.Package, error) {
	if pkg := w.checked[path]; pkg != nil {
		return pkg, nil
	}
	var files []*ast.File
	for _, p := range w.t.Packages {
		if p.importPath() != path {
			continue
		}
		for _, f := range p.Files {
			if !f.Test && buildsForRecord(f) {
				files = append(files, f.Syntax)
				w.marks(f.Syntax)
			}
		}
	}
	pkg := types.NewPackage(path, path[strings.LastIndexByte(path, '/')+1:])
	pkg.MarkComplete()
	if len(files) > 0 {
		// Errors about missing parts of other packages do not matter here.
		config := types.Config{Importer: w, IgnoreFuncBodies: true, FakeImportC: true, Error: func(error) {}}
		pkg, _ = config.Check(path, w.t.Fset, files, nil)
	}
	w.checked[path] = pkg
	return pkg, nil
}

// marks records the functions of a file that internalMark exempts.
func (w *nameWalk) marks(f *ast.File) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && marked(fn.Doc, internalMark) {
			w.free[fn.Name.Pos()] = true
		}
	}
}

// object checks what an exported name declares.
func (w *nameWalk) object(o types.Object, name string) {
	if !o.Exported() || w.free[o.Pos()] {
		return
	}
	tn, ok := o.(*types.TypeName)
	if !ok {
		w.uses(o, name, o.Type())
		return
	}
	named, ok := types.Unalias(tn.Type()).(*types.Named)
	if !ok {
		w.uses(o, name, tn.Type())
		return
	}
	for m := range named.Methods() {
		w.object(m, name+"."+m.Name())
	}
	w.parts(o, name, named.Underlying())
}

// parts checks what users see of a type that is spelled out at o: fields, interface methods, and elements.
func (w *nameWalk) parts(o types.Object, name string, t types.Type) {
	switch t := t.(type) {
	case *types.Struct:
		for f := range t.Fields() {
			switch {
			case f.Embedded() && !f.Exported():
			case f.Embedded():
				w.uses(f, name+"."+f.Name(), f.Type())
			default:
				w.object(f, name+"."+f.Name())
			}
		}
	case *types.Interface:
		for m := range t.ExplicitMethods() {
			w.object(m, name+"."+m.Name())
		}
		for e := range t.EmbeddedTypes() {
			w.uses(o, name, e)
		}
	default:
		w.uses(o, name, t)
	}
}

// uses checks every type that t names.
func (w *nameWalk) uses(o types.Object, name string, t types.Type) {
	if a, ok := t.(*types.Alias); ok && w.canName(a.Obj()) {
		return
	}
	switch t := types.Unalias(t).(type) {
	case *types.Named:
		if !w.canName(t.Obj()) {
			w.out = append(w.out, w.t.at(o.Pos(), "%s has to do with %s.%s, which users cannot name; give it a type of a public "+
				"package, or mark it %q with the reason",
				name, t.Obj().Pkg().Name(), t.Obj().Name(), strings.TrimSpace(internalMark)))
		}
		for arg := range t.TypeArgs().Types() {
			w.uses(o, name, arg)
		}
	case *types.Signature:
		for _, tuple := range []*types.Tuple{t.Params(), t.Results()} {
			for v := range tuple.Variables() {
				w.uses(o, name, v.Type())
			}
		}
		for p := range t.TypeParams().TypeParams() {
			w.uses(o, name, p.Constraint())
		}
	case *types.Map:
		w.uses(o, name, t.Key())
		w.uses(o, name, t.Elem())
	case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
		w.uses(o, name, t.Elem())
	case *types.Union:
		for term := range t.Terms() {
			w.uses(o, name, term.Type())
		}
	case *types.Struct, *types.Interface:
		w.parts(o, name, t)
	}
}

// canName reports whether users can name a type.
func (w *nameWalk) canName(tn *types.TypeName) bool {
	if tn.Pkg() == nil || w.aliased[tn] {
		return true
	}
	dir, ours := folderOf(tn.Pkg().Path())
	return !ours || public(dir) && tn.Exported()
}
