// Package origin tells whose code a call belongs to: the program, the library or Go itself. So errors and stacks can show the line that the
// user wrote. It must not depend on what was called or on its callers.
//
// The exact package path decides: a module whose path only begins like this one belongs to the program. A function literal that the
// compiler inlined has the name of the function it was inlined into, which may be the program's; its file shows where it comes from.
// Folders are found relative to this file's own path, so that module caches, vendored copies, replaced modules and builds with -trimpath
// all work.
package origin

import (
	"cmp"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"tenon.dev/fault"
)

// Side says whose code a call belongs to.
type Side uint8

// The sides. Commands, examples, conformance tests and all other tests of the module use the library, as programs do.
const (
	Program Side = iota
	Library
	System // Go's runtime, its standard library, and functions that the compiler wrote
)

const module = "tenon.dev"

// packages are the folders of the packages that programs import; those below internal belong to the library too.
var packages = []string{".", "compile", "cuda", "cuda/nvtx", "data", "dtype", "fault", "kernel", "kernel/kmath", "linalg", "memcheck",
	"memviz", "memviz/replay", "nn", "optim",
	"profile", "safetensors", "sparse", "tenontest", "torchfile"}

// users are those packages that are above the root.
var users = []string{"compile", "data", "linalg", "nn", "optim", "sparse", "tenontest", "torchfile"}

// programs are the folders below internal whose packages use the library as programs do: their profiles show their own lines.
var programs = []string{"internal/gpt2", "internal/llama", "internal/resnet", "internal/zoo"}

// Of returns whose code a frame belongs to, by the names that the runtime gives its function and file. For the library it also returns the
// package's folder in the module, "." for the root.
func Of(function, file string) (side Side, folder string) { return built().of(function, file) }

// Here returns file and line of the calling goroutine's innermost call in the program. The line is 0 if there is none.
func Here() (file string, line int) {
	_, file, line = here(3)
	return file, line
}

// Located gives *err the operation op and the program's line, where they are missing, if the program itself called the function that defers
// Located: a function or method of a package whose errors come without them.
func Located(op string, err *error) {
	e, ok := (*err).(*fault.Error)
	if !ok || e == nil || e.Op != "" && e.Line > 0 {
		return
	}
	var pcs [16]uintptr
	for i, pc := range pcs[:runtime.Callers(2, pcs[:])] {
		switch c := find(pc); {
		case c.side == Program:
			at := fault.At(e, c.file, c.line)
			if e.Line > 0 {
				at.File, at.Line = e.File, e.Line
			}
			at.Op = cmp.Or(e.Op, op)
			*err = at
			return
		case c.side == Library && i > 0:
			return
		}
	}
}

// Call is Here with the name of the operation that the program called and that led to the function or method of the root package which is
// under way: the latter's name, such as "Add" for (*Exec).Add, or that of the function above the root that called it, such as
// "NewLinear" or "GradScaler.Scale". A module's Forward leaves its operations their names, except those that only set modes or scopes. The
// name is "" if no function of the root package is under way.
func Call() (name, file string, line int) { return here(3) }

func here(skip int) (name, file string, line int) {
	var pcs [64]uintptr
	above, forward := "", false // the outermost function of a package above the root, and whether one is a module's Forward
	passed := false
	for ; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		for _, pc := range pcs[:n] {
			c := find(pc)
			if c.side == Program {
				if name != "" && above != "" && (!forward || aside[name]) {
					name = above
				}
				return name, c.file, c.line
			}
			if c.face != "" && (!passed || name == "" && !aside[c.face]) {
				// The outermost, since the root package's calls of its own functions do not concern the program. What a call calls
				// in compile is below it.
				name, above, forward = c.face, "", false
			}
			if c.user {
				passed, above, forward = true, cmp.Or(c.called, above), forward || c.module != ""
			}
			passed = passed || c.above && name != ""
		}
		if n < len(pcs) {
			return "", "", 0
		}
	}
}

