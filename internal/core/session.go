package core

import (
	"bytes"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/origin"
)

// shared panics because two goroutines use one session. It names the line of the other one's call where that call is still running.
func (f *frame) shared() {
	s := f.x.s
	e := fault.New(fault.Invalid, "two goroutines use one Exec at once%s; give each goroutine its own with Fork", s.otherCall())
	e.Op = f.row.Name
	locate(e)
	panic(e)
}

// otherCall looks for the goroutine in whose stack an operation of this session runs, apart from the calling one. A stack shows the
// receivers of methods, and frames belong to one session.
func (s *session) otherCall() string {
	buf := make([]byte, 1<<20)
	stacks := bytes.Split(buf[:runtime.Stack(buf, true)], []byte("\n\n"))
	for _, stack := range stacks[1:] {
		for _, f := range s.frames {
			at := bytes.Index(stack, fmt.Appendf(nil, "(*frame).call(%p", f))
			if at < 0 {
				continue
			}
			frames := stack[bytes.LastIndexByte(stack[:at], '\n')+1:]
			if place := origin.In(string(frames)); place != "" {
				return ", the other at " + place
			}
		}
	}
	return ""
}

// HeldMemory returns the addresses of the device memory that the tensors hold: their own, what the graph behind them saved, and the
// gradients of its leaves. It is for tests of the closing law.
func HeldMemory(ts ...*Tensor) map[uint64]bool {
	held := map[uint64]bool{}
	hold := func(t *Tensor) {
		if t != nil && t.st.block != nil {
			held[t.st.ptr] = true
		}
	}
	seen := map[*node]bool{nil: true}
	var stack []*node
	for _, t := range ts {
		hold(t)
		if t.leaf != nil {
			hold(t.leaf.grad)
		}
		stack = append(stack, t.node, t.root().node)
	}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		if stack = stack[:len(stack)-1]; seen[n] {
			continue
		}
		seen[n] = true
		for _, s := range n.saved {
			if s.st != nil && s.st.block != nil {
				held[s.st.ptr] = true
			}
		}
		if n.extra != nil {
			for _, v := range n.extra.packed {
				switch v := v.(type) {
				case *Tensor:
					hold(v)
				case recomputed:
					stack = append(stack, v.c.inputs)
					hold(v.c.saved[v.i].again)
				}
			}
			for _, k := range n.extra.kept {
				hold(k.grad)
			}
		}
		for _, e := range n.edges {
			stack = append(stack, e.node)
			if e.leaf != nil {
				hold(e.leaf.grad)
			}
		}
		if n.custom != nil {
			for _, e := range n.custom.history {
				stack = append(stack, e.node)
			}
		}
	}
	return held
}

// OpNames returns the names of all operations, sorted.
func OpNames() []string { return slices.Sorted(maps.Keys(rows)) }
