package compile

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// Explanation says what happened to a region's calls in one session.
type Explanation struct {
	// Format is 1.
	Format int
	// Name is the name of the region's function, the first if it ran several. It is "" before the first run and for ExplainTrees.
	Name string `json:",omitempty"`
	// Device is the session's device. Stats are the region's counts, to which backward passes add all but their runs. ExplainTrees counts
	// only how segments ran.
	Device string
	Stats  Stats
	// Segments begin with those that ran most often. If they ran equally often, they are in the order of their first run, with those of
	// backward passes last.
	Segments []Segment
	// Forks are the places where a different call came in a later run.
	Forks []Fork
	// Cuts are the causes that made calls run before the region's end, and Skips the warnings about those that no graph can contain.
	Cuts  []Cut
	Skips []Reason `json:",omitempty"`
	// Limits say what Opt.Branches kept from being remembered: calls that ran at once, and branches and recordings that were forgotten.
	Limits []Reason `json:",omitempty"`
	// Live counts the blocks of the session's pool that are in use, and Memory their bytes.
	Live   int
	Memory int64
	// Bandwidth is the bandwidth of the device's memory in bytes per second, from which the text computes floors. Tenon does not know it:
	// it is 0 unless the caller sets it.
	Bandwidth float64
}

// Segment is a sequence of calls that ran together.
type Segment struct {
	// Function is its number in TreesOf, or -1 if it was never meant to have a graph.
	Function int
	// Kind is "inference", "forward" or "backward".
	Kind string
	// From and To are the lines of the first and the last call, and Calls is the number of calls.
	From, To string
	Calls    int
	// WarmUps, Recordings, Replays and Plain count how often it ran in each way. Because is why it last ran without a graph.
	WarmUps, Recordings, Replays, Plain int
	Because                             string `json:",omitempty"`
	// Runs are its first four runs and its last, in their order.
	Runs []Run `json:",omitempty"`
	// Planning is how long it took to find out which calls run in one kernel, Building how long runs waited until kernels were built, and
	// Recording how long the recordings took besides. What others wait for on the device meanwhile counts as well.
	Planning, Building, Recording time.Duration
	// Recomputed are the values that its latest run did not save for the backward pass, which computes them again.
	Recomputed []Recomputed `json:",omitempty"`
	// LaidOut counts the values that fusion laid out anew, with their channels last.
	LaidOut int `json:",omitempty"`
	// Kernels are what runs for the calls, in order, and Graphs are its recordings.
	Kernels []Kernel
	Graphs  []Graph `json:",omitempty"`
	// Skips are the warnings about runs without a graph, and Again the reasons why it was recorded again.
	Skips, Again []Reason `json:",omitempty"`
}

// Recomputed are values that a function did not save.
type Recomputed struct {
	// Op is the name of the operation that makes them, and At the line. Values is their number, and Bytes their size together.
	Op, At        string
	Values, Bytes int
}

// Kernel is a fused kernel, or the kernels of one operation.
type Kernel struct {
	// Name is the name of the kernel or the operation. Text lists the calls of a fused kernel, one per line, with types and shapes.
	Name string
	Text string `json:",omitempty"`
	// Lines are the lines of the calls.
	Lines []string
	// Fused says that it is one kernel for several calls.
	Fused bool `json:",omitempty"`
	// Bytes is how many bytes it reads and writes, or 0 if that is not known.
	Bytes int
}

// Graph is a recording.
type Graph struct {
	// ID is its number, and After the number of the recording before it, or -1.
	ID, After int
	// Nodes counts its operations and Kernels the kernels among them.
	Nodes, Kernels int
	// Lanes is how many rows the work runs in, side by side: 2 if that is faster, otherwise 1.
	Lanes int
	// Static, Managed and Copied count its inputs: those read in place, the outputs of earlier recordings, and those that are copied.
	Static, Managed, Copied int
}

// Reason is why something happened, how often, and what helps.
type Reason struct {
	// Text is the reason, Times how often it occurred (0 if not counted), and Remedy what helps, or "".
	Text   string
	Times  int    `json:",omitempty"`
	Remedy string `json:",omitempty"`
}

// Fork is a place where a different call came than in an earlier run.
type Fork struct {
	// After is the line of the call before it, or "" at the region's beginning.
	After string
	// Was and Is are the lines of the earlier and the later call. Differs says what differs, with the value of each, and Remedy what helps,
	// or "".
	Was, Is, Differs string
	Remedy           string `json:",omitempty"`
}

