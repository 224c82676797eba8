package hostsim

import (
	"slices"
	"sort"
	"sync"
	"unsafe"

	"tenon.dev/internal/driver"
)

// The geometry of device memory, as in CUDA: memory is taken from the device in steps of 2 MiB, allocations smaller than half a step share
// one, and each begins at a multiple of 512 bytes.
const (
	step      = 2 << 20
	smallest  = step / 2
	alignment = 512
)

// Device addresses begin above every address of a host process; those of consecutive ordinals are 8 TiB apart.
const (
	firstAddress = 0xA000_0000_0000
	addressSpace = 8 << 40
)

// Addresses decides which addresses MemAlloc returns.
type Addresses struct {
	never  bool
	script []uint64
}

// NeverReuse never returns an address again, so that a stale pointer causes a fault instead of hitting another allocation.
func NeverReuse() Addresses { return Addresses{never: true} }

// Script returns the given addresses, one for each allocation, and, when they are used up, others far above. Each must be a multiple of
// 512, at least 0xA00000000000; an allocation whose next address is invalid or in use fails with InvalidValue.
func Script(addresses ...uint64) Addresses { return Addresses{script: addresses} }

// memory is the memory of one device.
type memory struct {
	regions
	host *regions // page-locked memory of the whole machine: devices see it at its host address

	alloc    sync.Mutex // guards the fields below
	capacity uint64     // 0: none
	reserved uint64     // bytes taken from the device, in steps
	policy   Addresses
	used     int // addresses used of policy.script
	plain    bool
	// spread is the number of addresses per byte of a slab: 2 under the memory checker. Each allocation is then followed by a gap of its
	// own length, a large one by a gap of one step, with no memory in it, so that an access just past the end hits no neighbour. Addresses
	// cost nothing, so the memory that the device reports does not change.
	spread uint64
	free   spans
	slabs  []*slab // by address
	large  map[uint64]backing
	ranges map[uint64]*reservation
	small  map[uint64]*slab // the slab of each small allocation, by address
}

// backing is host memory used as device memory; pieces counts the mappings of the pattern that it is made of.
type backing struct {
	mem    []byte
	pieces int64
}

// slab is one step of memory shared by small allocations; free holds offsets in it.
type slab struct {
	base uint64
	mem  backing
	free spans
	live int
}

// newMemory returns device ordinal's memory.
func newMemory(o *Options, ordinal int, m *machine) *memory {
	first := firstAddress + uint64(ordinal)*addressSpace
	for _, a := range o.Addresses.script {
		first = max(first, (a+1<<40)&^(step-1))
	}
	mem := &memory{host: &m.host, capacity: o.Capacity, policy: o.Addresses, plain: m.inline, spread: 1,
		free:  spans{{first, first + addressSpace}},
		large: map[uint64]backing{}, ranges: map[uint64]*reservation{}, small: map[uint64]*slab{}}
	if m.inline { // the system would give more than there is, and end the process when that is used
		mem.capacity = hostMemoryBytes()
	}
	if m.check != nil {
		mem.spread = 2
	}
	return mem
}

// Resolve returns the live allocation that contains addr, which may be page-locked host memory: its bytes and its base address. It is safe
// for concurrent use.
func (m *memory) Resolve(addr uint64) (mem []byte, base uint64, ok bool) {
	if addr >= firstAddress {
		return m.resolve(addr)
	}
	return m.host.resolve(addr)
}

// bytes returns the n bytes at p, or nil if they do not lie in one live allocation.
func (m *memory) bytes(p driver.Ptr, n uint64) []byte {
	b, base, ok := m.Resolve(uint64(p))
	off := uint64(p) - base
	if !ok || n > uint64(len(b))-off {
		return nil
	}
	return b[off : off+n : off+n]
}

