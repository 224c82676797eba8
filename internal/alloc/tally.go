package alloc

// tally is the statistics as they are kept. Every allocation changes five of them with the lock held, and goroutines that allocate together
// pass what it writes from core to core. So it keeps only what the others do not follow from, and what changes together side by side.
type tally struct {
	kinds [2][quantities]counter // small and large
	peaks [quantities]int64      // of the sums over both

	OversizeAllocations, OversizeSegments Stat

	AllocRetries, OOMs, SyncAllStreams, DeviceAllocs, DeviceFrees int64
}

// quantity is the index of a StatArray in a tally and in Stats.families.
type quantity uint8

const (
	statAllocations quantity = iota
	statActive
	statAllocatedBytes
	statActiveBytes
	statRequestedBytes
	statInactiveSplit
	statInactiveSplitBytes
	statSegments
	statReservedBytes
	quantities
)

// counter keeps a Stat. Freed is allocated - now + base.
type counter struct {
	now, peak, allocated int64
	base                 int64 // now when allocated was last set to 0
}

func (t *tally) add(q quantity, kind int, n int64) {
	k := &t.kinds[kind][q]
	k.now += n
	k.allocated += n
	k.peak = max(k.peak, k.now)
	t.peaks[q] = max(t.peaks[q], t.now(q))
}

func (t *tally) sub(q quantity, kind int, n int64) { t.kinds[kind][q].now -= n }

// change adds n or, if it is negative, subtracts -n.
func (t *tally) change(q quantity, kind int, n int64) {
	if n > 0 {
		t.add(q, kind, n)
	} else {
		t.sub(q, kind, -n)
	}
}

// now returns the sum over both kinds.
func (t *tally) now(q quantity) int64 { return t.kinds[smallPool][q].now + t.kinds[largePool][q].now }

func (c *counter) stat() Stat {
	return Stat{Current: c.now, Peak: c.peak, Allocated: c.allocated, Freed: c.allocated - c.now + c.base}
}

// read returns the statistics.
func (t *tally) read() Stats {
	s := Stats{OversizeAllocations: t.OversizeAllocations, OversizeSegments: t.OversizeSegments, AllocRetries: t.AllocRetries,
		OOMs: t.OOMs, SyncAllStreams: t.SyncAllStreams, DeviceAllocs: t.DeviceAllocs, DeviceFrees: t.DeviceFrees}
	for q, all := range s.families() {
		small, large := t.kinds[smallPool][q].stat(), t.kinds[largePool][q].stat()
		sum := Stat{small.Current + large.Current, t.peaks[q], small.Allocated + large.Allocated, small.Freed + large.Freed}
		*all = StatArray{sum, small, large}
	}
	return s
}

// resetPeaks sets every peak to the current value.
func (t *tally) resetPeaks() {
	for q := range quantities {
		for k := range t.kinds {
			t.kinds[k][q].peak = t.kinds[k][q].now
		}
		t.peaks[q] = t.now(q)
	}
	t.OversizeAllocations.Peak, t.OversizeSegments.Peak = t.OversizeAllocations.Current, t.OversizeSegments.Current
}

// resetSums sets the sums of increases and decreases, and the counts of events, to 0.
func (t *tally) resetSums() {
	for k := range t.kinds {
		for q := range t.kinds[k] {
			c := &t.kinds[k][q]
			c.allocated, c.base = 0, c.now
		}
	}
	for _, s := range []*Stat{&t.OversizeAllocations, &t.OversizeSegments} {
		s.Allocated, s.Freed = 0, 0
	}
	t.AllocRetries, t.OOMs, t.SyncAllStreams, t.DeviceAllocs, t.DeviceFrees = 0, 0, 0, 0, 0
}
