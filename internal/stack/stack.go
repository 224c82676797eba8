// Package stack records the call stacks of goroutines cheaply, one object for all captures of the same stack, and resolves function
// names late. It must not depend on who asks or why.
//
// A capture follows the frame pointers that Go keeps on amd64 and arm64, a few nanoseconds a call, and looks the return addresses up in a
// table. Only a stack that the table has not seen is walked by runtime.Callers, which also sees calls that were inlined: the same
// return addresses always hold the same inlined calls. On other processors every capture takes that way.
package stack

import (
	"iter"
	"runtime"
	"slices"
	"sync/atomic"
)

// maxDepth is how many calls of a stack are kept, from the innermost; what lies outside of them is cut off.
const maxDepth = 128

// Stack is a recorded stack. It never changes. Two captures of the same stack by one Table are one Stack.
type Stack struct {
	// Table is where the stack is from.
	Table *Table

	hash  uint64
	found []uintptr // the return addresses by which it is found
	calls []uintptr // as runtime.Callers gives them
	next  *Stack
}

// Calls returns the calls, innermost first, each for Name. The caller does not change the slice. Stacks of any table share the numbers.
func (s *Stack) Calls() []uintptr { return s.calls }

// Name returns the function, file and line of a call.
func Name(call uintptr) runtime.Frame {
	// What runtime.Callers returns stands for one call each, inlined or not.
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

const buckets = 1 << 13

// Table holds the stacks that were captured with it. It is safe for concurrent use, and the zero Table is empty and ready. It grows
// with every new stack and is freed as a whole.
type Table struct {
	heads [buckets]atomic.Pointer[Stack]
	count atomic.Int64
}

// Len returns the number of different stacks.
func (t *Table) Len() int { return int(t.count.Load()) }

// Capture returns the stack of the calling goroutine, from the caller's caller outwards: its innermost call is that of the function that
// called Capture. It allocates only for a new stack.
func (t *Table) Capture() *Stack {
	var pcs [maxDepth]uintptr
	found := pcs[:walk(pcs[:])]
	hash := uint64(len(found))
	for _, pc := range found {
		hash = (hash ^ uint64(pc)) * 0x9e3779b97f4a7c15
	}
	hash ^= hash >> 29
	head := &t.heads[hash%buckets]
	for s := head.Load(); s != nil; s = s.next {
		if s.hash == hash && slices.Equal(s.found, found) {
			return s
		}
	}
	return t.add(head, hash, found)
}

// add walks the stack in full and adds it to the table.
func (t *Table) add(head *atomic.Pointer[Stack], hash uint64, found []uintptr) *Stack {
	var pcs [maxDepth]uintptr
	// Above are Callers, add, Capture and its caller.
	n := runtime.Callers(4, pcs[:])
	s := &Stack{Table: t, hash: hash, found: slices.Clone(found), calls: slices.Clone(pcs[:n])}
	for {
		s.next = head.Load()
		for o := s.next; o != nil; o = o.next {
			if o.hash == hash && slices.Equal(o.found, found) {
				return o // another goroutine was faster
			}
		}
		if head.CompareAndSwap(s.next, s) {
			t.count.Add(1)
			return s
		}
	}
}
