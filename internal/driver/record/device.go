package record

import (
	"fmt"
	"strings"
	"sync"

	"tenon.dev/internal/driver"
)

// Call is one recorded call.
type Call struct {
	// Method is the name of the contract's method.
	Method string
	// Args is the arguments and results as text, with names for handles and addresses: "stream1, event2" or "512 -> mem1".
	Args string
	// Err is what the call returned.
	Err error
}

// String returns the call as one line.
func (c Call) String() string {
	s := c.Method
	if c.Args != "" {
		s += " " + c.Args
	}
	if c.Err != nil {
		s += " ! " + c.Err.Error()
	}
	return s
}

// Device passes calls to another device and records them, except Info, Enter and a token's Leave. It implements driver.Device and is safe
// for concurrent use; concurrent calls are recorded in an unspecified order.
type Device struct {
	driver.Device

	mu     sync.Mutex
	calls  []Call
	names  map[handle]string
	counts map[string]int
	blocks []block
	muted  map[string]bool
}

// handle is a driver's handle with its kind.
type handle struct {
	kind string
	h    uint64
}

// block is a named allocation.
type block struct {
	p    driver.Ptr
	n    uint64
	name string
}

var _ driver.Device = (*Device)(nil)

// New returns a decorator of d that records all methods but the named ones.
func New(d driver.Device, except ...string) *Device {
	r := &Device{Device: d, names: map[handle]string{}, counts: map[string]int{}, muted: map[string]bool{}}
	for _, m := range except {
		r.muted[m] = true
	}
	return r
}

// Calls returns what was recorded since the start or the last Reset.
func (d *Device) Calls() []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Call(nil), d.calls...)
}

// Text returns the recording, one line per call.
func (d *Device) Text() string {
	var b strings.Builder
	for _, c := range d.Calls() {
		fmt.Fprintln(&b, c)
	}
	return b.String()
}

// Count returns how often the method was called.
func (d *Device) Count(method string) int {
	n := 0
	for _, c := range d.Calls() {
		if c.Method == method {
			n++
		}
	}
	return n
}

// Reset forgets the calls but keeps the names.
func (d *Device) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = nil
}

// add records a call; text is called under the lock, so it may assign and look up names.
func (d *Device) add(method string, err error, text func() string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	args := text()
	if !d.muted[method] {
		d.calls = append(d.calls, Call{Method: method, Args: args, Err: err})
	}
}

// made names a new handle, if err is nil, and returns " -> name".
func (d *Device) made(kind string, h uintptr, err error) string {
	if err != nil {
		return ""
	}
	d.counts[kind]++
	name := fmt.Sprintf("%s%d", kind, d.counts[kind])
	d.names[handle{kind, uint64(h)}] = name
	return " -> " + name
}

// name returns a handle's name.
func (d *Device) name(kind string, h uintptr) string {
	if n, ok := d.names[handle{kind, uint64(h)}]; ok {
		return n
	}
	return fmt.Sprintf("%s?%#x", kind, h)
}

// stream returns a stream's name.
func (d *Device) stream(s driver.Stream) string {
	if s == driver.StreamLegacy {
		return "legacy"
	}
	return d.name("stream", uintptr(s))
}

// alloc names a block.
func (d *Device) alloc(kind string, p driver.Ptr, n uint64, err error) string {
	if err != nil {
		return ""
	}
	d.counts[kind]++
	b := block{p, n, fmt.Sprintf("%s%d", kind, d.counts[kind])}
	d.blocks = append(d.blocks, b)
	return " -> " + b.name
}

// free removes the block at p.
func (d *Device) free(p driver.Ptr) {
	for i, b := range d.blocks {
		if b.p == p {
			d.blocks = append(d.blocks[:i], d.blocks[i+1:]...)
			return
		}
	}
}

// ptr returns an address's name.
func (d *Device) ptr(p driver.Ptr) string {
	for _, b := range d.blocks {
		if p == b.p {
			return b.name
		}
		if p > b.p && uint64(p-b.p) < b.n {
			return fmt.Sprintf("%s+%d", b.name, p-b.p)
		}
	}
	return fmt.Sprintf("%#x", uint64(p))
}
