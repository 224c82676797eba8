package rt

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/knob"
)

// tensors holds the blocks of live tensors, where a memory checker looks for leaks. Closing a device is how a program gives up its tensors, so Close
// frees them then, and the checker is left with what was allocated by address and never freed, and with devices that nobody closed.
type tensors struct {
	on bool

	mu sync.Mutex
	// live are the blocks that tensors hold, gone those that Close freed.
	live, gone map[*alloc.Block]struct{}
}

func newTensors() tensors {
	return tensors{on: knob.LookFor("leaks"), live: map[*alloc.Block]struct{}{}, gone: map[*alloc.Block]struct{}{}}
}

// add notes a block.
func (t *tensors) add(b *alloc.Block) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live[b] = struct{}{}
}

// remove forgets a block, and reports whether it is still to be freed.
func (t *tensors) remove(b *alloc.Block) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, b)
	_, freed := t.gone[b]
	return !freed
}

// freeTensors frees what tensors still hold, where that counts; their own frees then do nothing.
func (d *Device) freeTensors() error {
	t := &d.tensors
	t.mu.Lock()
	live := t.live
	t.live = map[*alloc.Block]struct{}{}
	maps.Copy(t.gone, live)
	t.mu.Unlock()
	var first error
	for _, b := range slices.SortedFunc(maps.Keys(live), func(a, b *alloc.Block) int { return cmp.Compare(a.Addr(), b.Addr()) }) {
		d.trace(memoryDeallocation, b.Addr(), 0)
		if err := d.freed(d.mem.Free(b)); first == nil {
			first = err
		}
	}
	return first
}
