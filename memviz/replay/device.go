package replay

import (
	"fmt"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/ordered"
)

// Unlimited is the memory of a device that never runs out.
const Unlimited = 1 << 44

// firstPseudo is the handle of the first stream that stands for the unknown users of a block.
const firstPseudo alloc.Stream = 1 << 63

// Calls counts the calls of an allocator to its device.
type Calls struct {
	Mallocs    int64 `json:"mallocs"`    // segments allocated
	Frees      int64 `json:"frees"`      // segments freed
	Reserves   int64 `json:"reserves"`   // address ranges reserved for expandable segments
	Unreserves int64 `json:"unreserves"` // address ranges returned
	Maps       int64 `json:"maps"`       // pages of expandable segments mapped
	Unmaps     int64 `json:"unmaps"`     // pages unmapped
	Refusals   int64 `json:"refusals"`   // mallocs and maps that failed for lack of memory
}

// Total returns the number of calls, including refused ones.
func (c Calls) Total() int64 {
	return c.Mallocs + c.Frees + c.Reserves + c.Unreserves + c.Maps + c.Unmaps + c.Refusals
}

// device is the device that the allocator sees: its capacity, addresses, and streams whose work completes when the trace says so.
type device struct {
	total, used uint64
	reported    uint64            // the total that the allocator is told; 0: total
	next        uint64            // the next address
	held        map[uint64]uint64 // sizes of segments and ranges by address
	ranges      *ordered.List[extent]
	pages       map[uint64]uint64
	calls       Calls
	script      *script // where the recording's device put its segments; nil if any address may be used

	streams []pseudo // by handle, from firstPseudo on
	idle    []int    // streams that can stand for another block
	events  map[alloc.Event]int
	last    alloc.Event
}

// pseudo is a stream that uses one freed block. PyTorch's traces do not say which streams did, only when they were done.
type pseudo struct {
	done     bool // the trace says that the block is free
	returned bool // the allocator has seen it
}

func newDevice(total, base uint64) *device {
	return &device{total: total, next: base, held: map[uint64]uint64{}, ranges: ordered.New(func(e extent) uint64 { return e.from }),
		pages: map[uint64]uint64{}, events: map[alloc.Event]int{}}
}

// refuse returns the error of a full device.
func (d *device) refuse(size uint64) error {
	d.calls.Refusals++
	return fmt.Errorf("no room for %d bytes: %w", size, alloc.ErrOutOfMemory)
}

func (d *device) place(size uint64) uint64 {
	const align = 2 << 20
	addr := d.next
	d.next += (size + align - 1) &^ (align - 1)
	return addr
}

// Malloc returns a segment, at the recording's address while a script is followed.
func (d *device) Malloc(size uint64) (uint64, error) {
	if d.used+size > d.total {
		return 0, d.refuse(size)
	}
	addr := uint64(0)
	if d.script.following() {
		var refused bool
		if addr, refused = d.script.malloc(size); refused {
			return 0, d.refuse(size)
		}
	}
	if addr == 0 {
		addr = d.place(size)
	}
	d.calls.Mallocs++
	d.used += size
	d.held[addr] = size
	return addr, nil
}

// Free takes a segment back.
func (d *device) Free(addr uint64) error {
	size, ok := d.held[addr]
	if !ok {
		return fmt.Errorf("free of %#x, which is not a segment", addr)
	}
	if d.script.following() {
		d.script.release(addr, size)
	}
	d.calls.Frees++
	delete(d.held, addr)
	d.used -= size
	return nil
}

// MemInfo returns free and total bytes.
func (d *device) MemInfo() (free, total uint64, err error) {
	if d.reported != 0 {
		return d.total - d.used, d.reported, nil
	}
	return d.total - d.used, d.total, nil
}

// Reserve returns an address range.
func (d *device) Reserve(size uint64) (uint64, error) {
	addr := uint64(0)
	if d.script.following() {
		addr = d.script.reserve(d.held, d.ranges)
	}
	if addr == 0 {
		addr = d.place(size)
	}
	d.calls.Reserves++
	d.held[addr] = size
	d.addRange(addr, size)
	return addr, nil
}

// addRange records an address range, replacing one that begins at the same address.
func (d *device) addRange(addr, size uint64) {
	d.dropRange(addr)
	d.ranges.Add(extent{addr, addr + size})
}

func (d *device) dropRange(addr uint64) {
	at := d.ranges.Last(addr)
	if e := d.ranges.Value(at); e != nil && e.from == addr {
		d.ranges.Remove(at)
	}
}

// Unreserve takes an address range back.
func (d *device) Unreserve(addr, _ uint64) error {
	d.calls.Unreserves++
	delete(d.held, addr)
	d.dropRange(addr)
	return nil
}

// MapPage maps a page.
func (d *device) MapPage(addr, size uint64) error {
	if d.used+size > d.total || d.script.following() && d.script.mapPage(addr, size) {
		return d.refuse(size)
	}
	d.calls.Maps++
	d.used += size
	d.pages[addr] = size
	return nil
}

// UnmapPage unmaps a page.
func (d *device) UnmapPage(addr, size uint64) error {
	if d.script.following() {
		d.script.release(addr, size)
	}
	d.calls.Unmaps++
	d.used -= size
	delete(d.pages, addr)
	return nil
}

// SyncStream returns at once: streams have no work here.
func (d *device) SyncStream(alloc.Stream) error { return nil }

// Capturing returns false: captures are replayed only as pools.
func (d *device) Capturing(alloc.Stream) (uint64, bool) { return 0, false }

// AcquireEvent returns a new event.
func (d *device) AcquireEvent() (alloc.Event, error) {
	d.last++
	return d.last, nil
}

// RecordEvent records which stand-in the event waits for.
func (d *device) RecordEvent(e alloc.Event, s alloc.Stream) error {
	d.events[e] = int(s - firstPseudo)
	return nil
}

// QueryEvent reports whether the trace has reached the point at which the block was free.
func (d *device) QueryEvent(e alloc.Event) (bool, error) { return d.streams[d.events[e]].done, nil }

// SyncEvent waits for the work, which takes no time here.
func (d *device) SyncEvent(alloc.Event) error { return nil }

// ReleaseEvent ends the use of the event's stand-in.
func (d *device) ReleaseEvent(e alloc.Event) {
	i := d.events[e]
	delete(d.events, e)
	d.streams[i].returned = true
	d.recycle(i)
}

// borrow returns a stand-in for the streams that still use a freed block.
func (d *device) borrow() int {
	if n := len(d.idle); n > 0 {
		i := d.idle[n-1]
		d.idle = d.idle[:n-1]
		d.streams[i] = pseudo{}
		return i
	}
	d.streams = append(d.streams, pseudo{})
	return len(d.streams) - 1
}

// complete ends the work of a stand-in.
func (d *device) complete(i int) {
	d.streams[i].done = true
	d.recycle(i)
}

func (d *device) recycle(i int) {
	if d.streams[i].done && d.streams[i].returned {
		d.idle = append(d.idle, i)
	}
}
