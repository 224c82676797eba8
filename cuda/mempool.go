package cuda

import (
	"fmt"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/rt"
)

// MemPool is a private pool of a device's memory: its allocations share no segment with others, and their memory goes back to the pool. An
// Exec uses it through UsePool. It is safe for concurrent use.
type MemPool rt.MemPool

func (p *MemPool) rt() *rt.MemPool { return receiver((*rt.MemPool)(p)) }

// Allocator provides a MemPool's memory in place of the driver. The device's allocator calls it with its lock held: the methods must not
// allocate or free through that device, except with Device.Malloc and Device.Free.
type Allocator interface {
	// Alloc returns the device address of size bytes, a multiple of 2 MiB, aligned to 512. Address 0, or an error of kind OutOfMemory,
	// means that there is no room: the caches are then emptied and Alloc is called once more. s is the stream whose work will use the
	// memory.
	Alloc(size uint64, s *Stream) (addr uint64, err error)
	// Free takes back memory of Alloc, with the same size and stream. Work queued on s may still use it.
	Free(addr, size uint64, s *Stream) error
}

// MemPoolOpt are the options of NewMemPool.
type MemPoolOpt struct {
	Allocator Allocator // nil: the driver
}

// NewMemPool returns a pool of d's memory that holds nothing yet. Close it when done; closing the device closes open pools. Under the back
// end cudaMallocAsync, where the driver divides the memory, a pool is a name without effect, and one with an Allocator is an error of kind
// Unsupported.
func NewMemPool(d *Device, opts ...MemPoolOpt) (pool *MemPool, err error) {
	defer returned(&err)
	opt, err := only(opts)
	if err != nil {
		return nil, err
	}
	var src rt.Source
	if opt.Allocator != nil {
		src = source{opt.Allocator}
	}
	if err := (*rt.Device)(d).Usable(); err != nil {
		return nil, err
	}
	p, err := d.rt().NewMemPool(src)
	return (*MemPool)(p), err
}

// source adapts an Allocator to package rt.
type source struct{ a Allocator }

func (s source) Alloc(size uint64, on *rt.Stream) (uint64, error) {
	return s.a.Alloc(size, (*Stream)(on))
}

func (s source) Free(addr, size uint64, on *rt.Stream) error {
	return s.a.Free(addr, size, (*Stream)(on))
}

// ID returns the pool's id (0, n), n > 0; ids are unique in the process.
func (p *MemPool) ID() [2]uint64 { return p.rt().ID() }

// String describes the pool, such as "cuda.MemPool(NVIDIA H200, 1)" with its number.
func (p *MemPool) String() string {
	if err := (*rt.MemPool)(p).Usable(); err != nil {
		return fmt.Sprintf("cuda.MemPool(%v)", err)
	}
	return fmt.Sprintf("cuda.MemPool(%s, %d)", p.rt().Device().Info().Name, p.ID()[1])
}

// UseCount returns how many uses the pool has: one until Close, one for each BeginAllocateToPool without a ReleasePool yet, and one for
// each graph.
func (p *MemPool) UseCount() int { return p.rt().Device().Memory().PoolUses(p.rt().ID()) }

// PoolSegment is a piece of memory that a pool holds from the driver or its Allocator.
type PoolSegment struct {
	Address   uint64 // on the device
	Size      uint64 // bytes
	Allocated uint64 // bytes of live allocations
	Active    uint64 // bytes of live allocations and of those that other streams still use
	Large     bool   // for allocations above 1 MiB
}

// Segments returns the memory that the pool holds, by address.
func (p *MemPool) Segments() []PoolSegment { return (*Device)(p.rt().Device()).PoolSegments(p.ID()) }

// Close ends the program's use of the pool. Memory that nothing uses goes back at once, the rest when its tensors are closed and EmptyCache
// is called. Allocating from the pool is an error from then on. The second call does nothing.
func (p *MemPool) Close() (err error) {
	defer returned(&err)
	return p.rt().Close()
}

// NewPoolID returns a new id (0, n) for BeginAllocateToPool; PyTorch's graph_pool_handle.
func NewPoolID() [2]uint64 { return alloc.NewPoolID() }

// BeginAllocateToPool directs all allocations for stream s, by any goroutine, to the private pool id until EndAllocateToPool. It creates
// the pool if necessary and adds a use, which ReleasePool takes away. Meanwhile no memory that other streams used is reused, and no cache
// is emptied. Exec.UsePool has neither of these effects on others. The id of another device's pool is refused.
func (d *Device) BeginAllocateToPool(id [2]uint64, s *Stream) (err error) {
	defer returned(&err)
	r := d.open()
	if err := (*rt.Stream)(s).Usable(); err != nil {
		return err
	}
	return r.BeginAllocateToPool(id, (*rt.Stream)(s))
}

// EndAllocateToPool undoes BeginAllocateToPool of that id; the pool keeps its use.
func (d *Device) EndAllocateToPool(id [2]uint64) (err error) {
	defer returned(&err)
	return d.rt().Memory().EndAllocateToPool(id)
}

// ReleasePool takes one use from the private pool id. When none is left, EmptyCache returns its memory too; live tensors stay valid.
func (d *Device) ReleasePool(id [2]uint64) (err error) {
	defer returned(&err)
	return d.rt().Memory().ReleasePool(id)
}

// PoolLive reports whether the live allocations of the private pool id begin at exactly the given addresses.
func (d *Device) PoolLive(id [2]uint64, addrs []uint64) (ok bool, err error) {
	defer returned(&err)
	return d.rt().Memory().PoolLive(id, addrs)
}

// PoolCheckpoint is the layout of a private pool at one moment: which of its memory was live and which was free. Exec.RestorePool restores
// it.
type PoolCheckpoint rt.PoolCheckpoint

// CheckpointPool records the layout of the private pool id, which must be held; none of its memory may wait for other streams. Under the
// back end cudaMallocAsync, and for memory that was allocated with caching off, it returns an error of kind Unsupported.
func (d *Device) CheckpointPool(id [2]uint64) (c *PoolCheckpoint, err error) {
	defer returned(&err)
	made, err := d.rt().CheckpointPool(id)
	return (*PoolCheckpoint)(made), err
}

// Live returns the addresses of the allocations that were live at the checkpoint, by segment and address.
func (c *PoolCheckpoint) Live() []uint64 { return receiver((*rt.PoolCheckpoint)(c)).Live() }

// PoolSegments returns the memory that the private pool id holds, by address; the zero id is the default pool.
func (d *Device) PoolSegments(id [2]uint64) []PoolSegment {
	var list []PoolSegment
	for _, s := range d.rt().Memory().PoolSegments(id) {
		list = append(list, PoolSegment{s.Addr, s.TotalSize, s.Allocated, s.Active, s.Large})
	}
	return list
}

// Malloc allocates size bytes from the driver, without the caching allocator and its statistics. It is for an Allocator, or for memory that
// another library manages. An error of kind OutOfMemory means no room.
func (d *Device) Malloc(size uint64) (addr uint64, err error) {
	defer returned(&err)
	return d.rt().Malloc(size)
}

// Free gives back memory of Malloc. It waits for the device's work.
func (d *Device) Free(addr uint64) (err error) {
	defer returned(&err)
	return d.rt().FreeMalloc(addr)
}
