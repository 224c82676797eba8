package profile

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"tenon.dev/fault"
)

// By says how a table groups operations into rows.
type By string

// The tables: every operation by itself; or those of one name, of one line of the program, or of one module together.
const (
	ByTime   By = "time"
	ByOp     By = "op"
	ByLine   By = "line"
	ByModule By = "module"
)

// Row is the operations that a table shows in one row.
type Row struct {
	// Key is what the operations have in common; "" is shown as "(no line)" or "(no module)".
	Key string `json:"key"`
	// Calls is the number of operations.
	Calls int `json:"calls"`
	// Device is the time of their kernels, and Host that of their calls without the operations within them.
	Device time.Duration `json:"device"`
	Host   time.Duration `json:"host"`
	// Bytes, FLOPs and Floor are the sums over the operations that the device ran; see Op and Profile.Floor.
	Bytes int64         `json:"bytes"`
	FLOPs int64         `json:"flops"`
	Floor time.Duration `json:"floor"`
	// Bounded is the part of Device that belongs to operations whose floor is known.
	Bounded time.Duration `json:"bounded"`
}

// Rows returns the rows of a table, those with the most time on the device first.
func (p *Profile) Rows(by By) ([]Row, error) {
	if p == nil {
		return nil, fault.New(fault.Invalid, "the profile is nil; use one that Profiler.Stop or Read returned")
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	key := p.keys(by)
	if key == nil {
		return nil, fault.New(fault.Invalid, "there is no table by %q; give time, op, line or module", by)
	}
	self := p.self()
	index := map[string]int{}
	var rows []Row
	for i := range p.Ops {
		o, k := &p.Ops[i], key(i)
		at, ok := index[k]
		if !ok || by == ByTime {
			at = len(rows)
			index[k] = at
			rows = append(rows, Row{Key: k})
		}
		r := &rows[at]
		r.Calls++
		r.Host += self[i]
		if d := o.Device(); d > 0 {
			r.Device += d
			r.Bytes += o.Bytes
			r.FLOPs += o.FLOPs
			if f := p.Floor(o); f > 0 {
				r.Floor += f
				r.Bounded += d
			}
		}
	}
	// On a simulated device many operations have the same time. Bytes, the same in every run, are compared before the host's time.
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Device, a.Device), cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Host, a.Host))
	})
	return rows, nil
}

// keys returns the function that gives each operation's key, or nil.
func (p *Profile) keys(by By) func(i int) string {
	switch by {
	case ByTime:
		return func(i int) string {
			o := &p.Ops[i]
			var in []string
			for _, t := range o.Inputs {
				in = append(in, t.String())
				if len(in) == 4 && len(o.Inputs) > 4 {
					in = append(in, fmt.Sprintf("and %d more", len(o.Inputs)-4))
					break
				}
			}
			return o.title() + "(" + strings.Join(in, ", ") + ")"
		}
	case ByOp:
		return func(i int) string { return p.Ops[i].title() }
	case ByLine:
		return func(i int) string { return short(p.Line(i)) }
	case ByModule:
		return func(i int) string { return p.Ops[i].Module }
	}
	return nil
}

// title returns the operation's name with the details that distinguish it from others.
func (o *Op) title() string {
	name := o.Name
	if name == "Launch" && len(o.Kernels) > 0 { // of a program's own kernel
		name += " " + o.Kernels[0].Name
	}
	switch {
	case o.Phase == Optimizer && o.Within != "":
		return name + " (" + o.Within + ")"
	case o.Phase == Backward:
		return name + " (backward)"
	case o.Captured:
		return name + " (captured)"
	}
	return name
}

