package alloc

import (
	"cmp"
	"slices"
	"strconv"
)

// BlockState says what a block of a snapshot is doing. Its text forms are PyTorch's.
type BlockState uint8

// The states of blocks.
const (
	Inactive          BlockState = iota // in the free list
	ActiveAllocated                     // owned by someone
	ActivePendingFree                   // freed, and waiting for other streams
)

// String returns PyTorch's name of the state, such as "active_allocated".
func (s BlockState) String() string {
	return [...]string{"inactive", "active_allocated", "active_pending_free"}[s]
}

// BlockInfo describes a block of a snapshot.
type BlockInfo struct {
	Addr      uint64
	Size      uint64 // bytes
	Requested uint64 // what its last owner asked for
	State     BlockState
	Context   any // of its allocation, nil if inactive or not recorded
}

// SegmentInfo describes a segment of a snapshot; an expandable segment has one for each run of mapped pages.
type SegmentInfo struct {
	Device     int
	Addr       uint64
	TotalSize  uint64 // bytes
	Allocated  uint64 // bytes of blocks that are allocated
	Active     uint64 // bytes of blocks that are allocated or pending free
	Requested  uint64 // bytes that callers asked for, of active blocks
	Stream     Stream
	Large      bool   // of a large pool
	Pool       PoolID // zero for the default pool
	Expandable bool
	Context    any // of the allocation that made it
	Blocks     []BlockInfo
}

// Snapshot is the state of one device's allocator.
type Snapshot struct {
	Segments []SegmentInfo // by address
	Trace    []TraceEntry  // oldest first
	Settings Settings
}

// Segments returns the segments and their blocks, by address.
func (c *caching) Segments() []SegmentInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.segmentInfos()
}

// PoolSegments returns the segments of the private pool id, by address. Each block that was allocated in it with caching off counts as a
// segment. The zero id is the default pool, which has no such blocks.
func (c *caching) PoolSegments(id PoolID) []SegmentInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	infos := slices.DeleteFunc(c.segmentInfos(), func(s SegmentInfo) bool { return s.Pool != id })
	p := c.findPrivate(id)
	if p == nil || len(p.uncached) == 0 {
		return infos
	}
	infos = append(infos, uncachedIn(p, c.options.Index)...)
	slices.SortFunc(infos, func(a, b SegmentInfo) int { return cmp.Compare(a.Addr, b.Addr) })
	return infos
}

// WithSegments calls f with the segments of all pools while nothing can change them. f must not call the allocator.
func (c *caching) WithSegments(f func(all []SegmentInfo)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c.segmentInfos())
}

// Snapshot returns segments, trace and settings, and then appends an ActionSnapshot entry without context to the trace.
func (c *caching) Snapshot() Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Snapshot{Segments: c.segmentInfos(), Trace: c.ring.read(), Settings: c.settings}
	var active uint64
	for i := range s.Segments {
		active += s.Segments[i].Active
	}
	c.record(ActionSnapshot, 0, active, 0, nil)
	return s
}

// Map returns the settings under PyTorch's names, as its snapshots hold them: values are bool, int64, float64, string, and for
// "roundup_power2_divisions" a map from MiB to divisions.
func (s *Settings) Map() map[string]any {
	divisions := map[string]any{}
	for i, n := range s.Roundup {
		divisions[strconv.Itoa(1<<i)] = int64(n)
	}
	return map[string]any{
		"PYTORCH_CUDA_ALLOC_CONF":       s.Text,
		"max_split_size":                int64(s.MaxSplitSize), // infinite is -1
		"garbage_collection_threshold":  s.GCThreshold,
		"expandable_segments":           s.ExpandableSegments,
		"pinned_num_register_threads":   int64(s.PinnedRegisterThreads),
		"release_lock_on_cudamalloc":    s.ReleaseLock,
		"pinned_use_cuda_host_register": s.PinnedHostRegister,
		"roundup_power2_divisions":      divisions,
	}
}

func (c *caching) segmentInfos() []SegmentInfo {
	infos := make([]SegmentInfo, 0, len(c.segments))
	for _, g := range c.segments {
		for b := g.head; b != nil; {
			if !b.mapped {
				b = b.next
				continue
			}
			info := SegmentInfo{Device: c.options.Index, Addr: b.addr, Stream: g.silo.stream,
				Large: g.silo.pool.kind == largePool, Pool: g.silo.pool.id(), Expandable: g.page != 0, Context: g.context}
			for ; b != nil && b.mapped; b = b.next {
				info.add(b)
			}
			infos = append(infos, info)
		}
	}
	return infos
}

func (s *SegmentInfo) add(b *Block) {
	i := BlockInfo{Addr: b.addr, Size: b.size, Requested: b.requested, Context: b.context}
	if b.allocated {
		i.State = ActiveAllocated
		s.Allocated += b.size
	} else if b.active() {
		i.State = ActivePendingFree
	}
	if b.active() {
		s.Active += b.size
		s.Requested += b.requested
	}
	s.TotalSize += b.size
	s.Blocks = append(s.Blocks, i)
}
