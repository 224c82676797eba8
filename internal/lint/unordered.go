package lint

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// unorderedMark, on a line or the one above it and followed by a reason, says why the order of a map does no harm there.
const unorderedMark = "//tenon:unordered "

// issuing are the folders of the packages whose work, or whose results, reach a device: their order of work determines addresses, launches,
// captured graphs and floating-point sums, so one run could differ from the next.
var issuing = []string{".", "compile", "cuda", "cuda/...", "data", "kernel", "linalg", "nn", "nn/...", "optim", "safetensors", "sparse",
	"torchfile", "internal/alloc", "internal/check", "internal/core", "internal/core/...", "internal/driver", "internal/driver/...",
	"internal/fuse", "internal/infer", "internal/kernels", "internal/kernels/...", "internal/kir", "internal/lib/nvml",
	"internal/lib/nvtx", "internal/mersenne", "internal/pickle", "internal/ptx", "internal/rt", "internal/vexec"}

// Unordered checks that the packages that issue work use nothing from a map in the map's order: by range, by an iterator of package maps
// that is not sorted at once, by sync.Map.Range or by reflection. Lines with unorderedMark are exempt.
func Unordered(t *Tree) ([]Finding, error) {
	w := &orderWalk{t: t, checked: map[string]*types.Package{}}
	for _, p := range t.Packages {
		if p.Name != "main" && slices.ContainsFunc(issuing, func(pattern string) bool { return within(p.Dir, pattern) }) {
			w.issues = append(w.issues, p)
		}
	}
	if err := w.openOutside(); err != nil {
		return nil, err
	}
	for _, p := range w.issues {
		if _, err := w.Import(p.importPath()); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(w.out, func(a, b Finding) int {
		if c := strings.Compare(a.File, b.File); c != 0 {
			return c
		}
		return a.Line - b.Line
	})
	return w.out, nil
}

// orderWalk is one run of Unordered.
type orderWalk struct {
	t       *Tree
	issues  []*Package
	outside types.Importer
	checked map[string]*types.Package
	out     []Finding
}

// openOutside creates the importer for packages outside the module, from what the go command has compiled of them.
func (w *orderWalk) openOutside() error {
	var paths []string
	for _, p := range w.t.Packages {
		for _, f := range p.Files {
			if f.Test || !buildsForRecord(f) {
				continue
			}
			for _, s := range f.Syntax.Imports {
				imp := strings.Trim(s.Path.Value, `"`)
				if _, ours := folderOf(imp); !ours && imp != "unsafe" && imp != "C" && !slices.Contains(paths, imp) {
					paths = append(paths, imp)
				}
			}
		}
	}
	files := map[string]string{}
	if len(paths) > 0 {
		c := exec.Command("go", append([]string{"list", "-export", "-f", "{{.ImportPath}} {{.Export}}"}, paths...)...)
		var said bytes.Buffer
		c.Stderr = &said
		out, err := c.Output()
		if err != nil {
			return fmt.Errorf("lint: the packages outside the module cannot be listed: %w\n%s", err, &said)
		}
		for l := range strings.Lines(string(out)) {
			path, file, _ := strings.Cut(strings.TrimSpace(l), " ")
			files[path] = file
		}
	}
	w.outside = importer.ForCompiler(w.t.Fset, "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, errors.New("it is not listed")
		}
		return os.Open(files[path])
	})
	return nil
}

