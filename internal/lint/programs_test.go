package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestProgramLines compares the column "now" of the table of docs/programs.md with the lines of the programs: those in Go files other than
// tests that are neither blank nor only a comment. Every program must be shorter than before.
func TestProgramLines(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "programs.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| program | before | now |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := regexp.MustCompile(`(?m)^\| (\w+) \|([^|]*)\| (\d+)`).FindAllStringSubmatch(table, -1)
	if len(rows) < 5 {
		t.Fatalf("the table has %d rows", len(rows))
	}
	for _, r := range rows {
		n := programLines(t, r[1])
		if strconv.Itoa(n) != r[3] {
			t.Errorf("examples/%s has %d lines, docs/programs.md says %s", r[1], n, r[3])
		}
		for _, before := range regexp.MustCompile(`\d+`).FindAllString(r[2], -1) {
			if b, err := strconv.Atoi(before); err != nil || n >= b {
				t.Errorf("examples/%s has %d lines and had %s: it must be shorter", r[1], n, before)
			}
		}
	}
}

func programLines(t *testing.T, program string) (n int) {
	files, err := filepath.Glob(filepath.Join(root, "examples", program, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("examples/%s has no Go files (%v)", program, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				n++
			}
		}
	}
	return n
}
