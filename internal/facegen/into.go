package main

import (
	"fmt"
	"go/ast"
	"slices"
	"strconv"
	"strings"
)

// intoDirective is the last line of the comment of a core method for which PyTorch has out=. The face also has it with Into.
const intoDirective = "//tenon:into"

func hasInto(d *ast.FuncDecl) bool {
	return d.Doc != nil && slices.ContainsFunc(d.Doc.List, func(c *ast.Comment) bool { return c.Text == intoDirective })
}

// docOf returns the lines of d's comment without the directive and the separator before it.
func docOf(d *ast.FuncDecl) (lines []string) {
	for _, c := range d.Doc.List {
		if c.Text == intoDirective {
			return lines[:len(lines)-1]
		}
		lines = append(lines, c.Text)
	}
	return lines
}

// ofDestination are the parameters that a destination replaces, by type and name: the type and shape of a factory's result.
var ofDestination = map[string]string{"dtype.DType dt": "DType()", "[]int shape": "Shape()"}

// into writes the method that stores d's results in existing tensors.
func (g *gen) into(d *ast.FuncDecl) error {
	name := d.Name.Name + "Into"
	dsts, err := destinations(d)
	if err != nil {
		return err
	}
	sig := withDestinations(d, name, dsts)
	params, args, options, err := g.params(sig)
	if err != nil {
		return err
	}
	call := coreCall(d, args[len(dsts):])
	fmt.Fprintf(&g.body, "// %s is [Exec.%s] with its result in %s; see [Tensor] for what that may be.\n", name, d.Name.Name,
		strings.Join(dsts, " and "))
	fmt.Fprintf(&g.body, "func (x *Exec) %s(%s) {\n", name, strings.Join(params, ", "))
	fmt.Fprintf(&g.body, "\tcx := x.enter(%s)\n\tdefer core.Leave(cx)\n", strings.Join(append([]string{strconv.Quote(name)},
		operands(sig)...), ", "))
	if options != "" {
		g.once(sig, options, len(args)-1)
	}
	into, result := "Into", "*core.Tensor"
	if len(dsts) == 2 {
		into, result = "IntoPair", "(_, _ *core.Tensor)"
	}
	fmt.Fprintf(&g.body, "\tcore.%s(cx, %q, %s, func(cx *core.Exec) %s { return %s })\n}\n\n",
		into, name, strings.Join(args[:len(dsts)], ", "), result, call)
	return nil
}

// destinations returns the names of the tensors that take d's results: dst, or the names of the results if there are two.
func destinations(d *ast.FuncDecl) (names []string, err error) {
	for _, f := range d.Type.Results.List {
		if typeText(f.Type) != "*Tensor" {
			return nil, fmt.Errorf("%s returns a %s, which cannot go to a destination", d.Name.Name, typeText(f.Type))
		}
		for _, n := range f.Names {
			names = append(names, n.Name)
		}
	}
	switch len(names) {
	case 0, 1:
		return []string{"dst"}, nil
	case 2:
		return names, nil
	}
	return nil, fmt.Errorf("%s has %d results, of which at most 2 can go to destinations", d.Name.Name, len(names))
}

// withDestinations returns d's declaration under another name, with its destinations first and without the parameters that they replace.
func withDestinations(d *ast.FuncDecl, name string, dsts []string) *ast.FuncDecl {
	first := &ast.Field{Type: &ast.StarExpr{X: ast.NewIdent("Tensor")}}
	for _, n := range dsts {
		first.Names = append(first.Names, ast.NewIdent(n))
	}
	list := []*ast.Field{first}
	for _, f := range d.Type.Params.List {
		kept := &ast.Field{Type: f.Type}
		for _, n := range f.Names {
			if ofDestination[typeText(f.Type)+" "+n.Name] == "" {
				kept.Names = append(kept.Names, n)
			}
		}
		if kept.Names != nil {
			list = append(list, kept)
		}
	}
	return &ast.FuncDecl{Name: ast.NewIdent(name), Recv: d.Recv, Type: &ast.FuncType{Params: &ast.FieldList{List: list}}}
}

// coreCall returns the call of core's d with args, taking the replaced parameters from the destination.
func coreCall(d *ast.FuncDecl, args []string) string {
	var all []string
	for _, f := range d.Type.Params.List {
		for _, n := range f.Names {
			if say := ofDestination[typeText(f.Type)+" "+n.Name]; say != "" {
				all = append(all, "dst."+say)
				continue
			}
			all, args = append(all, args[0]), args[1:]
		}
	}
	return fmt.Sprintf("cx.%s(%s)", d.Name.Name, strings.Join(all, ", "))
}
