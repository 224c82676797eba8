package alloc

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"tenon.dev/fault"
)

// The back end cudaMallocAsync leaves caching to the device's own pool, which allocates and frees in the order of streams. There are no
// segments and no splitting; private pools are names without effect, since memory that a capture allocates belongs to its graph; what a
// block's further streams have queued when it is freed is waited for by a stream that does nothing else.
// (PyTorch: c10/cuda/CUDAMallocAsyncAllocator.cpp.)

// PoolUsage is what a device's own pool holds from the device in bytes, now and at most.
type PoolUsage struct {
	Reserved, ReservedPeak uint64
}

// StreamOrdered is what a Backend offers in addition if the device allocates in the order of streams: the back end cudaMallocAsync needs
// it. Its methods are called with the allocator's lock held and are legal in a capture.
type StreamOrdered interface {
	// MallocAsync allocates size bytes for work that s is given from now on. In a capture of s each launch of the graph allocates them.
	MallocAsync(size uint64, s Stream) (addr uint64, err error)
	// FreeAsync frees what MallocAsync gave once s gets there.
	FreeAsync(addr uint64, s Stream) error
	// FreeCaptured frees what MallocAsync gave in a capture that has ended, once s gets there. Without a launch since the last free it does nothing.
	FreeCaptured(addr uint64, s Stream) error
	// WaitEvent makes later work of s wait for what e recorded last.
	WaitEvent(s Stream, e Event) error
	// FreeStream returns a stream that only frees.
	FreeStream() (Stream, error)
	// Trim waits for the device's work, unless wait is false, and returns the pool's unused memory to the device.
	Trim(wait bool) error
	// Usage returns what the pool holds.
	Usage() (PoolUsage, error)
	// ResetPeaks makes the peaks of Usage the present values.
	ResetPeaks() error
}

// allocAsync is Alloc under the back end cudaMallocAsync.
func (d *Device) allocAsync(size uint64, s Stream, context any) (*Block, error) {
	b, failed, err := d.tryAsync(size, s, context)
	if failed != nil {
		return nil, failed.report(d.options.Index)
	}
	return b, err
}

// tryAsync is allocAsync but for the report of a failure. It takes the lock, which it may drop in between.
func (d *Device) tryAsync(size uint64, s Stream, context any) (*Block, *outOfMemory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.freeDeferredAsync(); err != nil {
		return nil, nil, err
	}
	r := request{size: size, segment: size, silo: d.ofSize(nil, size).silo(s), context: context}
	addr, err := d.mallocAsync(&r)
	if isOutOfMemory(err) && d.collect(&r, true) {
		addr, err = d.mallocAsync(&r)
	}
	if isOutOfMemory(err) && len(d.diversions) == 0 {
		if err := d.async.Trim(true); err != nil {
			return nil, nil, err
		}
		d.stats.AllocRetries++
		addr, err = d.mallocAsync(&r)
	}
	if isOutOfMemory(err) {
		r.refusal = err
		failed, err := d.fail(&r)
		return nil, failed, err
	}
	if err != nil {
		return nil, nil, err
	}
	b := d.newBlock(nil, r.silo, addr, size)
	b.async, b.allocated, b.requested, b.context = true, true, size, context
	_, b.captured = d.backend.Capturing(s)
	d.stats.AllocatedBytes[allPools].add(int64(size))
	return b, nil, nil
}

// asyncDiversion is the device whose allocations are diverted under the back end cudaMallocAsync: in the whole process there is one at most.
var asyncDiversion atomic.Pointer[Device]

// errFraction is what the memory fraction forbids.
var errFraction = fmt.Errorf("the memory fraction forbids more: %w", ErrOutOfMemory)

func (d *Device) mallocAsync(r *request) (uint64, error) {
	if d.fractionSet && uint64(d.stats.AllocatedBytes.All().Current)+r.size > d.allowed {
		return 0, errFraction
	}
	return d.async.MallocAsync(r.size, r.silo.stream)
}

