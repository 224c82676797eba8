package alloc

import (
	"slices"
	"sync/atomic"

	"tenon.dev/fault"
)

// diversion sends the allocations of some streams to a private pool.
type diversion struct {
	pool   *privatePool
	filter func(Stream) bool
}

var lastPoolID, lastCapturePoolID atomic.Uint64

// NewPoolID returns a new id (0, n) for a private pool that the program names. Ids are unique in the process.
func NewPoolID() PoolID { return PoolID{0, lastPoolID.Add(1)} }

// NewCapturePoolID returns a new id (n, 0) for the pool of a capture that was given none.
func NewCapturePoolID() PoolID { return PoolID{lastCapturePoolID.Add(1), 0} }

// choosePool returns the pool for a rounded size on stream s: that of the first diversion that takes s, or else of id.
func (c *caching) choosePool(id PoolID, size uint64, s Stream) (*pool, error) {
	if len(c.diversions) == 0 && id == (PoolID{}) {
		return c.ofSize(nil, size), nil
	}
	p, err := c.choosePrivate(id, s)
	if err != nil {
		return nil, err
	}
	return c.ofSize(p, size), nil
}

// pools are the private pools and the diversions to them.
type pools struct {
	private    []*privatePool // by id
	diversions []diversion
}

// choosePrivate returns the private pool for memory on stream s, nil for none. A diversion has precedence over id, so that memory freed in
// a capture does not go to work whose data the graph would overwrite.
func (l *pools) choosePrivate(id PoolID, s Stream) (*privatePool, error) {
	for i := range l.diversions {
		if l.diversions[i].filter(s) {
			return l.diversions[i].pool, nil
		}
	}
	if id == (PoolID{}) {
		return nil, nil
	}
	p := l.findPrivate(id)
	if p == nil || p.uses == 0 {
		return nil, fault.New(fault.Closed, "the private pool (%d, %d) is not held; it was released", id[0], id[1])
	}
	return p, nil
}

func (l *pools) findPrivate(id PoolID) *privatePool {
	for _, p := range l.private {
		if p.id == id {
			return p
		}
	}
	return nil
}

func (l *pools) dropPrivate(p *privatePool) {
	if i := slices.Index(l.private, p); i >= 0 {
		l.private = slices.Delete(l.private, i, i+1)
	}
}

// retain returns the pool of id with one more use, and creates it if necessary.
func (c *caching) retain(id PoolID) (*privatePool, error) {
	if (id[0] == 0) == (id[1] == 0) {
		return nil, fault.New(fault.Invalid, "the pool id (%d, %d) is not one that cuda.NewPoolID gave, or a graph's Pool; use "+
			"one of these", id[0], id[1])
	}
	p := c.findPrivate(id)
	if p == nil {
		p = &privatePool{id: id}
		p.small = pool{of: c, kind: smallPool, private: p}
		p.large = pool{of: c, kind: largePool, private: p}
		c.private = append(c.private, p)
	}
	p.uses++
	return p, nil
}

// RetainPool adds a use to the private pool id, and creates the pool if necessary. ReleasePool takes the use away.
func (c *caching) RetainPool(id PoolID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.retain(id)
	return err
}

// NewPool makes the private pool id with one use and memory from src; nil is the device. The pool must not exist yet. Memory of a source is
// never expandable, whatever the settings say.
func (d *Device) NewPool(id PoolID, src Source) error {
	if src != nil {
		if err := d.strategy.lacks("pools with an allocator of their own"); err != nil {
			return err
		}
	}
	return d.newPool(id, src, false)
}

func (d *Device) newPool(id PoolID, src Source, expand bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.findPrivate(id) != nil {
		return fault.New(fault.Invalid, "the private pool (%d, %d) exists already", id[0], id[1])
	}
	p, err := d.retain(id)
	if err == nil {
		p.source, p.expand = src, expand
	}
	return err
}

// NewExpandablePool is NewPool for a pool whose memory comes in expandable segments whatever the settings say, if the device has them: then
// memory freed by short inputs serves longer ones too. Where no addresses are left for a range, it gets ordinary segments.
func (d *Device) NewExpandablePool(id PoolID) error { return d.newPool(id, nil, d.virtual != nil) }

// ReleasePool takes one use from the private pool id. When none is left, its memory can be returned: EmptyCache and the flush before an
// out-of-memory error return its unsplit segments, and the pool vanishes with the last of them. Live blocks stay valid. Freed memory that
// was allocated with caching off is returned at once; an error is the backend's.
func (c *caching) ReleasePool(id PoolID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.giveUp(id)
	return err
}

// giveUp is ReleasePool under the lock.
func (c *caching) giveUp(id PoolID) (*privatePool, error) {
	p := c.findPrivate(id)
	if p == nil || p.uses == 0 {
		return nil, fault.New(fault.Invalid, "the private pool (%d, %d) is not held; release it once for each time it was retained", id[0],
			id[1])
	}
	if p.uses--; p.uses > 0 {
		return p, nil
	}
	return p, c.freeUncached(p, true)
}

// ClosePool is ReleasePool and then EmptyPool without dropping the lock: between two calls another thread's flush could make the pool
// vanish.
func (c *caching) ClosePool(id PoolID) error {
	context := c.gather(LevelAll)
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := c.giveUp(id)
	if err != nil {
		return err
	}
	return c.emptyPrivate(p, context)
}