// short shortens a path to its last folder and file.
func short(path string) string {
	path = strings.ReplaceAll(path, `\`, "/")
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[strings.LastIndexByte(path[:i], '/')+1:]
	}
	return path
}

// self returns the time of each call on the host without the operations within it.
func (p *Profile) self() []time.Duration {
	self := make([]time.Duration, len(p.Ops))
	for i := range p.Ops {
		o := &p.Ops[i]
		self[i] += o.Host()
		if o.Parent >= 0 {
			self[o.Parent] -= o.Host()
		}
	}
	return self
}

// WriteTable writes a table of at most most rows, 0 for all, and the memory at the peak, as text.
func (p *Profile) WriteTable(w io.Writer, by By, most int) error {
	if err := p.usable(w); err != nil {
		return err
	}
	rows, err := p.Rows(by)
	if err != nil {
		return err
	}
	var all time.Duration
	for _, r := range rows {
		all += r.Device
	}
	left := 0
	if most > 0 && len(rows) > most {
		left, rows = len(rows)-most, rows[:most]
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d operations in %v; their kernels took %v on the device%s\n\n", p.Device.Name, len(p.Ops), round(p.Duration),
		round(all), p.source())
	writeRows(&b, by, rows, all)
	if left > 0 {
		fmt.Fprintf(&b, "and %d rows more\n", left)
	}
	if p.Device.Bandwidth == 0 && len(p.Device.Rates) == 0 {
		fmt.Fprintf(&b, "\nfor a column of floors, give the figures of %s as ProfileOpt.Bandwidth and Rates\n", p.Device.Name)
	}
	for _, n := range p.notes() {
		fmt.Fprintf(&b, "\n%s\n", strings.ReplaceAll(n, "\n", " "))
	}
	if peak := p.Peak(); peak.Total > 0 {
		fmt.Fprintf(&b, "\nmemory at the peak, %v in: %s", round(peak.At), count(peak.Total, 1024, "B"))
		for _, c := range Categories() {
			if n := peak.By[c]; n > 0 {
				fmt.Fprintf(&b, ", %s %s", c, count(n, 1024, "B"))
			}
		}
		b.WriteByte('\n')
	}
	_, err = io.WriteString(w, b.String())
	return written(err)
}

// writeRows writes the rows, whose shares are those of all. The column of floors is left out if no row has one.
func writeRows(b *strings.Builder, by By, rows []Row, all time.Duration) {
	floors := slices.ContainsFunc(rows, func(r Row) bool { return r.Bounded > 0 })
	floor := func(text string) string {
		if !floors {
			return ""
		}
		return text + "\t"
	}
	var table strings.Builder
	t := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	what := by
	if by == ByTime { // each row is an operation
		what = ByOp
	}
	fmt.Fprintf(t, "calls\tdevice\tshare\thost\tbytes\tFLOPs\t%s  %s\n", floor("of the floor"), what)
	for _, r := range rows {
		key := strings.NewReplacer("\t", " ", "\n", " ").Replace(cmp.Or(r.Key, "(no "+string(by)+")"))
		fmt.Fprintf(t, "%d\t%v\t%s\t%v\t%s\t%s\t%s  %s\n", r.Calls, round(r.Device), percent(r.Device, all), round(r.Host),
			count(r.Bytes, 1024, "B"), count(r.FLOPs, 1000, ""), floor(percent(r.Floor, r.Bounded)), key)
	}
	_ = t.Flush() // to memory
	for line := range strings.Lines(table.String()) {
		b.WriteString(strings.TrimPrefix(line, "  ")) // the padding before the first column
	}
}

// source names the commit, if it is known, for the end of a line.
func (p *Profile) source() string {
	if p.Commit == "" {
		return ""
	}
	return "; commit " + strings.Join(strings.Fields(p.Commit), " ")
}

// round rounds a time to three or four digits.
func round(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 10000 {
		unit *= 10
	}
	return d.Round(unit)
}

// percent returns part as a percentage of whole, or "-" if that is not known.
func percent(part, whole time.Duration) string {
	if part <= 0 || whole <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

// count writes n with the prefix of its size.
func count(n, base int64, unit string) string {
	if n == 0 {
		return "-"
	}
	v, prefix := float64(n), ""
	for _, next := range []string{"K", "M", "G", "T", "P"} {
		if v < float64(base) {
			break
		}
		v, prefix = v/float64(base), next
		if base == 1024 {
			prefix += "i"
		}
	}
	if prefix == "" {
		return strings.TrimSpace(fmt.Sprintf("%d %s", n, unit))
	}
	return fmt.Sprintf("%.4g %s%s", v, prefix, unit)
}