// allocate returns the address of n fresh bytes.
func (m *memory) allocate(n uint64) (driver.Ptr, driver.Code) {
	m.alloc.Lock()
	defer m.alloc.Unlock()
	if m.used < len(m.policy.script) && n <= addressSpace {
		return m.allocateAt(m.policy.script[m.used], n)
	}
	if n < smallest {
		return m.allocateSmall(n)
	}
	if n > addressSpace {
		return 0, driver.OutOfMemory
	}
	size := (n + step - 1) &^ (step - 1)
	b, code := m.reserve(size)
	if code != driver.Success {
		return 0, code
	}
	addr, ok := m.free.take(size+m.gap(), step)
	if !ok {
		m.unreserve(b)
		return 0, driver.OutOfMemory
	}
	m.large[addr] = b
	m.add(addr, b.mem[:n:n], nil)
	return driver.Ptr(addr), driver.Success
}

// gap is the size of the gap after an allocation of whole steps.
func (m *memory) gap() uint64 { return (m.spread - 1) * step }

// allocateAt returns n bytes at the next address of the script.
func (m *memory) allocateAt(addr, n uint64) (driver.Ptr, driver.Code) {
	m.used++
	if addr == 0 || addr%alignment != 0 || addr < firstAddress || m.overlaps(addr, n) {
		return 0, driver.InvalidValue
	}
	b, code := m.reserve((n + step - 1) &^ (step - 1))
	if code != driver.Success {
		return 0, code
	}
	m.large[addr] = b
	m.add(addr, b.mem[:n:n], nil)
	return driver.Ptr(addr), driver.Success
}

// allocateSmall returns n bytes of a shared step.
func (m *memory) allocateSmall(n uint64) (driver.Ptr, driver.Code) {
	size := (n + alignment - 1) &^ (alignment - 1)
	place := func(s *slab) (driver.Ptr, bool) {
		off, ok := s.free.take(size, alignment)
		if !ok {
			return 0, false
		}
		s.live++
		addr := s.base + off*m.spread
		m.small[addr] = s
		m.add(addr, s.mem.mem[off:off+n:off+n], nil)
		return driver.Ptr(addr), true
	}
	for _, s := range m.slabs {
		if p, ok := place(s); ok {
			return p, driver.Success
		}
	}
	b, code := m.reserve(step)
	if code != driver.Success {
		return 0, code
	}
	base, ok := m.free.take(step*m.spread, step)
	if !ok {
		m.unreserve(b)
		return 0, driver.OutOfMemory
	}
	s := &slab{base: base, mem: b, free: spans{{0, step}}}
	i := sort.Search(len(m.slabs), func(i int) bool { return m.slabs[i].base > base })
	m.slabs = slices.Insert(m.slabs, i, s)
	p, _ := place(s)
	return p, driver.Success
}

// reserve takes size bytes, a multiple of step, from the device.
func (m *memory) reserve(size uint64) (backing, driver.Code) {
	if m.capacity != 0 && (size > m.capacity || m.reserved > m.capacity-size) {
		return backing{}, driver.OutOfMemory
	}
	b, ok := mapBacking(size, m.plain)
	if !ok {
		return backing{}, driver.OutOfMemory
	}
	m.reserved += size
	return b, driver.Success
}

// unreserve undoes reserve.
func (m *memory) unreserve(b backing) {
	m.reserved -= uint64(len(b.mem))
	unmapBacking(b)
}

// release frees the allocation at p.
func (m *memory) release(p driver.Ptr) driver.Code {
	addr := uint64(p)
	m.alloc.Lock()
	defer m.alloc.Unlock()
	if _, ok := m.remove(addr); !ok {
		return driver.InvalidValue
	}
	if b, ok := m.large[addr]; ok {
		delete(m.large, addr)
		m.unreserve(b)
		if !m.policy.never && len(m.policy.script) == 0 {
			m.free.put(addr, addr+uint64(len(b.mem))+m.gap())
		}
		return driver.Success
	}
	s := m.small[addr]
	delete(m.small, addr)
	s.live--
	if s.live == 0 {
		i := slices.Index(m.slabs, s)
		m.slabs = slices.Delete(m.slabs, i, i+1)
		m.unreserve(s.mem)
		if !m.policy.never {
			m.free.put(s.base, s.base+step*m.spread)
		}
		return driver.Success
	}
	if !m.policy.never {
		m.reuse(s, addr)
	}
	return driver.Success
}