// Import checks the types of a package; if the package issues work, it also checks function bodies.
func (w *orderWalk) Import(path string) (*types.Package, error) {
	if pkg := w.checked[path]; pkg != nil {
		return pkg, nil
	}
	if _, ours := folderOf(path); !ours {
		if path == "unsafe" {
			return types.Unsafe, nil
		}
		return w.outside.Import(path)
	}
	i := slices.IndexFunc(w.t.Packages, func(p *Package) bool { return p.importPath() == path })
	if i < 0 {
		return nil, fmt.Errorf("lint: there is no package %s", path)
	}
	p := w.t.Packages[i]
	var files []*ast.File
	for _, f := range p.Files {
		if !f.Test && buildsForRecord(f) {
			files = append(files, f.Syntax)
		}
	}
	bodies := slices.Contains(w.issues, p)
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: w, IgnoreFuncBodies: !bodies, Sizes: types.SizesFor("gc", "amd64")}
	pkg, err := config.Check(path, w.t.Fset, files, info)
	if err != nil {
		return nil, fmt.Errorf("lint: %w", err)
	}
	w.checked[path] = pkg
	if bodies {
		for _, f := range files {
			w.file(f, info)
		}
	}
	return pkg, nil
}

// file reports what a file uses in the order of a map.
func (w *orderWalk) file(f *ast.File, info *types.Info) {
	free := map[int]bool{} // lines that a mark exempts
	bare := map[int]token.Pos{}
	for _, g := range f.Comments {
		for _, c := range g.List {
			reason, ok := strings.CutPrefix(c.Text+" ", unorderedMark)
			if line := w.t.Fset.Position(c.Pos()).Line; ok && strings.TrimSpace(reason) != "" {
				free[line], bare[line] = true, c.Pos()
			} else if ok {
				w.out = append(w.out, w.t.at(c.Pos(), "the mark gives no reason; say why the order does no harm"))
			}
		}
	}
	sorted := map[ast.Expr]bool{} // the arguments of sorting functions
	ast.Inspect(f, func(n ast.Node) bool {
		what := ""
		switch n := n.(type) {
		case *ast.RangeStmt:
			if isMap(info.TypeOf(n.X)) {
				what = "ranges over a map"
			}
		case *ast.CallExpr:
			what = w.call(n, info, sorted)
		}
		if what == "" {
			return true
		}
		line := w.t.Fset.Position(n.Pos()).Line
		for _, l := range []int{line, line - 1} {
			if free[l] {
				delete(bare, l)
				return true
			}
		}
		w.out = append(w.out, w.t.at(n.Pos(), "%s in a package that issues work; sort the keys, keep a list, or say with %sreason why "+
			"the order does no harm", what, unorderedMark))
		return true
	})
	for _, pos := range bare {
		w.out = append(w.out, w.t.at(pos, "the mark frees nothing; take it away"))
	}
}

// call returns what a call uses in the order of a map, or "".
func (w *orderWalk) call(n *ast.CallExpr, info *types.Info, sorted map[ast.Expr]bool) string {
	fun := ast.Unparen(n.Fun)
	switch x := fun.(type) {
	case *ast.IndexExpr:
		fun = x.X
	case *ast.IndexListExpr:
		fun = x.X
	}
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	f, ok := info.Uses[sel.Sel].(*types.Func)
	if !ok {
		return ""
	}
	switch name := f.FullName(); name {
	case "slices.Sorted", "slices.SortedFunc", "slices.SortedStableFunc":
		sorted[n.Args[0]] = true
	case "maps.Keys", "maps.Values", "maps.All":
		if !sorted[n] {
			return "calls " + name + ", whose order is a map's,"
		}
	case "maps.DeleteFunc", "(*sync.Map).Range", "(reflect.Value).MapRange", "(reflect.Value).MapKeys":
		return "calls " + name + ", whose order is a map's,"
	}
	return ""
}

// isMap reports whether a type is a map, or a type parameter that can be one.
func isMap(t types.Type) bool {
	p, ok := types.Unalias(t).(*types.TypeParam)
	if !ok {
		_, ok = t.Underlying().(*types.Map)
		return ok
	}
	bound, ok := p.Constraint().Underlying().(*types.Interface)
	for i := 0; ok && i < bound.NumEmbeddeds(); i++ {
		switch e := bound.EmbeddedType(i).(type) {
		case *types.Union:
			for j := range e.Len() {
				if isMap(e.Term(j).Type()) {
					return true
				}
			}
		default:
			if isMap(e) {
				return true
			}
		}
	}
	return false
}
