package rt

import (
	"errors"
	"go/token"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/knob"
	"tenon.dev/internal/origin"
	"tenon.dev/internal/snapshot"
	"tenon.dev/internal/stack"
)

// RecordHistory starts, changes or ends the recording of the allocator's history with Go stacks as contexts; operations says whether
// snapshots show the operations in them too.
func (d *Device) RecordHistory(h alloc.History, operations bool) error {
	if h.Enabled != alloc.HistoryOff {
		if err := d.wantHistory(); err != nil {
			return err
		}
	}
	// A table of its own for every recording: those of the past go with their last entry.
	t := new(stack.Table)
	capture := func() *stack.Stack {
		if calls, runners := stack.Represented(); len(calls) > 0 {
			return t.CaptureFor(calls[len(calls)-1], runners)
		}
		return t.Capture()
	}
	h.Collect = func() any { return capture() }
	if operations {
		h.Collect = func() any { return (*annotated)(capture()) }
	}
	return d.mem.RecordHistory(h)
}

// annotated is a stack that is shown with the operations in it.
type annotated stack.Stack

// wantHistory is an error where the driver caches memory itself.
func (d *Device) wantHistory() error {
	if b := d.mem.Settings().Backend; b != alloc.BackendNative {
		return fault.New(fault.Unsupported,
			"the %s backend does not support histories and snapshots: the driver keeps its memory; take it out of %s",
			b, knob.AllocConf.Name())
	}
	return nil
}

// Snapshot returns what the allocator holds and its history, in PyTorch's layout: the stream of handle 0 is the default one.
func (d *Device) Snapshot() (*snapshot.Snapshot, error) {
	if err := d.wantHistory(); err != nil {
		return nil, err
	}
	s := d.convert(d.mem.Snapshot())
	s.Trees = d.trees(s)
	return s, nil
}

// DumpSnapshot writes a snapshot to a file.
func (d *Device) DumpSnapshot(path string) error {
	s, err := d.Snapshot()
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return fault.Wrap(fault.System, err, "the snapshot cannot be written")
	}
	err = s.Write(f)
	if e := f.Close(); err == nil && e != nil {
		err = fault.Wrap(fault.System, e, "the snapshot cannot be written")
	}
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// dump writes snapshots of allocations that fail.
type dump struct {
	mu       sync.Mutex
	attached bool   // to the allocator
	pattern  string // "" for none
	failures int
	err      error
}

// DumpOnOutOfMemory makes failing allocations write snapshots to path, as package cuda describes; the empty path ends that.
func (d *Device) DumpOnOutOfMemory(path string) error {
	o := &d.dump
	o.mu.Lock()
	defer o.mu.Unlock()
	if path == "" {
		err := o.err
		o.pattern, o.err = "", nil
		return err
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "oom-*.pickle")
	}
	probe, err := os.CreateTemp(filepath.Dir(path), ".probe-*")
	if err != nil {
		return fault.Wrap(fault.System, err, "no snapshots can be written to %s", filepath.Dir(path))
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return fault.Wrap(fault.System, err, "no snapshots can be written to %s", filepath.Dir(path))
	}
	o.pattern, o.failures, o.err = path, 0, nil
	if !o.attached {
		o.attached = true
		d.mem.AddOOMObserver(func(int, uint64, uint64, uint64) { d.dumpFailure() })
	}
	return nil
}

func (d *Device) dumpFailure() {
	o := &d.dump
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pattern == "" {
		return
	}
	o.failures++
	dir, file := filepath.Split(o.pattern)
	if err := d.DumpSnapshot(dir + strings.Replace(file, "*", strconv.Itoa(o.failures), 1)); err != nil && o.err == nil {
		o.err = err
	}
}

// converter makes a snapshot of the allocator's.
type converter struct {
	s      *snapshot.Snapshot
	normal alloc.Stream // the default stream
	stacks map[any]snapshot.StackID
	named  map[uintptr]call
	// last is the context converted last, and calls what a stack's frames gather in.
	last   any
	lastID snapshot.StackID
	calls  []snapshot.FrameID
}

func (d *Device) convert(from alloc.Snapshot) *snapshot.Snapshot {
	s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Settings: from.Settings.Map(), Notes: make([]snapshot.Note, 1)}
	c := &converter{s: s, normal: alloc.Stream(d.DefaultStream().handle), stacks: map[any]snapshot.StackID{},
		named: map[uintptr]call{}}
	s.Segments = make([]snapshot.Segment, len(from.Segments))
	for i := range from.Segments {
		c.segment(&s.Segments[i], &from.Segments[i])
	}
	device := max(d.info.Ordinal, 0)
	s.Traces = make([][]snapshot.Event, device+1)
	trace := make([]snapshot.Event, len(from.Trace))
	for i := range from.Trace {
		e := &from.Trace[i]
		trace[i] = snapshot.Event{Action: snapshot.Action(e.Action), Addr: e.Addr, Size: e.Size, Stream: c.stream(e.Stream), TimeUS: e.Time,
			Stack: c.stack(e.Context)}
	}
	s.Traces[device] = trace
	return s
}

