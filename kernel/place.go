package kernel

import (
	"sync"

	"tenon.dev/internal/origin"
)

// site is a line of a program.
type site struct {
	file string
	line int
}

// path is the innermost calls of a stack, by their return addresses. The call that loc looks for is among them.
type path [16]uintptr

// places are the lines that were looked up, for all builders: a kernel takes hundreds of look-ups, each of which would walk the stack with
// runtime.Callers and take as long as all else that is done for an instruction.
var places = lookup{paths: map[path]site{}}

type lookup struct {
	mu    sync.RWMutex
	paths map[path]site // without a line if the program is not on the path
}

// mostPaths bounds the paths that are kept; a program that has more begins anew.
const mostPaths = 1 << 16

// of returns the line that the path leads to.
func (l *lookup) of(at *path) (s site, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s, ok = l.paths[*at]
	return s, ok
}

// add returns the line that is meant by pcs, those of runtime.Callers for that path.
func (l *lookup) add(at *path, pcs []uintptr) site {
	s := among(pcs)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.paths) >= mostPaths {
		clear(l.paths)
	}
	l.paths[*at] = s
	return s
}

// among returns the line of the first call outside of this package or, if the program called package kmath, of that call.
func among(pcs []uintptr) (found site) {
	for _, pc := range pcs {
		folder, file, line := origin.Place(pc)
		switch {
		case folder == "kernel" || line == 0:
			continue
		case folder == "kernel/kmath":
			found = site{} // its caller is the one
			continue
		case found == site{}:
			found = site{file, line}
		}
		if folder != "internal/kernels/math" {
			break
		}
	}
	return found
}
