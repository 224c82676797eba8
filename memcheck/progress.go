package memcheck

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"tenon.dev/internal/terminal"
)

// Progress shows the progress of a run: on a terminal as a bar with the counts and the running tests, which it redraws; elsewhere as a line
// now and then. It is an [Observer].
type Progress struct {
	// Out is where it is shown, and Terminal whether Out understands cursor movements.
	Out      io.Writer
	Terminal bool
	// Title is shown before the bar; Total is the number of jobs.
	Title string
	Total int
	// Rows is the maximum number of lines for running tests; 0 means 8.
	Rows int

	now  func() time.Time // tests have a clock of their own
	quit chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	counts  Summary
	began   time.Time
	here    int       // tests that ended in this part of the run, for the estimate
	ended   time.Time // when the last of them did
	running map[int]running
	lines   int // the number of lines last drawn
	said    time.Time
}

type running struct {
	name, gpu string
	since     time.Time
}

// Start begins to draw, with the counts of an earlier part of the run, or nil if there was none. Stop must follow.
func (p *Progress) Start(before *Summary) {
	if p.Rows == 0 {
		p.Rows = 8
	}
	if before != nil {
		p.counts = *before
		p.counts.keys = nil
	}
	p.began, p.running, p.quit = p.clock(), map[int]running{}, make(chan struct{})
	p.said = p.began
	every := 10 * time.Second
	if p.Terminal {
		every = 100 * time.Millisecond
	}
	p.done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-p.quit:
				return
			case <-tick.C:
				p.draw()
			}
		}
	})
}

// Stop ends the drawing and removes the running tests from the screen.
func (p *Progress) Stop() {
	close(p.quit)
	p.done.Wait()
	p.mu.Lock()
	clear(p.running)
	p.mu.Unlock()
	p.draw()
}

// clock returns the time.
func (p *Progress) clock() time.Time {
	if p.now != nil {
		return p.now()
	}
	return time.Now()
}

// Begin records a running test.
func (p *Progress) Begin(worker int, gpu string, j Job, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[worker] = running{j.Test.Name, gpu, at}
}

// End counts a test.
func (p *Progress) End(r *Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, r.Worker)
	p.counts.add(r)
	p.here, p.ended = p.here+1, p.clock()
	return nil
}

// width is the maximum number of columns in a line.
const width = 79

// draw draws the current state. A failure to show it is no reason to end a run.
func (p *Progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Terminal {
		fmt.Fprintf(p.Out, "%s: %s\n", terminal.Line(p.Title, maxName), p.status())
		return
	}
	var b strings.Builder
	b.WriteString("\x1b[?7l") // the terminal cuts a row that is too long; if it wrapped, it would shift the next picture
	if p.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", p.lines)
	}
	rows := append([]string{terminal.Line(p.Title+"  "+p.status(), width), p.bar()}, p.rows()...)
	for _, row := range rows {
		b.WriteString("\r\x1b[2K" + row + "\n")
	}
	b.WriteString("\x1b[J\x1b[?7h")
	p.lines = len(rows)
	_, _ = io.WriteString(p.Out, b.String())
}

// status returns the counts in words.
func (p *Progress) status() string {
	c := &p.counts
	parts := []string{fmt.Sprintf("%d of %d", c.Ran(), p.Total)}
	for _, x := range []struct {
		n    int
		what string
	}{{c.Failed, "failed"}, {c.Timeouts, "timed out"}, {c.Ignored, "ignored"}} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	now := p.clock()
	parts = append(parts, span(now.Sub(p.began)))
	if left := p.Total - c.Ran(); left > 0 && p.here > 0 {
		// The pace is that of the tests that ended. If the running ones take longer than it says, nothing is known.
		whole := p.ended.Sub(p.began) / time.Duration(p.here) * time.Duration(left)
		if rest := whole - now.Sub(p.ended); rest > 0 {
			parts = append(parts, "about "+span(rest)+" left")
		}
	}
	return strings.Join(parts, ", ")
}

// bar returns the bar: what succeeded, what did not, what is left.
func (p *Progress) bar() string {
	const cells = width - 7
	bad := p.counts.Failed + p.counts.Timeouts
	all, red := cells, 0
	if p.Total > 0 {
		all = cells * p.counts.Ran() / p.Total
		red = min(all, (cells*bad+p.Total-1)/p.Total) // one failure in a thousand is visible
	}
	percent := 100
	if p.Total > 0 {
		percent = 100 * p.counts.Ran() / p.Total
	}
	return "\x1b[31m" + strings.Repeat("━", red) + "\x1b[32m" + strings.Repeat("━", all-red) + "\x1b[90m" + strings.Repeat("━", cells-all) +
		fmt.Sprintf("\x1b[0m %3d %%", percent)
}

// rows returns lines for the running tests, longest running first.
func (p *Progress) rows() []string {
	var list []running
	for _, r := range p.running {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b running) int {
		if c := a.since.Compare(b.since); c != 0 {
			return c
		}
		return strings.Compare(a.name, b.name)
	})
	var rows []string
	for i, r := range list {
		if i == p.Rows-1 && len(list) > p.Rows {
			rows = append(rows, fmt.Sprintf("  and %d more", len(list)-i))
			break
		}
		gpu := ""
		if r.gpu != "" {
			gpu = "GPU " + terminal.Line(r.gpu, 12) + "  "
		}
		rows = append(rows, fmt.Sprintf("  %7s  %s%s", span(p.clock().Sub(r.since)), gpu, terminal.Line(r.name, width-12-len(gpu))))
	}
	return rows
}

// span formats a time for readers: 0.4s, 12s, 3m05s, 2h10m.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

// spanOf is span for a number of seconds.
func spanOf(seconds float64) string { return span(time.Duration(seconds * float64(time.Second))) }
