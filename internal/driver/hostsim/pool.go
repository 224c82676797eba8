package hostsim

import (
	"slices"
	"sync/atomic"

	"tenon.dev/internal/driver"
)

// pool is a device's memory pool, guarded by the machine's mu. Memory freed on a stream is reused on that stream at once, since the stream
// runs in order, and elsewhere when the stream has reached the free.
type pool struct {
	chunks  []*chunk
	blocks  map[uint64]poolBlock // live allocations, by address
	pending []*pendingFree
	keep    uint64
	usage   driver.PoolUsage
}

// chunk is memory that the pool has taken from the device.
type chunk struct {
	base, size uint64
	free       spans
}

// poolBlock is one allocation; that of a captured graph lives as long as the graph.
type poolBlock struct {
	size  uint64
	graph *graphMemory
}

// pendingFree is memory that was freed on a stream; ran is set once the stream has got there.
type pendingFree struct {
	addr, size uint64
	on         *stream
	ran        atomic.Bool
}

// chunkBytes is the least that the pool takes from the device at a time.
const chunkBytes = 32 << 20

// take finds n bytes for s in the memory that the pool holds.
func (p *pool) take(n uint64, s *stream) (uint64, bool) {
	p.reclaim()
	best := -1
	for i, f := range p.pending {
		if f.on == s && f.size >= n && (best < 0 || f.size < p.pending[best].size) {
			best = i
		}
	}
	if best >= 0 {
		f := p.pending[best]
		addr := f.addr
		p.usage.Used -= n // its free never takes effect
		if f.addr, f.size = f.addr+n, f.size-n; f.size == 0 {
			p.pending = append(p.pending[:best], p.pending[best+1:]...)
		}
		return addr, true
	}
	for _, c := range p.chunks {
		if addr, ok := c.free.take(n, alignment); ok {
			return addr, true
		}
	}
	return 0, false
}

// reclaim adds the memory of completed frees.
func (p *pool) reclaim() {
	kept := p.pending[:0]
	for _, f := range p.pending {
		if !f.ran.Load() {
			kept = append(kept, f)
			continue
		}
		for _, c := range p.chunks {
			if f.addr >= c.base && f.addr < c.base+c.size {
				c.free.put(f.addr, f.addr+f.size)
			}
		}
		p.usage.Used -= f.size
	}
	clear(p.pending[len(kept):])
	p.pending = kept
}

// hold adds a chunk of size bytes.
func (d *device) hold(size uint64) driver.Code {
	addr, code := d.mem.allocate(size)
	if code != driver.Success {
		return code
	}
	p := &d.pool
	p.chunks = append(p.chunks, &chunk{uint64(addr), size, spans{{uint64(addr), uint64(addr) + size}}})
	p.usage.Reserved += size
	p.usage.ReservedPeak = max(p.usage.ReservedPeak, p.usage.Reserved)
	return code
}

// trim releases unused chunks until at most keep bytes are held; mu is held.
func (d *device) trim(keep uint64) {
	p := &d.pool
	p.reclaim()
	for i := len(p.chunks) - 1; i >= 0 && p.usage.Reserved > keep; i-- {
		c := p.chunks[i]
		if len(c.free) != 1 || c.free[0].hi-c.free[0].lo != c.size {
			continue
		}
		p.chunks = append(p.chunks[:i], p.chunks[i+1:]...)
		p.usage.Reserved -= c.size
		d.unback(c.base)
	}
}

// unback releases the allocation at addr; work of other devices may be running.
func (d *device) unback(addr uint64) {
	d.m.mapped.Lock()
	defer d.m.mapped.Unlock()
	d.mem.release(driver.Ptr(addr))
}

// poolTake returns n bytes for s, if necessary from the device and, as a last resort, by waiting for pending frees; mu is held.
func (d *device) poolTake(n uint64, s *stream) (uint64, driver.Code) {
	p := &d.pool
	if n > addressSpace {
		return 0, driver.OutOfMemory
	}
	if d.m.check != nil {
		return d.poolFresh(n)
	}
	if addr, ok := p.take(n, s); ok {
		return addr, driver.Success
	}
	exact := (n + step - 1) &^ (step - 1)
	code := d.hold(max(exact, chunkBytes))
	if code == driver.OutOfMemory {
		code = d.hold(exact)
	}
	if code == driver.OutOfMemory && len(p.chunks) > 0 {
		d.m.await(target{dev: d, seq: d.m.seq})
		if addr, ok := p.take(n, s); ok {
			return addr, driver.Success
		}
		d.trim(0)
		code = d.hold(exact)
	}
	if code != driver.Success {
		return 0, code
	}
	addr, _ := p.take(n, s)
	return addr, driver.Success
}

// MemAllocAsync returns memory that holds the pattern of fresh memory, or the contents of an earlier allocation.
func (d *device) MemAllocAsync(t driver.Thread, n uint64, s driver.Stream) (driver.Ptr, error) {
	const call = "MemAllocAsync"
	st, err := d.admitPool(call, t, s)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, d.refuse(call, driver.InvalidValue, "0 bytes")
	}
	if st.cap != nil {
		addr, code := d.mem.allocate(n)
		if code != driver.Success {
			return 0, d.refuse(call, code, "")
		}
		c := st.cap
		if c.memory == nil {
			c.memory = &graphMemory{dev: d, refs: 1}
		}
		c.memory.blocks = append(c.memory.blocks, uint64(addr))
		d.pool.blocks[uint64(addr)] = poolBlock{n, c.memory}
		return addr, d.submit(call, st, &op{kind: opMemAlloc, dst: addr, n: n})
	}
	defer d.m.mu.Unlock()
	size := (n + alignment - 1) &^ (alignment - 1)
	if d.m.check != nil {
		size = n // so that its end is a bound
	}
	addr, code := d.poolTake(size, st)
	if err := d.gone(call); err != nil {
		return 0, err
	}
	if code != driver.Success {
		return 0, fail(call, code, "")
	}
	p := &d.pool
	st.born(addr, n)
	p.blocks[addr] = poolBlock{size: size}
	p.usage.Used += size
	p.usage.UsedPeak = max(p.usage.UsedPeak, p.usage.Used)
	return driver.Ptr(addr), nil
}

