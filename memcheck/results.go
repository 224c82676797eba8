package memcheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tenon.dev/internal/terminal"
)

// JournalName is the name of the journal's file in a run's folder.
const JournalName = "result.jsonl"

// Results is the joined result of one or more runs: what reports show.
type Results struct {
	// Headers are the headers of the journals.
	Headers []*Header
	// Summary has the counts over all of them.
	Summary Summary
	tests   []*result
	// findings are distinct by key, in the order of first appearance.
	findings []*found
	byKey    map[string]int
	byName   map[string]int
	// byTest gives the position of a finding in a test's list, by the indices of both.
	byTest map[[2]int]int
	// kept is the number of bytes of output held for tests.
	kept int
}

// result is one test of the results. The report of its record is merged into findings.
type result struct {
	*Record
	header   int
	findings []hits
}

// hits is how often a finding was reported in a test.
type hits struct{ finding, count int }

// found is one distinct finding over all tests.
type found struct {
	*Finding
	tests []int
	count int
}

// Bounds on what reports hold, whatever the journals contain.
const (
	maxKept     = 8 << 20 // bytes of output
	maxDistinct = 5000    // findings
)

// How much of a name and of a message reports for readers show, in characters, and of the texts of one test's findings, in bytes.
const (
	maxName    = 200
	maxMessage = 400
	maxText    = 16 << 10
)

// ReadResults reads journals, or folders that hold one. If several journals hold a test under the same target and tool, the worst outcome
// counts, so that a repetition hides nothing.
func ReadResults(names ...string) (*Results, error) {
	res := newResults()
	for _, name := range names {
		if err := res.read(name); err != nil {
			return nil, err
		}
	}
	res.count()
	return res, nil
}

func newResults() *Results {
	return &Results{byKey: map[string]int{}, byName: map[string]int{}, byTest: map[[2]int]int{}}
}

func (res *Results) read(name string) error {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		name = filepath.Join(name, JournalName)
	}
	f, err := os.Open(name)
	if err != nil {
		return unopened(err)
	}
	defer f.Close()
	if err := res.join(f); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// join adds a journal.
func (res *Results) join(in io.Reader) error {
	index, ran := len(res.Headers), 0
	var head *Header
	_, s, _, err := readJournal(in, func(h *Header) error {
		head = h
		res.Headers = append(res.Headers, h)
		return nil
	}, func(r *Record) error {
		ran++
		if head.Shard.Split > 1 {
			r.Shard = head.Shard.Rank
		}
		res.add(index, r)
		return nil
	})
	if err != nil {
		return err
	}
	if s == nil {
		s = &Summary{Interrupted: true}
	}
	sum := &res.Summary
	sum.Seconds = max(sum.Seconds, s.Seconds)
	sum.Interrupted = sum.Interrupted || s.Interrupted
	if sum.Stopped == "" {
		sum.Stopped = s.Stopped
	}
	sum.Missing = append(sum.Missing, s.Missing...)
	if ran < head.Jobs {
		what := "tests did not run"
		if len(head.Tools) > 1 {
			what = "runs of tests did not happen"
		}
		sum.Missing = append(sum.Missing, fmt.Sprintf("%s of %s: %d of %d %s", shardName(head.Shard), head.Target, head.Jobs-ran, head.Jobs,
			what))
	}
	sum.Planned += head.Jobs
	return nil
}

func shardName(s Shard) string {
	if s.Split <= 1 {
		return "the run"
	}
	return fmt.Sprintf("shard %d of %d", s.Rank, s.Split)
}

// add adds one record.
func (res *Results) add(header int, r *Record) {
	key := res.Headers[header].Target + "\x1f" + jobKey(r.Test, r.Tool)
	t := &result{Record: r, header: header}
	at, again := res.byName[key]
	switch {
	case !again:
		at = len(res.tests)
		res.byName[key] = at
		res.tests = append(res.tests, t)
	case rank[r.Outcome] > rank[res.tests[at].Outcome]:
		t.findings = res.tests[at].findings
		res.tests[at] = t
	default:
		t = res.tests[at]
	}
	if n := len(r.Stdout) + len(r.Stderr); res.kept+n > maxKept {
		r.Stdout, r.Stderr = "", ""
	} else {
		res.kept += n
	}
	if r.Report != nil {
		for _, f := range r.Report.Findings {
			res.addFinding(at, t, f)
		}
		r.Report = &Report{Checker: r.Report.Checker, Errors: r.Report.Errors, Warnings: r.Report.Warnings, Groups: r.Report.Groups,
			Unprinted: r.Report.Unprinted, Kernels: r.Report.Kernels}
	}
}

// addFinding adds a finding to the test with index at.
func (res *Results) addFinding(at int, t *result, f *Finding) {
	key := f.Key()
	i, ok := res.byKey[key]
	if !ok {
		if len(res.findings) == maxDistinct {
			return
		}
		i = len(res.findings)
		res.byKey[key] = i
		res.findings = append(res.findings, &found{Finding: f})
	}
	g := res.findings[i]
	g.count += f.Count
	h, again := res.byTest[[2]int{at, i}]
	if again {
		t.findings[h].count += f.Count
		return
	}
	res.byTest[[2]int{at, i}] = len(t.findings)
	t.findings = append(t.findings, hits{i, f.Count})
	g.tests = append(g.tests, at)
}

