package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The output shown in the pages, in text blocks that begin with "$ tenon", equals the command's output. The snapshots are those of the
// tests.
func TestPagesShowOutput(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "```text\n$ tenon ")[1:] {
			shown++
			command, want, _ := strings.Cut(block, "\n")
			want, _, _ = strings.Cut(want, "```")
			args := strings.Fields(command)
			for i, a := range args {
				if strings.HasSuffix(a, ".pickle.gz") {
					args[i] = filepath.Join("..", "snapshot", "testdata", a)
				}
				if strings.HasSuffix(a, ".jsonl") {
					args[i] = filepath.Join("testdata", a)
				}
			}
			out, errs, exit := run(args...)
			if exit != 0 || errs != "" || out != want {
				t.Errorf("%s: tenon %s ended with status %d: %s\n%s\nwhere the page shows\n%s", page, command, exit, errs, out, want)
			}
		}
	}
	if shown == 0 {
		t.Error("no page shows a command")
	}
}
