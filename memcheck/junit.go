package memcheck

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"tenon.dev/internal/terminal"
)

// The elements of JUnit's XML, in the format that CI systems read.
type junitSuites struct {
	Tests, Failures, Errors int
	Time                    string
}

type junitSuite struct {
	Name                             string
	Tests, Failures, Errors, Skipped int
	Time, Timestamp, Hostname        string

	took float64
}

func attribute(name string, value any) xml.Attr {
	return xml.Attr{Name: xml.Name{Local: name}, Value: terminal.Line(fmt.Sprint(value), 0)}
}

func (s junitSuites) attributes() []xml.Attr {
	return []xml.Attr{attribute("tests", s.Tests), attribute("failures", s.Failures), attribute("errors", s.Errors),
		attribute("time", s.Time)}
}

func (s junitSuite) attributes() []xml.Attr {
	return []xml.Attr{attribute("name", s.Name), attribute("tests", s.Tests), attribute("failures", s.Failures),
		attribute("errors", s.Errors),
		attribute("skipped", s.Skipped), attribute("time", s.Time), attribute("timestamp", s.Timestamp), attribute("hostname", s.Hostname)}
}

// count adds one test.
func (s *junitSuite) count(t *result, noHang bool) {
	s.Tests++
	s.took += t.Seconds
	switch {
	case t.Outcome == Fail:
		s.Failures++
	case t.Outcome == Timeout && !noHang:
		s.Errors++
	case t.Outcome != Success || t.Skipped:
		s.Skipped++
	}
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

// WriteJUnit writes the results as JUnit XML: a suite for every journal, a failure for a failed test, an error for a timeout, and skipped
// for tests that skipped themselves or were ignored. A timeout is also skipped if the run did not count timeouts as failures.
func (res *Results) WriteJUnit(w io.Writer) error {
	all := junitSuites{Time: seconds(res.Summary.Seconds)}
	suites := make([]junitSuite, len(res.Headers))
	tests := make([][]*result, len(suites))
	for i, h := range res.Headers {
		name := terminal.Line(h.Target, maxName)
		if h.Shard.Split > 1 {
			name += ", " + shardName(h.Shard)
		}
		suites[i] = junitSuite{Name: name, Timestamp: h.Began.UTC().Format(time.RFC3339), Hostname: h.Host}
	}
	for _, t := range res.tests {
		tests[t.header] = append(tests[t.header], t)
		suites[t.header].count(t, res.Headers[t.header].NoHang)
	}
	for i := range suites {
		s := &suites[i]
		s.Time = seconds(s.took)
		all.Tests, all.Failures, all.Errors = all.Tests+s.Tests, all.Failures+s.Failures, all.Errors+s.Errors
	}
	// The cases are written one by one, since together they may be large.
	e := xml.NewEncoder(w)
	e.Indent("", "\t")
	tools := res.severalTools()
	err := e.EncodeToken(xml.ProcInst{Target: "xml", Inst: []byte(`version="1.0" encoding="UTF-8"`)})
	err = errors.Join(err, within(e, "testsuites", all, func() (err error) {
		for i := range suites {
			err = errors.Join(err, within(e, "testsuite", suites[i], func() (err error) {
				for _, t := range tests[i] {
					err = errors.Join(err, e.EncodeElement(res.junitCase(t, tools), xml.StartElement{Name: xml.Name{Local: "testcase"}}))
				}
				return err
			}))
		}
		return err
	}), e.Close())
	if err != nil {
		return fmt.Errorf("cannot write the JUnit report: %w", err)
	}
	return nil
}

// within writes an element with the attributes of a and the contents that fill writes.
func within(e *xml.Encoder, name string, a interface{ attributes() []xml.Attr }, fill func() error) error {
	start := xml.StartElement{Name: xml.Name{Local: name}, Attr: a.attributes()}
	return errors.Join(e.EncodeToken(start), fill(), e.EncodeToken(start.End()))
}

// junitCase returns one test.
func (res *Results) junitCase(t *result, tools bool) junitCase {
	c := junitCase{Class: terminal.Line(res.Headers[t.header].Target, maxName), Name: t.name(tools, 0), Time: seconds(t.Seconds),
		Out: terminal.Lines(t.Stdout), Err: terminal.Lines(t.Stderr)}
	if i := strings.LastIndexByte(t.Test, '.'); i > 0 && !strings.Contains(t.Test[i:], "/") {
		class := terminal.Line(t.Test[:i], 0)
		c.Class, c.Name = class, c.Name[len(class)+1:]
	}
	reason := terminal.Line(t.Reason, maxMessage)
	switch {
	case t.Outcome == Fail:
		kind := "failed"
		if len(t.findings) > 0 {
			kind = terminal.Line(string(res.findings[t.findings[0].finding].Class), maxName)
		}
		c.Failure = &junitResult{reason, kind, res.findingsText(t)}
	case t.Outcome == Timeout && !res.Headers[t.header].NoHang:
		c.Error = &junitResult{reason, "timeout", res.findingsText(t)}
	case t.Outcome != Success:
		c.Skipped = &junitResult{Message: reason}
	case t.Skipped:
		c.Skipped = &junitResult{Message: "the test skipped itself"}
	}
	return c
}

// findingsText lists a test's findings with their places and stacks. It is bounded, since it is repeated for every test with the finding.
func (res *Results) findingsText(t *result) string {
	var b strings.Builder
	for i, h := range t.findings {
		f := res.findings[h.finding]
		if b.Len() > maxText {
			fmt.Fprintf(&b, "and %s more\n", count(len(t.findings)-i, "finding"))
			break
		}
		fmt.Fprintf(&b, "%s: %s, %s\n", terminal.Line(string(f.Class), maxName), f.sentence(), count(h.count, "report"))
		for _, d := range f.Details {
			if b.Len() <= maxText {
				fmt.Fprintf(&b, "    %s\n", terminal.Line(d, maxMessage))
			}
		}
		for _, s := range f.Stack {
			if b.Len() <= maxText {
				fmt.Fprintf(&b, "        %s\n", terminal.Line(s.Text, maxMessage))
			}
		}
	}
	return b.String()
}

func seconds(s float64) string { return fmt.Sprintf("%.3f", s) }
