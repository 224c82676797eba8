package rt

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"tenon.dev/internal/origin"
)

// OpID is a small number for an operation's name, so that an entry of the launch ring fits in one word.
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
	ringSize = 16
	ringBits = 48
)

// ring holds a stream's latest operations: the suspects if the device faults. An entry is one word, the OpID above the operation's number
// in the stream, so that writing it costs one store and readers see whole entries.
type ring [ringSize]atomic.Uint64

// lineRing holds the program's lines that called a ring's operations, if the knob asks for lines.
type lineRing struct {
	mu    sync.Mutex
	calls [ringSize]string
}

// Began notes that operation seq of s is op.
func (s *Stream) Began(op OpID, seq uint64) {
	s.ring[seq%ringSize].Store(uint64(op)<<ringBits | seq&(1<<ringBits-1))
	if s.lines != nil {
		s.lines.mu.Lock()
		defer s.lines.mu.Unlock()
		s.lines.calls[seq%ringSize] = ""
		if file, line := origin.Here(); line > 0 {
			s.lines.calls[seq%ringSize] = fmt.Sprintf("%s:%d", file, line)
		}
	}
}

// Recent returns the stream's latest operations, at most 16, oldest first: their names and numbers in the stream.
func (s *Stream) Recent() (names []string, seqs []uint64) {
	ops, seqs := s.recent()
	for _, op := range ops {
		names = append(names, opName(op))
	}
	return names, seqs
}

func (s *Stream) recent() (ops []OpID, seqs []uint64) {
	var words []uint64
	for i := range s.ring {
		if w := s.ring[i].Load(); w != 0 {
			words = append(words, w)
		}
	}
	slices.SortFunc(words, func(a, b uint64) int { return int(int64(a&(1<<ringBits-1)) - int64(b&(1<<ringBits-1))) })
	for _, w := range words {
		ops, seqs = append(ops, OpID(w>>ringBits)), append(seqs, w&(1<<ringBits-1))
	}
	return ops, seqs
}

// finished notes that everything up to operation seq is complete.
func (s *Stream) finished(seq uint64) { raise(&s.done, seq) }

// suspects describes the operations that may be the cause of a fault: for each stream the latest that are not known to be complete and for
// which may, if there is one, returns true, newest first.
func (d *Device) suspects(may func(OpID) bool) []string {
	var out []string
	for i := range d.streams {
		s := d.streams[i].Load()
		if s == nil {
			break
		}
		ops, seqs := s.recent()
		for j := len(seqs) - 1; j >= 0 && seqs[j] > s.done.Load(); j-- {
			if may != nil && !may(ops[j]) {
				continue
			}
			text := fmt.Sprintf("%s, operation %d of stream %d", opName(ops[j]), seqs[j], s.id)
			if line := s.line(seqs[j]); line != "" {
				text += ", " + line
			}
			out = append(out, text)
		}
	}
	return out
}

// line returns the call of an operation, or "" if lines are not kept.
func (s *Stream) line(seq uint64) string {
	if s.lines == nil {
		return ""
	}
	s.lines.mu.Lock()
	defer s.lines.mu.Unlock()
	return s.lines.calls[seq%ringSize]
}