// freeAsync is Free of a block of allocAsync. While allocations are diverted, which is how captures are known, memory from outside of the capture
// is held back: its free must not become part of the graph.
func (d *Device) freeAsync(b *Block) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !b.allocated {
		return fault.New(fault.Invalid, "invalid device pointer: %#x is not allocated; it was freed before", b.addr)
	}
	d.forgetRaw(b)
	b.allocated = false
	d.stats.AllocatedBytes[allPools].sub(int64(b.size))
	if len(d.diversions) > 0 && !b.captured {
		d.deferred = append(d.deferred, b)
		return nil
	}
	err := d.returnAsync(b)
	if err != nil {
		d.deferred = append(d.deferred, b)
	}
	return err
}

// freeDeferredAsync frees what was held back.
func (d *Device) freeDeferredAsync() error {
	if len(d.deferred) == 0 || len(d.diversions) > 0 {
		return nil
	}
	for i, b := range d.deferred {
		if err := d.returnAsync(b); err != nil {
			d.deferred = slices.Delete(d.deferred, 0, i)
			return err
		}
	}
	clear(d.deferred)
	d.deferred = d.deferred[:0]
	return nil
}

// returnAsync gives a block back to the device's pool after the work that its streams have now.
func (d *Device) returnAsync(b *Block) error {
	on := b.silo.stream
	if _, capturing := d.backend.Capturing(on); b.captured && !capturing {
		if err := d.async.FreeCaptured(b.addr, on); err != nil {
			return err
		}
		d.retire(b)
		return nil
	}
	if len(b.uses) > 0 {
		uses := append(b.uses, on)
		if b.captured { // the graph has no other stream to free on
			uses = b.uses
		} else {
			var err error
			if on, err = d.async.FreeStream(); err != nil {
				return err
			}
		}
		for _, s := range uses {
			if err := d.follow(on, s); err != nil {
				return err
			}
		}
	}
	if err := d.async.FreeAsync(b.addr, on); err != nil {
		return err
	}
	d.retire(b)
	return nil
}

// follow makes later work of s wait for all work that o has now.
func (d *Device) follow(s, o Stream) error {
	e, err := d.backend.AcquireEvent()
	if err != nil {
		return err
	}
	defer d.backend.ReleaseEvent(e)
	if err := d.backend.RecordEvent(e, o); err != nil {
		return err
	}
	return d.async.WaitEvent(s, e)
}

// emptyAsync is EmptyCache under the back end cudaMallocAsync.
func (d *Device) emptyAsync() error {
	if err := d.freeDeferredAsync(); err != nil {
		return err
	}
	return d.async.Trim(len(d.diversions) == 0)
}

// statsAsync completes the statistics with the pool's. What the pool cannot tell is left out.
func (d *Device) statsAsync(s *Stats) {
	u, err := d.async.Usage()
	if err != nil {
		return
	}
	s.ReservedBytes[allPools].Current, s.ReservedBytes[allPools].Peak = int64(u.Reserved), int64(u.ReservedPeak)
}

// messageAsync is the out-of-memory message of the back end cudaMallocAsync.
func (o *outOfMemory) messageAsync(device int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Allocation on device %d would exceed allowed memory. (out of memory)", device)
	limit := o.total
	if o.fractionSet {
		limit = o.allowed
	}
	for _, line := range []struct {
		name  string
		bytes uint64
	}{
		{"Currently allocated     : ", o.allocated},
		{"Requested               : ", o.wanted},
		{"Device limit            : ", o.total},
		{"Free (according to CUDA): ", o.free},
		{"Limit of this process   : ", limit},
	} {
		b.WriteString("\n" + line.name + FormatSize(line.bytes))
	}
	b.WriteString("\n" + o.remedy())
	return b.String()
}

// needsNative is the error of what the back end cudaMallocAsync does not have, or nil.
func (d *Device) needsNative(what string) error {
	if d.async == nil {
		return nil
	}
	return fault.New(fault.Unsupported, "cudaMallocAsync does not yet support %s; use backend:native", what)
}
