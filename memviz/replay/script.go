package replay

import (
	"fmt"
	"slices"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/ordered"
)

// script is the sequence in which the recording's device gave memory and took it back. A replay under the recording's settings makes the
// same requests; at the first different one the script ends and describes the difference.
type script struct {
	steps   []driverStep
	at      int          // the next step
	stream  alloc.Stream // of the current operation
	large   bool         // the operation is for a large pool
	failing int          // the event of the current allocation if it failed in the recording, else 0
	// mapped are the mapping steps by owner; back maps addresses to the pieces of the next step that takes memory back, nil if that step
	// is not known.
	mapped map[owner][]int
	back   map[uint64]int
	left   string // how the replay differed from the recording; "" while it follows
	event  int    // the event at which it differed
}

// driverStep is memory given, or a run of memory taken back, in which the order has no meaning.
type driverStep struct {
	event      int // of the trace
	addr, size uint64
	stream     alloc.Stream
	mapped     bool // pages of an expandable segment
	back       []span
	asked      bool // taken back because the program emptied the cache, not because the device was full
}

// span is a piece of memory; size shrinks as pages of it are returned.
type span struct{ addr, size uint64 }

// newScript returns a script of steps, which it changes.
func newScript(steps []driverStep) *script {
	s := &script{steps: steps, mapped: map[owner][]int{}}
	for i := range steps {
		if n := &steps[i]; n.mapped {
			o := owner{n.stream, n.size%largePage == 0}
			s.mapped[o] = append(s.mapped[o], i)
		}
	}
	return s
}

func (s *script) following() bool { return s != nil && s.left == "" }

// leave ends the script.
func (s *script) leave(format string, args ...any) {
	if s.left != "" {
		return
	}
	s.left, s.event = fmt.Sprintf(format, args...), -1
	if s.at < len(s.steps) {
		s.event = s.steps[s.at].event
	}
}

// next returns the next step, or nil.
func (s *script) next() *driverStep {
	if s.at == len(s.steps) {
		return nil
	}
	return &s.steps[s.at]
}

// refuses reports whether an allocation that failed in the recording has got all the memory that it got there.
func (s *script) refuses(n *driverStep) bool {
	return s.failing > 0 && (n == nil || n.event > s.failing)
}

// malloc returns the address for a segment, or 0 if the script ends here.
func (s *script) malloc(size uint64) (addr uint64, refused bool) {
	n := s.next()
	switch {
	case s.refuses(n):
		return 0, true
	case n == nil:
		s.leave("it asks for a segment of %d bytes where the recording has no further one", size)
	case n.back != nil && !n.asked:
		return 0, true // the recording's device was full: it took memory back first
	case n.back != nil:
		s.leave("it asks for a segment of %d bytes while the recording returns the one at %#x", size, n.back[0].addr)
	case n.mapped || n.size != size:
		s.leave("it asks for a segment of %d bytes, the recording for %d", size, n.size)
	default:
		s.at++
		return n.addr, false
	}
	return 0, false
}

// reserve returns the address of a range for the pool and stream of the current operation: it begins where the recording maps for them
// next. It returns 0 if the recording never does, or if the address is taken: a range for an allocation that fails has no place in the
// recording.
func (s *script) reserve(held map[uint64]uint64, ranges *ordered.List[extent]) uint64 {
	mapped := s.mapped[owner{s.stream, s.large}]
	k, _ := slices.BinarySearch(mapped, s.at)
	if k == len(mapped) {
		return 0
	}
	addr := s.steps[mapped[k]].addr
	if e := ranges.Value(ranges.Last(addr)); held[addr] != 0 || e != nil && addr < e.to {
		return 0
	}
	return addr
}

// mapPage follows the mapping of a page and says whether it is refused.
func (s *script) mapPage(addr, size uint64) bool {
	n := s.next()
	switch {
	case s.refuses(n), n != nil && n.back != nil && !n.asked:
		return true
	case n == nil || !n.mapped || n.addr != addr || n.size < size:
		s.leave("it maps a page at %#x, which the recording does not", addr)
		return false
	}
	n.addr, n.size = n.addr+size, n.size-size
	if n.size == 0 {
		s.at++
	}
	return false
}

// release follows the return of memory.
func (s *script) release(addr, size uint64) {
	n := s.next()
	if n == nil || n.back == nil {
		s.leave("it returns the memory at %#x, which the recording keeps", addr)
		return
	}
	if s.back == nil {
		s.back = make(map[uint64]int, len(n.back))
		for i, b := range n.back {
			s.back[b.addr] = i
		}
	}
	if i, ok := s.back[addr]; ok && size <= n.back[i].size {
		b := &n.back[i]
		delete(s.back, addr)
		b.addr, b.size = b.addr+size, b.size-size
		if b.size > 0 {
			s.back[b.addr] = i
			return
		}
		last := len(n.back) - 1
		if n.back[i] = n.back[last]; i < last {
			s.back[n.back[i].addr] = i
		}
		if n.back = n.back[:last]; last == 0 {
			s.at++
			s.back = nil
		}
		return
	}
	s.leave("it returns %d bytes at %#x, which the recording keeps", size, addr)
}