// PoolUses returns the number of uses of the private pool id; 0 if it is unknown or only waits for its memory to be returned.
func (d *Device) PoolUses(id PoolID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.findPrivate(id); p != nil {
		return p.uses
	}
	return 0
}

// EmptyPool returns the unsplit free segments of the private pool id to the device, whether or not the pool is held. It neither polls nor
// waits for events, except that outside diversions it waits for the events of a pool that no one holds.
func (c *caching) EmptyPool(id PoolID) error {
	context := c.gather(LevelAll)
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.findPrivate(id)
	if p == nil {
		return fault.New(fault.Invalid, "Could not find pool of id (%d, %d)", id[0], id[1])
	}
	return c.emptyPrivate(p, context)
}

// emptyPrivate is EmptyPool under the lock.
func (c *caching) emptyPrivate(p *privatePool, context any) error {
	if p.uses == 0 && len(c.diversions) == 0 {
		if err := c.synchronize(p, context); err != nil {
			return err
		}
	}
	return c.releasePrivate(p, context)
}

// EmptyReleased returns the free memory of private pools that no one holds to the device: nothing else could use it. While a diversion is
// active it does nothing.
func (c *caching) EmptyReleased() error {
	context := c.gather(LevelAll)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.diversions) > 0 {
		return nil
	}
	for _, p := range slices.Clone(c.private) {
		if p.uses > 0 {
			continue
		}
		if err := c.emptyPrivate(p, context); err != nil {
			return err
		}
	}
	return nil
}

// BeginAllocateToPool adds a use to the private pool id, creating it if necessary, and diverts the allocations of the streams that filter
// accepts to it until EndAllocateToPool; the use stays. Earlier diversions have precedence. Meanwhile no events are recorded or queried,
// nothing is flushed, and freed blocks that further streams use are held back. Use CaptureFilter for a capture and StreamFilter for eager
// work. The filter is called with the allocator's lock held and must not call the allocator. Under the back end cudaMallocAsync there is
// one diversion at a time in the process, as in PyTorch; a second is an error of kind fault.Capture.
func (d *Device) BeginAllocateToPool(id PoolID, filter func(Stream) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.divertedTo(id) >= 0 {
		return fault.New(fault.Invalid, "beginAllocateToPool: already recording to mempool_id (%d, %d)", id[0], id[1])
	}
	if err := d.strategy.divert(); err != nil {
		return err
	}
	p, err := d.retain(id)
	if err != nil {
		d.strategy.endDivert()
		return err
	}
	d.diversions = append(d.diversions, diversion{pool: p, filter: filter})
	return nil
}

// EndAllocateToPool ends the diversion to the private pool id. The pool keeps its use until ReleasePool.
func (d *Device) EndAllocateToPool(id PoolID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.divertedTo(id)
	if i < 0 {
		return fault.New(fault.Invalid, "endAllocatePool: not currently recording to mempool_id (%d, %d)", id[0], id[1])
	}
	d.diversions = slices.Delete(d.diversions, i, i+1)
	d.strategy.endDivert()
	return nil
}

// Abandon ends all diversions of a device that is being closed; their pools keep their uses.
func (d *Device) Abandon() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.diversions = nil
	d.strategy.endDivert()
}

// Diverted says whether allocations of some streams are diverted, as they are in captures.
func (m *books) Diverted() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.diversions) > 0
}

// DivertedTo says whether allocations of some streams are diverted to the private pool id.
func (m *books) DivertedTo(id PoolID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.divertedTo(id) >= 0
}

func (l *pools) divertedTo(id PoolID) int {
	return slices.IndexFunc(l.diversions, func(v diversion) bool { return v.pool.id == id })
}

// CaptureFilter returns the filter of a capture: it accepts every stream that currently belongs to the capture id, including forked ones.
func (m *books) CaptureFilter(id uint64) func(Stream) bool {
	return func(s Stream) bool {
		got, ok := m.backend.Capturing(s)
		return ok && got == id
	}
}

// StreamFilter returns the filter of an eager diversion: it accepts s alone.
func StreamFilter(s Stream) func(Stream) bool {
	return func(other Stream) bool { return other == s }
}

// PoolLive says whether the live blocks of the private pool id are exactly those at addrs.
func (d *Device) PoolLive(id PoolID, addrs []uint64) (bool, error) {
	if err := d.strategy.lacks("checkPoolLiveAllocations"); err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.findPrivate(id)
	if p == nil {
		return false, fault.New(fault.Invalid, "Could not find pool of id (%d, %d)", id[0], id[1])
	}
	want := make(map[uint64]bool, len(addrs))
	for _, a := range addrs {
		want[a] = true
	}
	blocks := slices.Clone(p.uncached)
	for _, s := range d.segmentsOf(p) {
		for b := s.head; b != nil; b = b.next {
			blocks = append(blocks, b)
		}
	}
	live := 0
	for _, b := range blocks {
		if b.allocated {
			if !want[b.addr] {
				return false, nil
			}
			live++
		}
	}
	return live == len(want), nil
}

// segmentsOf returns the segments of private pool p, by address.
func (c *caching) segmentsOf(p *privatePool) []*segment {
	var s []*segment
	for _, g := range c.segments {
		if g.silo.pool.private == p {
			s = append(s, g)
		}
	}
	return s
}
