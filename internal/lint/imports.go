package lint

import (
	"fmt"
	"go/ast"
	"path"
	"sort"
	"strconv"
	"strings"
)

// law is the import law: each line names a folder ("/..." adds everything below it; the longest match counts) and, after the colon, every
// package of the module that its non-test files may import. "*" allows all. A package without a line is a finding, so that whoever adds one
// decides where it belongs. Lines run from the bottom to the top; a name in capitals stands for the list assigned to it.
const law = `
LEAF = dtype fault internal/knob

dtype:
fault:
internal/knob: fault
internal/filetype:
internal/pickle: fault
internal/pprof: fault
internal/snapshot: fault internal/filetype internal/pickle internal/pprof
profile: fault internal/pprof
internal/stack:
internal/membarrier:
internal/origin: fault
internal/checklog:
internal/terminal:
internal/browser:
internal/testkit: fault dtype
internal/lint:
internal/cost:
internal/lint/...: internal/lint
internal/benchrun: fault profile
internal/wholefile: fault
internal/disk:
internal/ordered:
safetensors: LEAF internal/filetype internal/origin internal/wholefile
internal/recorded: LEAF safetensors
internal/mersenne:
internal/approx:
internal/agree:
internal/sanitize:

internal/dl: fault
internal/driver: fault
internal/driver/drivertest: LEAF internal/driver internal/kir internal/kir/math kernel internal/ptx internal/testkit
internal/driver/*: LEAF internal/driver

internal/kir: LEAF
internal/kir/...: LEAF internal/kir
internal/ptx: LEAF internal/approx internal/kir internal/kir/math
internal/vexec: LEAF internal/approx internal/kir internal/kir/math
internal/vexec/...: LEAF internal/approx internal/kir internal/vexec
internal/check: LEAF internal/checklog internal/origin internal/stack internal/terminal internal/kir internal/vexec
internal/driver/hostsim: LEAF internal/driver internal/kir internal/vexec internal/check
internal/driver/libcuda: LEAF internal/driver internal/dl

kernel: LEAF internal/origin internal/stack internal/kir internal/kir/math
internal/kernels: LEAF kernel internal/kir internal/kir/math internal/kernels/math
internal/kernels/...: LEAF kernel internal/kir internal/kir/math internal/kernels internal/kernels/...
kernel/kmath: LEAF kernel internal/kernels/math
internal/infer: LEAF
internal/fuse: LEAF internal/infer
internal/lib/...: LEAF internal/driver internal/dl internal/lib
internal/alloc: fault internal/knob internal/driver

RUNTIME = LEAF profile internal/origin internal/driver internal/alloc internal/kernels internal/kernels/... kernel internal/kir
DRIVERS = internal/driver/libcuda internal/driver/hostsim internal/driver/null internal/ptx internal/lib/...
internal/rt: RUNTIME DRIVERS internal/disk internal/snapshot internal/stack
cuda: RUNTIME internal/rt internal/pickle internal/snapshot
cuda/nvtx: internal/lib/nvtx
internal/core: RUNTIME internal/rt internal/infer internal/fuse internal/membarrier internal/stack cuda internal/lib/...
internal/core/...: RUNTIME internal/core
.: LEAF cuda kernel internal/core internal/rt
internal/facegen: LEAF internal/core

FACE = LEAF . cuda kernel
internal/testdevice: FACE internal/core
tenontest: FACE internal/core
linalg: FACE internal/core internal/infer internal/kernels
sparse: FACE internal/core internal/kernels
internal/opspage: internal/core linalg sparse
fft: FACE internal/core
special: FACE internal/core
torchfile: FACE internal/core internal/filetype internal/origin internal/pickle internal/wholefile
compile: FACE internal/core internal/rt internal/alloc internal/origin internal/snapshot
dist: FACE internal/core internal/lib/nccl
nn: FACE internal/core internal/mersenne internal/origin linalg special safetensors
nn/...: FACE internal/core nn linalg special
optim: FACE internal/core internal/origin nn data safetensors torchfile
internal/gpt2: FACE nn optim
internal/llama: FACE nn internal/gpt2
internal/zoo: FACE nn
internal/resnet: FACE nn optim
data: FACE internal/core internal/origin internal/rt internal/mersenne

memviz/replay: LEAF internal/alloc internal/snapshot internal/ordered
memviz: LEAF internal/snapshot internal/ordered
memcheck: LEAF internal/checklog internal/terminal
internal/cli: * 
cmd/tenon: internal/cli

examples/...: FACE linalg sparse fft special nn optim data compile dist torchfile safetensors
conformance/...: *
bench/...: *
`

