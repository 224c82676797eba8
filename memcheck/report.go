package memcheck

import (
	"bufio"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"tenon.dev/internal/checklog"
)

// ReportError says why a report is incomplete. Scripts may match its text, so the text does not change.
type ReportError string

// Error returns the text.
func (e ReportError) Error() string { return string(e) }

// The ways in which a report may be incomplete.
const (
	// ErrCount: the summary's number is not a number, or differs from the number of errors before it.
	ErrCount ReportError = "Number of errors does not match"
	// ErrNoSummary: the output has no report, or an incomplete one.
	ErrNoSummary ReportError = "No error summary found"
)

// The names in the first line of reports.
const (
	CheckerSanitizer = "COMPUTE-SANITIZER"
	CheckerLegacy    = "CUDA-MEMCHECK"
	CheckerTenon     = checklog.Name // TENON-CHECK
)

const (
	mark = "========="
	// tenonMark begins a log of Tenon's own checker.
	tenonMark = `{"checker":`
	// lineLimit is the maximum number of bytes kept of a line, and groupLimit the maximum number of lines of a group.
	lineLimit  = 16 << 10
	groupLimit = 2000
)

// ParseOptions say how a report is read.
type ParseOptions struct {
	// Tool is recorded in the findings.
	Tool Tool
	// Libraries are the libraries that findings are attributed to.
	Libraries Libraries
}

// readers are buffers for reuse: clearing a new one takes longer than reading most reports.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 64<<10) }}

// ParseReport parses the output of a checker: of any tool of compute-sanitizer, of the old cuda-memcheck, or the log of Tenon's own
// checker. The checked program's output may be mixed in. Findings of one defect are merged, and memory use is bounded, however long the
// output. The error is or wraps ErrCount or ErrNoSummary, with a report of what could be parsed, or it is the reader's error.
func ParseReport(r io.Reader, opts ...ParseOptions) (*Report, error) {
	o, err := only("ParseReport", opts)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, errors.New("the report's reader is nil; give it one")
	}
	in := readers.Get().(*bufio.Reader)
	in.Reset(r)
	defer readers.Put(in)
	if first, err := in.Peek(len(tenonMark)); err == nil && string(first) == tenonMark {
		return parseTenon(in, o)
	}
	p := &parser{opts: o, rep: &Report{}, seen: map[string]*Finding{}}
	for !p.ended {
		line, err := readLine(in)
		if err == io.EOF {
			break
		}
		if err != nil {
			return p.rep, err
		}
		p.line(line)
	}
	if p.ended { // the rest is the program's; a pipe must still be drained
		if _, err := io.Copy(io.Discard, in); err != nil {
			return p.rep, err
		}
	}
	return p.rep, p.finish()
}

