package memcheck

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tenon.dev/internal/cost"
	"tenon.dev/internal/terminal"
)

// The start of a journal from elsewhere, and a test in it with additional fields.
const strangeHead = `{"type":"run","format":1,"target":"t","checker":"TENON-CHECK","tools":["memcheck"],"shard":{"split":1,"rank":0},"jobs":1,"limit_seconds":1,"gpus":[""]}` + "\n"

func strangeTest(with string) string {
	return `{"type":"test","test":"a","tool":"memcheck","outcome":"fail","start":"2026-01-01T00:00:00Z"` + with + "}\n"
}

// strange writes a journal and returns its path.
func strange(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), JournalName)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Values that no run writes are an error with the file and the line, for every reader of the journal.
func TestStrangeJournals(t *testing.T) {
	head := func(with string) string {
		return strings.Replace(strangeHead, `"jobs":1,"limit_seconds":1`, with, 1) + strangeTest("")
	}
	report := func(with string) string {
		return strangeHead + strangeTest(`,"report":{"errors":1,"groups":1,"findings":[`+with+`]}`)
	}
	for text, want := range map[string]string{
		head(`"jobs":4611686018427387904`):                                 "line 1 of the journal: jobs is 4611686018427387904",
		head(`"jobs":-1`):                                                  "line 1 of the journal: jobs is -1",
		head(`"shard":{"split":1099511627776,"rank":0}`):                   "line 1 of the journal: the shard's split is 1099511627776",
		head(`"shard":{"split":-5,"rank":0}`):                              "line 1 of the journal: the shard's split is -5",
		head(`"shard":{"split":5,"rank":5}`):                               "line 1 of the journal: the shard's rank is 5",
		head(`"shard":{"split":5,"rank":-7}`):                              "line 1 of the journal: the shard's rank is -7",
		head(`"tools":[null]`):                                             "line 1 of the journal: a list has a null",
		head(`"limit_seconds":1e300`):                                      "line 1 of the journal: limit_seconds is 1e+300",
		strangeHead + strangeTest(`,"worker":9223372036854775807`):         "line 2 of the journal: worker is 9223372036854775807",
		strangeHead + strangeTest(`,"worker":-9`):                          "line 2 of the journal: worker is -9",
		strangeHead + strangeTest(`,"seconds":-1e308`):                     "line 2 of the journal: seconds is -1e+308",
		strangeHead + strangeTest(`,"cpu_seconds":1e308`):                  "line 2 of the journal: cpu_seconds is 1e+308",
		strangeHead + strangeTest(`,"memory_bytes":-1`):                    "line 2 of the journal: memory_bytes is -1",
		strangeHead + strangeTest(`,"printed_bytes":-1`):                   "line 2 of the journal: printed_bytes is -1",
		strangeHead + strangeTest(`,"rank":-1`):                            "line 2 of the journal: rank is -1",
		strangeHead + strangeTest(`,"outcome":"splendid"`):                 `line 2 of the journal: the outcome is "splendid"`,
		strangeHead + strangeTest(`,"report":{"errors":-9}`):               "line 2 of the journal: errors is -9",
		strangeHead + strangeTest(`,"report":{"unprinted":9999999999999}`): "line 2 of the journal: unprinted is 9999999999999",
		report(`null`):                           "line 2 of the journal: a list has a null",
		report(`{}, null`):                       "line 2 of the journal: a list has a null",
		report(`{"device":[null]}`):              "line 2 of the journal: a list has a null",
		report(`{"thread":[-1,-1,-1]}`):          "line 2 of the journal: an index of a thread is -1",
		report(`{"count":-9223372036854775807}`): "line 2 of the journal: a finding's count is -9223372036854775807",
		report(`{"device":[{"line":-4}]}`):       "line 2 of the journal: a frame's line is -4",
		report(`{"allocation":{"freed":[{"line":9223372036854775807}]}}`): "line 2 of the journal: a frame's " +
			"line is 9223372036854775807",
		report(strings.Repeat(`{},`, MaxFindings) + `{}`): "line 2 of the journal: the number of " +
			"findings is 1001",
		strangeHead + strangeTest("") + `{"type":"end","summary":{"planned":-1}}` + "\n": "line 3 of the journal: planned is -1",
		strangeHead + strangeTest("") + `{"type":"end","summary":{"missing":["a",null]}}` +
			"\n": "line 3 of the journal: a list has a null",
	} {
		path := strange(t, text)
		_, err := ReadResults(path)
		if err == nil || !strings.HasPrefix(err.Error(), path+": "+want) {
			t.Errorf("%.300s\n%v\nwant %s: %s", text, err, path, want)
			continue
		}
		if _, _, _, err2 := ResumeJournal(path, Header{}, nil); err2 == nil || !strings.HasPrefix(err2.Error(), err.Error()) {
			t.Errorf("resumed: %v, want %v", err2, err)
		}
	}
	// Texts may contain null.
	for _, with := range []string{`,"reason":"[null,null]"`, `,"reason":"\",null"`, `,"report":null`,
		`,"stdout":"a\\","report":{"findings":[{"allocation":null,"details":["null"]}]}`} {
		if _, err := ReadResults(strange(t, strangeHead+strangeTest(with))); err != nil {
			t.Errorf("%s: %v", with, err)
		}
	}
}

