package rt

import (
	"cmp"
	"slices"
	"time"

	"tenon.dev/profile"
)

// MemoryUse is how an operation uses memory.
type MemoryUse uint8

// The uses: the operation reads the memory; the memory is a parameter's, or a gradient of one; the operation creates the content, or
// changes it; bytes of the host are copied there.
const (
	UseRead MemoryUse = iota
	UseParameter
	UseGradient
	UseMake
	UseChange
	UseCopy
)

// Uses notes how o uses the memory at an address, if a block begins there.
func (o *ProfiledOp) Uses(addr uint64, use MemoryUse) {
	p := o.p
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.live[addr]
	if b == nil || p.ended {
		return
	}
	b.used = true
	optimizes := o.op.Phase == profile.Optimizer
	switch use {
	case UseParameter:
		b.parameter = true
	case UseGradient:
		b.gradient = true
	case UseMake:
		b.maker = o
	case UseCopy:
		b.copied = b.maker == nil
	case UseChange:
		b.state = b.state || optimizes
		if b.maker == nil && !b.copied {
			b.maker = o
		}
	}
}

// category returns what a block was used for. The caller holds the profiler's mu.
func (p *Profiler) category(b *profiledBlock) profile.Category {
	switch {
	case b.parameter:
		return profile.Parameters
	case b.gradient:
		return profile.Gradients
	case b.state && (b.before || b.outlives(p.ops)):
		return profile.OptimizerState
	case b.before && !b.used:
		return profile.Other
	case b.before || b.copied:
		return profile.Inputs
	case b.maker != nil && b.maker.recorded && b.maker.op.Phase == profile.Forward:
		return profile.Activations
	}
	return profile.Temporaries
}

// outlives reports whether b was still in use after the optimizer step that made it: when an operation outside of optimizers began, or at
// the end.
func (b *profiledBlock) outlives(ops []*ProfiledOp) bool {
	if b.freed < 0 {
		return true
	}
	i, _ := slices.BinarySearchFunc(ops, b.at, func(o *ProfiledOp, at time.Duration) int { return cmp.Compare(o.op.Begin, at) })
	for ; i < len(ops) && ops[i].op.Begin < b.freed; i++ {
		if ops[i].op.Phase != profile.Optimizer {
			return true
		}
	}
	return false
}

// history returns the memory's events. The caller holds p.mu.
func (p *Profiler) history() []profile.MemoryEvent {
	var out []profile.MemoryEvent
	for _, b := range p.blocks {
		e := profile.MemoryEvent{At: b.at, Addr: b.addr, Bytes: int64(b.size), Category: p.category(b), Op: b.maker.Index(p)}
		out = append(out, e)
		if b.freed >= 0 {
			e.At, e.Bytes = b.freed, -e.Bytes
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b profile.MemoryEvent) int { return cmp.Compare(a.At, b.At) })
	return out
}
