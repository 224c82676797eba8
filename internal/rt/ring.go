package rt

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"tenon.dev/fault"
)

// OpID is a small number for an operation's name, so that the launch ring needs one word an entry.
type OpID uint16

var opNames struct {
	mu    sync.Mutex
	names []string
}

// RegisterOp returns the number of a name. It is called while packages are initialised.
func RegisterOp(name string) OpID {
	opNames.mu.Lock()
	defer opNames.mu.Unlock()
	opNames.names = append(opNames.names, name)
	return OpID(len(opNames.names) - 1)
}

func opName(id OpID) string {
	opNames.mu.Lock()
	defer opNames.mu.Unlock()
	return opNames.names[id]
}

const (
	ringSize  = 16
	ringBits  = 48
	ringDepth = 24 // frames kept of a call, where lines are traced
)

// ring holds a stream's latest operations: the suspects where the device faults. An entry is one word, the operation's number above its
// place in the stream, so that noting it costs one store and readers see whole entries.
type ring [ringSize]atomic.Uint64

// lineRing holds the calls of a ring's operations, where the knob asks for lines.
type lineRing struct {
	mu  sync.Mutex
	pcs [ringSize][]uintptr
}

// began notes that operation seq of s is op.
func (s *Stream) began(op OpID, seq uint64) {
	s.ring[seq%ringSize].Store(uint64(op)<<ringBits | seq&(1<<ringBits-1))
	if s.lines != nil {
		s.lines.mu.Lock()
		defer s.lines.mu.Unlock()
		pcs := make([]uintptr, ringDepth)
		s.lines.pcs[seq%ringSize] = pcs[:runtime.Callers(3, pcs)]
	}
}

// Recent returns the stream's latest operations, at most 16, oldest first: their names and places in the stream.
func (s *Stream) Recent() (names []string, seqs []uint64) {
	var words []uint64
	for i := range s.ring {
		if w := s.ring[i].Load(); w != 0 {
			words = append(words, w)
		}
	}
	slices.SortFunc(words, func(a, b uint64) int { return int(int64(a&(1<<ringBits-1)) - int64(b&(1<<ringBits-1))) })
	for _, w := range words {
		names, seqs = append(names, opName(OpID(w>>ringBits))), append(seqs, w&(1<<ringBits-1))
	}
	return names, seqs
}

// finished notes that everything up to operation seq is complete.
func (s *Stream) finished(seq uint64) { raise(&s.done, seq) }

// suspects describes the operations that may be the cause of a fault: of each stream the latest that are not known to be complete,
// newest first.
func (d *Device) suspects() []string {
	var out []string
	for i := range d.streams {
		s := d.streams[i].Load()
		if s == nil {
			break
		}
		names, seqs := s.Recent()
		for j := len(seqs) - 1; j >= 0 && seqs[j] > s.done.Load(); j-- {
			text := fmt.Sprintf("%s, operation %d of stream %d", names[j], seqs[j], s.id)
			if line := s.line(seqs[j]); line != "" {
				text += ", " + line
			}
			out = append(out, text)
		}
	}
	return out
}

// line returns the call of an operation, or "" where calls are not kept.
func (s *Stream) line(seq uint64) string {
	if s.lines == nil {
		return ""
	}
	s.lines.mu.Lock()
	defer s.lines.mu.Unlock()
	pcs := s.lines.pcs[seq%ringSize]
	if len(pcs) == 0 || callerOf == nil {
		return ""
	}
	if file, line := callerOf(pcs); line > 0 {
		return fmt.Sprintf("%s:%d", file, line)
	}
	return ""
}

// callerOf turns a stack into the line of the first caller outside the library. The tensor line, which knows who its callers are, sets it.
var callerOf func(pcs []uintptr) (file string, line int)

// SetCallerOf sets how a kept stack becomes a line of the user's code.
func SetCallerOf(f func(pcs []uintptr) (file string, line int)) { callerOf = f }

// Locate gives e the line of the first caller outside the library.
func Locate(e *fault.Error) {
	var pcs [64]uintptr
	if callerOf != nil {
		e.File, e.Line = callerOf(pcs[:runtime.Callers(2, pcs[:])])
	}
}
