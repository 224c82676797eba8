package rt

import (
	"runtime"
	"slices"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
)

// PoolCheckpoint is the layout of a private pool at one moment.
type PoolCheckpoint struct {
	dev *Device
	c   *alloc.Checkpoint
	id  alloc.PoolID
}

// CheckpointPool records the layout of the private pool id. Blocks of garbage tensors are freed first.
func (d *Device) CheckpointPool(id alloc.PoolID) (*PoolCheckpoint, error) {
	if _, err := d.FreeLoose(); err != nil {
		return nil, err
	}
	c, err := d.mem.Checkpoint(id)
	if err != nil {
		return nil, d.checkAlloc(err, "the pool's layout could not be noted")
	}
	return &PoolCheckpoint{d, c, id}, nil
}

// Usable returns why the checkpoint cannot be used, or nil.
func (c *PoolCheckpoint) Usable() error {
	if c == nil || c.dev == nil {
		return fault.New(fault.Invalid, "the checkpoint is nil or a zero value; use one that CheckpointPool returned")
	}
	return nil
}

// Live returns the addresses that were live at the checkpoint.
func (c *PoolCheckpoint) Live() []uint64 { return c.c.Live() }

// Pool returns the pool's id.
func (c *PoolCheckpoint) Pool() alloc.PoolID { return c.id }

// Device returns the pool's device.
func (c *PoolCheckpoint) Device() *Device { return c.dev }

// staleTries is how often garbage is collected before a live block that nobody is known to own is an error. The waits in between add up to
// an eighth of a second.
const staleTries = 7

// RestorePool restores the pool's layout at the checkpoint: it frees every live block and allocates those of the checkpoint again. owned
// lists the live blocks whose owners know about the restore; any other live block is an error. It returns the new blocks by address. An
// error that occurs before anything is freed changes nothing.
func (d *Device) RestorePool(c *PoolCheckpoint, owned []*alloc.Block) (map[uint64]*alloc.Block, error) {
	if c.dev != d {
		return nil, apart(c.dev, d, "the checkpoint is of a pool of %s, and this is %s")
	}
	if _, err := d.FreeLoose(); err != nil {
		return nil, err
	}
	addr, stale := d.stale(c.id, owned)
	// It may be garbage whose cleanup has not run yet, or that another goroutine, which looks at all storages, has its hands on.
	for try := range staleTries {
		if !stale {
			break
		}
		if try > 0 {
			time.Sleep(time.Millisecond << try)
		}
		runtime.GC()
		waitCleanups()
		if _, err := d.FreeLoose(); err != nil {
			return nil, err
		}
		addr, stale = d.stale(c.id, owned)
	}
	if stale {
		return nil, fault.New(fault.Invalid, "Any stale tensors which are being manually freed must be passed to set checkpoint: memory "+
			"at %#x is live", addr)
	}
	r, err := d.mem.Restore(c.c)
	if err != nil && len(r.Freed) == 0 && d.Closing() { // which has freed the pool
		return nil, d.errClosed()
	}
	if g := d.guards.Load(); g != nil {
		g.Forget(r.Freed)
	}
	if d.leaks != nil {
		d.leaks.Forget(r.Freed)
	}
	made := map[uint64]*alloc.Block{}
	for _, b := range r.Made {
		made[b.Addr()] = b
	}
	if p := d.Profiler(); p != nil {
		p.restored(r.Freed, made)
	}
	return made, d.checkAlloc(err, "the pool's layout could not be restored")
}

// stale returns the address of a live block of the pool that is not in owned.
func (d *Device) stale(id alloc.PoolID, owned []*alloc.Block) (addr uint64, found bool) {
	for _, s := range d.mem.PoolSegments(id) {
		for _, b := range s.Blocks {
			if b.State == alloc.ActiveAllocated && !slices.ContainsFunc(owned, func(o *alloc.Block) bool { return o.Addr() == b.Addr }) {
				return b.Addr, true
			}
		}
	}
	return 0, false
}
