package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/testdevice"
	"tenon.dev/internal/wholefile"
)

// inputs makes a folder with one valid file of each kind and changes to it.
func inputs(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for from, to := range map[string]string{"../snapshot/testdata/small_p4.pickle.gz": "snapshot", "testdata/train.jsonl": "explanation",
		"../../memcheck/testdata/h200/kernels.jsonl": "journal"} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	x := testdevice.Open(t, tenon.Sim(0))
	p, err := x.Device().Profile()
	if err != nil {
		t.Fatal(err)
	}
	x.Scope(func(x *tenon.Exec) { x.Exp(x.Zeros([]int{256}, tenon.Float32)) })
	prof, err := p.Stop()
	if err == nil {
		err = wholefile.Write("", filepath.Join(dir, "profile"), prof.Write)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
}

// TestUsage checks the sentences for invalid command lines, and their exit status. Messages of the flag library are recognised by their
// text, which another version may change.
func TestUsage(t *testing.T) {
	inputs(t)
	for _, c := range []struct{ line, want string }{
		{"doktor", `there is no command "doktor"; did you mean "doctor"?`},
		{"nonsense", `there is no command "nonsense"; see "tenon --help"`},
		{"help nonsense", `there is no command "nonsense"; see "tenon --help"`},
		{"--bogus", `there is no flag --bogus; see "tenon --help"`},
		{"version --deep", `version: there is no flag --deep; see "tenon version --help"`},
		{"doctor --x", `doctor: there is no flag --x; see "tenon doctor --help"`},
		{"profile profile --htm=x", `profile: there is no flag --htm; did you mean "--html"?`},
		{"version extra", `version: there is an argument too many: "extra"; see "tenon version --help"`},
		{"memviz stats a b", `memviz stats: there is an argument too many: "b"; see "tenon memviz stats --help"`},
		{"memviz stats --static=x snapshot", `memviz stats: there is no flag --static; see "tenon memviz stats --help"`},
		{"memcheck run --mem x", `memcheck run: there is no flag --mem; see "tenon memcheck run --help"`},
		{"memviz --no-open stats snapshot", `memviz: the flag --no-open belongs to the command show, not to stats`},
		{"memviz", `memviz show: an argument is missing: give <file> ...; see "tenon memviz show --help"`},
		{"memviz stats", `memviz stats: an argument is missing: give <file>; see "tenon memviz stats --help"`},
		{"memviz compare", `memviz compare: an argument is missing: give <before> <after>; see "tenon memviz compare --help"`},
		{"memviz compare a", `memviz compare: an argument is missing: give <after>; see "tenon memviz compare --help"`},
		{"memviz a b c", "memviz takes one snapshot, or two to compare, not 3"},
		{"compile", "compile: a command is missing: give explain or bisect"},
		{"compile bisect", `compile bisect: an argument is missing: give <command> ...; see "tenon compile bisect --help"`},
		{"profile profile --by color", `--by is "color"; give time, op, line or module`},
		{"profile profile --by", "--by needs a value"},
		{"profile profile --rows x", `--rows is "x"; give a whole number`},
		{"profile profile --rows -1", "--rows needs a value, and -1 reads as a flag; a value that begins with a dash is written --rows=-1"},
		{"profile profile --rows=-1", "--rows is -1; give a number that is not negative, where 0 is all rows"},
		{"profile profile --html --rows",
			"--html needs a value, and --rows reads as a flag; a value that begins with a dash is written --html=--rows"},
		{"memreplay snapshot --device x", `--device is "x"; give a whole number`},
		{"memreplay snapshot --memory 12parsecs",
			`--memory is "12parsecs"; give a number of bytes of at most 16TiB, such as 24GiB or 81559MiB`},
		{"memreplay snapshot --fraction 0.5", "--fraction is a part of the device's memory; say how much that is with --memory"},
		{"memreplay snapshot --fraction 2 --memory 1GiB", "--fraction is 2; give a part of the device's memory, above 0 and at most 1"},
		{"compile explain explanation --bandwidth x", `--bandwidth is "x"; give a number`},
		{"compile explain explanation --bandwidth=-1", "--bandwidth is -1; give GB/s, such as 4800"},
		{"version --help=x", `--help is "x"; give the flag without a value`},
		{"memcheck --libraries absent x", "--libraries: there is no "},
		{"memcheck --libraries . x", " is a folder; name a file"},
		{"memcheck --dir profile x", " is a file; name a folder"},
		{"memcheck --kind foo x", `--kind is "foo"; give auto, pytest, go or gobinary`},
	} {
		args := strings.Fields(c.line)
		status := statusUsage
		if args[0] == "memcheck" {
			status = 4 // memcheck's own status: nothing ran
		}
		out, errs, exit := run(args...)
		if exit != status || out != "" || !strings.HasPrefix(errs, "tenon: ") || !strings.HasSuffix(c.want, errs[:len(errs)-1]) &&
			!strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("tenon %s: status %d, %s%s", c.line, exit, out, errs)
		}
	}
}

