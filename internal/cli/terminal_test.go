package cli

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev/internal/terminal"
)

// controlled returns the first character of a text that must not reach a terminal, or 0.
func controlled(text string) rune {
	for _, r := range text {
		if !terminal.Shown(r) && r != '\n' && r != '\t' {
			return r
		}
	}
	return 0
}

// The output, names and reports of tests, and the error of a failed listing, are printed without control characters.
func TestMemcheckTerminal(t *testing.T) {
	base := fakeTests(t, map[string]string{"a": `printf '\033]0;pwned\007\033[2J\302\233\342\200\256\377'; exit 1`,
		"b": `printf '%s\n' '========= Invalid \033[2J__global__ read' '=========     at k'`})
	script(t, "tenon.sh",
		`printf '%s\n' '{"checker":"TENON-CHECK"}' '{"finding":{"class":"leak\u001b[2J","severity":"error","message":"\u001b]0;pwned\u0007\n0 failed","kernel":"k\u202e","count":1}}' >>"$TENON_CHECK"`)
	own := []string{"memcheck", "evil\x1b[2J", "5", "--list-command", "echo t", "--run-command", "./tenon.sh", "--checker",
		"tenon", "--out", "own"}
	for name, args := range map[string][]string{"summary": base, "log": append(base, "--ci"), "report": own,
		"log of a report": append(own, "--ci"),
		"listing": {"memcheck", "x", "--list-command", `sh -c "printf '\033[2J\302\233' >&2; exit 1"`, "--run-command", "true",
			"--checker", "tenon"}} {
		out, errs, exit := run(args...)
		if r := controlled(out + errs); r != 0 || exit == 0 {
			t.Errorf("%s: %q in %q %q, exit status %d", name, r, out, errs, exit)
		}
		if !strings.Contains(out+errs, `\x1b`) && name != "summary" {
			t.Errorf("%s: nothing is shown of it: %q %q", name, out, errs)
		}
		if strings.HasPrefix(out, "0 failed") || strings.Contains(out, "\n0 failed") {
			t.Errorf("%s: a test writes lines of the summary: %q", name, out)
		}
	}
}

// A report of a foreign journal shows no file of this machine, whatever the journal names, unless --source names a folder, and then only
// source files.
func TestMemcheckMergeReadsNoFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	const head = `{"type":"run","format":1,"target":"t","checker":"TENON-CHECK","tools":["memcheck"],"shard":{"split":1,"rank":0},"jobs":1,"gpus":[""]}` + "\n"
	finding := func(file string) string {
		return `{"type":"test","test":"` + file +
			`","tool":"memcheck","outcome":"fail","report":{"errors":1,"findings":[{"class":"leak","severity":"error","message":"` + file +
			`","count":1,"device":[{"file":"` + file + `","line":2,"text":""}]}]}}` + "\n"
	}
	text := head
	for _, name := range []string{".env", "key.pem", "config", "k.go", ".hidden.go"} {
		text += finding(name)
		if err := os.WriteFile(name, []byte("one\nsecret of "+name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text += `{"type":"end","summary":{}}` + "\n"
	if err := os.WriteFile("result.jsonl", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{"": nil, "secret of k.go": {"--source", "."}} {
		if _, errs, exit := run(append([]string{"memcheck", "merge", "result.jsonl", "--out", "out"}, args...)...); exit != 1 {
			t.Fatalf("exit status %d: %s", exit, errs)
		}
		files, err := filepath.Glob("out/*")
		if err != nil || len(files) != 4 {
			t.Fatal(files, err)
		}
		for _, name := range files {
			got, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(got), "secret of "); n != 0 && (n != 1 || want == "" || !strings.Contains(string(got), want)) {
				t.Errorf("%v: %s shows files of this machine", args, name)
			} else if want != "" && n == 0 && strings.HasSuffix(name, ".html") {
				t.Errorf("%v: the page lacks %s", args, want)
			}
		}
	}
}

// Texts of a snapshot are printed without control characters; files written to standard output are unchanged.
func TestMemvizTerminal(t *testing.T) {
	packed, err := os.Open(recordedSnapshot("small_p4"))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	const name = "x\x1b[2J\u202e"
	if err := os.WriteFile(name, []byte("no snapshot \x1b[2J"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"memviz", "stats", name}, {"memviz", "trace", name}, {"memreplay", name},
		{"memviz", "flamegraph", name}, {name}} {
		out, errs, exit := run(args...)
		if r := controlled(out + errs); r != 0 || exit == 0 || !strings.Contains(errs, `x\x1b[2J\u202e`) {
			t.Errorf("%q: %q in %q %q, exit status %d", args, r, out, errs, exit)
		}
	}
	evil := bytes.ReplaceAll(plain, []byte("gpt2.py"), []byte("\x1b[2J.py")) // of the same length
	if bytes.Equal(evil, plain) {
		t.Fatal("the snapshot has no such name")
	}
	if err := os.WriteFile("evil.pickle", evil, 0o644); err != nil {
		t.Fatal(err)
	}
	shown := false
	for _, args := range [][]string{{"memviz", "memory", "evil.pickle", "-o", "-"}, {"memviz", "segments", "evil.pickle", "-o", "-"},
		{"memviz", "trace", "evil.pickle"},
		{"memviz", "flamegraph", "evil.pickle", "--no-cache", "-o", "-"}, {"memviz", "stats", "evil.pickle"}, {"memreplay", "evil.pickle"},
		{"memreplay", "evil.pickle", "--json"}} {
		out, errs, exit := run(args...)
		if r := controlled(out + errs); r != 0 || exit != 0 {
			t.Errorf("%q: %q, exit status %d: %s", args, r, exit, errs)
		}
		shown = shown || strings.Contains(out, `\x1b[2J.py`)
	}
	if !shown {
		t.Error("no report shows the name")
	}
	if out, errs, exit := run("memviz", "pprof", "evil.pickle", "-o", "-"); exit != 0 || !strings.HasPrefix(out, "\x1f\x8b") {
		t.Errorf("a profile: %.20q, exit status %d: %s", out, exit, errs)
	}
}
