package alloc

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// fakeDevice is a Backend for tests. It does its own accounting and remembers the first misuse, such as a free of what was not allocated,
// an event in the wrong state, or a page mapped twice. Events of a stream that is shut do not complete.
type fakeDevice struct {
	mu    sync.Mutex
	total uint64 // bytes of memory
	used  uint64

	segments map[uint64]uint64 // address to size
	ranges   map[uint64]uint64
	pages    map[uint64]uint64
	next     uint64 // address of the next segment or range

	malloc  func(size uint64) (uint64, error) // replaces the addresses in order
	reserve func(size uint64) (uint64, error)
	onPage  func(addr, size uint64) error
	fail    func(call string) error // an error fails the call before it does anything

	events    map[Event]*fakeEvent
	idle      []Event
	lastEvent Event
	shut      map[Stream]bool
	opened    map[Stream]int // how often each stream was opened
	captures  map[Stream]uint64
	misuse    error
}

type fakeEvent struct {
	acquired, recorded, pending bool
	stream                      Stream
}

func newFakeDevice(total uint64) *fakeDevice {
	return &fakeDevice{total: total, next: 1 << 40, segments: map[uint64]uint64{}, ranges: map[uint64]uint64{},
		pages: map[uint64]uint64{}, events: map[Event]*fakeEvent{}, shut: map[Stream]bool{}, opened: map[Stream]int{},
		captures: map[Stream]uint64{}}
}

// enter starts a call; the caller unlocks.
func (f *fakeDevice) enter(call string) error {
	f.mu.Lock()
	if f.fail != nil {
		return f.fail(call)
	}
	return nil
}

func (f *fakeDevice) wrong(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if f.misuse == nil {
		f.misuse = err
	}
	return err
}

func (f *fakeDevice) place(size uint64) uint64 {
	addr := f.next
	f.next += (size + 2*mib - 1) &^ (2*mib - 1)
	return addr
}

func (f *fakeDevice) Malloc(size uint64) (uint64, error) {
	err := f.enter("Malloc")
	defer f.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if f.used+size > f.total {
		return 0, fmt.Errorf("cuMemAlloc of %d bytes: %w", size, ErrOutOfMemory)
	}
	addr := uint64(0)
	if f.malloc != nil {
		if addr, err = f.malloc(size); err != nil {
			return 0, err
		}
	} else {
		addr = f.place(size)
	}
	f.used += size
	f.segments[addr] = size
	return addr, nil
}

func (f *fakeDevice) Free(addr uint64) error {
	err := f.enter("Free")
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	size, ok := f.segments[addr]
	if !ok {
		return f.wrong("free of %#x, which is not a segment", addr)
	}
	delete(f.segments, addr)
	f.used -= size
	return nil
}

func (f *fakeDevice) MemInfo() (free, total uint64, err error) {
	err = f.enter("MemInfo")
	defer f.mu.Unlock()
	return f.total - f.used, f.total, err
}

func (f *fakeDevice) AcquireEvent() (Event, error) {
	err := f.enter("AcquireEvent")
	defer f.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if n := len(f.idle); n > 0 {
		e := f.idle[n-1]
		f.idle = f.idle[:n-1]
		f.events[e].acquired = true
		return e, nil
	}
	f.lastEvent++
	f.events[f.lastEvent] = &fakeEvent{acquired: true}
	return f.lastEvent, nil
}

func (f *fakeDevice) ReleaseEvent(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.events[e]
	if v == nil || !v.acquired {
		f.wrong("release of event %d, which is not acquired", e)
		return
	}
	*v = fakeEvent{}
	f.idle = append(f.idle, e)
}

func (f *fakeDevice) RecordEvent(e Event, s Stream) error {
	err := f.enter("RecordEvent")
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	v := f.events[e]
	if v == nil || !v.acquired {
		return f.wrong("record of event %d, which is not acquired", e)
	}
	if len(f.captures) > 0 {
		return f.wrong("record of an event while a stream is captured")
	}
	v.recorded, v.pending, v.stream = true, f.shut[s], s
	return nil
}