// Cut is a cause that made deferred calls run: Cause, such as Read, within the operation Within, if there is one.
type Cut struct {
	Cause  string
	Within string `json:",omitempty"`
	// At is the line of its first occurrence, and Times counts the occurrences.
	At    string
	Times int
	// within is the operation as core reports it.
	within string
}

// Explain says what happened to the region's calls in x's session. It needs no preparation, so it reports only what is always kept.
func (r *Region) Explain(x *tenon.Exec) *Explanation {
	if r == nil || r.traces == nil {
		core.Fail("Explain", fault.Invalid, notMade)
	}
	c := (*core.Exec)(x)
	core.Made(c, "Explain")
	r.mu.Lock()
	defer r.mu.Unlock()
	e := newExplanation(c)
	t := r.traces[core.SessionOf(c)]
	if t == nil {
		return e
	}
	e.Name, e.Stats = t.name, t.counts()
	for ; t != nil; t = t.back {
		if t.ahead != nil {
			counts := t.counts()
			e.Stats.add(&counts)
		}
		e.walk(t.root)
		e.Skips = append(e.Skips, t.cutSkips...)
		e.Limits = append(e.Limits, t.limits()...)
	}
	e.order()
	return e
}

// order puts the segments that ran most often first. What ran once, such as the first step of an optimizer, says little.
func (e *Explanation) order() {
	runs := func(s Segment) int { return s.WarmUps + s.Recordings + s.Replays + s.Plain }
	slices.SortStableFunc(e.Segments, func(a, b Segment) int { return runs(b) - runs(a) })
}

// add adds the counts of a backward pass to those of its region.
func (s *Stats) add(b *Stats) {
	for _, c := range []struct{ to, n *int }{
		{&s.New, &b.New}, {&s.Deferred, &b.Deferred}, {&s.Eager, &b.Eager}, {&s.Unknown, &b.Unknown},
		{&s.Forgotten, &b.Forgotten}, {&s.WarmUps, &b.WarmUps}, {&s.Recordings, &b.Recordings}, {&s.Replays, &b.Replays},
		{&s.Plain, &b.Plain}, {&s.Forced, &b.Forced}, {&s.Kernels, &b.Kernels}, {&s.Fused, &b.Fused}, {&s.Dropped, &b.Dropped},
		{&s.Recomputed, &b.Recomputed}, {&s.Compared, &b.Compared},
	} {
		*c.to += *c.n
	}
}

// limits says what Opt.Branches kept from being remembered.
func (t *trace) limits() (all []Reason) {
	for _, r := range []Reason{
		{Text: unknownText + "; the first such call was at " + t.unknownAt, Times: t.stats.Unknown},
		{Text: forgottenText + t.forgottenFor, Times: t.stats.Forgotten},
	} {
		if r.Times > 0 {
			r.Remedy = remedy(r.Text)
			all = append(all, r)
		}
	}
	return all
}

const (
	unknownText   = "a call ran at once, since there are too many different calls and Frozen forgets none"
	forgottenText = "what was used least recently was forgotten, since Opt.Branches was reached; the latest call that needed room is at "
)

// ExplainTrees is Explain for all recordings of x's session on its device, whichever region made them.
func ExplainTrees(x *tenon.Exec) *Explanation {
	c := (*core.Exec)(x)
	core.Made(c, "ExplainTrees")
	e := newExplanation(c)
	if fo := forestOf(c, c.Device(), false); fo != nil {
		var fs []*function
		for _, r := range recordingsOf(fo.roots) {
			if !slices.Contains(fs, r.f) {
				fs = append(fs, r.f)
			}
		}
		slices.SortFunc(fs, func(a, b *function) int { return cmp.Compare(a.id, b.id) })
		for _, f := range fs {
			s := f.explain()
			e.Segments = append(e.Segments, s)
			e.Stats.add(&Stats{WarmUps: s.WarmUps, Recordings: s.Recordings, Replays: s.Replays, Plain: s.Plain})
		}
	}
	e.order()
	return e
}

func newExplanation(c *core.Exec) *Explanation {
	e := &Explanation{Format: 1, Device: c.Device().String()}
	if fo := forestOf(c, c.Device(), false); fo != nil && fo.pool != nil {
		e.Live, e.Memory = core.LiveBlocks(fo.dev, fo.pool.ID())
	}
	return e
}