// reuse makes the range of s that begins at addr free again; it ends where the next live allocation or free range begins.
func (m *memory) reuse(s *slab, addr uint64) {
	off, end := (addr-s.base)/m.spread, uint64(step)
	m.mu.RLock()
	if i := m.find(addr); i < len(m.live) {
		end = min(end, (m.live[i].base-s.base)/m.spread)
	}
	m.mu.RUnlock()
	for _, r := range s.free {
		if r.lo > off {
			end = min(end, r.lo)
			break
		}
	}
	s.free.put(off, end)
}

// close frees everything.
func (m *memory) close() {
	m.alloc.Lock()
	defer m.alloc.Unlock()
	m.mu.Lock()
	m.live = nil
	m.mu.Unlock()
	//tenon:unordered all memory is released
	for _, b := range m.large {
		m.unreserve(b)
	}
	for _, s := range m.slabs {
		m.unreserve(s.mem)
	}
	clear(m.large)
	m.closeRanges()
	m.slabs = nil
	clear(m.small)
}

// info returns free and total bytes; without a capacity both are the host's memory, less what is reserved.
func (m *memory) info(hostTotal uint64) (free, total uint64) {
	m.alloc.Lock()
	defer m.alloc.Unlock()
	total = m.capacity
	if total == 0 {
		total = hostTotal
	}
	return total - min(m.reserved, total), total
}

// MemAlloc returns n bytes that hold the pattern of fresh memory, or the contents of an earlier allocation.
func (d *device) MemAlloc(t driver.Thread, n uint64) (driver.Ptr, error) {
	if err := d.lockUnsafe("MemAlloc", t); err != nil {
		return 0, err
	}
	d.m.mu.Unlock()
	if n == 0 {
		return 0, fail("MemAlloc", driver.InvalidValue, "0 bytes")
	}
	p, code := d.mem.allocate(n)
	if code != driver.Success {
		return 0, fail("MemAlloc", code, "")
	}
	if d.m.check != nil {
		d.m.check.Alloc(uint64(p), n)
	}
	return p, nil
}

// MemFree waits for all work of the device and frees p; it frees pool memory without waiting. Address 0 is not an error.
func (d *device) MemFree(t driver.Thread, p driver.Ptr) error {
	if d.lost() {
		return nil
	}
	if err := d.lockUnsafe("MemFree", t); err != nil {
		return err
	}
	if p == 0 {
		d.m.mu.Unlock()
		return nil
	}
	if b, ok := d.pool.blocks[uint64(p)]; ok {
		d.poolFree(uint64(p), b)
		d.m.mu.Unlock()
		return nil
	}
	if _, base, ok := d.mem.resolve(uint64(p)); !ok || base != uint64(p) || d.pool.holds(uint64(p)) {
		d.m.mu.Unlock()
		if d.m.check != nil {
			d.m.check.BadFree("MemFree", uint64(p))
		}
		return fail("MemFree", driver.InvalidValue, "no allocation begins at this address")
	}
	d.m.settle(target{dev: d, seq: d.m.seq})
	d.m.mu.Unlock()
	d.m.mapped.Lock()
	defer d.m.mapped.Unlock()
	if code := d.mem.release(p); code != driver.Success {
		return fail("MemFree", code, "freed twice")
	}
	if d.m.check != nil {
		d.m.check.Free(uint64(p))
	}
	return nil
}

// MemInfo returns free and total bytes; free changes in steps of 2 MiB.
func (d *device) MemInfo(t driver.Thread) (free, total uint64, err error) {
	if _, err := d.lockThread("MemInfo", t); err != nil {
		return 0, 0, err
	}
	d.m.mu.Unlock()
	free, total = d.mem.info(d.info.TotalMemory)
	return free, total, nil
}

