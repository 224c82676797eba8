package rt

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
)

// MemPool is a private pool of a device's memory that the program holds. It is safe for concurrent use.
type MemPool struct {
	dev    *Device
	id     alloc.PoolID
	closed atomic.Bool
}

// Source provides a pool's memory in place of the driver.
type Source interface {
	// Alloc returns size bytes, a multiple of 2 MiB, for work of s; 0 or an error of kind OutOfMemory means no room.
	Alloc(size uint64, s *Stream) (addr uint64, err error)
	// Free takes back what Alloc gave.
	Free(addr, size uint64, s *Stream) error
}

// NewMemPool makes a pool with memory from src; nil is the driver.
func (d *Device) NewMemPool(src Source) (*MemPool, error) {
	var from alloc.Source
	if src != nil {
		from = &poolSource{d, src}
	}
	return d.newPool(func(id alloc.PoolID) error { return d.mem.NewPool(id, from) })
}

// NewExpandablePool makes a pool whose memory comes in expandable segments if the device has them.
func (d *Device) NewExpandablePool() (*MemPool, error) { return d.newPool(d.mem.NewExpandablePool) }

func (d *Device) newPool(begin func(id alloc.PoolID) error) (*MemPool, error) {
	if err := d.Lost(); err != nil {
		return nil, err
	}
	p := &MemPool{dev: d, id: alloc.NewPoolID()}
	d.poolMu.Lock()
	defer d.poolMu.Unlock()
	if err := begin(p.id); err != nil {
		return nil, err
	}
	d.pools = append(d.pools, p)
	return p, nil
}

// BeginAllocateToPool directs all allocations for s to the private pool id.
func (d *Device) BeginAllocateToPool(id alloc.PoolID, s *Stream) error {
	if s.dev != d {
		return apart(s.dev, d, "the stream is of %s, and the pool of %s; give a stream of that device")
	}
	if err := d.ownsPool(id); err != nil {
		return err
	}
	return d.mem.BeginAllocateToPool(id, alloc.StreamFilter(alloc.Stream(s.handle)))
}

// opened are the devices that are open. One that the program dropped can become garbage.
var opened struct {
	mu      sync.Mutex
	devices []weak.Pointer[Device]
}

// list adds d to the devices that are open.
func (d *Device) list() {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	opened.devices = append(opened.devices, weak.Make(d))
}

// unlist takes d from them.
func (d *Device) unlist() {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	opened.devices = slices.DeleteFunc(opened.devices, func(o weak.Pointer[Device]) bool { return o == weak.Make(d) || o.Value() == nil })
}

// ownsPool refuses the id of another device's pool: memory of d's own pool of that id would not be shared with it.
func (d *Device) ownsPool(id alloc.PoolID) error {
	opened.mu.Lock()
	devices := slices.Clone(opened.devices)
	opened.mu.Unlock()
	for _, p := range devices {
		if o := p.Value(); o != nil && o != d && o.mem.PoolUses(id) > 0 {
			here, there := Apart(d, o)
			return fault.New(fault.Invalid, "the pool (%d, %d) is memory of %s, not of %s; give an id that NewPoolID made for that device",
				id[0], id[1], there, here)
		}
	}
	return nil
}

// Usable returns why the pool cannot be used, or nil.
func (p *MemPool) Usable() error {
	if p == nil || p.dev == nil {
		return fault.New(fault.Invalid, "the pool is nil or a zero value; use one that NewMemPool returned")
	}
	return nil
}

// Open returns why no memory can be taken from the pool, or nil.
func (p *MemPool) Open() error {
	if err := p.Usable(); err != nil {
		return err
	}
	if p.closed.Load() {
		return fault.New(fault.Closed, "the pool was closed; close it after the last use of it, or make another with NewMemPool")
	}
	return nil
}

// Device returns the pool's device.
func (p *MemPool) Device() *Device { return p.dev }

// ID returns the pool's id.
func (p *MemPool) ID() alloc.PoolID { return p.id }

// Alloc is Device.Alloc from the pool.
func (p *MemPool) Alloc(n uint64, s alloc.Stream) (*alloc.Block, error) {
	if p.closed.Load() && !p.dev.Closing() {
		return nil, p.Open()
	}
	return p.dev.allocFrom(p.id, n, s)
}

// Close ends the program's use of the pool and returns its free memory; the rest follows when its tensors are freed. The second call does
// nothing.
func (p *MemPool) Close() error {
	d := p.dev
	d.poolMu.Lock()
	defer d.poolMu.Unlock()
	i := slices.Index(d.pools, p)
	if i < 0 {
		return nil
	}
	d.pools = slices.Delete(d.pools, i, i+1)
	p.closed.Store(true)
	if _, err := d.FreeLoose(); err != nil {
		return err
	}
	return d.checkAlloc(d.mem.ClosePool(p.id), "a pool's memory could not be given back")
}

// closePools closes the pools that the program left open.
func (d *Device) closePools() error {
	d.poolMu.Lock()
	open := slices.Clone(d.pools)
	d.poolMu.Unlock()
	var first error
	for _, p := range open {
		if err := p.Close(); first == nil {
			first = err
		}
	}
	return first
}

var errNoRoom = errors.New("the pool's own allocator has no room")

// poolSource adapts a Source to the allocator.
type poolSource struct {
	dev *Device
	src Source
}

func (s *poolSource) Malloc(size uint64, on alloc.Stream) (uint64, error) {
	addr, err := s.src.Alloc(size, s.dev.streamOf(on))
	switch {
	case fault.KindOf(err) == fault.OutOfMemory:
		return 0, noRoom{err}
	case err == nil && addr == 0:
		return 0, noRoom{errNoRoom}
	case err != nil:
		return 0, fault.Wrap(fault.System, err, "the pool's own allocator could not allocate %d bytes", size)
	}
	s.dev.takes(addr, size)
	return addr, nil
}

func (s *poolSource) Free(addr, size uint64, on alloc.Stream) error {
	err := s.dev.gives(addr, size, func() error { return s.src.Free(addr, size, s.dev.streamOf(on)) })
	if err != nil {
		return fault.Wrap(fault.System, err, "the pool's own allocator could not free the %d bytes at %#x", size, addr)
	}
	return nil
}

// streamOf returns the stream with that handle, which is one of d's.
func (d *Device) streamOf(h alloc.Stream) *Stream {
	for i := range d.streams {
		if s := d.streams[i].Load(); s != nil && s.handle == driver.Stream(h) {
			return s
		}
	}
	return nil
}

// Malloc takes size bytes from the driver, without the allocator.
func (d *Device) Malloc(size uint64) (uint64, error) {
	if err := d.Lost(); err != nil {
		return 0, err
	}
	addr, err := (&backend{d}).take(size)
	if err != nil {
		return 0, d.Check(err, fmt.Sprintf("%d bytes could not be taken from the driver; give a smaller size, or free something", size))
	}
	return addr, nil
}

// FreeMalloc gives back what Malloc took; it waits for the device.
func (d *Device) FreeMalloc(addr uint64) error {
	return d.Check((&backend{d}).give(addr), "memory could not be given back to the driver")
}
