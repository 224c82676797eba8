package memcheck

import (
	"bytes"
	"encoding/xml"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// finding returns a finding.
func finding(kernel, message string) *Finding {
	return &Finding{Tool: Memcheck, Class: OutOfBounds, Severity: SeverityError, Message: message, Kernel: kernel, Count: 2,
		Address: 0x7f0000000040,
		Device:  []Frame{{Function: kernel, File: "k.go", Line: 3, Text: kernel + " in k.go:3"}}, Access: "write", Size: 4, Space: "global",
		Allocation: &Allocation{Address: 0x7f0000000000, Size: 64, Relation: "1 bytes after the nearest allocation"}}
}

// record returns a record of a run with two workers.
func record(test string, o Outcome, findings ...*Finding) *Record {
	r := &Record{Type: "test", Test: test, Tool: Memcheck, Outcome: o, Start: time.Unix(1e9, 0), Seconds: 0.5, Verified: true, GPU: "1",
		Report: &Report{Checker: CheckerLegacy, Findings: findings}}
	if o != Success {
		r.Reason, r.Stdout, r.Stderr = "because of "+string(o), "printed <&> \x01\xff", "complained"
	}
	return r
}

// journal writes a journal, with the summary unless cut is set, and returns its path.
func journal(t *testing.T, name string, h Header, cut bool, records ...*Record) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if h.Jobs == 0 {
		h.Jobs = len(records)
	}
	j, err := CreateJournal(path, h)
	if err != nil {
		t.Fatal(err)
	}
	s := &Summary{Planned: h.Jobs, Seconds: 7}
	for _, r := range records {
		if err := j.End(r); err != nil {
			t.Fatal(err)
		}
		s.add(r)
	}
	if cut {
		s = nil
	}
	if err := j.Close(s); err != nil {
		t.Fatal(err)
	}
	return path
}

