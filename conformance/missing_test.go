package conformance

//go:generate go test -run TestMissingPage -rewrite .

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"tenon.dev/internal/recorded"
)

var rewriteFlag = flag.Bool("rewrite", false, "write the list in docs/missing.md instead of comparing with it")

// TestMissingPage compares the list in docs/missing.md with the operations that were recorded from PyTorch and are not run here.
func TestMissingPage(t *testing.T) {
	cases, err := recorded.OpenCases(*opsFlag)
	if err != nil {
		t.Fatal(err)
	}
	run := map[string]bool{}
	if _, err := (&recorded.Runner{Call: func(c *recorded.Case) (recorded.Outcome, error) {
		run[c.Op] = run[c.Op] || offered(c) != nil
		return recorded.Outcome{}, recorded.ErrNotOffered
	}}).Run(cases); err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, op := range slices.Sorted(maps.Keys(run)) {
		if !run[op] {
			missing = append(missing, op)
		}
	}
	text := fmt.Sprintf("Of %d operations %d are run, and these are not:\n\n```text\n%s```\n", len(run), len(run)-len(missing),
		lines(missing))

	const name, begin, end = "../docs/missing.md", "<!-- operations -->\n", "<!-- end -->\n"
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(page), begin)
	listed, after, ok2 := strings.Cut(rest, end)
	switch {
	case !ok1 || !ok2:
		t.Fatalf("%s has no list between %q and %q", name, begin, end)
	case *rewriteFlag:
		if err := os.WriteFile(name, []byte(before+begin+text+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case listed != text:
		t.Errorf("%s lists other operations than are missing; write it anew with go generate ./conformance", name)
	}
}

// lines breaks words into lines.
func lines(words []string) string {
	var b strings.Builder
	width := 0
	for _, w := range words {
		if width > 0 && width+1+len(w) > 120 {
			b.WriteString("\n")
			width = 0
		}
		if width > 0 {
			b.WriteString(" ")
			width++
		}
		b.WriteString(w)
		width += len(w)
	}
	return b.String() + "\n"
}