// aside are the root package's functions that only say where and how operations run.
var aside = map[string]bool{"Autocast": true, "AutocastCache": true, "Do": true, "EnableGrad": true, "Host": true, "ManualStreams": true,
	"NoGrad": true, "On": true, "Parallel": true, "Scope": true, "TF32": true, "UsePool": true, "WithGenerator": true, "Within": true,
	"WithinMany": true}

// In returns file and line, joined by a colon, of the program's innermost call in frames as runtime.Stack writes them, two lines each. It
// returns "" if there is none.
func In(frames string) string {
	lines := strings.Split(frames, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		function, created := strings.CutPrefix(lines[i], "created by ")
		if created {
			function, _, _ = strings.Cut(function, " in goroutine ")
		} else {
			function = function[:max(strings.LastIndexByte(function, '('), 0)]
		}
		place, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " +0x")
		if side, _ := Of(function, place[:max(strings.LastIndexByte(place, ':'), 0)]); side == Program {
			return place
		}
	}
	return ""
}

// call describes the call at a program counter.
type call struct {
	side Side
	// face is the name of the called function, if the root package exports it; above says that it belongs to another public package of the
	// library, and user that this one is in users: then called is the function's name, with the receiver's type.
	face, called string
	above, user  bool
	// folder is the library's package, and module the receiver's type if the function is a method Forward.
	folder, module string
	function       string
	file           string
	line           int
}

// calls caches a call for each program counter seen, so that only the first error of a line pays for the names.
var calls sync.Map

// find returns the call at a program counter of runtime.Callers; each stands for one call, inlined or not.
func find(pc uintptr) *call {
	if c, ok := calls.Load(pc); ok {
		return c.(*call)
	}
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	c := &call{function: f.Function, file: f.File, line: f.Line}
	if c.side, c.folder = Of(f.Function, f.File); c.line <= 0 {
		c.side = System
	}
	if c.side != System {
		c.module = moduleOf(f.Function)
	}
	switch {
	case c.side != Library:
	case c.folder == ".":
		if c.face = exported(f.Function); c.face == "Try" { // which is not an operation
			c.face = ""
		}
	default:
		c.above = !strings.HasPrefix(c.folder, "internal/")
		switch c.user = slices.Contains(users, c.folder); {
		case !c.user:
		case packageOf(f.Function) == module+"/"+c.folder:
			c.called = exportedOf(f.Function)
		default: // a function literal that was inlined elsewhere
			c.called = exported(f.Function)
		}
	}
	calls.Store(pc, c)
	return c
}

// Place returns the file and line of the call at a program counter of runtime.Callers, and the library's folder as Of does. The line is 0
// for calls that the compiler added.
func Place(pc uintptr) (folder, file string, line int) {
	c := find(pc)
	return c.folder, c.file, c.line
}

// exported returns the name of the exported function or method that function, a name of the runtime's, belongs to; else "".
func exported(function string) string {
	name := exportedOf(function)
	return name[strings.IndexByte(name, '.')+1:]
}

// exportedOf is exported with the receiver's type before a method's name, if it is exported too.
func exportedOf(function string) string {
	function, _, _ = strings.Cut(function, "[")
	_, name, _ := strings.Cut(function[strings.LastIndexByte(function, '/')+1:], ".")
	receiver := ""
	if first, method, ok := strings.Cut(name, "."); ok && (first[0] == '(' || !strings.HasPrefix(method, "func")) {
		receiver, name = strings.TrimSuffix(strings.TrimPrefix(first, "(*"), ")"), method
	}
	if name, _, _ = strings.Cut(name, "."); !capital(name) {
		return ""
	}
	if capital(receiver) {
		return receiver + "." + name
	}
	return name
}

func capital(name string) bool { return name != "" && name[0] >= 'A' && name[0] <= 'Z' }

// layout says where a program's files lie, by the names that its build gave them.
type layout struct {
	root   string // of this module, with a slash at the end; "" if unknown
	system string // of the standard library, also with a slash; "" if names are trimmed
	main   string // the path of the program's module; used if names are trimmed
}

