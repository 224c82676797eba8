//go:build !linux

package hostsim

import "encoding/binary"

// On systems without private mappings of a pattern, memory comes from the Go heap, whose pages the system provides lazily, and only its
// first filledBytes are filled.
const (
	filledBytes = 16 << 20
	pattern     = 0x7FFF_7FFF
	// mostBytes is the largest request that is passed on: the Go runtime ends the program when the system refuses.
	mostBytes = 1 << 36
)

// mapBacking returns size bytes of fresh memory; plain memory is zero, other memory begins with the pattern. It reports false for a size
// that no host has.
func mapBacking(size uint64, plain bool) (backing, bool) {
	if size > mostBytes {
		return backing{}, false
	}
	b := make([]byte, size)
	for i := 0; !plain && i+4 <= min(len(b), filledBytes); i += 4 {
		binary.LittleEndian.PutUint32(b[i:], pattern)
	}
	return backing{mem: b}, true
}

// unmapBacking leaves b to the garbage collector.
func unmapBacking(b backing) {}

// mapHost returns n bytes.
func mapHost(n uint64) []byte {
	if n > mostBytes {
		return nil
	}
	return make([]byte, n)
}

// unmapHost leaves b to the garbage collector.
func unmapHost(b []byte) {}

// virtualMemory is set if the functions below work: memory of the Go heap cannot be released piece by piece.
const virtualMemory = false

// reserveHost returns nothing.
func reserveHost(size uint64) ([]byte, bool) { return nil, false }

// commitHost is never reached.
func commitHost(mem []byte) (count int64, ok bool) { return 0, false }

// decommitHost is never reached.
func decommitHost(mem []byte, count int64) {}

// releaseHost is never reached.
func releaseHost(mem []byte) {}
