package lint

import (
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"slices"
	"strings"
)

// coreRooms are the parts of internal/core, from the bottom up. The name of a file begins with its room.
var coreRooms = []string{"tensor", "session", "call", "tape", "graph", "ops", "seam"}

// upward says which files of internal/core refer to rooms above their own, and for what.
var upward = map[string]struct{ rooms, why string }{
	"tensor.go":          {"session tape graph", "a handle refers to its scope and its node; closing one tells its session"},
	"tensor_form.go":     {"call", "lists of attributes are interned beside shapes"},
	"tensor_storage.go":  {"session", "a storage that a cleanup ends goes to its session"},
	"session_exec.go":    {"call tape graph ops", "a session holds the state of a call, a backward pass, a capture and deferred calls"},
	"session_gate.go":    {"call graph", "a goroutine that leaves a session undoes the call and gives up what was deferred"},
	"session_scope.go":   {"tape graph", "a capture has a scope of its own; converted parameters are kept by leaf"},
	"session_close.go":   {"graph", "a closed fork gives up what it deferred"},
	"session_fail.go":    {"call", "a panic abandons the call"},
	"call_row.go":        {"tape graph ops", "the funnel records on the tape, and captures and deferred calls take calls over"},
	"call_frame.go":      {"graph", "a frame of a recorded call knows its segment"},
	"call_promote.go":    {"graph", "a pointwise call joins the plan of fused kernels"},
	"call_change.go":     {"graph ops", "a change of several tensors is deferred or captured as one"},
	"call_site.go":       {"graph", "a failed assertion in a capture names the capture"},
	"call_tap.go":        {"graph", "the tap of a session stands behind its capture"},
	"call_into.go":       {"tape ops", "a result is copied to where the caller wants it, without its history"},
	"call_autocast.go":   {"tape ops", "autocast converts operands, and keeps the converted parameters by leaf"},
	"call_launch.go":     {"tape", "a launch in a derivative would have no second derivative"},
	"call_profile.go":    {"tape graph", "a profile has fused kernels, and memory by what the tape holds"},
	"tape_node.go":       {"graph ops", "a node belongs to a compiled function's span; an operand that is overwritten is copied"},
	"tape_back.go":       {"ops", "a derivative fits a gradient to its input: sums, conversions, ones"},
	"tape_backward.go":   {"graph ops", "a backward pass forces or defers, and adds gradients"},
	"tape_checkpoint.go": {"graph", "a segment that runs again winds the generators back"},
	"tape_function.go":   {"ops", "a derivative of the program's own gets gradients of its outputs' types"},
	"tape_recompute.go":  {"graph", "what is computed again in a capture runs on its streams"},
	"tape_region.go":     {"ops", "a changed view is copied into its base"},
	"graph_check.go":     {"ops", "results are read from the device"},
	"graph_generator.go": {"ops", "a captured generator's state is advanced by operations"},
}

// Rooms checks that every file of internal/core has a room, that only those in upward refer to a room above their own, and that the list
// has no superfluous entries.
func Rooms(t *Tree) []Finding {
	var out []Finding
	for _, p := range t.Packages {
		if p.Dir == "internal/core" {
			out = append(out, roomsOf(t, p)...)
		}
	}
	return out
}

func roomsOf(t *Tree, p *Package) []Finding {
	var out []Finding
	var syntax []*ast.File
	for _, f := range p.Files {
		name := path.Base(f.Path)
		if f.Test || name == "doc.go" || !buildsForRecord(f) {
			continue
		}
		if roomOf(name) < 0 {
			out = append(out, Finding{File: f.Path, Msg: "the name does not begin with a room: " + strings.Join(coreRooms, ", ")})
			continue
		}
		syntax = append(syntax, f.Syntax)
	}
	type use struct{ file, room string }
	met := map[use]bool{}
	for id, o := range usesWithin(t.Fset, syntax) {
		file, home := path.Base(t.Fset.Position(id.Pos()).Filename), path.Base(t.Fset.Position(o.Pos()).Filename)
		if roomOf(home) <= roomOf(file) {
			continue
		}
		room := coreRooms[roomOf(home)]
		if met[use{file, room}] = true; !slices.Contains(strings.Fields(upward[file].rooms), room) {
			out = append(out, t.at(id.Pos(), "%s of the room %s is used from below; move one of the two, or say why in "+
				"internal/lint/rooms.go", o.Name(), room))
		}
	}
	for file, up := range upward {
		for _, room := range strings.Fields(up.rooms) {
			if !met[use{file, room}] {
				out = append(out, Finding{File: path.Join(p.Dir, file), Msg: "uses nothing of the room " + room +
					" any more: take it off the list in internal/lint/rooms.go"})
			}
		}
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// roomOf returns the number of a file's room from the bottom, or -1.
func roomOf(file string) int {
	room, _, _ := strings.Cut(strings.TrimSuffix(file, ".go"), "_")
	return slices.Index(coreRooms, room)
}

// usesWithin returns the declarations and fields of the package that the identifiers in the files refer to. Other packages are not loaded,
// so references through their values are not found.
func usesWithin(fset *token.FileSet, files []*ast.File) map[*ast.Ident]types.Object {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: nothing{}, Error: func(error) {}}
	pkg, _ := conf.Check("core", fset, files, info)
	for id, o := range info.Uses {
		if v, isVar := o.(*types.Var); o.Pkg() != pkg || isVar && !v.IsField() && o.Parent() != pkg.Scope() {
			delete(info.Uses, id)
		}
	}
	return info.Uses
}

// nothing imports packages that have no names.
type nothing struct{}

func (nothing) Import(p string) (*types.Package, error) {
	pkg := types.NewPackage(p, path.Base(p))
	pkg.MarkComplete()
	return pkg, nil
}
