package snapshot

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"tenon.dev/fault"
)

// traceEvent is one entry of the trace event format of Chrome's viewer, which ui.perfetto.dev reads too.
type traceEvent struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"`
	Time  int64          `json:"ts"` // microseconds
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Kind  string         `json:"cat,omitempty"`
	ID    string         `json:"id,omitempty"`
	Scope string         `json:"s,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// WriteTrace writes the history as a trace in JSON for ui.perfetto.dev. Each device is a process and each stream a thread of it, with
// counters of the bytes allocated and reserved, a span for the life of each allocation, and marks for segments, failures, snapshots and
// annotations. Counters begin at what was held before the trace, as the segments and the trace tell. Spans of allocations that live at the
// end stay open. Events show the innermost 16 calls of their stack.
func (s *Snapshot) WriteTrace(w io.Writer) error {
	b := bufio.NewWriterSize(w, 1<<16)
	t := &tracer{s: s, w: b, stacks: map[StackID]json.RawMessage{}}
	t.text(`{"displayTimeUnit":"ms","traceEvents":[`)
	for device := range s.Traces {
		t.trace(device)
	}
	for _, a := range s.Annotations {
		t.event(&traceEvent{Name: a.Name + " " + a.Stage, Phase: "i", Scope: "p", Time: a.TimeUS, PID: a.Device + 1, TID: 1})
	}
	t.text("\n]}\n")
	if t.err == nil {
		t.err = b.Flush()
	}
	if t.err != nil {
		return fault.Wrap(fault.System, t.err, "the trace cannot be written")
	}
	return nil
}

// tracer writes trace events. Viewers want small numbers for processes and threads, and keep 0 for themselves.
type tracer struct {
	s      *Snapshot
	device int
	// threads are the numbers of the device's streams.
	threads map[uint64]int
	w       *bufio.Writer
	stacks  map[StackID]json.RawMessage
	begun   bool
	err     error
}

func (t *tracer) text(s string) {
	if t.err == nil {
		_, t.err = t.w.WriteString(s)
	}
}

func (t *tracer) event(e *traceEvent) {
	if t.err != nil {
		return
	}
	data, err := json.Marshal(e)
	if err != nil {
		t.err = err
		return
	}
	if t.begun {
		t.text(",")
	}
	t.begun = true
	t.text("\n")
	t.text(string(data))
}

// held returns the bytes allocated and reserved before the device's trace: those at the end without what the trace changed.
func (s *Snapshot) held(device int) (allocated, reserved int64) {
	for i := range s.Segments {
		if g := &s.Segments[i]; g.Device == device {
			allocated += int64(g.Requested)
			reserved += int64(g.TotalSize)
		}
	}
	for i := range s.Traces[device] {
		a, r := s.Traces[device][i].change()
		allocated -= a
		reserved -= r
	}
	return max(allocated, 0), max(reserved, 0)
}

// change returns by how many bytes the event changes what is allocated (as requested, until no stream uses it) and reserved.
func (e *Event) change() (allocated, reserved int64) {
	switch n := int64(e.Size); e.Action {
	case ActionAlloc:
		return n, 0
	case ActionFreeCompleted:
		return -n, 0
	case ActionSegmentAlloc, ActionSegmentMap:
		return 0, n
	case ActionSegmentFree, ActionSegmentUnmap:
		return 0, -n
	}
	return 0, 0
}

// thread returns the number of a stream.
func (t *tracer) thread(stream uint64) int {
	n, ok := t.threads[stream]
	if !ok {
		n = len(t.threads) + 1
		t.threads[stream] = n
		name := fmt.Sprintf("stream %#x", stream)
		if stream == 0 {
			name = "default stream"
		}
		t.event(&traceEvent{Name: "thread_name", Phase: "M", PID: t.device + 1, TID: n, Args: map[string]any{"name": name}})
	}
	return n
}

// trace writes the events of a device.
func (t *tracer) trace(device int) {
	t.device, t.threads = device, map[uint64]int{}
	t.event(&traceEvent{Name: "process_name", Phase: "M", PID: device + 1, Args: map[string]any{"name": fmt.Sprintf("device %d", device)}})
	t.thread(0)
	allocated, reserved := t.s.held(device)
	// Addresses recur, so a span's name is its address and the number of the event that began it.
	live := map[uint64]string{}
	for i := range t.s.Traces[device] {
		e := &t.s.Traces[device][i]
		switch e.Action {
		case ActionAlloc:
			live[e.Addr] = fmt.Sprintf("%#x.%d", e.Addr, i)
			t.span("b", t.title(e), live[e.Addr], e)
		case ActionFreeCompleted:
			if id, ok := live[e.Addr]; ok {
				t.span("e", "", id, e)
				delete(live, e.Addr)
			}
		case ActionSegmentAlloc, ActionSegmentFree, ActionSegmentMap, ActionSegmentUnmap, ActionOOM, ActionSnapshot, ActionUserDefined:
			t.event(&traceEvent{Name: e.Action.String(), Phase: "i", Scope: "p", Time: e.TimeUS, PID: device + 1, TID: t.thread(e.Stream),
				Args: t.args(e)})
		}
		if a, r := e.change(); a != 0 || r != 0 {
			allocated += a
			reserved += r
			t.event(&traceEvent{Name: "memory", Phase: "C", Time: e.TimeUS, PID: device + 1,
				Args: map[string]any{"allocated": allocated, "reserved": reserved}})
		}
	}
}

// span begins or ends the life of an allocation.
func (t *tracer) span(phase, name, id string, e *Event) {
	out := &traceEvent{Name: name, Phase: phase, Kind: "allocation", ID: id, Time: e.TimeUS, PID: t.device + 1, TID: t.thread(e.Stream)}
	if phase == "b" {
		out.Args = t.args(e)
	}
	t.event(out)
}

// title names an allocation by its innermost call.
func (t *tracer) title(e *Event) string {
	for f := range t.s.Stacks.All(e.Stack) {
		return f.Name
	}
	return "allocation"
}

func (t *tracer) args(e *Event) map[string]any {
	args := map[string]any{"size": e.Size, "stream": e.Stream}
	if e.Action == ActionOOM {
		args["device_free"] = e.Addr
	} else if e.Addr != 0 {
		args["address"] = fmt.Sprintf("%#x", e.Addr)
	}
	if e.Stack != 0 {
		args["frames"] = t.lines(e.Stack)
	}
	return args
}

// tracedCalls is how many calls of a stack, from the innermost, each event shows: the format has no stacks that events share.
const tracedCalls = 16

// lines returns the calls of a stack as JSON.
func (t *tracer) lines(id StackID) json.RawMessage {
	if text, ok := t.stacks[id]; ok {
		return text
	}
	calls := t.s.Stacks.Calls(id)
	lines := make([]string, min(len(calls), tracedCalls))
	for i := range lines {
		f := t.s.Stacks.Frame(calls[i])
		lines[i] = fmt.Sprintf("%s:%d:%s", f.File, f.Line, f.Name)
	}
	text, err := json.Marshal(lines)
	if err != nil && t.err == nil {
		t.err = err
	}
	t.stacks[id] = text
	return text
}
