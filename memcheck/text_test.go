package memcheck

import (
	"strings"
	"testing"
)

// underTools returns the records of five tests that ran under two tools.
func underTools() (records []*Record) {
	under := func(tool Tool, r *Record) *Record {
		r.Tool = tool
		return r
	}
	for _, tool := range []Tool{Memcheck, Racecheck} {
		for _, name := range []string{"T.good", "T.hangs", "T.skips"} {
			records = append(records, under(tool, record(name, Success)))
		}
	}
	records[1].Outcome, records[1].Reason = Timeout, "still running after 1s"
	records[5].Skipped = true
	f := finding("k", "Invalid write")
	f.Tool = Memcheck
	records = append(records, under(Memcheck, record("T.past", Fail, f)), under(Racecheck, record("T.past", Fail)),
		under(Racecheck, record("T.past2", Fail)), under(Memcheck, record("T.past2", Fail)))
	for _, r := range records {
		if r.Outcome == Fail && len(r.Report.Findings) == 0 {
			r.Reason = byItself + "exit status 1"
		}
		r.Report.Kernels = 3
	}
	return records
}

// TestTextUnderSeveralTools: the summary counts a test once, by its worst outcome, and then for each tool.
func TestTextUnderSeveralTools(t *testing.T) {
	h := Header{Target: "t.test", Tools: []Tool{Memcheck, Racecheck}, Shard: Shard{Split: 1}, Jobs: 12}
	res, err := ReadResults(journal(t, "a.jsonl", h, false, underTools()...))
	if err != nil {
		t.Fatal(err)
	}
	text := res.Text()
	for _, want := range []string{
		"t.test: 5 tests under 2 tools in 7.0s: 2 passed, 2 failed, 1 timed out, 2 of 12 runs missing\n" +
			"  memcheck       2 passed, 2 failed, 1 timed out; 15 kernels checked\n" +
			"  racecheck      3 passed, 2 failed, 1 of the passed skipped themselves; 15 kernels checked\n" +
			"missing: the run of t.test: 2 of 12 runs of tests did not happen\n",
		"(1 test, ",
		"did not pass:\n" +
			"  timeout  T.hangs [memcheck]: still running after 1s\n" +
			"  fail     T.past [memcheck]: because of fail\n" +
			"  fail     T.past2 [memcheck, racecheck]: the checker found nothing, but the test failed by itself: exit status 1\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nlacks\n%s", text, want)
		}
	}
}
