package profile

import (
	"iter"
	"maps"
	"time"
)

// Category is what memory was for.
type Category string

// The categories. Parameters are leaves that require grad; gradients are those of the parameters; optimizer state is what an optimizer
// changes beside both and keeps; activations are what forward operations made that gradients are recorded of; inputs came from the host or
// were there before; temporaries are the rest of what was made. Other is what was there before and that no operation used.
const (
	Parameters     Category = "parameters"
	Gradients      Category = "gradients"
	OptimizerState Category = "optimizer state"
	Activations    Category = "activations"
	Inputs         Category = "inputs"
	Temporaries    Category = "temporaries"
	Other          Category = "other"
)

// Categories are all of them, in the order in which they are shown.
func Categories() []Category {
	return []Category{Parameters, Gradients, OptimizerState, Activations, Inputs, Temporaries, Other}
}

// MemoryEvent is a block of memory that was taken from the allocator or given back to it.
type MemoryEvent struct {
	// At is when, on the host's clock; what was there before has 0.
	At time.Duration `json:"at"`
	// Addr is the block's address, and Bytes its size, negative where it was given back.
	Addr  uint64 `json:"addr"`
	Bytes int64  `json:"bytes"`
	// Category is what it was for.
	Category Category `json:"category"`
	// Op is the number of the operation that made the contents, or -1.
	Op int `json:"op"`
}

// Usage is the memory in use at a moment.
type Usage struct {
	// At is the moment, and Total the bytes.
	At    time.Duration
	Total int64
	// By has the bytes of each category.
	By map[Category]int64
}

// Usages yields the memory in use after each event. The map is used again for the next one.
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
