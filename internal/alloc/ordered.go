package alloc

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"tenon.dev/fault"
)

// PoolUsage is the memory that a device's own pool holds from the device, in bytes: now and at its peak.
type PoolUsage struct {
	Reserved, ReservedPeak uint64
}

// StreamOrdered is what a Backend offers in addition if the device allocates in stream order: the back end cudaMallocAsync needs it. Its
// methods are called with the allocator's lock held and are legal in a capture.
type StreamOrdered interface {
	// MallocAsync allocates size bytes for later work of s. In a capture of s, each launch of the graph allocates them.
	MallocAsync(size uint64, s Stream) (addr uint64, err error)
	// FreeAsync frees memory of MallocAsync in the order of s.
	FreeAsync(addr uint64, s Stream) error
	// FreeCaptured frees, in the order of s, memory that MallocAsync gave in a capture that has ended. Without a launch since the last
	// free, it does nothing.
	FreeCaptured(addr uint64, s Stream) error
	// WaitEvent makes later work of s wait for what e recorded last.
	WaitEvent(s Stream, e Event) error
	// FreeStream returns a stream that only frees.
	FreeStream() (Stream, error)
	// Trim waits for the device's work, unless wait is false, and returns the pool's unused memory to the device.
	Trim(wait bool) error
	// Usage returns how much memory the pool holds.
	Usage() (PoolUsage, error)
	// ResetPeaks sets the peaks of Usage to the current values.
	ResetPeaks() error
}

// ordered is the strategy of the back end cudaMallocAsync, which leaves caching to the device's own pool: that allocates and frees in
// stream order. It has no segments and splits nothing. Private pools are names without effect, since memory that a capture allocates
// belongs to its graph. When a block with further streams is freed, a stream that only frees waits for the work that they have queued.
// (PyTorch: c10/cuda/CUDAMallocAsyncAllocator.cpp.)
type ordered struct {
	*books
	own      StreamOrdered
	all      pool     // of all blocks
	deferred []*Block // freed and held back
}

func newOrdered(m *books, own StreamOrdered) *ordered {
	o := &ordered{books: m, own: own}
	o.all = pool{of: o, kind: largePool}
	return o
}

// AllocFrom is Device.AllocFrom. The pool is a name without effect.
func (o *ordered) AllocFrom(_ PoolID, size uint64, s Stream) (*Block, error) {
	b, failed, err := o.alloc(size, s, o.gather(LevelState))
	if failed != nil {
		return nil, failed.report(o.options.Index, failed.messageOrdered(o.options.Index))
	}
	return b, err
}

// alloc is AllocFrom without the report of a failure. It takes the lock and may drop it in between.
func (o *ordered) alloc(size uint64, s Stream, context any) (*Block, *outOfMemory, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.freeDeferred(); err != nil {
		return nil, nil, err
	}
	r := request{size: size, segment: size, silo: o.all.silo(s), context: context}
	addr, err := o.malloc(&r)
	if isOutOfMemory(err) && o.collect(&r, true) {
		addr, err = o.malloc(&r)
	}
	if isOutOfMemory(err) && len(o.diversions) == 0 {
		if err := o.own.Trim(true); err != nil {
			return nil, nil, err
		}
		o.stats.AllocRetries++
		addr, err = o.malloc(&r)
	}
	if isOutOfMemory(err) {
		r.refusal = err
		failed, err := o.fail(&r)
		return nil, failed, err
	}
	if err != nil {
		return nil, nil, err
	}
	b := o.newBlock(nil, r.silo, addr, size)
	b.allocated, b.requested, b.context = true, size, context
	_, b.captured = o.backend.Capturing(s)
	o.stats.add(statAllocatedBytes, o.all.kind, int64(size))
	return b, nil, nil
}

// errFraction is the error of an allocation that the memory fraction forbids.
var errFraction = fmt.Errorf("the memory fraction forbids more: %w", ErrOutOfMemory)

func (o *ordered) malloc(r *request) (uint64, error) {
	if o.fractionSet && uint64(o.stats.now(statAllocatedBytes))+r.size > o.allowed {
		return 0, errFraction
	}
	return o.own.MallocAsync(r.size, r.silo.stream)
}