// HostAlloc returns n bytes of page-locked memory, visible to kernels of every device at its host address.
func (d *device) HostAlloc(t driver.Thread, n uint64) ([]byte, error) {
	if err := d.lockUnsafe("HostAlloc", t); err != nil {
		return nil, err
	}
	d.m.mu.Unlock()
	if n == 0 {
		return nil, fail("HostAlloc", driver.InvalidValue, "0 bytes")
	}
	b := mapHost(n)
	if b == nil {
		return nil, fail("HostAlloc", driver.OutOfMemory, "")
	}
	d.m.host.add(hostAddress(b), b, d)
	return b, nil
}

// HostFree waits for all work of the device and frees b. A nil b is not an error.
func (d *device) HostFree(t driver.Thread, b []byte) error {
	if d.lost() {
		return nil
	}
	if err := d.lockUnsafe("HostFree", t); err != nil {
		return err
	}
	if len(b) == 0 {
		d.m.mu.Unlock()
		return nil
	}
	addr := hostAddress(b)
	if foreign, ok := d.m.host.foreign(addr); !ok || foreign {
		d.m.mu.Unlock()
		return fail("HostFree", driver.InvalidValue, "no page-locked memory of HostAlloc begins at this address")
	}
	d.m.await(target{dev: d, seq: d.m.seq})
	d.m.mu.Unlock()
	d.m.mapped.Lock()
	defer d.m.mapped.Unlock()
	b, ok := d.m.host.remove(addr)
	if !ok {
		return fail("HostFree", driver.InvalidValue, "freed twice")
	}
	unmapHost(b)
	return nil
}

// HostRegister makes b page-locked memory, visible to kernels of every device at its host address.
func (d *device) HostRegister(t driver.Thread, b []byte) error {
	if err := d.lockUnsafe("HostRegister", t); err != nil {
		return err
	}
	d.m.mu.Unlock()
	if len(b) == 0 {
		return fail("HostRegister", driver.InvalidValue, "0 bytes")
	}
	if !d.m.host.register(b, d) {
		return fail("HostRegister", driver.HostMemoryRegistered, "")
	}
	return nil
}

// HostUnregister waits for all work of the device and ends the registration of b.
func (d *device) HostUnregister(t driver.Thread, b []byte) error {
	if d.lost() {
		return nil
	}
	if err := d.lockUnsafe("HostUnregister", t); err != nil {
		return err
	}
	addr := hostAddress(b)
	if foreign, ok := d.m.host.foreign(addr); !ok || !foreign {
		d.m.mu.Unlock()
		return fail("HostUnregister", driver.HostMemoryNotRegistered, "no registered memory begins at this address")
	}
	d.m.await(target{dev: d, seq: d.m.seq})
	d.m.mu.Unlock()
	d.m.mapped.Lock()
	defer d.m.mapped.Unlock()
	if _, ok := d.m.host.remove(addr); !ok {
		return fail("HostUnregister", driver.HostMemoryNotRegistered, "unregistered twice")
	}
	return nil
}

// HostView returns memory of the CPU device; other devices' addresses do not exist on the host.
func (d *device) HostView(p driver.Ptr, n uint64) []byte {
	if !d.m.inline {
		return nil
	}
	if d.m.check != nil {
		d.m.check.Written(uint64(p), 0)
	}
	return d.mem.bytes(p, n)
}

// lost reports whether frees return no error: the device has faulted or is closed.
func (d *device) lost() bool {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return d.fault != nil || d.closed
}

// hostAddress returns the address of b's first byte.
func hostAddress(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// pinned reports whether b lies in page-locked memory.
func (m *machine) pinned(b []byte) bool {
	addr := hostAddress(b)
	mem, base, ok := m.host.resolve(addr)
	return ok && addr-base+uint64(len(b)) <= uint64(len(mem))
}
