package snapshot

import (
	"iter"
	"math/rand/v2"
	"slices"
)

// Stacks is a set of stacks and of the frames they share: equal stacks have one StackID, equal frames one FrameID. Stack 0 is the empty
// one. Reading is safe for concurrent use as long as nothing is added. The zero Stacks is empty and ready.
type Stacks struct {
	frames []Frame
	byWhat map[Frame]FrameID
	// calls are the frames of all stacks, one stack after another; ends[i] is where those of stack i+1 end.
	calls []FrameID
	ends  []uint64
	// slots finds a stack by its calls: a hash table with open addressing, twice as long as there are stacks or longer; 0 is a free slot.
	slots  []StackID
	hashes []uint64 // of the stacks, by ID - 1
	seed   uint64
}

// Len returns the number of stacks, the empty one included: IDs are below it.
func (s *Stacks) Len() int { return len(s.ends) + 1 }

// FrameCount returns the number of different frames: FrameIDs are below it.
func (s *Stacks) FrameCount() int { return len(s.frames) }

// Frame returns a frame.
func (s *Stacks) Frame(id FrameID) Frame { return s.frames[id] }

// Calls returns the frames of a stack, innermost first. The caller does not change the slice.
func (s *Stacks) Calls(id StackID) []FrameID {
	if id == 0 || int(id) > len(s.ends) {
		return nil
	}
	start := uint64(0)
	if id > 1 {
		start = s.ends[id-2]
	}
	return s.calls[start:s.ends[id-1]:s.ends[id-1]]
}

// All yields the frames of a stack, innermost first.
func (s *Stacks) All(id StackID) iter.Seq[Frame] {
	return func(yield func(Frame) bool) {
		for _, f := range s.Calls(id) {
			if !yield(s.frames[f]) {
				return
			}
		}
	}
}

// Frames returns a copy of a stack's frames, innermost first.
func (s *Stacks) Frames(id StackID) []Frame {
	calls := s.Calls(id)
	if len(calls) == 0 {
		return nil
	}
	fs := make([]Frame, len(calls))
	for i, f := range calls {
		fs[i] = s.frames[f]
	}
	return fs
}

// AddFrame returns the ID of f, which is new if f is.
func (s *Stacks) AddFrame(f Frame) FrameID {
	if id, ok := s.byWhat[f]; ok {
		return id
	}
	if s.byWhat == nil {
		s.byWhat = map[Frame]FrameID{}
	}
	id := FrameID(len(s.frames))
	s.frames = append(s.frames, f)
	s.byWhat[f] = id
	return id
}

// AddCalls returns the ID of the stack with these frames, innermost first. A stack that is not yet known gets a new ID.
func (s *Stacks) AddCalls(calls []FrameID) StackID {
	if len(calls) == 0 {
		return 0
	}
	if 2*len(s.ends) >= len(s.slots) {
		s.grow()
	}
	h := s.seed
	for _, c := range calls {
		h = (h ^ uint64(c)) * 0x9e3779b97f4a7c15
		h ^= h >> 31
	}
	mask := uint64(len(s.slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		id := s.slots[i]
		if id == 0 {
			s.calls = append(s.calls, calls...)
			s.ends = append(s.ends, uint64(len(s.calls)))
			s.hashes = append(s.hashes, h)
			id = StackID(len(s.ends))
			s.slots[i] = id
			return id
		}
		if s.hashes[id-1] == h && slices.Equal(s.Calls(id), calls) {
			return id
		}
	}
}

// grow doubles the hash table. Its seed differs from one Stacks to the next, so that no file can be made for which it is slow.
func (s *Stacks) grow() {
	if s.slots == nil {
		s.seed = rand.Uint64()
	}
	s.slots = make([]StackID, max(64, 2*len(s.slots)))
	mask := uint64(len(s.slots) - 1)
	for k, h := range s.hashes {
		i := h & mask
		for s.slots[i] != 0 {
			i = (i + 1) & mask
		}
		s.slots[i] = StackID(k + 1)
	}
}

// Add returns the ID of the stack of these frames, innermost first, which is new if the stack is.
func (s *Stacks) Add(frames []Frame) StackID {
	calls := make([]FrameID, len(frames))
	for i, f := range frames {
		calls[i] = s.AddFrame(f)
	}
	return s.AddCalls(calls)
}
