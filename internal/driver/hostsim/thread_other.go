//go:build !linux

package hostsim

import (
	"bytes"
	"runtime"
	"strconv"
)

// threadID returns the goroutine's id. It can replace the thread's, since a goroutine that holds a token has its thread to itself.
func threadID() uint64 {
	var buf [64]byte
	b := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	n, _, _ := bytes.Cut(b, []byte(" "))
	id, err := strconv.ParseUint(string(n), 10, 64)
	if err != nil {
		panic("hostsim: a stack trace does not begin with the goroutine's id")
	}
	return id
}

// hostMemoryBytes returns 0: the host's memory is unknown here.
func hostMemoryBytes() uint64 { return 0 }