// The missing shards are named briefly, however many there are.
func TestManyShardsMissing(t *testing.T) {
	piece := func(rank int) string {
		return strange(t, strings.Replace(strangeHead, `"split":1,"rank":0`, fmt.Sprintf(`"split":2000000000,"rank":%d`, rank), 1)+
			strangeTest(""))
	}
	res, err := ReadResults(piece(3), piece(5), piece(1_000_000))
	if err != nil {
		t.Fatal(err)
	}
	want := "of 2000000000 shards of t under TENON-CHECK [memcheck], rank 0 to 2, 4, 6 to 999999, 1000001 to 1999999999"
	if len(res.Summary.Missing) != 1 || res.Summary.Missing[0] != want {
		t.Errorf("%.300q, want %q", res.Summary.Missing, want)
	}
}

// A report with values beyond the bounds is one that cannot be understood, and what is kept of it can be read back from a journal.
func TestStrangeReports(t *testing.T) {
	const head = `{"checker":"TENON-CHECK","pid":1}` + "\n"
	for text, want := range map[string]string{
		head + `{"finding":{"count":-1}}`:      "line 2 of the checker's log: a finding's count is -1",
		head + `{"finding":{"device":[null]}}`: "line 2 of the checker's log: a list has a null",
		head +
			`{"finding":{"stack":[{"line":99999999999}]}}`: "line 2 of the checker's log: a frame's line is 99999999999",
		head +
			`{"finding":{"thread":[0,0,-1]}}`: "line 2 of the checker's log: an index of a thread is -1",
		head + `{"alloc":{"id":1,"address":"0x1","stack":[{"line":-1}]}}`:           "line 2 of the checker's log: a frame's line is -1",
		"========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 9999999999 errors\n": "Number of errors does not match",
		"========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 2147483647 hazards displayed (0 errors, 0 warnings)\n" +
			"========= ERROR SUMMARY: 0 errors\n": "Number of errors does not match",
		"========= COMPUTE-SANITIZER\n" + strings.Repeat("========= ERROR SUMMARY: 2147483647 errors were not printed\n========= ERROR "+
			"SUMMARY: 2147483647 errors\n", 3): "Number of errors does not match",
	} {
		rep, err := parse(Memcheck, text)
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, ErrCount) && !errors.Is(err, ErrNoSummary) {
			t.Errorf("%s\n%v, want %s", text, err, want)
		}
		if err := rep.check(); err != nil {
			t.Errorf("%s\nkeeps what no report has: %v", text, err)
		}
	}
	place := "========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 99999999999\n=========     at k+0x10 in " +
		"a.cu:99999999999\n" +
		"=========     by thread (99999999999,0,0) in block (0,0,0)\n========= \n========= ERROR SUMMARY: 1 error\n"
	if rep, err := parse(Memcheck, place); err != nil || len(rep.Findings) != 1 || rep.check() != nil {
		t.Errorf("%+v, %v", rep, err)
	}
}

