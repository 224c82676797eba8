package alloc

import (
	"fmt"
	"strings"

	"tenon.dev/fault"
)

// outOfMemory is a failed allocation, recorded under the lock and reported without it.
type outOfMemory struct {
	wanted      uint64 // segment size
	free, total uint64 // of the device
	allowed     uint64
	fractionSet bool
	allocated   uint64 // bytes, private pools' free lists included
	private     uint64 // bytes in private pools' free lists
	reserved    uint64
	observers   []OOMObserver
	processes   func() []ProcessMemory
	capturing   bool  // the cache was not flushed, since a capture is under way
	split       bool  // expandable segments are possible, and off
	cause       error // the backend's error; nil if the fraction forbids more
}

// fail records and counts the failure of r.
func (m *books) fail(r *request) (*outOfMemory, error) {
	free, total, err := m.backend.MemInfo()
	if err != nil {
		return nil, err
	}
	m.record(ActionOOM, free, r.size, r.silo.stream, r.context)
	m.stats.OOMs++
	o := &outOfMemory{wanted: r.segment, free: free, total: total, allowed: m.allowed, fractionSet: m.fractionSet,
		reserved: uint64(m.stats.now(statReservedBytes)), observers: m.observers, processes: m.options.Processes, cause: r.refusal,
		capturing: len(m.diversions) > 0}
	for _, p := range m.private {
		o.private += p.small.freeBytes() + p.large.freeBytes()
	}
	o.allocated = uint64(m.stats.now(statAllocatedBytes)) + o.private
	return o, nil
}

// report calls the observers and returns the error with the strategy's text.
func (o *outOfMemory) report(device int, text string) error {
	err := fault.New(fault.OutOfMemory, "%s", text)
	err.Cause = o.cause
	allowed := o.total
	if o.fractionSet {
		allowed = o.allowed
	}
	for _, f := range o.observers {
		f(device, o.wanted, allowed, o.free)
	}
	return err
}

// message gives the size of the request, who holds the memory and what to do. It begins as PyTorch's message does and has the same numbers
// in the same order.
func (o *outOfMemory) message(device int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s is free; ",
		FormatSize(o.wanted), device, FormatSize(o.total), FormatSize(o.free))
	if o.processes != nil {
		for _, p := range o.processes() {
			if p.Self {
				fmt.Fprintf(&b, "this process has %s in use, ", FormatSize(p.Bytes))
			} else {
				fmt.Fprintf(&b, "process %d has %s in use, ", p.PID, FormatSize(p.Bytes))
			}
		}
	}
	if o.fractionSet {
		fmt.Fprintf(&b, "the limit that was set for this process is %s, ", FormatSize(o.allowed))
	}
	fmt.Fprintf(&b, "tensors hold %s, ", FormatSize(o.allocated))
	if o.private > 0 {
		fmt.Fprintf(&b, "%s of it in the pools of graphs, ", FormatSize(o.private))
	}
	fmt.Fprintf(&b, "and %s is cached for more: %s", FormatSize(o.reserved-o.allocated), o.remedy())
	return b.String()
}

// remedy says what may help.
func (o *outOfMemory) remedy() string {
	if o.wanted > o.total {
		return "make the batch smaller, since this is more than the device has"
	}
	limit, cached := o.total, o.reserved-o.allocated
	if o.fractionSet {
		limit = min(limit, o.allowed)
	}
	fits := o.wanted <= limit // alone
	var may []string
	if fits && o.allocated > o.private {
		may = append(may, "close tensors that are done with")
	}
	if fits && o.private > 0 {
		may = append(may, "close graphs that are done with (those of regions with compile.Reset)")
	}
	may = append(may, "make the batch smaller")
	if o.fractionSet && o.reserved+o.wanted > o.allowed {
		may = append(may, "raise the limit with SetMemoryFraction")
	}
	switch {
	case !fits || cached == 0:
	case o.capturing:
		may = append(may, "call EmptyCache before the capture")
	case o.split && min(o.free+cached, limit-o.allocated) >= o.wanted:
		may = append(may, `avoid pieces too small to use with SetAllocatorSettings("expandable_segments:True")`)
	}
	last := len(may) - 1
	if last == 0 {
		return may[0]
	}
	return strings.Join(may[:last], ", ") + ", or " + may[last]
}

// FormatSize returns a number of bytes as messages show it: "512 bytes", "1.50 KiB", "20.00 MiB", "3.25 GiB".
func FormatSize(n uint64) string {
	switch {
	case n <= 1<<10:
		return fmt.Sprintf("%d bytes", n)
	case n <= 1<<20:
		return fmt.Sprintf("%.2f KiB", float64(n)/(1<<10))
	case n <= 1<<30:
		return fmt.Sprintf("%.2f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
}
