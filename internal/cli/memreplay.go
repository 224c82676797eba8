package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/snapshot"
	"tenon.dev/memviz/replay"
)

// memreplay compares settings of the caching allocator on the trace of a memory snapshot.
type memreplay struct {
	File     string   `arg:"" help:"Memory snapshot with a trace, from PyTorch or Tenon (pickle, plain or gzip); - is standard input."`
	Conf     []string `sep:"none" placeholder:"SETTINGS" help:"Settings to replay under, in the grammar of PYTORCH_CUDA_ALLOC_CONF; may be given several times. \"auto\", the default, stands for a built-in set. The recording's own settings are always among them."`
	Memory   string   `placeholder:"SIZE" help:"Device memory that the program can have, such as 24GiB; by default the device is never full."`
	Fraction float64  `help:"Fraction of --memory that the allocator may hold, as set_per_process_memory_fraction sets it."`
	Fit      bool     `help:"Also find the smallest --memory on which nothing more fails than in the recording."`
	Device   *int     `placeholder:"N" help:"Device whose trace is replayed; by default the first that has one."`
	JSON     bool     `name:"json" help:"Print JSON."`
}

// replayReport is what memreplay finds, and prints with --json.
type replayReport struct {
	File     string          `json:"file"`
	Device   int             `json:"device"`
	Memory   uint64          `json:"memory"` // bytes; 0: never full
	Fraction float64         `json:"fraction"`
	Recorded replay.Recorded `json:"recorded"`
	Check    replay.Check    `json:"check"`
	Notes    []string        `json:"notes"`
	Results  []replayResult  `json:"results"` // best first
}

type replayResult struct {
	replay.Result
	FitsInto uint64 `json:"fits_into,omitempty"` // bytes, with --fit
}

// Run replays and prints.
func (m *memreplay) Run(con *console) error {
	report := replayReport{File: filepath.Base(m.File), Fraction: m.Fraction}
	if m.File == "-" {
		report.File = "standard input"
	}
	var err error
	if report.Memory, err = parseBytes("--memory", m.Memory); err != nil {
		return err
	}
	if m.Fraction != 0 && report.Memory == 0 {
		return fault.New(fault.Invalid, "--fraction is a part of the device's memory; say how much that is with --memory")
	}
	p, err := m.program(con)
	if err != nil {
		return err
	}
	report.Device, report.Recorded, report.Notes = p.Device, p.Recorded, p.Notes
	if report.Check, err = p.Check(); err != nil {
		return err
	}
	if report.Results, err = m.compare(p, &report); err != nil {
		return err
	}
	if p.Recorded.OOMs > 0 && report.Memory == 0 {
		report.Notes = append(report.Notes, "An allocation that failed in the recording is tried again only on a device whose size --memory gives.")
	}
	collects := func(r replayResult) bool { return strings.Contains(r.Settings, "garbage_collection_threshold") }
	if m.Fraction == 0 && slices.ContainsFunc(report.Results, collects) {
		report.Notes = append(report.Notes, "garbage_collection_threshold acts only within a memory fraction, and a trace does not tell the recording's: give --memory and --fraction.")
	}
	if m.JSON {
		e := json.NewEncoder(con.out)
		e.SetIndent("", "\t")
		return e.Encode(report)
	}
	return report.write(con.out)
}

// program reads the file, showing a bar on stderr meanwhile if that is a terminal.
func (m *memreplay) program(con *console) (*replay.Program, error) {
	f := os.Stdin
	if m.File != "-" {
		var err error
		if f, err = os.Open(m.File); err != nil {
			return nil, fault.Wrap(fault.System, err, "cannot open the snapshot")
		}
		defer f.Close()
	}
	var o snapshot.ReadOptions
	bar := importBar{out: con.err, began: time.Now(), name: filepath.Base(m.File)}
	if info, err := f.Stat(); err == nil && isTerminal(con.err) {
		o.Progress = func(read int64) { bar.advance(read, info.Size()) }
	}
	s, err := snapshot.Read(f, o)
	bar.clear()
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "reading %s", m.File)
	}
	device := max(0, slices.IndexFunc(s.Traces, func(t []snapshot.Event) bool { return len(t) > 0 }))
	if m.Device != nil {
		device = *m.Device
	}
	return replay.New(s, device)
}

// settings returns the strings to compare, the recording's first.
func (m *memreplay) settings(p *replay.Program) []string {
	list := []string{p.Recorded.Settings}
	confs := m.Conf
	if len(confs) == 0 {
		confs = []string{"auto"}
	}
	for _, c := range confs {
		add := []string{c}
		if c == "auto" {
			add = p.AutoSettings(m.Fraction != 0)
		}
		for _, a := range add {
			if !slices.Contains(list, a) {
				list = append(list, a)
			}
		}
	}
	return list
}