// A run that was interrupted, or killed in the middle of a line, continues where it stopped.
func TestResume(t *testing.T) {
	for _, torn := range []string{"", `{"type":"test","test":"c","outc`} {
		f := newFake(t)
		for _, n := range []string{"a", "b", "c", "d"} {
			f.test(n, "echo "+n+" >>"+f.dir+"/ran; [ "+n+" != b ]")
		}
		path := filepath.Join(f.dir, "result.jsonl")
		r, _ := f.run()
		h := Header{Target: "x", Digest: Digest(r.Jobs), Jobs: 4, Shard: Shard{Split: 1}}
		j, err := CreateJournal(path, h)
		if err != nil {
			t.Fatal(err)
		}
		all := r.Jobs
		r.Jobs, r.Observers = all[:2], []Observer{j}
		s, err := r.Do(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.Interrupted = true
		if torn != "" {
			s = nil
		}
		if err := j.Close(s); err != nil {
			t.Fatal(err)
		}
		if torn != "" {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, append(text, torn...), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		again, _ := f.run()
		j, before, left, err := ResumeJournal(path, h, all)
		if err != nil || len(left) != 2 || before.Succeeded != 1 || before.Failed != 1 {
			t.Fatalf("%+v, %v, %v", before, left, err)
		}
		again.Jobs, again.Before, again.Observers = left, before, []Observer{j}
		if s, err = again.Do(t.Context()); err != nil || s.Planned != 4 || s.Succeeded != 3 || s.Failed != 1 || s.Interrupted {
			t.Fatalf("%+v, %v", s, err)
		}
		if err := j.Close(s); err != nil {
			t.Fatal(err)
		}
		ran, err := os.ReadFile(filepath.Join(f.dir, "ran"))
		if err != nil || string(ran) != "a\nb\nc\nd\n" {
			t.Errorf("ran %q, %v", ran, err)
		}
		res, err := ReadResults(path)
		if err != nil || res.Summary.Ran() != 4 || res.Summary.Interrupted || len(res.Summary.Missing) != 0 {
			t.Errorf("%+v, %v", res, err)
		}
	}
}

func TestResumeRefuses(t *testing.T) {
	jobs := []Job{{Test{Name: "a"}, Memcheck}}
	h := Header{Target: "x", Checker: CheckerLegacy, Tools: []Tool{Memcheck}, Digest: Digest(jobs), Shard: Shard{Split: 2}, Jobs: 1}
	path := journal(t, "result.jsonl", h, false, record("a", Success))
	for want, change := range map[string]func(*Header){
		"the target: y":                         func(h *Header) { h.Target = "y" },
		"the checker: COMPUTE-SANITIZER":        func(h *Header) { h.Checker = CheckerSanitizer },
		"the tools: [racecheck]":                func(h *Header) { h.Tools = []Tool{Racecheck} },
		`the arguments of tests: ["-x"]`:        func(h *Header) { h.Args = []string{"-x"} },
		`the options of the checker: ["leaks"]`: func(h *Header) { h.Options = (&Checker{Leaks: true}).Settings() },
		"what counts as a failure":              func(h *Header) { h.Strict = true },
		"the number of shards: 3":               func(h *Header) { h.Shard.Split = 3 },
		"the tests that it selects":             func(h *Header) { h.Shard.Rank = 1 },
		"the tests that it selects; run withou": func(h *Header) { h.Digest = "other" },
	} {
		other := h
		change(&other)
		if _, _, _, err := ResumeJournal(path, other, jobs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	j, before, left, err := ResumeJournal(path, h, jobs)
	if err != nil || len(left) != 0 || before.Succeeded != 1 || before.Seconds != 7 {
		t.Errorf("a finished run: %+v, %v, %v", before, left, err)
	} else if err := j.Close(nil); err != nil {
		t.Error(err)
	}
	absent := filepath.Join(t.TempDir(), "result.jsonl")
	if j, before, left, err = ResumeJournal(absent, h, jobs); err != nil || len(left) != 1 || before.Ran() != 0 {
		t.Errorf("without a journal: %+v, %v, %v", before, left, err)
	} else if err := j.Close(nil); err != nil {
		t.Error(err)
	}
	// A new run keeps the old journal.
	if j, err = CreateJournal(path, h); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(nil); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(path + ".old"); err != nil || !bytes.Contains(text, []byte(`"test":"a"`)) {
		t.Errorf("the old journal: %s, %v", text, err)
	}
}

// A folder takes one run at a time, and a journal without a complete line is started again.
func TestJournalIsOneRuns(t *testing.T) {
	jobs := []Job{{Test{Name: "a"}, Memcheck}}
	h := Header{Target: "x", Tools: []Tool{Memcheck}, Digest: Digest(jobs), Shard: Shard{Split: 1}, Jobs: 1}
	path := filepath.Join(t.TempDir(), JournalName)
	first, err := CreateJournal(path, h)
	if err != nil {
		t.Fatal(err)
	}
	_, err = CreateJournal(path, h)
	_, _, _, err2 := ResumeJournal(path, h, jobs)
	if runtime.GOOS != "windows" && (err == nil || !strings.Contains(err.Error(), "another run is writing to it") || err2 == nil ||
		!strings.Contains(err2.Error(), "another --out")) {
		t.Errorf("a second run: %v, %v", err, err2)
	}
	if err := first.Close(nil); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(path); err != nil || bytes.Count(text, []byte("\n")) != 1 {
		t.Errorf("%s, %v", text, err)
	}
	for _, torn := range []string{"", `{"type":"ru`} {
		if err := os.WriteFile(path, []byte(torn), 0o644); err != nil {
			t.Fatal(err)
		}
		j, before, left, err := ResumeJournal(path, h, jobs)
		if err != nil || len(left) != 1 || before.Ran() != 0 {
			t.Fatalf("%q: %+v, %v, %v", torn, before, left, err)
		}
		if err := errors.Join(j.End(record("a", Success)), j.Close(nil)); err != nil {
			t.Error(err)
		}
		if res, err := ReadResults(path); err != nil || res.Summary.Succeeded != 1 {
			t.Errorf("%q: %+v, %v", torn, res, err)
		}
	}
	if err := os.WriteFile(path, []byte("something else\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := ResumeJournal(path, h, jobs); err == nil || !strings.Contains(err.Error(), path+": line 1 of the journal") ||
		!strings.Contains(err.Error(), "without --resume") {
		t.Errorf("no journal: %v", err)
	}
}

func TestReadJournalErrors(t *testing.T) {
	const head = `{"type":"run","format":1}` + "\n"
	for text, want := range map[string]string{
		"":                                       "no header",
		`{"type":"run","format":2}` + "\n":       "is not a header of format 1",
		"hello\n":                                "line 1 of the journal",
		head + `{"type":"dance"}` + "\n":         `unknown type "dance"`,
		head + `{"type":"test","test":5}` + "\n": "line 2 of the journal",
		head + "{}{}\n":                          "line 2 of the journal",
	} {
		if _, _, _, err := ReadJournal(strings.NewReader(text), func(*Record) error { return nil }); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := ReadResults(filepath.Join(t.TempDir(), "absent")); err == nil ||
		!strings.Contains(err.Error(), "cannot open the journal") {
		t.Error(err)
	}
}

func TestMerge(t *testing.T) {
	h := func(rank int) Header {
		return Header{Target: "t.py", Checker: CheckerLegacy, Tools: []Tool{Memcheck}, Shard: Shard{Split: 3, Rank: rank},
			GPUs: []string{"0"}, Host: "m"}
	}
	looked := record("T.a", Success)
	looked.Report.Kernels = 5
	a := journal(t, "a.jsonl", h(0), false, looked, record("T.b", Fail, finding("k", "Invalid write at 0x10")))
	b := journal(t, "b.jsonl", h(1), false, record("T.c", Fail, finding("k", "Invalid write at 0x20"), finding("other", "Invalid read")),
		record("T.b", Success))
	res, err := ReadResults(a, b)
	if err != nil {
		t.Fatal(err)
	}
	s := &res.Summary
	// T.b ran twice, and its failure counts; the same finding in two tests is one.
	if s.Succeeded != 1 || s.Failed != 2 || s.Findings != 2 || len(res.findings) != 2 || res.findings[0].count != 4 ||
		len(res.findings[0].tests) != 2 {
		t.Errorf("%+v", s)
	}
	if len(s.Missing) != 1 || !strings.Contains(s.Missing[0], "of 3 shards of t.py under CUDA-MEMCHECK [memcheck], rank 2") ||
		s.Status(false, false) != StatusInterrupted {
		t.Errorf("missing %q", s.Missing)
	}
	c := journal(t, "c.jsonl", func() Header { h := h(2); h.Jobs = 5; return h }(), true, record("T.e", Timeout))
	res, err = ReadResults(a, b, c)
	if err != nil || len(res.Summary.Missing) != 1 || !strings.Contains(res.Summary.Missing[0],
		"shard 2 of 3 of t.py: 4 of 5 tests did not run") || !res.Summary.Interrupted {
		t.Errorf("%+v, %v", res.Summary, err)
	}
	c = journal(t, "c.jsonl", h(2), false, record("T.e", Timeout))
	if res, err = ReadResults(a, b, c); err != nil || len(res.Summary.Missing) != 0 || res.Summary.Status(false, false) != StatusFailed {
		t.Fatalf("%+v, %v", res.Summary, err)
	}
	// The joined journal gives the same results.
	var joined bytes.Buffer
	if err := res.JoinJournals(&joined, a, b, c); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), JournalName)
	if err := os.WriteFile(path, joined.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := ReadResults(filepath.Dir(path))
	if err != nil || again.Summary.Failed != 2 || again.Summary.Timeouts != 1 || again.Summary.Succeeded != 1 ||
		again.Summary.Findings != 2 || len(again.Summary.Missing) != 0 {
		t.Errorf("%+v, %v", again.Summary, err)
	}
	var log strings.Builder
	if err := res.WriteLog(&log); err != nil || !strings.HasPrefix(log.String(), "Success: T.a\nFail: T.b\nprinted <&>") ||
		!strings.Contains(log.String(), "complained\nFail: T.c\n") ||
		!strings.HasSuffix(log.String(), "Timeout: T.e\n") {
		t.Errorf("%q, %v", log.String(), err)
	}
	text := res.Text()
	for _, want := range []string{"t.py: 4 tests in 7.0s: 1 passed, 2 failed, 1 timed out; 5 kernels checked\n",
		"2 findings:\n  out-of-bounds  Invalid write at 0x10 in k at k.go:3 (2 tests, 4 reports)",
		"did not pass:\n  fail     T.b: because of fail\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		s                Summary
		noHang, required bool
		want             Status
	}{
		{Summary{Planned: 2, Succeeded: 1, Ignored: 1}, false, false, StatusPassed},
		{Summary{Planned: 2, Succeeded: 1, Failed: 1}, false, false, StatusFailed},
		{Summary{Planned: 2, Timeouts: 1, Failed: 1}, false, false, StatusFailed},
		{Summary{Planned: 2, Succeeded: 1, Timeouts: 1}, false, false, StatusHang},
		{Summary{Planned: 2, Succeeded: 1, Timeouts: 1}, true, false, StatusPassed},
		{Summary{Planned: 2, Succeeded: 1, Timeouts: 1, Findings: 1}, true, false, StatusFailed}, // it timed out after an error was found
		{Summary{Planned: 2, Failed: 1, Interrupted: true}, false, false, StatusInterrupted},
		{Summary{Planned: 2, Succeeded: 2, Missing: []string{"x"}}, false, false, StatusInterrupted},
		{Summary{Planned: 2, Timeouts: 1, Stopped: "hang"}, false, false, StatusFailed},
		{Summary{}, false, false, StatusNoTests},
		{Summary{Planned: 1, Succeeded: 1, Unverified: 1}, false, false, StatusPassed},
		{Summary{Planned: 1, Succeeded: 1, Unverified: 1}, false, true, StatusUnverified},
	} {
		if got := c.s.Status(c.noHang, c.required); got != c.want {
			t.Errorf("%+v gives %d, want %d", c.s, got, c.want)
		}
	}
}

func TestJUnit(t *testing.T) {
	skipped := record("T.s", Success)
	skipped.Skipped = true
	path := journal(t, "a.jsonl", Header{Target: "t.py", Shard: Shard{Split: 1}, Host: "m"}, false,
		record("T.a", Success), record("T.b", Fail, finding("k", "Invalid <write>")), record("T.c", Timeout), record("T.d", Ignored),
		skipped, record("plain", Fail))
	res, err := ReadResults(path)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := res.WriteJUnit(&out); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Tests    int    `xml:"tests,attr"`
		Failures int    `xml:"failures,attr"`
		Errors   int    `xml:"errors,attr"`
		Time     string `xml:"time,attr"`
		Suites   []struct {
			Name     string      `xml:"name,attr"`
			Tests    int         `xml:"tests,attr"`
			Failures int         `xml:"failures,attr"`
			Skipped  int         `xml:"skipped,attr"`
			Time     string      `xml:"time,attr"`
			Hostname string      `xml:"hostname,attr"`
			Cases    []junitCase `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	s := got.Suites[0]
	if got.Tests != 6 || got.Failures != 2 || got.Errors != 1 || s.Skipped != 2 || s.Tests != 6 || s.Failures != 2 || s.Name != "t.py" ||
		s.Time != "3.000" || got.Time != "7.000" || s.Hostname != "m" {
		t.Errorf("%+v", got)
	}
	b := s.Cases[1]
	if b.Class != "T" || b.Name != "b" || b.Failure.Type != "out-of-bounds" ||
		!strings.Contains(b.Failure.Text, "Invalid <write> in k at k.go:3, 2 reports") || !strings.Contains(b.Out, "printed <&>") {
		t.Errorf("%+v %+v", b, b.Failure)
	}
	if s.Cases[2].Error.Type != "timeout" || s.Cases[3].Skipped.Message != "because of ignored" || s.Cases[5].Class != "t.py" ||
		s.Cases[5].Failure.Type != "failed" {
		t.Errorf("%+v", s.Cases)
	}
	// A timeout that is not a failure is skipped.
	path = journal(t, "b.jsonl", Header{Target: "t.py", NoHang: true}, false, record("T.c", Timeout))
	if res, err = ReadResults(path); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := res.WriteJUnit(&out); err != nil || strings.Contains(out.String(), "<error") || !strings.Contains(out.String(), "<skipped") {
		t.Errorf("%s, %v", out.String(), err)
	}
}

// TestHTML checks the page's text; page_test.go checks it in a browser.
func TestHTML(t *testing.T) {
	dir := t.TempDir()
	source := "one\ntwo\n</script><b>three\nfour\n"
	if err := os.WriteFile(filepath.Join(dir, "k.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	bad := record("T.</script><script>alert(1)</script>", Fail, finding("k", "Invalid <write>"))
	path := journal(t, "a.jsonl", Header{Target: "t.py"}, false, bad)
	res, err := ReadResults(path)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := res.WriteHTML(&out, dir); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	if n := strings.Count(page, "</script>"); n != 2 {
		t.Errorf("%d scripts end; what tests say must not end one", n)
	}
	if m := regexp.MustCompile(`(?i)\b(src|href)\s*=\s*["']?(https?:)?//`).FindString(page); m != "" {
		t.Errorf("the page refers to %s", m)
	}
	if !strings.Contains(page, contentHash(pageJS)) || !strings.Contains(page, contentHash(pageCSS)) ||
		!strings.Contains(page, "default-src 'none'") {
		t.Error("the policy does not name the page's own script and style")
	}
	if !strings.Contains(page, `{"n":3,"text":"\u003c/script\u003e\u003cb\u003ethree","here":true}`) {
		t.Error("the line of source is not there")
	}
}

// A place is looked up only below the given folders, and only if its file name occurs there once.
func TestSourceTree(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a/k.cu", "b/k.cu", "a/only.cu", ".git/hidden.cu"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("1\n2\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree := newSourceTree([]string{dir, filepath.Join(dir, "absent")})
	for name, want := range map[string]string{
		"k.cu": "", "a/k.cu": "a/k.cu", "only.cu": "a/only.cu", "/build/elsewhere/only.cu": "a/only.cu",
		filepath.Join(dir, "b/k.cu"): "b/k.cu", "hidden.cu": "", "/etc/passwd": "",
	} {
		if want != "" {
			want = filepath.Join(dir, want)
		}
		if got := tree.find(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, f := range []Frame{{File: "only.cu", Line: 9}, {File: "only.cu"}, {Line: 1}} {
		if got := tree.around(f); got != nil {
			t.Errorf("%+v has lines %v", f, got)
		}
	}
	if got := tree.around(Frame{File: "only.cu", Line: 1}); len(got) != 3 || !got[0].Here || got[1].Text != "2" {
		t.Errorf("%v", got)
	}
}