// readLine returns the next line without its newline, cut at lineLimit bytes.
func readLine(in *bufio.Reader) (string, error) {
	var b []byte
	for {
		part, err := in.ReadSlice('\n')
		if room := lineLimit - len(b); room > 0 {
			b = append(b, part[:min(room, len(part))]...)
		}
		switch {
		case err == nil || err == io.EOF && len(b) > 0:
			return strings.TrimRight(string(b), "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return "", err
		}
	}
}

// parser parses one output line by line.
type parser struct {
	opts ParseOptions
	rep  *Report
	seen map[string]*Finding
	// group holds the lines of the open group, without their mark.
	group  []string
	open   bool
	legacy bool
	// summed is set if there was a summary, bad if its number was invalid, ended if nothing more counts.
	summed, bad, ended bool
	// idle is set if a process ended before it called CUDA.
	idle bool
}

// line parses one line of output.
func (p *parser) line(s string) {
	if p.rep.Checker == "" {
		switch name := strings.TrimPrefix(s, mark+" "); {
		case len(name) == len(s):
		case name == CheckerSanitizer, name == CheckerLegacy:
			p.rep.Checker, p.legacy = name, name == CheckerLegacy
		}
		return
	}
	rest, ok := strings.CutPrefix(s, mark)
	if !ok || strings.HasPrefix(rest, "=") { // with more of them it is the program's own decoration
		return
	}
	rest = strings.TrimPrefix(rest, " ")
	switch {
	case rest == "":
		p.endGroup()
	case summaries.MatchString(rest):
		p.summary(rest)
	case p.open && (strings.HasPrefix(rest, " ") || p.legacy):
		if len(p.group) < groupLimit {
			p.group = append(p.group, rest)
		}
	default:
		p.endGroup()
		p.group, p.open = append(p.group[:0], rest), true
	}
}

var (
	summaries = regexp.MustCompile(`^(ERROR|RACECHECK|LEAK|UNUSED MEMORY) SUMMARY: `)
	errorSum  = regexp.MustCompile(`^ERROR SUMMARY: ([0-9]+) errors?$`)
	unprinted = regexp.MustCompile(`^(?:ERROR|RACECHECK) SUMMARY: ([0-9]+) \w+ (?:was|were) not printed`)
	raceSum   = regexp.MustCompile(`^RACECHECK SUMMARY: ([0-9]+) hazards? displayed \(([0-9]+) errors?, ([0-9]+) warnings?\)`)
)

// summary parses a line of totals. The totals of leaks and unused memory are also included in the errors' total.
func (p *parser) summary(s string) {
	if p.legacy {
		p.group, p.open = p.group[:0], false // a group without an empty line at its end does not count
	} else {
		p.endGroup()
	}
	number := func(t string) int {
		n, err := strconv.Atoi(t)
		if err != nil || n > maxNumber {
			p.bad = true
			return 0
		}
		return n
	}
	switch {
	case strings.HasPrefix(s, "LEAK"), strings.HasPrefix(s, "UNUSED"):
	case unprinted.MatchString(s):
		p.rep.Unprinted += number(unprinted.FindStringSubmatch(s)[1])
	case raceSum.MatchString(s):
		m := raceSum.FindStringSubmatch(s)
		errs, warnings := number(m[2]), number(m[3])
		p.rep.Errors += errs
		p.rep.Warnings += warnings
		displayed := number(m[1])
		p.rep.Unprinted += max(0, errs+warnings-displayed)
		p.bad = p.bad || displayed > errs+warnings
		p.summed = true
	default:
		m := errorSum.FindStringSubmatch(s)
		if m == nil {
			p.bad = true
		} else {
			p.rep.Errors += number(m[1])
		}
		p.summed, p.ended = true, p.legacy
	}
}

// notices are groups about the end of the program, which the checker does not count as errors.
var notices = []string{"Target application returned an error", "Error: process didn't terminate successfully",
	"No CUDA kernels were instrumented", "Internal Sanitizer"}

// endGroup turns the open group into a finding.
func (p *parser) endGroup() {
	if !p.open {
		return
	}
	p.open = false
	if strings.Contains(p.group[0], "terminated before first instrumented API call") { // all that is said about a program without CUDA
		p.idle = true
		return
	}
	for _, n := range notices {
		if strings.HasPrefix(p.group[0], n) {
			return
		}
	}
	f := newFinding(p.group)
	f.Tool = p.opts.Tool
	f.Library = p.opts.Libraries.Match(p.group[1:]...)
	if f.Severity != SeverityInfo { // the summary does not count infos
		p.rep.Groups++
	}
	p.rep.add(p.seen, f)
}

// add merges f with an equal finding in seen, or appends it.
func (r *Report) add(seen map[string]*Finding, f *Finding) {
	key := f.Key()
	if old := seen[key]; old != nil {
		old.Count = min(old.Count+f.Count, maxNumber)
		return
	}
	if len(r.Findings) < MaxFindings {
		seen[key] = f
		r.Findings = append(r.Findings, f)
	}
}

// finish compares the summary with what was parsed.
func (p *parser) finish() error {
	if !p.legacy {
		p.endGroup()
	}
	p.rep.NoCalls = p.idle && !p.summed
	p.bad = !p.rep.clamp() || p.bad
	switch {
	case !p.summed && !p.idle && !p.bad:
		return ErrNoSummary
	case p.bad || p.rep.Groups+p.rep.Unprinted != p.rep.Errors+p.rep.Warnings:
		return ErrCount
	}
	return nil
}
