package memcheck

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
)

// The elements of JUnit's XML, in the form that CI systems read.
type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Errors   int          `xml:"errors,attr"`
	Time     string       `xml:"time,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name      string      `xml:"name,attr"`
	Tests     int         `xml:"tests,attr"`
	Failures  int         `xml:"failures,attr"`
	Errors    int         `xml:"errors,attr"`
	Skipped   int         `xml:"skipped,attr"`
	Time      string      `xml:"time,attr"`
	Timestamp string      `xml:"timestamp,attr,omitempty"`
	Hostname  string      `xml:"hostname,attr,omitempty"`
	Cases     []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string       `xml:"classname,attr"`
	Name    string       `xml:"name,attr"`
	Time    string       `xml:"time,attr"`
	Failure *junitResult `xml:"failure"`
	Error   *junitResult `xml:"error"`
	Skipped *junitResult `xml:"skipped"`
	Out     string       `xml:"system-out,omitempty"`
	Err     string       `xml:"system-err,omitempty"`
}

type junitResult struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes the results as JUnit's XML: a suite for every journal, a failure for a failed test, an error for a timeout, and skipped
// for tests that skipped themselves or were ignored. A timeout is skipped too where the run said that it is no failure.
func (res *Results) WriteJUnit(w io.Writer) error {
	all := junitSuites{Time: seconds(res.Summary.Seconds), Suites: make([]junitSuite, len(res.Headers))}
	tools := res.severalTools()
	took := make([]float64, len(res.Headers))
	for i, h := range res.Headers {
		name := h.Target
		if h.Shard.Split > 1 {
			name += ", " + shardName(h.Shard)
		}
		all.Suites[i] = junitSuite{Name: name, Timestamp: h.Began.UTC().Format(time.RFC3339), Hostname: h.Host}
	}
	for _, t := range res.tests {
		s := &all.Suites[t.header]
		c := res.junitCase(t, tools)
		s.Tests++
		took[t.header] += t.Seconds
		switch {
		case c.Failure != nil:
			s.Failures++
		case c.Error != nil:
			s.Errors++
		case c.Skipped != nil:
			s.Skipped++
		}
		s.Cases = append(s.Cases, c)
	}
	for i := range all.Suites {
		s := &all.Suites[i]
		s.Time = seconds(took[i])
		all.Tests, all.Failures, all.Errors = all.Tests+s.Tests, all.Failures+s.Failures, all.Errors+s.Errors
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return fmt.Errorf("cannot write the JUnit report: %w", err)
	}
	e := xml.NewEncoder(w)
	e.Indent("", "\t")
	if err := e.Encode(all); err != nil {
		return fmt.Errorf("cannot write the JUnit report: %w", err)
	}
	return nil
}

// junitCase is one test.
func (res *Results) junitCase(t *result, tools bool) junitCase {
	c := junitCase{Class: res.Headers[t.header].Target, Name: t.Test, Time: seconds(t.Seconds), Out: t.Stdout, Err: t.Stderr}
	if i := strings.LastIndexByte(t.Test, '.'); i > 0 && !strings.Contains(t.Test[i:], "/") {
		c.Class, c.Name = t.Test[:i], t.Test[i+1:]
	}
	if tools {
		c.Name += " [" + string(t.Tool) + "]"
	}
	switch {
	case t.Outcome == Fail:
		kind := "failed"
		if len(t.findings) > 0 {
			kind = string(res.findings[t.findings[0].finding].Class)
		}
		c.Failure = &junitResult{t.Reason, kind, res.findingsText(t)}
	case t.Outcome == Timeout && !res.Headers[t.header].NoHang:
		c.Error = &junitResult{t.Reason, "timeout", res.findingsText(t)}
	case t.Outcome != Success:
		c.Skipped = &junitResult{Message: t.Reason}
	case t.Skipped:
		c.Skipped = &junitResult{Message: "the test skipped itself"}
	}
	return c
}

// findingsText lists a test's findings with their places and stacks.
func (res *Results) findingsText(t *result) string {
	var b strings.Builder
	for _, h := range t.findings {
		f := res.findings[h.finding]
		fmt.Fprintf(&b, "%s: %s%s, %s\n", f.Class, f.Message, f.where(), count(h.count, "report"))
		for _, d := range f.Details {
			fmt.Fprintf(&b, "    %s\n", d)
		}
		for _, s := range f.Stack {
			fmt.Fprintf(&b, "        %s\n", s.Text)
		}
	}
	return b.String()
}

func seconds(s float64) string { return fmt.Sprintf("%.3f", s) }
