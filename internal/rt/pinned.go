package rt

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
)

// Pinned is page-locked host memory, which a device copies from and to while the host continues. It comes from the device's cache.
type Pinned struct {
	dev   *Device
	block *alloc.HostBlock
	bytes []byte
}

// AllocPinned returns n > 0 bytes of page-locked memory with undefined content. It is safe for concurrent use.
func (d *Device) AllocPinned(n int) (*Pinned, error) {
	if err := d.gate.enter(); err != nil {
		return nil, err
	}
	defer d.gate.leave()
	h := d.pinned.host(d)
	if err := d.pinned.freeForgotten(); err != nil {
		return nil, err
	}
	b, err := h.Alloc(uint64(n))
	if err != nil {
		return nil, d.checkAlloc(err, "page-locked memory could not be allocated")
	}
	return &Pinned{d, b, d.pinned.bytes(b.Addr())[:n:n]}, nil
}

// Bytes returns the memory. It is valid until Free.
func (p *Pinned) Bytes() []byte { return p.bytes }

// Use calls f with the memory, which stays until f returns, even if the device is closed meanwhile.
func (p *Pinned) Use(f func(b []byte) error) error {
	if err := p.dev.gate.enter(); err != nil {
		return err
	}
	defer p.dev.gate.leave()
	return f(p.bytes)
}

// Record notes that work queued on s uses the memory. After Free, the memory is not reused until s has finished the work that it had at the
// time of Free.
func (p *Pinned) Record(s *Stream) error {
	return p.dev.checkAlloc(p.dev.pinned.host(p.dev).RecordStream(p.block, alloc.Stream(s.handle)),
		"a use of page-locked memory could not be noted")
}

// Free gives the memory back.
func (p *Pinned) Free() error {
	p.bytes = nil
	return p.dev.checkAlloc(p.dev.pinned.host(p.dev).Free(p.block), "page-locked memory could not be freed")
}

// Release is Free for callers that cannot pass an error on: as with Device.Free, a driver error delays the reuse, and the next call reports
// a device fault.
func (p *Pinned) Release() error {
	p.bytes = nil
	return p.dev.freed(p.dev.pinned.host(p.dev).Free(p.block))
}

// Device returns the device that the memory was allocated for: Record refuses streams of other devices.
func (p *Pinned) Device() *Device { return p.dev }

// Addr returns the memory's address, at which every device and the processor's kernels see it.
func (p *Pinned) Addr() uint64 { return p.block.Addr() }

// Forget is Free for goroutines that must not call the driver, such as cleanups: a later allocation frees the memory.
func (p *Pinned) Forget() {
	m := &p.dev.pinned
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgotten = append(m.forgotten, p)
}

// freeForgotten frees what Forget noted.
func (m *pinnedMemory) freeForgotten() (err error) {
	m.mu.Lock()
	list := m.forgotten
	m.forgotten = nil
	m.mu.Unlock()
	for _, p := range list {
		err = errors.Join(err, p.Release())
	}
	return err
}

// share lets kernels of the processor reach page-locked memory of d.
func (d *Device) share(mem []byte) error {
	h, err := processor(d)
	if h == nil || err != nil {
		return err
	}
	return (&backend{h}).relaxed(func(t driver.Thread) error { return h.dev.HostRegister(t, mem) })
}

// unshare undoes share; it must come before the memory is freed.
func (d *Device) unshare(mem []byte) error {
	h, err := processor(d)
	if h == nil || err != nil {
		return err
	}
	return (&backend{h}).relaxed(func(t driver.Thread) error { return h.dev.HostUnregister(t, mem) })
}

// processor returns the processor's device, or nil if that is d itself.
func processor(d *Device) (*Device, error) {
	if d.Host {
		return nil, nil
	}
	return Host()
}

// withdraw hides the memory that is still in use from the processor's kernels, before d's driver frees it.
func (m *pinnedMemory) withdraw(d *Device) (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, addr := range slices.Sorted(maps.Keys(m.slices)) {
		err = errors.Join(err, d.unshare(m.slices[addr]))
	}
	clear(m.slices)
	return err
}

// PinnedStats are the statistics of the device's cache of page-locked memory.
func (d *Device) PinnedStats() alloc.HostStats { return d.pinned.host(d).Stats() }

