// Package stack records the call stacks of goroutines cheaply, as one object for all captures of the same stack, and resolves function
// names later. It must not depend on its callers or their purpose.
//
// A capture follows the frame pointers that Go keeps on amd64 and arm64, at a few nanoseconds per call, and looks up the return addresses
// in a table. Only for a stack that is not in the table runtime.Callers walks the stack; it also sees inlined calls: the same return
// addresses always contain the same inlined calls. On other processors every capture uses runtime.Callers.
package stack

import (
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
)

// maxDepth is the number of calls of a stack that are kept, from the innermost; the rest is cut off.
const maxDepth = 128

// Stack is a recorded stack. It never changes. Two captures of the same stack by one Table are one Stack.
type Stack struct {
	// Table is the table that the stack belongs to.
	Table *Table

	hash  uint64
	found []uintptr // the return addresses that it is looked up by
	calls []uintptr // as returned by runtime.Callers
	next  *Stack
	from  *Stack // the call that it was captured for, or nil
}

// Calls returns the calls, innermost first, each for use with Name. The caller must not change the slice. The numbers are valid for stacks
// of all tables.
func (s *Stack) Calls() []uintptr { return s.calls }

// Name returns the function, file and line of a call.
func Name(call uintptr) runtime.Frame {
	// Each value from runtime.Callers stands for one call, inlined or not.
	f, _ := runtime.CallersFrames([]uintptr{call}).Next()
	return f
}

// All yields the calls by name, innermost first.
func (s *Stack) All() iter.Seq[runtime.Frame] {
	return func(yield func(runtime.Frame) bool) {
		for _, c := range s.calls {
			if !yield(Name(c)) {
				return
			}
		}
	}
}

// Addresses stores the return addresses of the calling goroutine's innermost calls in at, and returns their number. The same addresses
// always stand for the same calls, inlined ones included, so they are a key for what runtime.Callers would return.
func Addresses(at []uintptr) int { return walk(at) }

const buckets = 1 << 13

// Table holds the stacks that were captured with it. It is safe for concurrent use, and the zero Table is empty and ready for use. It grows
// with every new stack and is freed as a whole.
type Table struct {
	heads [buckets]atomic.Pointer[Stack]
	count atomic.Int64
}

// Len returns the number of distinct stacks.
func (t *Table) Len() int { return int(t.count.Load()) }

// Capture returns the stack of the calling goroutine from the caller's caller outwards: its innermost call is that of the function that
// called Capture. It allocates only for a new stack.
func (t *Table) Capture() *Stack {
	var pcs [maxDepth]uintptr
	found := pcs[:walk(pcs[:])]
	hash := hashOf(found)
	if s := t.get(hash, found, nil); s != nil {
		return s
	}
	var calls [maxDepth]uintptr
	return t.add(hash, found, calls[:runtime.Callers(3, calls[:])], nil) // without Callers, Capture and its caller
}

// CaptureFor is Capture for work that the calling goroutine does for call, which was made earlier: the work's calls up to the first method
// of one of the types runners, such as "core.(*queue)", and then the calls of call.
func (t *Table) CaptureFor(call *Stack, runners []string) *Stack {
	var pcs [maxDepth]uintptr
	found := pcs[:walk(pcs[:])]
	hash := hashOf(found) ^ call.hash
	if s := t.get(hash, found, call); s != nil {
		return s
	}
	var own [maxDepth]uintptr
	calls := own[:runtime.Callers(3, own[:])]
	runs := func(c uintptr) bool {
		name := Name(c).Function
		return slices.ContainsFunc(runners, func(r string) bool { return strings.Contains(name, r+".") })
	}
	if i := slices.IndexFunc(calls, runs); i >= 0 {
		calls = calls[:i]
	}
	return t.add(hash, found, append(calls, call.calls...), call)
}

func hashOf(found []uintptr) uint64 {
	hash := uint64(len(found))
	for _, pc := range found {
		hash = (hash ^ uint64(pc)) * 0x9e3779b97f4a7c15
	}
	return hash ^ hash>>29
}

// get returns the stack that found and from lead to, or nil.
func (t *Table) get(hash uint64, found []uintptr, from *Stack) *Stack {
	for s := t.heads[hash%buckets].Load(); s != nil; s = s.next {
		if s.hash == hash && s.from == from && slices.Equal(s.found, found) {
			return s
		}
	}
	return nil
}

// add adds a stack to the table, unless another goroutine was faster.
func (t *Table) add(hash uint64, found, calls []uintptr, from *Stack) *Stack {
	head := &t.heads[hash%buckets]
	s := &Stack{Table: t, hash: hash, found: slices.Clone(found), calls: slices.Clone(calls), from: from}
	for {
		s.next = head.Load()
		if o := t.get(hash, found, from); o != nil {
			return o
		}
		if head.CompareAndSwap(s.next, s) {
			t.count.Add(1)
			return s
		}
	}
}
