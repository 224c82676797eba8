package rt

import (
	"errors"
	"reflect"
	"sync"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
)

// Pinned is page-locked host memory, which a device copies from and to while the host goes on. It comes from a cache of the device.
type Pinned struct {
	dev   *Device
	block *alloc.HostBlock
	bytes []byte
}

// AllocPinned returns n > 0 bytes of page-locked memory with undefined content. It is safe for concurrent use.
func (d *Device) AllocPinned(n int) (*Pinned, error) {
	h := d.pinned.host(d)
	b, err := h.Alloc(uint64(n))
	if err != nil {
		return nil, d.checkAlloc(err, "page-locked memory could not be allocated")
	}
	return &Pinned{d, b, d.pinned.bytes(b.Addr())[:n:n]}, nil
}

// Bytes returns the memory. It is valid until Free.
func (p *Pinned) Bytes() []byte { return p.bytes }

// Record tells that work queued on s uses the memory: Free then keeps it from being reused until the work that s has when Free is called is done.
func (p *Pinned) Record(s *Stream) error {
	return p.dev.checkAlloc(p.dev.pinned.host(p.dev).RecordStream(p.block, alloc.Stream(s.Handle)), "a use of page-locked memory could not be noted")
}

// Free gives the memory back.
func (p *Pinned) Free() error {
	p.bytes = nil
	return p.dev.checkAlloc(p.dev.pinned.host(p.dev).Free(p.block), "page-locked memory could not be freed")
}

// PinnedStats are the statistics of the device's cache of page-locked memory.
func (d *Device) PinnedStats() alloc.HostStats { return d.pinned.host(d).Stats() }

// pinnedMemory is the cache of page-locked memory with the slices that the driver gave, by address.
type pinnedMemory struct {
	once  sync.Once
	cache *alloc.Host

	mu     sync.Mutex
	slices map[uint64][]byte
}

func (m *pinnedMemory) host(d *Device) *alloc.Host {
	m.once.Do(func() {
		m.slices = map[uint64][]byte{}
		m.cache = alloc.NewHost(&pinnedBackend{backend{d}})
	})
	return m.cache
}

func (m *pinnedMemory) bytes(addr uint64) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slices[addr]
}

// pinnedBackend is the device as the allocator of page-locked memory sees it.
type pinnedBackend struct{ backend }

// MallocHost allocates page-locked memory.
func (b *pinnedBackend) MallocHost(size uint64) (addr uint64, err error) {
	err = b.relaxed(func(t driver.Thread) error {
		mem, err := b.d.dev.HostAlloc(t, size)
		if err != nil {
			return err
		}
		addr = uint64(reflect.ValueOf(mem).Pointer())
		m := &b.d.pinned
		m.mu.Lock()
		defer m.mu.Unlock()
		m.slices[addr] = mem
		return nil
	})
	if errors.Is(err, driver.OutOfMemory) {
		err = errors.Join(alloc.ErrOutOfMemory, err)
	}
	return addr, err
}

// FreeHost returns it. The address is forgotten first, since the driver may hand it out again at once.
func (b *pinnedBackend) FreeHost(addr uint64) error {
	m := &b.d.pinned
	m.mu.Lock()
	mem := m.slices[addr]
	delete(m.slices, addr)
	m.mu.Unlock()
	free := func(t driver.Thread) error { return b.d.dev.HostFree(t, mem) }
	var err error
	if b.lost() { // as in backend.Free
		t := b.d.dev.Enter()
		err = free(t)
		t.Leave()
	} else {
		err = b.relaxed(free)
	}
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.slices[addr] = mem
	}
	return err
}