// walk adds the segments, forks and cuts of the calls from n on.
func (e *Explanation) walk(n *node) {
	for _, c := range n.cuts { // other paths may have the same one
		same := func(o Cut) bool { return o.What() == c.What() && o.At == c.At }
		if i := slices.IndexFunc(e.Cuts, same); i >= 0 {
			e.Cuts[i].Times += c.Times
		} else {
			e.Cuts = append(e.Cuts, c)
		}
	}
	if n.alone != nil && n.alone.plains > 0 {
		e.Segments = append(e.Segments, n.alone.explain())
	}
	for _, f := range n.ends {
		e.Segments = append(e.Segments, f.explain())
	}
	for i, c := range n.next {
		if i > 0 {
			was := n.next[0]
			differs := was.Call.Differs(c.Call)
			e.Forks = append(e.Forks, Fork{n.at, was.at, c.at, differs, remedy(differs)})
		}
		e.walk(c)
	}
}

func recordingsOf(rs []*recording) (all []*recording) {
	for _, r := range rs {
		all = append(append(all, r), recordingsOf(r.children)...)
	}
	return all
}

// explain describes the function.
func (f *function) explain() Segment {
	s := Segment{Function: f.id, Kind: string(f.kind), From: f.calls[0].at, To: f.last.at, Calls: len(f.calls),
		WarmUps: f.warmUps, Recordings: f.recordings, Replays: f.replays, Plain: f.plains, Because: f.because,
		Runs: slices.Clone(f.timeline.kept[:f.timeline.n]), Planning: f.last.plans.Took(), Building: f.building,
		Recording: f.recording, LaidOut: f.last.plans.LaidOut(len(f.calls))}
	steps := f.last.plans.Steps(len(f.calls))
	if steps == nil {
		for i := range f.calls {
			steps = append(steps, core.PlannedStep{Calls: []int{i}})
		}
	}
	for _, st := range steps {
		if st.Kernel == "" {
			n := f.calls[st.Calls[0]]
			s.Kernels = append(s.Kernels, Kernel{Name: n.name(), Lines: []string{n.at}, Bytes: n.Call.Bytes() - st.Saved})
			continue
		}
		k := Kernel{Name: st.Kernel, Text: st.Text, Fused: true, Bytes: st.Bytes}
		for _, i := range st.Calls {
			if at := f.calls[i].at; !slices.Contains(k.Lines, at) {
				k.Lines = append(k.Lines, at)
			}
		}
		s.Kernels = append(s.Kernels, k)
	}
	for _, o := range f.omitted {
		s.recompute(o.Call.Node.(*node), o.Bytes)
	}
	if f.fo != nil {
		for _, r := range recordingsOf(f.fo.roots) {
			if r.f == f {
				s.Graphs = append(s.Graphs, r.explain())
			}
		}
	}
	for text := range f.told { //tenon:unordered they are sorted
		s.Skips = append(s.Skips, Reason{Text: text, Remedy: remedy(text)})
	}
	for text, n := range f.again { //tenon:unordered they are sorted
		s.Again = append(s.Again, Reason{Text: text, Times: n, Remedy: remedy(text)})
	}
	for _, rs := range [][]Reason{s.Skips, s.Again} {
		slices.SortFunc(rs, func(a, b Reason) int { return strings.Compare(a.Text, b.Text) })
	}
	return s
}

// recompute adds a value that n makes to those that are computed again.
func (s *Segment) recompute(n *node, bytes int) {
	op := n.name()
	i := slices.IndexFunc(s.Recomputed, func(r Recomputed) bool { return r.Op == op && r.At == n.at })
	if i < 0 {
		i, s.Recomputed = len(s.Recomputed), append(s.Recomputed, Recomputed{Op: op, At: n.at})
	}
	s.Recomputed[i].Values++
	s.Recomputed[i].Bytes += bytes
}

// String describes the values, such as "GELU at model.go:91, 12 times, 603979776 bytes".
func (r Recomputed) String() string {
	return fmt.Sprintf("%s at %s, %s, %d bytes", r.Op, r.At, times(r.Values), r.Bytes)
}

// name returns the name of the call's operation. In parentheses follows what the call is a part of, if that has another name: the step of
// an optimizer, or the method that the program called, such as IndexSelect for Gather.
func (n *node) name() string {
	op := n.Call.Op()
	part := n.within
	if part == "" && !strings.HasPrefix(n.From.Op, op) {
		part = n.From.Op
	}
	if part == "" {
		return op
	}
	return op + " (" + part + ")"
}

func (r *recording) explain() Graph {
	g := Graph{ID: r.id, After: -1, Nodes: r.g.Nodes(), Kernels: r.g.Kernels(), Lanes: r.g.Lanes()}
	if r.parent != nil {
		g.After = r.parent.id
	}
	for i, in := range r.inputs {
		switch {
		case in.managed:
			g.Managed++
		case r.g.Copied(i):
			g.Copied++
		default:
			g.Static++
		}
	}
	return g
}

