package compile

import (
	"cmp"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/knob"
)

// part is a group, a graph or a difference, as TENON_COMPILE_LOG has it in one line.
type part struct {
	// Kind is "group", "graph" or "difference", and Number counts groups and graphs in the process from 1 on.
	Kind   string
	Number int `json:",omitempty"`
	// What says what differs.
	What string `json:",omitempty"`
	// Kernel and Text are set for a group. Lines are the lines of the calls. From and To are the lines of the segment's first and last
	// call.
	Kernel, Text string `json:",omitempty"`
	Lines        []string
	From, To     string `json:",omitempty"`
}

// parts counts the groups and graphs that the process has made.
var parts struct {
	sync.Mutex
	groups, graphs int
}

// counting reports whether groups and graphs are counted.
func counting() bool {
	return knob.CompileLog.Get() != "" || knob.CompileGroups.Get() < knob.MaxCompileParts || knob.CompileGraphs.Get() < knob.MaxCompileParts
}

// allowed counts p, and reports whether it may be used. If so, it writes p to the log.
func allowed(p part) bool {
	parts.Lock()
	defer parts.Unlock()
	n, most := &parts.groups, knob.CompileGroups.Get()
	if p.Kind == "graph" {
		n, most = &parts.graphs, knob.CompileGraphs.Get()
	}
	if *n >= most {
		return false
	}
	*n++
	p.Number = *n
	p.log()
	return true
}

// log adds p to the log, if there is one.
func (p *part) log() {
	if name := knob.CompileLog.Get(); name != "" {
		if err := p.write(name); err != nil {
			slog.Warn("TENON_COMPILE_LOG: " + err.Error())
		}
	}
}

func (p *part) write(name string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(f).Encode(p), f.Close())
}

// allowing returns a function that reports whether a planned group of those calls may be used; nil allows all.
func (t *trace) allowing(g *core.Segment) func(core.PlannedStep) bool {
	if !t.counted {
		return nil
	}
	calls := nodesOf(g)
	return func(s core.PlannedStep) bool { return allowed(partOf(calls, "group", s)) }
}

// partOf describes a step of a segment of those calls.
func partOf(calls []*node, kind string, s core.PlannedStep) part {
	var members []*node
	for _, i := range s.Calls {
		members = append(members, calls[i])
	}
	return part{Kind: kind, Kernel: cmp.Or(s.Kernel, members[0].name()), Text: s.Text, Lines: linesOf(members), From: calls[0].at,
		To: calls[len(calls)-1].at}
}

const differsText = "the kernel %s gives other bits than its calls, at %s, do one by one: %s. This is a bug in Tenon; please report " +
	"it. Meanwhile, compile.Opt.NoFusion runs the calls one by one"

// differing returns a function for the first step of the segment that makes other bits than its calls: it logs the step and returns an
// error.
func (t *trace) differing(g *core.Segment) func(s core.PlannedStep, what string) error {
	calls := nodesOf(g)
	return func(s core.PlannedStep, what string) error {
		p := partOf(calls, "difference", s)
		p.What = what
		p.log()
		return core.Refusal("Do", fault.Invalid, differsText, p.Kernel, strings.Join(p.Lines, ", "), what)
	}
}

// linesOf returns the lines of the calls, each once.
func linesOf(calls []*node) (lines []string) {
	for _, c := range calls {
		if !slices.Contains(lines, c.at) {
			lines = append(lines, c.at)
		}
	}
	return lines
}
