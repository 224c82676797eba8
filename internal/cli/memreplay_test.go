package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/snapshot"
	"tenon.dev/memviz/replay"
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
		`^gpt2_amp_graph.pickle.gz, device 0: 15198 events in 2.257s, 5215 allocations of 42.35 GiB in all \(1 failed\), recorded under the defaults\n`,
		`\ncheck: under those settings the replay is the recording: 5215 of 5215 blocks .*, 117 of 117 driver steps, the same 45 segments`,
		`\ndevice: never full\n`,
		`\n +settings +peak allocated +peak reserved +against recording +fragmentation +driver calls +flushes +OOMs\n 1  expandable_segments:True `,
		`\n ?\d+  the defaults \(the recording's\) +3\.34 GiB +3\.79 GiB +same +12\.0 % +190 +0 +0\n`,
		`\nBest: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\. The allocator holds [\d.]+ MiB less at its peak than under the recording's settings\.\n`,
		`\nnote: The trace begins in the middle: 3 live blocks for 65\.00 MiB`, `\nnote: 1 private pool`,
		`\nnote: An allocation that failed`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("nothing matches %q in\n%s", want, out)
		}
	}
}

// Settings given by hand, on a device that is too small for some.
func TestMemreplayMemory(t *testing.T) {
	out, errs, exit := run("memreplay", resnet50, "--memory", "3.1GiB", "--fit", "--conf",
		"roundup_power2_divisions:4,max_split_size_mb:64",
		"--conf", "expandable_segments:True", "--fraction", "1")
	if exit != 0 || errs != "" {
		t.Fatalf("exit status %d: %s", exit, errs)
	}
	for _, want := range []string{
		`\ndevice: 3\.10 GiB, of which the allocator may hold 3\.10 GiB\n`,
		` OOMs +first OOM at event +fits into\n1  expandable_segments:True .* 0 +- +3\.0\d GiB\n2  the defaults \(the recording's\) .* 0 +- +3\.09 GiB\n` +
			`3  roundup_power2_divisions:4,max_split_size_mb:64 .* \d{2,} +\d+ \([\d.]+ MiB\) +3\.\d\d GiB\n`,
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
	if exit != 2 || !strings.Contains(errs, `--memory is "2PB"`) {
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
	if len(r.Devices) != 1 || r.Devices[0] != (replay.Trace{Device: 0, Events: 15198}) || r.File != "gpt2_amp_graph.pickle.gz" ||
		r.Memory != 4<<40 || r.Recorded.Events != 15198 || !r.Check.Exact() || len(r.Notes) != 3 ||
		len(r.Results) != 2 || r.Results[0].Settings != "" || !r.Results[0].Recorded ||
		r.Results[0].PeakReserved != r.Recorded.PeakReserved ||
		r.Results[1].Settings != "max_split_size_mb:128" || r.Results[1].OOMs != 1 || r.Results[1].FirstOOM.Bytes != 1<<50 ||
		r.Results[1].Calls.Mallocs == 0 {
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
	ok(d.RecordMemoryHistory())
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
		if exit != 0 || !strings.Contains(out, "give --memory and --fraction") ||
			!strings.Contains(out, "the replay is the recording: ") || !strings.Contains(out, "An allocation that failed") {
			t.Errorf("exit status %d: %s%s", exit, out, errs)
		}
	})
}

// Settings that cost the same share a line, led by the recording's, which other words for them are too.
func TestMemreplayAlike(t *testing.T) {
	out, errs, exit := run("memreplay", "../snapshot/testdata/extra_expandable.pickle.gz", "--conf", "expandable_segments:True", "--conf",
		"max_split_size_mb:64, expandable_segments:True,pinned_num_register_threads:8",
		"--conf", "", "--conf", "max_split_size_mb:512")
	for _, want := range []string{
		`\n1  expandable_segments:True,max_split_size_mb:64 \(the recording's\) .* same .*\n=  expandable_segments:True\n=  max_split_size_mb:64, expandable_segments:True,pinned_num_register_threads:8 \(the recording's\)\n` +
			`2  the defaults .*\n=  max_split_size_mb:512\n`,
		`\nNone of these settings is better than the recording's\.\n`,
	} {
		if exit != 0 || errs != "" || !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("exit status %d, nothing matches %q in\n%s%s", exit, want, out, errs)
		}
	}
	if out, _, _ = run("memreplay", resnet50, "--conf", "", "--memory", "100MiB"); !strings.Contains(out,
		"does not fit under any of these settings; --fit says") {
		t.Errorf("on a device that is far too small:\n%s", out)
	}
	if out, _, _ = run("memreplay", "../snapshot/testdata/extra_streams.pickle.gz", "--conf", "max_split_size_mb:512"); strings.Contains(
		out, "Best") || strings.Contains(out, "None of") {
		t.Errorf("settings that change nothing are judged:\n%s", out)
	}
}

