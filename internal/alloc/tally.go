package alloc

// tally is the statistics as they are kept. Every allocation changes five of them with the lock held, so it keeps only what the others do
// not follow from.
type tally struct {
	Allocation, Segment, Active, InactiveSplit                                     counters
	AllocatedBytes, ReservedBytes, ActiveBytes, InactiveSplitBytes, RequestedBytes counters

	OversizeAllocations, OversizeSegments Stat

	AllocRetries, OOMs, SyncAllStreams, DeviceAllocs, DeviceFrees int64
}

// counters keep a StatArray.
type counters struct {
	of   [2]counter // small and large
	peak int64      // of their sum
}

// counter keeps a Stat. Freed is allocated - now + base.
type counter struct {
	now, peak, allocated int64
	base                 int64 // now when allocated was last set to 0
}

func (c *counters) add(kind int, n int64) {
	k := &c.of[kind]
	k.now += n
	k.allocated += n
	k.peak = max(k.peak, k.now)
	c.peak = max(c.peak, c.now())
}

func (c *counters) sub(kind int, n int64) { c.of[kind].now -= n }

// change adds n or, if it is negative, subtracts -n.
func (c *counters) change(kind int, n int64) {
	if n > 0 {
		c.add(kind, n)
	} else {
		c.sub(kind, -n)
	}
}

// now returns the sum over both kinds.
func (c *counters) now() int64 { return c.of[smallPool].now + c.of[largePool].now }

func (c *counter) stat() Stat {
	return Stat{Current: c.now, Peak: c.peak, Allocated: c.allocated, Freed: c.allocated - c.now + c.base}
}

func (c *counters) stats() StatArray {
	s, l := c.of[smallPool].stat(), c.of[largePool].stat()
	return StatArray{{s.Current + l.Current, c.peak, s.Allocated + l.Allocated, s.Freed + l.Freed}, s, l}
}

func (t *tally) counters() [9]*counters {
	return [...]*counters{&t.Allocation, &t.Segment, &t.Active, &t.InactiveSplit, &t.AllocatedBytes, &t.ReservedBytes,
		&t.ActiveBytes, &t.InactiveSplitBytes, &t.RequestedBytes}
}

// read returns the statistics.
func (t *tally) read() Stats {
	s := Stats{OversizeAllocations: t.OversizeAllocations, OversizeSegments: t.OversizeSegments, AllocRetries: t.AllocRetries,
		OOMs: t.OOMs, SyncAllStreams: t.SyncAllStreams, DeviceAllocs: t.DeviceAllocs, DeviceFrees: t.DeviceFrees}
	for i, c := range t.counters() {
		*s.families()[i] = c.stats()
	}
	return s
}

// resetPeaks sets every peak to the current value.
func (t *tally) resetPeaks() {
	for _, c := range t.counters() {
		for k := range c.of {
			c.of[k].peak = c.of[k].now
		}
		c.peak = c.now()
	}
	t.OversizeAllocations.Peak, t.OversizeSegments.Peak = t.OversizeAllocations.Current, t.OversizeSegments.Current
}

// resetSums sets the sums of increases and decreases, and the counts of events, to 0.
func (t *tally) resetSums() {
	for _, c := range t.counters() {
		for k := range c.of {
			c.of[k].allocated, c.of[k].base = 0, c.of[k].now
		}
	}
	for _, s := range []*Stat{&t.OversizeAllocations, &t.OversizeSegments} {
		s.Allocated, s.Freed = 0, 0
	}
	t.AllocRetries, t.OOMs, t.SyncAllStreams, t.DeviceAllocs, t.DeviceFrees = 0, 0, 0, 0, 0
}