// hostile contains cursor movements, text direction changes and markup.
const hostile = "x\x1b]0;t\a\x1b[2J\u009b31m\u202e\u2066</script><script>alert(1)</script>]]>\x00\ufffe\r\n0 failed"

// hostileJournal writes a journal in which every text is hostile.
func hostileJournal(t *testing.T) string {
	t.Helper()
	at := []Frame{{Function: hostile, File: hostile, Line: 3, Module: hostile, Text: hostile}}
	f := &Finding{Tool: Tool(hostile), Class: Class(hostile), Severity: SeverityError, Message: hostile, Details: []string{hostile},
		Kernel: hostile, Device: at, Other: at,
		Access: hostile, Space: hostile, Stack: at, Count: 1, Allocation: &Allocation{Relation: hostile, Stack: at, Freed: at}}
	library := *f
	library.Library, library.Kernel, library.Device = hostile, "", nil
	r, c := record(hostile, Fail, f, &library), record(hostile+".name", Timeout)
	r.Reason, r.Tool, r.GPU, r.Signal, r.Stdout, r.Stderr = hostile, Tool(hostile), hostile, hostile, hostile, hostile
	c.Reason = hostile
	return journal(t, JournalName, Header{Target: hostile, Checker: hostile, Tools: []Tool{Tool(hostile)}, Host: hostile,
		GPUs: []string{hostile}, Args: []string{hostile}}, false, r, c)
}

// No text of a journal controls a terminal or breaks a report.
func TestHostileTexts(t *testing.T) {
	res, err := ReadResults(hostileJournal(t))
	if err != nil {
		t.Fatal(err)
	}
	res.Summary.Missing = []string{hostile}
	var out, junit, page, log strings.Builder
	p := &Progress{Out: &out, Title: hostile, Total: 2}
	p.now = func() time.Time { return time.Unix(0, 0) }
	p.Start(nil)
	p.Begin(0, hostile, Job{Test: Test{Name: hostile}}, time.Unix(0, 0))
	p.draw()
	rows := strings.Join(p.rows(), "\n")
	p.Stop()
	if err := errors.Join(res.WriteJUnit(&junit), res.WriteHTML(&page), res.WriteLog(&log)); err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(log.String(), "\n") // the rest is what the test printed
	for name, text := range map[string]string{"text": res.Text(), "progress": out.String(), "rows": rows, "title": res.Title(),
		"log": first, "junit": junit.String()} {
		for _, r := range text {
			if !terminal.Shown(r) && r != '\n' && r != '\t' {
				t.Errorf("%s has %q: %q", name, r, text)
				break
			}
		}
	}
	if text := res.Text(); strings.Contains(text, "\n0 failed") ||
		!strings.Contains(text, `x\x1b]0;t\x07\x1b[2J\u009b31m\u202e\u2066</script>`) {
		t.Errorf("a text makes lines of its own, or is not there: %q", text)
	}
	if err := wellFormed(strings.NewReader(junit.String())); err != nil {
		t.Errorf("%v\n%s", err, junit.String())
	}
	if n := strings.Count(page.String(), "<script"); n != strings.Count(pageHTML, "<script") {
		t.Errorf("the page has %d scripts", n)
	}
}