// count sets the summary, and names the missing shards.
func (res *Results) count() {
	sum := &res.Summary
	for _, t := range res.tests {
		sum.add(t.Record)
	}
	for _, f := range res.findings {
		if f.Library == "" && f.Severity == SeverityError {
			sum.Findings++
		}
	}
	if sum.Ran() > sum.Planned || len(res.Headers) > 1 && len(sum.Missing) == 0 {
		sum.Planned = sum.Ran()
	}
	if len(res.Headers) > 1 { // a shard's own report is not to blame for the others
		sum.Missing = append(sum.Missing, res.missingShards()...)
	}
}

// missingShards names, for each sharded run, the shards that no journal belongs to.
func (res *Results) missingShards() (missing []string) {
	type run struct {
		name  string
		split int
	}
	ranks := map[run][]int{}
	var order []run
	for _, h := range res.Headers {
		if h.Shard.Split <= 1 {
			continue
		}
		k := run{fmt.Sprintf("%d shards of %s under %s %v", h.Shard.Split, h.Target, h.Checker, h.Tools), h.Shard.Split}
		if ranks[k] == nil {
			order = append(order, k)
		}
		ranks[k] = append(ranks[k], h.Shard.Rank)
	}
	for _, k := range order {
		if lost := gaps(ranks[k], k.split); lost != "" {
			missing = append(missing, fmt.Sprintf("of %s, rank %s", k.name, lost))
		}
	}
	return missing
}

// gaps names the numbers below n that are missing from there: "0, 2, 5 to 9". Its length depends on the length of there, not on n.
func gaps(there []int, n int) string {
	slices.Sort(there)
	var lost []string
	next := 0
	for _, r := range append(there, n) {
		switch r - next {
		case 1:
			lost = append(lost, fmt.Sprint(next))
		case 2:
			lost = append(lost, fmt.Sprint(next), fmt.Sprint(next+1))
		default:
			if r > next {
				lost = append(lost, fmt.Sprintf("%d to %d", next, r-1))
			}
		}
		next = max(next, r+1)
	}
	return strings.Join(lost, ", ")
}

// Title names what was run.
func (res *Results) Title() string {
	var targets []string
	for _, h := range res.Headers {
		if !slices.Contains(targets, terminal.Line(h.Target, maxName)) {
			targets = append(targets, terminal.Line(h.Target, maxName))
		}
	}
	if len(targets) > 3 {
		targets = append(targets[:3], fmt.Sprintf("and %d more", len(targets)-3))
	}
	return strings.Join(targets, ", ")
}

// name returns a test's name as shown within a line, with its tool if tools is set, in at most that many characters; 0: no limit.
func (r *Record) name(tools bool, most int) string {
	name := terminal.Line(r.Test, most)
	if tools {
		name += " [" + terminal.Line(string(r.Tool), maxName) + "]"
	}
	return name
}

// severalTools reports whether names of tests must include their tool.
func (res *Results) severalTools() bool {
	for _, t := range res.tests {
		if t.Tool != res.tests[0].Tool {
			return true
		}
	}
	return false
}

// WriteLog writes the log of joined results, in the form of Log. For a failed test it has only the ends of its output, like journals.
func (res *Results) WriteLog(w io.Writer) error {
	tools := res.severalTools()
	for _, t := range res.tests {
		text := fmt.Sprintf("%s: %s\n", words[t.Outcome], t.name(tools, 0))
		if t.Outcome == Fail {
			text += t.Stdout + "\n" + t.Stderr + "\n"
		}
		if _, err := io.WriteString(w, text); err != nil {
			return fmt.Errorf("cannot write the log: %w", err)
		}
	}
	return nil
}

// JoinJournals writes one journal that joins all: the header of the first, which counts all jobs, every test, and the summary of the
// results.
func (res *Results) JoinJournals(w io.Writer, names ...string) error {
	h := *res.Headers[0]
	h.Shard, h.Jobs, h.Target, h.Digest = Shard{Split: 1}, res.Summary.Planned, res.Title(), ""
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	if err := lines.Encode(h); err != nil {
		return fmt.Errorf("cannot write the journal: %w", err)
	}
	for i, name := range names {
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			name = filepath.Join(name, JournalName)
		}
		text, err := os.Open(name)
		if err != nil {
			return unopened(err)
		}
		_, _, _, err = ReadJournal(text, func(r *Record) error {
			if sh := res.Headers[i].Shard; sh.Split > 1 {
				r.Shard = sh.Rank
			}
			return lines.Encode(r)
		})
		if err = errors.Join(err, text.Close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return lines.Encode(ending{Type: "end", Summary: &res.Summary})
}

// FailedAlone counts the tests that failed although the checker watched their use of the GPU and found nothing.
func (res *Results) FailedAlone() (n int) {
	for _, t := range res.tests {
		if t.Outcome == Fail && t.Verified && strings.HasPrefix(t.Reason, byItself) {
			n++
		}
	}
	return n
}
