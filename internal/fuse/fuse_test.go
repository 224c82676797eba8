package fuse

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev/internal/cost"
)

var rewrite = flag.Bool("rewrite", false, "write the outputs that the tests see into testdata")

// limits are those that the tests use.
var limits = Limits{Calls: 5, Span: 7, Heavy: 2, Operands: 6, Outs: 2, Values: 4, States: 3, Saves: 64, Joined: 1 << 10, Together: 4,
	Slack: 32}

// TestText runs the cases of testdata/*.txt. The file's name says what is done with the graph of each case; the expected output follows
// ----.
func TestText(t *testing.T) {
	run := map[string]func(g *Graph){
		"parse":  func(*Graph) {},
		"dead":   (*Graph).Dead,
		"common": (*Graph).Common,
		"fold":   func(g *Graph) { g.Fold() },
		"layout": func(g *Graph) { g.LayOut() },
		"narrow": func(g *Graph) { g.Narrow() },
		"group":  func(g *Graph) { g.Group(limits) },
		"join": func(g *Graph) {
			g.Group(limits)
			g.Join(limits)
		},
		"all": func(g *Graph) {
			g.Dead()
			g.Common()
			g.LayOut()
			g.Fold()
			g.Narrow()
			g.Group(limits)
			g.Join(limits)
		},
	}
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) != len(run) {
		t.Fatal(files, err)
	}
	for _, file := range files {
		f := run[strings.TrimSuffix(filepath.Base(file), ".txt")]
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for c := range strings.SplitAfterSeq(string(data), "\n====\n") {
			if strings.TrimSpace(c) == "" {
				continue
			}
			in, want, ok := strings.Cut(strings.TrimSuffix(c, "====\n"), "----\n")
			if !ok {
				t.Fatalf("%s: a case has no ----:\n%s", file, c)
			}
			name, _, _ := strings.Cut(in, "\n")
			got := passed(in, f)
			fmt.Fprintf(&out, "%s----\n%s====\n", in, got)
			if got != want && !*rewrite {
				t.Errorf("%s %s: got\n%swant\n%s", file, name, got, want)
			}
		}
		if *rewrite {
			if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func passed(text string, f func(g *Graph)) string {
	g, err := Parse(text)
	if err != nil {
		return err.Error() + "\n"
	}
	f(g)
	return g.Print()
}

// FuzzParse checks that no text crashes Parse or a pass, and that what parses is printed as a text that parses to the same graph.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for c := range strings.SplitSeq(string(data), "\n====\n") {
			in, _, _ := strings.Cut(c, "----\n")
			f.Add(in)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		var g *Graph
		var err error
		cost.Within(t, 1<<16+256*len(text), func() { g, err = Parse(text) })
		if err != nil {
			return
		}
		out := g.Print()
		again, err := Parse(out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if again.Print() != out {
			t.Fatalf("prints differently when parsed again:\n%s", out)
		}
		if len(g.Calls) > 64 {
			return
		}
		for _, pass := range []func(){g.Dead, g.Common, func() { g.LayOut() }, func() { g.Fold() }, func() { g.Narrow() },
			func() { g.Group(limits) }, func() { g.Join(limits) }} {
			pass()
			g.Print()
			if err := g.Number(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
	})
}
