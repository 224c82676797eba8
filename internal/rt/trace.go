package rt

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
)

// Trace has a program's callbacks for a device's actions; package cuda documents when each is called. Nil functions are not called.
type Trace struct {
	EventCreated       func(event uint64)
	EventDeleted       func(event uint64)
	EventRecorded      func(event, stream uint64)
	EventWaited        func(event, stream uint64)
	MemoryAllocated    func(ptr uint64)
	MemoryFreed        func(ptr uint64)
	StreamCreated      func(stream uint64)
	DeviceSynchronized func()
	StreamSynchronized func(stream uint64)
	EventSynchronized  func(event uint64)
}

// action is an action that a Trace has a callback for.
type action uint8

const (
	eventCreation action = iota
	eventDeletion
	eventRecord
	eventWait
	memoryAllocation
	memoryDeallocation
	streamCreation
	deviceSynchronization
	streamSynchronization
	eventSynchronization
)

// String returns the action's name in PyTorch's message about a failed callback.
func (a action) String() string {
	return [...]string{"CUDA event creation", "CUDA event deletion", "CUDA event record", "CUDA event wait", "CUDA memory allocation",
		"CUDA memory deallocation",
		"CUDA stream creation", "CUDA device synchronization", "CUDA stream synchronization", "CUDA event synchronization"}[a]
}

// AddTrace makes the device call t's functions until remove is called, after those of traces added before.
func (d *Device) AddTrace(t Trace) (remove func()) {
	own := &t
	d.changeTraces(func(list []*Trace) []*Trace { return append(list, own) })
	return func() {
		d.changeTraces(func(list []*Trace) []*Trace { return slices.DeleteFunc(list, func(o *Trace) bool { return o == own }) })
	}
}

// changeTraces replaces the list; actions under way still read the old one.
func (d *Device) changeTraces(f func(list []*Trace) []*Trace) {
	d.traceMu.Lock()
	defer d.traceMu.Unlock()
	var list []*Trace
	if old := d.traces.Load(); old != nil {
		list = slices.Clone(*old)
	}
	if list = f(list); len(list) == 0 {
		d.traces.Store(nil)
		return
	}
	d.traces.Store(&list)
}

// trace reports an action to the profiler and the traces, with its one or two handles or its address and size. It is small enough to be
// inlined.
func (d *Device) trace(a action, h, h2 uint64) {
	if d.traces.Load() != nil {
		d.traced(a, h, h2)
	}
}

// traceWait reports the library's internal event by which one stream waited for another.
func (d *Device) traceWait(event, of, by uint64) {
	if d.traces.Load() != nil {
		d.traced(eventCreation, event, 0)
		d.traced(eventRecord, event, of)
		d.traced(eventWait, event, by)
		d.traced(eventDeletion, event, 0)
	}
}

// traced is trace when there was a trace a moment ago.
func (d *Device) traced(a action, h, h2 uint64) {
	if p := d.profiler.Load(); p != nil {
		p.memory(a, h, h2)
	}
	if list := d.traces.Load(); list != nil {
		for _, t := range *list {
			t.call(a, h, h2)
		}
	}
}

// call calls the function for an action. It logs a panic of the callback, which must not stop the device's work.
func (t *Trace) call(a action, h, h2 uint64) {
	defer func() {
		if r := recover(); r != nil {
			slog.Error(fmt.Sprintf("Exception in callback for %s registered with gpu trace", a), "panic", r, "stack", string(debug.Stack()))
		}
	}()
	switch a {
	case eventRecord:
		two(t.EventRecorded, h, h2)
	case eventWait:
		two(t.EventWaited, h, h2)
	case deviceSynchronization:
		if t.DeviceSynchronized != nil {
			t.DeviceSynchronized()
		}
	case eventCreation:
		one(t.EventCreated, h)
	case eventDeletion:
		one(t.EventDeleted, h)
	case memoryAllocation:
		one(t.MemoryAllocated, h)
	case memoryDeallocation:
		one(t.MemoryFreed, h)
	case streamCreation:
		one(t.StreamCreated, h)
	case streamSynchronization:
		one(t.StreamSynchronized, h)
	case eventSynchronization:
		one(t.EventSynchronized, h)
	}
}

func one(f func(h uint64), h uint64) {
	if f != nil {
		f(h)
	}
}

func two(f func(h, h2 uint64), h, h2 uint64) {
	if f != nil {
		f(h, h2)
	}
}