func (c *converter) segment(g *snapshot.Segment, from *alloc.SegmentInfo) {
	*g = snapshot.Segment{Device: from.Device, Addr: from.Addr, TotalSize: from.TotalSize, Allocated: from.Allocated, Active: from.Active,
		Requested: from.Requested, Stream: c.stream(from.Stream), Type: "small", Pool: from.Pool, Expandable: from.Expandable,
		Stack: c.stack(from.Context), Blocks: make([]snapshot.Block, len(from.Blocks))}
	if from.Large {
		g.Type = "large"
	}
	for i := range from.Blocks {
		b := &from.Blocks[i]
		g.Blocks[i] = snapshot.Block{Addr: b.Addr, Size: b.Size, Requested: b.Requested, State: snapshot.BlockState(b.State),
			Stack: c.stack(b.Context)}
	}
}

func (c *converter) stream(s alloc.Stream) uint64 {
	if s == c.normal {
		return 0
	}
	return uint64(driver.Stream(s))
}

// stack names the calls of a context.
func (c *converter) stack(context any) snapshot.StackID {
	if context == nil {
		return 0
	}
	if context == c.last {
		return c.lastID
	}
	id, ok := c.stacks[context]
	if !ok {
		c.calls = c.calls[:0]
		switch s := context.(type) {
		case *stack.Stack:
			c.name(s, false)
		case *annotated:
			c.name((*stack.Stack)(s), true)
		}
		id = c.s.Stacks.AddCalls(c.calls)
		c.stacks[context] = id
	}
	c.last, c.lastID = context, id
	return id
}

// call is what a snapshot shows of a call.
type call struct {
	side   origin.Side
	hidden bool // it is never shown
	inside bool // it is in a package that programs do not import: shown only if it is an operation
	face   bool // it is in package tenon
	frame  snapshot.FrameID
}

// name adds the calls of a stack, innermost first: those of the program, and of the library what the program's innermost call reached: the
// modules that it went through and the innermost method of the face. The rest of the library says nothing to users; with operations, the
// calls that are one stand there under its name.
func (c *converter) name(s *stack.Stack, operations bool) {
	// The program's innermost call was reached; before it, a public function of the library.
	program, public := false, false
	for _, pc := range s.Calls() {
		k, ok := c.named[pc]
		if !ok {
			k = c.describe(stack.Name(pc))
			c.named[pc] = k
		}
		show := false
		switch {
		case k.hidden:
		case k.side == origin.Program:
			show, program = true, true
		case k.side == origin.System:
			show = program
		case program: // the library calls back, as a scope does
		case k.inside:
			again := len(c.calls) > 0 && c.calls[len(c.calls)-1] == k.frame // one operation, in several functions
			show = operations && !public && !again
		default:
			show, public = !k.face || !public, true
		}
		if show {
			c.calls = append(c.calls, k.frame)
		}
	}
}

func (c *converter) describe(f runtime.Frame) call {
	side, folder := origin.Of(f.Function, f.File)
	k := call{side: side, face: folder == ".", inside: strings.HasPrefix(folder, "internal/")}
	shown := snapshot.Frame{File: f.File, Line: f.Line, Name: functionName(f.Function)}
	switch {
	case side == origin.Program:
	case side == origin.System:
		k.hidden = strings.HasPrefix(f.Function, "runtime.")
	case k.inside:
		op := ""
		if opNameOf != nil {
			op = opNameOf(f.Function)
		}
		k.hidden, shown = op == "", snapshot.Frame{File: "tenon", Name: "tenon::" + op}
	default:
		// What is not exported is what an exported function is made of, such as a function literal.
		k.hidden = !callable(f.Function)
	}
	if !k.hidden {
		k.frame = c.s.Stacks.AddFrame(shown)
	}
	return k
}

// callable reports whether programs can call the function of that name: it is exported, and so is the receiver's type. A generic type
// counts: exported types get its methods. Try runs operations and is none.
func callable(function string) bool {
	name := function[strings.LastIndexByte(function, '/')+1:]
	_, name, _ = strings.Cut(name, ".")
	generic := strings.Contains(name, "[")
	last := name[strings.LastIndexByte(name, '.')+1:]
	if recv, ok := strings.CutPrefix(name, "(*"); ok && !generic && !token.IsExported(recv) {
		return false
	}
	return token.IsExported(last) && name != "Try"
}

// functionName returns a function's name as people write it.
func functionName(f string) string {
	if rest, ok := strings.CutPrefix(f, "tenon%2edev."); ok {
		return "tenon." + rest
	}
	return f
}

// opNameOf returns PyTorch's name of the operation that a function is, or "". The tensor line, which has the operations, sets it.
var opNameOf func(function string) string

// SetOpNameOf sets how functions are recognised as operations in stacks.
func SetOpNameOf(f func(function string) string) { opNameOf = f }
