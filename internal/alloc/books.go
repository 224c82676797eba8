package alloc

import (
	"slices"

	"tenon.dev/fault"
)

// books is what the strategies of one device share: the lock, statistics, history, and the private pools that a program names.
type books struct {
	backend Backend
	options Options
	history

	_        [64]byte // the lock, which others try while one goroutine has it, has a cache line of its own
	mu       lock
	_        [56]byte
	settings Settings
	stats    tally
	reserved uint64 // bytes held from the device
	limit
	pools
	observers []OOMObserver
	spares
}

// limit is how much the allocator may hold from the device.
type limit struct {
	total       uint64 // the device's memory, 0 until asked for
	fraction    float64
	fractionSet bool
	allowed     uint64 // bytes; only with fractionSet
}

// spares are dead blocks for reuse: splitting must not allocate.
type spares struct {
	spare *Block // linked by next
	ranks uint64 // state of drawRank
}

// lacks returns the error for a feature that the strategy does not have. Strategies that hold segments have all of them.
func (m *books) lacks(string) error { return nil }

// divert is called before allocations are diverted to a private pool, and may refuse; endDivert is called after the diversion.
func (m *books) divert() error { return nil }
func (m *books) endDivert()    {}

// addOwn adds the figures of the device's own pool to a copy of the statistics, and resetPeaks resets that pool's peaks.
func (m *books) addOwn(*Stats) {}
func (m *books) resetPeaks()   {}

// RecordStream notes that work queued on s uses b, so that b is not reused before that work is done. b's own stream is ignored, as is a nil
// b.
func (m *books) RecordStream(b *Block, s Stream) error {
	if b == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !b.allocated {
		return fault.New(fault.Invalid, "invalid device pointer: %#x is not allocated; record its streams before it is freed", b.addr)
	}
	if s == b.silo.stream || slices.Contains(b.uses, s) {
		return nil
	}
	b.uses = append(b.uses, s)
	if len(m.diversions) > 0 {
		if _, captured := m.backend.Capturing(s); captured {
			b.captureUses = append(b.captureUses, s)
		}
	}
	return nil
}

// freedBefore returns the error of a second free.
func freedBefore(b *Block) error {
	return fault.New(fault.Invalid, "invalid device pointer: %#x is not allocated; it was freed before", b.addr)
}

// Settings returns the settings in force.
func (m *books) Settings() Settings {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.settings
}

// setFraction sets the fraction of the device's memory that may be held, with the lock held.
func (m *books) setFraction(f float64) error {
	total, err := m.deviceTotal()
	if err != nil {
		return err
	}
	m.fraction, m.fractionSet = f, true
	m.allowed = uint64(f * float64(total))
	return nil
}

// MemoryFraction returns what SetMemoryFraction set, or 1.
func (m *books) MemoryFraction() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fraction
}

func (m *books) deviceTotal() (uint64, error) {
	if m.total == 0 {
		_, total, err := m.backend.MemInfo()
		if err != nil {
			return 0, err
		}
		m.total = total
	}
	return m.total, nil
}

// AddOOMObserver adds an observer of failing allocations.
func (m *books) AddOOMObserver(f OOMObserver) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.observers = append(m.observers, f)
}

// ResetAccumulatedStats sets the sums of increases and decreases, and the counters, to 0.
func (m *books) ResetAccumulatedStats() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.resetSums()
}

// collect calls Options.Collect without the lock, but not under a diversion or in a capture.
func (m *books) collect(r *request, failing bool) bool {
	if m.options.Collect == nil || len(m.diversions) > 0 {
		return false
	}
	if _, capturing := m.backend.Capturing(r.silo.stream); capturing {
		return false
	}
	p := Pressure{Wanted: r.segment, Reserved: m.reserved, Failing: failing}
	m.mu.Unlock()
	defer m.mu.Lock()
	return m.options.Collect(p)
}

// forgetRaw takes a block out of the table.
func (m *books) forgetRaw(b *Block) {
	if b.inTable {
		b.inTable = false
		m.options.Table.remove(b.addr)
	}
}
