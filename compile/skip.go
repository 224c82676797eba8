package compile

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

func sprintf(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// unmanaged returns why f cannot run as a graph here, or "": it changes memory that is not an output of the path and has no fixed address.
func (fo *forest) unmanaged(f *function, g *core.Segment) string {
	if f.plain != "" {
		return f.plain
	}
	var found []string
	for i := range f.inputs {
		k := &f.inputs[i]
		if !k.written || k.static {
			continue
		}
		in := &g.Inputs()[i]
		if !f.t.opt.PlainMutation && fo.managed(in) {
			continue
		}
		if warmsUp := !f.warm && !f.t.opt.NoWarmup; warmsUp && in.Ending() { // nobody sees the change, and the next run's may be managed
			continue
		}
		at := f.writerOf(g, i)
		if k.arg >= 0 {
			at = f.nameOf(i) + " at " + at
		}
		found = append(found, at)
	}
	if len(found) == 0 {
		return ""
	}
	return fmt.Sprintf("mutated inputs (%d instances). Found from : \n %s", len(found), strings.Join(slices.Compact(found), "\n "))
}

// writerOf returns the line of the call that changes input i.
func (f *function) writerOf(g *core.Segment, i int) string {
	return sourceOf(f.calls[g.WriterOf(i)].at)
}

// sourceOf returns the place and, if the file can be read, the text of its line.
func sourceOf(at string) string {
	file, number, ok := strings.Cut(at, ":")
	if i := strings.LastIndexByte(at, ':'); i > 0 {
		file, number, ok = at[:i], at[i+1:], true
	}
	line, err := strconv.Atoi(number)
	if !ok || err != nil {
		return at
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return at
	}
	lines := strings.Split(string(text), "\n")
	if line < 1 || line > len(lines) {
		return at
	}
	return at + "\n    " + strings.TrimSpace(lines[line-1])
}

// skip counts and warns, once for each function and reason, that f's calls run without a graph.
func (fo *forest) skip(f *function, reason string) {
	fo.skipWhole(f, "skipping cudagraphs due to "+reason)
}

func (fo *forest) skipWhole(f *function, text string) {
	if f.told[text] {
		return
	}
	if f.told == nil {
		f.told = map[string]bool{}
	}
	f.told[text] = true
	if f.hushed {
		fo.skips++
		return
	}
	fo.warn(f.t, text)
}

// warn counts a skip and logs why, and what helps. A region that was warned about forgotten work meets the same skips again and again; they
// are only counted.
func (fo *forest) warn(t *trace, text string) {
	fo.skips++
	if t.thrashed {
		return
	}
	if help := remedy(text); help != "" {
		text += "\nTo avoid that, " + help + "."
	}
	slog.Warn(text)
}

// neverReplayed is the number of runs after which a region that has replayed nothing warns. Some regions meet dozens of lengths in turn.
const neverReplayed = 128

const neverText = "A compiled region has run %d times and has replayed no graph, because its calls differ from run to run: %s, at %s. To " +
	"avoid that, %s. A negative DynamicLimit silences this warning."

// endRun warns of a region whose runs all differ. Such a region is slower than without compile.
func (t *trace) endRun() {
	if t.stats.Runs != neverReplayed || t.stats.Replays > 0 || t.stats.WarmUps == 0 || t.opt.shapes() < 0 {
		return
	}
	n := t.root
	for len(n.next) == 1 {
		n = n.next[0]
	}
	if k := len(n.next); k > 0 {
		t.warnNever(n.next[k-2], n.next[k-1], "")
	}
}

// warnNever warns that nothing was replayed, since the first of the two calls was replaced by the second. more is what else helps.
func (t *trace) warnNever(was, is *node, more string) {
	if !t.tells(is.at) {
		return
	}
	differs := was.Call.Differs(is.Call)
	help := remedy(differs)
	switch {
	case help != "":
	case was.Call.Op() == is.Call.Op() && !was.Call.SameSizes(is.Call):
		help = "pad inputs to a few fixed shapes"
	default:
		help = "make the same calls in every run, or let them take what changes from a tensor"
	}
	slog.Warn(fmt.Sprintf(neverText, t.stats.Runs, differs, is.at, help+more))
}

// unfix marks inputs of a Do that have moved as copied. Inputs that the calls change stay static.
func (fo *forest) unfix(f *function, g *core.Segment) {
	if f.t.callable {
		return
	}
	for i := range f.inputs {
		if k := &f.inputs[i]; k.static && !k.written && k.addr != 0 && k.addr != g.Inputs()[i].Addr() {
			if _, ok := fo.find(&g.Inputs()[i]); !ok {
				k.static = false
			}
		}
	}
}

// staticMoved is the error for static inputs that moved.
func (fo *forest) staticMoved(f *function, g *core.Segment) error {
	var b strings.Builder
	b.WriteString("static input data pointer changed.\n")
	for i := range f.inputs {
		in := &g.Inputs()[i]
		if _, managed := fo.find(in); managed || !f.inputs[i].static || f.inputs[i].addr == in.Addr() {
			continue
		}
		fmt.Fprintf(&b, "input name: %s. data pointer changed from %#x to %#x. input stack trace: %s\n", f.nameOf(i),
			f.inputs[i].addr, in.Addr(),
			sourceOf(f.calls[g.UserOf(i)].at))
	}
	return fault.New(fault.Invalid, "%s", b.String())
}

// nameOf names an input.
func (f *function) nameOf(i int) string {
	if a := f.inputs[i].arg; a >= 0 {
		return fmt.Sprintf("arg%d", a)
	}
	return fmt.Sprintf("input%d", i)
}
