package benchrun

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"tenon.dev/fault"
)

// Pairs is one file of bench/runs whose name ends in ".pairs.json": the figures of two states of the source, measured in turns on one
// machine, so that what the machine does between them reaches both.
type Pairs struct {
	// Date, Device, Host and Go are those of a Run.
	Date   string `json:"date"`
	Device string `json:"device"`
	Host   string `json:"host"`
	Go     string `json:"go"`
	// Before and After are the commits, Tests are those that were run, as a regular expression.
	Before string `json:"before"`
	After  string `json:"after"`
	Tests  string `json:"tests"`
	// Rows are sorted by name.
	Rows []PairRow `json:"rows"`
}

// PairRow is one figure of both states. Before[i] and After[i] are the medians of round i, in Unit.
type PairRow struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Before []float64 `json:"before"`
	After  []float64 `json:"after"`
}

// Add adds a round: a run of each state. A figure that only one of them has is left out, and so is one that is 0 before.
func (p *Pairs) Add(before, after *Run) error {
	if before.Device != after.Device || before.Host != after.Host {
		return fault.New(fault.Invalid, "one run is of %s in %s, the other of %s in %s: pairs are of one machine", before.Device,
			before.Host, after.Device, after.Host)
	}
	p.Date, p.Device, p.Host, p.Go = after.Date, after.Device, after.Host, after.Go
	for _, f := range after.Figures {
		g, ok := before.figure(f.Name)
		if !ok || g.Unit != f.Unit || g.Median == 0 {
			continue
		}
		i, found := slices.BinarySearchFunc(p.Rows, f.Name, func(r PairRow, name string) int {
			return strings.Compare(r.Name, name)
		})
		if !found {
			p.Rows = slices.Insert(p.Rows, i, PairRow{Name: f.Name, Unit: f.Unit})
		}
		p.Rows[i].Before, p.Rows[i].After = append(p.Rows[i].Before, g.Median), append(p.Rows[i].After, f.Median)
	}
	return nil
}

// Write writes the file.
func (p *Pairs) Write(name string) error { return writeFile(name, p) }

// ReadPairs reads every file of pairs in a folder, the newest first.
func ReadPairs(dir string) ([]*Pairs, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.pairs.json"))
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "cannot list the pairs")
	}
	var all []*Pairs
	for _, name := range slices.Backward(names) {
		p := &Pairs{}
		if err := readFile(name, p); err != nil {
			return nil, err
		}
		for _, r := range p.Rows {
			if len(r.Before) == 0 || len(r.Before) != len(r.After) {
				return nil, fault.New(fault.Invalid, "figure %s of %s has %d values before and %d after", r.Name, name, len(r.Before),
					len(r.After))
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// ratio returns the median over the rounds of after divided by before, and the interval that holds the true median with a probability of at
// least 95 %. The interval is between two order statistics, as few rounds say too little of the ratios' distribution for another one
// (Conover, Practical Nonparametric Statistics, section 3.2). Below six rounds there is none, and ok is false.
func (r PairRow) ratio() (median, low, high float64, ok bool) {
	var ratios []float64
	for i := range r.Before {
		ratios = append(ratios, r.After[i]/r.Before[i])
	}
	slices.Sort(ratios)
	n := len(ratios)
	median = (ratios[(n-1)/2] + ratios[n/2]) / 2
	// The true median lies below the k-th smallest ratio if at most k-1 of n fair coins fall one way.
	tail, term, k := 0.0, math.Exp2(float64(-n)), 0
	for i := range n / 2 {
		if tail += term; 2*tail > 0.05 {
			break
		}
		k = i + 1
		term *= float64(n-i) / float64(i+1)
	}
	if k == 0 {
		return median, 0, 0, false
	}
	return median, ratios[k-1], ratios[n-k], true
}

// moreIsBetter reports whether the figure is a rate, or has a goal that it should exceed.
func (r PairRow) moreIsBetter() bool {
	for _, s := range Catalogue() {
		for _, e := range s.Entries {
			if e.Name == r.Name && e.Goal != nil {
				return e.Goal.AtLeast
			}
		}
	}
	return strings.HasSuffix(r.Unit, "/s")
}

// verdict says whether the figure became better or worse by more than five percent, as far as the interval shows.
func (r PairRow) verdict() string {
	median, low, high, ok := r.ratio()
	if !ok {
		return "too few rounds"
	}
	if r.moreIsBetter() {
		median, low, high = 1/median, 1/high, 1/low
	}
	switch {
	case low > 1.05:
		return "**worse**"
	case high < 0.95:
		return "better"
	case median > 1.05:
		return "open"
	}
	return ""
}

const pairsHead = `
## Pairs

Two commits measured in turns on one machine. A figure is the median of its rounds. The ratio is the median of the rounds' ratios, in
brackets the interval that holds the true median with a probability of 95 %. Worse and better mean that the whole interval is beyond 5 %;
open means that the ratio is worse by more than 5 %, but not the whole interval.
`

// pairTables writes a table for each file of pairs.
func pairTables(b *strings.Builder, all []*Pairs) {
	if len(all) == 0 {
		return
	}
	b.WriteString(pairsHead)
	for _, p := range all {
		fmt.Fprintf(b, "\n### %s after %s, on %s\n\n%s, %s, %s.\n\n```sh\ngo test -c -o before.test ./bench   # at %s\nBEFORE=before.test "+
			"BEFORE_COMMIT=%s ROWS='%s' bench/gpu.sh binaries.txz run.json %s pairs\n```\n\n", p.After, p.Before, p.Device,
			p.Date, p.Host, p.Go, p.Before, p.Before, p.Tests, p.After)
		line(b, "figure", "before", "after", "ratio", "rounds", "verdict")
		line(b, "---", "---", "---", "---", "---", "---")
		for _, r := range p.Rows {
			median, low, high, ok := r.ratio()
			ratio := strconv.FormatFloat(median, 'f', 3, 64)
			if ok {
				ratio += fmt.Sprintf(" (%.3f–%.3f)", low, high)
			}
			line(b, "`"+r.Name+"`", short(Summarize(r.Before).Median)+" "+r.Unit, short(Summarize(r.After).Median)+" "+r.Unit, ratio,
				strconv.Itoa(len(r.Before)), r.verdict())
		}
	}
}