// The verdict names what is gained.
func TestMemreplayVerdict(t *testing.T) {
	result := func(settings string, recorded bool, ooms int64, reserved uint64, calls, rescued int64) replayResult {
		return replayResult{Result: replay.Result{Settings: settings, Recorded: recorded, OOMs: ooms, PeakReserved: reserved,
			DriverCalls: calls, Rescued: rescued}}
	}
	for _, c := range []struct {
		results []replayResult
		want    string
	}{
		{nil, ""},
		{[]replayResult{result("", true, 0, 1, 1, 0)}, ""},
		{[]replayResult{result("a", false, 0, 1, 1, 0), result("b", false, 0, 2, 1, 0)}, ""},
		{[]replayResult{result("a", false, 0, 1, 1, 1), result("", true, 1, 1, 1, 0)}, "Best: PYTORCH_CUDA_ALLOC_CONF=a. It has 0 OOMs, " +
			"the recording's settings have 1."},
		{[]replayResult{result("", false, 0, 2, 1, 0), result("b", true, 3, 1, 1, 0)}, "Best: no settings at all. It has 0 OOMs, the " +
			"recording's settings have 3."},
		{[]replayResult{result("a", false, 0, 2, 1, 0), result("", true, 0, 2, 8, 0)}, "Best: PYTORCH_CUDA_ALLOC_CONF=a. The driver is " +
			"called 7 times less often than under the recording's settings."},
		{[]replayResult{result("a", false, 0, 2, 1, 0), result("b", true, 0, 2, 1, 3)},
			"None of these settings is better than the recording's."},
	} {
		r := replayReport{Results: c.results}
		if got := r.verdict(alike(c.results)); got != c.want {
			t.Errorf("%v: %q, want %q", c.results, got, c.want)
		}
		var b strings.Builder
		if r.table(&b, alike(c.results)); len(c.results) > 0 && strings.Contains(b.String(), "rescued") !=
			(c.results[0].Rescued+c.results[len(c.results)-1].Rescued > 0) {
			t.Errorf("%v: the table is\n%s", c.results, b.String())
		}
	}
}

// Of several devices the one with the longest trace is taken; the others are named.
func TestMemreplayDevices(t *testing.T) {
	s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: make([]snapshot.Note, 1), Traces: make([][]snapshot.Event, 4)}
	for d, n := range []int{1, 2, 0, 1} {
		for i := range n {
			s.Traces[d] = append(s.Traces[d], snapshot.Event{Action: snapshot.ActionAlloc, Addr: uint64(i) << 9, Size: 512})
		}
	}
	s.Traces[3][0].Action = snapshot.ActionSegmentAlloc
	file := filepath.Join(t.TempDir(), "four.pickle")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Write(f); err != nil {
		t.Fatal(err)
	}
	f.Close()
	out, errs, exit := run("memreplay", file, "--conf", "")
	if exit != 0 || !strings.Contains(out, ", device 1: 2 events in 0s, 2 allocations of ") ||
		!strings.Contains(out, "note: The snapshot has traces of other devices too: 0 (1 event), 3 (1 event). --device chooses one.") {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
	if out, _, exit = run("memreplay", file, "--device", "0"); exit != 0 ||
		!strings.Contains(out, "device 0: 1 event in 0s, 1 allocation of 512 bytes") {
		t.Errorf("exit status %d: %s", exit, out)
	}
	if out, errs, exit = run("memreplay", file, "--device", "3"); exit != 1 || !strings.Contains(errs, "the trace of device 3 has 1 "+
		"event but no allocation; there is nothing to replay") {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
}

// A replay that is not the recording says so, and where.
func TestMemreplayInexact(t *testing.T) {
	out, _, exit := run("memreplay", "../snapshot/testdata/small_p4.pickle.gz", "--conf", "expandable_segments:True")
	for _, want := range []string{"near the recording: 0 of 270 blocks at their addresses", "\n       event 1: 32768000 bytes at ",
		"The trace contradicts itself in "} {
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
		{[]string{"absent.pickle"}, "cannot open the snapshot"},
		{[]string{t.TempDir()}, "it is a folder"},
		{[]string{text}, "tenon: reading " + text + ": the snapshot cannot be read"},
		{[]string{resnet50, "--device", "3"}, "no trace of device 3, but of 0; choose one of these"},
		{[]string{resnet50, "--conf", "max_split_size_mb:2"}, `the settings "max_split_size_mb:2"`},
		{[]string{resnet50, "--conf", "backend:cudaMallocAsync"}, "whose decisions cannot be replayed"},
	} {
		out, errs, exit := run(append([]string{"memreplay"}, c.args...)...)
		if exit != 1 || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%v: exit status %d: %s%s, want %q", c.args, exit, out, errs, c.want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]uint64{"": 0, "1": 1, "512": 512, "4k": 4096, "1.5 MiB": 3 << 19, "24GiB": 24 << 30,
		"24g": 24 << 30, "80GB": 80 << 30, "2TB": 2 << 40} {
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
