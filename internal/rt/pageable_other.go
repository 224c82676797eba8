//go:build !linux

package rt

import "errors"

// mapPageable returns n bytes of the Go heap, which does not move.
func mapPageable(n uint64) ([]byte, error) {
	const most = 1 << 36 // the Go heap ends the program when the system refuses more
	if n > most {
		return nil, errors.New("the system has no memory left")
	}
	return make([]byte, n), nil
}

// unmapPageable does nothing: the collector frees the memory.
func unmapPageable([]byte) error { return nil }