// wellFormed parses XML to its end.
func wellFormed(in io.Reader) error {
	d := xml.NewDecoder(in)
	for {
		if _, err := d.Token(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// Long names are cut in reports for readers.
func TestLongTexts(t *testing.T) {
	long := strings.Repeat("long_", 100_000)
	f := &Finding{Class: OutOfBounds, Severity: SeverityError, Message: long, Kernel: long, Count: 1,
		Device: []Frame{{File: long, Line: 1}}}
	r := record(long, Fail, f)
	r.Reason = long
	res, err := ReadResults(journal(t, JournalName, Header{Target: long}, false, r))
	if err != nil {
		t.Fatal(err)
	}
	if text := res.Text(); len(text) > 4000 || !strings.Contains(text, "long_long_…") && !strings.Contains(text, "…") {
		t.Errorf("%d bytes: %.500s", len(text), text)
	}
}

// A finding that many tests share is written once in the page, and in part for each test in the XML.
func TestSharedFindingIsBounded(t *testing.T) {
	f := finding("k", "Invalid write")
	for range 2000 {
		f.Stack = append(f.Stack, Frame{Function: "f", Text: strings.Repeat("deep ", 20)})
	}
	small := finding("k", "Invalid write")
	records := []*Record{record("T.0", Fail, f)}
	for i := range 200 {
		records = append(records, record(fmt.Sprintf("T.%d", i+1), Fail, small))
	}
	res, err := ReadResults(journal(t, JournalName, Header{Target: "t"}, false, records...))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := res.WriteJUnit(&out); err != nil || out.Len() > 201*(maxText+2000) || len(res.findings) != 1 ||
		len(res.findings[0].tests) != 201 {
		t.Errorf("%d bytes, %d findings, %v", out.Len(), len(res.findings), err)
	}
}

// sized counts the bytes written.
type sized int

func (s *sized) Write(p []byte) (int, error) {
	*s += sized(len(p))
	return len(p), nil
}

// FuzzReadJournal checks that any file is read, joined and shown with memory, time and output proportional to its length, and that no text
// from it is shown unescaped.
func FuzzReadJournal(f *testing.F) {
	f.Add([]byte(strangeHead + `{"type":"test","test":"a","outcome":"fail","report":{"findings":[{"class":"race","address":"0x10"}]}}` +
		"\n{\"type\":\"end\"}\n"))
	f.Add([]byte(strings.Replace(strangeHead, `"split":1,"rank":0`, `"split":3000000,"rank":7`, 1) +
		strangeTest(`,"report":{"findings":[null]}`)))
	f.Add(
		[]byte(strangeHead +
			strangeTest(
				`,"stdout":"\u001b[2J]]>\u0000\ufffe","report":{"findings":[{"message":"\u202e","device":[{"file":".env","line":2}]}]}`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		var good int64
		var err error
		_, _, good, err = ReadJournal(bytes.NewReader(text), func(*Record) error { return nil })
		if err == nil && (good > int64(len(text)) || good > 0 && text[good-1] != '\n') {
			t.Fatalf("%d good bytes of %q", good, text)
		}
		var junit bytes.Buffer
		var shown string
		var page sized
		most := 4<<20 + 4000*len(text)
		cost.Within(t, most, func() {
			junit.Reset()
			shown, page = "", 0
			res := newResults()
			if err := res.join(bytes.NewReader(text)); err != nil {
				return
			}
			if res.join(bytes.NewReader(text)) != nil { // a second shard
				return
			}
			res.count()
			shown = res.Text()
			if err := errors.Join(res.WriteJUnit(&junit), res.WriteHTML(&page)); err != nil {
				t.Fatal(err)
			}
		})
		if int(page) > most || junit.Len() > most || len(shown) > 64<<10 {
			t.Fatalf("%d bytes are given %d of a page, %d of XML and %d of text", len(text), page, junit.Len(), len(shown))
		}
		for _, r := range shown {
			if !terminal.Shown(r) && r != '\n' {
				t.Fatalf("%q is shown in %q", r, shown)
			}
		}
		if err := wellFormed(&junit); err != nil {
			t.Fatal(err)
		}
	})
}
