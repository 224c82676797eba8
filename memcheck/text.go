package memcheck

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tenon.dev/internal/terminal"
)

// shownMost bounds the findings and the tests that the summary lists.
const shownMost = 20

// Text returns the summary for readers: what was run, the counts, the findings with their places, and the first of the tests with each
// outcome other than success. A test that ran under several tools counts once, by its worst outcome; then each tool has its own counts.
func (res *Results) Text() string {
	var b bytes.Buffer
	s := &res.Summary
	if tools := res.tools(); len(tools) > 1 {
		tests := res.byWorst()
		fmt.Fprintf(&b, "%s: %s under %d tools in %s: %s", res.Title(), count(tests.Ran(), "test"), len(tools), spanOf(s.Seconds),
			tests.outcomes())
		if n := s.Planned - s.Ran(); n > 0 {
			fmt.Fprintf(&b, ", %d of %d runs missing", n, s.Planned)
		}
		for _, tool := range tools {
			fmt.Fprintf(&b, "\n  %-14s %s", terminal.Line(string(tool), maxName), res.under(tool).counts())
		}
	} else {
		fmt.Fprintf(&b, "%s: %s in %s: %s", res.Title(), count(s.Ran(), "test"), spanOf(s.Seconds), s.counts())
	}
	b.WriteString("\n")
	for _, m := range s.Missing {
		fmt.Fprintf(&b, "missing: %s\n", terminal.Line(m, maxMessage))
	}
	if n := len(res.findings); n > 0 {
		fmt.Fprintf(&b, "\n%s:\n", count(n, "finding"))
	}
	for i, f := range res.ranked() {
		if i == shownMost {
			fmt.Fprintf(&b, "  and %d more\n", len(res.findings)-shownMost)
			break
		}
		fmt.Fprintf(&b, "  %-14s %s (%s, %s)\n", terminal.Line(string(f.Class), maxName), f.sentence(), count(len(f.tests), "test"),
			count(f.count, "report"))
	}
	res.writeBad(&b)
	return b.String()
}

// outcomes returns the counts of the outcomes in words: "3 passed, 1 failed".
func (s *Summary) outcomes() string {
	return s.words([]part{{s.Failed, "failed"}, {s.Timeouts, "timed out"}, {s.Ignored, "ignored"}})
}

// counts returns all counts in words.
func (s *Summary) counts() string {
	text := s.words([]part{{s.Failed, "failed"}, {s.Timeouts, "timed out"}, {s.Ignored, "ignored"},
		{s.Skipped, "of the passed skipped themselves"}, {s.Unverified, "of the passed without a report of the checker"},
		{s.Planned - s.Ran(), "not run"}})
	if s.Kernels > 0 {
		text += fmt.Sprintf("; %s checked", count(s.Kernels, "kernel"))
	}
	return text
}

// part is a number and what it counts.
type part struct {
	n    int
	what string
}

func (s *Summary) words(parts []part) string {
	text := fmt.Sprintf("%d passed", s.Succeeded)
	for _, p := range parts {
		if p.n > 0 {
			text += fmt.Sprintf(", %d %s", p.n, p.what)
		}
	}
	return text
}

// tools returns the tools of the tests, in the order of the headers.
func (res *Results) tools() (tools []Tool) {
	ran := map[Tool]bool{}
	for _, t := range res.tests {
		ran[t.Tool] = true
	}
	add := func(tool Tool) {
		if ran[tool] {
			tools = append(tools, tool)
			delete(ran, tool)
		}
	}
	for _, h := range res.Headers {
		for _, tool := range h.Tools {
			add(tool)
		}
	}
	for _, t := range res.tests { // a journal from elsewhere may have tools that its header lacks
		add(t.Tool)
	}
	return tools
}

// byWorst counts each test once, by its worst outcome under any tool.
func (res *Results) byWorst() *Summary {
	worst := map[testID]*Record{}
	for _, t := range res.tests {
		id := res.id(t)
		if w := worst[id]; w == nil || rank[t.Outcome] > rank[w.Outcome] {
			worst[id] = t.Record
		}
	}
	s := &Summary{}
	for _, r := range worst {
		s.add(r)
	}
	return s
}

// testID names a test, whatever tool it ran under.
type testID struct{ target, test string }

func (res *Results) id(t *result) testID { return testID{res.Headers[t.header].Target, t.Test} }

// under counts the tests that ran under a tool.
func (res *Results) under(tool Tool) *Summary {
	s := &Summary{}
	for _, t := range res.tests {
		if t.Tool == tool {
			s.add(t.Record)
		}
	}
	s.Planned = s.Ran()
	return s
}

// writeBad lists the first tests that did not pass. A test that ended alike under several tools is listed once, with their names. If it
// failed without a finding under some and with one under another, that finding is the likely reason of all, and only its tool is listed.
func (res *Results) writeBad(b *bytes.Buffer) {
	type ending struct {
		testID
		outcome Outcome
		reason  string
	}
	tools, explained := map[ending][]Tool{}, map[testID]bool{}
	alone := func(t *result) bool { return t.Outcome == Fail && strings.HasPrefix(t.Reason, byItself) }
	for _, t := range res.tests {
		explained[res.id(t)] = explained[res.id(t)] || t.Outcome == Fail && !alone(t)
	}
	var list []ending
	for _, t := range res.tests {
		if t.Outcome != Fail && t.Outcome != Timeout || alone(t) && explained[res.id(t)] {
			continue
		}
		e := ending{res.id(t), t.Outcome, t.Reason}
		if tools[e] == nil {
			list = append(list, e)
		}
		tools[e] = append(tools[e], t.Tool)
	}
	if len(list) > 0 {
		b.WriteString("\ndid not pass:\n")
	}
	order := res.tools()
	for i, e := range list {
		if i == shownMost {
			fmt.Fprintf(b, "  and %d more\n", len(list)-shownMost)
			break
		}
		name := terminal.Line(e.test, maxName)
		if len(order) > 1 {
			var under []string
			for _, tool := range order {
				if slices.Contains(tools[e], tool) {
					under = append(under, terminal.Line(string(tool), maxName))
				}
			}
			name += " [" + strings.Join(under, ", ") + "]"
		}
		fmt.Fprintf(b, "  %-8s %s: %s\n", e.outcome, name, terminal.Line(e.reason, maxMessage))
	}
}

// ranked returns the findings with the most important first: errors, then leaks and failed calls, which often only follow from a failed
// kernel, then warnings, then those of libraries; among equals, those of more tests first.
func (res *Results) ranked() []*found {
	weight := func(f *found) int {
		switch {
		case f.Library != "":
			return 3
		case f.Severity != SeverityError:
			return 2
		case f.Class == APIError || f.Class == Leak:
			return 1
		}
		return 0
	}
	list := slices.Clone(res.findings)
	slices.SortStableFunc(list, func(a, b *found) int {
		return cmp.Or(cmp.Compare(weight(a), weight(b)), cmp.Compare(len(b.tests), len(a.tests)))
	})
	return list
}

// sentence returns the message and the place, escaped for use within a line.
func (f *Finding) sentence() string {
	return terminal.Line(f.Message, maxMessage) + terminal.Line(f.where(), maxMessage)
}

// where returns the place of a finding for use within a sentence.
func (f *Finding) where() string {
	switch {
	case len(f.Device) > 0 && f.Kernel != "":
		return " in " + f.Kernel + " at " + f.Device[0].Place()
	case f.Kernel != "":
		return " in " + f.Kernel
	case f.Site() != nil:
		return " at " + f.Site().Place()
	}
	return ""
}
