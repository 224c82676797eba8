package benchrun

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tenon.dev/fault"
)

func TestMain(m *testing.M) {
	os.Exit(Main(m, "internal/benchrun", func() (string, string) { return "none", "none" }))
}

func one(v float64) Sample { return Sample{v, v, v, 1} }

func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want Sample
	}{
		{[]float64{3}, Sample{3, 3, 3, 1}},
		{[]float64{3, 1, 2}, Sample{2, 1, 3, 3}},
		{[]float64{4, 1, 3, 2}, Sample{2.5, 1, 4, 4}},
	} {
		if got := Summarize(c.in); got != c.want {
			t.Errorf("Summarize(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

func TestRunFile(t *testing.T) {
	dir := t.TempDir()
	r := &Run{Date: "2026-01-02", Device: "NVIDIA H200 (2)", Driver: "580", Packages: map[string]string{"a": "1"}}
	if got := r.FileName(); got != "2026-01-02-nvidia-h200-2.json" {
		t.Errorf("FileName = %s", got)
	}
	r.Add(Figure{Name: "b", Unit: "µs", Sample: one(2), Torch: &Sample{3, 2, 4, 5}}, Figure{Name: "a", Unit: "µs", Sample: one(1)})
	r.Add(Figure{Name: "b", Unit: "µs", Sample: one(7)})
	r.AddTests(Test{Package: "q", Name: "TestA", Result: "fail"}, Test{Package: "p", Name: "TestB", Result: "pass"},
		Test{Package: "p", Name: "TestA", Result: "pass"})
	r.AddTests(Test{Package: "q", Name: "TestA", Result: "pass", Subtests: map[string]int{"pass": 2}})
	name := filepath.Join(dir, r.FileName())
	if err := r.Write(name); err != nil {
		t.Fatal(err)
	}
	back, err := Read(name)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(r, back) {
		t.Errorf("written %v, read %v", r, back)
	}
	if len(back.Figures) != 2 || back.Figures[1].Median != 7 || back.Figures[1].Torch.N != 5 || len(back.Tests) != 3 ||
		back.Tests[2].Result != "pass" {
		t.Errorf("figures %v, tests %v", back.Figures, back.Tests)
	}

	more := &Run{Device: r.Device, Driver: r.Driver, Commit: "c", Packages: maps.Clone(r.Packages),
		Figures: []Figure{{Name: "c", Unit: "s", Sample: one(1)}}}
	if err := back.Merge(more); err != nil || len(back.Figures) != 3 || back.Commit != "c" {
		t.Errorf("merged: %v, %v", back, err)
	}
	more.Driver = "581"
	if err := back.Merge(more); fault.KindOf(err) != fault.Invalid {
		t.Errorf("another driver: %v", err)
	}
	more.Driver, more.Packages["a"] = "580", "2"
	if err := back.Merge(more); fault.KindOf(err) != fault.Invalid ||
		!strings.Contains(err.Error(), "other source files than the new results, in a:") {
		t.Errorf("another source: %v", err)
	}
	if _, err := Read(filepath.Join(dir, "none")); fault.KindOf(err) != fault.System {
		t.Errorf("no file: %v", err)
	}
	if err := r.Write(filepath.Join(dir, "none", "x")); fault.KindOf(err) != fault.System {
		t.Errorf("no folder: %v", err)
	}
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte(`{"speed":1}`), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(bad); fault.KindOf(err) != fault.Invalid {
		t.Errorf("unknown member: %v", err)
	}
}

func TestHashPackages(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	hash := func() map[string]string {
		h, err := HashPackages(dir)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	for _, f := range []string{"a.go", "p/b.go", "p/c.txt", "p/testdata/d.go", "docs/e.md", ".git/f.go"} {
		write(f, "1")
	}
	first := hash()
	if got := slices.Sorted(maps.Keys(first)); !slices.Equal(got, []string{".", "p"}) || len(first["p"]) != 12 {
		t.Errorf("hashes %v", first)
	}
	write("p/testdata/d.go", "2")
	write("docs/e.md", "2")
	if !maps.Equal(first, hash()) {
		t.Error("files that are no package's change a hash")
	}
	write("p/c.txt", "2")
	if second := hash(); second["p"] == first["p"] || second["."] != first["."] {
		t.Errorf("after a change: %v, before %v", second, first)
	}
	if _, err := HashPackages(filepath.Join(dir, "none")); fault.KindOf(err) != fault.System {
		t.Errorf("no folder: %v", err)
	}
}

func TestRoot(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(root, "go.mod")); err != nil || !strings.HasPrefix(string(b), "module tenon.dev") {
		t.Errorf("root %s: %v", root, err)
	}
	t.Chdir(t.TempDir())
	if _, err := Root(); fault.KindOf(err) != fault.System {
		t.Errorf("outside: %v", err)
	}
}

const sampleLog = `=== RUN   TestA
=== RUN   TestA/x
=== RUN   TestA/x/deep
--- PASS: TestA (1.25s)
    --- PASS: TestA/x (0.50s)
        --- SKIP: TestA/x/deep (0.00s)
    --- FAIL: TestA/y (0.50s)
=== RUN   TestB
    b_test.go:3: needs a GPU
--- SKIP: TestB (0.00s)
--- FAIL: TestC (0.01s)
goos: linux
BenchmarkAdd
BenchmarkAdd-2   	 1000000	      120.5 ns/op	       0 B/op	       1 allocs/op
BenchmarkAdd-2   	 1000000	      118.5 ns/op	       0 B/op	       1 allocs/op
BenchmarkSum/4GiB 	 3	   1.5 TB/s
BenchmarkBroken    reason
PASS
`

func TestParseLog(t *testing.T) {
	tests, figures, err := ParseLog("p", strings.NewReader(sampleLog))
	if err != nil {
		t.Fatal(err)
	}
	wantTests := []Test{
		{"p", "TestA", "pass", map[string]int{"pass": 1, "skip": 1, "fail": 1}, 1.25},
		{"p", "TestB", "skip", nil, 0},
		{"p", "TestC", "fail", nil, 0.01},
	}
	if !reflect.DeepEqual(tests, wantTests) {
		t.Errorf("tests %v, want %v", tests, wantTests)
	}
	wantFigures := []Figure{
		{Name: "p.Add", Unit: "ns/op", Sample: Sample{119.5, 118.5, 120.5, 2}},
		{Name: "p.Add:B/op", Unit: "B/op", Sample: Sample{0, 0, 0, 2}},
		{Name: "p.Add:allocs/op", Unit: "allocs/op", Sample: Sample{1, 1, 1, 2}},
		{Name: "p.Sum/4GiB:TB/s", Unit: "TB/s", Sample: one(1.5)},
	}
	if !reflect.DeepEqual(figures, wantFigures) {
		t.Errorf("figures %v, want %v", figures, wantFigures)
	}
	if _, _, err := ParseLog("p", strings.NewReader(strings.Repeat("x", 1<<25))); err == nil {
		t.Error("a line beyond all bounds: no error")
	}
}

// runner is a testing.M for tests.
type runner func() int

func (r runner) Run() int { return r() }

func TestTeeAndSave(t *testing.T) {
	stdout := os.Stdout
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout = null
	var log bytes.Buffer
	status, err := tee(runner(func() int { fmt.Print(sampleLog); return 3 }), &log)
	os.Stdout = stdout
	if err != nil || status != 3 || log.String() != sampleLog {
		t.Fatalf("status %d, %v, log %q", status, err, log.String())
	}

	Record(Figure{Name: "add", Unit: "µs", Sample: one(4)})
	defer func() { recorded.figures = nil }()
	name := filepath.Join(t.TempDir(), "runs", "run.json")
	device := func() (string, string) { return "NVIDIA H200", "CUDA 13.0" }
	for range 2 { // the second merges into the first
		if err := save(name, "p", strings.NewReader(sampleLog), device); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Read(name)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Figures) != 5 || r.Figures[0].Name != "add" || len(r.Tests) != 3 || r.Device != "NVIDIA H200" || r.Driver != "CUDA 13.0" ||
		r.Packages["internal/benchrun"] == "" ||
		!strings.Contains(r.Host, "threads") || !strings.HasPrefix(r.Go, "go1.") {
		t.Errorf("run %+v", r)
	}
	other := func() (string, string) { return "NVIDIA H100", "CUDA 13.0" }
	if err := save(name, "p", strings.NewReader(""), other); fault.KindOf(err) != fault.Invalid {
		t.Errorf("another device: %v", err)
	}
	if err := os.WriteFile(name, []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := save(name, "p", strings.NewReader(""), device); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a broken file: %v", err)
	}
	if err := save(filepath.Join(name, "x", "y"), "p", strings.NewReader(""), device); fault.KindOf(err) != fault.System {
		t.Errorf("no folder: %v", err)
	}
}

func TestGoals(t *testing.T) {
	r := &Run{Figures: []Figure{{Name: "launch", Unit: "µs", Sample: one(3)}, {Name: "copy", Unit: "ms", Sample: one(3)}}}
	torch := one(10)
	for _, c := range []struct {
		goal       *Goal
		text       string
		torch      *Sample
		good, bad  float64
		unknowable bool
	}{
		{atMost(0.8), "≤ 0.8", nil, 0.8, 0.81, false},
		{atMost(0), "≤ 0", nil, 0, 1, false},
		{atLeast(3), "≥ 3", nil, 3, 2.9, false},
		{over("launch", 0.8), "≤ launch + 0.8", nil, 3.8, 3.9, false},
		{times(1.02, "launch"), "≤ 1.02 × launch", nil, 3.06, 3.1, false},
		{both(26, "launch", 50.8), "≤ 26 × launch + 50.8", nil, 128.8, 128.9, false},
		{ofTorch(0.97), "≥ 0.97 × PyTorch", &torch, 9.7, 9.6, false},
		{ofTorchMost(1.1), "≤ 1.1 × PyTorch", &torch, 11, 11.1, false},
		{ofTorch(0.97), "≥ 0.97 × PyTorch", nil, 0, 0, true},
		{over("absent", 1), "≤ absent + 1", nil, 0, 0, true},
		{over("copy", 1), "≤ copy + 1", nil, 0, 0, true}, // a different unit
	} {
		if got := c.goal.String(); got != c.text {
			t.Errorf("goal %q, want %q", got, c.text)
		}
		good, known := c.goal.Met(r, Figure{Unit: "µs", Sample: one(c.good), Torch: c.torch})
		bad, _ := c.goal.Met(r, Figure{Unit: "µs", Sample: one(c.bad), Torch: c.torch})
		if known == c.unknowable || known && (!good || bad) {
			t.Errorf("%s: %v is met %v, %v is met %v, known %v", c.text, c.good, good, c.bad, bad, known)
		}
	}
	if got := short(12345.6); got != "12346" {
		t.Errorf("short = %s", got)
	}
}

// TestCatalogue checks that names are unique and that every goal refers to a figure in the same unit.
func TestCatalogue(t *testing.T) {
	units := map[string]string{}
	for _, s := range Catalogue() {
		for _, e := range s.Entries {
			if units[e.Name] != "" || e.Unit == "" || e.Title == "" {
				t.Errorf("%+v", e)
			}
			units[e.Name] = e.Unit
		}
	}
	for _, s := range Catalogue() {
		for _, e := range s.Entries {
			if e.Goal != nil && e.Goal.Of != "" && e.Goal.Of != "torch" && units[e.Goal.Of] != e.Unit {
				t.Errorf("%s: the goal %s is in %q", e.Name, e.Goal, units[e.Goal.Of])
			}
		}
	}
}

func TestAgainst(t *testing.T) {
	torch := one(4)
	for unit, want := range map[string]string{"µs": "2.00 × as fast", "s": "2.00 × as fast", "GB/s": "0.50 × as fast",
		"TFLOP/s": "0.50 × as fast", "MiB": "0.50 × the memory", "ns": "2.00 × as fast"} {
		if got := against(Figure{Unit: unit, Sample: one(2), Torch: &torch}); got != want {
			t.Errorf("%s: %s, want %s", unit, got, want)
		}
	}
	if got := against(Figure{Unit: "s", Sample: one(0.001), Torch: &torch}); got != "4000 × as fast" {
		t.Error(got)
	}
}

func TestPage(t *testing.T) {
	if p := string(Page(nil, nil, nil)); !strings.Contains(p, "No run has been recorded yet") {
		t.Errorf("empty page:\n%s", p)
	}
	dir := t.TempDir()
	write := func(r *Run, day string) string {
		r.Date = day
		name := filepath.Join(dir, r.FileName())
		if err := r.Write(name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	file := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	gpu := &Run{Device: "NVIDIA H200", Driver: "580", Go: "go1.26", Commit: "0123456789abcdef"}
	gpu.Add(Figure{Name: "launch", Unit: "µs", Sample: Sample{3, 2.5, 4, 7}}, Figure{Name: "add", Unit: "µs", Sample: one(5)},
		Figure{Name: "copy", Unit: "TB/s", Sample: one(4.2)})
	write(gpu, "2026-01-01")
	gpu.Add(Figure{Name: "add", Unit: "µs", Sample: one(3.5), Note: "two | threads"},
		Figure{Name: "internal/x.Y", Unit: "ns/op", Sample: one(9)},
		Figure{Name: "err.sin", Unit: "ulp", Sample: Sample{1, 1, 1, 9}, Note: "largest of all"},
		Figure{Name: "err.cos", Unit: "ulp", Sample: one(2), Note: "largest of all"},
		Figure{Name: "copy.time", Unit: "ms", Sample: one(2)})
	gpu.AddTests(Test{"internal/x", "TestP", "pass", map[string]int{"pass": 4}, 1}, Test{"internal/x", "TestS", "skip", nil, 1},
		Test{"internal/x", "TestF", "fail", nil, 1})
	second := write(gpu, "2026-01-02")
	torch := strings.TrimSuffix(second, ".json") + ".torch.json"
	file(torch,
		`{"torch":"2.11.0","cuda":"13.0","device":"NVIDIA H200","figures":[{"name":"copy","unit":"TB/s","median":4.4,"min":4.3,"max":4.5,"n":9},{"name":"copy.time","unit":"ms","median":3,"min":3,"max":3,"n":1},{"name":"other","unit":"s","median":1,"min":1,"max":1,"n":1}],"failed":{}}`)
	sim := &Run{Device: "simulator", Figures: []Figure{{Name: "sim.matmul", Unit: "GFLOP/s", Sample: one(7)},
		{Name: "add", Unit: "µs", Sample: one(1)}}}
	write(sim, "2026-01-01")
	file(filepath.Join(dir, "README.md"), "no run")
	names, runs, err := Runs(dir)
	if err != nil {
		t.Fatal(err)
	}
	page := string(Page(names, runs, nil))
	for _, line := range []string{
		"- Run 1: 2026-01-01, go1.26.\n- Run 3: 2026-01-02, go1.26, PyTorch 2.11.0 (CUDA 13.0).",
		"| work | Tenon | goal | met | run |\n| --- | --- | --- | --- | --- |",
		"| bare kernel launch through the driver contract (`launch`) | 3 µs (2.5–4, n 7) |  |  | 3 | 3 |",
		"| small add, issue per op (`add`); two \\| threads | 3.5 µs | ≤ launch + 0.8 µs | yes | 3 | 5 (met: no) |",
		"| work | Tenon | PyTorch | against PyTorch | goal | met | run | earlier runs |\n| --- | --- | --- | --- | --- | --- | --- | --- |",
		"| copy of 4 GiB f32, bytes read and written (`copy`) | 4.2 TB/s | 4.4 TB/s (4.3–4.5, n 9) | 0.95 × as fast | ≥ 0.97 × PyTorch " +
			"| **no** | 3 | 4.2 (met: not known) |",
		"| copy of 4 GiB f32 (`copy.time`) | 2 ms | 3 ms | 1.50 × as fast |  |  | 3 |  |",
		"| small add, issue per op (`add`) | 1 µs | ≤ launch + 0.8 µs | not known | 2 |",
		"### Further benchmarks\n\n| benchmark | Tenon | run |\n| --- | --- | --- |\n| internal/x.Y | 9 ns/op | 3 |",
		"### err: largest of all\n\n| benchmark | Tenon | run |\n| --- | --- | --- |\n| err.cos | 2 ulp | 3 |\n| err.sin | 1 ulp | 3 |",
		"| 3 | [2026-01-02-nvidia-h200.json](../bench/runs/2026-01-02-nvidia-h200.json) | NVIDIA H200 | 580 |  | go1.26 | 2.11.0 (CUDA " +
			"13.0) | `0123456789ab` | 7 | 1 passed, 1 failed, 1 skipped |",
		"| 2 | [2026-01-01-simulator.json](../bench/runs/2026-01-01-simulator.json) | simulator |  |  |  |  | by the hashes of its " +
			"packages | 2 |  |",
		"| internal/x | 3 | 3 | 4 | TestF | TestS | 3 |",
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("the page lacks %s", line)
		}
	}
	if t.Failed() {
		t.Log(page)
	}

	broken := func(says string) {
		t.Helper()
		if _, _, err := Runs(dir); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want %q", err, says)
		}
	}
	file(torch, `{"device":"NVIDIA H200","figures":[{"name":"copy","unit":"GB/s"}]}`)
	broken("figure copy is in TB/s here and in GB/s in")
	file(torch, `{"device":"NVIDIA H100"}`)
	broken("are of NVIDIA H100, the run is of NVIDIA H200")
	file(torch, `[]`)
	broken("have another form")
	if err := os.Remove(torch); err != nil {
		t.Fatal(err)
	}
	if err := gpu.MergeTorch(torch); fault.KindOf(err) != fault.System {
		t.Errorf("no file: %v", err)
	}
	write(&Run{Device: "x", Figures: []Figure{{Name: "add", Unit: "ms"}}}, "2026-01-03")
	broken("figure add is in ms, the page shows it in µs")
	file(filepath.Join(dir, "0.json"), "x")
	broken("has another form")
	if _, _, err := Runs(filepath.Join(dir, "none")); fault.KindOf(err) != fault.System {
		t.Errorf("no folder: %v", err)
	}
}

// TestPageIsCurrent compares docs/measurements.md with the page generated from the recorded runs.
func TestPageIsCurrent(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	names, runs, err := Runs(filepath.Join(root, "bench", "runs"))
	if err != nil {
		t.Fatal(err)
	}
	pairs, err := ReadPairs(filepath.Join(root, "bench", "runs"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "measurements.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page, Page(names, runs, pairs)) {
		t.Error("docs/measurements.md is out of date: run go generate ./bench")
	}
}

// A figure measured without PyTorch is shown next to PyTorch's from an earlier run, which is named and not compared.
func TestPageNamesPyTorchsRun(t *testing.T) {
	torch := one(4.4)
	old := &Run{Device: "NVIDIA H200", Date: "2026-01-01", Torch: "2.11.0",
		Figures: []Figure{{Name: "copy", Unit: "TB/s", Sample: one(4.2), Torch: &torch}},
		Tests:   []Test{{"internal/x", "TestX", "pass", nil, 1}, {"internal/y", "TestY", "pass", nil, 2}}}
	now := &Run{Device: "NVIDIA H200", Date: "2026-01-02", Figures: []Figure{{Name: "copy", Unit: "TB/s", Sample: one(4.3)}},
		Tests: []Test{{"internal/x", "TestX", "fail", nil, 1}}}
	p := string(Page([]string{"a.json", "b.json"}, []*Run{old, now}, nil))
	for _, want := range []string{"| 4.3 TB/s | 4.4 TB/s, run 1 |  |", "| internal/x | 2 | 1 | 0 | TestX |  | 1 |",
		"| internal/y | 1 | 1 | 0 |  |  | 2 |"} {
		if !strings.Contains(p, want) {
			t.Errorf("the page lacks %s:\n%s", want, p)
		}
	}
}
