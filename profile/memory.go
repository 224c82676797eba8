package profile

import (
	"iter"
	"maps"
	"time"
)

// Category is what memory was used for.
type Category string

// The categories. Parameters are leaves that require grad, and those of modules; gradients are the parameters' gradients; optimizer state
// is what an optimizer changes besides these two and keeps; activations are results of forward operations that record gradients; inputs
// came from the host or existed before the profile; temporaries are all other results. Other is memory that existed before and that no
// operation used.
const (
	Parameters     Category = "parameters"
	Gradients      Category = "gradients"
	OptimizerState Category = "optimizer state"
	Activations    Category = "activations"
	Inputs         Category = "inputs"
	Temporaries    Category = "temporaries"
	Other          Category = "other"
)

// Categories returns all categories, in the order in which they are shown.
func Categories() []Category {
	return []Category{Parameters, Gradients, OptimizerState, Activations, Inputs, Temporaries, Other}
}

// MemoryEvent is a block of memory that was taken from the allocator or given back to it.
type MemoryEvent struct {
	// At is the time of the event on the host's clock; 0 for memory that existed before the profile.
	At time.Duration `json:"at"`
	// Addr is the block's address, and Bytes its size, negative if it was freed.
	Addr  uint64 `json:"addr"`
	Bytes int64  `json:"bytes"`
	// Category is what the block was used for.
	Category Category `json:"category"`
	// Op is the index of the operation that wrote the contents, or -1.
	Op int `json:"op"`
}

// SegmentEvent is memory that the allocator took from the device or gave back to it: a segment, or pages of an expandable one. With the
// allocator backend cudaMallocAsync there are none.
type SegmentEvent struct {
	// At is the time of the event on the host's clock; 0 for segments from before the profile.
	At time.Duration `json:"at"`
	// Addr is the memory's address, and Bytes its size, negative if it was given back.
	Addr  uint64 `json:"addr"`
	Bytes int64  `json:"bytes"`
}

// Usage is the memory in use at a moment.
type Usage struct {
	// At is the time, and Total the bytes in use.
	At    time.Duration
	Total int64
	// By holds the bytes of each category.
	By map[Category]int64
}

// Usages yields the memory in use after each event. The map By is reused for the next event.
func (p *Profile) Usages() iter.Seq[Usage] {
	return func(yield func(u Usage) bool) {
		if p == nil {
			return
		}
		u := Usage{By: map[Category]int64{}}
		for _, e := range p.Memory {
			u.At = e.At
			u.Total += e.Bytes
			u.By[e.Category] += e.Bytes
			if !yield(u) {
				return
			}
		}
	}
}

// Peak returns the moment with the most memory in use.
func (p *Profile) Peak() Usage {
	peak := Usage{By: map[Category]int64{}}
	for u := range p.Usages() {
		if u.Total > peak.Total {
			peak = Usage{u.At, u.Total, maps.Clone(u.By)}
		}
	}
	return peak
}
