package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
)

const (
	resnet50 = "../snapshot/testdata/resnet50.pickle.gz"
	gpt2     = "../snapshot/testdata/gpt2_amp_graph.pickle.gz"
)

func TestMemreplay(t *testing.T) {
	out, errs, exit := run("memreplay", gpt2)
	if exit != 0 || errs != "" {
		t.Fatalf("exit status %d: %s", exit, errs)
	}
	for _, want := range []string{
		`^gpt2_amp_graph.pickle.gz, device 0: 15198 events in 2.257s, 5215 allocations of 42.35 GiB in all, recorded under the defaults\n`,
		`\ncheck: under those settings the replay is the recording: 5215 of 5215 blocks .*, 117 of 117 turns to the driver, the same 45 segments`,
		`\ndevice: never full\n`,
		`\n +settings +peak allocated +peak reserved +against recording +fragmentation +driver calls +flushes +OOMs\n 1  expandable_segments:True `,
		`\n ?\d+  the defaults \(the recording's\) +3\.34 GiB +3\.79 GiB +\+0\.0 % +12\.0 % +190 +0 +0\n`,
		`\nnote: The trace begins in the middle: 3 live blocks for 65\.00 MiB`, `\nnote: 1 private pool`, `\nnote: An allocation that failed`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("nothing matches %q in\n%s", want, out)
		}
	}
}