var remedies = []struct{ text, remedy string }{
	{"mutated inputs", "name the argument in Opt.Static, let the function capture it, or return a new tensor"},
	{"cpu device", "move tensors of the processor to the device first, and read values after the call"},
	{"incompatible op", "see in Explain which operation cuts the function, and do it before or after the call, or in compile.Disable"},
	{"multiple devices", "give each device a region of its own"},
	{"an output whose address", "do not ask for the address of what the region makes, or copy it to memory of your own first"},
	{"re-recording limit", "give the function tensors that stay where they are, leave them out of Opt.Static, or raise Opt.RerecordLimit"},
	{"symbolic shapes", "pad inputs to a few shapes, or drop Opt.SkipDynamic"},
	{staticMoved, "leave tensors that the function captures, and those of Opt.Static, where they are, or raise Opt.RerecordLimit"},
	{managedMoved, "close the outputs of earlier calls in the same order in every run"},
	{"is lost to this process", "read that error, and start the process anew"},
	{"a failed recording", "free memory, or read the error that it names"},
	{"is open", "close tensors at the same place in every run"},
	{"are live", "close tensors at the same place in every run"},
	{"place or alignment", "keep the position in a tensor and write there with IndexCopyInto, so that it is not part of the call"},
	{"Frozen forgets none", "make fewer different calls in Frozen, or raise Opt.Branches"},
	{forgottenText, "pad inputs to a few fixed shapes, make fewer different calls, or raise Opt.Branches"},
}

// remedy returns what helps against a reason, or "".
func remedy(reason string) string {
	for _, r := range remedies {
		if strings.Contains(reason, r.text) {
			return r.remedy
		}
	}
	return ""
}

// Floor returns the least time, in microseconds, in which the kernel's bytes can be moved, with a bandwidth in bytes per second.
func (k *Kernel) Floor(bandwidth float64) float64 {
	if k == nil || bandwidth <= 0 {
		return 0
	}
	return float64(k.Bytes) / bandwidth * 1e6
}

// WriteJSON writes e as one line. A file may have several.
func (e *Explanation) WriteJSON(w io.Writer) error {
	if e == nil || w == nil {
		return fault.New(fault.Invalid, "the explanation or the writer is nil; give both")
	}
	if err := json.NewEncoder(w).Encode(e); err != nil {
		return fault.Wrap(fault.System, err, "the explanation cannot be written")
	}
	return nil
}

// ReadExplanations reads what WriteJSON wrote.
func ReadExplanations(r io.Reader) (all []*Explanation, err error) {
	if r == nil {
		return nil, fault.New(fault.Invalid, "there is nothing to read from; give a reader")
	}
	d := json.NewDecoder(r)
	for {
		e := &Explanation{}
		switch err := d.Decode(e); {
		case errors.Is(err, io.EOF) && len(all) > 0:
			return all, nil
		case errors.Is(err, io.EOF):
			return nil, fault.New(fault.Invalid, "the file is empty; write one with Explanation.WriteJSON")
		case errors.Is(err, io.ErrUnexpectedEOF):
			return nil, fault.New(fault.Invalid, "explanation %d ends in the middle; write the file again with Explanation.WriteJSON",
				len(all)+1)
		case errors.As(err, new(*json.SyntaxError)):
			return nil, fault.New(fault.Invalid, "explanation %d is not JSON; give a file that Explanation.WriteJSON wrote", len(all)+1)
		case err != nil:
			return nil, fault.New(fault.Invalid, "explanation %d cannot be read (%v); give a file that Explanation.WriteJSON wrote",
				len(all)+1, err)
		case e.Format != 1:
			return nil, fault.New(fault.Invalid, "explanation %d has format %d, and this version reads 1; give a file that its "+
				"Explanation.WriteJSON wrote",
				len(all)+1, e.Format)
		}
		all = append(all, e)
	}
}

