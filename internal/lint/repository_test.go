package lint

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write api/tenon.txt anew instead of comparing")

const root = "../.."

func loadRepository(t *testing.T) *Tree {
	t.Helper()
	tree, err := Load(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.Packages) < 3 {
		t.Fatalf("only %d packages under %s: the laws would hold for nothing", len(tree.Packages), root)
	}
	return tree
}

func report(t *testing.T, found []Finding) {
	t.Helper()
	for _, f := range found {
		t.Error(f)
	}
}

func TestImportLaw(t *testing.T)   { report(t, Imports(loadRepository(t))) }
func TestExecLaw(t *testing.T)     { report(t, Execs(loadRepository(t))) }
func TestPanicLaw(t *testing.T)    { report(t, Recovers(loadRepository(t))) }
func TestSharedTypes(t *testing.T) { report(t, Shared(loadRepository(t))) }
func TestDocsLaw(t *testing.T)     { report(t, Docs(loadRepository(t))) }
func TestStyleLaw(t *testing.T)    { report(t, Style(loadRepository(t))) }
func TestNamesLaw(t *testing.T)    { report(t, Nameable(loadRepository(t))) }
func TestErrorsLaw(t *testing.T)   { report(t, Errors(loadRepository(t))) }
func TestPagesLaw(t *testing.T)    { report(t, Pages(loadRepository(t))) }
func TestRoomsLaw(t *testing.T)    { report(t, Rooms(loadRepository(t))) }
func TestSnippets(t *testing.T)    { report(t, Snippets(loadRepository(t))) }
func TestLinks(t *testing.T)       { report(t, Links(loadRepository(t))) }

func TestWordsLaw(t *testing.T) {
	found, err := Words(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	report(t, found)
}

// TestAPIRecord compares the exported symbols of the public packages with api/tenon.txt. With -rewrite it writes the file.
func TestAPIRecord(t *testing.T) {
	name := filepath.Join(root, "api", "tenon.txt")
	now := API(loadRepository(t))
	if *rewrite {
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(strings.Join(now, "\n")+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	gone, added := Difference(strings.Split(strings.TrimSpace(string(text)), "\n"), now)
	for _, s := range gone {
		t.Errorf("- %s", s)
	}
	for _, s := range added {
		t.Errorf("+ %s", s)
	}
	if t.Failed() {
		t.Log("the public API differs from api/tenon.txt; where that is meant, run: go test ./internal/lint -run TestAPIRecord -rewrite")
	}
}

// TestOrderLaw checks that the order of a map never affects the work of a device.
func TestOrderLaw(t *testing.T) {
	found, err := Unordered(loadRepository(t))
	if err != nil {
		t.Fatal(err)
	}
	report(t, found)
}

// TestOrderLawCovers checks that the law covers every package that issues work, including those below them, and names none that no longer
// exists.
func TestOrderLawCovers(t *testing.T) {
	tree := loadRepository(t)
	for _, top := range []string{"compile", "internal/core", "internal/fuse", "internal/kernels", "internal/lib", "internal/rt", "linalg",
		"nn", "optim", "sparse"} {
		n := 0
		for _, p := range tree.Packages {
			if p.Name == "main" || p.Dir != top && !within(p.Dir, top+"/...") {
				continue
			}
			n++
			if !slices.ContainsFunc(issuing, func(pattern string) bool { return within(p.Dir, pattern) }) {
				t.Errorf("%s issues work, and the order law does not look at it", p.Dir)
			}
		}
		if n == 0 {
			t.Errorf("there is no package %s", top)
		}
	}
	for _, pattern := range issuing {
		dir := strings.TrimSuffix(pattern, "/...")
		if !slices.ContainsFunc(tree.Packages, func(p *Package) bool { return p.Dir == dir }) {
			t.Errorf("the order law names %s, which is no package", pattern)
		}
	}
}