// TestInputs gives every command an input that it cannot read, and an output that exists: the error names the file, and the output stays.
func TestInputs(t *testing.T) {
	inputs(t)
	for name, text := range map[string]string{"empty": "", "text": "hello\n", "kept": "kept"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"snapshot", "profile", "explanation"} {
		whole, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile("cut-"+name, whole[:len(whole)*2/3], 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ command, kind, output string }{
		{"memviz --no-cache", "snapshot", "--static"}, {"memviz stats", "snapshot", ""}, {"memviz trace", "snapshot", ""},
		{"memviz segments", "snapshot", "-o"}, {"memviz memory", "snapshot", "-o"}, {"memviz compare snapshot", "snapshot", "-o"},
		{"memviz flamegraph --no-cache", "snapshot", "-o"}, {"memviz trace_plot --no-cache", "snapshot", "-o"},
		{"memviz segment-plot --no-cache", "snapshot", "-o"}, {"memviz pprof", "snapshot", "-o"}, {"memviz perfetto", "snapshot", "-o"},
		{"memreplay", "snapshot", ""}, {"profile", "profile", "--html"}, {"profile", "profile", "--trace"},
		{"profile", "profile", "--pprof"},
		{"compile explain", "explanation", "--html"},
	} {
		for _, in := range []string{"absent", ".", "empty", "text", "cut-" + c.kind, "snapshot", "profile", "explanation", "journal"} {
			if in == c.kind {
				continue
			}
			args := append(strings.Fields(c.command), in)
			if c.output != "" {
				args = append(args, c.output, "kept")
			}
			out, errs, exit := run(args...)
			if exit != 1 || out != "" || !strings.HasPrefix(errs, "tenon: ") || !strings.Contains(errs, in) ||
				strings.Count(errs, "\n") != 1 {
				t.Errorf("%v: status %d, %s%s", args, exit, out, errs)
			}
			if in == "absent" && !strings.HasSuffix(errs, c.kind+" absent: no such file or directory\n") ||
				in == "." && !strings.HasSuffix(errs, c.kind+" .: it is a folder; name a file\n") {
				t.Errorf("%v: %s", args, errs)
			}
		}
		if kept, err := os.ReadFile("kept"); string(kept) != "kept" || err != nil {
			t.Fatalf("%s left %q of its output, %v", c.command, kept, err)
		}
		if c.output == "" {
			continue
		}
		for _, name := range []string{".", filepath.Join("absent", "x"), filepath.Join("text", "x")} {
			args := append(strings.Fields(c.command), c.kind, c.output, name)
			if _, errs, exit := run(args...); exit != 1 || !strings.HasPrefix(errs, "tenon: cannot write "+name+": ") ||
				strings.Contains(errs, "partial") {
				t.Errorf("%v: status %d, %s", args, exit, errs)
			}
		}
	}
}

// TestMemcheckKeepsLog shows that a run that cannot begin leaves the results of an earlier one.
func TestMemcheckKeepsLog(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(filepath.Join("result.jsonl.old", "full"), 0o700); err != nil { // so that the journal cannot be renamed
		t.Fatal(err)
	}
	for _, name := range []string{"result.log", "result.jsonl"} {
		if err := os.WriteFile(name, []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, errs, exit := run("memcheck", "--checker", "tenon", "--list-command", "echo a", "--run-command", "true {test}")
	if exit != 4 || !strings.Contains(errs, "cannot keep the earlier journal") {
		t.Errorf("status %d, %s", exit, errs)
	}
	for _, name := range []string{"result.log", "result.jsonl"} {
		if text, err := os.ReadFile(name); string(text) != "kept" || err != nil {
			t.Errorf("%s holds %q, %v", name, text, err)
		}
	}
}

// TestHelp shows that every command has help without default texts of the flag library.
func TestHelp(t *testing.T) {
	for _, line := range []string{"", "compile", "compile explain", "compile bisect", "doctor", "memcheck", "memcheck run",
		"memcheck merge", "memviz",
		"memviz show", "memviz stats", "memviz trace", "memviz segments", "memviz memory", "memviz compare", "memviz flamegraph",
		"memviz trace_plot", "memviz segment_plot", "memviz pprof", "memviz perfetto", "memreplay", "profile", "version"} {
		out, errs, exit := run(append(strings.Fields(line), "--help")...)
		if exit != 0 || errs != "" || !strings.HasPrefix(out, strings.TrimSuffix("Usage: tenon "+line, " ")) {
			t.Errorf("tenon %s --help: status %d, %s%s", line, exit, out, errs)
		}
		for _, foreign := range []string{"context-sensitive", "FLOAT-64", "=INT", "=STRING"} {
			if strings.Contains(out, foreign) {
				t.Errorf("tenon %s --help says %s:\n%s", line, foreign, out)
			}
		}
	}
	if out, _, _ := run("--help"); !strings.Contains(out, "Exit status: 0 success; 1 failure; 2 ") {
		t.Errorf("no word of the exit status in\n%s", out)
	}
}
