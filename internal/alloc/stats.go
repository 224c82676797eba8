package alloc

import (
	"fmt"
	"maps"
	"slices"
)

// Stat tracks one quantity.
type Stat struct {
	Current   int64 // now
	Peak      int64 // the highest Current since the last reset of peaks
	Allocated int64 // sum of all increases
	Freed     int64 // sum of all decreases
}

func (s *Stat) add(n int64) {
	s.Current += n
	s.Allocated += n
	s.Peak = max(s.Peak, s.Current)
}

func (s *Stat) sub(n int64) {
	s.Current -= n
	s.Freed += n
}

// Kinds of pools.
const (
	smallPool = iota
	largePool
)

// StatArray tracks one quantity over all pools, over the small pools and over the large pools, private ones included.
type StatArray [3]Stat

// All returns the sum over small and large pools.
func (a *StatArray) All() Stat { return a[0] }

// Small returns the part of the small pools.
func (a *StatArray) Small() Stat { return a[1+smallPool] }

// Large returns the part of the large pools.
func (a *StatArray) Large() Stat { return a[1+largePool] }

// Stats are the allocator's statistics, the quantities of torch.cuda.memory_stats. Bytes are rounded block sizes, except RequestedBytes.
type Stats struct {
	Allocation         StatArray // live allocations
	Segment            StatArray // live segments, expandable ones not counted
	Active             StatArray // blocks allocated or waiting for events
	InactiveSplit      StatArray // free blocks that share their segment, so that it cannot go back to the device
	AllocatedBytes     StatArray // bytes handed out
	ReservedBytes      StatArray // bytes held from the device
	ActiveBytes        StatArray // bytes of active blocks
	InactiveSplitBytes StatArray // bytes of inactive split blocks
	RequestedBytes     StatArray // what callers asked for, of active blocks

	OversizeAllocations Stat // live allocations of at least max_split_size
	OversizeSegments    Stat // live segments of at least max_split_size

	AllocRetries   int64 // attempts after the cache was flushed
	OOMs           int64 // allocations that failed for lack of memory
	SyncAllStreams int64 // times all outstanding events were waited for
	DeviceAllocs   int64 // segments allocated and ranges mapped
	DeviceFrees    int64 // segments freed and ranges unmapped
	MaxSplitSize   int64 // the setting in bytes, -1 when infinite
}

// StatCount is the number of keys that Flatten returns.
const StatCount = 9*3*4 + 2*4 + 6

// Flatten returns the statistics under PyTorch's keys, such as "active_bytes.all.peak": StatCount of them.
func (s *Stats) Flatten() map[string]int64 {
	m := make(map[string]int64, StatCount)
	one := func(key string, v *Stat) {
		m[key+".current"], m[key+".peak"] = v.Current, v.Peak
		m[key+".allocated"], m[key+".freed"] = v.Allocated, v.Freed
	}
	for i, f := range s.families() {
		for k, pool := range [...]string{"all", "small_pool", "large_pool"} {
			one(familyNames[i]+"."+pool, &f[k])
		}
	}
	one("oversize_allocations", &s.OversizeAllocations)
	one("oversize_segments", &s.OversizeSegments)
	m["num_alloc_retries"], m["num_ooms"] = s.AllocRetries, s.OOMs
	m["num_sync_all_streams"], m["max_split_size"] = s.SyncAllStreams, s.MaxSplitSize
	m["num_device_alloc"], m["num_device_free"] = s.DeviceAllocs, s.DeviceFrees
	return m
}

// String returns the flattened statistics, one "key value" a line, sorted by key.
func (s *Stats) String() string {
	m := s.Flatten()
	var out []byte
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = fmt.Appendf(out, "%s %d\n", k, m[k])
	}
	return string(out)
}

var familyNames = [quantities]string{"allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes", "inactive_split",
	"inactive_split_bytes", "segment", "reserved_bytes"}

// families returns the arrays in the order of quantities.
func (s *Stats) families() [quantities]*StatArray {
	return [...]*StatArray{&s.Allocation, &s.Active, &s.AllocatedBytes, &s.ActiveBytes, &s.RequestedBytes, &s.InactiveSplit,
		&s.InactiveSplitBytes, &s.Segment, &s.ReservedBytes}
}
