package compile

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"

	"tenon.dev/internal/core"
	"tenon.dev/internal/knob"
)

// part is a group or a graph, as TENON_COMPILE_LOG has it in one line.
type part struct {
	// Kind is "group" or "graph", and Number counts those of the kind in the process from 1 on.
	Kind   string
	Number int
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
	if name := knob.CompileLog.Get(); name != "" {
		if err := p.log(name); err != nil {
			slog.Warn("TENON_COMPILE_LOG: " + err.Error())
		}
	}
	return true
}

func (p *part) log(name string) error {
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
	return func(s core.PlannedStep) bool {
		var members []*node
		for _, i := range s.Calls {
			members = append(members, calls[i])
		}
		return allowed(part{Kind: "group", Kernel: s.Kernel, Text: s.Text, Lines: linesOf(members), From: calls[0].at,
			To: calls[len(calls)-1].at})
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
