package hostsim

import "tenon.dev/internal/driver"

// reservation is a range of device addresses with a reserved range of host memory of the same size, of which only mapped pieces are
// accessible.
type reservation struct {
	base   uint64
	mem    []byte
	mapped map[uint64]piece // by address
}

// piece is what one MemMap added to a reservation.
type piece struct {
	size   uint64
	pieces int64 // mappings of the pattern
}

// reservationOf returns the reservation that contains [p, p+n), or nil; alloc is held.
func (m *memory) reservationOf(p, n uint64) *reservation {
	//tenon:unordered reservations do not overlap
	for _, r := range m.ranges {
		if p >= r.base && p-r.base <= uint64(len(r.mem)) && n <= uint64(len(r.mem))-(p-r.base) {
			return r
		}
	}
	return nil
}

// reserveRange reserves n addresses.
func (m *memory) reserveRange(n uint64) (driver.Ptr, driver.Code) {
	m.alloc.Lock()
	defer m.alloc.Unlock()
	if n > addressSpace {
		return 0, driver.OutOfMemory
	}
	mem, ok := reserveHost(n)
	if !ok {
		return 0, driver.OutOfMemory
	}
	addr, ok := m.free.take(n+m.gap(), step)
	if !ok {
		releaseHost(mem)
		return 0, driver.OutOfMemory
	}
	m.ranges[addr] = &reservation{base: addr, mem: mem, mapped: map[uint64]piece{}}
	return driver.Ptr(addr), driver.Success
}

// unreserveRange releases a range in which nothing is mapped.
func (m *memory) unreserveRange(p, n uint64) driver.Code {
	m.alloc.Lock()
	defer m.alloc.Unlock()
	r := m.ranges[p]
	if r == nil || uint64(len(r.mem)) != n || len(r.mapped) > 0 {
		return driver.InvalidValue
	}
	delete(m.ranges, p)
	releaseHost(r.mem)
	if !m.policy.never {
		m.free.put(p, p+n+m.gap())
	}
	return driver.Success
}

// mapRange maps fresh memory at n addresses.
func (m *memory) mapRange(p, n uint64) driver.Code {
	m.alloc.Lock()
	defer m.alloc.Unlock()
	r := m.reservationOf(p, n)
	if r == nil || m.overlaps(p, n) {
		return driver.InvalidValue
	}
	if m.capacity != 0 && (n > m.capacity || m.reserved > m.capacity-n) {
		return driver.OutOfMemory
	}
	count, ok := commitHost(r.mem[p-r.base:][:n])
	if !ok {
		return driver.OutOfMemory
	}
	m.reserved += n
	r.mapped[p] = piece{n, count}
	m.join(r, p, n)
	return driver.Success
}

// unmapRange undoes one mapRange; the machine's mapped is held for writing.
func (m *memory) unmapRange(p, n uint64) driver.Code {
	m.alloc.Lock()
	defer m.alloc.Unlock()
	r := m.reservationOf(p, n)
	if r == nil || r.mapped[p].size != n {
		return driver.InvalidValue
	}
	m.cut(r, p, n)
	decommitHost(r.mem[p-r.base:][:n], r.mapped[p].pieces)
	delete(r.mapped, p)
	m.reserved -= n
	return driver.Success
}

// join adds [p, p+n) of r as one region with adjacent mapped memory, so that an access may span pieces.
func (m *memory) join(r *reservation, p, n uint64) {
	lo, hi := p, p+n
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := m.find(lo) - 1; i >= 0 && m.live[i].base >= r.base && m.live[i].base+uint64(len(m.live[i].bytes)) == lo {
		lo = m.live[i].base
		m.live = append(m.live[:i], m.live[i+1:]...)
	}
	if i := m.find(hi) - 1; i >= 0 && m.live[i].base == hi && hi < r.base+uint64(len(r.mem)) {
		hi += uint64(len(m.live[i].bytes))
		m.live = append(m.live[:i], m.live[i+1:]...)
	}
	m.insert(region{base: lo, bytes: r.mem[lo-r.base : hi-r.base : hi-r.base]})
}

// cut removes [p, p+n) from the region that contains it.
func (m *memory) cut(r *reservation, p, n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.find(p) - 1
	lo, hi := m.live[i].base, m.live[i].base+uint64(len(m.live[i].bytes))
	m.live = append(m.live[:i], m.live[i+1:]...)
	if lo < p {
		m.insert(region{base: lo, bytes: r.mem[lo-r.base : p-r.base : p-r.base]})
	}
	if p+n < hi {
		m.insert(region{base: p + n, bytes: r.mem[p+n-r.base : hi-r.base : hi-r.base]})
	}
}

// closeRanges frees all reservations.
func (m *memory) closeRanges() {
	//tenon:unordered all memory is released
	for _, r := range m.ranges {
		//tenon:unordered each piece is released separately
		for p, k := range r.mapped {
			decommitHost(r.mem[p-r.base:][:k.size], k.pieces)
			m.reserved -= k.size
		}
		releaseHost(r.mem)
	}
	clear(m.ranges)
}

// rangeCall checks the arguments of a call on virtual memory.
func (d *device) rangeCall(call string, t driver.Thread, p driver.Ptr, n uint64) error {
	if _, err := d.lockThread(call, t); err != nil {
		return err
	}
	d.m.mu.Unlock()
	switch {
	case !d.info.VirtualMemory:
		return fail(call, driver.NotSupported, "the device has no virtual memory")
	case n == 0 || n%step != 0 || uint64(p)%step != 0:
		return fail(call, driver.InvalidValue, "address and size must be multiples of 2 MiB, the size not 0")
	}
	return nil
}

// failure turns a code into an error or nil.
func failure(call string, code driver.Code, detail string) error {
	if code == driver.Success {
		return nil
	}
	return fail(call, code, detail)
}

// MemReserve reserves addresses; only mapped ones take memory.
func (d *device) MemReserve(t driver.Thread, n uint64) (driver.Ptr, error) {
	if err := d.rangeCall("MemReserve", t, 0, n); err != nil {
		return 0, err
	}
	p, code := d.mem.reserveRange(n)
	return p, failure("MemReserve", code, "")
}

// MemUnreserve releases a range.
func (d *device) MemUnreserve(t driver.Thread, p driver.Ptr, n uint64) error {
	if d.lost() {
		return nil
	}
	if err := d.rangeCall("MemUnreserve", t, p, n); err != nil {
		return err
	}
	return failure("MemUnreserve", d.mem.unreserveRange(uint64(p), n), "no range of this size without mapped memory begins here")
}

// MemMap maps memory that holds the pattern of fresh memory.
func (d *device) MemMap(t driver.Thread, p driver.Ptr, n uint64) error {
	if err := d.rangeCall("MemMap", t, p, n); err != nil {
		return err
	}
	code := d.mem.mapRange(uint64(p), n)
	if code == driver.Success && d.m.check != nil {
		d.m.check.Alloc(uint64(p), n)
	}
	return failure("MemMap", code, "")
}

// MemUnmap unmaps memory at once: work that still uses it faults.
func (d *device) MemUnmap(t driver.Thread, p driver.Ptr, n uint64) error {
	if d.lost() {
		return nil
	}
	if err := d.rangeCall("MemUnmap", t, p, n); err != nil {
		return err
	}
	d.m.mapped.Lock()
	defer d.m.mapped.Unlock()
	code := d.mem.unmapRange(uint64(p), n)
	if code == driver.Success && d.m.check != nil {
		d.m.check.Free(uint64(p))
	}
	return failure("MemUnmap", code, "no MemMap of this size began here")
}