// MemFreeAsync frees p once s gets there.
func (d *device) MemFreeAsync(t driver.Thread, ptr driver.Ptr, s driver.Stream) error {
	const call = "MemFreeAsync"
	if d.lost() {
		return nil
	}
	st, err := d.admitPool(call, t, s)
	if err != nil {
		return err
	}
	b, ok := d.pool.blocks[uint64(ptr)]
	switch {
	case !ok:
		if d.m.check != nil {
			d.m.check.BadFree(call, uint64(ptr))
		}
		return d.refuse(call, driver.InvalidValue, "no allocation of the pool begins at this address")
	case st.cap != nil:
		if b.graph == nil || b.graph != st.cap.memory {
			return d.refuse(call, driver.InvalidValue, "the memory was not allocated in this capture")
		}
		return d.submit(call, st, &op{kind: opMemFree, dst: ptr})
	case b.graph != nil: // its memory stays until the next launch, or the end of the graph
		return d.submit(call, st, &op{kind: opMemFree, dst: ptr})
	}
	delete(d.pool.blocks, uint64(ptr))
	f := &pendingFree{addr: uint64(ptr), size: b.size, on: st}
	d.pool.pending = append(d.pool.pending, f)
	return d.submit(call, st, &op{kind: opMemFree, dst: ptr, freed: f})
}

// poolFree frees the block at addr, even if it is still in use. mu is held.
func (d *device) poolFree(addr uint64, b poolBlock) {
	if d.m.check != nil {
		d.m.check.Free(addr)
	}
	if b.graph != nil { // its memory stays until the end of the graph
		return
	}
	delete(d.pool.blocks, addr)
	f := &pendingFree{addr: addr, size: b.size}
	f.ran.Store(true)
	d.pool.pending = append(d.pool.pending, f)
}

// holds reports whether addr is in the pool's memory, used or not.
func (p *pool) holds(addr uint64) bool {
	return slices.ContainsFunc(p.chunks, func(c *chunk) bool { return addr-c.base < c.size })
}

// admitPool is admit for a call that allocates or frees: on streams that are not being captured it is potentially unsafe, as in CUDA.
func (d *device) admitPool(call string, t driver.Thread, s driver.Stream) (*stream, error) {
	tok, err := d.lockThread(call, t)
	if err != nil {
		return nil, err
	}
	if !d.info.PoolMemory {
		return nil, d.refuse(call, driver.NotSupported, "the device has no memory pool")
	}
	if st := d.stream(s); st != nil && st.cap == nil {
		if code := d.m.forbidden(tok); code != driver.Success {
			return nil, d.refuse(call, code, "")
		}
	}
	d.m.mu.Unlock()
	return d.admit(call, s)
}

// lockPool is lockUnsafe for a call on the pool.
func (d *device) lockPool(call string, t driver.Thread) error {
	if err := d.lockUnsafe(call, t); err != nil {
		return err
	}
	if !d.info.PoolMemory {
		return d.refuse(call, driver.NotSupported, "the device has no memory pool")
	}
	return nil
}

// PoolTrim returns unused memory to the device.
func (d *device) PoolTrim(t driver.Thread, keep uint64) error {
	if err := d.lockPool("PoolTrim", t); err != nil {
		return err
	}
	defer d.m.mu.Unlock()
	d.trim(keep)
	return nil
}

// PoolKeep sets how many bytes the pool keeps when the host waits for the device.
func (d *device) PoolKeep(t driver.Thread, n uint64) error {
	if err := d.lockPool("PoolKeep", t); err != nil {
		return err
	}
	defer d.m.mu.Unlock()
	d.pool.keep = n
	return nil
}

// PoolUsage returns what the pool holds.
func (d *device) PoolUsage(t driver.Thread) (driver.PoolUsage, error) {
	if err := d.lockPool("PoolUsage", t); err != nil {
		return driver.PoolUsage{}, err
	}
	defer d.m.mu.Unlock()
	d.pool.reclaim()
	return d.pool.usage, nil
}

// PoolResetPeaks sets the peaks to the current values.
func (d *device) PoolResetPeaks(t driver.Thread) error {
	if err := d.lockPool("PoolResetPeaks", t); err != nil {
		return err
	}
	defer d.m.mu.Unlock()
	u := &d.pool.usage
	u.ReservedPeak, u.UsedPeak = u.Reserved, u.Used
	return nil
}

// graphMemory is memory allocated in a capture: it lives as long as the capture, its graph or an executable of it.
type graphMemory struct {
	dev    *device
	blocks []uint64
	refs   int
}

// release drops one reference; the last one waits for the device and frees the memory. mu is held. g may be nil.
func (g *graphMemory) release() {
	if g == nil {
		return
	}
	if g.refs--; g.refs > 0 {
		return
	}
	d := g.dev
	d.m.await(target{dev: d, seq: d.m.seq})
	for _, addr := range g.blocks {
		if d.m.check != nil {
			d.m.check.Free(addr)
		}
		delete(d.pool.blocks, addr)
		d.unback(addr)
	}
}

// retain adds a reference and returns g.
func (g *graphMemory) retain() *graphMemory {
	if g != nil {
		g.refs++
	}
	return g
}
