package compile

import (
	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// trace is what a region remembers of one session: a tree of the calls that came after each other. It is the session's tap while a region
// runs.
type trace struct {
	opt  *Opt
	root *node
	// at is the last call that was matched or remembered; nil once there are too many branches.
	at    *node
	slots core.Slots
	// open are the depths of the calls under way, which other calls may be part of.
	open  []int
	outer core.Tap
	stats Stats
}

// node is a call that a region made.
type node struct {
	call core.Call
	next []*node
	// last is the branch that was taken last.
	last int
	// plans are those of the calls that end here and are put off.
	plans core.Place
}

// Stats counts calls of a region, over all of its runs in one session.
type Stats struct {
	// Runs are calls of Do. Recorded calls came for the first time, Deferred ones were put off, and Eager ones ran at once though they had
	// come before; a view is none of these, and neither is Empty.
	Runs, Recorded, Deferred, Eager int
	// Unknown calls are those after a call from which there were too many branches.
	Unknown int
	// Kernels are the built-in kernels that ran for the calls that were put off. Fused are the calls among these that ran in kernels of
	// several calls, and Dropped those that did not run: nobody needed what they make, or another call made the same.
	Kernels, Fused, Dropped int
}

// count adds what came between before and after.
func (s *Stats) count(before, after core.FusionStats) {
	s.Kernels += after.Kernels - before.Kernels
	s.Fused += after.Fused - before.Fused
	s.Dropped += after.Dropped - before.Dropped
}

func (t *trace) begin(outer core.Tap) {
	t.outer, t.at = outer, t.root
	t.open = t.open[:0]
	t.slots.Reset()
	t.stats.Runs++
}

// Before compares the call with those that came here in earlier runs.
func (t *trace) Before(f *core.Frame) bool {
	depth := f.Depth()
	for len(t.open) > 0 && t.open[len(t.open)-1] >= depth { // it failed
		t.open = t.open[:len(t.open)-1]
	}
	inside := len(t.open) > 0
	t.open = append(t.open, depth)
	if t.outer != nil && t.outer.Before(f) {
		return true
	}
	if inside { // what an operation does on its own behalf follows from its call
		return false
	}
	if t.at == nil {
		t.stats.Unknown++
		return false
	}
	if !t.match(f) {
		t.remember(f)
		return false
	}
	if f.Deferrable() && f.Defer() {
		if !t.opt.NoFusion {
			f.PlanAt(&t.at.plans)
		}
		t.stats.Deferred++
		return true
	}
	if f.Works() {
		t.stats.Eager++
	}
	return false
}

// match goes on to the branch of f's call, if there is one.
func (t *trace) match(f *core.Frame) bool {
	n := t.at
	if len(n.next) == 0 {
		return false
	}
	if f.Matches(&n.next[n.last].call, &t.slots) {
		t.at = n.next[n.last]
		return true
	}
	for i, c := range n.next {
		if i != n.last && f.Matches(&c.call, &t.slots) {
			n.last, t.at = i, c
			return true
		}
	}
	return false
}

func (t *trace) remember(f *core.Frame) {
	n := t.at
	if len(n.next) >= t.opt.Branches {
		t.at = nil
		t.stats.Unknown++
		return
	}
	c := &node{call: f.Key(&t.slots)}
	n.next = append(n.next, c)
	n.last, t.at = len(n.next)-1, c
	t.stats.Recorded++
}

// After gives what the call made its place among the storages of the run.
func (t *trace) After(f *core.Frame) {
	t.open = t.open[:len(t.open)-1]
	if t.outer != nil {
		t.outer.After(f)
	}
	if len(t.open) == 0 && t.at != nil {
		f.Made(&t.slots)
	}
}

// Stats returns the counts of x's session.
func (r *Region) Stats(x *tenon.Exec) Stats {
	if r == nil || r.traces == nil {
		core.Fail("Stats", fault.Invalid, notMade)
	}
	core.Made((*core.Exec)(x), "Stats")
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.traces[core.SessionOf((*core.Exec)(x))]; t != nil {
		return t.stats
	}
	return Stats{}
}