// built is the layout of the running program.
var built = sync.OnceValue(func() layout {
	var pcs [2]uintptr
	var l layout
	frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs[:])])
	f, _ := frames.Next()
	if dir, ok := strings.CutSuffix(f.File, "runtime/extern.go"); ok {
		l.system = dir
	}
	f, _ = frames.Next()
	if dir, ok := strings.CutSuffix(f.File, "internal/origin/origin.go"); ok {
		l.root = dir
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		l.main = info.Main.Path
	}
	return l
})

func (l layout) of(function, file string) (side Side, folder string) {
	if function == "" || file == "<autogenerated>" {
		return System, ""
	}
	test := strings.HasSuffix(file, "_test.go")
	if rest, ok := strings.CutPrefix(file, l.root); ok && l.root != "" && !test {
		if folder := path.Dir(rest); known(folder) {
			return Library, folder
		}
	}
	pkg := packageOf(function)
	if folder, ok := within(pkg, module); ok {
		if !test && known(folder) {
			return Library, folder
		}
		return Program, ""
	}
	if l.isSystem(pkg, file) {
		return System, ""
	}
	return Program, ""
}

// isSystem reports whether a file belongs to the standard library. Trimmed names of its files begin with the package path, whose first
// element has no dot, but names of the program's own module may look the same.
func (l layout) isSystem(pkg, file string) bool {
	if l.system != "" {
		return strings.HasPrefix(file, l.system)
	}
	if pkg == "main" {
		return false
	}
	if _, own := within(pkg, l.main); own && l.main != "" {
		return false
	}
	first, _, ok := strings.Cut(file, "/")
	return ok && first != "" && !strings.ContainsAny(first, ".@:")
}

// packageOf returns the path of the package in a function's name. The runtime writes dots after the path's last slash as %2e, and type
// arguments in brackets.
func packageOf(function string) string {
	function, _, _ = strings.Cut(function, "[")
	slash := strings.LastIndexByte(function, '/') + 1
	last, _, _ := strings.Cut(function[slash:], ".")
	return function[:slash] + strings.ReplaceAll(last, "%2e", ".")
}

// within returns a package's folder in a module, and whether it belongs to the module.
func within(pkg, module string) (folder string, ok bool) {
	if pkg == module {
		return ".", true
	}
	rest, ok := strings.CutPrefix(pkg, module)
	if !ok || rest[0] != '/' {
		return "", false
	}
	return rest[1:], true
}

// known reports whether a folder holds a package of the library.
func known(folder string) bool {
	return strings.HasPrefix(folder, "internal/") && !slices.Contains(programs, folder) || slices.Contains(packages, folder)
}

// Frame is a call in the program.
type Frame struct {
	Function, File string
	Line           int
}

// Path is the way from the program to the point where Way is called.
type Path struct {
	// Calls are the program's, innermost first.
	Calls []Frame
	// Modules are the types whose method Forward is under way, outermost first, and Above the folders of the packages above the root that
	// it leads through, innermost first; either may repeat.
	Modules, Above []string
}

// Trail is a goroutine's program counters, from which Way makes a path later.
type Trail []uintptr

// Way returns the calling goroutine's path, from its 128 innermost calls. It does not include the library's own calls.
func Way() Path {
	var pcs [128]uintptr
	return Trail(pcs[:runtime.Callers(2, pcs[:])]).Way()
}

// Way returns the path of the trail.
func (t Trail) Way() (p Path) {
	for _, pc := range t {
		c := find(pc)
		if c.side == Program {
			p.Calls = append(p.Calls, Frame{c.function, c.file, c.line})
		}
		if c.module != "" {
			p.Modules = append(p.Modules, c.module)
		}
		if c.above {
			p.Above = append(p.Above, c.folder)
		}
	}
	slices.Reverse(p.Modules)
	return p
}

// moduleOf returns the receiver's type if function, a name of the runtime's, is a method Forward; else "".
func moduleOf(function string) string {
	t, ok := strings.CutSuffix(function, ".Forward")
	if !ok {
		return ""
	}
	t, _, _ = strings.Cut(t, "[")
	t = t[strings.LastIndexByte(t, '/')+1:]
	_, name, ok := strings.Cut(t, ".")
	if !ok {
		return "" // a function
	}
	return strings.TrimSuffix(strings.TrimPrefix(name, "(*"), ")")
}
