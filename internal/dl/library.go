//go:build !tenon_sim && (linux || darwin || windows)

package dl

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/ebitengine/purego"
)

// Library is an open shared library.
type Library struct {
	name   string
	handle uintptr
}

// Open opens the first of names that the system's loader accepts. If none loads, the error names each with the loader's reason.
func Open(names ...string) (*Library, error) {
	// dlerror's text is per thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var reasons []string
	for _, name := range names {
		h, err := openLibrary(name)
		if err == nil {
			return &Library{name: name, handle: h}, nil
		}
		reason := err.Error()
		if !strings.Contains(reason, name) {
			reason = name + ": " + reason
		}
		reasons = append(reasons, reason)
	}
	if len(reasons) == 0 {
		return nil, errors.New("dl.Open: no library name given")
	}
	return nil, errors.New(strings.Join(reasons, "; "))
}

// Name returns the name that Open loaded.
func (l *Library) Name() string { return l.name }

// Symbol returns the address of the function called name, or an error that names both function and library.
func (l *Library) Symbol(name string) (Proc, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := findSymbol(l.handle, name)
	if err != nil {
		return 0, fmt.Errorf("%s has no function %s: %w", l.name, name, err)
	}
	return Proc(p), nil
}

// Close unloads the library. Its functions must not be called afterwards.
func (l *Library) Close() error { return closeLibrary(l.handle) }

// Proc is the address of a C function, or 0.
type Proc uintptr

// Call calls the function with integer and pointer arguments, at most 32, and returns its integer result. An argument of the form
// uintptr(unsafe.Pointer(p)) is kept alive, and moved to the heap, during the call. It allocates its argument list.
//
//go:uintptrescapes
func (p Proc) Call(args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(uintptr(p), args...)
	return r
}

// CallKept is Call without an allocation, for hot paths: pointers are passed with [Address], and the caller keeps alive what they point to
// (runtime.KeepAlive) until it returns.
func (p Proc) CallKept(args ...uintptr) uintptr {
	// SyscallN's argument list escapes, so it gets a copy in reused memory and the caller's list stays on the stack.
	list := argLists.Get().(*[maxArgs]uintptr)
	n := copy(list[:len(args)], args)
	r, _, _ := purego.SyscallN(uintptr(p), list[:n]...)
	argLists.Put(list)
	return r
}

// maxArgs is the maximum number of arguments of CallKept; cuLaunchKernel, the longest call in use, has 11.
const maxArgs = 12

var argLists = sync.Pool{New: func() any { return new([maxArgs]uintptr) }}

// Callback returns the address of a C function that runs the Go function fn, which takes some uintptr parameters and returns at most one
// uintptr; the C function takes as many pointer-sized parameters. It may be called on any thread. It is never released, and a process can
// only have a limited number (2000, on Windows 1024): make one and pass it ids.
func Callback(fn any) uintptr { return purego.NewCallback(fn) }
