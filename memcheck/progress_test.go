package memcheck

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestProgress(t *testing.T) {
	var out strings.Builder
	clock := time.Unix(1e9, 0)
	p := &Progress{Out: &out, Terminal: true, Title: "t.py", Total: 10, Rows: 3, now: func() time.Time { return clock }}
	p.began, p.running = clock, map[int]running{}
	for w, name := range []string{"T.first", "T.second", "T.third", "T." + strings.Repeat("long_", 20) + "end"} {
		p.Begin(w, []string{"0", "1,2", "", ""}[w], Job{Test{Name: name}, Memcheck}, clock.Add(time.Duration(w)*time.Second))
	}
	clock = clock.Add(100 * time.Second)
	for _, o := range []Outcome{Success, Fail, Timeout, Ignored} {
		r := record("x", o)
		r.Worker = 9
		if err := p.End(r); err != nil {
			t.Fatal(err)
		}
	}
	p.draw()
	picture := regexp.MustCompile("\x1b\\[[0-9;?]*[a-zA-Z]|\r").ReplaceAllString(out.String(), "")
	want := "t.py  4 of 10, 1 failed, 1 timed out, 1 ignored, 1m40s, about 2m30s left\n" + strings.Repeat("━", 72) + "  40 %\n" +
		"    1m40s  GPU 0  T.first\n    1m39s  GPU 1,2  T.second\n  and 2 more\n"
	if picture != want {
		t.Errorf("drew\n%s\nwant\n%s", picture, want)
	}
	if !strings.Contains(out.String(), "\x1b[31m"+strings.Repeat("━", 15)+"\x1b[32m"+strings.Repeat("━", 13)+"\x1b[90m") {
		t.Errorf("the bar's colours: %q", out.String())
	}
	out.Reset()
	p.draw()
	if !strings.HasPrefix(out.String(), "\x1b[?7l\x1b[5A") || !strings.HasSuffix(out.String(), "\x1b[?7h") {
		t.Errorf("the second picture does not go over the first: %q", out.String()[:20])
	}
	p.Rows = 9
	for _, row := range p.rows() {
		if n := len([]rune(row)); n > width {
			t.Errorf("a row of %d columns: %s", n, row)
		}
	}
	out.Reset()
	p.Terminal = false
	p.draw()
	if got := out.String(); got != "t.py: 4 of 10, 1 failed, 1 timed out, 1 ignored, 1m40s, about 2m30s left\n" {
		t.Errorf("without a terminal: %q", got)
	}
	for _, c := range []struct {
		wait time.Duration
		want string
	}{{30 * time.Second, "2m10s, about 2m00s left"}, {119 * time.Second, "4m09s, about 1.0s left"}, {time.Minute, "5m09s"}} {
		clock = clock.Add(c.wait)
		if got, want := p.status(), "4 of 10, 1 failed, 1 timed out, 1 ignored, "+c.want; got != want {
			t.Errorf("while no test ends, the status is %q, want %q", got, want)
		}
	}
}

func TestProgressStops(t *testing.T) {
	var out strings.Builder
	p := &Progress{Out: &out, Title: "none", Terminal: true}
	p.Start(&Summary{Succeeded: 3})
	p.Begin(0, "", Job{Test{Name: "a"}, Memcheck}, time.Now())
	p.draw()
	p.Stop()
	pictures := strings.SplitAfter(out.String(), "\x1b[J")
	last := pictures[len(pictures)-2]
	if !strings.Contains(out.String(), "  a\n") || !strings.Contains(last, "3 of 0") || strings.Count(last, "\n") != 2 {
		t.Errorf("the running test must be drawn, and be gone at the end: %q", pictures)
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{-1: "0.0s", 440 * time.Millisecond: "0.4s", 12500 * time.Millisecond: "12s",
		185 * time.Second: "3m05s", 130 * time.Minute: "2h10m"} {
		if got := span(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}
