package kernel

import (
	"runtime"
	"sync"

	"tenon.dev/internal/origin"
)

// site is a call on the way to the builder.
type site struct {
	folder, file string // of the package, in the module
	line         int
}

// path is the innermost calls of a stack, by their return addresses. The call that loc looks for is among them.
type path [16]uintptr

// places are the calls that were looked up, for all builders: a kernel takes hundreds of look-ups, each of which would walk the stack with
// runtime.Callers and take as long as all else that is done for an instruction.
var places = lookup{paths: map[path]*site{}, sites: map[uintptr]*site{}}

type lookup struct {
	mu    sync.RWMutex
	paths map[path]*site // nil: the program is not on the path
	sites map[uintptr]*site
}

// mostPaths bounds the paths that are kept; a program that has more begins anew.
const mostPaths = 1 << 16

// of returns the call that the path leads to.
func (l *lookup) of(at *path) (s *site, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s, ok = l.paths[*at]
	return s, ok
}

// add returns the call that is meant among pcs, those of runtime.Callers for that path, or nil: the first outside of this package or, if
// the program called package kmath, that call.
func (l *lookup) add(at *path, pcs []uintptr) (found *site) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, pc := range pcs {
		s := l.site(pc)
		switch {
		case s.folder == "kernel":
			continue
		case s.folder == "kernel/kmath":
			found = nil // its caller is the one
			continue
		case found == nil:
			found = s
		}
		if s.folder != "internal/kernels/math" {
			break
		}
	}
	if len(l.paths) >= mostPaths {
		clear(l.paths)
	}
	l.paths[*at] = found
	return found
}

// site returns the call at a program counter; one without a line counts as this package's.
func (l *lookup) site(pc uintptr) *site {
	if s, ok := l.sites[pc]; ok {
		return s
	}
	s := &site{folder: "kernel"}
	frames := runtime.CallersFrames([]uintptr{pc})
	for more := true; more && s.folder == "kernel"; {
		var fr runtime.Frame
		if fr, more = frames.Next(); fr.Line > 0 {
			_, folder := origin.Of(fr.Function, fr.File)
			s = &site{folder: folder, file: fr.File, line: fr.Line}
		}
	}
	l.sites[pc] = s
	return s
}
