package lint

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// planted is a tree of source files by path.
type planted map[string]string

func (p planted) fs() fstest.MapFS {
	m := fstest.MapFS{}
	for name, text := range p {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

func (p planted) load(t *testing.T) *Tree {
	t.Helper()
	tree, err := Load(p.fs())
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// want checks that there are as many findings as wanted parts, and that each contains its part. Without parts nothing may be found.
func want(t *testing.T, found []Finding, parts ...string) {
	t.Helper()
	if len(found) != len(parts) {
		t.Errorf("%d findings, want %d: %v", len(found), len(parts), found)
		return
	}
	for i, f := range found {
		if !strings.Contains(f.String(), parts[i]) {
			t.Errorf("finding %q does not say %q", f, parts[i])
		}
	}
}

func TestImportsFindsPlanted(t *testing.T) {
	cases := []struct {
		name  string
		tree  planted
		parts []string
	}{
		{"sound", planted{
			"dtype/dtype.go":        "package dtype\nimport \"unsafe\"\nvar _ unsafe.Pointer",
			"fault/fault.go":        "package fault",
			"internal/dl/dl.go":     "package dl\nimport (\"tenon.dev/fault\"; \"github.com/ebitengine/purego\")",
			"internal/knob/knob.go": "package knob\nimport \"os\"\nvar a = os.Getenv(\"A\")",
			"internal/kir/kir_test.go": "package kir\nimport (\"os\"; \"pgregory.net/rapid\"; \"tenon.dev/internal/vexec\")\nvar a = " +
				"os.Getenv(\"A\")",
		}, nil},
		{"upward", planted{"dtype/dtype.go": "package dtype\n\nimport \"tenon.dev/internal/kir\""},
			[]string{"dtype/dtype.go:3: dtype may not import internal/kir"}},
		{"unknown package", planted{"internal/novel/n.go": "package novel"}, []string{"internal/novel: package has no line"}},
		{"purego", planted{"internal/driver/libcuda/a.go": "package libcuda\nimport \"github.com/ebitengine/purego\""},
			[]string{"may not import github.com/ebitengine/purego"}},
		{"purego in a test", planted{"internal/rt/a_test.go": "package rt\nimport \"github.com/ebitengine/purego\""},
			[]string{"dynamic loading has one door"}},
		{"unsafe", planted{"internal/core/a.go": "package core\nimport \"unsafe\""}, []string{"may not import unsafe"}},
		{"cgo", planted{"internal/dl/a.go": "package dl\nimport \"C\""}, []string{"may not import C"}},
		{"alloc and drivers", planted{"internal/alloc/a.go": "package alloc\nimport (\"tenon.dev/internal/driver/libcuda\"; " +
			"\"tenon.dev/dtype\")"},
			[]string{"internal/alloc may not import internal/driver/libcuda", "internal/alloc may not import dtype",
				"internal/alloc → dtype", "internal/alloc → internal/driver/libcuda"}},
		{"alloc by a detour", planted{
			"internal/alloc/a.go":  "package alloc\nimport \"tenon.dev/internal/driver\"",
			"internal/driver/d.go": "package driver\nimport \"tenon.dev/dtype\"",
		}, []string{"internal/driver may not import dtype", "internal/alloc → internal/driver → dtype"}},
		{"back ends meet", planted{"internal/ptx/a.go": "package ptx\nimport \"tenon.dev/internal/vexec\""},
			[]string{"internal/ptx may not import internal/vexec", "internal/ptx → internal/vexec"}},
		{"both drivers", planted{"internal/core/a.go": "package core\nimport \"tenon.dev/internal/driver/hostsim\""},
			[]string{"internal/core may not import internal/driver/hostsim"}},
		{"environment", planted{"nn/a.go": "package nn\nimport sys \"os\"\nvar a, ok = sys.LookupEnv(\"A\")"},
			[]string{"nn/a.go:3: sys.LookupEnv"}},
		{"http", planted{"cuda/a.go": "package cuda\nimport \"net/http/pprof\""}, []string{"only the viewer serves pages"}},
		{"http in its place", planted{"memviz/a.go": "package memviz\nimport \"net/http\""}, nil},
		{"test dependency", planted{"nn/a.go": "package nn\nimport \"github.com/google/go-cmp/cmp\""}, []string{"it serves tests"}},
		{"browser's driver", planted{"memviz/a_test.go": "package memviz\nimport \"github.com/chromedp/chromedp/kb\""},
			[]string{"tests drive a browser in one place"}},
		{"browser in the program", planted{
			"cmd/tenon/main.go":     "package main\nimport \"tenon.dev/internal/cli\"",
			"internal/cli/cli.go":   "package cli\nimport \"tenon.dev/internal/browser\"",
			"internal/browser/b.go": "package browser\nimport \"github.com/chromedp/chromedp\"",
		}, []string{"cmd/tenon → internal/cli → internal/browser"}},
		{"unknown dependency", planted{"nn/a.go": "package nn\nimport \"example.com/x\""}, []string{"not a dependency of the module"}},
		{"examples use the face", planted{"examples/digits/a.go": "package main\nimport \"tenon.dev/internal/core\""},
			[]string{"may not import internal/core"}},
		{"testdata is exempt", planted{"internal/kir/testdata/a.go": "package broken\nimport \"C\"",
			"_old/a.go": "package a\nimport \"C\""}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { want(t, Imports(c.tree.load(t)), c.parts...) })
	}
}

func TestImportLawNotation(t *testing.T) {
	if _, err := parseLaw("A = x y\np: A z\nq"); err == nil || !strings.Contains(err.Error(), "line 3") {
		t.Errorf("a line that is no rule: %v", err)
	}
	if _, err := parseLaw("p: a\np: b"); err == nil || !strings.Contains(err.Error(), "two lines") {
		t.Errorf("two rules for one package: %v", err)
	}
	r, err := parseLaw("A = x y\np: A z\nq/...: A\nq/r/...: z\n*/s: w")
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string][]string{"p": {"x", "y", "z"}, "q": {"x", "y"}, "q/a/b": {"x", "y"}, "q/r/b": {"z"}, "k/s": {"w"}} {
		if got, ok := r.find(dir); !ok || !slices.Equal(got, want) {
			t.Errorf("find(%s) = %v, %v, want %v", dir, got, ok, want)
		}
	}
	if got, ok := r.find("other"); ok {
		t.Errorf("find(other) = %v", got)
	}
}

func TestExecsFindsPlanted(t *testing.T) {
	tree := planted{
		"exec.go": "package tenon\ntype Exec struct{ a int }\ntype bad struct{ x *Exec }\nfunc (x *Exec) F() { var y " +
			"*Exec; _ = y }\ntype Step func(x *Exec)",
		"nn/a.go": "package nn\nimport \"tenon.dev\"\ntype M struct {\n\tf func(*tenon.Exec)\n\tx " +
			"map[string][]*tenon.Exec\n}\nvar current *tenon.Exec",
		"optim/a.go": "package optim\nimport (\n\tt \"tenon.dev\"\n\t\"sync/atomic\"\n)\ntype S struct {\n\tinner struct{ p " +
			"atomic.Pointer[t.Exec] }\n\tt.Exec\n}",
		"nn/a_test.go":          "package nn\nimport \"tenon.dev\"\ntype T struct { x *tenon.Exec }",
		"internal/core/exec.go": "package core\ntype Exec struct{}\ntype session struct{ top *Exec }",
		"data/a.go":             "package data\nimport \"os/exec\"\ntype Exec struct{}\ntype T struct { c *exec.Cmd; e *Exec }",
	}
	want(t, Execs(tree.load(t)),
		"exec.go:3: a struct holds an Exec", "nn/a.go:5: a struct", "nn/a.go:7: a package variable", "optim/a.go:8: a struct",
		"optim/a.go:7: a struct")
}

func TestRecoversFindsPlanted(t *testing.T) {
	tree := planted{
		"internal/core/fail.go": "package core\nfunc Try(f func()) { defer func() { recover() }(); f() }\nfunc (x *Exec) Try() { defer " +
			"recover() }\ntype Exec struct{}",
		"cuda/device.go": "package cuda\nfunc returned() {}",
		"nn/a.go":        "package nn\nvar quiet = func() { recover() }\nfunc Try() {\n\tr := recover\n\tr()\n}",
		"nn/a_test.go":   "package nn\nfunc quietly() { recover() }",
	}
	want(t, Recovers(tree.load(t)), "cuda.returned calls recover no longer", "fail.go:3: internal/core.Exec.Try calls recover",
		"nn/a.go:2: nn calls recover", "nn/a.go:4: nn.Try calls")
}

func TestRoomsFindsPlanted(t *testing.T) {
	tree := planted{
		"internal/core/doc.go":       "package core",
		"internal/core/tensor.go":    "package core\ntype Tensor struct { n *node }\nfunc (t *Tensor) late() { opOf(t) }",
		"internal/core/tape_node.go": "package core\ntype node struct { in *Tensor }",
		"internal/core/ops_one.go": "package core\nfunc opOf(t *Tensor) int { return t.n.depth() }\n" +
			"func (n *node) depth() int { return 0 }",
		"internal/core/ops_one_test.go": "package core\nfunc testing() { opOf(nil) }",
		"internal/core/helper.go":       "package core",
		"nn/a.go":                       "package nn",
	}
	found := Rooms(tree.load(t))
	found = slices.DeleteFunc(found, func(f Finding) bool {
		return strings.Contains(f.Msg, "any more") && !strings.HasSuffix(f.File, "/tensor.go")
	})
	want(t, found, "helper.go: the name does not begin with a room", "tensor.go: uses nothing of the room graph any more",
		"tensor.go: uses nothing of the room session any more",
		"tensor.go:3: opOf of the room ops is used from below")
}

func TestDocsFindsPlanted(t *testing.T) {
	const doc = "// Package p is a thing. It must not depend on others.\npackage p\n"
	cases := []struct {
		name, text string
		parts      []string
	}{
		{"sound", doc + `
// T is a type.
type T struct {
	// A and B are fields.
	A int
	B int
	c int
}
// Kinds of thing.
const (
	K1 = iota
	K2
)
var V = 1 // V is a variable.
// M does.
func (t *T) M() {}
func (t hidden) M() {}
type hidden struct{ X int }
func f() {}
`, nil},
		{"no package doc", "package p", []string{"p: package has no doc comment"}},
		{"one sentence", "// Package p is a thing, e.g. this.\npackage p", []string{"one sentence"}},
		{"stilted", "// Package p is a thing. It may not\n// know others.\npackage p", []string{"may not know"}},
		{"function", doc + "func F() {}", []string{"p/a.go:3: exported function F"}},
		{"empty words", doc + "// F.\nfunc F() {}", []string{"exported function F"}},
		{"method", doc + "// T is.\ntype T[K any] struct{}\nfunc (t *T[K]) M() {}", []string{"exported function M"}},
		{"type", doc + "type T int", []string{"exported type T"}},
		{"types in a group", doc + "// Types U.\ntype (\n\tT int\n\tU int\n)", []string{"exported type T"}},
		{"values", doc + "const C = 1\nvar (\n\tA, b = 1, 2\n)", []string{"exported const C", "exported var A"}},
		{"field", doc + "// T is.\ntype T struct {\n\t// A is.\n\tA int\n\tB int\n}", []string{"T.B has no doc comment"}},
		{"field in the type's comment", doc + "// T is B.\ntype T struct {\n\tB int\n}", nil},
		{"field after a gap", doc + "// T is.\ntype T struct {\n\t// A and B are.\n\tA int\n\n\tB int\n}",
			[]string{"T.B has no doc comment"}},
		{"interface method", doc + "// T is.\ntype T interface {\n\tM()\n}", []string{"T.M has no doc comment"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { want(t, Docs(planted{"p/a.go": c.text}.load(t)), c.parts...) })
	}
	internal := planted{"internal/p/a.go": doc + "// T is.\ntype T struct { A int }\n// I is.\ntype I interface { M() }"}
	want(t, Docs(internal.load(t)), "I.M has no doc comment")
	want(t, Docs(planted{"p/a.go": doc, "p/b.go": doc}.load(t)), "second doc comment besides p/a.go")
	want(t, Docs(planted{"p/a.go": "// Command p is a thing. It ends.\npackage main\nfunc Exported() {}", "q/q_test.go": "package q"}.load(
		t)))
}

func TestStyleFindsPlanted(t *testing.T) {
	lines := func(n int) string { return strings.Repeat("\n", n) }
	want(t, Style(planted{
		"a/util.go":         "package a",
		"a/helpers_test.go": "package a",
		"b/common/x.go":     "package common",
		"a/long.go":         "package a" + lines(801),
		"a/fits.go":         "package a" + lines(800),
		"a/f.go":            "package a\nfunc f() {" + lines(120) + "}\nfunc g() {" + lines(119) + "}",
		"a/table.go":        "package a\n// t is a table.\n//\n//tenon:table one row an op\nfunc t() {" + lines(200) + "}",
		"a/unreasoned.go":   "package a\n//tenon:table \nfunc t() {" + lines(200) + "}",
		"a/zops.go":         "// Code generated by gen. DO NOT EDIT.\n\npackage a" + lines(2000),
		"a/ops.go":          "// Code generated by gen. DO NOT EDIT.\n\npackage a",
		"a/z_ops.go":        "package a",
		"a/wide.go":         "package a\n\n//" + strings.Repeat("é", 139),
		"a/tabs.go":         "package a\n\nfunc tabs() {\n\t//" + strings.Repeat("x", 135) + "\n}",
		"a/raw.go":          "package a\n\n//go:embed " + strings.Repeat("x", 140) + "\nvar s = `" + strings.Repeat("x", 140) + "`",
		"a/raw_test.go":     "package a\n\nvar s = `" + strings.Repeat("x", 140) + "`",
		"a/tag.go":          "package a\n\ntype t struct {\n\tA int `help:\"" + strings.Repeat("x", 140) + "\"`\n}",
		"a/fill.go":         "package a\n\n//" + strings.Repeat("é", 138),
		"a/page.js":         "\n" + strings.Repeat("x", 141) + "\n",
		"a/page.css":        strings.Repeat("x", 140) + "\n",
		"a/data.json":       strings.Repeat("x", 141) + "\n",
		"testdata/run.sh":   strings.Repeat("x", 141) + "\n",
		"docs/ops.md":       strings.Repeat("x", 141) + "\n",
		"docs/text.md":      "```text\n" + strings.Repeat("x", 141) + "\n```\n",
		"docs/code.md":      "```go\n" + strings.Repeat("x", 141) + "\n```\n",
	}.load(t)),
		"a/f.go:2: function f has 121 lines, the limit is 120",
		"a/helpers_test.go: file name says nothing",
		"a/long.go: file has 801 lines, the limit is 800",
		"a/ops.go: generated file whose name",
		"a/raw.go:4: line has 150 columns",
		"a/tabs.go:4: line has 141 columns",
		"a/unreasoned.go:3: function t has 201 lines",
		"a/util.go: file name says nothing",
		"a/wide.go:3: line has 141 columns",
		"a/z_ops.go: file is named like a generated one",
		"b/common: package name says nothing",
		"a/page.js:2: line has 141 columns",
		"docs/code.md:2: line has 141 columns",
		"testdata/run.sh:1: line has 141 columns",
	)
}

func TestWordsFindsPlanted(t *testing.T) {
	found, err := Words(planted{
		"a.md":         "built under /wo" + "rk/main there\nfine: net/work/x and the session of an Exec, one issue a cycle",
		"b/c.go":       "// see iss" + "ue 2\npackage c",
		"c.txt":        "the helper ag" + "ent made it",
		"d.sh":         "wget https://deb.deb" + "ian.org/x",
		"e.bin":        "\x00\x01 /wo" + "rk/main",
		".git/config":  "/wo" + "rk/main",
		".ci/run":      "cat ../shared/DES" + "IGN.md",
		"go.sum":       "proxy.gol" + "ang.org",
		"testdata/t.x": "what the last ses" + "sion left",
	}.fs())
	if err != nil {
		t.Fatal(err)
	}
	want(t, found, ".ci/run:1", "a.md:1", "b/c.go:1", "c.txt:1", "d.sh:1", "testdata/t.x:1")
}

func TestAPIRecordsSymbols(t *testing.T) {
	tree := planted{
		"a.go": `package tenon
import "io"
const C, d = 1, 2
var V map[string]func(a, b int) error
type T struct { A, b int; io.Reader; F func(x ...int) (n int, err error) }
type I interface { io.Writer; M(a int); hidden() }
type A = T
type G[K comparable, V any] []V
func F[K comparable](a, b K, rest ...*T) (x [4]int, err error) { return }
func (t *T) M(a chan<- int) {}
func (t hidden) M() {}
type hidden int
`,
		"a_windows.go":        "package tenon\nfunc OnlyWindows() {}",
		"b.go":                "//go:build tenon_sim\n\npackage tenon\nfunc OnlySim() {}",
		"c_test.go":           "package tenon\nfunc OnlyTest() {}",
		"internal/core/a.go":  "package core\nfunc Internal() {}",
		"cmd/tenon/main.go":   "package main\nfunc Main() {}",
		"examples/x/x.go":     "package x\nfunc X() {}",
		"nn/internal/y/y.go":  "package y\nfunc Y() {}",
		"nn/init.go":          "//go:build linux && !tenon_sim\n\npackage nn\nfunc Init() {}",
		"optim/testdata/t.go": "package t\nfunc T() {}",
	}
	got := API(tree.load(t))
	record := strings.Split(strings.TrimSpace(`
pkg tenon.dev, const C
pkg tenon.dev, func F[K comparable](K, K, ...*T) ([4]int, error)
pkg tenon.dev, method (*T) M(chan<- int)
pkg tenon.dev, type A = T
pkg tenon.dev, type G[K comparable, V any] []V
pkg tenon.dev, type I interface
pkg tenon.dev, type I interface, M(int)
pkg tenon.dev, type I interface, embedded io.Writer
pkg tenon.dev, type I interface, unexported methods
pkg tenon.dev, type T struct
pkg tenon.dev, type T struct, A int
pkg tenon.dev, type T struct, F func(...int) (int, error)
pkg tenon.dev, type T struct, embedded io.Reader
pkg tenon.dev, var V map[string]func(int, int) error
pkg tenon.dev/nn, func Init()`), "\n")
	if !slices.Equal(got, record) {
		t.Errorf("API:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(record, "\n"))
	}
	gone, added := Difference(record[1:], append(got[:3:3], got[4:]...))
	if !slices.Equal(gone, record[3:4]) || !slices.Equal(added, record[:1]) {
		t.Errorf("Difference: gone %q, added %q", gone, added)
	}
}

func TestNameableFindsPlanted(t *testing.T) {
	tree := planted{
		"internal/core/core.go": "package core\ntype T struct{ U *U }\ntype U struct{}\ntype V struct{ n int }\ntype K int\nconst " +
			"(\n\tA K = iota\n\tB\n)\nfunc (T) M() *V { return nil }",
		"a.go": `package tenon
import (
	"io"
	c "tenon.dev/internal/core"
)
type Alias = c.T
type Defined c.T
type Closed c.V
const Two = c.B
var Func = func(*Alias, ...map[string]chan c.V) {}
type S struct {
	hidden
	c.V
	F []func(hidden)
	g c.U
	Map map[string]Alias
}
type I interface {
	io.Reader
	N(c.U)
	own(c.U)
}
type hidden struct{ X c.V }
func (s *S) In(...c.T) {}
// Free is.
//
//tenon:internal it is for the module's own
func Free() c.U { panic(0) }
// Bare is.
//
//tenon:internal
func Bare() (a int, u [4]*c.U) { panic(0) }
func Generic[P ~int | c.K](p P, g G[c.U]) {}
type G[P any] struct{ P P }
func unexported(c.U) {}
`,
		"nn/nn.go": "package nn\nimport (\n\t\"tenon.dev\"\n\t\"tenon.dev/internal/core\"\n)\n" +
			"func F(core.T) tenon.Closed { panic(0) }",
		"nn/nn_windows.go": "package nn\nimport \"tenon.dev/internal/core\"\nfunc Windows(core.U) {}",
		"nn/nn_test.go":    "package nn\nimport \"tenon.dev/internal/core\"\nfunc Test(core.U) {}",
	}
	want(t, Nameable(tree.load(t)),
		"core.go:10: tenon.Alias.M has to do with core.V, which users cannot name", "core.go:2: tenon.Alias.U has to do with core.U",
		"a.go:32: tenon.Bare has to do with core.U", "core.go:2: tenon.Defined.U has to do with core.U",
		"a.go:10: tenon.Func has to do with core.V",
		"a.go:33: tenon.Generic has to do with core.U", "a.go:33: tenon.Generic has to do with core.K",
		"a.go:20: tenon.I.N has to do with core.U",
		"a.go:13: tenon.S.V has to do with core.V", "a.go:14: tenon.S.F has to do with tenon.hidden",
		"a.go:9: tenon.Two has to do with core.K")
}

func TestLoadRefusesBrokenFile(t *testing.T) {
	if _, err := Load(planted{"a/a.go": "package a\nfunc {"}.fs()); err == nil || !strings.Contains(err.Error(), "a/a.go:2") {
		t.Errorf("broken file: %v", err)
	}
}

func TestPagesFindsPlanted(t *testing.T) {
	tree := planted{
		"docs/architecture.md": "# A\n```text\nno list\n```\n\n## Packages\n\n```text\ntenon (root)           the face\ninternal/{a,b} " +
			"nn      more   words\n  internal/c\n```\n`d` is text\n```text\ne\n```\n\n## More\n```text\ninternal/d\n```\n",
		"RATIONALE.md": "# R\n\n| module | used by |\n| --- | --- |\n| `x.org/a` | `x.org/z` |\n| `x.org/b`, `x.org/c` | y |\n\n" +
			"| `x.org/d` |\n",
		"go.mod": "module tenon.dev\n\ngo 1.26.0\n\nrequire x.org/a v1.0.0\n\nrequire (\n\tx.org/b v0.1.0 // " +
			"indirect\n\tx.org/e v0.1.0\n)\n\ntool (\n\tx.org/b/cmd\n)\n",
		"a.go":            "package tenon",
		"internal/a/a.go": "package a",
		"internal/b/b.go": "package b",
		"internal/d/d.go": "package d",
		"nn/nn.go":        "package nn",
	}
	want(t, Pages(tree.load(t)),
		"package internal/d is not listed", "package internal/c is listed, but there is none", "package e is listed",
		"dependency x.org/e is not listed", "dependency x.org/c is listed, but there is none")
	want(t, Pages(planted{"a.go": "package tenon"}.load(t)), "docs/architecture.md: open", "go.mod: open")
	want(t, Pages(planted{"go.mod": "require x.org/a v1.0.0"}.load(t)), "docs/architecture.md: open", "RATIONALE.md: open")
}

func TestSnippetsFindsPlanted(t *testing.T) {
	page := func(blocks ...string) string {
		return "text\n```sh\nno(Go)\n```\n```go\n" + strings.Join(blocks, "```\n```go\n") + "```\n"
	}
	test := "package a\n\nfunc Example() {\n\tx := f() // what f gives\n\tif x {\n\t\tg(x)\n\t}\n\th()\n\tk()\n}\n"
	table := "| PyTorch | Tenon |\n| --- | --- |\n| `a + b` | `x.Add(a, b)`, the same; `TENON_A=1` |\n| `c` | `x.C(a…)` or `x.C(a\\|b)` " +
		"|\n\n| PyTorch | other |\n| --- | --- |\n| `a(b)` | `x.D()` |\n\n```text\n| no | table |\n```\n"
	tree := planted{
		"README.md": page("x := f()\nif x {\n  g(x)\n", "x := f() // something else\n\nh()\n", "x := f()\n…\nk()\n",
			"h()\n…\nx := f()\n", "x := f()\nh()\n"),
		"docs/from-pytorch.md":   table,
		"docs/other.md":          table,
		"docs/third.md":          "| a | b |\n|---|---|\n| c | d |\n\n| e | f |\n| g | h |\n",
		"a/a_test.go":            test,
		"a/a.go":                 "package a\n\nfunc b() {\n\tx := f()\n\th()\n}\n",
		"from_pytorch_test.go":   "package a\n\nfunc TestA() {\n\tx.Add(a, b)\n\tx.C(a, b)\n}\n",
		".git/hidden/ignored.md": page("z()\n"),
	}
	want(t, Snippets(tree.load(t)), "README.md:20: no test", "README.md:25: no test", "docs/from-pytorch.md:4: x.C(a¦b) is not in "+
		"from_pytorch*_test.go",
		"docs/third.md:5: a table begins without a head")
}

func TestLinksFindsPlanted(t *testing.T) {
	tree := planted{
		"a.go":      "package a",
		"README.md": "[a](docs/a.md) ![p](p.png)\n\n[x](https://x.org/y) [here](#there) [b](docs/b.md#c)\n",
		"docs/a.md": "[up](../README.md) [folder](../docs) and [gone](README.md)\n",
	}
	want(t, Links(tree.load(t)), "README.md:1: the link to p.png leads nowhere", "README.md:3: the link to docs/b.md#c leads nowhere",
		"docs/a.md:1: the link to README.md")
}

func TestSharedFindsPlanted(t *testing.T) {
	const page = "| type | shared |\n| --- | --- |\n| `Exec`, `cuda.Event` | yes |\n"
	tree := planted{
		"docs/concurrency.md": page,
		"a.go": "package tenon\ntype Exec int\nfunc (x *Exec) F() {}\ntype Arg int\nfunc (a Arg) F() {}\ntype own " +
			"int\nfunc (o *own) F() {}",
		"cuda/a.go": "package cuda\ntype Event int\nfunc (e *Event) F() {}\ntype Exec int\nfunc (e *Exec) F() {}\n" +
			"func (e *Exec) G() {}",
		"internal/rt/a.go": "package rt\ntype Event int\nfunc (e *Event) F() {}",
	}
	want(t, Shared(tree.load(t)), "cuda/a.go:5: docs/concurrency.md does not say what goroutines may share of cuda.Exec")
	want(t, Shared(planted{"a.go": "package tenon"}.load(t)), "docs/concurrency.md: open")
}

func TestUnorderedFindsPlanted(t *testing.T) {
	tree := planted{
		"internal/rt/a.go": `package rt
import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"tenon.dev/fault"
)
type table map[string]int
var shared sync.Map
func F(t table, named fault.Named) {
	for range t {}
	for k := range fault.Numbers() { _ = k }
	for range named {}
	for range slices.Sorted(maps.Keys(t)) {}
	for range maps.Keys(t) {}
	_ = slices.Collect(maps.Values(t))
	//tenon:unordered it counts
	for range t {}
	for range t {} //tenon:unordered it counts
	//tenon:unordered
	for range t {}
	//tenon:unordered nothing is here
	for range []int{} {}
	shared.Range(func(k, v any) bool { return true })
	reflect.ValueOf(t).MapRange()
	maps.DeleteFunc(t, func(string, int) bool { return true })
	for range "a" {}
	for range 3 {}
}
func G[M ~map[K]V, K comparable, V any](m M) { for range m {} }
func H[S ~[]E, E any](s S) { for range s {} }
`,
		"fault/fault.go": "package fault\ntype Named map[int]int\nfunc Numbers() Named { return nil }\n" +
			"func own(n Named) { for range n {} }",
		"internal/rt/a_test.go": "package rt\nfunc own(m map[int]int) { for range m {} }",
		"cmd/tenon/main.go":     "package main\nfunc main() { for range (map[int]int{}) {} }",
	}
	found, err := Unordered(tree.load(t))
	if err != nil {
		t.Fatal(err)
	}
	want(t, found, "a.go:12: ranges over a map", "a.go:13: ranges", "a.go:14: ranges", "a.go:16: calls maps.Keys",
		"a.go:17: calls maps.Values",
		"a.go:21: the mark gives no reason", "a.go:22: ranges", "a.go:23: the mark frees nothing", "a.go:25: calls (*sync.Map).Range",
		"a.go:26: calls (reflect.Value).MapRange", "a.go:27: calls maps.DeleteFunc", "a.go:31: ranges")
	for name, broken := range map[string]planted{
		"type":    {"nn/a.go": "package nn\nvar a int = \"\""},
		"package": {"nn/a.go": "package nn\nimport _ \"tenon.dev/absent\""},
		"outside": {"nn/a.go": "package nn\nimport _ \"absent.example/a\""},
	} {
		if _, err := Unordered(broken.load(t)); err == nil {
			t.Errorf("%s: a package whose types are unknown passes", name)
		}
	}
}

func TestErrorsFindsPlanted(t *testing.T) {
	tree := planted{
		"fault/fault.go": `package fault
func New(k int, format string, args ...any) error { return nil }
func said() { println("None of PyTorch's") }
var _ = New(1, "give None")
var _ = New(1, "give nothing; NoneType is a word") //tenon:quoted
var _ = New(1, "torch.cat(): empty") //tenon:quoted the recorded case
var _ = 0
var _ = New(1, "the type at::Half")
var _ = New(1, "the type int64_t")
var _ = New(1, "it has requires_grad")
var _ = New(1, "a leaf Variable")
var _ = New(1, "fill_ fails"+"; rows_per_page, a_b and x_1 pass")
var _ = New(1, "einsum(): no letters, unlike x.T() here")
var _ = New(1, "linalg.norm fails")
var _ = New(1, "training=False")
//tenon:quoted the recorded case
var _ = New(1, "of" +
	"PyTorch")
`,
		"internal/core/a.go": `package core
func (f frame) fail(format string) {}
func g(f frame) { f.fail("see " + "pytorch.org"); f.fail("mytorch.x") }
`,
		"internal/pickle/a.go": `package pickle
func broken(format string, args ...any) error { return New(format) }
func named(v any) string { return "a None" }
func unused(v any) string { return "a None" }
func g(v any) error { return broken("%s of 'python'", named(v)) }
func h(e *Error) { e.Msg, e.Op = Sprintf("as Torch.cat"), "Python" }
`,
		"internal/core/a_test.go": "package core\nfunc fail(s string) {}\nfunc h() { fail(`Python`) }\n",
		"bench/b.go":              "package bench\nfunc fail(s string) {}\nfunc h() { fail(`Python`) }\n",
	}
	want(t, Errors(tree.load(t)), `fault/fault.go:4: an error says "None"`, `fault/fault.go:8: an error says "t::"`,
		`fault/fault.go:9: an error says "int64_t"`, `fault/fault.go:10: an error says "requires_grad"`,
		`fault/fault.go:11: an error says "leaf Variable"`, `fault/fault.go:12: an error says "fill_ "`,
		`fault/fault.go:13: an error says "einsum():"`, `fault/fault.go:14: an error says "linalg.n"`,
		`fault/fault.go:15: an error says "=False"`, `fault/fault.go:18: an error says "PyTorch"`,
		`internal/core/a.go:3: an error says "pytorch"`, `internal/pickle/a.go:3: an error says "None"`,
		`internal/pickle/a.go:5: an error says "python"`, `internal/pickle/a.go:6: an error says "Torch."`)
}