// String returns the explanation as text.
func (e *Explanation) String() string {
	if e == nil {
		return ""
	}
	var b strings.Builder
	s := &e.Stats
	if e.Name != "" {
		fmt.Fprintf(&b, "%s on ", e.Name)
	}
	fmt.Fprintf(&b, "%s: ", e.Device)
	if s.Runs > 0 {
		fmt.Fprintf(&b, "%s, %s deferred, %d at once; ", counted(s.Runs, "run"), counted(s.Deferred, "call"), s.Eager)
	}
	fmt.Fprintf(&b, "segments: %d warm-up, %d recorded, %d replayed, %d without a graph\n", s.WarmUps, s.Recordings, s.Replays, s.Plain)
	if s.Runs > 0 {
		fmt.Fprintf(&b, "kernels: %d; calls in fused kernels: %d; unused calls: %d; ", s.Kernels, s.Fused, s.Dropped)
	}
	fmt.Fprintf(&b, "pool: %s, %d bytes\n", counted(e.Live, "block"), e.Memory)
	for _, r := range e.Limits {
		fmt.Fprintf(&b, "limit, %s: %s\n", times(r.Times), r)
	}
	for i := range e.Segments {
		e.Segments[i].print(&b, i, e.Bandwidth)
	}
	e.printTimeline(&b)
	for _, f := range e.Forks {
		differs := Reason{Text: f.Differs, Remedy: f.Remedy}
		where := "at the first call"
		if f.After != "" {
			where = "after " + f.After
		}
		fmt.Fprintf(&b, "fork %s: %s, then %s: %s\n", where, f.Was, f.Is, differs)
	}
	for _, c := range e.Cuts {
		fmt.Fprintf(&b, "cut by %s at %s, %s\n", c.What(), c.At, times(c.Times))
	}
	for _, r := range e.Skips {
		fmt.Fprintf(&b, "skip: %s\n", r)
	}
	return b.String()
}

// What names the cause.
func (c *Cut) What() string {
	if c == nil {
		return ""
	}
	if c.Within == "" || c.Within == c.Cause {
		return c.Cause
	}
	return c.Cause + " in " + c.Within
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// counted returns a number of things.
func counted(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", one, "s")
}

func (s *Segment) print(b *strings.Builder, i int, bandwidth float64) {
	fmt.Fprintf(b, "segment %d, %s: %s from %s to %s; %d warm-up, %d recorded, %d replayed, %d without a graph\n", i, s.Kind,
		counted(s.Calls, "call"), s.From, s.To,
		s.WarmUps, s.Recordings, s.Replays, s.Plain)
	if s.Because != "" {
		fmt.Fprintf(b, "  without a graph: %s\n", indented(s.Because))
	}
	if took := s.Took(); took != "" {
		fmt.Fprintf(b, "  took %s\n", took)
	}
	for _, g := range s.Graphs {
		after := "first"
		if g.After >= 0 {
			after = fmt.Sprint("after ", g.After)
		}
		lanes := ""
		if g.Lanes > 1 {
			lanes = fmt.Sprintf(" in %d lanes", g.Lanes)
		}
		fmt.Fprintf(b, "  graph %d, %s: %s, %s%s; inputs: %d static, %d managed, %d copied\n", g.ID, after,
			counted(g.Nodes, "operation"), counted(g.Kernels, "kernel"), lanes, g.Static, g.Managed, g.Copied)
	}
	if s.LaidOut > 0 {
		fmt.Fprintf(b, "  values moved to channels last: %d\n", s.LaidOut)
	}
	for _, k := range s.Kernels {
		fmt.Fprintf(b, "  %s: %d bytes", k.Name, k.Bytes)
		if bandwidth > 0 {
			fmt.Fprintf(b, ", at least %.3g us", k.Floor(bandwidth))
		}
		fmt.Fprintf(b, ", %s\n", strings.Join(k.Lines, ", "))
		for l := range strings.Lines(k.Text) {
			fmt.Fprintf(b, "    %s", l)
		}
	}
	for _, r := range s.Recomputed {
		fmt.Fprintf(b, "  not saved, but computed again by the backward pass: %s\n", r)
	}
	for _, r := range s.Skips {
		fmt.Fprintf(b, "  skip: %s\n", indented(r.String()))
	}
	for _, r := range s.Again {
		fmt.Fprintf(b, "  recorded again, %s: %s\n", times(r.Times), r)
	}
}

// Took says how long it took to plan, build and record the segment, such as "1.2 ms to plan, 30 ms to build kernels". It is "" if nothing
// did.
func (s *Segment) Took() string {
	if s == nil {
		return ""
	}
	var all []string
	for _, p := range []struct {
		took time.Duration
		to   string
	}{{s.Planning, "to plan"}, {s.Building, "to build kernels"}, {s.Recording, "to record"}} {
		if p.took > 0 {
			all = append(all, fmt.Sprintf("%.3g ms %s", p.took.Seconds()*1e3, p.to))
		}
	}
	return strings.Join(all, ", ")
}

// String returns the text with the remedy.
func (r Reason) String() string { return advised(r.Text, r.Remedy) }

// advised returns a text with what helps, unless that is "": in the same line, or in one of its own if the text ends with a line of the
// program.
func advised(text, help string) string {
	switch {
	case help == "":
		return text
	case strings.Contains(text, "\n"):
		return text + "\nTo avoid that, " + help + "."
	}
	return text + "; " + help
}

// indented returns a text of several lines as a part of a segment's description.
func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n    ") }
