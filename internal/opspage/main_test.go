package main

import (
	"os"
	"strings"
	"testing"

	"tenon.dev/internal/core"
)

// TestPageIsCurrent: docs/ops.md is what the rows say.
func TestPageIsCurrent(t *testing.T) {
	got, err := os.ReadFile("../../docs/ops.md")
	if err != nil {
		t.Fatal(err)
	}
	if want, err := page(core.Ops(), "../core", "../.."); err != nil || string(got) != want {
		t.Errorf("docs/ops.md is out of date: run go generate ./... (%v)", err)
	}
	rows := string(got)[strings.Index(string(got), "## The operations"):]
	for _, name := range core.OpNames() {
		if n := strings.Count(rows, "\n| "+name+" "); n != 1 {
			t.Errorf("%s has %d lines", name, n)
		}
	}
}

// TestLine holds what stands where.
func TestLine(t *testing.T) {
	o := core.OpInfo{Name: "Op", Torch: "op", Package: "linalg", Operands: []string{"a", "b?"}, Outputs: []string{"y"},
		Values:    []string{"alpha"},
		Structure: []string{"dim", "dims…"}, Aliases: true, Into: true, Changed: []string{"a", "b"}, Draws: true, Waits: true,
		Varies: true, Foreign: true, User: true, Sized: true, Asserts: true,
		Derivative: true, Cast: core.CastWidest}
	for want, o := range map[string]core.OpInfo{
		"| Op (linalg) | `op` | a, b? | y | alpha | dim, dims… | view, into, changes a and b, draws, waits, varies, other devices, " +
			"user, sized, asserts | widest | yes |\n": o,
		"| Op | | | | | | | | |\n": {Name: "Op", Package: "internal/core"},
	} {
		if got := table([]core.OpInfo{o}); !strings.HasSuffix(got, "\n"+want) {
			t.Errorf("the line is %q, want %q", got[strings.LastIndex(got[:len(got)-1], "\n")+1:], want)
		}
	}
}