// compare replays under all settings, as many at a time as there are processors.
func (m *memreplay) compare(p *replay.Program, report *replayReport) ([]replayResult, error) {
	list := m.settings(p)
	results := make([]replay.Result, len(list))
	fits := map[string]uint64{}
	found := make([]uint64, len(list))
	errs := make([]error, len(list))
	room := make(chan struct{}, runtime.GOMAXPROCS(0))
	var group sync.WaitGroup
	for i, s := range list {
		room <- struct{}{}
		group.Go(func() {
			defer func() { <-room }()
			if results[i], errs[i] = p.Run(replay.Options{Settings: s, Memory: report.Memory, Fraction: m.Fraction}); errs[i] == nil && m.Fit {
				found[i], errs[i] = p.Fit(s, m.Fraction)
			}
		})
	}
	group.Wait()
	for i, s := range list {
		if errs[i] != nil {
			return nil, errs[i]
		}
		fits[s] = found[i]
	}
	replay.Sort(results)
	sorted := make([]replayResult, len(results))
	for i, r := range results {
		sorted[i] = replayResult{r, fits[r.Settings]}
	}
	return sorted, nil
}

// parseBytes reads a number of bytes with a unit: 1048576, 512MiB, 24GiB (KB, MB, GB and plain K, M, G mean the same powers of two).
func parseBytes(flag, text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	number := strings.TrimRight(text, "BKMGTibkmgt ")
	shift, ok := map[string]uint{"": 0, "b": 0, "k": 10, "kb": 10, "kib": 10, "m": 20, "mb": 20, "mib": 20, "g": 30, "gb": 30, "gib": 30,
		"t": 40, "tb": 40, "tib": 40}[strings.ToLower(strings.TrimSpace(text[len(number):]))]
	f, err := strconv.ParseFloat(number, 64)
	if n := math.Ldexp(f, int(shift)); ok && err == nil && n >= 1 && n <= replay.Unlimited {
		return uint64(n), nil
	}
	return 0, fault.New(fault.Invalid, "%s is %q; give a number of bytes of at most 16TiB, such as 24GiB or 81559MiB", flag, text)
}

// write prints the report for people.
func (r *replayReport) write(out io.Writer) error {
	var b strings.Builder
	rec := &r.Recorded
	fmt.Fprintf(&b, "%s, device %d: %d events in %s, %d allocations of %s in all, recorded under %s\n", r.File, r.Device, rec.Events,
		rec.Span.Round(time.Millisecond), rec.Allocs, alloc.FormatSize(rec.AllocBytes), settingsName(rec.Settings))
	c := &r.Check
	if c.Exact() {
		fmt.Fprintf(&b, "check: under those settings the replay is the recording: %d of %d blocks at their addresses, %d of %d turns to the driver, the same %d segments at the end\n",
			c.Equal, c.Allocs, c.Followed, c.DriverSteps, c.Segments)
	} else {
		fmt.Fprintf(&b, "check: under those settings the replay is near the recording: %d of %d blocks at their addresses, %d of %d turns to the driver\n", c.Equal, c.Allocs, c.Followed, c.DriverSteps)
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
	r.table(&b)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "\nnote: %s", n)
	}
	if len(r.Notes) > 0 {
		b.WriteString("\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// table prints the results, best first.
func (r *replayReport) table(b *strings.Builder) {
	rows := [][]string{{"", "settings", "peak allocated", "peak reserved", "against recording", "fragmentation", "driver calls", "flushes", "OOMs"}}
	fit := len(r.Results) > 0 && r.Results[0].FitsInto > 0
	if fit {
		rows[0] = append(rows[0], "fits into")
	}
	var failures []string
	for i := range r.Results {
		v := &r.Results[i]
		name := settingsName(v.Settings)
		if v.Recorded {
			name += " (the recording's)"
		}
		row := []string{strconv.Itoa(i + 1), name, alloc.FormatSize(v.PeakAllocated), alloc.FormatSize(v.PeakReserved),
			change(v.PeakReserved, r.Recorded.PeakReserved), fmt.Sprintf("%.1f %%", 100*v.Fragmentation), strconv.FormatInt(v.DriverCalls, 10),
			strconv.FormatInt(v.Retries, 10), strconv.FormatInt(v.OOMs, 10)}
		if fit {
			row = append(row, alloc.FormatSize(v.FitsInto))
		}
		rows = append(rows, row)
		if v.FirstOOM != nil {
			failures = append(failures, fmt.Sprintf("%d: first fails at event %d of %d, for %s", i+1, v.FirstOOM.Event, r.Recorded.Events, alloc.FormatSize(v.FirstOOM.Bytes)))
		}
		if v.Rescued > 0 {
			failures = append(failures, fmt.Sprintf("%d: %d that failed in the recording succeed", i+1, v.Rescued))
		}
	}
	writeRows(b, rows)
	for _, f := range failures {
		fmt.Fprintf(b, "%s\n", f)
	}
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
			if k == 1 {
				fmt.Fprintf(b, "%-*s", widths[k], cell)
			} else {
				fmt.Fprintf(b, "%*s", widths[k], cell)
			}
		}
		b.WriteString("\n")
	}
}

// change writes how much more or less n is than the recording's.
func change(n, recorded uint64) string {
	if recorded == 0 {
		return "-"
	}
	return fmt.Sprintf("%+.1f %%", 100*(float64(n)/float64(recorded)-1))
}

func settingsName(s string) string {
	if s == "" {
		return "the defaults"
	}
	return s
}
