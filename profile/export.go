package profile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"tenon.dev/internal/pprof"
)

// traceEvent is one entry of the trace event format of Chrome's viewer, which ui.perfetto.dev reads too.
type traceEvent struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"`
	Time  float64        `json:"ts"` // microseconds
	Took  *float64       `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int64          `json:"tid"`
	Kind  string         `json:"cat,omitempty"`
	ID    int            `json:"id,omitempty"`
	Bind  string         `json:"bp,omitempty"`
	Scope string         `json:"s,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// The processes of a trace.
const (
	hostProcess = iota + 1
	deviceProcess
	memoryProcess
)

// tracer writes the events of a trace.
type tracer struct {
	w     *bufio.Writer
	begun bool
	err   error
}

func (t *tracer) event(e traceEvent) {
	if t.err != nil {
		return
	}
	text, err := json.Marshal(e)
	if err == nil {
		if t.begun {
			text = append([]byte(",\n"), text...)
		}
		t.begun = true
		_, err = t.w.Write(text)
	}
	t.err = err
}

func (t *tracer) name(kind string, pid int, tid int64, name string) {
	t.event(traceEvent{Name: kind, Phase: "M", PID: pid, TID: tid, Args: map[string]any{"name": name}})
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

// span writes an event with a duration.
func (t *tracer) span(name, kind string, pid int, tid int64, begin, end time.Duration, args map[string]any) {
	took := micros(end - begin)
	t.event(traceEvent{Name: name, Phase: "X", Time: micros(begin), Took: &took, PID: pid, TID: tid, Kind: kind, Args: args})
}

// WriteTrace writes the profile as a trace in JSON that ui.perfetto.dev and Chrome's viewer open: the calls of each goroutine, the kernels
// of each stream with arrows from their calls, and the allocator's events with the memory of each category.
func (p *Profile) WriteTrace(w io.Writer) error {
	if err := p.usable(w); err != nil {
		return err
	}
	t := &tracer{w: bufio.NewWriterSize(w, 1<<16)}
	_, t.err = t.w.WriteString(`{"displayTimeUnit":"ns","traceEvents":[` + "\n")
	t.name("process_name", hostProcess, 0, "host")
	t.name("process_name", deviceProcess, 0, p.Device.Name)
	t.name("process_name", memoryProcess, 0, "memory of "+p.Device.Name)
	t.name("thread_name", memoryProcess, 1, "blocks")
	t.name("thread_name", memoryProcess, 2, "segments")
	named, flow := map[[2]int64]bool{}, 0
	thread := func(pid int, tid int64, what string) {
		if k := [2]int64{int64(pid), tid}; !named[k] {
			named[k] = true
			t.name("thread_name", pid, tid, fmt.Sprintf("%s %d", what, tid))
		}
	}
	for i := range p.Ops {
		o := &p.Ops[i]
		thread(hostProcess, o.Goroutine, "goroutine")
		if !p.replayed(i) {
			t.span(o.title(), string(o.Kind), hostProcess, o.Goroutine, o.Begin, o.End, p.arguments(i))
		}
		for _, k := range o.Kernels {
			if !k.Timed {
				continue
			}
			flow++
			stream := int64(o.Stream) + 1 // viewers keep 0 for themselves
			if key := [2]int64{deviceProcess, stream}; !named[key] {
				named[key] = true
				t.name("thread_name", deviceProcess, stream, fmt.Sprintf("stream %d", o.Stream))
			}
			t.event(traceEvent{Name: "launch", Phase: "s", Time: micros(o.Begin), PID: hostProcess, TID: o.Goroutine, Kind: "launch",
				ID: flow})
			args := map[string]any{"op": o.title(), "line": p.Line(i)}
			if p.replayed(i) { // the host shows the replay's call
				args = p.arguments(i)
				args["op"] = o.title()
			}
			t.span(k.Name, "kernel", deviceProcess, stream, k.Begin, k.End, args)
			t.event(traceEvent{Name: "launch", Phase: "f", Bind: "e", Time: micros(k.Begin), PID: deviceProcess, TID: stream,
				Kind: "launch", ID: flow})
		}
	}
	p.traceMemory(t)
	if t.err == nil {
		_, t.err = t.w.WriteString("\n]}\n")
	}
	if t.err == nil {
		t.err = t.w.Flush()
	}
	return written(t.err)
}

// traceMemory writes the allocator's events.
func (p *Profile) traceMemory(t *tracer) {
	i := 0
	for u := range p.Usages() {
		e := &p.Memory[i]
		i++
		what := "alloc"
		if e.Bytes < 0 {
			what = "free"
		}
		t.event(traceEvent{Name: what, Phase: "i", Scope: "t", Time: micros(e.At), PID: memoryProcess, TID: 1, Kind: "memory",
			Args: map[string]any{"addr": fmt.Sprintf("%#x", e.Addr), "bytes": max(e.Bytes, -e.Bytes), "category": e.Category}})
		args := map[string]any{}
		for _, c := range Categories() {
			args[string(c)] = u.By[c]
		}
		t.event(traceEvent{Name: "memory", Phase: "C", Time: micros(e.At), PID: memoryProcess, TID: 1, Args: args})
	}
	p.traceSegments(t)
}

// traceSegments writes what the allocator took from the device and gave back.
func (p *Profile) traceSegments(t *tracer) {
	reserved := int64(0)
	for _, e := range p.Segments {
		what := "segment_alloc"
		if e.Bytes < 0 {
			what = "segment_free"
		}
		reserved += e.Bytes
		t.event(traceEvent{Name: what, Phase: "i", Scope: "t", Time: micros(e.At), PID: memoryProcess, TID: 2, Kind: "memory",
			Args: map[string]any{"addr": fmt.Sprintf("%#x", e.Addr), "bytes": max(e.Bytes, -e.Bytes)}})
		t.event(traceEvent{Name: "reserved", Phase: "C", Time: micros(e.At), PID: memoryProcess, TID: 2,
			Args: map[string]any{"bytes": reserved}})
	}
}

// arguments returns the details that a trace shows of an operation.
func (p *Profile) arguments(i int) map[string]any {
	o := &p.Ops[i]
	args := map[string]any{"phase": o.Phase}
	add := func(name string, v any, there bool) {
		if there {
			args[name] = v
		}
	}
	texts := func(ts []Tensor) (out []string) {
		for _, t := range ts {
			out = append(out, t.String())
		}
		return out
	}
	add("line", p.Line(i), p.Line(i) != "")
	add("within", o.Within, o.Within != "")
	add("module", o.Module, o.Module != "")
	add("inputs", texts(o.Inputs), len(o.Inputs) > 0)
	add("outputs", texts(o.Outputs), len(o.Outputs) > 0)
	add("bytes", o.Bytes, o.Bytes > 0)
	add("flops", o.FLOPs, o.FLOPs > 0)
	add("captured", true, o.Captured)
	add("deferred", true, o.Deferred)
	add("nodes", o.Nodes, len(o.Nodes) > 0)
	add("note", o.Note, o.Note != "")
	return args
}

// WritePprof writes the profile for go tool pprof. Each sample is a stack of the program, with the operation as the innermost call; its
// values are the number of operations, their time on the device and on the host, their bytes and their floating-point operations. A
// backward operation has the stack of its forward one.
func (p *Profile) WritePprof(w io.Writer) error {
	if err := p.usable(w); err != nil {
		return err
	}
	out := pprof.New(pprof.Type{Name: "ops", Unit: "count"}, pprof.Type{Name: "host", Unit: "nanoseconds"}, pprof.Type{Name: "bytes",
		Unit: "bytes"},
		pprof.Type{Name: "flops", Unit: "count"}, pprof.Type{Name: "device", Unit: "nanoseconds"})
	self, leaves := p.self(), map[string]uint64{}
	for i := range p.Ops {
		o := &p.Ops[i]
		id, ok := leaves[o.title()]
		if !ok {
			id = uint64(len(p.Frames) + len(leaves) + 1)
			leaves[o.title()] = id
			out.Location(id, o.title(), "tenon", 0)
		}
		calls := o.Calls
		if o.Forward >= 0 {
			calls = p.Ops[o.Forward].Calls
		}
		at := []uint64{id}
		for _, c := range calls {
			at = append(at, uint64(c)+1)
		}
		labels := []pprof.Label{{Key: "phase", Text: string(o.Phase)}}
		if o.Module != "" {
			labels = append(labels, pprof.Label{Key: "module", Text: o.Module})
		}
		device := o.Device()
		v := []uint64{1, uint64(max(self[i], 0)), 0, 0, uint64(device)}
		if device > 0 {
			v[2], v[3] = uint64(o.Bytes), uint64(o.FLOPs)
		}
		out.Sample(at, v, labels...)
	}
	for i, f := range p.Frames {
		out.Location(uint64(i)+1, f.Function, f.File, f.Line)
	}
	return out.Write(w, p.Began.UnixNano(), int64(p.Duration))
}