// Settings given by hand, on a device that is too small for some.
func TestMemreplayMemory(t *testing.T) {
	out, errs, exit := run("memreplay", resnet50, "--memory", "3.1GiB", "--fit", "--conf", "roundup_power2_divisions:4,max_split_size_mb:64",
		"--conf", "expandable_segments:True", "--fraction", "1")
	if exit != 0 || errs != "" {
		t.Fatalf("exit status %d: %s", exit, errs)
	}
	for _, want := range []string{
		`\ndevice: 3\.10 GiB, of which the allocator may hold 3\.10 GiB\n`,
		`\n1  expandable_segments:True .* 0 +3\.0\d GiB\n2  the defaults \(the recording's\) .* 0 +3\.09 GiB\n3  roundup_power2_divisions:4,max_split_size_mb:64 .* \d{2,} +3\.\d\d GiB\n`,
		`\n3: first fails at event \d+ of 7985, for [\d.]+ MiB\n`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("nothing matches %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "note:") {
		t.Errorf("a whole trace of one stream tells all:\n%s", out)
	}
}

func TestMemreplayJSON(t *testing.T) {
	out, errs, exit := run("memreplay", gpt2, "--json", "--conf", "max_split_size_mb:128", "--conf", "", "--memory", "2PB")
	if exit != 1 || !strings.Contains(errs, `--memory is "2PB"`) {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
	out, errs, exit = run("memreplay", gpt2, "--json", "--conf", "max_split_size_mb:128", "--conf", "", "--memory", "4TiB")
	if exit != 0 || errs != "" {
		t.Fatalf("exit status %d: %s", exit, errs)
	}
	var r replayReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.File != "gpt2_amp_graph.pickle.gz" || r.Memory != 4<<40 || r.Recorded.Events != 15198 || !r.Check.Exact() || len(r.Notes) != 3 ||
		len(r.Results) != 2 || r.Results[0].Settings != "" || !r.Results[0].Recorded || r.Results[0].PeakReserved != r.Recorded.PeakReserved ||
		r.Results[1].Settings != "max_split_size_mb:128" || r.Results[1].OOMs != 1 || r.Results[1].FirstOOM.Bytes != 1<<50 || r.Results[1].Calls.Mallocs == 0 {
		t.Errorf("%+v", r)
	}
}

// The examples in the documentation are what the command prints.
func TestMemreplayPages(t *testing.T) {
	for _, page := range []string{"../../docs/memreplay.md", "../../README.md"} {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		_, example, ok := strings.Cut(string(b), "\n$ tenon memreplay resnet50.pickle.gz ")
		if !ok {
			t.Errorf("%s has no example", page)
			continue
		}
		args, rest, _ := strings.Cut(example, "\n")
		want, _, _ := strings.Cut(rest, "```")
		if out, errs, exit := run(append([]string{"memreplay", resnet50}, strings.Fields(args)...)...); exit != 0 || out != want {
			t.Errorf("%s shows\n%s\nthe command prints, with status %d,\n%s%s", page, want, exit, out, errs)
		}
	}
}

// A snapshot that Tenon itself recorded, of a program on two streams that fails once.
func TestMemreplayTenon(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d := x.Device()
	ok(d.RecordMemoryHistory(cuda.History{Enabled: "all", Context: "all"}))
	side, err := d.Stream()
	ok(err)
	x.Scope(func(x *tenon.Exec) {
		for i := range 20 {
			a := x.Ones([]int{1 << 18, 1 + i}, tenon.Float32)
			b := x.On(side).Add(a, a)
			a.Close()
			if i%3 != 0 {
				b.Close()
			}
		}
		ok(d.EmptyCache())
		if err := tenon.Try(func() { x.Empty([]int{1 << 50}, tenon.Float32) }); err == nil {
			t.Error("4 PiB are there")
		}
		file := filepath.Join(t.TempDir(), "tenon.pickle")
		ok(d.DumpSnapshot(file))
		out, errs, exit := run("memreplay", file, "--conf", "garbage_collection_threshold:0.5")
		if exit != 0 || !strings.Contains(out, "give --memory and --fraction") || !strings.Contains(out, "the replay is the recording: ") || !strings.Contains(out, "An allocation that failed") {
			t.Errorf("exit status %d: %s%s", exit, out, errs)
		}
	})
}

// A replay that is not the recording says so, and where.
func TestMemreplayInexact(t *testing.T) {
	out, _, exit := run("memreplay", "../snapshot/testdata/small_p4.pickle.gz", "--conf", "expandable_segments:True")
	for _, want := range []string{"near the recording: 0 of 270 blocks at their addresses", "\n       event 1: 32768000 bytes at ", "events of the trace contradict others"} {
		if exit != 0 || !strings.Contains(out, want) {
			t.Errorf("exit status %d, nothing says %q in\n%s", exit, want, out)
		}
	}
}

func TestMemreplayErrors(t *testing.T) {
	text := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(text, []byte("no pickle"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, `expected "<file>"`},
		{[]string{"absent.pickle"}, "cannot open the snapshot"},
		{[]string{t.TempDir()}, "is a directory"},
		{[]string{text}, "tenon: reading " + text + ": the snapshot cannot be read"},
		{[]string{resnet50, "--device", "3"}, "no trace of device 3, but of 0; choose one with --device"},
		{[]string{resnet50, "--conf", "max_split_size_mb:2"}, `the settings "max_split_size_mb:2"`},
		{[]string{resnet50, "--conf", "backend:cudaMallocAsync"}, "whose decisions cannot be replayed"},
		{[]string{resnet50, "--memory", "lots"}, `--memory is "lots"; give a number of bytes`},
		{[]string{resnet50, "--memory", "GiB"}, `--memory is "GiB"`},
		{[]string{resnet50, "--memory", "-3GiB"}, `--memory`},
		{[]string{resnet50, "--fraction", "0.5"}, "say how much that is with --memory"},
		{[]string{resnet50, "--memory", "8GiB", "--fraction", "1.5"}, "Invalid fraction value: 1.5"},
	} {
		out, errs, exit := run(append([]string{"memreplay"}, c.args...)...)
		if exit != 1 || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%v: exit status %d: %s%s, want %q", c.args, exit, out, errs, c.want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]uint64{"": 0, "1": 1, "512": 512, "4k": 4096, "1.5 MiB": 3 << 19, "24GiB": 24 << 30, "24g": 24 << 30, "80GB": 80 << 30, "2TB": 2 << 40} {
		if n, err := parseBytes("--memory", text); n != want || err != nil {
			t.Errorf("%q is %d, %v; want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"0", "-1", "GiB", "1GiBs", "1.2.3", "17TiB", "NaN", "1e9G", "B"} {
		if n, err := parseBytes("--memory", text); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
}