// Free is Device.Free. While allocations are diverted, as they are in captures, it holds back memory from outside the capture, whose free
// must not become part of the graph.
func (o *ordered) Free(b *Block) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !b.allocated {
		return freedBefore(b)
	}
	o.forgetRaw(b)
	b.allocated = false
	o.stats.sub(statAllocatedBytes, o.all.kind, int64(b.size))
	if len(o.diversions) > 0 && !b.captured {
		o.deferred = append(o.deferred, b)
		return nil
	}
	err := o.giveBack(b)
	if err != nil {
		o.deferred = append(o.deferred, b)
	}
	return err
}

// freeDeferred frees the blocks that were held back.
func (o *ordered) freeDeferred() error {
	if len(o.deferred) == 0 || len(o.diversions) > 0 {
		return nil
	}
	for i, b := range o.deferred {
		if err := o.giveBack(b); err != nil {
			o.deferred = slices.Delete(o.deferred, 0, i)
			return err
		}
	}
	clear(o.deferred)
	o.deferred = o.deferred[:0]
	return nil
}

// giveBack gives a block back to the device's pool after the work that its streams have now.
func (o *ordered) giveBack(b *Block) error {
	on := b.silo.stream
	if _, capturing := o.backend.Capturing(on); b.captured && !capturing {
		if err := o.own.FreeCaptured(b.addr, on); err != nil {
			return err
		}
		o.retire(b)
		return nil
	}
	if len(b.uses) > 0 {
		uses := append(b.uses, on)
		if b.captured { // the graph has no other stream to free on
			uses = b.uses
		} else {
			var err error
			if on, err = o.own.FreeStream(); err != nil {
				return err
			}
		}
		for _, s := range uses {
			if err := o.follow(on, s); err != nil {
				return err
			}
		}
	}
	if err := o.own.FreeAsync(b.addr, on); err != nil {
		return err
	}
	o.retire(b)
	return nil
}

// follow makes later work of s wait for all work that first has now.
func (o *ordered) follow(s, first Stream) error {
	e, err := o.backend.AcquireEvent()
	if err != nil {
		return err
	}
	defer o.backend.ReleaseEvent(e)
	if err := o.backend.RecordEvent(e, first); err != nil {
		return err
	}
	return o.own.WaitEvent(s, e)
}

// EmptyCache frees the blocks that were held back and returns the pool's unused memory to the device.
func (o *ordered) EmptyCache() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.freeDeferred(); err != nil {
		return err
	}
	return o.own.Trim(len(o.diversions) == 0)
}

// addOwn gets the reserved bytes from the pool. If the pool returns an error, they are left out. As in PyTorch, there are only sums over
// all pools.
func (o *ordered) addOwn(s *Stats) {
	s.AllocatedBytes = StatArray{s.AllocatedBytes.All()}
	u, err := o.own.Usage()
	if err != nil {
		return
	}
	s.ReservedBytes[0].Current, s.ReservedBytes[0].Peak = int64(u.Reserved), int64(u.ReservedPeak)
}

func (o *ordered) resetPeaks() {
	_ = o.own.ResetPeaks() // as in addOwn, a device that is lost keeps its figures
}

func (o *ordered) lacks(what string) error {
	return fault.New(fault.Unsupported, "cudaMallocAsync does not yet support %s; use backend:native", what)
}

// diverting is the strategy whose allocations are diverted: as in PyTorch, there is at most one in the process.
var diverting atomic.Pointer[ordered]

func (o *ordered) divert() error {
	if !diverting.CompareAndSwap(nil, o) {
		return fault.New(fault.Capture,
			"Only one capture at a time is allowed in a process. That is so with backend:cudaMallocAsync; "+
				"end the other first, or use backend:native")
	}
	return nil
}

func (o *ordered) endDivert() { diverting.CompareAndSwap(o, nil) }

// messageOrdered is the out-of-memory message of the back end cudaMallocAsync.
func (o *outOfMemory) messageOrdered(device int) string {
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