// apart are pairs of packages that must stay apart: the first must not reach the second through any chain of non-test imports.
var apart = [][2]string{
	{"internal/ptx", "internal/vexec"},
	{"internal/vexec", "internal/ptx"},
	{"internal/driver/libcuda", "internal/driver/hostsim"},
	{"internal/driver/hostsim", "internal/driver/libcuda"},
	{"internal/alloc", "dtype"},
	{"internal/alloc", "internal/driver/libcuda"},
	{"internal/alloc", "internal/driver/hostsim"},
	{".", "memviz"},
	{".", "memcheck"},
	{"cmd/tenon", "internal/browser"},
}

// outside says who may import packages from outside the module and the standard library, and a few restricted packages of the latter. test
// allows test files anywhere; reason is quoted in the finding.
var outside = []struct {
	path   string
	folder []string
	test   bool
	reason string
}{
	{"github.com/ebitengine/purego", []string{"internal/dl"}, false, "dynamic loading has one door"},
	{"github.com/alecthomas/kong", []string{"internal/cli", "cmd/tenon"}, false, "command lines are parsed in one place"},
	{"github.com/google/pprof", []string{"internal/pprof"}, true, "profiles for go tool pprof are written in one place"},
	{"github.com/chromedp", []string{"internal/browser"}, false, "tests drive a browser in one place"},
	{"golang.org/x/sys/cpu", []string{"internal/vexec"}, false, "only the simulator's executor asks what the processor can do"},
	{"golang.org/x/sync", []string{"..."}, true, ""},
	{"github.com/google/go-cmp", nil, true, "it serves tests"},
	{"pgregory.net/rapid", []string{"internal/testkit", "internal/driver/drivertest"}, true, "it serves tests"},
	{"go.uber.org/goleak", []string{"internal/testkit", "internal/driver/drivertest"}, true, "it serves tests"},
	{"unsafe", []string{"internal/dl", "internal/driver/*", "internal/vexec/...", "internal/lib/...", "dtype"}, false,
		"raw memory is touched by loaders, drivers and dtype alone"},
	{"net/http", []string{"memviz/...", "internal/browser", "internal/cli/...", "bench"}, false, "only the viewer serves pages"},
	{"C", nil, false, "the module needs no C compiler"},
}

// environment lists the functions that read or write environment variables, by package.
var environment = map[string][]string{
	"os":      {"Getenv", "LookupEnv", "Environ", "ExpandEnv", "Setenv", "Unsetenv", "Clearenv"},
	"syscall": {"Getenv", "Environ", "Setenv", "Unsetenv", "Clearenv"},
}

// Imports checks the import law: the table of packages, the pairs that must stay apart, the restricted packages, and that only
// internal/knob uses the environment (tests may, for processes that they start).
func Imports(t *Tree) []Finding {
	rules, err := parseLaw(law)
	if err != nil {
		return []Finding{{File: "internal/lint/imports.go", Msg: err.Error()}}
	}
	var out []Finding
	graph := map[string][]string{}
	for _, p := range t.Packages {
		allowed, ok := rules.find(p.Dir)
		if !ok {
			out = append(out, Finding{File: p.Dir, Msg: "package has no line in the import law; decide where it stands and add one"})
			continue
		}
		for _, f := range p.Files {
			for _, spec := range f.Syntax.Imports {
				imp, _ := strconv.Unquote(spec.Path.Value)
				dir, ours := folderOf(imp)
				switch {
				case !ours:
					out = append(out, t.fence(p, f, spec, imp)...)
				case !f.Test:
					graph[p.Dir] = append(graph[p.Dir], dir)
					if !allows(allowed, dir) {
						out = append(out, t.at(spec.Pos(), "%s may not import %s: imports point down only, and the import law names "+
							"what each package may use", p.Dir, dir))
					}
				}
			}
			if !f.Test && p.Dir != "internal/knob" {
				out = append(out, t.envReads(f)...)
			}
		}
	}
	for _, pair := range apart {
		if chain := reach(graph, pair[0], pair[1]); chain != nil {
			out = append(out, Finding{File: pair[0], Msg: "may not reach " + pair[1] + ", but does: " + strings.Join(chain, " → ")})
		}
	}
	return out
}

