package main

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// tasks are the groups of methods, in the page's order, with the files of core, and of the root package, that declare their methods.
var tasks = []struct {
	title string
	files []string
}{
	{"Making and reading tensors", []string{"ops_factory", "ops_range", "root/format"}},
	{"Random numbers", []string{"ops_random", "ops_multinomial"}},
	{"Copies, types and devices", []string{"ops_copy", "ops_device", "ops_pinned"}},
	{"Views and shapes", []string{"ops_view", "ops_shape"}},
	{"Joining, splitting and rearranging", []string{"ops_join", "ops_rearrange", "ops_repeat"}},
	{"Indexing and selecting", []string{"ops_indexing", "ops_index", "ops_slices", "ops_select", "ops_nonzero", "ops_unique",
		"root/index"}},
	{"Arithmetic", []string{"ops_arith", "ops_binary", "ops_ternary", "ops_magnitude", "ops_complex"}},
	{"Functions of each element", []string{"ops_unary"}},
	{"Comparisons and logic", []string{"ops_compare", "ops_logic", "ops_truth", "ops_assert"}},
	{"Sums, extremes and norms", []string{"ops_reduce", "ops_product", "ops_variance", "ops_extreme", "ops_vectornorm", "ops_bincount"}},
	{"Matrix products", []string{"ops_matmul", "ops_matmulc", "ops_contract", "ops_einsum"}},
	{"Activations", []string{"ops_activation", "ops_softmax"}},
	{"Layers", []string{"ops_conv", "ops_convtranspose", "ops_interpolate", "ops_pool", "ops_norm", "ops_normgather", "ops_attention"}},
	{"Losses and distances", []string{"ops_loss", "ops_entropy", "ops_error", "ops_distance"}},
	{"Gradients", []string{"tape_backward", "tape_checkpoint", "tape_function", "tape_hooks"}},
	{"Kernels and graphs", []string{"call_launch", "graph_capture"}},
	{"Modes, scopes and streams", []string{"session_exec", "session_scope", "session_close", "call_autocast", "graph_generator",
		"graph_pool", "root/tenon"}},
}

// methods returns the part of the page that lists the methods of Exec by task: those in core's folder, and those that the root package
// writes by hand, some of them in place of core's.
func methods(core, root string) (string, error) {
	byFile, err := methodsIn(core, "")
	if err != nil {
		return "", err
	}
	written, err := methodsIn(root, "root/")
	if err != nil {
		return "", err
	}
	plain := map[string]bool{}
	for _, fns := range byFile {
		for i, fn := range fns {
			plain[fn.Name.Name] = true
			for file, own := range written {
				if k := slices.IndexFunc(own, func(o *ast.FuncDecl) bool { return o.Name.Name == fn.Name.Name }); k >= 0 {
					fns[i] = own[k]
					written[file] = slices.Delete(own, k, k+1)
				}
			}
		}
	}
	for file, own := range written {
		if len(own) > 0 {
			byFile[file] = own
		}
	}
	return byTask(byFile, plain)
}

// methodsIn returns the methods of Exec that the files of a folder write, by prefix and the file's name. It leaves out generated files and
// tests.
func methodsIn(folder, prefix string) (map[string][]*ast.FuncDecl, error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	byFile := map[string][]*ast.FuncDecl{}
	for _, name := range names {
		file := strings.TrimSuffix(filepath.Base(name), ".go")
		if strings.HasSuffix(file, "_test") || strings.HasPrefix(file, "z") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && ofExec(fn) {
				byFile[prefix+file] = append(byFile[prefix+file], fn)
			}
		}
	}
	return byFile, nil
}

// byTask returns the methods in the order of tasks. It leaves out a form with Into if the plain form is there.
func byTask(byFile map[string][]*ast.FuncDecl, plain map[string]bool) (string, error) {
	var b strings.Builder
	for _, t := range tasks {
		var all []string
		for _, file := range t.files {
			for _, fn := range byFile[file] {
				if name, into := strings.CutSuffix(fn.Name.Name, "Into"); !into || !plain[name] {
					all = append(all, row(fn))
				}
			}
			delete(byFile, file)
		}
		slices.Sort(all)
		fmt.Fprintf(&b, "### %s\n\n| Method | What it does |\n| --- | --- |\n%s\n", t.title, strings.Join(all, ""))
	}
	for file := range byFile {
		return "", fmt.Errorf("the methods of the file %s have no task; add the file to tasks", file)
	}
	return b.String(), nil
}

// ofExec reports whether f is a method of Exec that programs call.
func ofExec(f *ast.FuncDecl) bool {
	if f.Recv == nil || !f.Name.IsExported() {
		return false
	}
	star, ok := f.Recv.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	is, ok := star.X.(*ast.Ident)
	return ok && is.Name == "Exec" && f.Name.Name != "Last"
}

// links are references to other methods in comments.
var links = regexp.MustCompile(`\[Exec\.(\w+)\]`)

// row returns the line of the table for f: its name and operands, and the first sentence of its comment.
func row(f *ast.FuncDecl) string {
	var operands []string
	for _, p := range f.Type.Params.List {
		for _, n := range p.Names {
			name := n.Name
			if _, ok := p.Type.(*ast.Ellipsis); ok {
				name += "…"
			}
			operands = append(operands, name)
		}
	}
	text := links.ReplaceAllString(strings.TrimPrefix(new(doc.Package).Synopsis(f.Doc.Text()), f.Name.Name+" "), "$1")
	return fmt.Sprintf("| `%s(%s)` | %s |\n", f.Name.Name, strings.Join(operands, ", "), strings.ReplaceAll(text, "|", `\|`))
}
