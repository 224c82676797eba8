package compile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// firstRuns is how many of a segment's runs are kept besides the last.
const firstRuns = 4

// Run is one run of a segment.
type Run struct {
	// Number counts the runs of the region from 1. A backward pass counts with the latest run of its function.
	Number int
	// Way is "warm-up", "recorded", "replayed" or "without a graph".
	Way string
	// Start is the time from the beginning of the region's run to the beginning of the segment's, and Took how long the host was busy with
	// the segment. Work on the device may begin later and take longer.
	Start, Took time.Duration
}

// ways are the names of the counts of runs, in their order in a Segment.
var ways = [...]string{"warm-up", "recorded", "replayed", "without a graph"}

// timeline keeps the first runs of a segment and its last.
type timeline struct {
	kept  [firstRuns + 1]Run
	n     int
	known [len(ways)]int
}

// add adds a run after which the segment has run so often in each way. A run that failed has not changed any.
func (l *timeline) add(r Run, counts [len(ways)]int) {
	for i, n := range counts {
		if n > l.known[i] {
			r.Way = ways[i]
		}
	}
	l.known = counts
	if r.Way == "" {
		return
	}
	l.kept[min(l.n, firstRuns)] = r
	l.n = min(l.n+1, len(l.kept))
}

// ran notes that f has run since began.
func (f *function) ran(began time.Time) {
	of := cmp.Or(f.t.ownForward(), f.t)
	f.timeline.add(Run{Number: of.stats.Runs, Start: began.Sub(of.began), Took: time.Since(began)},
		[...]int{f.warmUps, f.recordings, f.replays, f.plains})
}

// TimelineRow is a run of the region with the runs of its segments, by their start.
type TimelineRow struct {
	// Number counts the runs of the region from 1, and Runs are those of its segments in it.
	Number int
	Runs   []TimelineRun
}

// TimelineRun is a run of segment Segment, an index into the explanation's segments.
type TimelineRun struct {
	Segment int
	Run
}

// End returns the time from the row's beginning to the end of the segment that ended last.
func (r *TimelineRow) End() (end time.Duration) {
	if r == nil {
		return 0
	}
	for _, s := range r.Runs {
		end = max(end, s.Start+s.Took)
	}
	return end
}

// Timeline returns the region's runs of which something is kept: for each segment its first four runs and its last.
func (e *Explanation) Timeline() (rows []TimelineRow) {
	if e == nil {
		return nil
	}
	for i := range e.Segments {
		for _, r := range e.Segments[i].Runs {
			at := slices.IndexFunc(rows, func(row TimelineRow) bool { return row.Number == r.Number })
			if at < 0 {
				at, rows = len(rows), append(rows, TimelineRow{Number: r.Number})
			}
			rows[at].Runs = append(rows[at].Runs, TimelineRun{i, r})
		}
	}
	for _, row := range rows {
		slices.SortStableFunc(row.Runs, func(a, b TimelineRun) int { return cmp.Compare(a.Start, b.Start) })
	}
	slices.SortFunc(rows, func(a, b TimelineRow) int { return a.Number - b.Number })
	return rows
}

// printTimeline prints a line for each run.
func (e *Explanation) printTimeline(b *strings.Builder) {
	rows := e.Timeline()
	if len(rows) > 0 {
		b.WriteString("timeline, in the host's time from the beginning of each run:\n")
	}
	for _, row := range rows {
		fmt.Fprintf(b, "  run %d:", row.Number)
		for i, r := range row.Runs {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(b, " segment %d %s at %.3g ms for %.3g ms", r.Segment, r.Way, r.Start.Seconds()*1e3, r.Took.Seconds()*1e3)
		}
		b.WriteByte('\n')
	}
}