// fence checks one import of a package outside the module.
func (t *Tree) fence(p *Package, f *File, spec *ast.ImportSpec, imp string) []Finding {
	for _, o := range outside {
		if imp != o.path && !strings.HasPrefix(imp, o.path+"/") {
			continue
		}
		if o.test && f.Test {
			return nil
		}
		for _, dir := range o.folder {
			if dir == "..." || within(p.Dir, dir) {
				return nil
			}
		}
		return []Finding{t.at(spec.Pos(), "%s may not import %s: %s", p.Dir, imp, o.reason)}
	}
	if first, _, _ := strings.Cut(imp, "/"); strings.Contains(first, ".") {
		return []Finding{t.at(spec.Pos(), "%s imports %s, which is not a dependency of the module; RATIONALE.md says which are and why",
			p.Dir, imp)}
	}
	return nil
}

// envReads finds uses of environment variables in f.
func (t *Tree) envReads(f *File) []Finding {
	banned := map[string]map[string]bool{}
	for _, spec := range f.Syntax.Imports {
		imp, _ := strconv.Unquote(spec.Path.Value)
		names := environment[imp]
		if names == nil {
			continue
		}
		set := map[string]bool{}
		for _, n := range names {
			set[n] = true
		}
		local := path.Base(imp)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		banned[local] = set
	}
	var out []Finding
	ast.Inspect(f.Syntax, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); ok && banned[id.Name][sel.Sel.Name] {
			out = append(out, t.at(sel.Pos(), "%s.%s: the environment is read by internal/knob alone; add a knob there",
				id.Name, sel.Sel.Name))
		}
		return true
	})
	return out
}

// ruleSet maps folder patterns to what they may import.
type ruleSet map[string][]string

// parseLaw reads the notation of law.
func parseLaw(text string) (ruleSet, error) {
	sets, rules := map[string][]string{}, ruleSet{}
	expand := func(words string) []string {
		var out []string
		for _, w := range strings.Fields(words) {
			if s, ok := sets[w]; ok {
				out = append(out, s...)
			} else {
				out = append(out, w)
			}
		}
		return out
	}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if name, words, ok := strings.Cut(line, "="); ok {
			sets[strings.TrimSpace(name)] = expand(words)
			continue
		}
		name, words, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("import law, line %d: neither a set nor a rule: %q", i+1, line)
		}
		if _, twice := rules[name]; twice {
			return nil, fmt.Errorf("import law, line %d: %s has two lines", i+1, name)
		}
		rules[name] = expand(words)
	}
	return rules, nil
}

// find returns what the folder may import: the rule with its own name, otherwise that of the longest pattern that matches it.
func (r ruleSet) find(dir string) ([]string, bool) {
	if a, ok := r[dir]; ok {
		return a, true
	}
	var patterns []string
	for p := range r {
		if within(dir, p) {
			patterns = append(patterns, p)
		}
	}
	if len(patterns) == 0 {
		return nil, false
	}
	sort.Slice(patterns, func(i, j int) bool {
		if len(patterns[i]) != len(patterns[j]) {
			return len(patterns[i]) > len(patterns[j])
		}
		return patterns[i] < patterns[j]
	})
	return r[patterns[0]], true
}

// allows reports whether dir is in the list.
func allows(list []string, dir string) bool {
	for _, a := range list {
		if a == "*" || within(dir, a) {
			return true
		}
	}
	return false
}

// reach returns a chain of imports from one folder to another, or nil.
func reach(graph map[string][]string, from, to string) []string {
	before := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, next := range graph[queue[0]] {
			if _, seen := before[next]; seen {
				continue
			}
			before[next] = queue[0]
			if next != to {
				queue = append(queue, next)
				continue
			}
			var chain []string
			for d := to; d != ""; d = before[d] {
				chain = append([]string{d}, chain...)
			}
			return chain
		}
	}
	return nil
}
