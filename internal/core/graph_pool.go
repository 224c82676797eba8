package core

import (
	"maps"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/rt"
)

// RestorePool brings a private pool back to what it was at a checkpoint, so that work captured after it finds the same addresses free and
// taken: memory that is live now is freed, memory that was live then is taken again. stale are the tensors whose memory was not live then
// or is to be given up: their elements are lost, and closing them frees nothing. kept are tensors of memory that is live both then and now:
// they keep it. All live memory of the pool must be named by one or the other. It returns the addresses that are taken again and belong to
// no tensor; the device's RawFree frees them. Nothing else may use the pool meanwhile.
func (x *Exec) RestorePool(c *rt.PoolCheckpoint, stale, kept []*Tensor) ([]uint64, error) {
	if err := x.s.capture.refuse("RestorePool"); err != nil {
		return nil, err
	}
	if err := c.Usable(); err != nil {
		return nil, err
	}
	if err := x.s.force("RestorePool"); err != nil {
		return nil, err
	}
	live := c.Live()
	var owned []*alloc.Block
	take := func(ts []*Tensor, keep bool) error {
		for i, t := range ts {
			if t == nil || t.st == nil {
				return fault.New(fault.Invalid, "tensor %d of a list is nil or a zero value; leave it out", i)
			}
			b := t.st.block
			if t.closed.Load() || b == nil || t.st.dev != c.Device() {
				return fault.New(fault.Invalid, "the tensor %s has no memory of the pool; leave it out", describe(t))
			}
			if keep && !slices.Contains(live, b.Addr()) {
				return fault.New(fault.Invalid, "the memory of the tensor %s was not live at the checkpoint; pass it as stale", describe(t))
			}
			owned = append(owned, b)
		}
		return nil
	}
	if err := take(stale, false); err != nil {
		return nil, err
	}
	if err := take(kept, true); err != nil {
		return nil, err
	}
	made, err := c.Device().RestorePool(c, owned)
	if len(made) == 0 && err != nil && fault.KindOf(err) == fault.Invalid {
		return nil, err // nothing was freed
	}
	for _, t := range stale {
		t.st.disown()
	}
	for _, t := range kept {
		if b := made[t.st.ptr]; b != nil {
			t.st.adopt(b)
			delete(made, t.st.ptr)
		} else {
			t.st.disown()
		}
	}
	return slices.Sorted(maps.Keys(made)), err
}