// pinnedMemory is the cache of page-locked memory, with the driver's slices by address.
type pinnedMemory struct {
	once  sync.Once
	cache *alloc.Host

	mu        sync.Mutex
	slices    map[uint64][]byte
	mine      map[uint64]bool // memory of mapPageable, registered with the driver
	forgotten []*Pinned
}

func (m *pinnedMemory) host(d *Device) *alloc.Host {
	m.once.Do(func() {
		m.slices, m.mine = map[uint64][]byte{}, map[uint64]bool{}
		m.cache = alloc.NewHost(&pinnedBackend{backend{d}})
	})
	return m.cache
}

func (m *pinnedMemory) bytes(addr uint64) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slices[addr]
}

// pinnedBackend adapts the device to the allocator of page-locked memory.
type pinnedBackend struct{ backend }

// MallocHost allocates page-locked memory.
func (b *pinnedBackend) MallocHost(size uint64) (addr uint64, err error) {
	err = b.relaxed(func(t driver.Thread) error {
		mem, err := b.d.dev.HostAlloc(t, size)
		if err != nil {
			return err
		}
		if addr, err = b.take(mem, false); err != nil {
			return errors.Join(err, b.d.dev.HostFree(t, mem))
		}
		return nil
	})
	return addr, hostRoomless(err)
}

// RegisterHost page-locks ordinary memory.
func (b *pinnedBackend) RegisterHost(size uint64, threads int) (addr uint64, err error) {
	mem, err := mapPageable(size)
	if err != nil {
		return 0, errors.Join(alloc.ErrOutOfMemory, err)
	}
	if threads > 1 {
		touch(mem, threads)
	}
	err = b.relaxed(func(t driver.Thread) error {
		if err := b.d.dev.HostRegister(t, mem); err != nil {
			if errors.Is(err, driver.NotSupported) {
				return fault.Wrap(fault.Unsupported, err, "the host and the device would see registered memory at different addresses; "+
					"call SetAllocatorSettings with pinned_use_cuda_host_register:False, the default")
			}
			return err
		}
		if addr, err = b.take(mem, true); err != nil {
			return errors.Join(err, b.d.dev.HostUnregister(t, mem))
		}
		return nil
	})
	if err != nil {
		err = errors.Join(hostRoomless(err), unmapPageable(mem))
	}
	return addr, err
}

// touch writes to every page of mem, which is zero, from several threads, since the system clears pages as they are touched.
func touch(mem []byte, threads int) {
	const page = 4096
	share := (len(mem)/threads + page - 1) / page * page
	var wg sync.WaitGroup
	for at := 0; at < len(mem); at += share {
		wg.Go(func() {
			for i := at; i < min(at+share, len(mem)); i += page {
				mem[i] = 0
			}
		})
	}
	wg.Wait()
}

// take lets the processor's kernels reach new page-locked memory and remembers it.
func (b *pinnedBackend) take(mem []byte, mine bool) (uint64, error) {
	if err := b.d.share(mem); err != nil {
		return 0, err
	}
	addr := addressOf(mem)
	m := &b.d.pinned
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slices[addr] = mem
	if mine {
		m.mine[addr] = true
	}
	return addr, nil
}

// hostRoomless joins alloc.ErrOutOfMemory to the driver's out-of-memory error.
func hostRoomless(err error) error {
	if errors.Is(err, driver.OutOfMemory) {
		err = errors.Join(alloc.ErrOutOfMemory, err)
	}
	return err
}

// FreeHost frees memory of MallocHost or RegisterHost. It forgets the address first, since the driver may hand it out again at once.
func (b *pinnedBackend) FreeHost(addr uint64) error {
	m := &b.d.pinned
	m.mu.Lock()
	mem, mine := m.slices[addr], m.mine[addr]
	delete(m.slices, addr)
	delete(m.mine, addr)
	m.mu.Unlock()
	err := b.freeing(func(t driver.Thread) error {
		if err := b.d.unshare(mem); err != nil {
			return err
		}
		free := b.d.dev.HostFree
		if mine {
			free = b.d.dev.HostUnregister
		}
		if err := free(t, mem); err != nil {
			return errors.Join(err, b.d.share(mem))
		}
		return nil
	})
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.slices[addr] = mem
		if mine {
			m.mine[addr] = true
		}
		return err
	}
	if mine {
		return unmapPageable(mem)
	}
	return nil
}
