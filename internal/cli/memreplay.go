package cli

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tenon.dev/fault"
	"tenon.dev/memviz/replay"
)

// memreplay compares settings of the caching allocator on the trace of a memory snapshot.
type memreplay struct {
	File     string   `arg:"" help:"Memory snapshot with a trace, from PyTorch or Tenon (pickle, plain or gzip); - is standard input."`
	Conf     []string `sep:"none" placeholder:"SETTINGS" help:"Settings to replay under, in the syntax of PYTORCH_CUDA_ALLOC_CONF; can be given more than once. \"auto\", the default, is a built-in set. The settings of the recording are always included."`
	Memory   string   `placeholder:"SIZE" help:"Size of the device memory, such as 24GiB; by default the device is never full."`
	Fraction float64  `placeholder:"PART" help:"Part of --memory that the allocator may hold, above 0 and at most 1, as set_per_process_memory_fraction sets it."`
	Fit      bool     `help:"Also find the smallest --memory with no more failures than in the recording."`
	Device   *int     `placeholder:"N" help:"Device number whose trace to replay; by default the device with the most events."`
	JSON     bool     `name:"json" help:"Print JSON."`
}

// replayReport is the result of memreplay, which --json prints.
type replayReport struct {
	File     string          `json:"file"`
	Device   int             `json:"device"`
	Devices  []replay.Trace  `json:"devices"` // devices that have a trace
	Memory   uint64          `json:"memory"`  // bytes; 0: never full
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
		return misused("--fraction is a part of the device's memory; say how much that is with --memory")
	}
	if !(m.Fraction >= 0 && m.Fraction <= 1) {
		return misused("--fraction is %v; give a part of the device's memory, above 0 and at most 1", m.Fraction)
	}
	p, err := m.program(con)
	if err != nil {
		return err
	}
	if p.Recorded.Allocs+p.Recorded.OOMs == 0 {
		return fault.New(fault.Invalid, "the trace of device %d has %s but no allocation; there is nothing to replay", p.Device,
			counted(p.Recorded.Events, "event"))
	}
	report.Device, report.Devices, report.Recorded, report.Notes = p.Device, p.Traces, p.Recorded, p.Notes
	if len(p.Traces) > 1 {
		report.Notes = append(report.Notes, otherDevices(p))
	}
	if report.Check, err = p.Check(); err != nil {
		return err
	}
	if report.Results, err = m.compare(p, &report); err != nil {
		return err
	}
	if p.Recorded.OOMs > 0 && report.Memory == 0 {
		report.Notes = append(report.Notes, "An allocation that failed in the recording is tried again only on a device whose size "+
			"--memory gives.")
	}
	collects := func(r replayResult) bool { return strings.Contains(r.Settings, "garbage_collection_threshold") }
	if m.Fraction == 0 && slices.ContainsFunc(report.Results, collects) {
		report.Notes = append(report.Notes, "garbage_collection_threshold acts only within a memory fraction, and a trace does not tell "+
			"the recording's: give --memory and --fraction.")
	}
	if m.JSON {
		e := json.NewEncoder(con.out)
		e.SetIndent("", "\t")
		return e.Encode(report)
	}
	return report.write(con.out)
}

// otherDevices names the traces that were not replayed.
func otherDevices(p *replay.Program) string {
	var others []string
	for _, t := range p.Traces {
		if t.Device != p.Device {
			others = append(others, fmt.Sprintf("%d (%s)", t.Device, counted(t.Events, "event")))
		}
	}
	return fmt.Sprintf("The snapshot has traces of other devices too: %s. --device chooses one.", strings.Join(others, ", "))
}

// program reads the file, showing a progress bar on stderr if that is a terminal.
func (m *memreplay) program(con *console) (*replay.Program, error) {
	f, err := openInput("snapshot", m.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	o := replay.ReadOptions{Device: m.Device}
	bar := importBar{out: con.screen, began: time.Now(), name: filepath.Base(m.File)}
	if info, err := f.Stat(); err == nil && isTerminal(con.screen) {
		o.Progress = func(read int64) { bar.advance(read, info.Size()) }
	}
	p, err := replay.Read(f, o)
	bar.clear()
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "reading %s", m.File)
	}
	return p, nil
}

// settings returns the settings strings to compare, the recording's first.
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

// compare replays under all settings, in parallel on all processors.
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
			if results[i], errs[i] = p.Run(replay.Options{Settings: s, Memory: report.Memory, Fraction: m.Fraction}); errs[i] == nil &&
				m.Fit {
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
	return 0, misused("%s is %q; give a number of bytes of at most 16TiB, such as 24GiB or 81559MiB", flag, text)
}
