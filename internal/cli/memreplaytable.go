package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/terminal"
)

// write prints the report for people.
func (r *replayReport) write(out io.Writer) error {
	var b strings.Builder
	rec := &r.Recorded
	failed := ""
	if rec.OOMs > 0 {
		failed = fmt.Sprintf(" (%d failed)", rec.OOMs)
	}
	fmt.Fprintf(&b, "%s, device %d: %s in %s, %s of %s in all%s, recorded under %s\n", terminal.Line(r.File, maxSettings), r.Device,
		counted(rec.Events, "event"),
		rec.Span.Round(time.Millisecond), counted(rec.Allocs, "allocation"), alloc.FormatSize(rec.AllocBytes), failed,
		settingsName(rec.Settings))
	c := &r.Check
	if c.Exact() {
		fmt.Fprintf(&b, "check: under those settings the replay is the recording: %d of %d blocks at their addresses, %d of %d driver "+
			"steps, the same %d segments at the end\n",
			c.Equal, c.Allocs, c.Followed, c.DriverSteps, c.Segments)
	} else {
		fmt.Fprintf(&b, "check: under those settings the replay is near the recording: %d of %d blocks at their addresses, %d of %d "+
			"driver steps\n", c.Equal, c.Allocs, c.Followed, c.DriverSteps)
		for _, d := range c.Differences {
			fmt.Fprintf(&b, "       %s\n", d)
		}
	}
	if r.Memory > 0 {
		fmt.Fprintf(&b, "device: %s", alloc.FormatSize(r.Memory))
		if r.Fraction > 0 {
			fmt.Fprintf(&b, ", of which the allocator may hold %s", alloc.FormatSize(uint64(r.Fraction*float64(r.Memory))))
		}
		b.WriteString("\n")
	} else {
		b.WriteString("device: never full\n")
	}
	b.WriteString("\n")
	groups := alike(r.Results)
	r.table(&b, groups)
	if s := r.verdict(groups); s != "" {
		fmt.Fprintf(&b, "\n%s\n", s)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "\nnote: %s", n)
	}
	if len(r.Notes) > 0 {
		b.WriteString("\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// alike groups results with the same figures, in the order of their first members; the recording's leads its group.
func alike(results []replayResult) [][]*replayResult {
	type figures struct {
		replayResult
		event int
		bytes uint64
	}
	index := map[figures]int{}
	var groups [][]*replayResult
	for i := range results {
		v := &results[i]
		f := figures{replayResult: *v}
		if v.FirstOOM != nil {
			f.event, f.bytes = v.FirstOOM.Event, v.FirstOOM.Bytes
		}
		f.Settings, f.Recorded, f.FirstOOM = "", false, nil
		k, known := index[f]
		switch {
		case !known:
			index[f] = len(groups)
			groups = append(groups, []*replayResult{v})
		case v.Recorded && !groups[k][0].Recorded:
			groups[k] = append([]*replayResult{v}, groups[k]...)
		default:
			groups[k] = append(groups[k], v)
		}
	}
	return groups
}

// table prints the results, best first. Settings with the same figures share a row.
func (r *replayReport) table(b *strings.Builder, groups [][]*replayResult) {
	head := []string{"", "settings", "peak allocated", "peak reserved", "against recording", "fragmentation", "driver calls",
		"flushes", "OOMs"}
	has := func(test func(*replayResult) bool) bool {
		for _, g := range groups {
			if test(g[0]) {
				return true
			}
		}
		return false
	}
	fails := has(func(v *replayResult) bool { return v.FirstOOM != nil })
	rescues := has(func(v *replayResult) bool { return v.Rescued > 0 })
	fit := has(func(v *replayResult) bool { return v.FitsInto > 0 })
	for _, c := range []struct {
		shown bool
		name  string
	}{{fails, "first OOM at event"}, {rescues, "rescued"}, {fit, "fits into"}} {
		if c.shown {
			head = append(head, c.name)
		}
	}
	rows := [][]string{head}
	for i, g := range groups {
		v := g[0]
		row := []string{strconv.Itoa(i + 1), nameOf(v), alloc.FormatSize(v.PeakAllocated), alloc.FormatSize(v.PeakReserved),
			change(v.PeakReserved, r.Recorded.PeakReserved), fmt.Sprintf("%.1f %%", 100*v.Fragmentation),
			strconv.FormatInt(v.DriverCalls, 10),
			strconv.FormatInt(v.Retries, 10), strconv.FormatInt(v.OOMs, 10)}
		if fails {
			first := "-"
			if v.FirstOOM != nil {
				first = fmt.Sprintf("%d (%s)", v.FirstOOM.Event, alloc.FormatSize(v.FirstOOM.Bytes))
			}
			row = append(row, first)
		}
		if rescues {
			row = append(row, strconv.FormatInt(v.Rescued, 10))
		}
		if fit {
			row = append(row, alloc.FormatSize(v.FitsInto))
		}
		rows = append(rows, row)
		for _, same := range g[1:] {
			rows = append(rows, []string{"=", nameOf(same)})
		}
	}
	writeRows(b, rows)
}

// verdict says in a sentence what to do, or nothing if all results are alike.
func (r *replayReport) verdict(groups [][]*replayResult) string {
	if len(groups) == 0 {
		return ""
	}
	best := groups[0][0]
	var own *replayResult
	for _, g := range groups {
		if g[0].Recorded && own == nil {
			own = g[0]
		}
	}
	if best.OOMs > int64(r.Recorded.OOMs) {
		if best.FitsInto > 0 {
			return "The program does not fit under any of these settings."
		}
		return "The program does not fit under any of these settings; --fit says how much memory each needs."
	}
	if len(groups) == 1 || own == nil {
		return ""
	}
	better := gain(best, own)
	switch {
	case better == "":
		return "None of these settings is better than the recording's."
	case best.Settings == "":
		return "Best: no settings at all. " + better
	}
	return "Best: PYTORCH_CUDA_ALLOC_CONF=" + settingsName(best.Settings) + ". " + better
}

// gain says how a result is better than that of the recording's settings, or "" if it is not.
func gain(best, own *replayResult) string {
	switch {
	case best.OOMs < own.OOMs:
		return fmt.Sprintf("It has %s, the recording's settings have %d.", counted(int(best.OOMs), "OOM"), own.OOMs)
	case best.PeakReserved < own.PeakReserved:
		return fmt.Sprintf("The allocator holds %s less at its peak than under the recording's settings.",
			alloc.FormatSize(own.PeakReserved-best.PeakReserved))
	case best.DriverCalls < own.DriverCalls:
		return fmt.Sprintf("The driver is called %d times less often than under the recording's settings.",
			own.DriverCalls-best.DriverCalls)
	}
	return ""
}

// writeRows aligns the second column to the left, all others to the right.
func writeRows(b *strings.Builder, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for k, cell := range row {
			widths[k] = max(widths[k], len(cell))
		}
	}
	for _, row := range rows {
		for k, cell := range row {
			if k > 0 {
				b.WriteString("  ")
			}
			if k == 1 && len(row) == 2 {
				b.WriteString(cell)
			} else if k == 1 {
				fmt.Fprintf(b, "%-*s", widths[k], cell)
			} else {
				fmt.Fprintf(b, "%*s", widths[k], cell)
			}
		}
		b.WriteString("\n")
	}
}

// change writes the difference between n and the recording's figure.
func change(n, recorded uint64) string {
	if recorded == 0 {
		return "-"
	}
	if n == recorded {
		return "same"
	}
	return fmt.Sprintf("%+.1f %%", 100*(float64(n)/float64(recorded)-1))
}

func nameOf(v *replayResult) string {
	if v.Recorded {
		return settingsName(v.Settings) + " (the recording's)"
	}
	return settingsName(v.Settings)
}

func settingsName(s string) string {
	if s == "" {
		return "the defaults"
	}
	return terminal.Line(s, maxSettings)
}

// maxSettings bounds the characters of settings that a row shows.
const maxSettings = 200

// counted writes a number with its noun: "1 event", "2 events".
func counted(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
