package core

import (
	"maps"
	"slices"
)

// HeldMemory returns the addresses of the device memory that the tensors hold: their own, the saved tensors of the graph behind them, and
// the gradients of its leaves. Tests use it to check that operations close their temporaries.
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
			hold(t.leaf.grad.Load())
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
				case omitted:
					for _, s := range v.of.sources {
						held[s.st.ptr] = held[s.st.ptr] || s.st.block != nil
					}
					hold(v.of.values[v.i].t)
				}
			}
			for _, k := range n.extra.kept {
				hold(k.grad)
			}
		}
		for _, e := range n.edges {
			stack = append(stack, e.node)
			if e.leaf != nil {
				hold(e.leaf.grad.Load())
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