func (f *fakeDevice) QueryEvent(e Event) (bool, error) {
	err := f.enter("QueryEvent")
	defer f.mu.Unlock()
	if err != nil {
		return false, err
	}
	v := f.events[e]
	if v == nil || !v.acquired || !v.recorded {
		return false, f.wrong("query of event %d, which is not recorded", e)
	}
	if len(f.captures) > 0 {
		return false, f.wrong("query of an event while a stream is captured")
	}
	return !v.pending, nil
}

func (f *fakeDevice) SyncEvent(e Event) error {
	err := f.enter("SyncEvent")
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	v := f.events[e]
	if v == nil || !v.acquired || !v.recorded {
		return f.wrong("wait for event %d, which is not recorded", e)
	}
	if v.pending {
		f.open(v.stream)
	}
	return nil
}

func (f *fakeDevice) Capturing(s Stream) (uint64, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, ok := f.captures[s]
	return id, ok
}

// Shut holds back the events recorded on s from now on.
func (f *fakeDevice) Shut(s Stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shut[s] = true
}

// Open completes the events of s.
func (f *fakeDevice) Open(s Stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open(s)
}

func (f *fakeDevice) open(s Stream) {
	delete(f.shut, s)
	f.opened[s]++
	for _, v := range f.events {
		if v.stream == s {
			v.pending = false
		}
	}
}

// OpenAll completes all events.
func (f *fakeDevice) OpenAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range slices.Collect(maps.Keys(f.shut)) {
		f.open(s)
	}
}

// Capture begins the capture id on s, or ends it if id is 0.
func (f *fakeDevice) Capture(s Stream, id uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id == 0 {
		delete(f.captures, s)
	} else {
		f.captures[s] = id
	}
}

func (f *fakeDevice) Reserve(size uint64) (uint64, error) {
	err := f.enter("Reserve")
	defer f.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if size%(2*mib) != 0 {
		return 0, f.wrong("reservation of %d bytes", size)
	}
	addr := uint64(0)
	if f.reserve != nil {
		if addr, err = f.reserve(size); err != nil {
			return 0, err
		}
	} else {
		addr = f.place(size)
	}
	f.ranges[addr] = size
	return addr, nil
}

func (f *fakeDevice) Unreserve(addr, size uint64) error {
	err := f.enter("Unreserve")
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	if f.ranges[addr] != size {
		return f.wrong("return of range %#x of %d bytes", addr, size)
	}
	for p := range f.pages {
		if p >= addr && p < addr+size {
			return f.wrong("return of range %#x with page %#x mapped", addr, p)
		}
	}
	delete(f.ranges, addr)
	return nil
}

func (f *fakeDevice) MapPage(addr, size uint64) error {
	err := f.enter("MapPage")
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	inRange := false
	for a, n := range f.ranges {
		inRange = inRange || addr >= a && addr+size <= a+n && (addr-a)%size == 0
	}
	if _, ok := f.pages[addr]; ok || !inRange {
		return f.wrong("page %#x of %d bytes mapped twice or outside of a range", addr, size)
	}
	if f.used+size > f.total {
		return fmt.Errorf("cuMemCreate of %d bytes: %w", size, ErrOutOfMemory)
	}
	if f.onPage != nil {
		if err := f.onPage(addr, size); err != nil {
			return err
		}
	}
	f.pages[addr] = size
	f.used += size
	return nil
}

func (f *fakeDevice) UnmapPage(addr, size uint64) error {
	err := f.enter("UnmapPage")
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	if f.pages[addr] != size {
		return f.wrong("page %#x of %d bytes unmapped, which is not mapped so", addr, size)
	}
	delete(f.pages, addr)
	f.used -= size
	return nil
}

func (f *fakeDevice) SyncStream(s Stream) error {
	err := f.enter("SyncStream")
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	f.open(s)
	return nil
}
