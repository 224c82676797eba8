package lint

import (
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
)

// recovering are the functions of the library that may call recover, and why. Any panic that is not our own is a bug and must continue:
// stopping it would hide the bug.
var recovering = map[string]string{
	"internal/core.Try":             "turns the *fault.Error of an operation into an error; any other panic goes on",
	"cuda.returned":                 "does so for the methods of package cuda that return errors",
	"kernel.Builder.record":         "takes what a kernel does with another one's values as the kernel's error; any other panic goes on",
	"internal/rt.Device.buildAhead": "lets the call that needs the kernel meet the panic, in the goroutine of the program",
	"internal/rt.Trace.call":        "logs a panic of a program's trace callback, which runs in the middle of the device's work",
}

// Recovers checks that no other function calls recover. Tests are exempt.
func Recovers(t *Tree) []Finding {
	var out []Finding
	used := map[string]bool{}
	for _, p := range t.Packages {
		for _, f := range p.Files {
			if f.Test {
				continue
			}
			for _, d := range f.Syntax.Decls {
				name := p.Dir
				if fn, ok := d.(*ast.FuncDecl); ok {
					if fn.Recv != nil {
						name += "." + receiver(fn)
					}
					name += "." + fn.Name.Name
				}
				ast.Inspect(d, func(n ast.Node) bool {
					id, ok := n.(*ast.Ident)
					if !ok || id.Name != "recover" {
						return true
					}
					if used[name] = true; recovering[name] == "" {
						out = append(out,
							t.at(id.Pos(), "%s calls recover: a panic that is not our error is a bug and goes on; use core.Try", name))
					}
					return true
				})
			}
		}
		for _, name := range slices.Sorted(maps.Keys(recovering)) {
			if packageIn(name) == p.Dir && !used[name] {
				out = append(out, Finding{File: p.Dir, Msg: name + " calls recover no longer: take it off the list in " +
					"internal/lint/recover.go"})
			}
		}
	}
	return out
}

// packageIn returns the folder in a name of recovering.
func packageIn(name string) string {
	dir, last := path.Split(name)
	folder, _, _ := strings.Cut(last, ".")
	return dir + folder
}
